"""Zero padding of device arrays: graphs without a GPU, results with one."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import get_mode

from dnnops.errors import DnnValueError
from dnnops.gpuarray import GpuArrayType
from dnnops.gpuarray.pad import GpuPad
from tests.gpuarray.graphs import to_device, to_host

MODE = get_mode("CVM").including("gpu")
PADS = [(0, 0), (1, 2), (0, 3)]
REVERSE = [(0, 0), (-1, -2), (0, -3)]


def array(dtype="float32", shape=(None,) * 3):
    return GpuArrayType(dtype, shape)()


def test_type():
    out = GpuPad(PADS)(array(shape=(2, None, 4)))
    assert out.type == GpuArrayType("float32", (2, None, 7))
    back = GpuPad(REVERSE)(out)
    assert back.type == GpuArrayType("float32", (2, None, 4))
    assert GpuPad(REVERSE).view_map == {0: [0]}
    assert not GpuPad(PADS).view_map


def test_shape_is_inferred():
    x = array()
    f = pytensor.function([x], GpuPad(PADS)(x).shape, mode=MODE)
    assert not any(isinstance(node.op, GpuPad) for node in f.maker.fgraph.apply_nodes)


def test_errors():
    with pytest.raises(DnnValueError, match="all non-negative or all non-positive"):
        GpuPad([(1, -1)])
    with pytest.raises(DnnValueError, match="do not fit"):
        GpuPad([(1, 1)])(array())
    with pytest.raises(DnnValueError, match="remove more elements"):
        GpuPad([(0, 0), (-1, -2), (0, 0)])(array(shape=(1, 2, 1)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradient_is_the_reverse(dtype):
    x = array(dtype)
    out = GpuPad(PADS)(x)
    (gradient,) = GpuPad(PADS).pullback([x], [out], [out])
    assert gradient.type.dtype == "float32"
    (tangent,) = GpuPad(PADS).pushforward([x], [out], [x])
    assert tangent.owner.op == GpuPad(PADS)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", "bool"])
@pytest.mark.parametrize("shape", [(2, 3, 4), (0, 3, 4), (2, 0, 4), (1, 1, 1)])
def test_values(shape, dtype):
    x = array(dtype)
    padded = GpuPad(PADS)(x)
    f = pytensor.function([x], [padded, GpuPad(REVERSE)(padded)], mode=MODE)
    value = np.random.default_rng(0).integers(0, 5, shape).astype(dtype)
    out, back = map(to_host, f(to_device(value)))
    np.testing.assert_array_equal(out, np.pad(value, PADS))
    np.testing.assert_array_equal(back, value)


@pytest.mark.gpu
def test_memory_format_and_strides():
    x = array(shape=(None,) * 4)
    pads = [(0, 0), (0, 0), (1, 0), (0, 2)]
    f = pytensor.function([x], GpuPad(pads)(x), mode=MODE)
    value = np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype("float32")
    channels_last = np.ascontiguousarray(value.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    out = f(to_device(channels_last))
    assert out.transpose(0, 2, 3, 1).flags.c_contiguous
    np.testing.assert_array_equal(out.get(), np.pad(value, pads))
    out = f(to_device(value)[:, ::-1, ::2])
    np.testing.assert_array_equal(out.get(), np.pad(value[:, ::-1, ::2], pads))


@pytest.mark.gpu
def test_gradient():
    x = array()
    cost = (pt.as_tensor_variable(GpuPad(PADS)(x)) ** 2).sum()
    f = pytensor.function([x], pytensor.grad(cost, x), mode=MODE)
    value = np.random.default_rng(0).standard_normal((2, 3, 4)).astype("float32")
    np.testing.assert_allclose(to_host(f(to_device(value))), 2 * value)

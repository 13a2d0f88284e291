"""Scaled sums and copies with cuDNN: descriptors without a GPU, results with one."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from dnnops.dnn import dnn_transform
from dnnops.errors import DnnNotSupportedError, DnnTypeError, DnnValueError
from dnnops.gpu.transform import GpuDnnAddTensor, GpuDnnTransform
from dnnops.gpuarray.type import GpuArrayType
from tests.gpu.calls import call, channels_last, device_tensor, shape_of
from tests.gpu.device import apply_op, host, on_gpu, poison, rounded
from tests.oracle import RELATIVE_ERROR, SEED, repeat_command

DTYPES = ("float16", "float32", "float64")
ONE = np.array(1.0)


@pytest.mark.needs("cudnn")
@pytest.mark.parametrize("dtype", DTYPES)
def test_descriptors(dtype):
    for a, c in (
        ((), ()),
        ((3,), (3,)),
        ((1,), (3,)),
        ((1, 4, 1, 1), (2, 4, 5, 6)),
        ((2, 1, 3, 1, 2), (2, 4, 3, 5, 2)),
        ((1, 1, 2, 3, 1, 1, 1, 1), (5, 4, 2, 3, 2, 2, 2, 2)),
        ((0, 3), (0, 3)),
    ):
        operands = [device_tensor(a, dtype), device_tensor(c, dtype), ONE, ONE]
        call("dnnops_cudnn_add_tensor_describe", GpuDnnAddTensor(), operands)
        (out,) = call("dnnops_cudnn_add_tensor_shape", GpuDnnAddTensor(), operands)
        assert shape_of(out) == c
    for shape in ((2, 3, 4), (2, 3, 4, 5), (1, 1, 1, 1), (2, 3, 4, 5, 6)):
        for make in (device_tensor, channels_last):
            for target in (device_tensor, channels_last):
                call(
                    "dnnops_cudnn_transform_describe",
                    GpuDnnTransform(),
                    [make(shape, dtype), ONE],
                    [target(shape, dtype)],
                )


@pytest.mark.needs("cudnn")
def test_bad_operands():
    with pytest.raises(DnnNotSupportedError, match="up to 5 dimensions"):
        call(
            "dnnops_cudnn_add_tensor_describe",
            GpuDnnAddTensor(),
            [device_tensor((2, 1, 2, 1, 2, 1)), device_tensor((2,) * 6), ONE, ONE],
        )
    with pytest.raises(DnnValueError, match="broadcasts to that of c"):
        call(
            "dnnops_cudnn_add_tensor_shape",
            GpuDnnAddTensor(),
            [device_tensor((2, 3)), device_tensor((4, 3)), ONE, ONE],
        )
    x = GpuArrayType("float32", (2, 3))()
    with pytest.raises(DnnValueError, match="cannot be broadcast"):
        GpuDnnAddTensor()(x, GpuArrayType("float32", (4, 3))())
    with pytest.raises(DnnTypeError, match="equal rank"):
        GpuDnnAddTensor()(x, GpuArrayType("float32", (4, 2, 3))())
    with pytest.raises(DnnTypeError, match="3 to 5 dimensions"):
        GpuDnnTransform()(x)
    with pytest.raises(DnnTypeError, match="dnn_transform: dtype must be a dtype, got 'flot16'"):
        dnn_transform(x, dtype="flot16")
    with pytest.raises(DnnValueError, match="memory_format"):
        GpuDnnTransform("NHWC")
    with pytest.raises(DnnTypeError, match="bfloat16"):
        GpuDnnTransform()(GpuArrayType("bfloat16", (2, 3, 4))())


def test_gradients_are_built():
    a, c = GpuArrayType("float32", (1, 3, 1))(), GpuArrayType("float32", (None, 3, 4))()
    alpha = pt.dscalar()
    z = GpuDnnAddTensor()(a, c, alpha, 0.5)
    grads = pytensor.grad((pt.as_tensor_variable(z) ** 2).sum(), [a, c, alpha])
    assert [g.type.ndim for g in grads] == [3, 3, 0]
    y = GpuDnnTransform("channels_last")(c, alpha)
    grads = pytensor.grad((pt.as_tensor_variable(y) ** 2).sum(), [c, alpha])
    assert [g.type.ndim for g in grads] == [3, 0]
    assert GpuDnnAddTensor(inplace=True).destroy_map == {0: [1]}


# -- with a GPU ----------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_random_sums(dtype):
    rng = np.random.default_rng(SEED)
    failures = []
    for number in range(100):
        ndim = int(rng.integers(0, 6))
        shape = tuple(int(n) for n in rng.integers(0 if number % 9 == 0 else 1, 9, ndim))
        repeated = tuple(1 if rng.integers(2) else n for n in shape)
        a, c = (rounded(rng.standard_normal(s), dtype) for s in (repeated, shape))
        alpha, beta = ((1.0, 1.0), (0.5, -2.0), (2.0, 0.0))[number % 3]
        words = f"number {number}: {alpha} * {dtype}{repeated} + {beta} * {shape}"
        try:
            poison()
            given = on_gpu(c, dtype)
            op = GpuDnnAddTensor(inplace=number % 2 == 1)
            out = apply_op(op, on_gpu(a, dtype), given, alpha, beta)
            assert (out is given) == op.inplace
            ref = alpha * a + beta * c
            bound = RELATIVE_ERROR[dtype]
            np.testing.assert_allclose(host(out), ref, rtol=bound, atol=bound)
        except Exception as error:
            failures.append(f"{words}: {type(error).__name__}: {error}")
    assert not failures, f"{len(failures)} fail; {repeat_command()}\n" + "\n".join(failures[:8])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_random_copies(dtype):
    rng = np.random.default_rng(SEED)
    formats = ("contiguous", "channels_last")
    failures = []
    for number in range(70):
        shape = tuple(int(n) for n in rng.integers(1, 12, 3 + number % 3))
        source, target = formats[number // 2 % 2], formats[number % 2]
        x = rounded(rng.standard_normal(shape), dtype)
        alpha = (1.0, -0.5)[number % 3 == 0]
        words = f"number {number}: {alpha} * {dtype}{shape}, {source} to {target}"
        try:
            poison()
            out = apply_op(GpuDnnTransform(target), on_gpu(x, dtype, source), alpha)
            bound = RELATIVE_ERROR[dtype]
            # A product near zero may have fewer digits than the bound requires.
            np.testing.assert_allclose(host(out), rounded(alpha * x, dtype), rtol=bound, atol=0)
            order = (0, *range(2, len(shape)), 1) if target == formats[1] else range(len(shape))
            assert out.transpose(tuple(order)).flags.c_contiguous
        except Exception as error:
            failures.append(f"{words}: {type(error).__name__}: {error}")
    assert not failures, f"{len(failures)} fail; {repeat_command()}\n" + "\n".join(failures[:8])

"""Asymmetric padding is added around cuDNN; evaluate the resulting graphs in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.traversal import toposort

from dnnops import dnn
from dnnops.errors import DnnNotSupportedError
from dnnops.gpu.conv import GpuDnnConv, GpuDnnConvBase, GpuDnnConvGradI, GpuDnnConvGradW
from dnnops.gpuarray.pad import GpuPad
from dnnops.gpuarray.type import GpuArrayType
from dnnops.nnet.conv.op import Conv, ConvGradInputs, ConvGradWeights
from tests.oracle import assert_close, conv_cases, fuzz, run_op

PAIRS = (
    (GpuDnnConv, Conv),
    (GpuDnnConvGradI, ConvGradInputs),
    (GpuDnnConvGradW, ConvGradWeights),
)
ABSTRACT = dict(PAIRS)


def in_numpy(result: Any, values: dict) -> np.ndarray:
    """Evaluate a graph of device Ops as if its arrays were on the host."""
    for node in toposort([result]):
        inputs = [values[x] if x in values else np.asarray(x.data) for x in node.inputs]
        op = node.op
        if isinstance(op, GpuPad):
            pads = np.array(op.pads)
            (x,) = inputs
            out = np.pad(x, pads.clip(0))
            out = out[tuple(slice(-min(b, 0), n + min(e, 0)) for n, (b, e) in zip(
                out.shape, op.pads, strict=True))]  # fmt: skip
        elif isinstance(op, GpuDnnConvBase):
            assert isinstance(op.border_mode, str) or all(b == e for b, e in op.border_mode)
            first, second, *others = inputs
            sizes, (alpha, *rest) = others[: op.leading - 2], others[op.leading - 2 :]
            abstract = ABSTRACT[type(op)](**op.conv_params())
            out = alpha * run_op(abstract, first, second, *sizes)
            if rest:
                out = out + rest[0] * rest[1]
        else:  # sizes, on the host
            storage: list[list[Any]] = [[None]]
            op.perform(node, inputs, storage)
            out = storage[0][0]
        values[node.outputs[0]] = out
    return values[result]


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("index", range(3), ids=[cls.__name__ for cls, _ in PAIRS])
@fuzz(max_examples=40, case=conv_cases(border_modes=("pairs",), empty=True))
def test_same_numbers(index, symbolic, accumulate, case):
    img, kern, top = case.arrays()
    arrays, sizes, ref_shape = (
        ((img, kern), (), top.shape),
        ((kern, top), (np.array(case.img_shape[2:]),), img.shape),
        ((img, top), (np.array(case.kern_shape[2:]),), kern.shape),
    )[index]
    cls, abstract = PAIRS[index]
    expected = run_op(abstract(**case.params), *arrays, *sizes)
    kind = GpuArrayType("float64", (None,) * img.ndim)
    variables = [kind(), kind()]
    values = dict(zip(variables, arrays, strict=True))
    given = list(sizes)
    if symbolic and sizes:
        given = [pt.lvector()]
        values[given[0]] = sizes[0]
    factors: list[Any] = [2.0]
    if accumulate:
        old = np.random.default_rng(case.seed).standard_normal(ref_shape)
        factors += [-0.5, kind()]
        values[factors[-1]] = old
    out = cls(**case.params, accumulate=accumulate)(*variables, *given, *factors)
    assert out.type.dtype == "float64"
    result = in_numpy(out, values)
    static = out.type.shape
    assert all(s is None or s == n for s, n in zip(static, result.shape, strict=True))
    expected = 2 * expected - 0.5 * old if accumulate else 2 * expected
    assert_close(result, expected, "float64", allow_zero=True)


def image_and_filters() -> list:
    return [GpuArrayType("float32", (2, 3, 9, 8))(), GpuArrayType("float32", (4, 3, 3, 3))()]


def test_static_shapes():
    img, kern = image_and_filters()
    border_mode = ((0, 2), (3, 1))
    assert GpuDnnConv(ndim=2, border_mode=border_mode)(img, kern).type.shape == (2, 4, 9, 10)
    top = GpuArrayType("float32", (2, 4, 9, 10))()
    grad = GpuDnnConvGradI(ndim=2, border_mode=border_mode)(kern, top, np.array([9, 8]))
    assert grad.type.shape == (2, 3, 9, 8)


def test_node_alone_is_refused():
    with pytest.raises(DnnNotSupportedError, match=r"GpuDnnConv2d: .*border_mode=\(\(0, 1\)"):
        GpuDnnConv(ndim=2, border_mode=((0, 1), (0, 0))).make_node(*image_and_filters())


def test_functions_of_theano():
    img, kern = image_and_filters()
    border_mode = ((0, 2), (3, 1))
    top = GpuArrayType("float32", (2, 4, 9, 10))()
    for out in (
        dnn.dnn_conv(img, kern, border_mode),
        dnn.dnn_gradweight(img, top, (4, 3, 3, 3), border_mode),
        dnn.dnn_gradinput(kern, top, (2, 3, 9, 8), border_mode),
    ):
        assert any(isinstance(node.op, GpuPad) for node in toposort([out]))


def test_derivatives_of_any_order():
    img, kern = image_and_filters()
    cost = (
        pt.as_tensor_variable(GpuDnnConv(ndim=2, border_mode=((0, 2), (3, 1)))(img, kern)) ** 2
    ).sum()
    first = pytensor.grad(cost, [img, kern])
    second = pytensor.grad(sum((pt.as_tensor_variable(g) ** 2).sum() for g in first), [img, kern])
    assert [g.type.shape for g in (*first, *second)] == [img.type.shape, kern.type.shape] * 2

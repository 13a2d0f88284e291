"""Ops called with descriptors, as in Theano: graphs without a GPU, results with one."""

from __future__ import annotations

import dataclasses
import pickle

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from dnnops import dnn
from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.gpu.conv_padding import is_asymmetric
from dnnops.gpuarray.type import GpuArrayType
from dnnops.nnet import dropout_state
from tests.gpu.conv.convolutions import (
    PAIRS,
    every_op,
    in_dtype,
    operands,
    reference,
    result_shape,
)
from tests.gpu.device import check, on_gpu
from tests.oracle import conv_cases, fuzz

CONSTRUCTORS = (dnn.gpu_dnn_conv, dnn.gpu_dnn_conv_gradI, dnn.gpu_dnn_conv_gradW)


def described(case, kern_shape=None):
    desc = dnn.GpuDnnConvDesc(
        border_mode=case.border_mode,
        subsample=case.subsample,
        dilation=case.filter_dilation,
        conv_mode="conv" if case.filter_flip else "cross",
        precision="float32",
        num_groups=case.num_groups,
    )
    return desc(kern_shape)


def arrays(*shapes) -> list:
    return [GpuArrayType("float32", shape)() for shape in shapes]


@every_op
@pytest.mark.parametrize("inplace", [False, True])
@fuzz(max_examples=40, case=conv_cases())
def test_convolutions(index, inplace, case):
    """A call with a descriptor equals one with the Op's own parameters."""
    if case.ndim == 1:
        return
    first, second = operands(case, index)[:2]
    shapes = [first.shape, second.shape, result_shape(case, index)]
    x, y, out = arrays(*shapes)
    cls = PAIRS[index][0]
    op = cls(algo="guess_once", inplace=inplace, num_groups=case.num_groups)
    assert op == CONSTRUCTORS[index]("guess_once", inplace, case.num_groups)
    result = op(x, y, out, described(case, case.kern_shape), 0.5, 2)
    own = cls(
        **case.params, algo="guess_once", precision="float32", accumulate=True, inplace=inplace
    )
    sizes = [] if index == 0 else [pt.constant(np.array(out.type.shape[2:]))]
    expected = own(x, y, *sizes, 0.5, 2.0, out)
    assert pytensor.graph.basic.equal_computations([result], [expected])
    assert result.type.shape == shapes[2]
    if not is_asymmetric(own):
        assert result.owner.op.destroy_map == ({0: [(index and 5) or 4]} if inplace else {})


def test_scalars_by_default_and_by_name():
    x, w, out = arrays((2, 3, 6, 6), (4, 3, 3, 3), (2, 4, 2, 2))
    desc = dnn.GpuDnnConvDesc("valid", (2, 2))
    for result in (
        dnn.GpuDnnConv()(x, w, out, desc),
        dnn.GpuDnnConv()(x, w, output=out, desc=desc),
        dnn.GpuDnnConv()(x, w, out, desc, None, None),
    ):
        alpha, beta, given = result.owner.inputs[2:]
        assert (alpha.data, beta.data) == (1, 0)
        assert given is out
    (alpha, beta) = dnn.GpuDnnConv()(x, w, out, desc, beta=3).owner.inputs[2:4]
    assert (alpha.data, beta.data) == (1, 3)


def test_parameters_by_position():
    """Theano's order differs between the convolution and its gradients."""
    op = dnn.GpuDnnConv("time_once", True, 2)
    assert op == dnn.GpuDnnConv(algo="time_once", inplace=True, num_groups=2)
    for cls in (dnn.GpuDnnConvGradI, dnn.GpuDnnConvGradW):
        assert cls(True, "time_once", 2) == cls(algo="time_once", inplace=True, num_groups=2)
    with pytest.raises(TypeError, match="positional"):
        dnn.GpuDnnConv("time_once", True, 2, "half")
    assert dnn.GpuDnnPool("sum").mode == "sum"
    reduction = dnn.GpuDnnReduction("maximum", (1,), "float32", "float32", True)
    assert (reduction.axis, reduction.return_indices) == ((1,), True)
    normalization = dnn.GpuDnnBatchNorm("spatial", True, False, True, False)
    assert normalization.inplace_running_var
    softmax = dnn.GpuDnnSoftmax("fast", "instance")
    assert (softmax.algo, softmax.mode) == ("fast", "instance")


def test_gradients_and_host_operands():
    x, w = pt.ftensor4(), pt.ftensor4()
    out = pt.zeros((2, 4, 2, 2), dtype="float32")
    y = dnn.GpuDnnConv()(x, w, out, dnn.GpuDnnConvDesc("valid", subsample=(2, 2)))
    assert isinstance(y.type, GpuArrayType)
    for gradient, of in zip(pytensor.grad(pt.sum(y.transfer("cpu")), [x, w]), (x, w), strict=True):
        assert gradient.type.ndim == of.type.ndim


@pytest.mark.parametrize("symbolic", [False, True])
def test_get_out_shape(symbolic):
    image, kernel = (2, 3, 9, 8), (4, 3, 3, 2)
    if symbolic:
        vectors = pt.lvector(), pt.lvector()
        out = dnn.GpuDnnConv.get_out_shape(*vectors, "half", (2, 1), (1, 2))
        fn = pytensor.function(list(vectors), out, mode="FAST_COMPILE")
        assert [int(n) for n in fn(image, kernel)] == [2, 4, 5, 8]
    else:
        shape = dnn.GpuDnnConv.get_out_shape(image, kernel, (1, 1), (2, 1))
        assert shape == (2, 4, 5, 9)


def test_records():
    desc = dnn.GpuDnnConvDesc(1, subsample=[2, 1], num_groups=2)
    same = dnn.GpuDnnConvDesc((1, 1), (2, 1), (1, 1), "conv", "float32", 2)
    assert desc == same == pickle.loads(pickle.dumps(desc))
    assert hash(desc) == hash(same)
    assert desc != dataclasses.replace(desc, conv_mode="cross")
    with pytest.raises(dataclasses.FrozenInstanceError):
        desc.precision = "float64"


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: dnn.GpuDnnConvDesc("same"), DnnValueError, "GpuDnnConvDesc: border_mode"),
        (lambda: dnn.GpuDnnConvDesc(0, subsample=2), DnnTypeError, "subsample must be a tuple"),
        (lambda: dnn.GpuDnnConvDesc(0, (1,) * 4), DnnValueError, "must be 1, 2 or 3"),
        (lambda: dnn.GpuDnnConvDesc(0, dilation=(0, 1)), DnnValueError, "filter_dilation"),
        (lambda: dnn.GpuDnnConvDesc(0, conv_mode="x"), DnnValueError, "conv_mode must be one of"),
        (
            lambda: dnn.GpuDnnConv()(*arrays(*((None,) * 4,) * 3), desc="valid"),
            DnnTypeError,
            "desc must be a GpuDnnConvDesc, got 'valid'",
        ),
        (
            lambda: dnn.GpuDnnConv(border_mode="full")(
                *arrays(*((None,) * 4,) * 3), dnn.GpuDnnConvDesc("valid")
            ),
            DnnValueError,
            "border_mode='full' of the Op differs from the value in desc",
        ),
        (
            lambda: dnn.GpuDnnConv()(
                *arrays((1, 1, 5, 5), (1, 1, 3, 3), (1, 1, 4, 4)), dnn.GpuDnnConvDesc("valid")
            ),
            DnnValueError,
            "the operands must have one shape, got result",
        ),
    ],
)
def test_bad_arguments(make, error, words):
    with pytest.raises(error, match=words):
        make()


def test_dropout():
    (x,) = arrays((3, 4))
    desc = dnn.GpuDnnDropoutDesc(0.25, seed=7)
    state = desc.state("state")
    np.testing.assert_array_equal(state.get_value(), dropout_state(7).get_value())
    node = dnn.GpuDnnDropoutOp()(x, desc, state)[0].owner
    assert node.inputs[1].data == 0.25
    assert node.inputs[2] is state
    own = dnn.GpuDnnDropoutOp()(x, desc)[0].owner
    assert own.inputs[2].default_update is own.outputs[2]
    np.testing.assert_array_equal(own.inputs[2].get_value(), state.get_value())


@pytest.mark.gpu
@every_op
@pytest.mark.parametrize("inplace", [False, True])
@fuzz(max_examples=15, case=conv_cases(ndim=2))
def test_numbers(index, inplace, case):
    given = in_dtype(operands(case, index)[:2], "float32")
    plain = reference(case, index, [*given, *operands(case, index)[2:]])
    old = np.random.default_rng(case.seed).standard_normal(plain.shape).astype("float32")
    x, y, out = arrays(*((None,) * 4,) * 3)
    op = CONSTRUCTORS[index](inplace=inplace, num_groups=case.num_groups)
    results = [op(x, y, out, described(case)), op(x, y, out, described(case), 0.5, 2)]
    factors = [(1, 0), (0.5, 2)]
    for result, (alpha, beta) in zip(results, factors, strict=True):
        fn = pytensor.function(
            [x, y, pytensor.In(out, mutable=True)], result, mode="CVM", accept_inplace=True
        )
        start = np.full_like(old, np.nan) if beta == 0 else old
        found = fn(*(on_gpu(a, "float32") for a in (*given, start)))
        check(found, alpha * plain + (beta * old if beta else 0), "float32", bound=2e-5)

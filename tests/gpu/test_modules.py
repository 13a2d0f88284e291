"""The Ops' static properties without a GPU, and their C modules, compiled and linked."""

from __future__ import annotations

import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.basic import Constant
from pytensor.graph.fg import FunctionGraph
from pytensor.link.c.basic import CLinker

from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.gpu.activation import GpuDnnActivation, GpuDnnActivationGrad
from dnnops.gpu.batchnorm import (
    GpuDnnBatchNorm,
    GpuDnnBatchNormGrad,
    GpuDnnBatchNormInference,
)
from dnnops.gpu.conv import GpuDnnConv, GpuDnnConvGradI, GpuDnnConvGradW
from dnnops.gpu.cross_entropy import GpuCrossEntropy, GpuCrossEntropyGrad
from dnnops.gpu.dropout import GpuDnnDropoutGrad, GpuDnnDropoutOp
from dnnops.gpu.fused.conv_activation import GpuDnnConvActivation
from dnnops.gpu.fused.dense import GpuDense
from dnnops.gpu.fused.folded_filters import GpuFoldBatchNorm
from dnnops.gpu.fused.pool_sum import GpuDnnPoolGradSum
from dnnops.gpu.pool import GpuDnnPool, GpuDnnPoolGrad
from dnnops.gpu.reduction import GpuDnnReduction
from dnnops.gpu.softmax import GpuDnnSoftmax, GpuDnnSoftmaxGrad
from dnnops.gpu.transform import GpuDnnAddTensor, GpuDnnTransform
from dnnops.gpuarray.type import GpuArrayType


def array(dtype="float32", shape=(None, None, None, None), device=0):
    return GpuArrayType(dtype, shape, device)()


def outputs():
    x, w, top = array(), array(), array()
    vectors = [2, 2], [2, 2], [0, 0]
    yield GpuDnnConv()(x, w)
    yield GpuDnnConv(memory_format="channels_last")(x, w)
    yield GpuDnnConv(accumulate=True)(x, w, 1.0, 1.0, top)
    yield GpuDnnConv(accumulate=True, inplace=True)(x, w, pt.dscalar(), pt.dscalar(), top)
    yield GpuDnnConvGradI()(w, top, pt.lvector())
    yield GpuDnnConvGradW()(x, top, [3, 3])
    yield GpuDnnPool()(x, *vectors)
    yield GpuDnnPoolGrad()(x, top, top, *vectors)
    yield GpuDnnPoolGradSum(memory_format="channels_last")(x, top, top, x, *vectors)
    yield GpuDnnSoftmax()(x)
    yield GpuDnnSoftmaxGrad()(x, top)
    yield GpuDnnConv()(array("bfloat16"), array("bfloat16"))
    one = array(shape=(1, None, 1, 1))
    fused = GpuDnnConvActivation("relu", bias=True, addend=True, memory_format="channels_last")
    yield fused(x, w, 1.0, one, top)
    yield GpuFoldBatchNorm(0.1, "bfloat16", 1, "channels_last")(w, one, one, one, one)[0]
    yield GpuDnnBatchNorm("spatial", True, True)(x, one, one, pt.dscalar(), 0.1, one, one)[3]
    yield GpuDnnBatchNormGrad("spatial", True)(x, top, one, one, one)[0]
    yield GpuDnnBatchNormInference("spatial")(x, one, one, one, one, 0.1)
    yield GpuDnnReduction("norm2", (0, 2))(x)
    yield GpuDnnReduction("max", 1, return_indices=True)(x)[1]
    yield GpuDnnActivation("elu", 1.0, inplace=True)(x)
    yield GpuDnnActivationGrad("tanh")(x, top, w)
    yield GpuDnnDropoutOp(inplace=True)(x, 0.5, pt.lvector())[0]
    yield GpuDnnDropoutGrad()(x, pt.dscalar(), array("uint8", (None,)))
    yield GpuDnnAddTensor(inplace=True)(x, top, 2.0, pt.dscalar())
    yield GpuDnnTransform("channels_last")(x)
    scores, labels = array(shape=(None, None)), array("int64", (None,))
    yield GpuCrossEntropy()(scores, labels)[0]
    statistics = array(shape=(None, None))
    yield GpuDense("relu", bias=True, addend=True)(
        scores, statistics, array(shape=(None,)), scores
    )[0]
    yield GpuCrossEntropyGrad()(array(shape=(None,)), scores, labels, statistics)


@pytest.mark.needs("cudnn")
def test_source_grows_linearly_with_operands():
    """One node folds all normalizations of a network; a cleanup of all at each took 33 s of g++."""

    def length(count):
        one = array(shape=(1, None, 1, 1))
        folded = GpuFoldBatchNorm(0.1, "float32", count)(*[array(), one, one, one, one] * count)
        inputs = list(dict.fromkeys(folded[0].owner.inputs))
        return len(CLinker().accept(FunctionGraph(inputs, folded, clone=True)).get_src_code())

    small, medium, large = map(length, (1, 21, 41))
    assert large - medium < 1.1 * (medium - small)


@pytest.mark.needs("cudnn")
@pytest.mark.parametrize("out", list(outputs()), ids=lambda out: type(out.owner.op).__name__)
def test_c_module(out):
    inputs = [x for x in dict.fromkeys(out.owner.inputs) if not isinstance(x, Constant)]
    module = CLinker().accept(FunctionGraph(inputs, [out], clone=True)).compile_cmodule()
    assert callable(module.instantiate)


def test_static_shapes():
    x, w = array(shape=(2, 4, 8, None)), array(shape=(6, 2, 3, 3))
    out = GpuDnnConv(num_groups=2, border_mode="half")(x, w)
    assert out.type == GpuArrayType("float32", (2, 6, 8, None), 0)
    gx = GpuDnnConvGradI(num_groups=2, border_mode="half")(w, out, [8, 9])
    assert gx.type.shape == (2, 4, 8, 9)
    gw = GpuDnnConvGradW(num_groups=2, border_mode="half")(x, out, [3, 3])
    assert gw.type.shape == (6, 2, 3, 3)
    pooled = GpuDnnPool()(x, [2, 2], [2, 2], [0, 0])
    assert pooled.type.shape == (2, 4, 4, None)


def test_accumulate_follows_the_operands():
    x, w, top = array(), array(), array()
    node = GpuDnnConv()(x, w, 2.0, 0.5, top).owner
    assert node.op.accumulate
    assert len(node.inputs) == 5
    assert not GpuDnnConv(accumulate=True)(x, w).owner.op.accumulate
    assert node.op.replace(inplace=True).destroy_map == {0: [4]}
    assert GpuDnnConvGradI(accumulate=True, inplace=True).destroy_map == {0: [5]}


def test_flags_are_read_when_the_op_is_made():
    with pytensor.config.change_flags(
        dnn__conv__algo_fwd="fft",
        dnn__conv__algo_bwd="time_once",
        dnn__conv__precision="float32",
        dnn__allow_tf32=True,
        dnn__deterministic=True,
        dnn__conv__workspace_limit="1MiB",
    ):
        forward, backward = GpuDnnConv(), GpuDnnConvGradW()
    assert forward.algo == "fft"
    assert backward.algo == "time_once"
    assert GpuDnnConv().algo == "guess_once"
    assert GpuDnnConvGradI().algo == "guess_once"
    assert forward.precision == "float32"
    assert forward.allow_tf32
    assert forward.deterministic
    assert forward.workspace_limit == 1 << 20
    assert GpuDnnConv(algo="fft").algo == "fft"
    assert not GpuDnnConv(deterministic=False).deterministic
    assert GpuDnnConv(workspace_limit="1.5KiB").workspace_limit == 1536
    assert GpuDnnConv(workspace_limit="auto") == GpuDnnConv(workspace_limit=-1)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: GpuDnnConv(precision="half"), DnnValueError, "precision must be one of.*'half'"),
        (lambda: GpuDnnConv(memory_format="NHWC"), DnnValueError, "memory_format"),
        (lambda: GpuDnnConv(inplace=True)(array(), array()), DnnTypeError, "inplace=True needs"),
        (lambda: GpuDnnConv(allow_tf32="True"), DnnTypeError, "allow_tf32 must be True or False"),
        (lambda: GpuDnnConv(deterministic=2), DnnTypeError, "deterministic must be True or False"),
        (lambda: GpuDnnConv(workspace_limit="lots"), DnnValueError, "workspace_limit: 'lots'"),
        (lambda: GpuDnnConv(workspace_limit=-2), DnnValueError, "workspace_limit: '-2'"),
        (
            lambda: GpuDnnConv(precision="float16")(array(), array()),
            DnnValueError,
            "no convolution of float32 arrays that computes in float16",
        ),
        (lambda: GpuDnnConv()(array(), array("float16")), DnnTypeError, "the same dtype"),
        (lambda: GpuDnnConv()(array("int32"), array("int32")), DnnTypeError, "int32"),
        (lambda: GpuDnnConv()(array(shape=(None,) * 3), array()), DnnTypeError, "4 dimensions"),
        (lambda: GpuDnnConv()(array(), array(device=1)), DnnTypeError, "one device"),
        (
            lambda: GpuDnnConv()(array(shape=(1, 3, 5, 5)), array(shape=(2, 4, 3, 3))),
            DnnValueError,
            "3 channels",
        ),
        (lambda: GpuDnnConvGradI()(array(), array()), DnnTypeError, "expected the operands"),
        (
            lambda: GpuDnnConv()(array(), array(), pt.vector()),
            DnnTypeError,
            "alpha must be a scalar",
        ),
        (lambda: GpuDnnPool(mode="median"), DnnValueError, "median"),
        (lambda: GpuDnnPool()(array(), [2, 2], [2, 2]), DnnTypeError, "ws, stride, pad"),
        (lambda: GpuDnnPool()(array(), [2, 2], [1, 1], [2, 0]), DnnValueError, "smaller than ws"),
        (lambda: GpuDnnSoftmax("slow"), DnnValueError, "slow"),
        (lambda: GpuDnnSoftmax(mode="row"), DnnValueError, "row"),
        (lambda: GpuDnnSoftmax(axis=(0, 2))(array()), DnnValueError, "adjacent"),
        (lambda: GpuDnnSoftmax()(array(shape=(None,))), DnnValueError, "1 dimensions"),
    ],
)
def test_bad_arguments(make, error, words):
    with pytest.raises(error, match=words):
        make()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_gradients_are_built(dtype):
    """First and second derivatives, also with respect to scaling factors and the added operand."""
    x, w, out = array(dtype), array(dtype), array(dtype)
    alpha, beta = pt.dscalar(), pt.dscalar()
    z = GpuDnnConv()(x, w, alpha, beta, out)
    inputs = [x, w, alpha, beta, out]
    grads = pytensor.grad((pt.as_tensor_variable(z) ** 2).sum(), inputs)
    total = sum((pt.as_tensor_variable(g) ** 2).sum() for g in grads)
    second = pytensor.grad(total, inputs)
    for variable, first, again in zip(inputs, grads, second, strict=True):
        assert first.type.ndim == again.type.ndim == variable.type.ndim

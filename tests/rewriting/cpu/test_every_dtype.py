"""The Op that computes each Op of `dnnops.nnet` on the CPU, in every dtype: never NumPy."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode
from pytensor.tensor.special import log_softmax, softmax

from dnnops import nnet
from dnnops.cpu.base import OneDnnOp
from dnnops.cpu.half_cast import OneDnnHalfCast
from tests.examples import Example, examples

DTYPES = ("float16", "float32", "float64")
#: Compiles nothing, because only the rewrites matter here.
REWRITTEN = Mode(linker="py", optimizer="fast_run")


def tensors(dtype: str, *ndims: int) -> list[Any]:
    return [pt.tensor(dtype=dtype, shape=(None,) * ndim) for ndim in ndims]


def with_gradients(inputs: list[Any], *outputs: Any) -> tuple[list[Any], list[Any]]:
    """Return outputs and their gradients with respect to all float inputs."""
    floats = [x for x in inputs if x.type.dtype.startswith("float")]
    total: Any = sum((y.astype("float64") ** 2).sum() for y in outputs)
    gradients = pytensor.grad(total, floats, disconnected_inputs="ignore")
    return inputs, [*outputs, *gradients]


def conv(dtype: str) -> Any:
    x, w = tensors(dtype, 4, 4)
    return with_gradients([x, w], nnet.conv2d(x, w))


def max_pool(dtype: str) -> Any:
    (x,) = tensors(dtype, 4)
    inputs, outputs = with_gradients([x], nnet.pool_2d(x, (2, 2), ignore_border=True))
    (direction,) = tensors(dtype, 4)
    second = pytensor.grad((outputs[1] * direction).sum(dtype="float64"), x)
    return [*inputs, direction], [*outputs, second]


def average_pool(dtype: str) -> Any:
    (x,) = tensors(dtype, 4)
    mode = "average_inc_pad"
    return with_gradients([x], nnet.pool_2d(x, (2, 2), ignore_border=True, mode=mode))


def batch_norm(dtype: str) -> Any:
    x, gamma, beta, mean, var = tensors(dtype, 4, 4, 4, 4, 4)
    axes = "spatial"
    y, *_ = nnet.batch_normalization_train(x, gamma, beta, axes)
    test = nnet.batch_normalization_test(x, gamma, beta, mean, var, axes)
    return with_gradients([x, gamma, beta, mean, var], y, test)


def activations(dtype: str) -> Any:
    (x,) = tensors(dtype, 2)
    functions = (nnet.tanh, nnet.sigmoid, nnet.elu, nnet.swish, nnet.relu)
    return with_gradients([x], *(f(x) for f in functions))


def softmaxes(dtype: str) -> Any:
    (x,) = tensors(dtype, 2)
    return with_gradients([x], softmax(x, axis=1), log_softmax(x, axis=1))


def cross_entropy(dtype: str) -> Any:
    (x,), labels = tensors(dtype, 2), pt.ivector()
    return with_gradients([x, labels], nnet.cross_entropy(x, labels))


def ctc(dtype: str) -> Any:
    (x,), labels, steps = tensors(dtype, 3), pt.imatrix(), pt.ivector()
    return with_gradients([x, labels, steps], nnet.ctc(x, labels, steps))


def dropout(dtype: str) -> Any:
    (x,) = tensors(dtype, 2)
    return with_gradients([x], nnet.dropout(x, 0.5, seed=1))


def divisive(dtype: str) -> Any:
    (x,) = tensors(dtype, 4)
    return with_gradients([x], nnet.divisive_normalization(x))


def transformer(dtype: str) -> Any:
    x, theta = tensors(dtype, 4, 3)
    return with_gradients([x, theta], nnet.spatial_transformer(x, theta, 1.0, 1.0))


def attention(dtype: str) -> Any:
    operands = tensors(dtype, 4, 4, 4)
    return with_gradients(operands, nnet.scaled_dot_product_attention(*operands))


def lstm(dtype: str) -> Any:
    x, h, c = tensors(dtype, 3, 3, 3)
    (w,) = tensors(dtype, 1)
    block = nnet.RNNBlock(dtype, 8, 1, "lstm", input_mode="linear", direction_mode="unidirectional")
    outputs = block.apply(w, x, h, c)
    return with_gradients([x, h, c, w], *outputs)


def _example(example: Example) -> Any:
    def build(dtype: str) -> Any:
        return with_gradients(*example.graph(dtype))

    build.__name__ = example.function.__name__
    return build


#: Ops with their own loops in each graph.
FAMILIES: dict[Any, Set[str]] = {
    conv: {"OneDnnConv", "OneDnnConvGradInputs", "OneDnnConvGradWeights"},
    max_pool: {"OneDnnPool", "OneDnnMaxPoolGrad", "OneDnnMaxPoolGradGrad"},
    average_pool: {"OneDnnPool", "OneDnnAveragePoolGrad"},
    batch_norm: {
        "OneDnnBatchNormTrain",
        "OneDnnBatchNormTrainGrad",
        "OneDnnBatchNormInference",
    },
    activations: {"OneDnnActivation", "OneDnnActivationGrad"},
    softmaxes: {"OneDnnSoftmax", "OneDnnSoftmaxGrad", "OneDnnLogSoftmaxGrad"},
    cross_entropy: {"OneDnnCrossEntropy", "OneDnnCrossEntropyGrad"},
    ctc: {"OneDnnCTC"},
    dropout: {"OneDnnDropout", "OneDnnDropoutGrad"},
    divisive: {"OneDnnDivisiveNormalization", "OneDnnDivisiveNormalizationGrad"},
    transformer: {
        "OneDnnSpatialTransformerGrid",
        "OneDnnSpatialTransformerGridGrad",
        "OneDnnSpatialTransformerSampler",
        "OneDnnSpatialTransformerSamplerGradGrid",
        "OneDnnSpatialTransformerSamplerGradImage",
    },
    attention: {"OneDnnAttention", "OneDnnAttentionGrad"},
    lstm: {"OneDnnRNNForward", "OneDnnRNNBackward"},
    **{_example(example): example.cpu_ops for example in examples()},
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.__name__)
def test_no_op_is_left_to_numpy(family, dtype):
    inputs, outputs = family(dtype)
    fn = pytensor.function(inputs, outputs, mode=REWRITTEN, on_unused_input="ignore")
    nodes = fn.maker.fgraph.apply_nodes
    found = {type(n.op).__name__ for n in nodes if isinstance(n.op, OneDnnOp)}
    abstract = {
        type(n.op).__name__ for n in nodes if type(n.op).__module__.startswith("dnnops.nnet")
    }
    print(family.__name__, dtype, found, abstract)
    casts = {"OneDnnHalfCast", "OneDnnDot", "OneDnnGemm", "CpuSum"}
    assert found - casts == FAMILIES[family]
    assert not abstract
    for node in nodes:
        if not isinstance(node.op, OneDnnHalfCast):
            assert not any(_is_half(x) for x in node.outputs), node
            if type(node.op).__name__ not in ("Shape", "Shape_i"):
                assert not any(_is_half(x) for x in node.inputs), node


def _is_half(x: Any) -> bool:
    return getattr(x.type, "dtype", None) == "float16"


def test_every_abstract_op_is_listed():
    """Each Op in the table of replacements must be in a graph above."""
    from dnnops.rewriting.registry import cpu_implementations

    listed = set().union(*FAMILIES.values())
    others = {
        "WindowSum": "OneDnnLRN",  # of both window norms
        "WholeSoftmax": "OneDnnSoftmax",
        "SpatialTransformerSamplerGrad": "OneDnnSpatialTransformerSamplerGradImage",
    }
    for kind in cpu_implementations():
        name = kind.__name__
        if name == "DeclaredGraph":  # replaced by other Ops, in tests/graph/test_op.py
            continue
        assert others.get(name, f"OneDnn{name}") in listed, name

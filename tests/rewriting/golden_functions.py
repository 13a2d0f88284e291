"""Small functions of every abstract Op, whose graphs `test_golden` freezes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt

from dnnops import nnet
from dnnops.nnet.norm.window_base import WindowSum
from dnnops.nnet.rnn.block import RNNBlock
from tests.examples import Example, examples

DTYPES = ("float32", "float64", "float16")

Build = Callable[[str], tuple[list[Any], list[Any]]]


class Function(NamedTuple):
    """A function whose graphs are frozen.

    Attributes
    ----------
    build : callable
        Takes a dtype; returns the inputs and the outputs of the graph.
    dtypes : tuple of str
        Dtypes in which it is rewritten.
    """

    build: Build
    dtypes: tuple[str, ...]


FUNCTIONS: dict[str, Function] = {}


def _function(build: Build) -> Build:
    """Add a function that is rewritten in every dtype."""
    FUNCTIONS[build.__name__] = Function(build, DTYPES)
    return build


def _in(*dtypes: str) -> Callable[[Build], Build]:
    """Add a function that is rewritten in some dtypes: a variant of another one."""

    def add(build: Build) -> Build:
        FUNCTIONS[build.__name__] = Function(build, dtypes)
        return build

    return add


def _tensor(name: str, dtype: str, *shape: int | None) -> Any:
    return pt.tensor(name, dtype=dtype, shape=shape)


def _with_gradients(inputs: list[Any], *outputs: Any, wrt: list[Any] | None = None) -> Any:
    """Add the gradients of `outputs` with respect to `wrt`, or to all inputs of their dtype."""
    dtype = outputs[0].type.dtype
    wrt = [x for x in inputs if x.type.dtype == dtype] if wrt is None else wrt
    tops = [z.type(f"g{i}") for i, z in enumerate(outputs)]
    known = dict(zip(outputs, tops, strict=True))
    gradients = pytensor.grad(None, wrt, known_grads=known)
    return [*inputs, *tops], [*outputs, *gradients]


@_function
def conv2d(dtype: str) -> Any:
    x, w = _tensor("x", dtype, None, 4, 9, 9), _tensor("w", dtype, 6, 2, 3, 3)
    return _with_gradients([x, w], nnet.conv2d(x, w, border_mode="half", num_groups=2))


@_in("float32")
def conv3d_flipped_strided(dtype: str) -> Any:
    x, w = (_tensor(name, dtype, *(None,) * 5) for name in "xw")
    out = nnet.conv3d(x, w, subsample=(2, 1, 1), filter_dilation=(1, 2, 1), filter_flip=False)
    return _with_gradients([x, w], out)


@_in("float32")
def conv2d_momentum(dtype: str) -> Any:
    """A convolution that adds to another operand."""
    x, w, v = (_tensor(name, dtype, None, None, None, None) for name in "xwv")
    factor = np.asarray(0.5, dtype)
    return [x, w, v], [factor * v - nnet.conv2d(x, w)]


def _pool(mode: str, ignore_border: bool) -> Build:
    def build(dtype: str) -> Any:
        x = _tensor("x", dtype, None, 3, 7, 8)
        sizes: dict[str, Any] = {"stride": (2, 2), "pad": (1, 0)} if ignore_border else {}
        return _with_gradients([x], nnet.pool_2d(x, (3, 2), ignore_border, mode=mode, **sizes))

    return build


for _name, _mode, _ignore_border, _dtypes in (
    ("max", "max", True, DTYPES),
    ("max_deterministic", "max_deterministic", True, ("float32",)),
    ("average", "average_exc_pad", True, DTYPES),
    ("sum", "sum", True, ("float32",)),
    ("max_with_border", "max", False, ("float32",)),
    ("average_with_border", "average_inc_pad", False, ("float32",)),
):
    FUNCTIONS[f"pool_{_name}"] = Function(_pool(_mode, _ignore_border), _dtypes)


@_in("float32", "float16")
def pool_max_twice_differentiated(dtype: str) -> Any:
    x, g, h = (_tensor(name, dtype, None, 3, 8, 8) for name in "xgh")
    out = nnet.pool_2d(x, (2, 2), True)
    gradient = pytensor.grad((out * g[:, :, :4, :4]).sum(), x)
    (second,) = pytensor.grad((gradient * h).sum(), [g])
    return [x, g, h], [second]


@_function
def batch_normalization_train(dtype: str) -> Any:
    x = _tensor("x", dtype, None, 3, 5, 5)
    gamma, beta, mean, var = (_tensor(name, dtype, 3) for name in ("gamma", "beta", "mean", "var"))
    out, *others = nnet.batch_normalization_train(
        x, gamma, beta, "spatial", running_mean=mean, running_var=var
    )
    inputs, outputs = _with_gradients([x, gamma, beta], out)
    return [*inputs, mean, var], [*outputs, *others]


@_in("float32")
def batch_normalization_per_activation(dtype: str) -> Any:
    x = _tensor("x", dtype, None, 3, 5)
    gamma, beta = (_tensor(name, dtype, 3, 5) for name in ("gamma", "beta"))
    return _with_gradients([x, gamma, beta], nnet.batch_normalization_train(x, gamma, beta)[0])


@_function
def batch_normalization_test(dtype: str) -> Any:
    x = _tensor("x", dtype, None, 3, 5, 5)
    others = [_tensor(name, dtype, 3) for name in ("gamma", "beta", "mean", "var")]
    out = nnet.batch_normalization_test(x, *others, "spatial")
    return _with_gradients([x, *others], out)


@_function
def divisive_normalization(dtype: str) -> Any:
    x = _tensor("x", dtype, None, 3, 9, 9)
    return _with_gradients([x], nnet.divisive_normalization(x))


@_function
def window_sum(dtype: str) -> Any:
    x = _tensor("x", dtype, None, 8, 5, 5)
    return _with_gradients([x], WindowSum(5, (1,), False)(x))


@_function
def softmax(dtype: str) -> Any:
    x = _tensor("x", dtype, None, 10)
    return _with_gradients([x], pt.special.softmax(x, axis=1))


@_in("float32", "float16")
def log_softmax(dtype: str) -> Any:
    x = _tensor("x", dtype, None, 10, 4, 4)
    return _with_gradients([x], pt.special.log_softmax(x, axis=1))


@_in("float32")
def softmax_over_separate_axes(dtype: str) -> Any:
    x = _tensor("x", dtype, None, 4, 5)
    return _with_gradients([x], pt.special.softmax(x, axis=(0, 2)))


@_function
def softmax_ops(dtype: str) -> Any:
    """The Ops that PyTensor's softmax and its gradients become."""
    x, g = (_tensor(name, dtype, None, 10) for name in "xg")
    out = nnet.WholeSoftmax((1,), False)(x)
    log_out = nnet.WholeSoftmax((1,), True)(x)
    gradients = [nnet.SoftmaxGrad((1,))(g, out), nnet.LogSoftmaxGrad((1,))(g, log_out)]
    return [x, g], [out, log_out, *gradients]


def _activation(name: str) -> Build:
    def build(dtype: str) -> Any:
        x = _tensor("x", dtype, None, 3, 32, 32)
        return _with_gradients([x], getattr(nnet, name)(x))

    return build


for _name, _dtypes in (
    ("relu", ("float32",)), ("tanh", DTYPES), ("elu", ("float32",)), ("swish", DTYPES)
):  # fmt: skip
    FUNCTIONS[_name] = Function(_activation(_name), _dtypes)


@_in("float32")
def activation_of_few_elements(dtype: str) -> Any:
    x = _tensor("x", dtype, 4, 4)
    return _with_gradients([x], nnet.swish(x))


@_in("float32")
def activation_after_conv2d(dtype: str) -> Any:
    x, w = _tensor("x", dtype, None, 3, 32, 32), _tensor("w", dtype, 4, 3, 3, 3)
    return _with_gradients([x, w], nnet.tanh(nnet.conv2d(x, w)))


@_function
def attention(dtype: str) -> Any:
    operands = [_tensor(name, dtype, None, 2, 16, 64) for name in ("query", "key", "value")]
    out = nnet.scaled_dot_product_attention(*operands, is_causal=True)
    return _with_gradients(operands, out)


@_in("float16")
def attention_masked_with_dropout(dtype: str) -> Any:
    operands = [_tensor(name, dtype, None, 2, 16, 64) for name in ("query", "key", "value")]
    mask = _tensor("mask", "bool", None, 1, 16, 16)
    state = pt.tensor("state", dtype="int64", shape=(2,))
    out = nnet.scaled_dot_product_attention(*operands, mask=mask, dropout_p=0.5, state=state)[0]
    inputs, outputs = _with_gradients(operands, out)
    return [*inputs, mask, state], outputs


@_function
def cross_entropy(dtype: str) -> Any:
    x, labels = _tensor("x", dtype, None, 10), _tensor("labels", "int64", None)
    return _with_gradients([x, labels], nnet.cross_entropy(x, labels))


@_function
def ctc(dtype: str) -> Any:
    x = _tensor("x", dtype, 7, None, 5)
    labels, lengths = _tensor("labels", "int32", None, None), _tensor("lengths", "int32", None)
    return _with_gradients([x, labels, lengths], nnet.ctc(x, labels, lengths))


@_in("float32")
def ctc_without_gradient(dtype: str) -> Any:
    x = _tensor("x", dtype, 7, None, 5)
    labels, lengths = _tensor("labels", "int32", None, None), _tensor("lengths", "int32", None)
    return [x, labels, lengths], [nnet.ctc(x, labels, lengths)]


@_function
def dropout(dtype: str) -> Any:
    x, state = _tensor("x", dtype, None, 8), _tensor("state", "int64", 2)
    out, *_ = nnet.dropout(x, 0.5, state=state)
    return _with_gradients([x, state], out, wrt=[x])


@_function
def lstm(dtype: str) -> Any:
    block = RNNBlock(dtype, 4, 2, "lstm")
    w = _tensor("w", dtype, block.get_param_size((None, None, 3)))
    x, h, c = _tensor("x", dtype, 5, None, 3), *(_tensor(n, dtype, 2, None, 4) for n in "hc")
    return _with_gradients([w, x, h, c], block.apply(w, x, h, c)[0])


@_in("float32")
def gru_without_gradient(dtype: str) -> Any:
    block = RNNBlock(dtype, 4, 1, "gru", direction_mode="bidirectional")
    w = _tensor("w", dtype, block.get_param_size((None, None, 3)))
    x, h = _tensor("x", dtype, 5, None, 3), _tensor("h", dtype, 2, None, 4)
    return [w, x, h], [block.apply(w, x, h)[0]]


@_function
def spatial_transformer(dtype: str) -> Any:
    x, theta = _tensor("x", dtype, None, 3, 8, 8), _tensor("theta", dtype, None, 2, 3)
    return _with_gradients([x, theta], nnet.spatial_transformer(x, theta))


@_in("float32")
def dense(dtype: str) -> Any:
    """Matrix products and a channel sum beside a convolution."""
    x, w, v = (
        _tensor("x", dtype, None, 3, 8, 8), _tensor("w", dtype, 4, 3, 3, 3),
        _tensor("v", dtype, 144, 10),
    )  # fmt: skip
    b = _tensor("b", dtype, 4)
    out = (nnet.conv2d(x, w) + b.dimshuffle("x", 0, "x", "x")).flatten(2) @ v
    return _with_gradients([x, w, v, b], out, wrt=[w, v, b])


@_in("float32")
def checked_shape(dtype: str) -> Any:
    x = _tensor("x", dtype, None, None)
    return _with_gradients([x], nnet.assert_shape(x, (None, 3)))


def _example(example: Example) -> Build:
    def build(dtype: str) -> Any:
        return _with_gradients(*example.graph(dtype))

    return build


for _shown in examples():
    FUNCTIONS[_shown.function.__name__] = Function(_example(_shown), DTYPES)

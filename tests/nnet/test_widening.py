"""Graphs of float32 stay float32: no node of a function or its gradient is float64."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.aliasing import add_supervisor_to_fgraph
from pytensor.compile.io import In
from pytensor.gradient import NullTypeGradError
from pytensor.graph.basic import Apply, Constant
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.traversal import ancestors, explicit_graph_inputs, graph_inputs

from dnnops import nnet
from dnnops.errors import DnnError
from dnnops.nnet.expressions import ExpandableOp
from tests.bad_arguments import NNET

#: Functions without a floating-point operand, whose result has the dtype floatX.
_OF_FLOATX = {"bilinear_kernel_1D", "bilinear_kernel_2D"}
#: Coordinates of samples are computed in float64 on every device.
_IN_FLOAT64 = {"SpatialTransformerSampler", "SpatialTransformerSamplerGrad"}

_SAMPLED = {"spatial_transformer", "grid_sample", "affine_grid"}

every_floatx = pytest.mark.parametrize("floatx", ["float32", "float64"])


def gradients(outputs: list[Any], dtype: str) -> list[Any]:
    """Return the gradients of floating-point results, given as variables, by all operands."""
    floats = [y for y in outputs if y.type.dtype.startswith("float")]
    operands = [x for x in explicit_graph_inputs(floats) if x.type.dtype == dtype]
    if not operands:
        return []
    return pytensor.grad(
        None,
        operands,
        known_grads={y: y.type() for y in floats},
        disconnected_inputs="ignore",
        return_disconnected="none",
    )


def nodes_of(outputs: list[Any]) -> Iterator[Apply]:
    """Yield the nodes of a graph, and those of the expressions that replace dnnops Ops."""
    waiting = list(outputs)
    while waiting:
        nodes = {v.owner for v in ancestors(waiting) if v.owner is not None}
        yield from nodes
        waiting = []
        for node in nodes:
            name = type(node.op).__name__
            if isinstance(node.op, ExpandableOp) and name not in _IN_FLOAT64:
                waiting += node.op.expressions(*(v.type() for v in node.inputs))


def is_wide(x: Any) -> bool:
    """Return whether a variable is a float64 array."""
    return getattr(x.type, "dtype", None) == "float64" and x.type.ndim > 0


def wide_nodes(outputs: list[Any]) -> list[str]:
    """Return the nodes that compute float64, apart from scalars, which come from the host."""
    return sorted(
        {
            f"{node.op} of {[v.type for v in node.inputs]}"
            for node in nodes_of(outputs)
            if any(map(is_wide, node.outputs))
        }
    )


def check(function: Any, arguments: dict[str, Any], dtype: str = "float32") -> None:
    results = function(**arguments)
    results = results if isinstance(results, (list, tuple)) else [results]
    outputs = [y for y in results if isinstance(y, pt.TensorVariable)]
    found = [*outputs, *(g for g in gradients(outputs, dtype) if g is not None)]
    assert not wide_nodes(found)


def operand(x: Any, dtype: str, known: bool) -> Any:
    """Return a stand-in for a float32 variable."""
    if not isinstance(x, pt.TensorVariable) or x.owner is not None or x.type.dtype != "float32":
        return x
    return pt.tensor(dtype=dtype, shape=x.type.shape if known else (None,) * x.type.ndim)


@every_floatx
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_functions(dtype, floatx):
    """Every function of `dnnops.nnet`, with sizes that are known and with unknown ones."""
    wrong = {}
    with pytensor.config.change_flags(floatX=floatx):
        for name in sorted(NNET.keys() - _OF_FLOATX):
            for known in (True, False):
                arguments = {k: operand(v, dtype, known) for k, v in NNET[name].items()}
                function = getattr(nnet, name)
                needs = inspect.signature(function).parameters
                assert arguments.keys() <= needs.keys()
                try:
                    check(function, arguments, dtype)
                except AssertionError as error:
                    wrong[name, known] = str(error)[:300]
    assert not wrong


def _without_dtype(x: Any) -> Iterator[Any]:
    """Yield values of an argument that have no floating-point dtype of their own."""
    yield from (0.3, np.array(0.3), np.array(1), [0.3], pt.lscalar())
    if isinstance(x, pt.TensorVariable):
        yield from (pt.tensor(dtype=d, shape=x.type.shape) for d in ("bool", "int64"))
        known = [2 if n is None else n for n in x.type.shape]
        yield np.full(known, 0.3).tolist()


def _computed(x: Any) -> Iterator[Any]:
    """Yield integers and bools that are computed from a float32 variable."""
    yield from (x > 0, x.astype("int64"))


def _beside(name: str, dtype: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield calls of a function in which one argument is no float beside a floating-point one."""
    given = {k: operand(v, dtype, True) for k, v in NNET[name].items()}
    floats = {
        k for k, v in given.items() if isinstance(v, pt.TensorVariable) and v.type.dtype == dtype
    }
    for parameter in inspect.signature(getattr(nnet, name)).parameters:
        others = [given[k] for k in floats if k != parameter]
        if others:
            for value in _without_dtype(given.get(parameter)):
                yield parameter, {**given, parameter: value}
        for x in others:
            for value in _computed(x):
                yield parameter, {**given, parameter: value}


@pytest.mark.parametrize("dtype", [pytest.param("float16", marks=pytest.mark.slow), "float32"])
def test_every_argument(dtype):
    """Numbers, lists, integers and bools as any argument, beside the other ones."""
    wrong, accepted = {}, set()
    with pytensor.config.change_flags(floatX="float64"):
        for name in sorted(NNET.keys() - _OF_FLOATX):
            for parameter, arguments in _beside(name, dtype):
                try:
                    results = getattr(nnet, name)(**arguments)
                except (DnnError, IndexError, ValueError):
                    continue  # not an argument of this kind, or shapes that don't match
                accepted.add((name, parameter))
                try:
                    check(lambda found: found, {"found": results}, dtype)
                except AssertionError as error:
                    wrong[name, parameter, str(arguments[parameter])[:40]] = str(error)[:300]
                except NullTypeGradError:  # such as that of a probability
                    continue
    assert not wrong
    floats = {"relu": "alpha", "conv2d": "filters", "h_softmax": "b1", "softmax_with_bias": "b"}
    losses = ("binary_crossentropy", "sigmoid_binary_crossentropy")
    assert accepted > {*floats.items(), *((f, k) for f in losses for k in ("output", "target"))}


def test_every_size():
    """Every function, with each size in turn beyond 2**16 in all operands that have it."""
    wrong, tried = {}, set()
    with pytensor.config.change_flags(floatX="float64"):
        for name in sorted(NNET.keys() - _OF_FLOATX):
            for old in (2, 3, 4, 5, 6, 7):
                # Multiples, because windows and groups divide some of the sizes.
                arguments = {k: _enlarged(v, old, old * 2**16) for k, v in NNET[name].items()}
                try:
                    results = getattr(nnet, name)(**arguments)
                except (DnnError, IndexError, ValueError):
                    continue
                tried.add(name)
                try:
                    check(lambda found: found, {"found": results})
                except AssertionError as error:
                    wrong[name, old] = str(error)[:300]
    assert not wrong
    assert len(tried) > 70


def _enlarged(x: Any, old: int, new: int) -> Any:
    """Return a variable in which each size `old` is `new`."""
    if not isinstance(x, pt.TensorVariable) or x.owner is not None or old not in x.type.shape:
        return x
    return pt.tensor(dtype=x.type.dtype, shape=tuple(new if n == old else n for n in x.type.shape))


def _image(*sizes: int | None, dtype: str = "float32") -> Any:
    return pt.tensor(dtype=dtype, shape=sizes or (2, 4, 6, 7))


_LABELS = pt.tensor(dtype="int64", shape=(5,))
_ROWS = _image(5, 3)

#: Numbers, integers and bools beside a float32 variable don't widen it.
MIXED: dict[str, tuple[Any, ...]] = {
    "leaky relu": (nnet.relu, _image(), 0.1),
    "leaky relu, NumPy": (nnet.relu, _image(), np.float64(0.1)),
    "leaky relu, array": (nnet.relu, _image(), np.array(0.1)),
    "leaky relu of integers": (nnet.relu, pt.lmatrix(), pt.fvector()),
    "elu": (nnet.elu, _image(), 0.3),
    "clipped relu": (nnet.clipped_relu, _image(), np.float64(0.3)),
    "swish": (nnet.swish, _image(), 1.3),
    "cross-entropy": (nnet.binary_crossentropy, _image(), 0.3),
    "cross-entropy of labels": (nnet.binary_crossentropy, _image(5), _LABELS),
    "cross-entropy of a sigmoid": (
        lambda x: nnet.binary_crossentropy(nnet.sigmoid(x), 0.3),
        _image(),
    ),
    "cross-entropy of logits": (nnet.sigmoid_binary_crossentropy, _image(), 0.3),
    "cross-entropy of logits, labels": (nnet.sigmoid_binary_crossentropy, _image(5), _LABELS),
    "one-hot integers": (nnet.categorical_crossentropy, _ROWS, pt.lmatrix()),
    "dropout": (lambda x: nnet.dropout(x, 0.2, seed=1), _image()),
    "column": (nnet.prepend_scalar_to_each_row, 2.5, _ROWS),
    "normalization": (nnet.batch_normalization, _image(), 1, 0, 0.5, 2),
    "group": (lambda x: nnet.group_norm(x, 2, epsilon=0.3), _image()),
    "layer": (lambda x: nnet.layer_norm(x, epsilon=0.3), _image()),
    "root mean square": (lambda x: nnet.rms_norm(x, epsilon=0.3), _image()),
    "response": (nnet.local_response_normalization, _image(), 3, 0.3, 0.3, 0.3),
    "attention": (lambda q: nnet.scaled_dot_product_attention(q, q, q, scale=0.3), _image()),
    "dropout in attention": (
        lambda q: nnet.scaled_dot_product_attention(q, q, q, dropout_p=0.3, seed=1),
        _image(),
    ),
}

#: Sizes beyond 2**15, 2**24 and 2**31, in one axis and in the product of several.
SIZES = [(2, 4, 2**15 + 1), (2, 4, 2**12, 2**13), (2, 6, 2**16, 2**16), (2, 2**26, 3)]
OF_IMAGES: dict[str, Any] = {
    "groups": lambda x: nnet.group_norm(x, 2),
    "layer": nnet.layer_norm,
    "layer, several axes": lambda x: nnet.layer_norm(x, axes=(-1, -2)),
    "root mean square": lambda x: nnet.rms_norm(x, axes=(-1, -2)),
    "batch, spatial": lambda x: nnet.batch_normalization_train(
        x, *(_image(1, x.type.shape[1], *(1,) * (x.type.ndim - 2)) for _ in "gb"), axes="spatial"
    )[0],
    "softmax": lambda x: nnet.softmax(x, axis=-1),
    "log-softmax": lambda x: nnet.log_softmax(x, axis=(-1, -2)),
    "response": nnet.local_response_normalization,
    "divisive": nnet.divisive_normalization,
    "mean": lambda x: nnet.pool_2d(
        x, x.type.shape[-2:], ignore_border=True, mode="average_inc_pad"
    ),
    "attention": lambda x: nnet.scaled_dot_product_attention(x, x, x),
    "cross-entropy": lambda x: nnet.cross_entropy(x.reshape((-1, x.type.shape[-1])), pt.lvector()),
    "dropout": lambda x: nnet.dropout(x, 0.2, seed=1),
}


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_rewritten_graphs(device):
    """All functions in one graph, after the rewrites for a device; none is compiled."""
    mode = pytensor.compile.get_mode("CVM")
    mode = mode.including("gpu") if device == "gpu" else mode
    outputs = []
    with pytensor.config.change_flags(floatX="float64"):
        # Coordinates of samples, and probabilities, are float64 by design.
        for name in sorted(NNET.keys() - _OF_FLOATX - _SAMPLED):
            arguments = {k: operand(v, "float32", False) for k, v in NNET[name].items()}
            found = getattr(nnet, name)(**arguments)
            found = found if isinstance(found, (list, tuple)) else [found]
            found = [y for y in found if isinstance(y, pt.TensorVariable)]
            outputs += [*found, *(g for g in gradients(found, "float32") if g is not None)]
        # With the states of dropout, which are shared variables.
        inputs = [x for x in graph_inputs(outputs) if not isinstance(x, Constant)]
        graph = FunctionGraph(inputs, outputs, clone=True)
        add_supervisor_to_fgraph(graph, [In(x) for x in graph.inputs], accept_inplace=False)
        mode.optimizer.rewrite(graph)
    assert len(graph.apply_nodes) > 400
    assert not [node for node in graph.apply_nodes if any(map(is_wide, node.outputs))]


@every_floatx
@pytest.mark.parametrize("name", MIXED)
def test_numbers_and_integers(name, floatx):
    function, *arguments = MIXED[name]
    with pytensor.config.change_flags(floatX=floatx):
        check(lambda: function(*arguments), {})


@every_floatx
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_large_arrays(sizes, floatx):
    x = _image(*sizes)
    wrong = {}
    with pytensor.config.change_flags(floatX=floatx):
        for name, function in OF_IMAGES.items():
            if name in ("mean", "attention", "divisive") and len(sizes) < 4:
                continue
            try:
                check(lambda f=function: f(x), {})
            except AssertionError as error:
                wrong[name] = str(error)[:300]
    assert not wrong

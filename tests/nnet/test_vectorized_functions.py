"""vectorize_graph over every function of `dnnops.nnet`, its gradients and its Jacobian."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.null_type import NullType
from pytensor.graph.replace import vectorize_graph
from pytensor.graph.traversal import ancestors
from pytensor.scan.op import Scan
from pytensor.tensor.blockwise import Blockwise

from dnnops import nnet
from dnnops.nnet.attention.op import Attention, AttentionGrad
from dnnops.nnet.norm.batchnorm import BatchNormInference, BatchNormTrain, BatchNormTrainGrad
from dnnops.nnet.regularization.dropout import Dropout, DropoutGrad
from tests.bad_arguments import NNET
from tests.nnet.test_vectorize import CASES as IMAGES
from tests.nnet.test_vectorize import PERFORM, numpy_loops
from tests.nnet.test_vectorize_batch import CASES as BATCH
from tests.nnet.test_vectorize_batch import QKV
from tests.oracle import PERFORM_MODE

#: PyTensor's Ops that remain loops in Python, apart from products.
OF_PYTENSOR = {
    "AdvancedIncSubtensor",
    "AdvancedSubtensor",
    "Dot",
    "Join",
}

#: Operands of which entries cannot have their own in one call of a library, so a scan calls it.
OWN_PARAMETERS = {
    "RNNForward": {"w"},
    "BatchNormTrain": {"epsilon"},
    "BatchNormInference": {"epsilon"},
    "Dropout": {"p", "state"},
    "DropoutGrad": {"reserve"},
    "Attention": {"state"},
    # Entries that share a forward pass share its random numbers.
    "AttentionGrad": {*["query", "key", "value", "state", "stats", "gout"]},
    # The gradient with respect to the parameters is a sum over the batch of a call.
    "RNNBackward": {*["w", "x", "hx", "cx", "lengths", "gy", "ghy", "gcy"]},
}


def operands_of_ops():
    """Return Ops with example operands, and the numbers of results that anything uses."""
    cases = {name: (op, arrays, len(results)) for name, (op, arrays, _, results) in BATCH.items()}
    for name, (op, shapes, rest) in IMAGES.items():
        cases[name] = op, [*(np.ones(s) for s in shapes), *map(np.array, rest)], 1
    for kind in (BatchNormTrain, BatchNormTrainGrad, BatchNormInference):
        op = kind((0, 2))
        shapes = [
            () if o in op.scalars else (2, 3, 4) if o in op.data else (1, 3, 1) for o in op.operands
        ]
        cases[kind.__name__] = op, [np.full(s, 0.5) for s in shapes], 1
    state = np.array([1, 2])
    attention, gradient = (kind(dropout=0.5) for kind in (Attention, AttentionGrad))
    out = np.ones((2, 4, 3, 4))
    cases["Attention, dropped"] = attention, [*QKV, state], 1
    cases["AttentionGrad, dropped"] = gradient, [*QKV, state, out, out[..., 0], out], 3
    cases["Dropout"] = Dropout(), [np.ones((3, 4)), np.array(0.5), state], 1
    reserve = np.ones(2, "uint8")
    cases["DropoutGrad"] = DropoutGrad(), [np.ones((3, 4)), np.array(0.5), reserve], 1
    return cases


NAMES = {"Dropout": ("x", "p", "state"), "DropoutGrad": ("gy", "p", "reserve")}


def test_each_operand_of_every_op():
    """The rest is merged, whichever operand has extra axes."""
    scanned: dict[str, set[str]] = {}
    for op, arrays, results in operands_of_ops().values():
        kind = type(op).__name__
        names = NAMES.get(kind, getattr(op, "all_operands", getattr(op, "operands", range(9))))
        inner = [pt.tensor(dtype=a.dtype, shape=(None,) * a.ndim) for a in arrays]
        outputs = op.make_node(*inner).outputs[:results]
        for x, name in zip(inner, names, strict=False):
            if x.type.dtype == "int64" and x.type.ndim == 1 and name not in ("state", "lengths"):
                continue  # a size, which all entries share
            if name in ("y", "reserve") and kind == "RNNBackward":
                continue  # follow from the others
            many = pt.tensor(dtype=x.type.dtype, shape=(None,) * (x.type.ndim + 1))
            vectorized = vectorize_graph(outputs, {x: many})
            nodes = {v.owner for v in ancestors(vectorized) if v.owner is not None}
            assert not numpy_loops(vectorized), (kind, name)
            if any(isinstance(node.op, Scan) for node in nodes):
                scanned.setdefault(kind, set()).add(name)
    assert scanned == OWN_PARAMETERS


def is_float_input(x):
    return isinstance(x, pt.TensorVariable) and x.owner is None and x.type.dtype == "float32"


def with_gradients(name):
    """Return the variables of a function, and its results and their gradients."""
    arguments = {
        k: pt.tensor(dtype="float32", shape=(None,) * v.type.ndim) if is_float_input(v) else v
        for k, v in NNET[name].items()
    }
    results = getattr(nnet, name)(**arguments)
    results = results if isinstance(results, list | tuple) else [results]
    floats = [y for y in results if isinstance(y, pt.TensorVariable) and y.type.dtype == "float32"]
    variables = [v for v in arguments.values() if is_float_input(v)]
    if not floats or not variables:
        return [], []
    gradients = [
        g
        for y in floats
        for g in pytensor.grad(
            (y**2).sum(), variables, disconnected_inputs="ignore", null_gradients="return"
        )
        if not isinstance(g.type, NullType)
    ]
    return variables, [*floats, *gradients]


@pytest.mark.filterwarnings("ignore")
def test_every_function():
    """No Op of dnnops is a ``Blockwise``, even if no size is known."""
    looped, of_pytensor, scans, seen = {}, set(), set(), set()
    for name in sorted(NNET):
        variables, outputs = with_gradients(name)
        if not outputs:
            continue
        replaced = {
            v: pt.tensor(dtype="float32", shape=(None,) * (v.type.ndim + 1)) for v in variables
        }
        vectorized = vectorize_graph(outputs, replaced)
        seen |= {
            type(x.owner.op)
            for x in ancestors(outputs)
            if x.owner is not None and type(x.owner.op).__module__.startswith("dnnops")
        }
        for x in ancestors(vectorized):
            if x.owner is not None and isinstance(x.owner.op, Scan):
                scans.add(name)
            elif x.owner is not None and isinstance(x.owner.op, Blockwise):
                of_pytensor.add(type(x.owner.op.core_op).__name__)
        if found := numpy_loops(vectorized):
            looped[name] = found
    assert not looped
    assert of_pytensor <= OF_PYTENSOR
    assert not scans
    assert len(seen) > 25


LABELS = np.array([2, 0])
JACOBIANS = {
    "convolution": (
        lambda x: nnet.conv2d(x, np.ones((2, 1, 2, 2)), border_mode="half"),
        (1, 1, 3, 2),
    ),
    "pooling": (lambda x: nnet.pool_2d(x, (2, 2), ignore_border=True), (1, 1, 4, 3)),
    "attention": (
        lambda x: nnet.scaled_dot_product_attention(x, x, x, is_causal=True),
        (1, 1, 3, 2),
    ),
    "group norm": (lambda x: nnet.group_norm(x, 2), (2, 4)),
    "loss": (lambda x: nnet.cross_entropy(x, LABELS), (2, 3)),
}


@pytest.mark.parametrize("name", JACOBIANS)
def test_jacobian(name):
    """All rows at once, as one row after the other; and the gradient of a vectorized graph."""
    function, shape = JACOBIANS[name]
    value = np.random.default_rng(0).standard_normal(shape)
    x = pt.tensor(dtype="float64", shape=(None,) * len(shape))
    y = function(x)
    rows = pytensor.gradient.jacobian(y.ravel(), x, vectorize=True)
    assert not numpy_loops([rows])
    found, size = pytensor.function([x], [rows, y.size], **PERFORM)(value)
    weights = pt.dvector()
    row = pytensor.function([x, weights], pytensor.grad((y.ravel() * weights).sum(), x), **PERFORM)
    wanted = [row(value, unit) for unit in np.eye(int(size))]
    np.testing.assert_allclose(found.reshape((-1, *shape)), wanted, atol=1e-12)
    # The gradient, then extra axes, or the other way round, or with the signature of a function.
    xs = pt.tensor(dtype="float64", shape=(None,) * (len(shape) + 1))
    first = vectorize_graph(pytensor.grad((y**2).sum(), x), {x: xs})
    second = pytensor.grad((vectorize_graph(y, {x: xs}) ** 2).sum(), xs)
    letters = ",".join("abcd"[: len(shape)])
    core = ",".join("efgh"[: y.type.ndim])
    third = pytensor.grad(
        (pt.vectorize(function, signature=f"({letters})->({core})")(xs) ** 2).sum(), xs
    )
    values = np.stack([value, 2 * value, value - 1])
    results = pytensor.function([xs], [first, second, third], mode=PERFORM_MODE)(values)
    one = pytensor.function([x], pytensor.grad((y**2).sum(), x), **PERFORM)
    for i in range(3):
        for result in results:
            np.testing.assert_allclose(result[i], one(values[i]), atol=1e-12)
    assert not numpy_loops([first, second, third])


@pytest.mark.parametrize("lead", [(3,), (0,)])
def test_parts_of_arrays(lead):
    """Sizes, slices, pieces and sums of parts are the same in all entries."""
    x, y = pt.dmatrix(), pt.dvector()
    parts = pt.split(x, [1, x.shape[1] - 1], n_splits=2, axis=1)
    outputs = [
        *parts,
        x[: y.shape[0], 1:],
        pt.inc_subtensor(x[:, 1], y),
        pt.set_subtensor(x[1:, 1:], y[0]),
        pt.zeros((x.shape[1], 2)) + x.sum(),
        pt.arange(x.shape[1]) + x[0],
        x.reshape((x.shape[1], -1)),
        x.ravel(),
    ]
    outputs += [pytensor.grad((z**2).sum(), x) for z in outputs]
    values = np.random.default_rng(0).standard_normal((*lead, 2, 3))
    more = np.random.default_rng(1).standard_normal((*lead, 2))
    one = pytensor.function([x, y], outputs, **PERFORM)
    many = pt.dtensor3(), pt.dmatrix()
    for replaced, given in (
        ({x: many[0], y: many[1]}, (values, more)),
        ({x: many[0]}, (values, np.ones(2))),
        ({y: many[1]}, (np.ones((2, 3)), more)),
    ):
        vectorized = vectorize_graph(outputs, replaced)
        inputs = [replaced.get(v, v) for v in (x, y)]
        found = pytensor.function(inputs, vectorized, **PERFORM)(*given)
        for i in range(lead[0]):
            entry = [v[i] if w in replaced else v for v, w in zip(given, (x, y), strict=True)]
            for result, expected in zip(found, one(*entry), strict=True):
                part = result[i] if result.ndim > expected.ndim else result
                np.testing.assert_allclose(part, expected, atol=1e-12)
        shapes = [a.shape for a in one(np.ones((2, 3)), np.ones(2))]
        assert [a.shape[-len(s) :] for a, s in zip(found, shapes, strict=True)] == shapes

"""vectorize_graph over every abstract Op: one Op with the results of a loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.replace import vectorize_graph
from pytensor.graph.traversal import ancestors
from pytensor.tensor.blockwise import Blockwise

from dnnops import nnet
from dnnops.nnet.activation.softmax import LogSoftmaxGrad, SoftmaxGrad, WholeSoftmax
from dnnops.nnet.attention.op import Attention, AttentionGrad
from dnnops.nnet.loss.cross_entropy import CrossEntropy, CrossEntropyGrad
from dnnops.nnet.norm.group_norm import GroupNorm, GroupNormGrad
from tests.link.test_link import abstract_ops
from tests.nnet import test_vectorize
from tests.oracle import PERFORM_MODE

R = np.random.default_rng(0)
BATCHES = (2, 3)


def normal(*shape: int, dtype: str = "float64") -> np.ndarray:
    return R.standard_normal(shape).astype(dtype)


def network(mode: str, **more: Any) -> tuple[Any, list[np.ndarray]]:
    op = nnet.RNNForward(mode, 3, 2, bidirectional=True, **more)
    states = [normal(4, 2, 3) for _ in range(1 + (mode == "lstm"))]
    lengths = [np.array([4, 2])] if op.has_lengths else []
    return op, [0.3 * normal(op.layout.param_size(5)), normal(4, 2, 5), *states, *lengths]


def forward(op: Any, *arrays: Any) -> list[np.ndarray]:
    """Run `perform`."""
    node = op.make_node(*arrays)
    storage: list[list[Any]] = [[None] for _ in node.outputs]
    op.perform(node, list(arrays), storage)
    return [value for (value,) in storage]


def gradient(op: Any, arrays: list[np.ndarray], results: list[np.ndarray]) -> list[np.ndarray]:
    return [*arrays, *results, normal(*results[0].shape)]


LSTM, OF_LSTM = network("lstm", has_lengths=True)
LSTM_RESULTS = forward(LSTM, *OF_LSTM)
SCORES, LABELS = normal(4, 5), np.array([0, -1, 2, 3])
QKV = [normal(2, 4, 3, 5), normal(2, 2, 6, 5), normal(2, 2, 6, 4)]
LENGTHS = [np.array([3, 1]), np.array([2, 6])]
OF_GROUPS = [normal(3, 4, 2), normal(4), normal(4)]
MASKED = Attention(is_causal=True, optional=("mask",))
#: Op, operands, the operands that may have extra axes, and the results that need no loop.
CASES: dict[str, tuple[Any, list[np.ndarray], list[int], list[int]]] = {
    "Attention": (
        Attention(0.3, optional=("query_lengths", "key_lengths")),
        [*QKV, *LENGTHS],
        [0, 1, 2, 3, 4],
        [0, 1],
    ),
    "Attention of a mask": (MASKED, [*QKV, normal(1, 4, 3, 1)], [0, 1, 2, 3], [0, 1]),
    "AttentionGrad": (
        AttentionGrad(),
        gradient(None, QKV, forward(Attention(), *QKV)),
        [0, 1, 2, 3, 4, 5],
        [0, 1, 2],
    ),
    "CrossEntropy": (CrossEntropy(), [SCORES, LABELS], [0, 1], [0, 1]),
    "CrossEntropy of one label": (
        CrossEntropy(one_for_all=True),
        [SCORES, LABELS[:1]],
        [0, 1],
        [0],
    ),
    "CrossEntropyGrad": (
        CrossEntropyGrad(),
        [normal(1), SCORES, LABELS, forward(CrossEntropy(), SCORES, LABELS)[1]],
        [0, 1, 2, 3],
        [0],
    ),
    "GroupNorm": (GroupNorm(2), OF_GROUPS, [0, 1, 2], [0]),
    "GroupNormGrad": (
        GroupNormGrad(2),
        [OF_GROUPS[0], normal(4), normal(3, 4, 2)],
        [0, 1, 2],
        [0, 1, 2],
    ),
    "RNNForward": (LSTM, OF_LSTM, [1, 2, 3, 4], [0, 1, 2]),
    "RNNBackward": (
        LSTM.gradient(),
        [*OF_LSTM, LSTM_RESULTS[0], LSTM_RESULTS[3], *(normal(*r.shape) for r in LSTM_RESULTS[:3])],
        [1, 2, 3, 4, 7, 8, 9],
        [1, 2, 3],
    ),
    "SpatialTransformerGrid": (
        nnet.SpatialTransformerGrid(),
        [normal(2, 2, 3), np.array([3, 4])],
        [0],
        [0],
    ),
    "SpatialTransformerGridGrad": (
        nnet.SpatialTransformerGridGrad(),
        [normal(2, 3, 4, 2)],
        [0],
        [0],
    ),
    "SpatialTransformerSampler": (
        nnet.SpatialTransformerSampler(),
        [normal(2, 3, 4, 5), 0.5 * normal(2, 2, 3, 2)],
        [0, 1],
        [0],
    ),
    "SpatialTransformerSamplerGrad": (
        nnet.SpatialTransformerSamplerGrad(),
        [normal(2, 3, 4, 5), 0.5 * normal(2, 2, 3, 2), normal(2, 3, 2, 3)],
        [0, 1, 2],
        [0, 1],
    ),
    "SoftmaxGrad": (SoftmaxGrad(1), [normal(2, 3, 4), normal(2, 3, 4)], [0, 1], [0]),
    "LogSoftmaxGrad": (LogSoftmaxGrad(None), [normal(2, 3), normal(2, 3)], [0, 1], [0]),
    "WholeSoftmax": (WholeSoftmax((0, 1), log=True), [normal(2, 3, 4)], [0], [0]),
}


def vary(array: np.ndarray, lead: tuple[int, ...]) -> np.ndarray:
    """Return different versions of an array for the entries of extra axes."""
    if array.dtype.kind != "f":
        return np.broadcast_to(array, (*lead, *array.shape)).copy()
    return array * (1 + R.random((*lead, *(1,) * array.ndim)))


def check(
    name: str,
    places: list[int],
    lead: tuple[int, ...],
    static: bool = True,
    results: list[int] | None = None,
) -> None:
    """Vectorize an Op over some of its operands, and compare with a loop."""
    op, arrays, _, whole = CASES[name]
    results = whole if results is None else results
    inner = [pt.tensor(dtype=x.dtype, shape=(None,) * x.ndim) for x in arrays]
    if name == "SpatialTransformerGrid":
        inner[1] = pt.constant(arrays[1])
    given = [vary(x, lead) if i in places else x for i, x in enumerate(arrays)]
    outer = [pt.tensor(dtype=x.dtype, shape=x.shape if static else (None,) * x.ndim) for x in given]
    outs = [op.make_node(*inner).outputs[i] for i in results]
    changed = {inner[i]: outer[i] for i in range(len(inner)) if inner[i].owner is None}
    changed = {x: y for x, y in changed.items() if not hasattr(x, "data")}
    vectorized = vectorize_graph(outs, changed)
    loops = [x for x in ancestors(vectorized) if x.owner and isinstance(x.owner.op, Blockwise)]
    assert not loops
    inputs = [changed[x] for x in inner if x in changed]
    function = pytensor.function(inputs, vectorized, mode=PERFORM_MODE, on_unused_input="ignore")
    values = [x for x, variable in zip(given, inner, strict=True) if variable in changed]
    found = function(*values)
    if 0 in lead:
        shapes = [forward(op, *arrays)[i].shape for i in results]
        assert [x.shape for x in found] == [(*lead, *shape) for shape in shapes]
        return
    for index in np.ndindex(lead):
        entry = [x[index] if i in places else x for i, x in enumerate(given)]
        if name == "RNNBackward":  # the operands y and reserve follow from the others
            entry[5:7] = [forward(LSTM, *entry[:5])[i] for i in (0, 3)]
        wanted = forward(op, *entry)
        for x, i in zip(found, results, strict=True):
            np.testing.assert_allclose(x[index], wanted[i], atol=1e-12)


def test_every_op_is_vectorized():
    """`tests/nnet/test_vectorized_functions.py` has what users call."""
    tested = {type(op).__name__ for op, *_ in CASES.values()}
    tested |= {type(op).__name__ for op, *_ in test_vectorize.CASES.values()}
    elsewhere = {
        "Activation",
        "ActivationGrad",
        "BatchNormInference",
        "BatchNormTrain",
        "BatchNormTrainGrad",
        "CTC",
        "DivisiveNormalization",
        "DivisiveNormalizationGrad",
        "Dropout",
        "DropoutGrad",
        "LRN",
        "LRNGrad",
        "WindowSum",
    }
    assert set(abstract_ops()) - tested - elsewhere == {"CheckedValue", "ExpandableOp"}


@pytest.mark.parametrize("name", CASES)
def test_extra_axes(name):
    places = CASES[name][2]
    check(name, places, BATCHES)
    check(name, places, (0, 2))
    check(name, places[:1], (2,))
    check(name, places, BATCHES, static=False)
    check(name, places, (3, 0), static=False)


@pytest.mark.parametrize("places", [[0], [1], [0, 2], [2]])
def test_some_operands_of_group_norm(places):
    """Parameters that entries share have a gradient for each entry."""
    for name in ("GroupNorm", "GroupNormGrad"):
        check(name, places, BATCHES, static=False)
        check(name, places, (0,), static=False)
        check(name, places, (2,))


def test_group_norm_of_float16():
    """The parameters are float32, and products and sums, too."""
    x, gamma, gy = (normal(*a.shape, dtype="float16") for a in (*OF_GROUPS[:2], OF_GROUPS[0]))
    gamma = gamma.astype("float32")
    x *= 30
    variables = [pt.tensor(dtype=a.dtype, shape=(None,) * a.ndim) for a in (x, gamma, gy)]
    xs = pt.tensor(dtype="float16", shape=(None,) * 4)
    outputs = GroupNormGrad(2).make_node(*variables).outputs
    vectorized = vectorize_graph(outputs, {variables[0]: xs})
    assert [v.type.dtype for v in vectorized] == ["float16", "float32", "float32"]
    function = pytensor.function([xs, *variables[1:]], vectorized, mode=PERFORM_MODE)
    found = function(np.stack([x, 2 * x]), gamma, gy)
    wanted = forward(GroupNormGrad(2), *(a.astype("float64") for a in (x, gamma, gy)))
    for result, expected, error in zip(found, wanted, (2e-3, 1e-6, 1e-6), strict=True):
        np.testing.assert_allclose(result[0], expected, rtol=error, atol=error)


def test_filters_with_an_axis_of_size_zero():
    x, filters = pt.dtensor4(), pt.dtensor4()
    out = nnet.conv2d(x, filters)
    several = pt.tensor(dtype="float64", shape=(0, 2, 3, 2, 2))
    vectorized = vectorize_graph(out, {filters: several})
    function = pytensor.function([x, several], vectorized, mode=PERFORM_MODE)
    assert function(np.ones((2, 3, 5, 4)), np.ones((0, 2, 3, 2, 2))).shape == (0, 2, 2, 4, 3)


def test_gradients_of_shared_parameters():
    """The loop returns one gradient per entry."""
    _, arrays, _, _ = CASES["RNNBackward"]
    w, x, hx, cx, lengths = (pt.as_tensor(a).type() for a in arrays[:5])
    y = LSTM.make_node(w, x, hx, cx, lengths).outputs[0]
    by_w = pytensor.grad((y**2).sum(), w)
    xs = pt.tensor(dtype="float64", shape=(3, *arrays[1].shape))
    function = pytensor.function(
        [w, xs, hx, cx, lengths], vectorize_graph(by_w, {x: xs}), mode=PERFORM_MODE
    )
    one = pytensor.function([w, x, hx, cx, lengths], by_w, mode=PERFORM_MODE)
    value = vary(arrays[1], (3,))
    found = function(arrays[0], value, *arrays[2:5])
    for i in range(3):
        np.testing.assert_allclose(found[i], one(arrays[0], value[i], *arrays[2:5]), atol=1e-12)


@pytest.mark.parametrize("entries", [0, 1, 3])
@pytest.mark.parametrize("norm", [nnet.layer_norm, nnet.rms_norm])
def test_float32_norms(norm, entries):
    """With the powers of 2 that keep squares of float32 in range, which gradients do not pass."""
    x, xs = pt.fmatrix(), pt.ftensor3()
    y = norm(x)
    outputs = [y, pytensor.grad((y**3).sum(), x)]
    vectorized = pytensor.function([xs], vectorize_graph(outputs, {x: xs}), mode=PERFORM_MODE)
    assert not any(isinstance(n.op, Blockwise) for n in vectorized.maker.fgraph.apply_nodes)
    one = pytensor.function([x], outputs, mode=PERFORM_MODE)
    value = normal(entries, 4, 5, dtype="float32")
    for number, found in enumerate(vectorized(value)):
        assert found.shape == value.shape
        for entry, array in zip(found, value, strict=True):
            np.testing.assert_allclose(entry, one(array)[number], rtol=1e-5, atol=1e-6)

"""Cross-entropy on the CPU: recognized in graphs, against NumPy in float64."""

from __future__ import annotations

import warnings

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode, get_mode
from pytensor.tensor.special import log_softmax, softmax

from dnnops import nnet
from dnnops.cpu.cross_entropy import OneDnnCrossEntropy, OneDnnCrossEntropyGrad
from dnnops.errors import DnnIndexError
from dnnops.nnet.loss.cross_entropy import CrossEntropy, CrossEntropyGrad
from tests.cpu.conv.test_conv import restrided
from tests.oracle import PERFORM_MODE, RELATIVE_ERROR, SEED, repeat_command

#: Rewrites as without oneDNN, and runs the graph without compiling it.
PLAIN_MODE = Mode(PERFORM_MODE.linker, get_mode("CVM").provided_optimizer).excluding("onednn")
FUSED = {"OneDnnCrossEntropy", "OneDnnCrossEntropyGrad"}


def run(op, *arrays):
    node = op.make_node(*arrays)
    storage = [[None] for _ in node.outputs]
    op.perform(node, [np.asarray(a) for a in arrays], storage)
    return [cell[0] for cell in storage]


def ops_of(fn) -> set[str]:
    return {type(node.op).__name__ for node in fn.maker.fgraph.apply_nodes}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("classes", [2, 3, 50], ids="of {} classes".format)
def test_rows_without_a_finite_maximum_are_nan(dtype, classes):
    """Whatever the label, the row's cost and gradient are NaN, and no other row's."""
    x = np.zeros((8, classes), dtype)
    x[[0, 1], 0] = np.inf
    x[2, -1] = np.inf
    x[3] = -np.inf
    x[4, 1] = np.nan
    x[5, 1] = -np.inf
    labels = np.array([0, 1, 0, 0, 0, 0, 0, 1])
    labels[1] = classes - 1
    expected = log_softmax_of(x)
    for strided in (False, True):
        given = np.asfortranarray(x) if strided else x
        costs, statistics = run(OneDnnCrossEntropy(), given, labels)
        (gradient,) = run(OneDnnCrossEntropyGrad(), np.ones(8, dtype), given, labels, statistics)
        np.testing.assert_allclose(costs, -expected[np.arange(8), labels], rtol=1e-6)
        shares = np.exp(expected) - (np.arange(classes) == labels[:, None])
        np.testing.assert_allclose(gradient, shares, rtol=1e-6, atol=1e-6)
        assert np.isnan(gradient[:5]).all()


def log_softmax_of(x: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        shifted = x.astype("float64") - x.max(axis=1, keepdims=True)
        return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_op(dtype):
    rng = np.random.default_rng(SEED)
    for number in range(200):
        rows, classes = int(rng.integers(0, 20)), int(rng.integers(1, 80))
        every_row = bool(rng.integers(2))
        count = rows if every_row else int(rng.integers(0, rows + 1))
        labels = rng.integers(-classes, classes, 1 if every_row and rows % 3 == 1 else count)
        labels = labels.astype(("int32", "int64")[number % 2])
        x = (4 * rng.standard_normal((rows, classes))).astype(dtype)
        g = rng.standard_normal(1 if number % 4 == 0 else count).astype(dtype)
        wide = x.astype("float64")
        costs, statistics = run(CrossEntropy(every_row, every_row), wide, labels)
        (gradient,) = run(
            CrossEntropyGrad(every_row, every_row), g.astype("float64"), wide, labels, statistics
        )
        given = restrided(rng, x) if x.size else x
        found = run(OneDnnCrossEntropy(every_row, every_row), given, labels[::-1].copy()[::-1])
        (by_x,) = run(OneDnnCrossEntropyGrad(every_row, every_row), g, given, labels, found[1])
        bound = RELATIVE_ERROR[dtype]
        for out, ref in ((found[0], costs), (found[1], statistics), (by_x, gradient)):
            np.testing.assert_allclose(
                out, ref, rtol=bound, atol=bound, err_msg=f"{number}: {repeat_command()}"
            )


def spellings(x, labels):
    rows, count = pt.arange(x.shape[0]), pt.arange(labels.shape[0])
    yield -log_softmax(x, axis=1)[count, labels].mean()
    yield -pt.log(softmax(x, axis=-1))[rows, labels].sum()
    yield -pt.log(softmax(x, axis=1)[count, labels]).mean()
    yield -pt.take_along_axis(log_softmax(x, axis=1), labels[:, None], axis=1).mean()
    yield -pt.take_along_axis(log_softmax(x, axis=1), labels[:, None], axis=1)[:, 0].sum()
    weights = pt.constant(np.linspace(0, 1, 6).astype(x.type.dtype))
    yield (-log_softmax(x, axis=1)[rows, labels] * weights).sum()
    yield pt.mean(-log_softmax(pt.tanh(x) * 2, axis=1)[rows, labels])
    yield nnet.cross_entropy(x, labels).mean()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("number", range(8))
def test_graphs(number, dtype):
    x, labels = pt.tensor("x", dtype=dtype, shape=(None, None)), pt.lvector("labels")
    loss = list(spellings(x, labels))[number]
    outputs = [loss, pytensor.grad(loss, x)]
    fn = pytensor.function([x, labels], outputs, mode="CVM")
    assert ops_of(fn) >= FUSED, ops_of(fn)
    assert not any("oftmax" in name or "Advanced" in name for name in ops_of(fn)), ops_of(fn)
    plain = pytensor.function([x, labels], outputs, mode=PLAIN_MODE)
    assert not ops_of(plain) & FUSED
    rng = np.random.default_rng(SEED)
    for _ in range(3):
        value, chosen = rng.standard_normal((6, 9)).astype(dtype), rng.integers(-9, 9, 6)
        bound = {"float32": 1e-5, "float64": 1e-12}[dtype]
        for out, ref in zip(fn(value, chosen), plain(value, chosen), strict=True):
            np.testing.assert_allclose(out, ref, rtol=bound, atol=bound)
    with pytest.raises(IndexError):
        fn(value, np.array([0, 1, 2, 3, 4, 9]))


def test_static_shapes():
    x, labels = pt.tensor("x", dtype="float32", shape=(6, 4)), pt.ivector("labels")
    loss = -log_softmax(x, axis=1)[pt.arange(6), labels].mean()
    fn = pytensor.function([x, labels], [loss, pytensor.grad(loss, x)], mode="CVM")
    assert ops_of(fn) >= FUSED


def test_fewer_labels_than_rows():
    """Indexing by ``arange(labels.shape[0])`` selects the first rows; others have no gradient."""
    x, labels = pt.fmatrix("x"), pt.lvector("labels")
    loss = -log_softmax(x, axis=1)[pt.arange(labels.shape[0]), labels].sum()
    fn = pytensor.function([x, labels], [loss, pytensor.grad(loss, x)], mode="CVM")
    assert ops_of(fn) >= FUSED
    value = np.random.default_rng(0).standard_normal((5, 3)).astype("float32")
    cost, gradient = fn(value, np.array([2, 0]))
    logs = value - np.log(np.exp(value).sum(axis=1, keepdims=True))
    np.testing.assert_allclose(cost, -logs[0, 2] - logs[1, 0], rtol=1e-5)
    assert (gradient[2:] == 0).all()
    with pytest.raises(IndexError):
        fn(value, np.zeros(6, "int64"))


@pytest.mark.parametrize(
    "make",
    [
        lambda logs, rows, labels: [-logs[rows, labels].sum(), logs],
        lambda logs, rows, labels: [-logs[rows % 2, labels].sum()],
        lambda logs, rows, labels: [-logs[labels, rows].sum()],
        lambda logs, rows, labels: [-logs[:, labels].sum()],
        lambda logs, rows, labels: [-logs[pt.arange(0, 2 * rows.shape[0], 2), labels].sum()],
    ],
)
def test_other_graphs_stay(make):
    """The logarithms are needed anyway, or the index does not pick one entry of each row."""
    x, labels = pt.fmatrix("x"), pt.lvector("labels")
    outputs = make(log_softmax(x, axis=1), pt.arange(x.shape[0]), labels)
    fn = pytensor.function([x, labels], outputs, mode="CVM")
    assert not ops_of(fn) & FUSED


def test_softmax_over_other_axes_stays():
    x, labels = pt.fmatrix("x"), pt.lvector("labels")
    loss = -log_softmax(x, axis=0)[pt.arange(x.shape[0]), labels].sum()
    fn = pytensor.function([x, labels], [loss, pytensor.grad(loss, x)], mode="CVM")
    assert not ops_of(fn) & FUSED


@pytest.mark.slow
def test_default_mode():
    """Numba's linker calls the same functions, and raises their errors."""
    x, labels = pt.fmatrix("x"), pt.lvector("labels")
    loss = -log_softmax(x, axis=1)[pt.arange(x.shape[0]), labels].mean()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        fn = pytensor.function([x, labels], [loss, pytensor.grad(loss, x)], mode="NUMBA")
    assert ops_of(fn) >= FUSED
    value = np.random.default_rng(0).standard_normal((5, 3)).astype("float32")
    cost, gradient = fn(value, np.array([2, 0, 1, -1, 0]))
    assert np.isfinite(cost)
    np.testing.assert_allclose(gradient.sum(axis=1), 0, atol=1e-6)
    with pytest.raises(DnnIndexError, match="label 3 of row 1 is out of bounds for 3 classes"):
        fn(value, np.array([0, 3, 0, 0, 0]))


def test_float16_is_computed_in_float32():
    x, labels = pt.tensor("x", dtype="float16", shape=(None, None)), pt.lvector("labels")
    costs = nnet.cross_entropy(x, labels)
    fn = pytensor.function([x, labels], [costs, pytensor.grad(costs.sum(), x)], mode="CVM")
    assert ops_of(fn) >= FUSED
    value = np.random.default_rng(0).standard_normal((3, 4)).astype("float16")
    cost, gradient = fn(value, np.array([0, 1, 3]))
    assert cost.dtype == gradient.dtype == "float16"
    reference, _ = run(CrossEntropy(), value.astype("float64"), np.array([0, 1, 3]))
    np.testing.assert_allclose(cost, reference, rtol=2e-3)


def test_large_batch_in_threads():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((300, 500)).astype("float32")
    labels = rng.integers(0, 500, 300)
    costs, _ = run(OneDnnCrossEntropy(), x, labels)
    expected, _ = run(CrossEntropy(), x.astype("float64"), labels)
    np.testing.assert_allclose(costs, expected, rtol=1e-5)


@pytest.mark.parametrize("mode", ["CVM", None], ids=["CVM", "default"])
def test_one_label_for_all_rows(mode):
    """The function raises, as documented; indexing by ``arange`` allows it."""
    x, labels = pt.fmatrix(), pt.lvector()
    written = -log_softmax(x, axis=1)[pt.arange(x.shape[0]), labels]
    fn = pytensor.function([x, labels], nnet.cross_entropy(x, labels), mode=mode)
    scores = np.arange(12, dtype="float32").reshape(4, 3)
    with pytest.raises(IndexError, match="1 labels for 4 rows"):
        fn(scores, np.array([1]))
    found = pytensor.function([x, labels], written, mode=mode)(scores, np.array([1]))
    np.testing.assert_allclose(found, fn(scores, np.array([1] * 4)), 1e-6)

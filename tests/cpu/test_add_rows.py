"""Addition to rows that indices select, on the CPU."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import strategies as st

from dnnops.cpu.add_rows import CpuAddRows
from dnnops.errors import DnnIndexError, DnnTypeError, DnnValueError
from dnnops.nnet import relu
from tests.cpu.conv.test_conv import restrided
from tests.linkers import LINKERS
from tests.oracle import fuzz, small_integers


def run(op: CpuAddRows, *operands: np.ndarray) -> np.ndarray:
    storage: list[list] = [[None]]
    op.perform(op.make_node(*operands), [*operands], storage)
    return storage[0][0]


def added(x: np.ndarray, rows: np.ndarray, indices: np.ndarray) -> np.ndarray:
    expected = x.astype("float64")
    np.add.at(expected, indices, rows)
    return expected


@pytest.mark.parametrize("inplace", [False, True])
@fuzz(
    max_examples=100,
    count=st.integers(1, 40),
    picks=st.integers(0, 300),
    inner=st.sampled_from([(), (1,), (7,), (16,), (33,), (128,), (3, 5), (0,), (300,)]),
    dtype=st.sampled_from(["float32", "float64"]),
    dense=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_random(inplace, count, picks, inner, dtype, dense, seed):
    """Small integers are added exactly; equal indices and negative ones occur."""
    rng = np.random.default_rng(seed)
    x = small_integers(rng, (count, *inner), dtype)
    rows = small_integers(rng, (picks, *inner), dtype)
    indices = rng.integers(-count, count, picks)
    expected = added(x, rows, indices)
    if not dense:
        x, rows, indices = (restrided(rng, a) for a in (x, rows, indices))
    before = x.copy()
    out = run(CpuAddRows(inplace), x, rows, indices)
    assert (out is x) == inplace
    np.testing.assert_array_equal(out, expected)
    if not inplace:
        np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("index", [4, -5])
def test_nothing_changes_if_an_index_is_out_of_bounds(inplace, index):
    x = np.ones((4, 3), "float32")
    with pytest.raises(DnnIndexError, match=f"index {index} is out of bounds for 4 rows"):
        run(CpuAddRows(inplace), x, np.ones((2, 3), "float32"), np.array([0, index]))
    np.testing.assert_array_equal(x, 1)


@LINKERS
def test_gradient_of_an_embedding(mode):
    """In a network, tokens of two axes and equal tokens included."""
    tokens = pt.tensor("tokens", dtype="int64", shape=(None, None))
    table = pytensor.shared(np.random.default_rng(0).standard_normal((9, 4)).astype("float32"))
    loss = (pt.special.softmax(relu(table[tokens]), axis=2) ** 2).sum()
    gradient = pytensor.grad(loss, table)
    functions = [
        pytensor.function([tokens], gradient, mode=m)
        for m in (mode, pytensor.compile.get_mode("CVM").excluding("onednn"))
    ]
    nodes = functions[0].maker.fgraph.apply_nodes
    assert [node.op.inplace for node in nodes if isinstance(node.op, CpuAddRows)] == [True]
    value = np.array([[0, 3, 3], [8, 0, 3]])
    got, wanted = (fn(value) for fn in functions)
    np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-7)
    with pytest.raises(IndexError):
        functions[0](np.array([[9]]))


@pytest.mark.parametrize(
    "change",
    [
        lambda x, rows, i: pt.set_subtensor(x[i], rows),
        lambda x, rows, i: pt.inc_subtensor(x[i], rows[:1]),
        lambda x, rows, i: pt.inc_subtensor(x[i], rows[0]),
        lambda x, rows, i: pt.inc_subtensor(x[:, i], rows[:3].T),
        lambda x, rows, i: pt.inc_subtensor(x[i], rows, ignore_duplicates=True),
        lambda x, rows, i: pt.inc_subtensor(x[:, 0][i], rows[:, 0]),
    ],
    ids=["set", "one row", "a vector", "columns", "no duplicates", "elements"],
)
def test_other_changes_stay(change):
    x, rows = (pt.tensor(dtype="float32", shape=(3, 3)) for _ in range(2))
    i = pt.tensor(dtype="int64", shape=(3,))
    outputs = [change(x, rows, i), relu(x)]
    fn = pytensor.function([x, rows, i], outputs, mode="DNN")
    assert not any(isinstance(node.op, CpuAddRows) for node in fn.maker.fgraph.apply_nodes)
    plain = pytensor.function([x, rows, i], outputs, mode="FAST_COMPILE")
    rng = np.random.default_rng(1)
    given = [rng.standard_normal((3, 3)).astype("float32") for _ in range(2)]
    for got, wanted in zip(
        fn(*given, np.array([2, 0, 2])), plain(*given, np.array([2, 0, 2])), strict=True
    ):
        np.testing.assert_allclose(got, wanted, rtol=1e-6)


def test_gradients():
    x, rows = (pt.tensor(dtype="float64", shape=(None, 2)) for _ in range(2))
    indices = np.array([1, 1, 0])
    out = CpuAddRows()(x, rows, indices)
    weights = np.arange(4.0).reshape(2, 2)
    gradients = pytensor.grad((out * weights).sum(), [x, rows])
    values = pytensor.function([x, rows], gradients)(np.zeros((2, 2)), np.zeros((3, 2)))
    np.testing.assert_array_equal(values[0], weights)
    np.testing.assert_array_equal(values[1], weights[indices])


def test_errors():
    x = np.zeros((3, 2), "float32")
    with pytest.raises(DnnTypeError, match="arrays of equal dtype"):
        CpuAddRows().make_node(x, x.astype("float64"), [0])
    with pytest.raises(DnnTypeError, match="equal rank and a vector"):
        CpuAddRows().make_node(x, x, [[0]])
    with pytest.raises(DnnTypeError, match="integer indices"):
        CpuAddRows().make_node(x, x, [0.0])
    with pytest.raises(DnnValueError, match="cannot be added to 2 rows"):
        run(CpuAddRows(), x, x, np.array([0, 1]))

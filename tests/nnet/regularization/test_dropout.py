"""Dropout: the generator's known answers, statistics, gradients, states, errors."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import strategies as st
from pytensor.gradient import DisconnectedType, NullTypeGradError, disconnected_type
from pytensor.graph.null_type import NullType

from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.nnet import Dropout, DropoutGrad, dropout, dropout_state
from dnnops.nnet.regularization.dropout import philox4x32
from tests.oracle import PERFORM_MODE, check_gradient, evaluate, fuzz, normal

#: From Random123's kat_vectors: counter, key, result.
KNOWN_ANSWERS = [
    ("00000000 " * 4, "00000000 " * 2, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff " * 4, "ffffffff " * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (
        "243f6a88 85a308d3 13198a2e 03707344",
        "a4093822 299f31d0",
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]


def state(seed: int, offset: int = 0) -> np.ndarray:
    return np.array([seed, offset], dtype="uint64").view("int64")


def run(op, *operands) -> list[np.ndarray]:
    """Run an Op's `perform`, and check the results' types."""
    arrays = [np.asarray(a) for a in operands]
    node = op.make_node(*arrays)
    storage: list[list] = [[None] for _ in node.outputs]
    op.perform(node, arrays, storage)
    for variable, (value,) in zip(node.outputs, storage, strict=True):
        assert value.dtype.name == variable.type.dtype
        assert value.shape == variable.type.shape
    return [value for (value,) in storage]


def words_of(text: str) -> np.ndarray:
    return np.array([int(word, 16) for word in text.split()], dtype="uint32")


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_known_answers_of_the_generator(counter, key, expected):
    first, second = (int(word) for word in words_of(key))
    np.testing.assert_array_equal(
        philox4x32(words_of(counter), (first, second)), words_of(expected)
    )


def test_order_of_random_words():
    """Compute the order: 64 elements share 16 blocks, whose first words come first."""
    seed, offset, p = 0x0123456789ABCDEF, 2**32 - 3, 0.4
    x = np.ones((5, 29))
    y, reserve, next_state = run(Dropout(), x, p, state(seed, offset))
    kept = []
    for i in range(x.size):
        block = offset + i // 64 * 16 + i % 16
        counter = np.array([block % 2**32, block // 2**32, 0, 0], dtype="uint32")
        word = philox4x32(counter, (seed % 2**32, seed >> 32))[i % 64 // 16]
        kept.append(word >= int(p * 2**32))
    np.testing.assert_array_equal(y.ravel() > 0, kept)
    bits = [reserve[i // 8] >> (i % 8) & 1 for i in range(x.size)]
    np.testing.assert_array_equal(bits, kept)
    np.testing.assert_array_equal(next_state, state(seed, offset + 3 * 16))


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_statistics(p):
    count = 2**18
    x, current, drawn = np.ones(count), state(11), []
    for _ in range(3):
        y, _, current = run(Dropout(), x, p, current)
        np.testing.assert_array_equal(np.unique(y), [0, 1 / (1 - p)])
        drawn.append(y)
    drawn.append(run(Dropout(), x, p, state(12))[0])
    limit = 5 / np.sqrt(count)  # standard deviations
    deviation = np.sqrt(p / (1 - p))
    for y in drawn:
        assert abs(y.mean() - 1) < limit * deviation
        assert abs(y.var() / deviation**2 - 1) < 10 * limit / min(p, 1 - p)
    # Of consecutive calls, other seeds, and neighbors in one array.
    lags = [(y[:-lag], y[lag:]) for y in drawn[:1] for lag in (1, 2, 16, 64)]
    pairs = [(drawn[i], drawn[j]) for i in range(4) for j in range(i)]
    for a, b in pairs + lags:
        assert abs(np.corrcoef(a, b)[0, 1]) < limit


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_results_and_gradient(dtype):
    rng = np.random.default_rng(2)
    x, gy = (normal(rng, (3, 5, 7), dtype) for _ in range(2))
    p = 0.3
    y, reserve, _ = run(Dropout(), x, p, state(5))
    kept = np.unpackbits(reserve, count=x.size, bitorder="little").reshape(x.shape)
    assert 0 < kept.sum() < x.size
    scale = np.dtype("float32" if dtype == "float16" else dtype).type(1 / (1 - p))
    np.testing.assert_array_equal(y, (kept * x * scale).astype(dtype))
    (gx,) = run(DropoutGrad(), gy, p, reserve)
    np.testing.assert_array_equal(gx, (kept * gy * scale).astype(dtype))


def test_zero_probability_and_empty_input():
    x = np.arange(10.0)
    y, reserve, next_state = run(Dropout(), x, 0.0, state(1))
    np.testing.assert_array_equal(y, x)
    np.testing.assert_array_equal(reserve, [255, 3])
    np.testing.assert_array_equal(run(DropoutGrad(), x, 0.0, reserve)[0], x)
    y, reserve, next_state = run(Dropout(), np.ones((3, 0)), 0.5, state(1, 7))
    assert y.shape == (3, 0)
    assert reserve.shape == (0,)
    np.testing.assert_array_equal(next_state, state(1, 7))
    # The last offset is followed by the first.
    _, _, next_state = run(Dropout(), x, 0.5, state(1, 2**64 - 1))
    np.testing.assert_array_equal(next_state, state(1, 15))
    # What is dropped is 0, whatever it was.
    y, _, _ = run(Dropout(), np.full(1000, np.nan), 0.5, state(1))
    assert set(np.isnan(y)) == {True, False}
    assert set(y[~np.isnan(y)]) == {0}


def test_derivatives():
    rng = np.random.default_rng(3)
    fixed = pt.constant(state(8))
    check_gradient(
        lambda x: Dropout()(x, 0.4, fixed)[0], [normal(rng, (4, 9), "float64")], allow_zero=True
    )
    reserve = pt.constant(np.array([0b10110, 0b1], dtype="uint8"))
    check_gradient(
        lambda gy: DropoutGrad()(gy, 0.4, reserve), [normal(rng, (9,), "float64")], allow_zero=True
    )


def test_operands_without_a_derivative():
    x, p = pt.dvector(), pt.dscalar()
    y, reserve, _ = Dropout()(x, p, state(1))
    with pytest.raises(NullTypeGradError, match="p determines which elements are dropped"):
        pytensor.grad(y.sum(), p)
    node = y.owner
    assert node.op.connection_pattern(node) == [
        [True, False, False],
        [True, False, False],
        [False, False, True],
    ]
    gradient = DropoutGrad().make_node(x, p, reserve)
    assert gradient.op.connection_pattern(gradient) == [[True], [True], [False]]
    for apply in (node, gradient):
        moving = [disconnected_type(), pt.dscalar(), disconnected_type()]
        undefined, *_ = apply.op.pushforward(apply.inputs, apply.outputs, moving)
        assert isinstance(undefined.type, NullType)
        tangents = apply.op.pushforward(
            apply.inputs, apply.outputs, [disconnected_type() for _ in apply.inputs]
        )
        assert all(isinstance(t.type, DisconnectedType) for t in tangents)
    gradients = node.op.pullback(node.inputs, node.outputs, [disconnected_type()] * 3)
    assert all(isinstance(g.type, DisconnectedType) for g in gradients)


@fuzz(20, shape=st.lists(st.integers(0, 5), max_size=4).map(tuple))
def test_shapes(shape):
    x, s = pt.tensor(dtype="float64", shape=(None,) * len(shape)), pt.lvector()
    node = Dropout().make_node(x, 0.5, s)
    sizes = [tuple(v.shape[i] for i in range(v.type.ndim)) for v in node.inputs]
    inferred = node.op.infer_shape(node, sizes)
    gradient = DropoutGrad()(x, 0.5, node.outputs[1])
    (inferred_gradient,) = gradient.owner.op.infer_shape(gradient.owner, [sizes[0], None, None])
    flat = [pt.as_tensor(n) for group in (*inferred, inferred_gradient) for n in group]
    outputs = [*node.outputs, gradient]
    values = evaluate([*flat, *outputs], {x: np.ones(shape), s: state(1)})
    results = values[len(flat) :]
    expected = [n for result in results for n in result.shape]
    assert [int(n) for n in values[: len(flat)]] == expected
    assert Dropout()(np.ones(shape), 0.5, state(1))[1].type.shape == ((np.prod(shape) + 7) // 8,)


# -- the function ------------------------------------------------------------------------


def test_a_seed_is_repeated_and_its_state_kept():
    x = pt.dvector("x")
    ones = np.ones(500)
    functions = [
        pytensor.function([x], dropout(x, 0.5, seed=seed), mode=PERFORM_MODE) for seed in (7, 7, 8)
    ]
    first, second, other = ([fn(ones) for _ in range(3)] for fn in functions)
    np.testing.assert_array_equal(first, second)
    draws = [*first, *other]
    assert all((draws[i] != draws[j]).any() for i in range(6) for j in range(i))
    assert dropout(x, seed=2**64 - 1).owner.inputs[2].get_value().tolist() == [-1, 0]


def initial(y) -> list[int]:
    """Return the initial state of a dropout."""
    return y.owner.inputs[2].get_value().tolist()


def test_without_a_seed_each_draws_its_own():
    """In every mode, each call draws new numbers, and another graph draws different ones."""
    x = pt.fvector("x")
    ones = np.ones(500, "float32")
    layers = [dropout(x, 0.5), dropout(x, 0.5)]
    assert initial(layers[0])[1] == 0
    assert initial(layers[0]) != initial(layers[1])
    for mode in (PERFORM_MODE, "CVM", "NUMBA"):
        f = pytensor.function([x], layers, mode=mode)
        draws = [*f(ones), *f(ones)]
        assert all((draws[i] != draws[j]).any() for i in range(4) for j in range(i))


@pytest.mark.parametrize(
    "make",
    [
        np.random.default_rng,
        np.random.SeedSequence,
        lambda seed: pt.random.shared_rng(seed=seed),
        pytest.param(
            lambda seed: pt.random.utils.RandomStream(seed=seed),
            marks=pytest.mark.filterwarnings("ignore:RandomStream is deprecated"),
        ),
    ],
    ids=["Generator", "SeedSequence", "shared_rng", "RandomStream"],
)
def test_a_seed_is_drawn_from_a_generator(make):
    """Each layer draws its own numbers, and a generator with the same seed repeats them."""
    x = pt.dvector("x")

    def layers(seed: int) -> list[list[int]]:
        rng = make(seed)
        return [initial(dropout(x, 0.5, rng=rng)) for _ in range(3)]

    first, second, other = layers(153), layers(153), layers(154)
    assert first == second
    assert len({*map(tuple, first), *map(tuple, other)}) == 6


def test_a_state_given():
    x = pt.dvector("x")
    shared = dropout_state(7, name="state")
    assert shared.name == "state"
    y, after_y = dropout(x, 0.5, state=shared)
    z, after_z = dropout(x, 0.5, state=after_y)
    once = pytensor.function([x], [y, z], mode=PERFORM_MODE)
    kept = pytensor.function([x], [y, z], updates={shared: after_z}, mode=PERFORM_MODE)
    ones = np.ones(200)
    np.testing.assert_array_equal(once(ones), once(ones))
    by_seed = pytensor.function([x], dropout(x, 0.5, seed=7), mode=PERFORM_MODE)
    draws = [*kept(ones), *kept(ones)]
    np.testing.assert_array_equal(draws, [by_seed(ones) for _ in range(4)])
    np.testing.assert_array_equal(shared.get_value(), state(7, 4 * 4 * 16))
    saved = shared.get_value()
    expected = kept(ones)
    shared.set_value(saved)
    np.testing.assert_array_equal(kept(ones), expected)


def test_no_warning_of_default_updates(recwarn):
    dropout(pt.dvector(), seed=1)
    assert not recwarn.list


def test_gradient_of_the_function():
    x = pt.dmatrix("x")
    y = dropout(x, 0.25, seed=3)
    out, grad = pytensor.function([x], [y, pytensor.grad((2 * y).sum(), x)], mode=PERFORM_MODE)(
        np.ones((20, 20))
    )
    np.testing.assert_array_equal(2 * out, grad)


def test_errors():
    x, p = pt.fvector(), pt.dscalar()
    sources = {"seed": 1, "state": state(1), "rng": np.random.default_rng(1)}
    for names in (("seed", "state"), ("seed", "rng"), ("state", "rng")):
        got = " and ".join(names)
        with pytest.raises(DnnValueError, match=f"at most one of seed, state and rng, got {got}"):
            dropout(x, 0.5, **{name: sources[name] for name in names})
    for value in (1, np.random.RandomState(1)):
        with pytest.raises(DnnTypeError, match=r"rng must be a numpy\.random\.Generator, a shared"):
            dropout(x, 0.5, rng=value)
    for value in (-0.1, 1.0001, 1.5, 2):
        with pytest.raises(DnnValueError, match="p must be at least 0 and at most 1, got"):
            dropout(x, value, seed=1)
    for value in (np.nan, np.inf):
        with pytest.raises(DnnValueError, match="dropout: p must be finite, got"):
            dropout(x, value, seed=1)
    for value in ("a", pt.dvector(), 1j):
        with pytest.raises(DnnTypeError, match="dropout: p must be a number or a real scalar"):
            dropout(x, value, seed=1)
    for value in (1.0, "1", True, pt.lscalar()):
        with pytest.raises(DnnTypeError, match="dropout: seed must be an int, got"):
            dropout(x, 0.5, seed=value)
    for value in (-1, 2**64):
        with pytest.raises(DnnValueError, match=r"dropout_state: seed must be from 0 to 2\*\*64"):
            dropout_state(value)
    with pytest.raises(DnnTypeError, match="dropout: x has dtype int64"):
        dropout(pt.lvector(), 0.5, seed=1)
    with pytest.raises(DnnTypeError, match="dropout: state must have dtype int64, got int32"):
        dropout(x, 0.5, state=pt.ivector())
    with pytest.raises(DnnTypeError, match="state must be a vector of 2 integers"):
        dropout(x, 0.5, state=pt.dvector())
    with pytest.raises(DnnValueError, match="state must be a vector of 2 integers, got 3"):
        Dropout()(x, 0.5, np.zeros(3, "int64"))
    with pytest.raises(DnnTypeError, match="DropoutGrad: reserve must be a uint8 vector, got"):
        DropoutGrad()(x, 0.5, pt.lvector())
    y = dropout(x, p, seed=1)
    for value in (1.01, -1e-9, np.nan):
        with pytest.raises(DnnValueError, match="Dropout: p must be at least 0 and at most 1"):
            evaluate(y, {x: np.ones(3, "float32"), p: np.array(value)})
    reserve = pt.vector(dtype="uint8")
    gx = DropoutGrad()(x, 0.5, reserve)
    values = {x: np.ones(9, "float32"), reserve: np.ones(1, "uint8")}
    with pytest.raises(DnnValueError, match=r"reserve has 1 bytes, expected 2 .* shape \(9\)"):
        evaluate(gx, values)


@pytest.mark.parametrize("symbolic", [False, True])
def test_a_probability_of_one_drops_everything(symbolic):
    """As in PyTorch, results and gradients are zero."""
    x, p = pt.fmatrix(), pt.dscalar()
    y = dropout(x, p if symbolic else 1, seed=3)
    values = {x: np.full((70, 9), 2, "float32"), p: np.array(1.0)}
    values = {x: np.full((70, 9), 2, "float32"), p: np.array(1.0)}
    found = evaluate([y, pytensor.grad(y.sum(), x)], values)
    for result in found:
        assert result.dtype == "float32"
        np.testing.assert_array_equal(result, np.zeros((70, 9)))

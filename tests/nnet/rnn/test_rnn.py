"""The Ops of recurrent networks in NumPy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import strategies as st

from dnnops.compat import inferred_shapes
from dnnops.errors import DnnNotSupportedError, DnnTypeError, DnnValueError
from dnnops.nnet import RNNBackward, RNNForward
from dnnops.nnet.rnn.layout import RNNLayout, keep_mask
from tests.nnet.rnn.rnn_cases import RNNCase, rnn_cases, run_op, torch_results
from tests.oracle import assert_close, evaluate, fuzz

CASE = RNNCase("lstm", 3, 2, True, False, 0, 0.0, False, 4, 2, 5, seed=1)


@pytest.mark.needs("torch")
@fuzz(max_examples=100, case=rnn_cases(torch=True))
def test_against_pytorch(case):
    operands = case.operands()
    *results, reserve = run_op(case.forward, *operands)
    rng = np.random.default_rng(case.seed)
    cotangents = [rng.standard_normal(r.shape) for r in results]
    gradients = run_op(case.backward, *operands, results[0], reserve, *cotangents)
    expected = torch_results(case, operands, cotangents)
    for result, reference in zip([*results, *gradients], expected, strict=True):
        assert_close(result, reference, bound=1e-11, allow_zero=True)


@fuzz(max_examples=100, case=rnn_cases(modes=("lstm", "gru", "rnn_tanh")))
def test_gradients_against_finite_differences(case):
    """Include skipped inputs and dropout, which PyTorch does not have in the same form."""
    operands, count = case.operands(), case.float_count()
    rng = np.random.default_rng(case.seed)
    steps = [rng.standard_normal(a.shape) for a in operands[:count]]

    def at(step):
        moved = [a + step * v for a, v in zip(operands[:count], steps, strict=True)]
        return run_op(case.forward, *moved, *operands[count:])[:-1]

    eps = 1e-5
    numeric = [(a - b) / (2 * eps) for a, b in zip(at(eps), at(-eps), strict=True)]
    *results, reserve = run_op(case.forward, *operands)
    cotangents = [rng.standard_normal(r.shape) for r in results]
    gradients = run_op(case.backward, *operands, results[0], reserve, *cotangents)
    names = case.backward.results
    by_name = dict(zip(names, gradients, strict=True))
    backward = sum(
        np.vdot(by_name[name], step)
        for name, step in zip(case.forward.operands[:count], steps, strict=True)
    )
    forward = sum(np.vdot(c, n) for c, n in zip(cotangents, numeric, strict=True))
    scale = sum(
        np.linalg.norm(c) * np.linalg.norm(n) for c, n in zip(cotangents, numeric, strict=True)
    )
    assert abs(backward - forward) <= 1e-6 * max(scale, 1)


@fuzz(max_examples=30, case=rnn_cases(max_layers=2))
def test_lengths_are_sequences_of_their_own(case):
    """Running each sequence alone, without what follows its end, gives the same results."""
    case = replace(case, has_lengths=True, dropout=0.0)
    operands = case.operands()
    count = case.float_count()
    lengths = operands[count]
    spoiled = [a.copy() for a in operands]
    for b, length in enumerate(lengths):
        spoiled[1][length:, b] = np.nan
    *results, reserve = run_op(case.forward, *spoiled)
    cotangents = [np.random.default_rng(0).standard_normal(r.shape) for r in results]
    gradients = run_op(case.backward, *spoiled, results[0], reserve, *cotangents)
    total = np.zeros_like(gradients[0])
    for b, length in enumerate(lengths):
        alone = replace(case, has_lengths=False, batch=1, steps=int(length))
        own = [operands[0], operands[1][:length, b : b + 1]]
        own += [a[:, b : b + 1] for a in operands[2:count]]
        *expected, kept = run_op(alone.forward, *own)
        np.testing.assert_allclose(results[0][:length, b : b + 1], expected[0], atol=1e-12)
        assert not results[0][length:, b].any()
        for state, reference in zip(results[1:], expected[1:], strict=True):
            np.testing.assert_allclose(state[:, b : b + 1], reference, atol=1e-12)
        tops = [cotangents[0][:length, b : b + 1], *(c[:, b : b + 1] for c in cotangents[1:])]
        dw, *dstates, dx = run_op(alone.backward, *own, expected[0], kept, *tops)
        total += dw
        np.testing.assert_allclose(gradients[-1][:length, b : b + 1], dx, atol=1e-10)
        assert not gradients[-1][length:, b].any()
        for found, reference in zip(gradients[1:-1], dstates, strict=True):
            np.testing.assert_allclose(found[:, b : b + 1], reference, atol=1e-10)
    assert_close(gradients[0], total, bound=1e-11, allow_zero=True)


# -- dropout -----------------------------------------------------------------------------


def splitmix64(seed: int, count: int) -> list[int]:
    """Compute the generator as its authors wrote it."""
    mask, words = 2**64 - 1, []
    state = seed & mask
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) & mask
        word = state
        word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & mask
        word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & mask
        words.append(word ^ (word >> 31))
    return words


@pytest.mark.parametrize(("seed", "layer"), [(0, 0), (4242, 1), (-5, 2), (2**63 - 1, 0)])
def test_mask_is_of_the_generator(seed, layer):
    start = splitmix64(seed + layer * 0x9E3779B97F4A7C15, 1)[0]
    expected = [(word >> 40) >= round(0.3 * 2**24) for word in splitmix64(start, 60)]
    assert keep_mask(seed, layer, (3, 20), 0.3).ravel().tolist() == expected
    assert 5 < sum(expected) < 60


@pytest.mark.parametrize("dropout", [0.1, 0.5, 0.9])
def test_mask_keeps_as_many_as_it_should(dropout):
    masks = np.stack([keep_mask(seed, 0, (10000,), dropout) for seed in range(20)])
    deviation = np.sqrt(dropout * (1 - dropout) / masks.size)
    assert abs(masks.mean() - (1 - dropout)) < 5 * deviation
    # Of neighbors, in one mask and from seed to seed.
    for a, b in ((masks[:, 1:], masks[:, :-1]), (masks[1:], masks[:-1])):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 5 / np.sqrt(a.size)


@fuzz(max_examples=20, case=rnn_cases(max_layers=1), seed=st.integers(-(2**63), 2**63 - 1))
def test_dropout_is_between_the_layers(case, seed):
    two = replace(case, num_layers=2, dropout=0.4, has_lengths=False)
    w, x, *states, _ = two.operands()
    y = run_op(two.forward, w, x, *states, np.array(seed))[0]
    layouts = [two.forward.layout, replace(case, dropout=0.0).forward.layout]
    first, second = two.network, two.network
    parts = layouts[0].pseudo_layers(case.input_size)
    directions = layouts[0].directions

    def parameters(layer):
        chosen = parts[layer * directions : (layer + 1) * directions]
        begin, rows = chosen[0].input_matrices, chosen[0].gates * case.hidden_size
        end = chosen[-1].projection + case.proj_size * case.hidden_size
        biases = chosen[0].input_biases
        return np.concatenate([w[begin:end], w[biases : biases + 2 * rows * directions]])

    first = replace(two, num_layers=1, dropout=0.0)
    second = replace(first, skip_input=False)
    below = run_op(first.forward, parameters(0), x, *(s[:directions] for s in states))[0]
    below = below * keep_mask(seed, 0, below.shape, 0.4) / 0.6
    above = run_op(second.forward, parameters(1), below, *(s[directions:] for s in states))[0]
    np.testing.assert_allclose(y, above, atol=1e-12)


# -- types and shapes --------------------------------------------------------------------


@fuzz(max_examples=30, case=rnn_cases())
def test_infer_shape(case):
    arrays = case.operands()
    variables = [pt.tensor(dtype=a.dtype, shape=(None,) * a.ndim) for a in arrays]
    node = case.forward.make_node(*variables)
    cotangents = [o.type() for o in node.outputs[:-1]]
    backward = case.backward.make_node(*variables, node.outputs[0], node.outputs[-1], *cotangents)
    values = run_op(case.forward, *arrays)
    gradients = run_op(case.backward, *arrays, values[0], values[-1], *values[:-1])
    inputs = dict(zip(variables, arrays, strict=True))
    inputs |= dict(zip(cotangents, values[:-1], strict=True))
    for made, results in ((node, values), (backward, gradients)):
        shapes = [tuple(v.shape[i] for i in range(v.type.ndim)) for v in made.inputs]
        inferred = inferred_shapes(made.op, made, shapes)
        found = evaluate([pt.stack([*shape]) for shape in inferred], inputs)
        assert [tuple(shape) for shape in found] == [r.shape for r in results]
    assert case.forward.layout.param_size(case.input_size) == arrays[0].size


def test_float16_is_computed_in_float32():
    operands = CASE.operands("float16")
    results = run_op(CASE.forward, *operands)
    assert [r.dtype.name for r in results] == ["float16"] * 3 + ["float32"]
    expected = run_op(CASE.forward, *(a.astype("float64") for a in operands))
    for result, reference in zip(results, expected, strict=True):
        assert_close(result, reference, bound=2e-3)


@pytest.mark.parametrize("empty", ["steps", "batch", "input_size"])
def test_empty(empty):
    case = replace(CASE, **{empty: 0})
    operands = case.operands()
    y, hy, cy, reserve = run_op(case.forward, *operands)
    assert y.shape == (case.steps, case.batch, 6)
    if empty == "steps":
        np.testing.assert_array_equal(hy, operands[2])
        np.testing.assert_array_equal(cy, operands[3])
    gradients = run_op(case.backward, *operands, y, reserve, y, hy, cy)
    assert [g.shape for g in gradients] == [operands[i].shape for i in (0, 2, 3, 1)]


def test_equal_ops_are_equal():
    assert CASE.forward == RNNForward("lstm", 3, 2, True)
    assert hash(CASE.forward) == hash(RNNForward("lstm", 3, 2, True))
    assert CASE.forward != RNNForward("lstm", 3, 2, True, keeps_reserve=False)
    # There is nothing to drop.
    assert RNNForward("gru", 3, 1, dropout=0.5) == RNNForward("gru", 3, 1)


# -- derivatives of graphs ---------------------------------------------------------------


@pytest.mark.parametrize("keeps_reserve", [True, False])
@pytest.mark.parametrize("wanted", [(0,), (1, 2), (0, 2)])
def test_gradient_of_some_results(keeps_reserve, wanted):
    arrays = CASE.operands()
    variables = [pt.tensor(dtype="float64", shape=(None,) * a.ndim) for a in arrays]
    op = RNNForward(**CASE.network, keeps_reserve=keeps_reserve)
    outputs = op.make_node(*variables).outputs
    loss = sum((outputs[k] ** 2).sum() for k in wanted)
    found = evaluate(pytensor.grad(loss, variables), dict(zip(variables, arrays, strict=True)))
    *results, reserve = run_op(CASE.forward, *arrays)
    tops = [2 * r if k in wanted else 0 * r for k, r in enumerate(results)]
    dw, dhx, dcx, dx = run_op(CASE.backward, *arrays, results[0], reserve, *tops)
    for gradient, expected in zip(found, (dw, dx, dhx, dcx), strict=True):
        assert_close(gradient, expected, bound=1e-12)


# -- what cannot be ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (("elman", 3, 1), DnnValueError, "rnn_mode must be one of rnn_relu, rnn_tanh, lstm, gru"),
        ((7, 3, 1), DnnTypeError, "rnn_mode must be one of .* got 7"),
        (("lstm", 0, 1), DnnValueError, "hidden_size must be between 1 and 2147483647, got 0"),
        (("lstm", 3, -1), DnnValueError, "num_layers must be between 1 and 2147483647, got -1"),
        (("lstm", 3.5, 1), DnnTypeError, "hidden_size must be an int, got 3.5"),
        (("lstm", 3, True), DnnTypeError, "num_layers must be an int, got True"),
        (("gru", 3, 1, False, False, 2), DnnNotSupportedError, "proj_size 2 needs rnn_mode lstm"),
        (("lstm", 3, 1, False, False, 3), DnnValueError, "smaller than hidden_size 3, got 3"),
        (("lstm", 3, 1, False, False, -1), DnnValueError, "proj_size must be between 0 and"),
        (("lstm", 3, 1, False, True, 2), DnnNotSupportedError, "proj_size needs input_mode linear"),
        (("lstm", 3, 2, False, False, 0, 1.0), DnnValueError, "at least 0 and less than 1, got 1"),
        (("lstm", 3, 2, False, False, 0, -0.1), DnnValueError, "dropout must be at least 0"),
        (("lstm", 3, 2, False, False, 0, np.nan), DnnValueError, "dropout must be at least 0"),
        (("lstm", 3, 2, False, False, 0, "no"), DnnTypeError, "dropout must be a number"),
        (("lstm", 3, 2, 2), DnnTypeError, "bidirectional must be True or False, got 2"),
    ],
)
def test_bad_parameters(arguments, error, words):
    with pytest.raises(error, match=words):
        RNNForward(*arguments)
    with pytest.raises(error, match=words):
        RNNBackward(*arguments)


def test_bad_operands():
    case = replace(CASE, has_lengths=True)
    w, x, hx, cx, lengths = case.operands()
    op = case.forward
    with pytest.raises(DnnTypeError, match="expected the operands w, x, hx, cx, lengths, got 4"):
        op.make_node(w, x, hx, cx)
    with pytest.raises(DnnTypeError, match="w must have 1 dimensions, got 2"):
        op.make_node(w[None], x, hx, cx, lengths)
    with pytest.raises(DnnTypeError, match=r"the operands must have one dtype, .* hx float32"):
        op.make_node(w, x, hx.astype("float32"), cx, lengths)
    with pytest.raises(DnnTypeError, match="lengths must be a vector of integers"):
        op.make_node(w, x, hx, cx, lengths.astype("float64"))
    wrong = {
        "w has shape .*, expected": (w[1:], x, hx, cx, lengths),
        r"hx has shape \(3, 2, 3\), expected \(4, 2, 3\) for x": (w, x, hx[:3], cx, lengths),
        r"cx has shape \(4, 1, 3\), expected \(4, 2, 3\)": (w, x, hx, cx[:, :1], lengths),
        r"lengths has shape \(1\), expected \(2\)": (w, x, hx, cx, lengths[:1]),
    }
    unknown = [pt.tensor(dtype=a.dtype, shape=(None,) * a.ndim) for a in (w, x, hx, cx, lengths)]
    node = op.make_node(*unknown)
    for words, operands in wrong.items():
        with pytest.raises(DnnValueError, match=words):
            op.make_node(*operands)
        with pytest.raises(DnnValueError, match=words):
            op.perform(node, list(operands), [[None] for _ in node.outputs])
    for bad in ([0, 2], [1, 5], [-1, 1]):
        with pytest.raises(DnnValueError, match=r"between 1 and the number of steps 4, got \["):
            op.perform(node, [w, x, hx, cx, np.array(bad)], [[None] for _ in node.outputs])
    skips = RNNForward("gru", 3, 1, skip_input=True)
    with pytest.raises(DnnValueError, match="input's size must be hidden_size 3, got 5"):
        skips.make_node(np.zeros(45), x, hx[:1])


def test_bad_reserve():
    operands = CASE.operands()
    *results, reserve = run_op(CASE.forward, *operands)
    with pytest.raises(DnnValueError, match=r"reserve has shape .* expected"):
        CASE.backward.make_node(*operands, results[0], reserve[1:], *results)
    with pytest.raises(DnnTypeError, match="reserve has dtype float32, expected float64"):
        CASE.backward.make_node(*operands, results[0], reserve.astype("float32"), *results)
    with pytest.raises(DnnValueError, match="gcy has shape"):
        CASE.backward.make_node(*operands, results[0], reserve, *results[:2], results[2][:1])


def test_sizes_of_the_layout():
    layout = RNNLayout("lstm", 7, 2, bidirectional=True, proj_size=3)
    # For an input of 5: (4 * 7) * (5 + 3) + 3 * 7, twice; then with 6 instead of 5; biases.
    assert layout.param_size(5) == 2 * (28 * 8 + 21) + 2 * (28 * 9 + 21) + 4 * 2 * 28
    parts = layout.pseudo_layers(5)
    assert [p.inputs for p in parts] == [5, 5, 6, 6]
    assert parts[-1].recurrent_biases + 28 == layout.param_size(5)

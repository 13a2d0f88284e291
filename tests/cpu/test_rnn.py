"""Recurrent networks on oneDNN against the abstract Ops' NumPy in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import assume
from hypothesis import strategies as st

from dnnops.cpu.rnn import OneDnnRNNBackward, OneDnnRNNForward
from dnnops.errors import DnnError, DnnTypeError, DnnValueError
from dnnops.nnet import RNNBlock
from tests.cpu.conv.test_conv import restrided
from tests.nnet.rnn.rnn_cases import RNNCase, rnn_cases, run_op
from tests.oracle import PERFORM_MODE, UNIT, assert_close, fuzz, small_integers

DTYPES = pytest.mark.parametrize("dtype", ["float32", "float64"])
#: Bounds for sums over many steps, whose terms sometimes almost cancel.
BOUNDS = {"float32": 1e-5, "float64": 1e-12}
CASE = RNNCase("lstm", 3, 2, True, False, 0, 0.0, True, 4, 2, 5, seed=1)


def in_double(arrays: Any) -> list[np.ndarray]:
    return [a.astype("float64") if a.dtype.kind == "f" else a for a in arrays]


def restride_all(rng: np.random.Generator, arrays: Any) -> list[np.ndarray]:
    return [
        restrided(rng, a) if a.dtype.kind == "f" else a[::-1].copy()[::-1] if a.ndim else a
        for a in arrays
    ]


def gradients_of_outputs(case: RNNCase, results: list[np.ndarray], dtype: str) -> list[np.ndarray]:
    """Draw gradients with respect to the outputs, which are all results but the reserve."""
    rng = np.random.default_rng([case.seed, 1])
    return [rng.standard_normal(r.shape).astype(dtype) for r in results[:-1]]


def check(case: RNNCase, dtype: str, operands: list[np.ndarray] | None = None) -> None:
    """Compare both passes, including the reserve; operands may have any memory order."""
    rng = np.random.default_rng(case.seed)
    operands = case.operands(dtype) if operands is None else operands
    results = run_op(OneDnnRNNForward(**case.network), *restride_all(rng, operands))
    expected = run_op(case.forward, *in_double(operands))
    for result, reference in zip(results, expected, strict=True):
        assert_close(result, reference, bound=BOUNDS[dtype], allow_zero=True)
    without = OneDnnRNNForward(**case.network, keeps_reserve=False)
    for result, again in zip(run_op(without, *operands), results[:-1], strict=True):
        np.testing.assert_allclose(again, result, rtol=1e-6, atol=1e-6)
    tops = gradients_of_outputs(case, results, dtype)
    operands = [*operands, results[0], results[-1], *tops]
    gradients = run_op(OneDnnRNNBackward(**case.network), *restride_all(rng, operands))
    expected = run_op(case.backward, *in_double(operands))
    for gradient, reference in zip(gradients, expected, strict=True):
        assert_close(gradient, reference, bound=BOUNDS[dtype], allow_zero=True)
    without_x = OneDnnRNNBackward(**case.network, by_x=False)
    for gradient, again in zip(gradients, run_op(without_x, *operands), strict=False):
        np.testing.assert_array_equal(again, gradient)


#: Number of random changes of the operands; a single one may leave a scalar as it is by chance.
CHANGES = 4


def is_determined(case: RNNCase, dtype: str) -> bool:
    """Return whether the operands determine outputs and gradients to a fifth of the bound.

    They do not if terms of about 1 leave a small number. Then half of an operand's last digit
    changes it by as much as the bound allows, and no computation in that dtype can meet the bound.
    """
    rng = np.random.default_rng(case.seed)

    def moved(arrays: list[np.ndarray]) -> list[np.ndarray]:
        return [
            a * (1 + UNIT[dtype] * rng.choice([-1, 1], a.shape)) if a.dtype.kind == "f" else a
            for a in arrays
        ]

    def both_passes(operands: list[np.ndarray], tops: list[np.ndarray]) -> list[np.ndarray]:
        results = run_op(case.forward, *operands)
        return results + run_op(case.backward, *operands, results[0], results[-1], *tops)

    operands = in_double(case.operands(dtype))
    tops = in_double(gradients_of_outputs(case, run_op(case.forward, *operands), dtype))
    found = both_passes(operands, tops)
    bound = 0.2 * BOUNDS[dtype]
    return all(
        np.linalg.norm(other - value) <= bound * np.linalg.norm(value)
        for _ in range(CHANGES)
        for value, other in zip(found, both_passes(moved(operands), moved(tops)), strict=True)
    )


@DTYPES
@fuzz(max_examples=150, case=rnn_cases(max_hidden=20, max_steps=11, max_batch=6))
def test_random(dtype, case):
    assume(is_determined(case, dtype))
    check(case, dtype)


def test_what_operands_determine():
    """The gradient with respect to the only input is a sum of 48 terms that leaves 0.02."""
    case = RNNCase("gru", 16, 1, False, False, 0, 0.0, False, 1, 1, 1, seed=0)
    assert not is_determined(case, "float32")
    assert is_determined(case, "float64")
    assert is_determined(replace(case, seed=1), "float32")


@pytest.mark.parametrize("mode", ["lstm", "gru", "rnn_tanh", "rnn_relu"])
@pytest.mark.parametrize("has_lengths", [False, True])
def test_sizes_for_several_threads(mode, has_lengths):
    bidirectional = mode in ("lstm", "rnn_tanh")
    case = RNNCase(mode, 66, 2, bidirectional, False, 0, 0.3, has_lengths, 8, 35, 65, seed=3)
    operands = case.operands("float32")
    operands[0] *= 0.3
    check(case, "float32", operands)
    if mode == "lstm":
        case = replace(case, proj_size=33)
        operands = case.operands("float32")
        operands[0] *= 0.3
        check(case, "float32", operands)


@pytest.mark.parametrize(
    "case",
    [
        RNNCase("lstm", 512, 1, True, False, 0, 0.0, False, 17, 16, 40, seed=3),
        RNNCase("gru", 512, 2, False, False, 0, 0.0, False, 9, 30, 300, seed=4),
        RNNCase("lstm", 512, 1, False, False, 300, 0.0, False, 16, 8, 20, seed=5),
        RNNCase("rnn_tanh", 768, 1, False, False, 0, 0.0, False, 20, 15, 768, seed=6),
        RNNCase("lstm", 512, 1, True, False, 0, 0.0, True, 9, 9, 40, seed=7),
    ],
    ids=lambda case: f"{case.rnn_mode}{case.proj_size or ''}{'ends' if case.has_lengths else ''}",
)
def test_matrices_that_are_laid_out_for_all_steps(case):
    """Large networks without lengths, with products of all steps that oneDNN prepares."""
    operands = case.operands("float32")
    operands[0] *= 2 * case.hidden_size**-0.5
    check(case, "float32", operands)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_small_integers_are_exact(bidirectional):
    case = RNNCase("rnn_relu", 5, 2, bidirectional, False, 0, 0.0, True, 3, 4, 6, seed=4)
    rng = np.random.default_rng(4)
    operands = [small_integers(rng, a.shape, "float32") for a in case.operands()[:-1]]
    operands.append(np.array([3, 1, 2, 3]))
    *results, reserve = run_op(OneDnnRNNForward(**case.network), *operands)
    for result, reference in zip(results, run_op(case.forward, *in_double(operands)), strict=False):
        np.testing.assert_array_equal(result, reference)
    operands += [results[0], reserve, *(small_integers(rng, r.shape, "float32") for r in results)]
    gradients = run_op(OneDnnRNNBackward(**case.network), *operands)
    expected = run_op(case.backward, *in_double(operands))
    for gradient, reference in zip(gradients, expected, strict=True):
        assert np.abs(reference).max() < 2**24
        np.testing.assert_array_equal(gradient, reference)


@pytest.mark.parametrize("mode", ["rnn_tanh", "lstm"])
def test_functions_everywhere(mode):
    """Single units: tanh of all sizes, and the gates of an LSTM, with tanh of about 1."""
    values = np.concatenate([np.logspace(-30, 4, 999), [0, 0.62499, 0.625, 9, 44, 88, 89, 1e38]])
    x = np.concatenate([values, -values]).astype("float32")[None, :, None]
    case = RNNCase(mode, 1, 1, False, False, 0, 0.0, False, 1, x.shape[1], 1, seed=0)
    w = np.zeros(case.operands()[0].size, "float32")
    if mode == "lstm":  # the input is that of the gates i, f and o; c is new each time
        w[[0, 1, 3]] = 1
        w[-2] = 0.5
        w[10] = 0.75
    else:
        w[0] = 1
    states = [np.zeros(a.shape, "float32") for a in case.operands()[2:]]
    y, *_ = run_op(OneDnnRNNForward(**case.network), w, x, *states)
    expected, *_ = run_op(case.forward, *in_double([w, x, *states]))
    np.testing.assert_allclose(y, expected, rtol=2e-6, atol=1e-15 if mode == "lstm" else 1e-36)


def test_nan_stays_in_its_sequence():
    for mode in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
        case = RNNCase(mode, 20, 1, False, False, 0, 0.0, False, 3, 2, 4, seed=5)
        operands = case.operands("float32")
        operands[1][1, 0] = np.nan
        y = run_op(OneDnnRNNForward(**case.network), *operands)[0]
        assert np.isnan(y[1:, 0]).all()
        assert np.isfinite(y[0]).all()
        assert np.isfinite(y[:, 1]).all()


def test_steps_after_the_end_have_no_influence():
    case = RNNCase("lstm", 6, 2, True, False, 0, 0.0, True, 5, 3, 4, seed=6)
    operands = case.operands("float32")
    operands[-1] = np.array([2, 5, 1])
    spoiled = [a.copy() for a in operands]
    for b, length in enumerate(operands[-1]):
        spoiled[1][length:, b] = np.nan
    both = []
    for given in (operands, spoiled):
        *results, reserve = run_op(OneDnnRNNForward(**case.network), *given)
        tops = [r.copy() for r in results]
        if given is spoiled:
            for b, length in enumerate(operands[-1]):
                tops[0][length:, b] = np.nan
        both.append(
            [
                *results,
                *run_op(OneDnnRNNBackward(**case.network), *given, results[0], reserve, *tops),
            ]
        )
    for first, second in zip(*both, strict=True):
        np.testing.assert_array_equal(first, second)


@DTYPES
@pytest.mark.parametrize("empty", ["steps", "batch", "input_size"])
@pytest.mark.parametrize("mode", ["lstm", "gru", "rnn_tanh"])
def test_empty(mode, empty, dtype):
    case = replace(CASE, rnn_mode=mode, has_lengths=False, **{empty: 0})
    check(case, dtype)


# -- in graphs ---------------------------------------------------------------------------


def ops_of(fn: Any) -> dict[str, Any]:
    return {type(node.op).__name__: node.op for node in fn.maker.fgraph.apply_nodes}


def graph_of(dtype: str = "float32") -> tuple[list[Any], list[Any], list[Any]]:
    """Operands, results and gradients of a network that uses every option."""
    block = RNNBlock(dtype, 4, 2, "lstm", "linear", "bidirectional", proj_size=3, dropout=0.3)
    w = pt.vector("w", dtype=dtype)
    x, hx, cx = (pt.tensor3(name, dtype=dtype) for name in ("x", "hx", "cx"))
    lengths = pt.lvector("lengths")
    results = block.apply(w, x, hx, cx, lengths=lengths, seed=7)
    loss = sum((r.astype("float64") ** 2).sum() for r in results)
    return [w, x, hx, cx, lengths], results, pytensor.grad(loss, [w, x, hx, cx])


def arrays_of(dtype: str, steps: int = 4, seed: int = 0) -> list[np.ndarray]:
    case = replace(CASE, hidden_size=4, proj_size=3, steps=steps, seed=seed)
    return case.operands(dtype)


@pytest.mark.parametrize(
    "mode", ["CVM", pytest.param(None, id="default", marks=pytest.mark.slow), "DNN"]
)
def test_in_graphs(mode):
    inputs, results, gradients = graph_of()
    fn = pytensor.function(inputs, [*results, *gradients], mode=mode)
    assert {"OneDnnRNNForward", "OneDnnRNNBackward"} <= ops_of(fn).keys()
    assert not {"RNNForward", "RNNBackward"} & ops_of(fn).keys()
    plain = pytensor.function(inputs, [*results, *gradients], mode=PERFORM_MODE)
    for steps in (1, 4, 9):
        arrays = arrays_of("float32", steps, steps)
        for result, expected in zip(fn(*arrays), plain(*arrays), strict=True):
            assert_close(result, expected, bound=1e-5, allow_zero=True)
    if mode == "DNN":
        return
    # The same function rejects wrong shapes.
    w, x, hx, cx, lengths = arrays_of("float32")
    for words, bad in {
        r"w has shape \(\d+\), expected \(\d+\)": (w[1:], x, hx, cx, lengths),
        r"hx has shape \(3, 2, 3\), expected \(4, 2, 3\)": (w, x, hx[1:], cx, lengths),
        r"cx has shape \(4, 2, 3\), expected \(4, 2, 4\)": (w, x, hx, cx[:, :, 1:], lengths),
        r"lengths has shape \(3\), expected \(2\)": (w, x, hx, cx, np.array([1, 1, 1])),
        "lengths have to be between 1 and the number of steps, 4, got 0": (
            *(w, x, hx, cx),
            np.array([0, 1]),
        ),
        "number of steps, 4, got 5": (w, x, hx, cx, np.array([5, 1])),
    }.items():
        with pytest.raises(DnnValueError, match=words):
            fn(*bad)


def test_unused_results_are_not_computed():
    inputs, (y, *_), (dw, *_) = graph_of()
    fn = pytensor.function(inputs, y, mode="CVM", on_unused_input="ignore")
    assert not ops_of(fn)["OneDnnRNNForward"].keeps_reserve
    fn = pytensor.function(inputs, [y, dw], mode="CVM")
    assert ops_of(fn)["OneDnnRNNForward"].keeps_reserve
    assert not ops_of(fn)["OneDnnRNNBackward"].by_x
    plain = pytensor.function(inputs, [y, dw], mode=PERFORM_MODE)
    arrays = arrays_of("float32")
    for result, expected in zip(fn(*arrays), plain(*arrays), strict=True):
        assert_close(result, expected, allow_zero=True)


def test_float16_is_computed_in_float32():
    inputs, results, gradients = graph_of("float16")
    fn = pytensor.function(inputs, [*results, *gradients], mode="CVM")
    assert {"OneDnnRNNForward", "OneDnnRNNBackward"} <= ops_of(fn).keys()
    plain = pytensor.function(inputs, [*results, *gradients], mode=PERFORM_MODE)
    arrays = arrays_of("float16")
    for result, expected in zip(fn(*arrays), plain(*arrays), strict=True):
        assert result.dtype == "float16"
        assert_close(result, expected, bound=4e-3, allow_zero=True)


def test_excluded():
    inputs, results, gradients = graph_of()
    mode = pytensor.compile.get_mode("CVM").excluding("onednn")
    fn = pytensor.function(inputs, [*results, *gradients], mode=mode)
    assert {"RNNForward", "RNNBackward"} <= ops_of(fn).keys()


@DTYPES
@fuzz(max_examples=20, case=rnn_cases(), fraction=st.floats(0, 0.99))
def test_refused_at_the_call(dtype, case, fraction):
    """Each operand in turn has a wrong shape, which is checked before anything is read."""
    operands = case.operands(dtype)
    op = OneDnnRNNForward(**case.network)
    node = op.make_node(*(pt.tensor(dtype=a.dtype, shape=(None,) * a.ndim) for a in operands))
    for index, array in enumerate(operands):
        if index == 1 or array.ndim == 0:
            continue
        bad = list(operands)
        bad[index] = np.repeat(array, 2, axis=int(fraction * array.ndim))
        with pytest.raises(DnnError, match=f"OneDnnRNNForward: {op.operands[index]} has shape"):
            op.perform(node, bad, [[None] for _ in node.outputs])


def test_wrong_gradients_are_refused():
    *operands, lengths = CASE.operands("float32")
    operands.append(lengths)
    *results, reserve = run_op(OneDnnRNNForward(**CASE.network), *operands)
    op = OneDnnRNNBackward(**CASE.network)
    good = [*operands, results[0], reserve, *results]
    node = op.make_node(*(pt.tensor(dtype=a.dtype, shape=(None,) * a.ndim) for a in good))
    for index, name in enumerate(op.all_operands):
        if name in ("y", "reserve", "gy", "ghy", "gcy"):
            bad = list(good)
            bad[index] = bad[index][1:]
            with pytest.raises(DnnValueError, match=f"OneDnnRNNBackward: {name} has shape"):
                op.perform(node, bad, [[None] for _ in node.outputs])
    half = [a.astype("float16") if a.dtype.kind == "f" else a for a in operands]
    with pytest.raises(DnnTypeError, match="x is float16, expected float32 or float64"):
        run_op(OneDnnRNNForward(**CASE.network), *half)
    skips = OneDnnRNNForward("gru", 3, 1, skip_input=True)
    tensors = [pt.fvector(), pt.ftensor3(), pt.ftensor3()]
    bad = [np.zeros(45, "float32"), np.zeros((2, 2, 4), "float32"), np.zeros((1, 2, 3), "float32")]
    node = skips.make_node(*tensors)
    with pytest.raises(DnnValueError, match=r"with input_mode skip, .* 3, got 4"):
        skips.perform(node, bad, [[None] for _ in node.outputs])


@DTYPES
def test_relu_keeps_nans(dtype):
    """An output of NaN has a gradient of NaN, in the library and in NumPy."""
    case = RNNCase("rnn_relu", 2, 1, False, False, 0, 0.0, False, 3, 2, 4, seed=3)
    operands = case.operands(dtype)
    operands[1][0, 0, 0] = np.nan
    found = []
    for forward, backward in (
        (OneDnnRNNForward(**case.network), OneDnnRNNBackward(**case.network)),
        (case.forward, case.backward),
    ):
        results = run_op(forward, *operands)
        tops = [np.ones_like(r) for r in results[:-1]]
        found.append(run_op(backward, *operands, results[0], results[-1], *tops))
        assert np.isnan(results[0][:, 0]).all()
        assert np.isfinite(results[0][:, 1]).all()
    for ours, reference in zip(*found, strict=True):
        np.testing.assert_array_equal(np.isnan(ours), np.isnan(reference))
    assert any(np.isnan(gradient).any() for gradient in found[0])

"""The CTC loss in C++ against the abstract Op's NumPy in float64, and in every linker."""

from __future__ import annotations

import dataclasses
import warnings

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import strategies as st
from pytensor.graph.replace import vectorize_graph

import dnnops.runtime.op
from dnnops.cpu.ctc import OneDnnCTC
from dnnops.errors import DnnValueError
from dnnops.nnet import CTC, ctc
from tests.cpu.conv.test_conv import restrided
from tests.linkers import LINKERS
from tests.needs import require
from tests.nnet.loss.ctc_cases import Case, cases, torch_loss
from tests.nnet.loss.test_ctc import BAD_VALUES, BATCH, FOUR, LABELS, X, run
from tests.oracle import assert_close, fuzz

DTYPES = pytest.mark.parametrize("dtype", ["float32", "float64"])


@pytest.fixture(autouse=True)
def _poisoned_outputs(monkeypatch):
    """Fill the arrays that `perform` allocates with NaN."""
    access = dnnops.runtime.op.operand_access

    def poisoned(type_):
        return dataclasses.replace(
            access(type_), empty=lambda shape, dtype, memory_format: np.full(shape, np.nan, dtype)
        )

    monkeypatch.setattr(dnnops.runtime.op, "operand_access", poisoned)


def check(arrays, dtype, given=False):
    operands = arrays[: 4 if given else 3]
    rng = np.random.default_rng(1)
    strided = [restrided(rng, a) if a.size else a for a in operands]
    results = run(OneDnnCTC(True, given), *strided)
    expected = run(CTC(True, given), operands[0].astype("float64"), *operands[1:])
    # Near the logarithm's zero, and if there is only one path, errors are those of numbers near 1.
    bound = {"float32": 2e-7, "float64": 1e-12}[dtype]
    costs, gradients = expected
    assert results[0].dtype == results[1].dtype == dtype
    np.testing.assert_allclose(results[0], costs, rtol=bound, atol=bound)
    # The oracle's logarithms have only as many digits as the largest of them leaves.
    bound = max(bound, 1e-14 * costs.max(initial=0))
    np.testing.assert_allclose(results[1], gradients, rtol=0, atol=bound)
    assert np.linalg.norm(results[1] - gradients) <= bound * max(1, np.linalg.norm(gradients))
    (alone,) = run(OneDnnCTC(False, given), *strided)
    np.testing.assert_array_equal(alone, results[0])


@DTYPES
@fuzz(
    150,
    case=cases(
        max_steps=40, max_batch=6, max_classes=20, max_columns=15, scales=(0, 0.1, 1.0, 30.0)
    ),
    given=st.booleans(),
    integer=st.sampled_from(["int32", "int64"]),
)
def test_random(dtype, case, given, integer):
    check(case.arrays(dtype, integer), dtype, given)


@DTYPES
@fuzz(20, case=cases(min_steps=60, max_steps=120, max_classes=9, max_columns=30, scales=(300.0,)))
def test_probabilities_that_no_float_holds(dtype, case):
    """Paths have probabilities around 2 to the power of minus thousands."""
    check(case.arrays(dtype), dtype)


@DTYPES
def test_a_confident_and_wrong_network(dtype):
    """Paths that were likely from the start turn out to be impossible at the end."""
    x = np.zeros((60, 2, 4), dtype)
    x[:, :, 0] = 80
    x[-1, 0, 0], x[-1, 0, 3] = 0, 3000
    labels = np.array([[1, 2, 2, 1, 3], [1, 2, 2, 1, 2]], "int32")
    check((x, labels, np.array([60, 60], "int32")), dtype)


@DTYPES
def test_sizes_for_several_threads(dtype):
    for case in (Case(90, 33, 40, 20, 1), Case(7, 300, 5, 3, 2), Case(300, 3, 3, 100, 3)):
        check(case.arrays(dtype), dtype)


def test_more_memory_than_is_kept():
    rng, steps = np.random.default_rng(4), 3000
    activations = rng.standard_normal((steps, 2, 4)).astype("float32")
    labels = rng.integers(1, 4, (2, steps // 4))
    lengths = np.array([steps, steps - 7])
    results = run(OneDnnCTC(), activations, labels, lengths)
    require("torch")
    import torch

    label_lengths = np.array([labels.shape[1]] * 2)
    expected = torch_loss(torch, activations.astype("float64"), labels, lengths, label_lengths)
    assert_close(results[0], expected[0], bound=1e-7)
    assert_close(results[1], expected[1], bound=1e-7)


@DTYPES
def test_gradient_where_the_label_is_all_but_certain(dtype):
    """A difference of almost equal numbers, of which float32 would keep no digit."""
    x = np.zeros((6, 1, 3), dtype)
    for t, symbol in enumerate([1, 1, 0, 1, 2, 0]):
        x[t, 0, symbol] = 18
    labels, lengths = np.array([[1, 1, 2]]), np.array([6])
    _, gradients = run(OneDnnCTC(), x, labels, lengths)
    _, expected = run(CTC(), x.astype("float64"), labels, lengths)
    assert np.abs(expected).max() < 1e-7
    np.testing.assert_allclose(gradients, expected, atol=1e-9, rtol=0)


@DTYPES
def test_infinite_activations(dtype):
    activations, labels, lengths, _ = Case(5, 5, 3, 0, 2).arrays(dtype)
    labels, lengths[:] = np.array([[1, 2]] * 5), [5, 5, 5, 5, 4]
    activations[1, 0, 1] = -np.inf
    activations[:, 1, 2] = -np.inf
    activations[2, 2, 0] = np.nan
    activations[2, 3, 0] = np.inf
    activations[0, 4, :] = -np.inf
    results = run(OneDnnCTC(), activations, labels, lengths)
    expected = run(CTC(), activations.astype("float64"), labels, lengths)
    for result, reference in zip(results, expected, strict=True):
        np.testing.assert_allclose(result, reference, atol=1e-6)
    assert np.isnan(results[1][:4, 4]).all()
    assert not results[1][4, 4].any()
    np.testing.assert_array_equal(
        run(OneDnnCTC(False), activations, labels, lengths)[0], results[0]
    )


def test_no_steps_and_no_sequences():
    empty = np.zeros((0, 2, 3)), np.zeros((2, 0), "int32"), np.zeros(2, "int32")
    costs, gradients = run(OneDnnCTC(), *empty)
    np.testing.assert_array_equal(costs, [0, 0])
    assert gradients.shape == (0, 2, 3)
    none = np.zeros((4, 0, 3)), np.zeros((0, 2), "int32"), np.zeros(0, "int32")
    assert [result.shape for result in run(OneDnnCTC(), *none)] == [(0,), (4, 0, 3)]


# -- in graphs ---------------------------------------------------------------------------


def ops_of(fn):
    return [node.op for node in fn.maker.fgraph.apply_nodes if isinstance(node.op, CTC)]


def compile_quietly(inputs, outputs, mode):
    """Make PyTensor's warnings about object mode errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        return pytensor.function(inputs, outputs, mode=mode)


@LINKERS
def test_costs_and_gradients(mode):
    inputs = [pt.ftensor3(), pt.imatrix(), pt.lvector(), pt.fvector()]
    *operands, weights = inputs
    costs = ctc(*operands)
    gradient = pytensor.grad((costs * weights).sum(), operands[0])
    fn = compile_quietly(inputs, [costs, gradient], mode)
    assert ops_of(fn) == [OneDnnCTC()]
    for seed in range(5):
        case = Case(9 + seed, 3, 4, 3, seed)
        activations, labels, lengths, _ = case.arrays("float32")
        values = np.random.default_rng(seed).standard_normal(3).astype("float32")
        results = fn(activations, labels, lengths.astype("int64"), values)
        expected = run(CTC(), activations.astype("float64"), labels, lengths)
        assert_close(results[0], expected[0])
        assert_close(results[1], expected[1] * values[:, None], allow_zero=True)


@LINKERS
def test_costs_alone_with_label_lengths(mode):
    inputs = [pt.dtensor3(), pt.lmatrix(), pt.ivector(), pt.ivector()]
    fn = compile_quietly(inputs, ctc(*inputs), mode)
    assert ops_of(fn) == [OneDnnCTC(False, True)]
    activations, labels, *lengths = BATCH.arrays()
    assert_close(
        fn(activations, labels.astype("int64"), *lengths), run(CTC(), *BATCH.arrays()[:3])[0]
    )


def test_float16():
    activations, labels, lengths, _ = BATCH.arrays("float16")
    x = pt.tensor3(dtype="float16")
    costs = ctc(x, labels, lengths)
    fn = pytensor.function([x], [costs, pytensor.grad(costs.sum(), x)], mode="CVM")
    assert ops_of(fn) == [OneDnnCTC()]
    expected = run(CTC(), activations.astype("float64"), labels, lengths)
    for result, reference, dtype in zip(
        fn(activations), expected, ["float32", "float16"], strict=True
    ):
        assert result.dtype == dtype
        assert_close(result, reference)


def test_gradient_of_the_backend_op():
    """A graph that contains the C++ Op can be differentiated."""
    activations, labels, lengths, _ = BATCH.arrays()
    x = pt.dtensor3()
    for op in (OneDnnCTC(), OneDnnCTC(False)):
        costs = op.make_node(x, labels, lengths).outputs[0]
        fn = pytensor.function([x], pytensor.grad(costs.sum(), x), mode="CVM")
        assert ops_of(fn) == [OneDnnCTC()]
        assert_close(fn(activations), run(CTC(), activations, labels, lengths)[1])


def test_mode_dnn_and_vectorize_graph():
    inner = [pt.ftensor3(), pt.imatrix(), pt.ivector()]
    outer = [pt.ftensor4(), pt.imatrix(), pt.ivector()]
    costs = vectorize_graph(ctc(*inner), dict(zip(inner, outer, strict=True)))
    fn = pytensor.function(outer, costs, mode="DNN")
    assert ops_of(fn) == [OneDnnCTC(False)]
    activations, labels, lengths, _ = BATCH.arrays("float32")
    both = np.stack([activations, 2 * activations])
    expected = [run(CTC(), x.astype("float64"), labels, lengths)[0] for x in both]
    assert_close(fn(both, labels, lengths), np.array(expected))


def test_excluded():
    mode = pytensor.compile.get_mode("CVM").excluding("onednn")
    inputs = [pt.ftensor3(), pt.imatrix(), pt.ivector()]
    assert ops_of(pytensor.function(inputs, ctc(*inputs), mode=mode)) == [CTC(False)]


# -- what cannot be computed -------------------------------------------------------------


@LINKERS
def test_values_that_do_not_fit(mode):
    functions = {}
    for count in (3, 4):
        inputs = [pt.dtensor3(), pt.lmatrix(), pt.lvector(), pt.lvector()][:count]
        functions[count] = pytensor.function(inputs, ctc(*inputs), mode=mode)
        assert ops_of(functions[count]) == [OneDnnCTC(False, count == 4)]
    for arrays, message in BAD_VALUES.values():
        with pytest.raises(DnnValueError, match=f"OneDnnCTC: .*{message}"):
            functions[len(arrays)](*arrays)
    for arrays, message in [
        ((X, LABELS[:1], FOUR), "labels has 1 entries, expected 2, one for each sequence"),
        ((X, LABELS, FOUR[:1]), "input_lengths has 1 entries, expected 2"),
        ((X, LABELS, FOUR, FOUR[:1]), "label_lengths has 1 entries, expected 2"),
    ]:
        with pytest.raises(DnnValueError, match=message):
            functions[len(arrays)](*arrays)
    np.testing.assert_allclose(functions[3](X, LABELS, FOUR), run(CTC(), X, LABELS, FOUR)[0])

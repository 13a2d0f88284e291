"""Attention on a GPU: against the float64 oracle."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from dnnops.errors import DnnNotSupportedError
from dnnops.gpu.attention import GpuDnnAttention, GpuDnnAttentionGrad
from dnnops.gpuarray.transfer import as_gpuarray_variable, cast
from dnnops.gpuarray.type import GpuArrayType
from dnnops.nnet.attention.functions import scaled_dot_product_attention
from dnnops.nnet.attention.op import Attention, AttentionGrad
from dnnops.runtime.replay import replay_failure, replays
from tests.gpu.attention.attention_on_gpu import (
    OFFSETS,
    Data,
    Form,
    apply_all,
    errors,
    random_form,
    run_on_gpu,
    run_without_stats,
)
from tests.gpu.device import host, on_gpu, poison, rounded
from tests.oracle import PERFORM_MODE, RELATIVE_ERROR, SEED, repeat_command

pytestmark = pytest.mark.gpu

GPU_MODE = pytensor.compile.get_mode("CVM").including("gpu")

#: cuDNN takes half a second to build a plan, so many tests share these forms.
TESTS, FORMS = 25, 8


def assert_right(data: Data, results: list, words: str = "") -> None:
    found = errors(data, results)
    wrong = {name: error for name, error in found.items() if not error <= 1}
    if wrong:
        parts = {}
        for name, result, wanted in zip(found, results, data.expected(), strict=True):
            got = host(result)
            parts[name] = (
                f"strides {result.strides}, NaN {int(np.isnan(got).sum())}, zeros"
                f" {int((got == 0).sum())} of {got.size}, norm {np.linalg.norm(got):.4g} instead of"
                f" {np.linalg.norm(wanted):.4g}"
            )
        lengths = {k: v.tolist() for k, v in data.given.items() if k.endswith("lengths")}
        pytest.fail(
            f"{words}{data.form}, seed {data.seed}, {lengths}: errors in parts of what is allowed"
            f" {found}; {parts}; repeat with {repeat_command()}"
        )


def assert_right_without_stats(data: Data, results: list) -> None:
    """Without statistics, the output must be as good; `results` are those with them."""
    out = run_without_stats(data)
    assert (out.shape, out.dtype) == (results[0].shape, results[0].dtype)
    differing = int((host(out) != host(results[0])).sum())
    words = (
        f"the Op without statistics, {differing} of {out.size} numbers differ from the other's: "
    )
    assert_right(data, [out, *results[1:]], words)


@pytest.mark.parametrize("number", range(TESTS))
def test_random(number):
    rng = np.random.default_rng([SEED, number])
    for i in range(FORMS):
        data = Data(random_form(rng, offsets=OFFSETS), int(rng.integers(2**32)))
        poison()
        results = run_on_gpu(data)
        assert_right(data, results)
        if i % 4 == 0:
            poison()
            assert_right_without_stats(data, results)


@pytest.mark.parametrize(
    "form",
    [
        Form(lengths=(512, 512), heads=(8, 8), is_causal=True),
        Form("bfloat16", lengths=(333, 700), heads=(8, 2), depths=(128, 128)),
        Form(lengths=(1, 1), depths=(16, 16)),
        Form(lengths=(1, 1), key_lengths=True, query_lengths=True),
        Form(lengths=(70, 60), mask="bool", mask_ones=(1, 2, 3), is_causal=True, key_lengths=True),
    ],
    ids=str,
)
def test_forms(form):
    for seed in range(3):
        data = Data(form, seed)
        poison()
        results = run_on_gpu(data)
        assert_right(data, results)
        poison()
        assert_right_without_stats(data, results)


def test_queries_that_see_nothing():
    """Queries without keys, by a length of zero or a mask, yield zeros; gradients have no NaN."""
    data = Data(Form(batch=3, mask="float", query_lengths=True, key_lengths=True), 0)
    data.given["key_lengths"][:] = (0, 40, 64)
    data.given["query_lengths"][:] = (64, 0, 33)
    data.given["mask"][2, :, 5] = -np.inf
    results = run_on_gpu(data)
    assert_right(data, results)
    out, stats = (host(x) for x in results[:2])
    poison()
    for result in (out, host(run_without_stats(data))):
        assert not result[:2].any()
        assert not result[2, :, 5].any()
    assert np.isneginf(stats[2, :, 5]).all()


@pytest.mark.parametrize("shape", [(0, 2, 3), (2, 2, 0), (2, 0, 3)])
def test_empty(shape):
    import cupy

    n, heads, rows = shape
    query = cupy.ones((n, heads, rows, 8), "float16")
    key = cupy.ones((n, max(heads, 1) if heads else 0, 5, 8), "float16")
    if heads:
        out, stats = apply_all(GpuDnnAttention(), query, key, key)
        assert out.shape == query.shape
        assert stats.shape == shape
        (alone,) = apply_all(GpuDnnAttention(with_stats=False), query, key, key)
        assert alone.shape == query.shape
        grads = apply_all(GpuDnnAttentionGrad(), query, key, key, out, stats, query)
        assert not any(bool(g.any()) for g in grads)
    # Without keys the output is zeros, and there are no gradients.
    query, none = cupy.ones((1, 2, 3, 8), "float16"), cupy.ones((1, 2, 0, 8), "float16")
    out, stats = apply_all(GpuDnnAttention(), query, none, none)
    assert not out.any()
    assert bool((stats == -np.inf).all())
    poison()
    (alone,) = apply_all(GpuDnnAttention(with_stats=False), query, none, none)
    assert not alone.any()
    dquery, *_ = apply_all(GpuDnnAttentionGrad(), query, none, none, out, stats, query)
    assert not dquery.any()


def test_deterministic():
    data = Data(Form(lengths=(256, 256), heads=(8, 4), is_deterministic=True), 1)
    first = run_on_gpu(data)
    assert_right(data, first)
    for _ in range(5):
        for a, b in zip(first, run_on_gpu(data), strict=True):
            assert bool((a == b).all())


class _Kept(Attention):
    """Attention with dropout that keeps given weights."""

    kept: np.ndarray

    def _kept(self, given, x):
        return np.where(self.kept, x / (1 - self.dropout), 0)


class _KeptGrad(AttentionGrad):
    _kept = _Kept._kept


@pytest.mark.parametrize("lengths", [False, True])
@pytest.mark.parametrize("p", [0.1, 0.5])
def test_dropout(p, lengths):
    """With the identity as values, the output shows which weights are kept."""
    import cupy

    form = Form(heads=(4, 2), lengths=(128, 64), is_causal=True, key_lengths=lengths)
    data = Data(form, 0)
    query, key, value = (data.given[o] for o in ("query", "key", "value"))
    rest = [data.given["key_lengths"]] if lengths else []
    unit = np.broadcast_to(np.eye(64), value.shape)
    op = GpuDnnAttention(None, True, form.optional, p)

    def run(values: np.ndarray, *state: int) -> list:
        arrays = [on_gpu(a, "float16") for a in (query, key, values)]
        return apply_all(op, *arrays, *map(cupy.asarray, rest), np.array(state))

    shown, stats = run(unit, 123, 0)
    plain = Attention(None, True, form.optional)
    weights, wide_stats = _numpy(plain, query, key, unit, *rest)
    kept = host(shown) > 0
    counts = weights > 1e-4
    part = kept[counts].mean()
    assert abs(part - (1 - p)) < 5 * np.sqrt(p * (1 - p) / counts.sum()), (part, counts.sum())
    # Statistics cover all weights. The same state keeps the same weights, another state others.
    finite = np.isfinite(wide_stats)
    np.testing.assert_allclose(host(stats)[finite], wide_stats[finite], atol=1e-3)
    assert bool((run(unit, 123, 0)[0] == shown).all())
    arrays = [on_gpu(a, "float16") for a in (query, key, unit)]
    state = np.array([123, 0])
    (alone,) = apply_all(op.with_optional_result(False), *arrays, *map(cupy.asarray, rest), state)
    # The kept weights, except those that another summation order makes too small for float16.
    assert bool(((alone > 0) == (shown > 0))[cupy.asarray(weights > 1e-4)].all())
    error = np.linalg.norm(host(alone) - host(shown)) / np.linalg.norm(host(shown))
    assert error <= 2e-3, f"without statistics: {error}, p {p}"
    for other in ((124, 0), (123, 1024)):
        assert ((host(run(unit, *other)[0]) > 0) != kept)[counts].mean() > p * (1 - p)
    oracle, grad = _Kept(None, True, form.optional, p), _KeptGrad(None, True, form.optional, p)
    oracle.kept = grad.kept = kept
    out, stats = run(value, 123, 0)
    state = np.array([123, 0])
    wanted = _numpy(oracle, query, key, value, *rest, state)
    found = [out]
    arrays = [on_gpu(a, "float16") for a in (query, key, value)]
    backward = GpuDnnAttentionGrad(None, True, form.optional, p)
    gout = on_gpu(data.gout, "float16")
    found += apply_all(backward, *arrays, *map(cupy.asarray, rest), state, out, stats, gout)
    references = [wanted[0], *_numpy(grad, query, key, value, *rest, state, *wanted, data.gout)]
    for name, got, reference in zip(("out", "dq", "dk", "dv"), found, references, strict=True):
        error = np.linalg.norm(host(got) - reference) / np.linalg.norm(reference)
        # Weights below float16's smallest number look as if they were dropped.
        assert error <= 5e-3, f"{name}: {error}, p {p}, part kept {part}"


def _numpy(op, *arrays) -> list[np.ndarray]:
    node = op.make_node(*arrays)
    storage: list[list] = [[None] for _ in node.outputs]
    op.perform(node, list(arrays), storage)
    return [value for (value,) in storage]


def test_too_deep():
    import cupy

    x = cupy.ones((1, 1, 4, 264), "float16")
    with pytest.raises(DnnNotSupportedError, match=r"depths of up to 256.*\n?.*264"):
        apply_all(GpuDnnAttention(), x, x, x)


def test_capture():
    """Work captured as a CUDA graph computes the same with operands that change in place."""
    import cupy

    form = Form(query_lengths=True, key_lengths=True, mask="bool", is_causal=True)
    data, other = Data(form, 0), Data(form, 1)
    operands = data.on_device()
    op = GpuDnnAttention(form.scale, form.is_causal, form.optional)
    apply_all(op, *operands)  # build plans and kernels outside of the capture
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        apply_all(op, *operands)
        stream.begin_capture()
        out, _ = apply_all(op, *operands)
        graph = stream.end_capture()
        for target, source in zip(operands, other.on_device(), strict=True):
            target[...] = source
        graph.launch(stream)
    stream.synchronize()
    wanted = other.expected()[0]
    assert np.linalg.norm(host(out) - wanted) <= 2e-3 * np.linalg.norm(wanted)


# -- in graphs ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "p"),
    [
        (Form("bfloat16", heads=(4, 2), lengths=(64, 140), is_causal=True), 0.0),
        (Form(lengths=(128, 128), key_lengths=True), 0.5),
        (Form(depths=(20, 20), lengths=(140, 140), mask="float", query_lengths=True), 0.0),
    ],
)
def test_replayed(form, p):
    """Repeated calls are launched as a CUDA graph, and compute with the current operands.

    With so many keys, cuDNN computes the gradients.
    """
    optional = (*form.optional, *(["state"] if p else []))
    op = GpuDnnAttention(form.scale, form.is_causal, optional, p)
    grad = GpuDnnAttentionGrad(form.scale, form.is_causal, optional, p)
    first = Data(form, 0)
    given = [*first.on_device(), on_gpu(first.gout, form.dtype)]
    variables = [GpuArrayType(a.dtype.name, (None,) * a.ndim)() for a in given]
    state = [pt.lvector()] if p else []
    node = op.make_node(*variables[:-1], *state)
    last = grad.make_node(*variables[:-1], *state, *node.outputs, variables[-1])
    results = [*node.outputs, *last.outputs]
    function = pytensor.function([*variables, *state], results, mode=GPU_MODE)
    before = replays()
    for seed in range(8):
        data = Data(form, seed)
        changed = [*data.on_device(), on_gpu(data.gout, form.dtype)]
        for target, source in zip(given, changed, strict=True):
            target[...] = source
        words = [np.array([seed // 2, 0])] if p else []
        found = [x.copy() for x in function(*given, *words)]
        wanted = apply_all(op, *changed[:-1], *words)
        wanted += apply_all(grad, *changed[:-1], *words, *wanted, changed[-1])
        for i, (got, expected) in enumerate(zip(found, wanted, strict=True)):
            # Only the gradient with respect to the query is summed in any order.
            if i < len(node.outputs):
                np.testing.assert_array_equal(host(got), host(expected), f"{form}, {i}, {seed}")
            else:
                error = np.linalg.norm(host(got) - host(expected)) / np.linalg.norm(host(expected))
                assert error <= 1e-3, f"{form}, result {i}, call {seed}: {error}"
    assert replays() - before >= 8, (
        f"{replays() - before} of 16 passes were replayed: {replay_failure()!r}"
    )


def compiled(dtype: str, bfloat16: bool = False, with_gradients: bool = True):
    """Compile a function of four device arrays and the keys' lengths: the output, and gradients."""
    on_device = "bfloat16" if bfloat16 else dtype
    query, key, value, gout = (GpuArrayType(on_device, (None,) * 4)() for _ in range(4))
    lengths = pt.lvector("lengths")
    out = scaled_dot_product_attention(
        query, key, value, is_causal=True, enable_gqa=True, key_lengths=lengths
    )
    known = {out: pt.as_tensor_variable(gout)}
    by = [query, key, value] if with_gradients else []
    grads = pytensor.grad(None, by, known_grads=known) if by else []
    results = [cast(as_gpuarray_variable(x, 0), dtype) for x in (out, *grads)]
    inputs = [query, key, value, gout, lengths]
    return pytensor.function(inputs, results, mode=GPU_MODE, on_unused_input="ignore")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_compiled_function(dtype):
    function = compiled("float32" if dtype == "bfloat16" else dtype, dtype == "bfloat16")
    names = [type(node.op).__name__ for node in function.maker.fgraph.apply_nodes]
    assert "HostFromGpu" not in names
    assert ("GpuDnnAttentionGrad" in names) == (dtype in ("float16", "bfloat16"))
    bound = RELATIVE_ERROR[dtype]
    for seed, (lengths, heads) in enumerate([((40, 70), (4, 2)), ((33, 33), (3, 3))]):
        form = Form("float16" if dtype != "bfloat16" else dtype, 2, heads, lengths, is_causal=True)
        data = Data(form, seed)
        counts = np.array([lengths[1] // 2, lengths[1]])
        data.given["key_lengths"] = counts
        object.__setattr__(form, "key_lengths", True)
        given = [on_gpu(data.given[o], dtype) for o in ("query", "key", "value")]
        found = function(*given, on_gpu(data.gout, dtype), counts)
        out, _, *grads = data.expected()
        for got, wanted in zip(found, (out, *grads), strict=True):
            error = np.linalg.norm(host(got) - wanted) / np.linalg.norm(wanted)
            assert error <= bound, f"{dtype}, {form}: error {error}, {got.shape}, {got.strides}"


def test_compiled_without_gradients():
    """The function uses the Op without statistics, which computes the same output."""
    import cupy

    function = compiled("float32", bfloat16=True, with_gradients=False)
    (op,) = (n.op for n in function.maker.fgraph.apply_nodes if isinstance(n.op, GpuDnnAttention))
    assert not op.with_stats
    for seed, (lengths, heads) in enumerate([((40, 70), (4, 2)), ((33, 33), (3, 3))] * 3):
        form = Form("bfloat16", 2, heads, lengths, is_causal=True, key_lengths=True)
        data = Data(form, seed)
        given = [on_gpu(data.given[o], "bfloat16") for o in ("query", "key", "value")]
        unused = cupy.empty((0,) * 4, given[0].dtype)
        poison()
        (found,) = function(*given, unused, data.given["key_lengths"])
        wanted = data.expected()[0]
        error = np.linalg.norm(host(found) - wanted) / np.linalg.norm(wanted)
        lengths_given = data.given["key_lengths"].tolist()
        assert error <= RELATIVE_ERROR["bfloat16"], f"{form}, lengths {lengths_given}: {error}"


def test_second_derivatives():
    query, key, value = (GpuArrayType("float16", (2, 2, 6, 8))() for _ in range(3))
    out, _ = GpuDnnAttention(None, True).make_node(query, key, value).outputs
    (gquery,) = pytensor.grad((pt.as_tensor_variable(out) ** 2).sum(), [query])
    ggkey = pytensor.grad((pt.as_tensor_variable(gquery) ** 2).sum(), key)
    function = pytensor.function([query, key, value], ggkey, mode=GPU_MODE)
    rng = np.random.default_rng(0)
    arrays = [rounded(rng.standard_normal((2, 2, 6, 8)), "float16") for _ in range(3)]
    wide = [pt.dtensor4() for _ in range(3)]
    dense = scaled_dot_product_attention(*wide, is_causal=True)
    gdense = pytensor.grad((dense**2).sum(), wide[0])
    gradient = pytensor.grad((gdense**2).sum(), wide[1])
    oracle = pytensor.function(wide, gradient, mode=PERFORM_MODE)
    found, wanted = host(function(*(on_gpu(a, "float16") for a in arrays))), oracle(*arrays)
    assert np.linalg.norm(found - wanted) <= 2e-2 * np.linalg.norm(wanted)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_mask_of_unknown_sizes(dtype, kind):
    """Any size of a mask may be 1, also where attention is written out."""
    rng = np.random.default_rng(0)
    sizes = (2, 3, 5, 7)
    given = [rng.standard_normal(s) for s in ((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 8))]
    inputs = [pt.tensor4(dtype=dtype) for _ in given]
    mask = pt.tensor4(dtype="bool" if kind == "bool" else dtype)
    out = scaled_dot_product_attention(*inputs, mask, enable_gqa=True)
    by = [*inputs, mask] if kind == "float" else inputs
    results = [out, *pytensor.grad((out**2).sum(), by)]
    function = pytensor.function([*inputs, mask], results, mode="CUDNN")
    reference = pytensor.function([*inputs, mask], results, mode=PERFORM_MODE)
    for ones in ((), (1,), (0, 1), (2,), (3,), (0, 1, 2, 3)):
        shape = [1 if axis in ones else size for axis, size in enumerate(sizes)]
        value = rng.random(shape) < 0.7 if kind == "bool" else rng.standard_normal(shape)
        arrays = [x.astype(dtype) for x in given] + [value.astype(mask.type.dtype)]
        bound = {"float16": 1e-2, "float32": 1e-4, "float64": 1e-10}[dtype]
        for found, wanted in zip(function(*arrays), reference(*arrays), strict=True):
            assert found.shape == wanted.shape
            np.testing.assert_allclose(found, wanted, atol=bound * max(1, np.abs(wanted).max()))

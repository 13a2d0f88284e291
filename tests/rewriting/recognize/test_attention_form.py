"""Expressions of attention: which are recognized, and that results stay the same."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode

from dnnops.gpuarray.type import GpuArrayType
from dnnops.nnet.activation.softmax import SoftmaxGrad
from tests.oracle import assert_close
from tests.rewriting.gpu.test_to_cudnn import (
    GPU_MODE,
    names,
    nodes,
    rewritten,
    without_probing,  # noqa: F401
)

#: Without compiled code, because compiling takes long; tests/cpu runs the Ops' C code.
PERFORM = Mode("py", "fast_run").excluding("fusion")
PLAIN = PERFORM.excluding("onednn")


@pytest.fixture(autouse=True)
def quick_softmax() -> Iterator[None]:
    """PyTensor's own Ops compile their graphs in this mode when they run; Numba takes seconds."""
    with pytensor.config.change_flags(mode="FAST_COMPILE"):
        yield


def tensors(dtype: str = "float32", depth: int | None = 8) -> list:
    return [pt.tensor(n, dtype=dtype, shape=(None, None, None, depth)) for n in ("q", "k", "v")]


FORMS = {
    "swapped": lambda q, k, s: (q @ k.swapaxes(2, 3)) * s,
    "transposed": lambda q, k, s: s * (q @ k.transpose(0, 1, 3, 2)),
    "divided": lambda q, k, s: (q @ k.mT) / np.sqrt(np.asarray(12, k.dtype)),
    "before": lambda q, k, s: (q * s) @ k.mT,
    "plain": lambda q, k, s: q @ k.mT,
}


def written_out(form: str, q, k, v, mask=None):
    scores = FORMS[form](q, k, np.asarray(0.3, v.dtype))
    if mask is not None:
        scores = scores + mask
    return pt.special.softmax(scores, axis=-1) @ v


@pytest.mark.parametrize(
    ("form", "masked", "by"),
    [
        *((form, form in ("swapped", "plain"), "qkv") for form in FORMS),
        ("swapped", False, ""),
        ("divided", True, ""),
        ("before", False, "v"),
        ("transposed", True, "qk"),
    ],
)
def test_on_the_cpu(form, masked, by):
    q, k, v = tensors()
    gout = pt.tensor4("g", dtype="float32")
    mask = pt.tensor("m", dtype="float32", shape=(None, 1, None, None)) if masked else None
    inputs = [q, k, v, gout, *([mask] if masked else [])]
    out = written_out(form, q, k, v, mask)
    wrt = [x for x in (q, k, v) if x.name in by]
    grads = pytensor.grad(None, wrt, known_grads={out: gout}) if wrt else []
    options = {"on_unused_input": "ignore"}
    fn = pytensor.function(inputs, [out, *grads], mode=PERFORM, **options)
    found = names(fn.maker.fgraph)
    assert "OneDnnAttention" in found
    assert ("OneDnnAttentionGrad" in found) == bool(by)
    assert not any("Softmax" in name or "Batched" in name for name in found)
    plain = pytensor.function(inputs, [out, *grads], mode=PLAIN, **options)
    rng = np.random.default_rng(0)
    shapes = [(2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 8), (2, 3, 5, 8), (2, 1, 5, 7)]
    arrays = [rng.standard_normal(s).astype("float32") for s in shapes[: len(inputs)]]
    for result, expected in zip(fn(*arrays), plain(*arrays), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


def heads_first(x):
    """Transpose (batch, steps, heads, depth) to (batch, heads, steps, depth)."""
    return x.transpose(0, 2, 1, 3)


def scaled(x):
    return x * np.asarray(0.3, x.dtype)


def of_heads(q, k, v, scores=scaled):
    """Compute attention of arrays with heads after steps, as in the result."""
    products = heads_first(q) @ heads_first(k).swapaxes(2, 3)
    return heads_first(pt.special.softmax(scores(products), axis=3) @ heads_first(v))


def plainly(q, k, v, scores=scaled):
    return pt.special.softmax(scores(q @ k.mT), axis=-1) @ v


def projected(x, wq, wk, wv):
    """Project all heads in one product, and merge them afterwards."""
    shape = (x.shape[0], x.shape[1], 2, 4)
    return of_heads(*((x @ w).reshape(shape) for w in (wq, wk, wv))).reshape(x.shape)


def depth(x):
    return pt.cast(x.shape[-1], "float32")


HEADS = {"q": (2, 5, 3, 8), "k": (2, 7, 3, 8), "v": (2, 7, 3, 6)}
FIRST = {"q": (2, 3, 5, 8), "k": (2, 3, 7, 8), "v": (2, 3, 7, 6)}
STACK = {"q": (2, 5, 8), "k": (2, 7, 8), "v": (2, 7, 6)}
WEIGHTS = {"wq": (8, 8), "wk": (8, 8), "wv": (8, 8)}

# What they are made of, and the shapes of their operands: m is bool, s and b have no gradients.
LARGER_FORMS = {
    "heads": (of_heads, HEADS),
    "projected": (projected, {"x": (2, 5, 8), **WEIGHTS}),
    "turned": (
        lambda q, k, v: pt.special.softmax(scaled(q @ k), axis=3) @ v.mT,
        {"q": (2, 3, 5, 8), "k": (2, 3, 8, 7), "v": (2, 3, 6, 7)},
    ),
    "key of a product": (
        lambda q, k, v, w: plainly(q, k @ w[None, None], v),
        {**FIRST, "w": (8, 8)},
    ),
    "root": (lambda q, k, v: plainly(q, k, v, lambda x: x / pt.sqrt(depth(q))), FIRST),
    "root of heads": (lambda q, k, v: of_heads(q, k, v, lambda x: x / depth(k) ** 0.5), HEADS),
    "inverse root": (lambda q, k, v: plainly(q, k, v, lambda x: x * depth(q) ** -0.5), FIRST),
    "cast root": (
        lambda q, k, v: plainly(q, k, v, lambda x: x * pt.cast(1 / pt.sqrt(q.shape[3]), x.dtype)),
        FIRST,
    ),
    "variable": (
        lambda s, **heads: of_heads(**heads, scores=lambda x: scaled(x) * s / (2 + s)),
        {**HEADS, "s": ()},
    ),
    "other power": (lambda q, k, v: plainly(q, k, v, lambda x: x / depth(q)), FIRST),
    "seen": (
        lambda m, **heads: of_heads(**heads, scores=lambda x: pt.where(m, scaled(x), -np.inf)),
        {**HEADS, "m": (2, 1, 5, 7)},
    ),
    "hidden": (
        lambda m, **first: plainly(
            **first, scores=lambda x: pt.where(m, -np.inf, x / pt.sqrt(depth(first["q"])))
        ),
        {**FIRST, "m": (2, 1, 5, 7)},
    ),
    "seen and added": (
        lambda m, b, **first: plainly(
            **first, scores=lambda x: pt.where(m, scaled(x) + b, -np.inf)
        ),
        {**FIRST, "m": (2, 1, 5, 7), "b": (1, 3, 5, 7)},
    ),
    "subtracted": (
        lambda b, **first: plainly(**first, scores=lambda x: scaled(x) - (1 - b) * 3),
        {**FIRST, "b": (2, 1, 1, 7)},
    ),
    "negated": (
        lambda b, **first: plainly(**first, scores=lambda x: b - scaled(x)),
        {**FIRST, "b": (2, 1, 1, 7)},
    ),
    "two added": (
        lambda b, c, **first: plainly(**first, scores=lambda x: x + b + c),
        {**FIRST, "b": (2, 1, 1, 7), "c": (1, 3, 5, 7)},
    ),
    "positions of known number": (
        lambda q, k, v: plainly(q + np.ones((5, 8), "float32"), k + np.ones((7, 8), "float32"), v),
        FIRST,
    ),
    "stack": (plainly, STACK),
    "stack with steps first": (
        lambda q, k, v: plainly(*(x.transpose(1, 0, 2) for x in (q, k, v))),
        {"q": (5, 2, 8), "k": (7, 2, 8), "v": (7, 2, 6)},
    ),
    "seen stack": (
        lambda m, s, **stack: plainly(**stack, scores=lambda x: pt.where(m, x * s, -np.inf)),
        {**STACK, "m": (2, 5, 7), "s": ()},
    ),
}


def larger_form(form: str, size_known: bool = False, dtype: str = "float32") -> tuple[dict, list]:
    """Return the operands of a form, and the result with its gradients."""
    make, shapes = LARGER_FORMS[form]
    operands = {
        name: pt.tensor(
            name,
            dtype="bool" if name == "m" else dtype,
            shape=[n if size_known or n == 1 else None for n in shape],
        )
        for name, shape in shapes.items()
    }
    out = make(**operands)
    wrt = [x for name, x in operands.items() if name not in ("m", "s", "b", "c")]
    return operands, [out, *pytensor.grad((out**2).sum(), wrt)]


def is_whole(form: str, found: set[str]) -> bool:
    """Return whether nothing of the expression is left besides the Ops."""
    gone = ["Softmax"] if "product" in form or form == "projected" else ["Softmax", "Batched"]
    return found >= {"OneDnnAttention", "OneDnnAttentionGrad"} and not any(
        word in name for name in found for word in gone
    )


@pytest.mark.parametrize("form", LARGER_FORMS)
def test_larger_forms_on_the_cpu(form):
    operands, results = larger_form(form)
    fn = pytensor.function([*operands.values()], results, mode=PERFORM)
    assert is_whole(form, names(fn.maker.fgraph))
    rng = np.random.default_rng(0)
    arrays = []
    for x, shape in zip(operands.values(), LARGER_FORMS[form][1].values(), strict=True):
        array = rng.standard_normal(shape).astype("float32")
        if x.type.dtype == "bool":  # so that each query sees a key
            array = (array > 1) if form == "hidden" else (array < 1)
        arrays.append(array)
    operands, results = larger_form(form, dtype="float64")
    plain = pytensor.function([*operands.values()], results, mode="FAST_COMPILE")
    wide = [a if a.dtype == bool else a.astype("float64") for a in arrays]
    for result, expected in zip(fn(*arrays), plain(*wide), strict=True):
        assert (result.dtype, expected.dtype) == ("float32", "float64")
        assert_close(result, expected)
        # A norm hides errors of small elements.
        atol = 2e-5 * max(1, np.abs(expected).max())
        np.testing.assert_allclose(result, expected, rtol=2e-4, atol=atol)


@pytest.mark.parametrize("form", ["heads", "projected", "root", "seen", "stack"])
def test_larger_forms_of_known_sizes(form):
    operands, results = larger_form(form, size_known=True)
    fgraph = rewritten([*operands.values()], results, pytensor.compile.get_mode("CVM"))
    assert is_whole(form, names(fgraph))
    assert [x.type.shape for x in fgraph.outputs] == [x.type.shape for x in results]


def test_the_inverse_root_is_the_default():
    for form, scale in (("root", None), ("cast root", None), ("other power", 1.0), ("heads", 0.3)):
        operands, results = larger_form(form)
        fgraph = rewritten([*operands.values()], results, pytensor.compile.get_mode("CVM"))
        (node,) = nodes(fgraph, "OneDnnAttentionGrad")
        assert node.op.scale == (scale if scale is None else pytest.approx(scale))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("form", ["heads", "stack", "masked"])
def test_larger_forms_on_a_gpu(dtype, form):
    ndim = 3 if form == "stack" else 4
    q, k, v, gout = (GpuArrayType(dtype, (*[None] * (ndim - 1), 64))() for _ in range(4))
    mask = GpuArrayType("bool", (None, 1, None, None))()
    host = [pt.as_tensor_variable(x) for x in (q, k, v)]
    if form == "masked":
        out = of_heads(*host, lambda x: pt.where(mask, scaled(x), np.asarray(-np.inf, x.dtype)))
    else:
        out = (plainly if form == "stack" else of_heads)(*host)
    grads = pytensor.grad(None, [q, k, v], known_grads={out: pt.as_tensor_variable(gout)})
    found = names(rewritten([q, k, v, gout, mask], [out, *grads], GPU_MODE))
    assert found >= {"GpuDnnAttention", "GpuDnnAttentionGrad"}
    assert not any("Softmax" in name or "BatchedDot" in name for name in found)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_on_a_gpu(dtype):
    q, k, v, gout = (GpuArrayType(dtype, (None, None, None, 64))() for _ in range(4))
    host = [pt.as_tensor_variable(x) for x in (q, k, v)]
    out = written_out("swapped", *host)
    grads = pytensor.grad(None, [q, k, v], known_grads={out: pt.as_tensor_variable(gout)})
    found = names(rewritten([q, k, v, gout], [out, *grads], GPU_MODE))
    is_narrow = dtype != "float32"
    assert ("GpuDnnAttention" in found) == ("GpuDnnAttentionGrad" in found) == is_narrow
    assert ("GpuBatchedDot" in found) == (not is_narrow)


@pytest.mark.parametrize("scale", [0.3, -0.3])
@pytest.mark.parametrize("mixed", ["off", "float16", "bfloat16"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_which_dtypes_and_scales_a_gpu_takes(dtype, mixed, scale):
    """Wide arrays where they are computed in 16 bits, and no negative scale."""
    q, k, v = (GpuArrayType(dtype, (None, None, None, 64))() for _ in range(3))
    host = [pt.as_tensor_variable(x) for x in (q, k, v)]
    out = plainly(*host, lambda x: x * np.asarray(scale, x.dtype))
    with pytensor.config.change_flags(dnn__mixed_precision=mixed):
        found = names(rewritten([q, k, v], [out], GPU_MODE))
    is_narrow = dtype in ("float16", "bfloat16") or (dtype == "float32" and mixed != "off")
    assert ("GpuDnnAttention" in found) == (is_narrow and scale > 0)
    assert ("GpuBatchedDot" in found) == ("GpuDnnAttention" not in found)


def _seen_weights(q, k, v):
    weights = pt.special.softmax(q @ k.mT, axis=-1)
    return [weights @ v, weights]


def _other_axis(q, k, v):
    return [pt.special.softmax(q @ k.mT, axis=2) @ v]


def _broadcast_key(q, k, v):
    return [pt.special.softmax(q @ pt.specify_broadcastable(k, 0).mT, axis=-1) @ v]


def _gradient_by_keys_alone(q, k, v):
    out = pt.special.softmax(q @ k.mT, axis=-1) @ v
    return [out, pytensor.grad((out**2).sum(), k)]


def _other_permutation_in_gradients(q, k, v):
    weights = pt.special.softmax(q @ k.transpose(0, 2, 3, 1), axis=-1)
    by_scores = SoftmaxGrad(3)((q * 2) @ v.mT, weights)
    return [weights @ v, by_scores @ k.transpose(2, 0, 1, 3)]


def _finite_mask(q, k, v):
    seen = pt.ge(q[:, :, :, :1], 0)
    return [pt.special.softmax(pt.where(seen, q @ k.mT, np.float32(-1e9)), axis=-1) @ v]


def _scaled_behind_the_mask(q, k, v):
    seen = pt.ge(q[:, :, :, :1], 0)
    scores = pt.where(seen, q @ k.mT, -np.inf) * q[0, 0, 0, 0]
    return [pt.special.softmax(scores, axis=-1) @ v]


def _scaled_by_queries(q, k, v):
    return [pt.special.softmax(q @ k.mT * q[:, :, :, :1], axis=-1) @ v]


def _gradient_by_scale(q, k, v):
    scale = q[0, 0, 0, 0]
    out = plainly(q, k, v, lambda x: x * scale)
    return [out, pytensor.grad((out**2).sum(), scale)]


def _float64_scale(q, k, v):
    return [plainly(q, k, v, lambda x: x / pt.sqrt(q.shape[3]))]


def _other_scale_of_gradients(q, k, v):
    weights = pt.special.softmax(q @ k.mT, axis=-1)
    by_scores = SoftmaxGrad(3)((q * 2) @ v.mT, weights)
    return [weights @ v, (2 * by_scores) @ k]


def _other_key_of_gradients(q, k, v):
    weights = pt.special.softmax(q @ k.mT, axis=-1)
    return [weights @ v, SoftmaxGrad(3)((q * 2) @ v.mT, weights) @ (k + 1)]


def _summed_weights(q, k, v):
    weights = pt.special.softmax(q @ k.mT, axis=-1)
    return [weights @ v, (weights**2).sum(), weights.max(axis=3)]


def _few_queries_of_turned_keys(q, k, v):
    # The Op would copy the keys for them, which takes as long as the products do.
    few = pt.specify_shape(q, (None, None, 4, None))
    return [pt.special.softmax(few @ k, axis=-1) @ v]


def _of_itself(q, k, v):
    weights = pt.special.softmax(q @ k.mT, axis=-1)
    return [weights @ weights, v * 2]


def _gradient_by_mask(q, k, v):
    mask = pt.zeros((1, 1, q.shape[2], k.shape[2]), dtype="float32")
    out = pt.special.softmax(q @ k.mT + mask, axis=-1) @ v
    return [out, pytensor.grad((out**2).sum(), mask)]


@pytest.mark.parametrize(
    "make",
    [
        _seen_weights,
        _other_axis,
        _broadcast_key,
        _gradient_by_mask,
        _gradient_by_keys_alone,
        _other_permutation_in_gradients,
        _finite_mask,
        _scaled_behind_the_mask,
        _scaled_by_queries,
        _gradient_by_scale,
        _float64_scale,
        _other_scale_of_gradients,
        _other_key_of_gradients,
        _of_itself,
        _summed_weights,
        _few_queries_of_turned_keys,
    ],
    ids=lambda make: make.__name__,
)
def test_unrecognized_forms_stay(make):
    inputs = tensors()
    fgraph = rewritten(inputs, make(*inputs), PERFORM)
    assert not any("Attention" in name for name in names(fgraph))


def test_nothing_is_recognized_in_float64_or_without_onednn():
    for dtype, mode in (("float64", PERFORM), ("float32", PLAIN)):
        inputs = tensors(dtype)
        fgraph = rewritten(inputs, [written_out("swapped", *inputs)], mode)
        assert not any("Attention" in name for name in names(fgraph))

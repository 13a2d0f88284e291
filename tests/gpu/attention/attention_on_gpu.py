"""Run attention on a GPU, and compare it with the abstract Ops' NumPy in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dnnops.gpu.attention import GpuDnnAttention, GpuDnnAttentionGrad
from dnnops.nnet.attention.op import Attention, AttentionGrad
from tests.gpu.device import make_node, on_gpu, rounded
from tests.oracle import RELATIVE_ERROR, UNIT


@dataclass(frozen=True)
class Form:
    """Properties of a call that determine its plan."""

    dtype: str = "float16"
    batch: int = 2
    heads: tuple[int, int] = (4, 4)
    lengths: tuple[int, int] = (64, 64)
    depths: tuple[int, int] = (64, 64)
    is_causal: bool = False
    mask: str | None = None  # 'bool' or 'float'
    mask_ones: tuple[int, ...] = ()
    query_lengths: bool = False
    key_lengths: bool = False
    layout: str = "heads_first"
    scale: float | None = None
    is_deterministic: bool = False
    offset: float = 0.0  # of all scores

    @property
    def optional(self) -> tuple[str, ...]:
        given = {"mask": self.mask is not None, "query_lengths": self.query_lengths}
        given |= {"key_lengths": self.key_lengths}
        return tuple(name for name, is_given in given.items() if is_given)


#: Offsets of scores, of which half are 0.
OFFSETS = (0.0, 0.0, 0.0, 0.0, 50.0, 1000.0, -20.0, -125.0, -1000.0)


def random_form(
    rng: np.random.Generator,
    dtypes: Sequence[str] = ("float16", "bfloat16"),
    offsets: Sequence[float] = (0.0,),
) -> Form:
    """Return a form of any sizes, mostly those of real networks."""
    group, shared = int(rng.choice([1, 1, 2, 3])), int(rng.integers(1, 3))
    length = int(rng.choice([1, 2, 17, 64, 100, 128, 150]))
    depth = int(rng.choice([8, 32, 40, 64, 64, 80, 128, 192, 256, 5, 20]))
    return Form(
        dtype=str(rng.choice(list(dtypes))),
        batch=int(rng.integers(1, 4)),
        heads=(group * shared, shared),
        lengths=(length, length if rng.random() < 0.6 else int(rng.choice([1, 3, 65, 130, 200]))),
        depths=(depth, depth if rng.random() < 0.7 else int(rng.choice([8, 64, 128]))),
        is_causal=bool(rng.random() < 0.5),
        mask=[None, None, "bool", "float"][rng.integers(4)],
        mask_ones=tuple(int(i) for i in range(4) if rng.random() < 0.4),
        query_lengths=bool(rng.random() < 0.3),
        key_lengths=bool(rng.random() < 0.3),
        layout=str(rng.choice(["heads_first", "heads_inside", "packed"])),
        scale=[None, 0.2][rng.integers(2)],
        is_deterministic=bool(rng.random() < 0.3),
        offset=float(rng.choice(list(offsets))),
    )


def _laid_out(array: np.ndarray, dtype: str, layout: str) -> Any:
    """Copy an array to the device, with heads innermost or as part of a wider array."""
    import cupy

    n, heads, rows, depth = array.shape
    if layout == "heads_first":
        return on_gpu(array, dtype)
    gap = 8 if layout == "packed" else 0
    wide = cupy.full((n, rows, heads, depth + gap), np.nan, on_gpu(array[:0], dtype).dtype)
    wide[..., :depth] = on_gpu(array.transpose(0, 2, 1, 3), dtype)
    return wide[..., :depth].transpose(0, 2, 1, 3)


@dataclass
class Data:
    """Operands of a form: in float64 for the oracle, and on the device."""

    form: Form
    seed: int
    given: dict[str, np.ndarray] = field(init=False)
    _expected: list[np.ndarray] = field(init=False, default_factory=list)

    def __post_init__(self):
        form, rng = self.form, np.random.default_rng(self.seed)
        n, (heads, shared), (rows, keys) = form.batch, form.heads, form.lengths

        def normal(*shape: int) -> np.ndarray:
            return rounded(rng.standard_normal(shape), form.dtype)

        self.given = {
            "query": normal(n, heads, rows, form.depths[0]),
            "key": normal(n, shared, keys, form.depths[0]),
            "value": normal(n, shared, keys, form.depths[1]),
        }
        if form.offset:
            # One feature of all queries and of all keys.
            scale = form.depths[0] ** -0.5 if form.scale is None else form.scale
            feature = (abs(form.offset) / scale) ** 0.5
            self.given["query"][..., 0] = rounded(np.array(feature), form.dtype)
            opposite = np.array(np.copysign(feature, form.offset))
            self.given["key"][..., 0] = rounded(opposite, form.dtype)
        sizes = (n, heads, rows, keys)
        shape = [1 if i in form.mask_ones else size for i, size in enumerate(sizes)]
        if form.mask == "bool":
            self.given["mask"] = rng.random(shape) < 0.6
        elif form.mask == "float":
            mask = normal(*shape)
            mask[rng.random(shape) < 0.3] = -np.inf
            self.given["mask"] = mask
        for name, size in (("query_lengths", rows), ("key_lengths", keys)):
            if getattr(form, name):
                self.given[name] = rng.integers(0, size + 1, n)
        self.gout = normal(n, heads, rows, form.depths[1])

    def on_device(self) -> list[Any]:
        """Return the operands, in the form's dtype and layout."""
        import cupy

        moved = []
        for name, array in self.given.items():
            if name in ("query", "key", "value"):
                moved.append(_laid_out(array, self.form.dtype, self.form.layout))
            elif array.dtype == np.float64:
                moved.append(on_gpu(array, self.form.dtype))
            else:
                moved.append(cupy.asarray(array))
        return moved

    def gout_on_device(self) -> Any:
        """Return the gradient with respect to the output, in the form's dtype and layout."""
        return _laid_out(self.gout, self.form.dtype, self.form.layout)

    def expected(self) -> list[np.ndarray]:
        """Return the output, the statistics and the three gradients, in float64.

        They are computed once, so `given` must not change afterwards.
        """
        if self._expected:
            return self._expected
        form = self.form
        op = Attention(form.scale, form.is_causal, form.optional)
        arrays = list(self.given.values())
        forward = _perform(op, arrays)
        grad = AttentionGrad(form.scale, form.is_causal, form.optional)
        self._expected = [*forward, *_perform(grad, [*arrays, *forward, self.gout])]
        return self._expected


def uniform_operands(data: Data, largest: float) -> Data:
    """Replace query, key and value by evenly spread values; changes `data`."""
    rng = np.random.default_rng(data.seed)
    for name in ("query", "key", "value"):
        shape = data.given[name].shape
        data.given[name] = rounded(rng.uniform(-largest, largest, shape), data.form.dtype)
    return data


def _perform(op: Any, arrays: list[Any]) -> list[Any]:
    node = op.make_node(*arrays)
    storage: list[list[Any]] = [[None] for _ in node.outputs]
    op.perform(node, arrays, storage)
    return [value for (value,) in storage]


def apply_all(op: Any, *operands: Any) -> list[Any]:
    """Apply an Op to device arrays, run `perform`, and return all device arrays."""
    node, values = make_node(op, *operands)
    storage: list[list[Any]] = [[None] for _ in node.outputs]
    node.op.perform(node, values, storage)
    return [value for (value,) in storage]


class GradientByKernel(GpuDnnAttentionGrad):
    """Use dnnops' kernel for the gradient of short sequences, whatever the shapes."""

    path = 1


class GradientByCudnn(GpuDnnAttentionGrad):
    """Use cuDNN for the gradient, whatever the shapes."""

    path = 2


def run_on_gpu(data: Data, gradient: type[GpuDnnAttentionGrad] = GpuDnnAttentionGrad) -> list[Any]:
    """Compute the results of `Data.expected` on the device, the gradients with a class of Ops."""
    form, operands = data.form, data.on_device()
    forward = apply_all(GpuDnnAttention(form.scale, form.is_causal, form.optional), *operands)
    grad = gradient(
        form.scale, form.is_causal, form.optional, is_deterministic=form.is_deterministic
    )
    return [*forward, *apply_all(grad, *operands, *forward, data.gout_on_device())]


def run_without_stats(data: Data) -> Any:
    """Return only the output, computed by cuDNN, as a device array."""
    form = data.form
    op = GpuDnnAttention(form.scale, form.is_causal, form.optional, with_stats=False)
    (out,) = apply_all(op, *data.on_device())
    return out


RESULTS = ("out", "stats", "dquery", "dkey", "dvalue")


#: Largest relative errors of terms in the tiled kernels. With TF32, an operand is rounded to 11
#: bits. Otherwise it is split into two such numbers, the upper one rounded to the nearest: the
#: product of the lower parts, which is left out, is at most 2**-22, and both lose at most one bit.
TILED_UNIT = {"tf32": 2.0**-11, "float32": 2.0**-21}
STATS_ERROR = 1e-3


def errors(data: Data, results: list[Any], tiled: str | None = None) -> dict[str, float]:
    """Return each result's ||difference|| as a fraction of the bound; above 1 it is wrong.

    Gradients are differences of products with the output's gradient, and these are rounded. For the
    tiled kernels, `tiled` is a key of `TILED_UNIT`; the errors of weights grow with the scores.

    With one key, or a weight close to 1, the gradient of a score, weight * (dP - D), cancels. The
    errors of dP = gout @ value and of D = gout @ out are left. They differ, since the kernels need
    D before they have seen all keys. Let g be the row of gout that belongs to a query. A term
    g[c] * value[c] is off by at most the unit u. The errors have either sign, so together they are
    about u * ||g * value||, at most u * ||g|| * max|value|. Few columns come closest to that,
    because their errors do not average out. The weights of a query add up to 1: the gradient with
    respect to it is off by at most that times scale * max||key||. Over all queries, the squares of
    ||g|| add up to that of ||gout||. The gradient with respect to the key has max||query|| instead.
    """
    dtype = tiled or data.form.dtype
    arrays = [np.abs(data.given[o]).max(initial=0) for o in ("query", "key", "value")]
    size = np.linalg.norm(data.gout) * max(1, *arrays) ** 2
    added: dict[str, float] = {}
    if tiled:
        depth, scale = data.form.depths[0], data.form.scale
        scale = depth**-0.5 if scale is None else scale
        # Twice the standard deviation of the scores. An offset has nearly the same error for all
        # keys, so that weights hardly have it, but statistics do.
        spread = max(1, 2 * depth**0.5 * scale, abs(data.form.offset) / 16)
        unit = TILED_UNIT[tiled]
        by_stats = 8 * unit * max(spread, abs(data.form.offset))
        by_scores = scale * unit * np.linalg.norm(data.gout) * arrays[2]
        for name, other in (("dquery", "key"), ("dkey", "query")):
            added[name] = by_scores * np.linalg.norm(data.given[other], axis=3).max(initial=0)
    else:
        unit, spread = UNIT[dtype], 1.0
        # Of a large statistic, float32 keeps fewer digits: 16 units of rounding.
        by_stats = max(STATS_ERROR, 16 * 2.0**-23 * abs(data.form.offset))
    found = {}
    for name, result, wanted in zip(RESULTS, results, data.expected(), strict=True):
        array = result if isinstance(result, np.ndarray) else result.get()
        got = array.astype("float64")
        if name == "stats":
            same = np.isinf(wanted) == np.isinf(got)
            finite = np.isfinite(wanted)
            worst = np.abs(got[finite] - wanted[finite]).max(initial=0) if same.all() else np.inf
            found[name] = float(worst / by_stats)
            continue
        allowed = spread * RELATIVE_ERROR[dtype] * np.linalg.norm(wanted) + 1e-30
        if name.startswith("d"):
            allowed += added.get(name, unit * size / 4)
        error = float(np.linalg.norm(got - wanted) / allowed)
        found[name] = error if np.isfinite(error) else np.inf
    return found

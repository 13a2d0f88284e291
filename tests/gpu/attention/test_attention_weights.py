"""The weights of attention and their gradient: on the host, compiled, and on a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.basic import Constant
from pytensor.graph.traversal import graph_inputs

from dnnops.dtypes import DTYPE_CODES
from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.gpu.attention import GpuAttentionWeights, GpuAttentionWeightsGrad
from dnnops.gpuarray.type import GpuArrayType
from dnnops.modes import CudnnMode
from dnnops.nnet import scaled_dot_product_attention
from tests.emulation.host_kernels import compile_for_gpu, compile_for_host, launch_struct
from tests.gpu.calls import call, device_tensor, shape_of
from tests.gpu.device import apply_all, bits, host, on_gpu, poison, rounded, values
from tests.gpuarray.graphs import ops, rewritten
from tests.needs import of_dtypes
from tests.oracle import RELATIVE_ERROR, SEED, assert_close, repeat_command

DTYPES = ("float16", "bfloat16", "float32", "float64")
KERNELS = dict.fromkeys(("attention_weights", "attention_weights_grad"), "attention_weights_launch")
MASKS = (None, "bool", "float")


@dataclass(frozen=True)
class Sharing:
    """How threads share a row: macros of the kernels."""

    width: int
    lanes: int
    held: int
    mask: str | None

    def macros(self, dtype: str) -> dict[str, int]:
        return {
            "DTYPE": DTYPE_CODES[dtype],
            "WIDTH": self.width,
            "LANES": self.lanes,
            "HELD": self.held,
            "MASK": MASKS.index(self.mask),
        }

    def draw_keys(self, rng: np.random.Generator) -> int:
        """Return a number of keys that these threads can have."""
        most = self.width * self.lanes * (self.held or 3)
        return int(rng.integers(0, most // self.width + 1)) * self.width


SHARINGS = [
    Sharing(4, 4, 1, None),
    Sharing(1, 1, 2, "bool"),
    Sharing(2, 32, 2, "bool"),
    Sharing(1, 32, 3, "float"),
    Sharing(1, 64, 0, "float"),
    Sharing(4, 256, 1, None),
    Sharing(2, 128, 0, "bool"),
]


class Case:
    """Scores, a gradient with respect to the weights, and what masks the scores."""

    def __init__(self, rng: np.random.Generator, dtype: str, keys: int, mask: str | None):
        self.dtype = dtype
        batch, heads, queries = (int(n) for n in rng.integers(1, 4, 3))
        self.shape = shape = (batch, heads, queries * int(rng.choice([1, 5])), keys)
        self.scale = float(rng.choice([1.0, 0.3]))
        self.is_causal = bool(rng.integers(2))
        self.offset = float(rng.choice([0, 0, -125, -1000, 1000]))
        drawn = rng.standard_normal(shape) * rng.choice([1, 30]) + self.offset
        self.scores = rounded(drawn, dtype)
        self.by_weights = rounded(rng.standard_normal(shape), dtype)
        self.optional: dict[str, np.ndarray] = {}
        if mask is not None:
            sizes = [1 if rng.random() < 0.4 else n for n in shape]
            drawn = rounded(rng.standard_normal(sizes), dtype)
            drawn[rng.random(sizes) < 0.3] = -np.inf
            self.optional["mask"] = drawn > -np.inf if mask == "bool" else drawn
        for name, most in (("query_lengths", shape[2]), ("key_lengths", keys)):
            if rng.random() < 0.4:
                self.optional[name] = rng.integers(0, most + 1, batch)

    def expected(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return weights, statistics and the gradient with respect to the scores."""
        _, _, queries, keys = self.shape
        scores = self.scale * self.scores
        rows, columns = np.arange(queries)[:, None], np.arange(keys)
        mask = self.optional.get("mask")
        allowed = np.ones(self.shape, bool)
        if mask is not None and mask.dtype == bool:
            allowed &= mask
        elif mask is not None:
            scores = scores + mask
        if self.is_causal:
            allowed &= columns <= rows
        for name, places in (("query_lengths", rows), ("key_lengths", columns)):
            if name in self.optional:
                allowed &= places < self.optional[name][:, None, None, None]
        scores = np.where(allowed, scores, -np.inf)
        top = scores.max(axis=3, keepdims=True, initial=-np.inf)
        exponentials = np.exp(scores - np.where(top > -np.inf, top, 0))
        total = exponentials.sum(axis=3, keepdims=True)
        with np.errstate(divide="ignore"):
            stats = np.where(total > 0, np.log(total) + np.where(total > 0, top, 0), -np.inf)
        weights = exponentials / np.where(total > 0, total, 1)
        shared = (weights * self.by_weights).sum(axis=3, keepdims=True)
        return weights, stats[..., 0], self.scale * weights * (self.by_weights - shared)

    def check(self, weights: Any, stats: Any, by_scores: Any, again: Any, words: str) -> None:
        wanted_weights, wanted_stats, wanted_gradient = self.expected()
        bound = RELATIVE_ERROR[self.dtype]
        wide = "float64" if self.dtype == "float64" else "float32"
        own = RELATIVE_ERROR[wide]
        bound += 4 * float(np.finfo(wide).eps) * abs(self.offset)  # of a score
        words = f"{self}, {words}: {repeat_command()}"
        for found in (weights, again):
            np.testing.assert_allclose(found, wanted_weights, rtol=bound, atol=bound, err_msg=words)
        np.testing.assert_allclose(stats, wanted_stats, rtol=own, atol=own, err_msg=words)
        np.testing.assert_allclose(
            by_scores, wanted_gradient, rtol=bound, atol=4 * bound, err_msg=words
        )

    def __str__(self) -> str:
        given = {name: x.shape for name, x in self.optional.items()}
        words = f"scale {self.scale}, offset {self.offset}, causal {self.is_causal}"
        return f"{self.dtype}{self.shape}, {words}, {given}"


def run_on_host(library: Any, sharing: Sharing, case: Case, number: int) -> None:
    batch, heads, queries, keys = case.shape
    dtype = case.dtype
    scores, given = bits(case.scores, dtype), bits(case.by_weights, dtype)
    weights, by_scores, again = (np.full(case.shape, 7, scores.dtype) for _ in range(3))
    stats = np.full(case.shape[:3], np.nan, "float64" if dtype == "float64" else "float32")
    mask = case.optional.get("mask")
    if mask is not None and mask.dtype != bool:
        mask = bits(mask, dtype)
    strides = [0, 0, 0, 0]
    if mask is not None:
        strides = [
            0 if n == 1 else s // mask.itemsize
            for n, s in zip(mask.shape, mask.strides, strict=True)
        ]
    rest = {
        "mask": 0 if mask is None else mask,
        "query_lengths": case.optional.get("query_lengths", 0),
        "key_lengths": case.optional.get("key_lengths", 0),
        "scale": case.scale,
        "rows": batch * heads * queries,
        "heads": heads,
        "queries": queries,
        "keys": keys,
        "is_causal": case.is_causal,
    }
    rest |= {f"mask{i}": stride for i, stride in enumerate(strides)}
    threads = max(sharing.lanes, 128)
    blocks = -(-rest["rows"] // (threads // sharing.lanes))
    in_place = number % 2
    for kernel, result in (("attention_weights", weights), ("attention_weights_grad", again)):
        if kernel.endswith("grad") and in_place:
            result[...], by_scores[...] = scores, given
        own = kernel.endswith("grad") and in_place
        launch = launch_struct(
            scores=result if own else scores,
            by_weights=by_scores if own else given,
            weights=result,
            by_scores=by_scores,
            stats=stats,
            **rest,
        )
        assert getattr(library, f"run_{kernel}")(launch, blocks, threads, number) == 0
    found = (values(weights, dtype), stats, values(by_scores, dtype), values(again, dtype))
    case.check(*found, words=str(sharing))


@pytest.mark.parametrize("dtype", of_dtypes(*DTYPES, quick="float32"))
def test_kernels_on_the_host(tmp_path, dtype):
    rng = np.random.default_rng(SEED)
    sharings = SHARINGS if dtype == "float32" else SHARINGS[1:3]
    for sharing in sharings:
        macros = sharing.macros(dtype)
        library = compile_for_host(tmp_path, "attention_weights", KERNELS, macros)
        for number in range(12):
            case = Case(rng, dtype, sharing.draw_keys(rng), sharing.mask)
            run_on_host(library, sharing, case, number)


def test_nan_and_infinity_on_the_host(tmp_path):
    sharing = Sharing(1, 4, 1, None)
    macros = sharing.macros("float32")
    library = compile_for_host(tmp_path, "attention_weights", KERNELS, macros)
    scores = np.array([[np.nan, 1, 2], [-np.inf, 1, -np.inf], [-np.inf] * 3], "float32")
    weights, stats = np.zeros_like(scores), np.zeros(3, "float32")
    launch = launch_struct(
        scores=scores, by_weights=0, weights=weights, by_scores=0, stats=stats, mask=0,
        query_lengths=0, key_lengths=0, scale=1.0, rows=3, heads=1, queries=3, keys=3,
        is_causal=0, mask0=0, mask1=0, mask2=0, mask3=0,
    )  # fmt: skip
    library.run_attention_weights(launch, 1, 128, 0)
    assert np.isnan(weights[0]).all()
    np.testing.assert_array_equal(weights[1:], [[0, 1, 0], [0, 0, 0]])
    np.testing.assert_array_equal(stats[1:], [1, -np.inf])


@pytest.mark.needs("cudnn")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cls", [GpuAttentionWeights, GpuAttentionWeightsGrad])
def test_every_number_of_keys_is_covered(cls, dtype):
    counts = [*range(140), *np.random.default_rng(SEED).integers(140, 100_000, 200)]
    for keys in map(int, counts):
        scores = device_tensor((1, 1, 1, keys), dtype)
        (found,) = call(
            "dnnops_cudnn_attention_weights_sharing",
            cls(),
            [scores, scores, scores],
            [device_tensor((0, 0, 0))],
        )
        width, lanes, held = shape_of(found)
        assert keys % width == 0
        assert lanes in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
        if held:
            assert width * lanes * held >= keys
            assert width * held <= (32 if cls is GpuAttentionWeights else 16)
        else:
            assert lanes == 1024


@pytest.mark.needs("nvrtc")
def test_gpu_compiler():
    for dtype, sharing in zip(DTYPES * 2, SHARINGS, strict=False):
        code = compile_for_gpu("attention_weights", sharing.macros(dtype))
        assert "griddepcontrol.wait" in code


@pytest.mark.needs("cudnn")
def test_shapes():
    scores = device_tensor((2, 3, 5, 7), "float16")
    name = "dnnops_cudnn_attention_weights_shape"
    weights, stats = call(name, GpuAttentionWeights(), [scores], [device_tensor(())] * 2)
    assert shape_of(weights) == (2, 3, 5, 7)
    assert shape_of(stats) == (2, 3, 5)
    assert stats.dtype == DTYPE_CODES["float32"]
    mask, lengths = device_tensor((2, 1, 4, 7), "bool"), device_tensor((3,), "int64")
    for operand, wrong, words in (
        ("mask", mask, "cannot be broadcast"),
        ("key_lengths", lengths, "key_lengths has to have the shape"),
    ):
        with pytest.raises(DnnValueError, match=words):
            call(name, GpuAttentionWeights(optional=[operand]), [scores, wrong], [scores, scores])
    with pytest.raises(DnnValueError, match="gradient with respect to the weights"):
        call(name, GpuAttentionWeightsGrad(), [scores, mask], [scores, scores])


def test_bad_operands():
    scores, lengths = GpuArrayType("float32", (None,) * 4)(), GpuArrayType("int32", (None,))()
    with pytest.raises(DnnTypeError, match="key_lengths must have 1 dimensions and dtype int64"):
        GpuAttentionWeights(optional=["key_lengths"])(scores, lengths)
    with pytest.raises(DnnTypeError, match="mask must have 4 dimensions"):
        GpuAttentionWeights(optional=["mask"])(scores, GpuArrayType("bool", (None,))())
    with pytest.raises(DnnTypeError, match="expected the operands scores, by_weights"):
        GpuAttentionWeightsGrad()(scores)
    with pytest.raises(DnnTypeError, match="scale"):
        GpuAttentionWeights(scale="half")


# -- graphs --------------------------------------------------------------------------------

#: In float32, tiled kernels take smaller depths.
DEPTH = 256


def attention(dtype="float32", heads=(4, 4), with_gradient=True, **options):
    """Return operands on the device, and attention with its gradients."""
    shapes = [(None, heads[0], None, DEPTH), *[(None, heads[1], None, DEPTH)] * 2]
    operands = [GpuArrayType(dtype, shape)() for shape in shapes]
    out = scaled_dot_product_attention(*operands, enable_gqa=heads[0] != heads[1], **options)
    gradients = pytensor.grad((out**2).sum(), operands) if with_gradient else []
    return operands, [z.transfer("cuda") for z in (out, *gradients)]


@pytest.mark.parametrize("mode", [CudnnMode(), CudnnMode().excluding("cudnn")])
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, True),
        ({"dtype": "float64", "is_causal": True}, True),
        ({"scale": 0.5}, True),
        # Grouped heads, and numbers of heads that are not known, are written out.
        ({"heads": (4, 2)}, False),
        ({"heads": (None, None)}, False),
        ({"dropout_p": 0.5, "seed": 1}, False),
    ],
)
def test_which_attention_uses_the_kernels(options, expected, mode):
    with pytensor.config.change_flags(dnn__enabled="no_check"):
        _, outputs = attention(**options)
        inputs = [x for x in graph_inputs(outputs) if not isinstance(x, Constant)]
        found = ops(rewritten(inputs, outputs, mode))
    assert ("GpuAttentionWeights" in found) == expected
    assert ("GpuAttentionWeightsGrad" in found) == expected
    if expected:
        assert found.count("GpuBatchedDot") == 6  # the scores are computed once
        assert "HostFromGpu" not in found


def test_weights_overwrite_scores():
    with pytensor.config.change_flags(dnn__enabled="no_check"):
        for with_gradient in (False, True):
            operands, outputs = attention(with_gradient=with_gradient)
            graph = rewritten(operands, outputs, CudnnMode())
            kinds = GpuAttentionWeights, GpuAttentionWeightsGrad
            found = [n.op.inplace for n in graph.toposort() if isinstance(n.op, kinds)]
            # The gradient reads the scores again.
            assert found == ([False, True] if with_gradient else [True])


# -- with a GPU ----------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_random(dtype):
    rng = np.random.default_rng(SEED)
    for number in range(60):
        mask = MASKS[number % 3]
        keys = int(rng.choice([1, 7, 64, 100, 512, int(rng.integers(1, 40_000))]))
        case = Case(rng, dtype, keys, mask)
        scores, given = on_gpu(case.scores, dtype), on_gpu(case.by_weights, dtype)
        optional = [
            on_gpu(x, dtype if x.dtype == "float64" else x.dtype.name)
            for x in case.optional.values()
        ]
        params = {"scale": case.scale, "is_causal": case.is_causal, "optional": [*case.optional]}
        poison()
        weights, stats = apply_all(GpuAttentionWeights(**params), scores, *optional)
        op = GpuAttentionWeightsGrad(**params, inplace=bool(number % 2))
        again, by_scores = apply_all(op, scores, given, *optional)
        case.check(*map(host, (weights, stats, by_scores, again)), words=f"number {number}")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_attention(dtype):
    """Against the expressions in float64 on the CPU, for sizes around those of real networks."""
    rng = np.random.default_rng(SEED)
    lengths = pt.lvector()
    operands, outputs = attention(dtype, is_causal=True, key_lengths=lengths)
    f = pytensor.function([*operands, lengths], outputs, mode=CudnnMode())
    wide = [pt.tensor4(dtype="float64", shape=x.type.shape) for x in operands]
    out = scaled_dot_product_attention(*wide, is_causal=True, key_lengths=lengths)
    gradients = pytensor.grad((out**2).sum(), wide)
    reference = pytensor.function([*wide, lengths], [out, *gradients], mode="ONEDNN")
    for batch, rows, columns in ((2, 64, 64), (3, 150, 129), (1, 300, 17), (2, 512, 512)):
        arrays = [
            rounded(rng.standard_normal((batch, 4, n, DEPTH)), dtype)
            for n in (rows, columns, columns)
        ]
        valid = rng.integers(columns // 2, columns + 1, batch)
        for got, wanted in zip(
            f(*(on_gpu(a, dtype) for a in arrays), valid), reference(*arrays, valid), strict=True
        ):
            assert_close(host(got), wanted, bound=RELATIVE_ERROR[dtype])

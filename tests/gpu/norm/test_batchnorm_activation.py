"""Batch normalization with relu and a residual sum for a GPU: its kernels on the host."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np
import pytest

from dnnops.errors import DnnValueError
from dnnops.gpu.batchnorm import parameter_dtype
from dnnops.gpu.fused.batchnorm_activation import (
    GpuDnnBatchNormActivation,
    GpuDnnBatchNormActivationGrad,
)
from dnnops.gpu.kernels import kernel_source
from tests.emulation.host_batchnorm import FUSED, WAYS, HostKernels
from tests.emulation.nvrtc import compile_cuda
from tests.gpu.calls import call, device_tensor
from tests.gpu.device import rounded
from tests.gpu.norm.test_batchnorm import Case
from tests.oracle import RELATIVE_ERROR, repeat_command, sampled

EPSILON, FACTOR = 0.125, 0.25

RELU, ADDEND = FUSED["relu"], FUSED["addend"]
SLOPES = tuple(a | b for a in (0, FUSED["slope_at_zero"]) for b in (0, FUSED["slope_at_nan"]))
#: As `dnnops.nnet.relu` has it.
SLOPE = FUSED["slope_at_nan"]


@dataclass(frozen=True)
class ActivationCase(Case):
    """A case of `Case` with the channels of `channels_of`; `kind` is replaced as needed."""

    def channels_of(self, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        """Return x, scale and bias in float64.

        The first channel is constant and zero after normalization. The second has a NaN, and the
        third a bias of NaN. In the others, x is one of a few numbers, one of which is zero after
        normalization except for rounding.
        """
        x = rounded(rng.integers(-3, 4, self.shape) / 4 + self.mean, self.dtype)
        x += rounded(rng.standard_normal(self.shape) * rng.integers(2, size=self.shape), self.dtype)
        x = rounded(x, self.dtype)
        channels = self.shape[1]
        scale, bias = rng.standard_normal(channels), np.zeros(channels)
        one = rounded(np.array(self.mean + 0.25), self.dtype)
        invstd = 1 / np.sqrt(x.var((0, 2)) + EPSILON)
        bias -= (one - x.mean((0, 2))) * scale * invstd
        x[:, 0], bias[0] = x[0, 0, 0], 0
        if channels > 3:
            x[-1, 1, -1] = np.nan
            bias[2] = np.nan
        return x, scale, bias

    def check(self, kernels: HostKernels) -> None:
        rng = np.random.default_rng(self.seed)
        of, channels = parameter_dtype(self.dtype), (self.shape[1],)
        x, scale, bias = self.channels_of(rng)
        scale, bias = scale.astype(of), bias.astype(of)
        z, g = (rounded(rng.standard_normal(self.shape), self.dtype) for _ in range(2))
        running = [rng.standard_normal(channels).astype(of), rng.uniform(1, 2, channels).astype(of)]

        def launch(
            kind: str,
            fused: int,
            other: np.ndarray,
            mean=None,
            spread=None,
            bias=bias,
            result=None,
        ):
            work = replace(self, kind=kind, fused=fused).work
            p = work.params
            data, second = self.array(x), self.array(other)
            poison = np.full(self.shape, np.nan)
            masked = second if self.inplace else self.array(poison)
            over = second if kind == "gradient" else data
            if result is not None:
                over = data
            out = over if self.inplace else self.array(poison)
            results = [np.full(channels, np.nan, of) for _ in range(5)]
            p.x, p.other, p.out = (a.ctypes.data for a in (data, second, out))
            if result is not None:
                given = self.array(result)
                p.result, p.masked = given.ctypes.data, masked.ctypes.data
            p.scale, p.bias = scale.ctypes.data, bias.ctypes.data
            if mean is not None:
                p.mean, p.spread = mean.ctypes.data, spread.ctypes.data
            p.epsilon, p.factor, p.offsets = EPSILON, FACTOR, results[4].ctypes.data
            for i in range(2):
                p.results[i] = results[i].ctypes.data
                if self.running and kind == "train":
                    p.running[i] = running[i].ctypes.data
                    p.new_running[i] = results[2 + i].ctypes.data
            kernels.run(work, self.seed)
            if result is not None:
                results[2] = masked.astype("float64")
            return out.astype("float64"), *results

        with np.errstate(invalid="ignore"):
            self._check(launch, x, scale, bias, z, g, running)

    def _check(self, launch, x, scale, bias, z, g, running) -> None:
        of = parameter_dtype(self.dtype)
        wide = [a.astype("float64")[:, np.newaxis] for a in (scale, bias)]
        mean, variance = x.mean((0, 2)), x.var((0, 2))
        normalized = (x - mean[:, np.newaxis]) / np.sqrt(variance + EPSILON)[:, np.newaxis]
        y = normalized * wide[0] + wide[1]
        for fused in (RELU, ADDEND, RELU | ADDEND):
            results = launch("train", fused, z)
            expected = y + z if fused & ADDEND else y
            expected = np.where(expected <= 0, 0, expected) if fused & RELU else expected
            self._close(results[0], expected, self.dtype, f"out, {fused}")
            self._close(results[1], mean, of, "mean")
            self._close(results[2], 1 / np.sqrt(variance + EPSILON), of, "invstd")
            if self.running:
                average = running[0] * (1 - FACTOR) + FACTOR * mean
                self._close(results[3], average, of, "running mean")
            inferred = launch("inference", fused, z, *running)
            given = [a.astype("float64")[:, np.newaxis] for a in running]
            expected = (x - given[0]) / np.sqrt(given[1] + EPSILON) * wide[0] + wide[1]
            expected += z if fused & ADDEND else 0
            expected = np.where(expected <= 0, 0, expected) if fused & RELU else expected
            self._close(inferred[0], expected, self.dtype, f"inference, {fused}")

        out, saved_mean, invstd, *_, offsets = launch("train", RELU, z)
        value = self.stored(x, scale, saved_mean, invstd, offsets)
        np.testing.assert_array_equal(out > 0, value > 0)
        np.testing.assert_array_equal(np.isnan(out), np.isnan(value))
        assert (value[:, 0] == 0).all()
        for slopes in SLOPES if self.seed == 0 else (SLOPE,):
            keeps = value > 0
            keeps |= (value == 0) & bool(slopes & FUSED["slope_at_zero"])
            keeps |= np.isnan(value) & bool(slopes & FUSED["slope_at_nan"])
            masked = np.where(keeps, g, 0)
            found = launch("gradient", RELU | slopes, g, saved_mean, invstd, bias=offsets)
            expected = self.gradients(x, masked, scale, saved_mean, invstd)
            for i, what in enumerate(("x", "scale", "bias")):
                dtype = of if i else self.dtype
                self._close(found[i], expected[i], dtype, f"gradient of {what}, slopes {slopes}")
        result = np.where(value <= 0, 0, value)  # NaN stays, as in the result of relu
        fused = RELU | ADDEND | SLOPE
        found = launch("gradient", fused, g, saved_mean, invstd, result=result)
        masked = np.where((result > 0) | np.isnan(result), g, 0)
        np.testing.assert_array_equal(found[3], masked)
        expected = self.gradients(x, masked, scale, saved_mean, invstd)
        for i, what in enumerate(("x", "scale", "bias")):
            dtype = of if i else self.dtype
            self._close(found[i], expected[i], dtype, f"gradient of {what}, from the result")

    def stored(self, x, scale, mean, invstd, offsets) -> np.ndarray:
        """Return the normalized data before relu, as training rounds it."""
        of = parameter_dtype(self.dtype)
        centered = x.astype(of) - mean[:, np.newaxis]
        factor = (scale * invstd)[:, np.newaxis]
        # More digits than any product of the parameters' dtype, or at least than any cancels.
        value = centered.astype("longdouble") * factor + offsets[:, np.newaxis]
        return rounded(value.astype("float64"), self.dtype)

    def gradients(self, x, g, scale, mean, invstd) -> list[np.ndarray]:
        scale, mean, invstd = (a.astype("float64")[:, np.newaxis] for a in (scale, mean, invstd))
        centered, count = x - mean, self.shape[0] * self.shape[2]
        normalized = (centered - centered.mean((0, 2))[:, np.newaxis]) * invstd
        dscale, dbias = (g * normalized).sum((0, 2)), g.sum((0, 2))
        slope = (dbias[:, np.newaxis] + normalized * dscale[:, np.newaxis]) / count
        return [(g - slope) * scale * invstd, dscale, dbias]

    def _close(self, result: np.ndarray, expected: np.ndarray, dtype: str, what: str) -> None:
        result, expected = result.astype("float64"), np.asarray(expected, "float64")
        words = f"{what} of {self}, {repeat_command()}"
        nans = np.isnan(expected)
        np.testing.assert_array_equal(np.isnan(result), nans, err_msg=words)
        error = np.linalg.norm((result - expected)[~nans])
        # A mean is computed as a distance from one of its numbers: a few units of each.
        batch, channels, length = self.shape
        least = 0.1 * np.sqrt(batch * length) if "gradient" in what else 0.05 * np.sqrt(channels)
        size = max(np.linalg.norm(expected[~nans]), least)
        bound = RELATIVE_ERROR[dtype]
        if not what.startswith(("out", "inference", "gradient of x")):
            bound *= 1 + abs(self.mean)
        assert error <= bound * size, f"{words}: {error / size:.2g}"


def cases_of(shape: tuple[int, int, int], **others) -> list[ActivationCase]:
    return [ActivationCase(shape, "float32", "train", running=True, **others)]


#: By the way of training that they get, rows or not.
CASES = [
    *cases_of((5, 4, 49)),  # alone
    *cases_of((7, 4, 2001)),  # kept: no vector fits
    *cases_of((7, 4, 2001), cooperative=False),  # streamed
    *cases_of((40, 4, 784), inplace=True),  # by warps
    *cases_of((3, 4, 3000), holding_blocks=9),  # held: by several blocks, and in pieces of images
    *cases_of((8, 4, 784), holding_blocks=2),  # held: by one block
    *cases_of((1, 9, 300), inplace=True),  # short
    *cases_of((60, 40, 1)),  # rows: alone
    *cases_of((1000, 32, 1), inplace=True),  # kept
    *cases_of((2000, 33, 1), cooperative=False),  # streamed
    *cases_of((3000, 40, 1), kept=2),  # swept
]
CASES += [replace(case, dtype="float16", seed=1) for case in CASES]
CASES += [
    replace(case, dtype=dtype, seed=2)
    for case in (CASES[0], CASES[3], CASES[5], CASES[6], CASES[10])
    for dtype in ("bfloat16", "float64")
]

#: Training keeps all digits of the mean, although the gradient gets a rounded one.
LARGE_MEAN = [
    replace(case, mean=1000.0, seed=3) for case in (CASES[2], CASES[5], CASES[6], CASES[10])
]


def works(case: ActivationCase) -> list:
    slopes = SLOPES if case.seed == 0 else (SLOPE,)
    kinds = [("gradient", RELU | s) for s in slopes] + [("gradient", RELU | ADDEND | SLOPE)]
    kinds += [(k, f) for k in ("train", "inference") for f in (RELU, ADDEND, RELU | ADDEND)]
    return [replace(case, kind=kind, fused=fused).work for kind, fused in kinds]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory) -> HostKernels:
    options = [work.options for case in (*CASES, *LARGE_MEAN) for work in works(case)]
    return HostKernels(tmp_path_factory.mktemp("batchnorm_activation"), options)


@pytest.mark.needs("cudnn")
def test_all_ways(kernels):
    for case in CASES:
        case.check(kernels)
    found = {
        (work.way, work.macro("KIND"), work.macro("ROWS"), work.macro("FUSED"))
        for case in CASES
        for work in works(case)
    }
    for rows, ways in enumerate((("by_warps", "held", "short"), ("swept",))):
        for way in ("alone", "kept", "streamed", *ways):
            assert (WAYS[way], 1, rows, RELU | SLOPE) in found
            has_mask = way not in ("by_warps", "held", "short")
            assert ((WAYS[way], 1, rows, RELU | ADDEND | SLOPE) in found) is has_mask
            assert {(WAYS[way], 0, rows, f) for f in (RELU, ADDEND, RELU | ADDEND)} <= found


@pytest.mark.needs("cudnn")
@pytest.mark.parametrize("case", LARGE_MEAN)
def test_large_means(kernels, case):
    case.check(kernels)


@pytest.mark.needs("cudnn", "nvrtc")
def test_gpu_compiler():
    """NVRTC compiles kernels without a GPU, and keeps everything in registers."""
    for options in sampled({work.options.decode() for case in CASES for work in works(case)}):
        log = compile_cuda(kernel_source("batchnorm"), "-Xptxas=-v", *options.split()).log
        (spilled,) = map(int, re.findall(r"(\d+) bytes spill stores", log))
        assert spilled <= 64, f"{options}: {log}"


@pytest.mark.needs("cudnn")
def test_shapes_of_a_call():
    """Shapes that are known only at the call are checked then; an addend is not broadcast."""
    x, p, epsilon = device_tensor((4, 3, 5)), device_tensor((1, 3, 1)), np.array(0.1)
    outputs = [device_tensor((0,)) for _ in range(4)]
    op = GpuDnnBatchNormActivation("spatial", axes=(0, 2), addend=True)
    narrow = device_tensor((4, 3, 1))
    with pytest.raises(DnnValueError, match=r"the addend is float32\(4, 3, 1\)"):
        call("dnnops_cudnn_batchnorm_shape", op, [x, p, p, epsilon, narrow], outputs[:3])
    op = GpuDnnBatchNormActivationGrad("spatial", axes=(0, 2))
    short = device_tensor((1, 2, 1))
    with pytest.raises(DnnValueError, match=r"offset has shape \(1, 2, 1\), expected \(1, 3, 1\)"):
        call("dnnops_cudnn_batchnorm_shape", op, [x, x, p, p, p, short], outputs[:3])

"""Attention with scores up to the limits of their dtype: all kernels, on the host and on a GPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dnnops.gpu.attention import GpuTiledAttention
from dnnops.gpu.kernels import kernel_source
from tests.emulation.host_attention_grad import HostGradient, Sizes
from tests.emulation.host_attention_large import HostLarge
from tests.emulation.host_attention_tiles import HostTiles, Tiles
from tests.emulation.nvrtc import compile_cuda
from tests.gpu.attention.attention_on_gpu import (
    RESULTS,
    TILED_UNIT,
    Data,
    Form,
    GradientByCudnn,
    GradientByKernel,
    apply_all,
    random_form,
    run_on_gpu,
)
from tests.gpu.device import host, poison, rounded
from tests.needs import of_dtypes
from tests.nnet.attention.large_scores import error_of, exact_operands
from tests.oracle import RELATIVE_ERROR, SEED, repeat_command

EXACT_SCALES = (0.5, 0.125, -0.25, 1.0)


def exact(rng: np.random.Generator, form: Form) -> Data:
    """Return operands of a form whose scores are large and exact."""
    scale = float(rng.choice(EXACT_SCALES))
    data = Data(Form(**{**vars(form), "offset": 0.0, "scale": scale}), int(rng.integers(2**32)))
    given = data.given
    exact_operands(rng, given["query"], given["key"], given.get("mask"), form.dtype)
    if form.dtype == "float16":
        # Otherwise, gradients would overflow.
        data.gout = rounded(data.gout * 2.0**-9, form.dtype)
    return data


def wrong(data: Data, results: list, tiled: str | None = None) -> dict[str, float]:
    """Return results that are wrong, with their errors as fractions of the bound."""
    form = data.form
    operands = {**data.given, "gout": data.gout}
    relative = RELATIVE_ERROR[form.dtype]
    # Weights of 16 bits are rounded before products, as are gradients of scores.
    unit = TILED_UNIT[tiled] if tiled else {"float16": 2.0**-11, "bfloat16": 2.0**-8}[form.dtype]
    relative = max(relative, 2 * unit)
    names = [name for name in RESULTS if name != "stats"][-len(results) :]
    wanted = dict(zip(RESULTS, data.expected(), strict=True))
    found = {}
    for name, result in zip(names, results, strict=True):
        array = result if isinstance(result, np.ndarray) else host(result)
        error = error_of(name, array, wanted[name], operands, form.scale or 1.0, relative, unit)
        if not error <= 1:
            found[name] = error
    return found


# -- on the host ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("attention_large")


@pytest.mark.parametrize("split", [1, 0])
def test_tiles(folder, split):
    # Constants that other tests compile, too.
    tiles = Tiles(split=1, aligned=0, mask=2) if split else Tiles(tiles=2, hold=0, mask=1)
    kernels, rng = HostTiles(folder, tiles), np.random.default_rng(SEED)
    for number in range(3):
        form = Form(
            dtype="float32",
            batch=1,
            heads=(2, 1),
            lengths=(int(rng.integers(1, 40)), int(rng.integers(1, 40))),
            depths=(int(rng.integers(1, 33)), int(rng.integers(1, 33))) if split else (32, 28),
            is_causal=number == 1,
            mask="float" if split else "bool",
            key_lengths=number == 2,
        )
        data = exact(rng, form)
        out, _, *gradients = kernels.run(data, seed=number)
        found = wrong(data, [out, *gradients], "float32" if split else "tf32")
        assert not found, (form, data.seed, found, repeat_command())


def short_forms(rng: np.random.Generator, dtype: str, depth: int):
    for number in range(6):
        yield Form(
            dtype=dtype,
            batch=1,
            heads=(2, 1),
            lengths=(int(rng.integers(1, 40)), int(rng.integers(1, 17))),
            depths=(depth, depth - 3 * (number % 2)),
            is_causal=number == 1,
            mask=[None, "bool", "float"][number % 3],
            key_lengths=number == 3,
            query_lengths=number == 4,
        )


def test_short_sequences(folder):
    kernel, rng = HostGradient(folder, Sizes()), np.random.default_rng(SEED)
    for form in short_forms(rng, "float16", 16):
        data = exact(rng, form)
        found = wrong(data, kernel.run(data))
        assert not found, (data.form, data.seed, found, repeat_command())


def with_masked_heads(data: Data, results: list[np.ndarray]) -> list[np.ndarray]:
    """Return results with zeros, as cuDNN has them, for heads whose queries see no key at all."""
    n, shared = data.form.batch, data.form.heads[1]
    sees = np.isfinite(data.expected()[1]).reshape(n, shared, -1).any(axis=2)
    for result in results:
        masked = ~np.repeat(sees, result.shape[1] // shared, axis=1)
        assert np.isnan(result[masked]).all()  # these are not replaced
        result[masked] = 0
    return results


@pytest.mark.parametrize("dtype", of_dtypes("float16", "bfloat16"))
def test_replacement_of_cudnn(folder, dtype):
    kernels, rng = HostLarge(folder, dtype, 32), np.random.default_rng(SEED)
    for number, form in enumerate(short_forms(rng, dtype, 24)):
        data = exact(rng, form)
        found = wrong(data, with_masked_heads(data, kernels.run(data, limit=0, seed=number)))
        assert not found, (data.form, data.seed, found, repeat_command())


def test_only_heads_with_large_scores_are_replaced(folder):
    form = Form(heads=(4, 2), lengths=(70, 20), depths=(8, 8), scale=0.5, key_lengths=True)
    data = Data(form, 0)
    data.given["key_lengths"][:] = (20, 0)
    data.given["query"][0, 3, 69] = 300
    data.given["key"][0, 1, 5] = 300
    found = HostLarge(folder, "float16", 32).run(data, limit=2**14)
    for result, wanted, group in zip(found, data.expected()[2:], (2, 1, 1), strict=True):
        assert np.isnan(result[0, :group]).all()
        assert np.isnan(result[1]).all()  # statistics of minus infinity are not large
        difference = np.linalg.norm(result[0, group:] - wanted[0, group:])
        assert difference <= 1e-3 * np.linalg.norm(wanted[0, group:])


@pytest.mark.needs("nvrtc")
def test_gpu_compiler():
    options = ("-std=c++17", "-DDTYPE=2", "-DMOST_COLUMNS=64")
    code = compile_cuda(kernel_source("attention_large"), *options).code
    wait = code.find("griddepcontrol.wait")
    assert 0 < wait < min(code.find(word) for word in ("ld.global", "st.global"))


# -- on a GPU ------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_cudnn_on_a_gpu(dtype, number):
    rng = np.random.default_rng([SEED, number])
    for _ in range(5):
        data = exact(rng, random_form(rng, [dtype]))
        poison()
        out, _, *gradients = run_on_gpu(data, GradientByCudnn)
        found = wrong(data, [out, *gradients])
        assert not found, (data.form, data.seed, found, repeat_command())


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_short_sequences_on_a_gpu(dtype):
    rng = np.random.default_rng(SEED)
    for form in short_forms(rng, dtype, 16):
        data = exact(rng, form)
        poison()
        out, _, *gradients = run_on_gpu(data, GradientByKernel)
        found = wrong(data, [out, *gradients])
        assert not found, (data.form, data.seed, found, repeat_command())


@pytest.mark.gpu
@pytest.mark.parametrize("length", [1, 17, 64, 100, 128, 192, 320, 1000, 1100])
def test_lengths_on_a_gpu(length):
    rng = np.random.default_rng([SEED, length])
    for depths in ((8, 8), (64, 64), (80, 128), (256, 256)):
        form = Form("float16", 1, (2, 2), (length, length), depths, is_causal=length % 3 == 0)
        data = exact(rng, form)
        out, _, *gradients = run_on_gpu(data)
        found = wrong(data, [out, *gradients])
        assert not found, (data.form, data.seed, found, repeat_command())


@pytest.mark.gpu
@pytest.mark.parametrize("allow_tf32", [False, True])
def test_tiles_on_a_gpu(allow_tf32):
    rng = np.random.default_rng(SEED)
    for _ in range(24):
        data = exact(rng, random_form(rng, ["float32"]))
        form, operands = data.form, data.on_device()
        op = GpuTiledAttention(form.scale, form.is_causal, form.optional, allow_tf32)
        poison()
        out, stats = apply_all(op, *operands)
        gradients = apply_all(op.gradient_op(), *operands, out, stats, data.gout_on_device())
        found = wrong(data, [out, *gradients], "tf32" if allow_tf32 else "float32")
        assert not found, (data.form, data.seed, found, repeat_command())

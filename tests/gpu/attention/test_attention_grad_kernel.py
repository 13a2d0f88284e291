"""The kernel of attention's gradient, run on the host and compiled for a GPU."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from dnnops.dtypes import numpy_dtype
from dnnops.gpu.kernels import kernel_source
from tests.emulation.host_attention_grad import HostGradient, Sizes, relative_errors
from tests.gpu.attention.attention_on_gpu import Data, Form, uniform_operands
from tests.oracle import SEED, repeat_command

#: Rounding a result alone causes mean errors of 2.1e-4 and 1.7e-3.
BOUNDS = {"float16": 4e-4, "bfloat16": 3.2e-3}

SMALL = Sizes()
#: Sizes with several tiles and blocks of columns per warp, and sizes that differ.
WIDE = Sizes(keys=32, queries=16, depth=64, value_depth=32)
BFLOAT16 = Sizes("bfloat16", 8, 32, 32, 32, 64)


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    """Compile the kernel for given sizes, once each."""
    folder: Path = tmp_path_factory.mktemp("attention_grad")
    made: dict[Sizes, HostGradient] = {}

    def of(sizes: Sizes) -> HostGradient:
        if sizes not in made:
            made[sizes] = HostGradient(folder, sizes)
        return made[sizes]

    return of


def random_form(rng: np.random.Generator, sizes: Sizes) -> Form:
    """Return a strategy for forms for which the kernel has enough room."""
    heads = int(rng.integers(1, 3))
    return Form(
        dtype=sizes.dtype,
        batch=int(rng.integers(1, 3)),
        heads=(heads * int(rng.integers(1, 4)), heads),
        lengths=(int(rng.integers(1, 2 * sizes.queries + 2)), int(rng.integers(1, sizes.keys + 1))),
        depths=(int(rng.integers(1, sizes.depth + 1)), int(rng.integers(1, sizes.value_depth + 1)))
        if rng.random() < 0.5
        else (sizes.depth, sizes.value_depth - 8),
        is_causal=bool(rng.random() < 0.4),
        mask=[None, "bool", "float"][rng.integers(3)],
        mask_ones=tuple(int(i) for i in range(4) if rng.random() < 0.4),
        query_lengths=bool(rng.random() < 0.4),
        key_lengths=bool(rng.random() < 0.4),
        layout=str(rng.choice(["heads_first", "heads_inside", "packed"])),
        scale=[None, 0.2][rng.integers(2)],
    )


@pytest.mark.parametrize(
    ("sizes", "count"),
    [
        (SMALL, 14),
        pytest.param(WIDE, 5, marks=pytest.mark.slow),
        pytest.param(BFLOAT16, 5, marks=[pytest.mark.slow, pytest.mark.needs("ml_dtypes")]),
    ],
    ids=("small", "wide", "bfloat16"),
)
def test_random(kernels, sizes, count):
    kernel, rng = kernels(sizes), np.random.default_rng([SEED, count])
    for i in range(count):
        data = Data(random_form(rng, kernel.sizes), int(rng.integers(2**32)))
        found = kernel.run(data, vectors=bool(i % 4), seed=i)
        for name, got, wanted, error in zip(
            ("dquery", "dkey", "dvalue"),
            found,
            data.expected()[2:],
            relative_errors(data, found),
            strict=True,
        ):
            # If little but rounding errors is left, as with one visible key, relative to the terms.
            cancelled = 1e-6 * np.linalg.norm(data.gout) * max(got.shape[3], 1)
            # Rounding a few numbers can cause more than its mean error.
            rounded = np.linalg.norm(wanted.astype(numpy_dtype(sizes.dtype)) - wanted)
            distance = np.linalg.norm(got - wanted)
            assert error <= BOUNDS[sizes.dtype] or distance <= max(cancelled, 1.01 * rounded), (
                f"{name} of {data.form}, seed {data.seed}: {error}; {repeat_command()}"
            )


def test_operator_samples(kernels):
    """PyTorch's samples with values from U(-9, 9): scores of about 100, weights near 1."""
    for seed in range(8):
        form = Form(batch=4, heads=(4, 4), lengths=(3, 6), depths=(8, 8), is_causal=seed % 2 == 1)
        data = uniform_operands(Data(form, seed), 9)
        found = relative_errors(data, kernels(SMALL).run(data, seed=seed))
        assert max(found) <= BOUNDS["float16"], f"seed {seed}: {found}"


@pytest.mark.parametrize("offset", [-125.0, -1000.0, 1000.0, -60000.0, 60000.0])
def test_large_scores(kernels, offset):
    """The weights depend only on differences of scores."""
    data = Data(Form(lengths=(5, 7), depths=(8, 8), mask="bool", offset=offset), 0)
    found = kernels(SMALL).run(data)
    assert all(np.isfinite(x).all() for x in found)
    # The feature with the offset has terms of its size, which cancel.
    for x, wanted in zip(found, data.expected()[2:], strict=True):
        error = np.linalg.norm((x - wanted)[..., 1:]) / np.linalg.norm(wanted[..., 1:])
        assert error <= BOUNDS["float16"] + 4e-7 * abs(offset)


def test_rounded_statistics(kernels):
    """Errors of the statistics, by cuDNN or by rounding, do not matter."""
    data = uniform_operands(Data(Form(lengths=(5, 5), depths=(8, 8)), 0), 9)
    data.expected()[1][:] += np.random.default_rng(0).uniform(-1e-3, 1e-3, (2, 4, 5))
    found = relative_errors(data, kernels(SMALL).run(data))
    assert max(found) <= BOUNDS["float16"], found


def test_nothing_seen(kernels):
    """Gradients of masked positions are zero, and memory there is not read."""
    form = Form(
        batch=4,
        mask="float",
        lengths=(20, 12),
        depths=(8, 16),
        query_lengths=True,
        key_lengths=True,
    )
    data = Data(form, 0)
    data.given["query_lengths"][:] = (20, 0, 7, 17)
    data.given["key_lengths"][:] = (0, 12, 5, 12)
    data.given["mask"][2, :, 3] = -np.inf
    poisoned = Data(form, 0)
    poisoned.given.update({name: array.copy() for name, array in data.given.items()})
    poisoned._expected = data.expected()
    for n in range(4):
        queries, keys = (int(data.given[o][n]) for o in ("query_lengths", "key_lengths"))
        poisoned.given["query"][n, :, queries:] = poisoned.gout[n, :, queries:] = np.nan
        poisoned.given["key"][n, :, keys:] = poisoned.given["value"][n, :, keys:] = np.nan
    found = kernels(SMALL).run(poisoned)
    assert max(relative_errors(data, found)) <= BOUNDS["float16"]
    dquery, dkey, dvalue = found
    for n in range(4):
        queries, keys = (int(data.given[o][n]) for o in ("query_lengths", "key_lengths"))
        assert not dquery[n, :, queries if keys else 0 :].any()
        assert not dkey[n, :, keys:].any()
        assert not dvalue[n, :, keys:].any()
    assert not dquery[2, :, 3].any()
    assert dquery[2, :, 4].any()


def test_nan(kernels):
    """A NaN at a valid position does not reach masked ones."""
    form = Form(batch=1, lengths=(9, 12), depths=(8, 8), query_lengths=True, key_lengths=True)
    data = Data(form, 0)
    data.given["query_lengths"][:], data.given["key_lengths"][:] = 5, 7
    data.expected()
    data.given["key"][0, :, 2, 1] = data.gout[0, :, 3, 4] = np.nan
    dquery, dkey, dvalue = kernels(SMALL).run(data)
    assert np.isnan(dquery[:, :, :5]).all(axis=2).any()
    assert np.isnan(dvalue[:, :, :7]).any()
    assert not dquery[:, :, 5:].any()
    assert not dkey[:, :, 7:].any()
    assert not dvalue[:, :, 7:].any()


def test_repeatable(kernels):
    """Another order of threads gives the same bits."""
    data = Data(Form(heads=(6, 2), lengths=(40, 30), depths=(40, 20), mask="float"), 3)
    first, second = (kernels(WIDE).run(data, seed=seed) for seed in (0, 1))
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.needs("nvrtc")
@pytest.mark.parametrize(
    "sizes",
    [
        SMALL,
        Sizes("bfloat16", 8, 64, 64, 64, 64),
        Sizes("float16", 8, 64, 64, 128, 128),
    ],
    ids=str,
)
def test_compiles_for_a_gpu(sizes):
    """All sums are in registers, and memory is read only after waiting for the stream."""
    from cupy.cuda import nvrtc

    made = nvrtc.createProgram(kernel_source("attention_grad"), "attention_grad.cu", (), ())
    macros = (f"-D{name}={value}" for name, value in sizes.macros.items())
    try:
        nvrtc.compileProgram(made, ("-arch=sm_90", "-Xptxas=-v", *macros))
    except nvrtc.NVRTCError:
        pytest.fail(f"{sizes}: {nvrtc.getProgramLog(made)}")
    log, code = nvrtc.getProgramLog(made), str(nvrtc.getPTX(made))
    nvrtc.destroyProgram(made)
    assert re.findall(r"(\d+) bytes spill stores", log) == ["0"], log
    wait = code.find("griddepcontrol.wait")
    assert 0 < wait < min(code.find(word) for word in ("ld.global", "st.global", "cp.async"))
    assert "mma.sync" in code

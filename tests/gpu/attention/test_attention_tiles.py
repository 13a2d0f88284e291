"""The kernels of float32 attention by tiles, run on the host and compiled for a GPU."""

from __future__ import annotations

import ctypes
import itertools
import re
from pathlib import Path

import numpy as np
import pytest

from dnnops.errors import DnnNotSupportedError, error_from_status
from dnnops.gpu.kernels import kernel_source
from dnnops.runtime.build import CUDNN
from tests.emulation.host_attention_tiles import KERNELS, HostTiles, Tiles
from tests.gpu.attention.attention_on_gpu import OFFSETS, RESULTS, Data, Form, errors
from tests.oracle import SEED, repeat_command

MASKS = (None, "bool", "float")
#: Constants that differ as much as possible. The first two are compiled in each run of the tests.
SPLIT = Tiles(split=1, aligned=0, mask=2)
ROUNDED = Tiles(tiles=2, hold=0, mask=1)
OTHERS = [
    Tiles(warps=1, columns=32, stages=3, hold=0, split=1, mask=1),
    Tiles(columns=32, stages=3, depth=64, split=1, aligned=0),
    Tiles(tiles=2, hold=0, value_depth=96, split=1, mask=2),
    Tiles(warps=4, columns=64, depth=64, value_depth=64),
]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    """Compile the kernels with given constants, once each."""
    folder: Path = tmp_path_factory.mktemp("attention_tiles")
    made: dict[Tiles, HostTiles] = {}

    def of(tiles: Tiles) -> HostTiles:
        if tiles not in made:
            made[tiles] = HostTiles(folder, tiles)
        return made[tiles]

    return of


def assert_right(data: Data, results: list, tiles: Tiles) -> None:
    found = errors(data, results, "float32" if tiles.split else "tf32")
    assert max(found.values()) <= 1, (
        f"{tiles}, {data.form}, seed {data.seed}: errors in parts of what is allowed {found};"
        f" {repeat_command()}"
    )


def random_form(rng: np.random.Generator, tiles: Tiles) -> Form:
    """Return a form for which the kernels are compiled."""
    heads = int(rng.integers(1, 3))
    depths = (tiles.depth, tiles.value_depth - 4)
    if not tiles.aligned:
        depths = (
            int(rng.integers(1, tiles.depth + 1)),
            int(rng.integers(1, tiles.value_depth + 1)),
        )
    return Form(
        dtype="float32",
        batch=int(rng.integers(1, 3)),
        heads=(heads * int(rng.integers(1, 4)), heads),
        lengths=(
            int(rng.integers(1, tiles.rows + 10)),
            int(rng.integers(1, 2 * tiles.columns + 9)),
        ),
        depths=depths,
        is_causal=bool(rng.random() < 0.4),
        mask=MASKS[tiles.mask],
        mask_ones=tuple(int(i) for i in range(4) if rng.random() < 0.4),
        query_lengths=bool(rng.random() < 0.4),
        key_lengths=bool(rng.random() < 0.4),
        layout=str(rng.choice(["heads_first", "heads_inside", "packed"])),
        scale=[None, 0.2][rng.integers(2)],
        offset=float(rng.choice(OFFSETS)),
    )


@pytest.mark.parametrize(
    ("tiles", "count"),
    [
        (SPLIT, 5),
        (ROUNDED, 3),
        *(pytest.param(tiles, 5, marks=pytest.mark.slow) for tiles in OTHERS),
    ],
    ids=str,
)
def test_random(kernels, tiles, count):
    rng = np.random.default_rng([SEED, count])
    for i in range(count):
        data = Data(random_form(rng, tiles), int(rng.integers(2**32)))
        assert_right(data, kernels(tiles).run(data, seed=i), tiles)


def test_long_sums(kernels):
    """Errors of tensor cores, which truncate, do not add up over the tiles."""
    form = Form("float32", 1, (1, 1), (1200, 30), (8, 8), mask="float", mask_ones=(0, 1, 2, 3))
    data = Data(form, 0)
    data.given["mask"][:] = 0
    data.gout[:] = np.abs(data.gout)
    results = kernels(SPLIT).run(data)
    wanted = data.expected()[4]
    # 1e-5 if the sums stayed in tensor cores
    assert np.linalg.norm(results[4] - wanted) <= 1.5e-6 * np.linalg.norm(wanted)


def test_one_key(kernels):
    """The gradients of scores are differences that cancel; the errors of both products are left.

    In parts of the bound, they are 0.08 with NumPy in float32. They are 0.2 if numbers are split by
    truncation, and 0.6 if tensor cores add up the whole depth.
    """
    tiles = Tiles(warps=1, value_depth=128, split=1)
    for seed in range(4):
        data = Data(Form("float32", 4, (4, 2), (3, 1), (32, 128), scale=0.2), seed)
        found = errors(data, kernels(tiles).run(data), "float32")
        assert max(found["dquery"], found["dkey"]) <= 0.12, (seed, found)


def test_nothing_seen(kernels):
    """Results of masked positions are zero, and memory there is not read."""
    form = Form(
        dtype="float32",
        batch=4,
        heads=(2, 1),
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
    out, stats, dquery, dkey, dvalue = results = kernels(SPLIT).run(poisoned)
    assert_right(data, results, SPLIT)
    for n in range(4):
        queries, keys = (int(data.given[o][n]) for o in ("query_lengths", "key_lengths"))
        for result in (out, dquery):
            assert not result[n, :, queries if keys else 0 :].any()
        for result in (dkey, dvalue):
            assert not result[n, :, keys:].any()
        assert np.isneginf(stats[n, :, queries if keys else 0 :]).all()
    assert not out[2, :, 3].any()
    assert not dquery[2, :, 3].any()
    assert dquery[2, :, 4].any()


def test_no_keys(kernels):
    """The output is zero without keys, and so is the gradient with respect to the query."""
    form = Form("float32", 1, (2, 1), (3, 0), (8, 8), mask="float")
    out, stats, dquery, _, _ = kernels(SPLIT).run(Data(form, 0))
    assert not out.any()
    assert not dquery.any()
    assert np.isneginf(stats).all()


def test_repeatable(kernels):
    """Another order of threads gives the same bits."""
    data = Data(Form("float32", 1, (4, 2), (40, 30), (30, 20), mask="float"), 3)
    first, second = (kernels(SPLIT).run(data, seed=seed) for seed in (0, 1))
    for name, a, b in zip(RESULTS, first, second, strict=True):
        np.testing.assert_array_equal(a, b, name)


# -- the variants ---------------------------------------------------------------------------

#: Shared memory of a block with compute capability 8.6, 8.0 and 9.0.
LIMITS = (99 * 1024, 163 * 1024, 227 * 1024)


def variant(kernel: str, depths: tuple[int, int], split: int, causal: int, limit: int) -> Tiles:
    """Return the constants with which the library compiles a kernel."""
    constants = (ctypes.c_int64 * 6)()
    words = (KERNELS.index(kernel), *depths, split, causal, limit)
    status = CUDNN.library.dnnops_cudnn_attention_tiles_variant(
        *map(ctypes.c_int64, words), constants
    )
    if status:
        raise error_from_status(status, CUDNN.library.dnnops_last_error().decode())
    padded = (max(32, -(-depth // 32) * 32) for depth in depths)
    return Tiles(*constants, *padded, split=split)


@pytest.mark.needs("cudnn")
def test_variants_fit_each_device():
    depths = (0, 5, 32, 64, 80, 128, 192, 256)
    for kernel, first, second in itertools.product(KERNELS, depths, depths):
        for split, causal, limit in itertools.product((0, 1), (0, 1), LIMITS):
            tiles = variant(kernel, (first, second), split, causal, limit)
            assert shared_bytes(kernel, tiles) <= limit, (kernel, tiles, limit)
            assert tiles.columns % 8 == 0
            assert tiles.warps in (1, 2, 4, 8)
    with pytest.raises(DnnNotSupportedError, match="depths are at most 256, not 257"):
        variant("out", (257, 8), 0, 0, LIMITS[2])
    with pytest.raises(DnnNotSupportedError, match="too little shared memory, 49152 bytes"):
        variant("dkey", (256, 256), 0, 0, 48 * 1024)


def shared_bytes(kernel: str, tiles: Tiles) -> int:
    numbers = tiles.depth + tiles.value_depth
    own = 0 if tiles.hold else tiles.depth if kernel == "out" else numbers
    more = 3 if kernel == "dkey" else 0
    return 4 * (tiles.stages * tiles.columns * (numbers + more) + tiles.rows * own)


@pytest.mark.needs("nvrtc", "cudnn")
@pytest.mark.parametrize(
    ("kernel", "depth", "split", "causal"),
    [
        pytest.param(
            kernel,
            depth,
            split,
            causal,
            marks=[] if (depth, split, causal) == (64, 1, 1) else pytest.mark.slow,
        )
        for kernel in KERNELS
        for depth in (64, 128, 192)
        for split, causal in ((0, 0), (0, 1), (1, 1))
    ],
)
def test_compiles_for_a_gpu(kernel, depth, split, causal):
    """Nearly all sums are in registers; memory is read only after waiting for the stream."""
    from cupy.cuda import nvrtc

    tiles = variant(kernel, (depth, depth), split, causal, LIMITS[2])
    made = nvrtc.createProgram(kernel_source(f"attention_{kernel}"), f"{kernel}.cu", (), ())
    macros = (f"-D{name}={value}" for name, value in tiles.macros.items())
    try:
        nvrtc.compileProgram(made, ("-arch=sm_90", "-Xptxas=-v", *macros))
    except nvrtc.NVRTCError:
        pytest.fail(f"{tiles}: {nvrtc.getProgramLog(made)}")
    log, code = nvrtc.getProgramLog(made), str(nvrtc.getPTX(made))
    nvrtc.destroyProgram(made)
    assert "warning" not in log, log
    (spilled,) = re.findall(r"(\d+) bytes spill stores", log)
    assert int(spilled) <= (40 if depth <= 128 else 160), log
    wait = code.find("griddepcontrol.wait")
    assert 0 < wait < min(code.find(word) for word in ("ld.global", "st.global", "cp.async"))
    assert "mma.sync" in code

"""The kernels that copy arrays between memory formats, run on the host and compiled for a GPU."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np
import pytest

from dnnops.errors import DnnNotSupportedError
from dnnops.gpu.kernels import kernel_source
from tests.emulation.host_transpose import (
    CONFIGURATIONS,
    COPY_KINDS,
    FILLS_GAPS,
    KINDS,
    LOADS_PAIRS,
    LOADS_QUADS,
    NO_COPY,
    SAME_AXES,
    STORES_PAIRS,
    STORES_QUADS,
    TILES,
    Copy,
    FencedMemory,
    HostKernels,
    copy_of,
    exchange_of,
    kind_of,
    spread_of,
)
from tests.emulation.nvrtc import compile_cuda
from tests.gpu.calls import channels_last, device_tensor, host_tensor
from tests.oracle import SEED, repeat_command, sampled

DTYPES = {2: "float16", 4: "float32", 8: "float64"}
#: Guard elements on each side of a target, more than a tile has, which must not change.
GUARD = 64 * 160
FENCED = FencedMemory(1 << 22)


@pytest.fixture(scope="module")
def kernels(tmp_path_factory) -> HostKernels:
    return HostKernels(tmp_path_factory.mktemp("transpose"), CONFIGURATIONS)


@dataclass(frozen=True)
class Layout:
    """Positions in memory of an array's elements."""

    shape: tuple[int, ...]
    memory_format: str
    #: Elements between the end of an image and the next one.
    gap: int = 0

    @property
    def batch_stride(self) -> int:
        return prod(self.shape[1:]) + self.gap

    @property
    def extent(self) -> int:
        """Return the number of elements from the first to the last."""
        return (self.shape[0] - 1) * self.batch_stride + prod(self.shape[1:])

    def view(self, memory: np.ndarray) -> np.ndarray:
        """Return the array at the start of its memory."""
        axes = list(range(1, len(self.shape)))
        order = [*axes[1:], axes[0]] if self.memory_format == "channels_last" else axes
        strides = {0: self.batch_stride}
        step = 1
        for axis in reversed(order):
            strides[axis] = step
            step *= self.shape[axis]
        in_bytes = [strides[i] * memory.itemsize for i in range(len(self.shape))]
        assert len(memory) == self.extent
        return np.lib.stride_tricks.as_strided(memory, self.shape, in_bytes)


@dataclass(frozen=True)
class Case:
    """An array, its image in a workspace, and the direction of the copy."""

    array: Layout
    inner_format: str
    inner_channels: int
    back: bool
    width: int
    #: Offset of the array, in elements.
    misaligned: int = 0
    at_end: bool = True
    seed: int = 0

    @property
    def inner(self) -> Layout:
        batch, _, *spatial = self.array.shape
        return Layout((batch, self.inner_channels, *spatial), self.inner_format)

    def check(self, kernels: HostKernels) -> Copy:
        """Run the copy and compare the whole target memory, including guards and gaps."""
        rng = np.random.default_rng(self.seed)
        words = np.dtype(f"u{self.width}")
        source, target = (self.inner, self.array) if self.back else (self.array, self.inner)
        fenced = self.source_memory(source, 0 if self.back else self.misaligned)
        fenced[:] = np.frombuffer(rng.bytes(fenced.nbytes), words)
        given = source.view(fenced)

        start = GUARD + (self.misaligned if self.back else 0)
        memory = np.empty(start + target.extent + GUARD + 16, words)
        memory = memory[-(memory.ctypes.data // self.width) % (16 // self.width) :]
        memory[:] = np.frombuffer(rng.bytes(memory.nbytes), words)
        inside = slice(start, start + target.extent)
        expected = memory.copy()
        wanted = target.view(expected[inside])
        wanted[...] = 0
        channels = self.array.shape[1]
        wanted[:, :channels] = given[:, :channels]

        array = target.view(memory[inside]) if self.back else given
        described = host_tensor(array.view(DTYPES[self.width]))
        copy = copy_of(described, self.inner_format, self.inner_channels, self.back)
        given = (copy, fenced.ctypes.data, memory[inside].ctypes.data)
        kernels.run(self.width, [given], self.seed)
        np.testing.assert_array_equal(memory, expected, err_msg=self.words(copy))
        return copy

    def source_memory(self, source: Layout, misaligned: int) -> np.ndarray:
        """Allocate memory next to an unreadable page."""
        size = (source.extent + misaligned) * self.width
        fenced = FENCED.at_end(size, 16) if self.at_end else FENCED.at_start(size)
        return fenced.view(f"u{self.width}")[misaligned:]

    def words(self, copy: Copy) -> str:
        params = {name: getattr(copy.params, name) for name, _ in copy.params._fields_}
        return f"{self}: kind {copy.kind} {params}\nrepeat with {repeat_command()}"


def random_spatial(rng: random.Random) -> tuple[int, ...]:
    """Return a strategy for one to three sizes, with at most 150 positions."""
    positions = rng.choice([1, 4, 31, 32, 33, 49, 64, 65, 128, 150, *[rng.randint(1, 150)] * 10])
    sizes = []
    for _ in range(rng.randrange(3)):
        sizes.append(rng.choice([n for n in range(1, positions + 1) if positions % n == 0]))
        positions //= sizes[-1]
    sizes.insert(rng.randrange(len(sizes) + 1), positions)
    return tuple(sizes)


def random_case(rng: random.Random) -> Case:
    memory_format, inner_format = rng.choice(
        [
            ("contiguous", "channels_last"),
            ("contiguous", "channels_last"),
            ("channels_last", "contiguous"),
            ("channels_last", "contiguous"),
            ("channels_last", "channels_last"),
            ("contiguous", "contiguous"),
        ]
    )
    channels = rng.choice([3, 7, 20, 30, 32, 33, 34, 62, 64, 65, *[rng.randint(1, 80)] * 10])
    unit = rng.choice([1, 4, 8]) if inner_format == "channels_last" else 1
    shape = (rng.randint(1, 3), channels, *random_spatial(rng))
    return Case(
        array=Layout(shape, memory_format, gap=rng.choice([0, 0, 0, 1, 2, 17, 64])),
        inner_format=inner_format,
        inner_channels=-(-channels // unit) * unit,
        back=rng.random() < 0.5,
        width=rng.choice(list(DTYPES)),
        misaligned=rng.choice([0, 0, 0, 1, 2]),
        at_end=rng.random() < 0.7,
        seed=rng.randrange(2**31),
    )


@pytest.mark.needs("cudnn")
def test_random_arrays(kernels):
    """For all shapes, elements are in their new places, padding is zero, the rest is unchanged."""
    rng = random.Random(SEED)
    copies = [random_case(rng).check(kernels) for _ in range(400)]
    assert {kind_of(copy) for copy in copies} == set(KINDS)
    assert len({copy.kind for copy in copies}) > 10


@pytest.mark.needs("cudnn")
@pytest.mark.parametrize("width", DTYPES)
@pytest.mark.parametrize("back", [False, True], ids=["in", "back"])
@pytest.mark.parametrize(("channels", "padded"), [(3, 4), (20, 24), (62, 64), (63, 72)])
@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
def test_padding(kernels, memory_format, channels, padded, back, width):
    """Channels of zeros are added, and removed again."""
    for spatial in ((1, 1), (3, 3), (5, 8), (2, 7, 10)):
        array = Layout((2, channels, *spatial), memory_format)
        Case(array, "channels_last", padded, back, width).check(kernels)


@pytest.mark.needs("cudnn")
def test_vectors(kernels):
    """Two or four elements move at once if sizes, strides and addresses allow it."""

    def sizes(case: Case) -> tuple[int, int]:
        copy = case.check(kernels)
        assert kind_of(copy) == TILES
        load = 4 if copy.kind & LOADS_QUADS else 2 if copy.kind & LOADS_PAIRS else 1
        store = 4 if copy.kind & STORES_QUADS else 2 if copy.kind & STORES_PAIRS else 1
        return load, store

    def case(shape: tuple[int, ...], gap: int = 0, misaligned: int = 0, width: int = 2) -> Case:
        channels = -(-shape[1] // 4) * 4
        layout = Layout(shape, "contiguous", gap)
        return Case(layout, "channels_last", channels, False, width, misaligned)

    assert sizes(case((270, 60, 6, 6))) == (4, 4)
    assert sizes(case((2, 60, 6, 6))) == (2, 4)  # few tiles, which are made narrow
    assert sizes(case((2, 60, 6, 7))) == (2, 4)
    assert sizes(case((2, 60, 9, 7))) == (1, 4)
    assert sizes(case((2, 59, 6, 6))) == (2, 4)  # a padded row
    assert sizes(case((2, 60, 6, 6), gap=1)) == (1, 4)
    assert sizes(case((2, 60, 6, 6), gap=2)) == (2, 4)
    assert sizes(case((2, 60, 6, 6), misaligned=1)) == (1, 4)
    assert sizes(case((2, 60, 6, 6), misaligned=2)) == (2, 4)
    assert sizes(case((2, 60, 6, 6), width=4)) == (4, 4)
    assert sizes(case((2, 60, 6, 7), width=4)) == (1, 4)
    assert sizes(case((2, 60, 6, 6), misaligned=2, width=4)) == (1, 4)
    assert sizes(case((2, 60, 6, 6), width=8)) == (1, 1)
    back = Case(Layout((2, 59, 6, 10), "channels_last"), "contiguous", 59, True, 2)
    assert sizes(back) == (2, 1)


@pytest.mark.needs("cudnn")
@pytest.mark.parametrize("width", DTYPES)
def test_all_kinds(kernels, width):
    """Each kind is chosen for some case: few and many blocks, few rows or columns, odd sizes."""
    kinds = set()
    # By what the sizes can be divided: 1, 2 or 4.
    sizes = (7, 8, 67, 66, 68, 74)
    # Channels that are whole vectors.
    short = product((2, 4, 6, 8, 12, 16, 24, 32, 48), (67, 2048), (1, 3))
    slabs = product((7, 50), (513, 514, 640), (1,))
    large = ((7, 512, 100), (7, 1025, 45), (7, 66, 800), (7, 67, 800))
    for channels, positions, batch in (*product(sizes, sizes, (1, 70)), *short, *slabs, *large):
        for memory_format, other in (
            ("contiguous", "channels_last"),
            ("channels_last", "contiguous"),
        ):
            array = Layout((batch, channels, positions), memory_format)
            kinds.add(Case(array, other, channels, False, width).check(kernels).kind)
    assert kinds == {kind for kind in COPY_KINDS[width] if kind % LOADS_PAIRS != SAME_AXES}


@pytest.mark.needs("cudnn")
def test_rows(kernels):
    """If rows only change their width, four elements move at once on one side, both or none."""
    kinds = set()
    for channels, padded in ((3, 4), (8, 8), (7, 7), (20, 24), (130, 136)):
        for back, misaligned, width in product((False, True), (0, 1), DTYPES):
            array = Layout((2, channels, 5, 13), "channels_last")
            case = Case(array, "channels_last", padded, back, width, misaligned)
            kinds.add((width, case.check(kernels).kind))
    wanted = {
        (width, kind)
        for width in DTYPES
        for kind in COPY_KINDS[width]
        if kind % LOADS_PAIRS == SAME_AXES and not kind & FILLS_GAPS
    }
    assert kinds == wanted


def aligned(count: int, width: int) -> np.ndarray:
    """Return elements at an address that is a multiple of 16."""
    memory = np.empty(count + 16 // width, f"u{width}")
    start = -(memory.ctypes.data // width) % (16 // width)
    return memory[start : start + count]


@dataclass(frozen=True)
class Filters:
    """Filters whose input and output channels are exchanged within each group."""

    shape: tuple[int, ...]  # outputs and inputs of a group, then the spatial axes
    groups: int
    memory_format: str
    reverse: bool
    width: int
    misaligned: int = 0
    #: Elements between the end of an output's filters and the next ones.
    gap: int = 0

    def prepared(self, seed: int) -> tuple[Copy, np.ndarray, np.ndarray, np.ndarray]:
        """Return the copy, the source, the target's memory, and the expected target memory."""
        outputs, inputs, *spatial = self.shape
        shape = (self.groups * outputs, inputs, *spatial)
        layout, size = Layout(shape, self.memory_format, self.gap), prod(shape)
        rng = np.random.default_rng(seed)
        source = aligned(self.misaligned + layout.extent, self.width)[self.misaligned :]
        target = aligned(size + 2 * GUARD, self.width)
        for memory in (source, target):
            memory[:] = np.frombuffer(rng.bytes(memory.nbytes), memory.dtype)
        given = layout.view(source).reshape(self.groups, outputs, inputs, -1)
        turned = given[..., ::-1] if self.reverse else given
        expected = target.copy()
        expected[GUARD : GUARD + size] = turned.transpose(0, 2, 3, 1).ravel()
        described = host_tensor(layout.view(source).view(DTYPES[self.width]))
        copy = exchange_of(described, self.groups, self.reverse)
        return copy, source, target, expected


def random_filters(rng: random.Random, width: int) -> Filters:
    spatial = rng.choice([(1,), (3, 3), (5, 4), (2, 3, 3), (7, 7)])
    groups = rng.choice([1, 1, 2, 3])
    shape = (rng.choice([1, 8, 33, 64, rng.randint(1, 80)]), rng.choice([1, 3, 16, 30]), *spatial)
    memory_format = rng.choice(["contiguous", "channels_last"])
    return Filters(
        shape,
        groups,
        memory_format,
        rng.random() < 0.6,
        width,
        misaligned=rng.choice([0, 0, 1]),
        gap=rng.choice([0, 0, 1, 4]),
    )


@pytest.mark.needs("cudnn")
def test_exchanged_filters(kernels):
    """Channel axes are exchanged and positions reversed, for all formats and groups."""
    rng = random.Random(SEED + 1)
    for number in range(120):
        filters = random_filters(rng, rng.choice(list(DTYPES)))
        copy, source, target, expected = filters.prepared(number)
        kernels.run(filters.width, [(copy, source.ctypes.data, target[GUARD:].ctypes.data)], number)
        np.testing.assert_array_equal(target, expected, err_msg=f"{filters}, {repeat_command()}")


@pytest.mark.needs("cudnn")
def test_spread_images(kernels):
    """Elements move to multiples of the strides; gaps become zero, or stay unchanged."""
    rng = random.Random(SEED + 3)
    kinds = set()
    for number in range(400):
        width, memory_format = rng.choice([2, 4, 8]), rng.choice(["contiguous", "channels_last"])
        ndim = rng.choice([1, 2, 2, 3])
        spatial = [rng.randint(1, 9) for _ in range(ndim)]
        strides = [rng.randint(1, 3) for _ in range(ndim)]
        sizes = [(n - 1) * s + 1 + rng.randrange(s) for n, s in zip(spatial, strides, strict=True)]
        shape = (rng.randint(1, 3), rng.choice([1, 8, 30, 65]), *spatial)
        layout = Layout(shape, memory_format, gap=rng.choice([0, 0, 1, 4]))
        misaligned = rng.choice([0, 0, 1])
        source = aligned(misaligned + layout.extent, width)[misaligned:]
        size = prod((*shape[:2], *sizes))
        target = aligned(size + 2 * GUARD, width)
        for memory in (source, target):
            memory[:] = np.frombuffer(rng.randbytes(memory.nbytes), memory.dtype)
        expected = target.copy()
        inside = expected[GUARD : GUARD + size].reshape(layout.shape[0], *sizes, -1)
        places = tuple(
            slice(None, (n - 1) * s + 1, s) for n, s in zip(spatial, strides, strict=True)
        )
        given = layout.view(source)
        unit = [1] * (2 - ndim)  # the library adds an axis to a single spatial axis
        copy = spread_of(host_tensor(given.view(DTYPES[width])), unit + strides, unit + sizes)
        kinds.add((width, copy.kind))
        if copy.kind & FILLS_GAPS:
            inside[...] = 0
        inside[(slice(None), *places)] = np.moveaxis(given, 1, -1)
        kernels.run(width, [(copy, source.ctypes.data, target[GUARD:].ctypes.data)], number)
        words = f"{layout} {strides} {sizes}, {repeat_command()}"
        np.testing.assert_array_equal(target, expected, err_msg=words)
    assert len([kind for _, kind in kinds if kind & FILLS_GAPS]) >= 7


@pytest.mark.needs("cudnn")
def test_two_copies_at_once(kernels):
    """One launch copies two arrays, whatever the number of blocks of each."""
    rng = random.Random(SEED + 2)
    ran = 0
    for number in range(400):
        width = rng.choice([2, 4])
        both = [random_filters(rng, width) for _ in range(2)]
        prepared = [filters.prepared(number + i) for i, filters in enumerate(both)]
        kinds = [copy.kind for copy, *_ in prepared]
        if (width, *kinds) not in CONFIGURATIONS or NO_COPY in kinds:
            continue
        ran += 1
        kernels.run(
            width,
            [
                (copy, source.ctypes.data, target[GUARD:].ctypes.data)
                for copy, source, target, _ in prepared
            ],
            number,
        )
        for _, _, target, expected in prepared:
            np.testing.assert_array_equal(target, expected, err_msg=f"{both}, {repeat_command()}")
    assert ran > 20


@pytest.mark.needs("cudnn")
def test_refusals():
    """Arrays that are not dense, or have too many blocks, are rejected."""
    spread = device_tensor((2, 4, 5, 6), strides=(500, 60, 12, 2))
    with pytest.raises(DnnNotSupportedError, match="not dense"):
        copy_of(spread, "channels_last", 4, False)
    huge = device_tensor((2**20, 64, 2**10, 2**10))
    with pytest.raises(DnnNotSupportedError, match="too large"):
        copy_of(huge, "channels_last", 64, False)
    wide = channels_last((1, 2**31 - 5, 1, 1), "float16")
    with pytest.raises(DnnNotSupportedError, match="too large"):
        copy_of(wide, "channels_last", 2**31 - 4, False)


@pytest.mark.needs("nvrtc")
def test_gpu_compiler():
    """NVRTC compiles some kinds, without a GPU, and a multiprocessor can run all its threads.

    Each commit takes others.
    """
    for width, first, second in sampled(CONFIGURATIONS, 8):
        macros = (f"-DWIDTH={width}", f"-DFIRST={first}", f"-DSECOND={second}")
        log, code = compile_cuda(kernel_source("transpose"), "-Xptxas=-v", *macros)
        # A kernel that is launched early waits before it reads or writes.
        wait, load, store = map(code.find, ("griddepcontrol.wait", "ld.global", "st.global"))
        assert 0 < wait < min(load, store)
        assert log.count(" 0 bytes spill stores") == 1, f"{macros}: {log}"

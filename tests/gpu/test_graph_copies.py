"""Copies whose addresses change between launches of a CUDA graph."""

from __future__ import annotations

import numpy as np
import pytest

from dnnops.capture.graph import recorded
from dnnops.capture.memory import Pool
from dnnops.capture.replay import Replay
from dnnops.capture.staging import uploads_of
from dnnops.errors import DnnNotSupportedError
from dnnops.runtime.headers import GPU, structure
from tests.emulation.host_kernels import compile_for_gpu, compile_for_host, launch_struct
from tests.oracle import SEED

_CASES, _SLOTS = 60, 4
_LENGTHS = (0, 1, 3, 4, 15, 16, 20, 100, 1000, 5000)


def test_copies_of_the_emulated_kernel(tmp_path):
    """Each launch makes the copies of its slot, in two kernels; then the slot is free.

    How the kernel divides copies among warps changes its speed only, and is not tested.
    """
    random = np.random.default_rng(SEED)
    library = compile_for_host(tmp_path, "graph_copies", {"graph_copies": "GraphCopiesParams"}, {})
    for seed in range(_CASES):
        before, after = (int(random.choice([0, 1, 2, 33, 200])) for _ in range(2))
        total = before + after
        slot_bytes = 24 * total + int(random.choice([16, 48]))
        header = structure("dnnops_table_header", GPU)
        table = np.zeros(64 + _SLOTS * slot_bytes + 16, "u1")
        table = table[-table.ctypes.data % 16 :]
        counts = header.from_buffer(table)
        counters = np.zeros(2, "uint32")
        first = int(random.choice([0, 2**32 - 2]))
        counters[0] = first
        for launch in range(3):
            lengths = random.choice(_LENGTHS, total)
            source, target = (random.integers(0, 256, (total + 1, 6000)).astype("u1") for _ in "ab")
            expected = target.copy()
            words = np.zeros((total, 3), "int64")
            for i, length in enumerate(lengths):
                ways = [(0, 0), (4, 8), (1, 4), (3, 3), (16, 0), (8, 24), (2, 4), (6, 16)]
                at, start = ways[int(random.integers(len(ways)))]
                expected[i, at : at + length] = source[i, start : start + length]
                words[i] = target[i].ctypes.data + at, source[i].ctypes.data + start, length
            slot = (first + launch) % _SLOTS
            table[64 + slot * slot_bytes :][: 24 * total] = words.view("u1").ravel()
            for is_last, begin, count in ((0, 0, before), (1, before, after)):
                parameters = launch_struct(
                    table=table, slot_bytes=slot_bytes, slots=_SLOTS, counters=counters,
                    first=begin, count=count, is_last=is_last,
                )  # fmt: skip
                blocks, threads = int(random.integers(1, 5)), int(random.choice([32, 64]))
                assert not library.run_graph_copies(parameters, blocks, threads, seed)
                is_read = counts.read % 2**32 == (first + launch + 1) % 2**32
                assert is_read == bool(is_last)
            np.testing.assert_array_equal(target, expected)
            assert counters.tolist() == [(first + launch + 1) % 2**32, 0]


@pytest.mark.needs("nvrtc")
def test_compiles():
    assert "graph_copies" in compile_for_gpu("graph_copies", {})


@pytest.mark.gpu
def test_many_launches_on_two_streams():
    """Arguments, small host values and results of many launches are elsewhere each time."""
    import cupy

    random = np.random.default_rng(SEED)
    shapes = ((), (3,), (7, 5), (300, 1001))
    own, out = ([cupy.zeros(shape, "float32") for shape in shapes] for _ in range(2))
    factor = cupy.zeros((), "float32")
    with recorded(Pool(), cupy.cuda.Stream(non_blocking=True)) as recording:
        for x, z in zip(own, out, strict=True):
            cupy.multiply(x, factor, out=z)
    host, cells = [np.zeros((), "float32")], [[x.copy()] for x in own]
    arguments = [(cell, cell[0], x) for cell, x in zip(cells, own, strict=True)]
    replay = Replay(
        recording.graph, arguments, uploads_of([(host, factor)], int), out, range(len(out))
    )
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    cupy.cuda.Device().synchronize()
    kept = []
    for i in range(700):
        host[0] = np.asarray(random.standard_normal(), "float32")
        given = []
        with streams[i // 20 % 2]:
            for cell, shape in zip(cells, shapes, strict=True):
                value = random.standard_normal(shape).astype("float32") if i % 50 == 0 else None
                if value is not None or i % 7 == 0:
                    cell[0] = cupy.asarray(value) if value is not None else cell[0].copy()
                    streams[i // 20 % 2].synchronize()
                given.append(cell[0])
            kept.append((host[0], given, replay.run()))
    for stream in streams:
        stream.synchronize()
    for scale, given, found in kept:
        for x, z in zip(given, found, strict=True):
            np.testing.assert_array_equal(z.get(), x.get() * scale)
    assert replay._table is not None
    header = replay._table._header
    assert (header.read, header.launched) == (700, 700)


@pytest.mark.gpu
@pytest.mark.parametrize("number", [1, 2])
def test_launches_wait_for_a_free_slot(number):
    """The host is ahead of the device by as many launches as there are slots, and no more."""
    import cupy

    slow = cupy.RawKernel(
        """extern "C" __global__ void slow(float *z, const float *x) {
             for (const long long end = clock64() + 4000000; clock64() < end;) {}
             *z = 2 * *x;
           }""",
        "slow",
    )
    own, z = cupy.zeros((), "float32"), cupy.zeros((), "float32")
    slow.compile()
    with recorded(Pool(), cupy.cuda.Stream(non_blocking=True)) as recording:
        slow((1,), (1,), (z, own))
    cell = [own.copy()]
    replay = Replay(recording.graph, [(cell, cell[0], own)], [], [z], [0])
    table = replay._table
    assert table is not None
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(number)]
    given = cupy.arange(400, dtype="float32")
    cupy.cuda.Device().synchronize()
    found, pending = [], []
    for i in range(400):
        with streams[i % number]:
            cell[0] = given[i]
            found.append(replay.run()[0])
        pending.append(table._header.launched - table._header.read)
    for stream in streams:
        stream.synchronize()
    assert max(pending) == table.slots
    assert [int(x) for x in found] == [2 * i for i in range(400)]


@pytest.mark.gpu
def test_not_within_another_capture():
    import cupy

    x, z = cupy.ones(4), cupy.zeros(4)
    with recorded(Pool(), cupy.cuda.Stream(non_blocking=True)) as recording:
        cupy.add(x, x, out=z)
    replay = Replay(recording.graph, [], [], [z], [0])
    with cupy.cuda.Stream(non_blocking=True) as stream:
        assert replay.run()[0].sum() == 8
        stream.begin_capture()
        with pytest.raises(DnnNotSupportedError, match="while its stream is being captured"):
            replay.run()
        stream.end_capture()
        assert replay.run()[0].sum() == 8

"""What a replay of a CUDA graph copies, on a device in host memory."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dnnops.capture import graph, replay, table
from dnnops.capture.graph import Graph
from dnnops.capture.replay import Replay
from dnnops.capture.staging import uploads_of
from dnnops.errors import DnnError
from tests.gpuarray.fake_devices import FakeDevices

_HEADER = 64


class HostReplays:
    """Runs launches of one graph as its kernels do, with a function in place of its nodes.

    Attributes
    ----------
    launched : callable
        What the nodes do.
    lag : int
        Number of launches that wait before the first of them runs.
    status : int
        What launches return instead of waiting to run.
    """

    def __init__(self) -> None:
        self.graph: Any = None
        self.launched: Any = lambda: None
        self.lag = self.status = self.launches = 0
        self.events: list[int] = []
        self.waiting: deque[Any] = deque()
        self.destroyed: list[Any] = []
        self.table: Any = None

    def dnnops_last_error(self) -> bytes:
        return b"no"

    def dnnops_cudnn_graph_destroy(self, address: int, executable: int) -> None:
        self.destroyed.append((address, executable))

    def dnnops_cudnn_graph_instantiate(
        self, address: int, given: Any, stream: int, executable: Any
    ) -> int:
        assert (address, stream) == (7, 0)
        self.table = given and given._obj
        executable._obj.value = 1
        return 0

    def dnnops_cudnn_graph_replay(self, given: Any, slot: Any, uploaded: Any, stream: int) -> int:
        replayed = given._obj
        assert (replayed.executable, stream) == (1, 0)
        self.events.append(uploaded)
        _copy(replayed.uploads, range(replayed.upload_count))
        assert (slot is None) == (self.table is None)
        if slot is not None:
            ctypes.memmove(slot, replayed.copies, 24 * replayed.copy_count)
        if self.status:
            return self.status
        if slot is not None:
            (ctypes.c_uint32 * 2).from_address(replayed.table)[1] += 1
        self.waiting.append(self._run)
        while len(self.waiting) > self.lag:
            self.waiting.popleft()()
        return 0

    def _run(self) -> None:
        """Run a launch, which knows its slot only by its number."""
        held = self.table
        if held is None:
            self.launched()
            return
        words = held.memory + _HEADER + self.launches % 2**32 % held.slots * held.slot_bytes
        _copy(words, range(held.before))
        self.launched()
        _copy(words, range(held.before, held.before + held.after))
        self.launches += 1
        (ctypes.c_uint32 * 2).from_address(held.memory)[0] = self.launches


def _copy(words: int, numbers: range) -> None:
    for number in numbers:
        to, source, nbytes = (ctypes.c_int64 * 3).from_address(words + 24 * number)
        ctypes.memmove(to, source, nbytes)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> FakeDevices:
    fake = FakeDevices()
    events: list[Any] = []

    def event(disable_timing: bool) -> Any:
        events.append(SimpleNamespace(ptr=100 + len(events), synchronize=lambda: None))
        return events[-1]

    fake.cuda.Event = event
    fake.cuda.alloc_pinned_memory = _Pinned
    fake.cuda.alloc = _Memory
    monkeypatch.setitem(sys.modules, "cupy", fake)
    return fake


class _Memory:
    """Memory whose addresses are buffers for NumPy's arrays."""

    def __init__(self, nbytes: int) -> None:
        self.buffer = bytearray(nbytes)

    def __add__(self, offset: int) -> memoryview:
        return memoryview(self.buffer)[offset:]


class _Pinned(bytearray):
    @property
    def ptr(self) -> int:
        return ctypes.addressof(ctypes.c_char.from_buffer(self))


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> HostReplays:
    made = HostReplays()
    for module in (graph, replay):
        monkeypatch.setattr(module, "CUDNN", SimpleNamespace(library=made))
    monkeypatch.setattr(table, "_still_read", deque())
    made.graph = Graph(7, 0, 0)
    return made


def images(seed: int) -> np.ndarray:
    """Return an array in channels-last format."""
    return np.random.default_rng(seed).standard_normal((2, 4, 5, 3)).transpose(0, 3, 1, 2)


def test_arguments_and_results(device, host):
    """The graph adds arrays of three layouts: dense, channels-last, and with gaps."""
    values = [np.arange(6.0).reshape(2, 3), images(0), np.arange(12.0)[::2]]
    cells = [[device.array(value)] for value in values]
    own = [device.array(value.copy(order="K")) for value in values]
    sums = device.array(np.zeros(3))
    turned = device.array(np.zeros((2, 3)).T)
    made = Replay(
        host.graph,
        [(cell, cell[0], array) for cell, array in zip(cells, own, strict=True)],
        [],
        [sums, turned, None, "constant"],
        [0, 1],
    )

    def launched() -> None:
        sums[...] = [array.sum() for array in own]
        turned[...] = own[0].T

    host.launched = launched
    kept = []
    for seed in range(3):
        for cell, value in zip(cells, values, strict=True):
            step = np.random.default_rng(seed).standard_normal(value.shape)
            moved = np.empty_like(value) if value.flags.c_contiguous else value.copy(order="K")
            if value.ndim == 1:
                moved = np.empty(12)[::2]
            moved[...] = step
            cell[0] = device.array(moved)
        kept.append(([cell[0].copy() for cell in cells], made.run()))
    for given, (found, transposed, nothing, constant) in kept:
        np.testing.assert_allclose(found, [value.sum() for value in given])
        np.testing.assert_array_equal(transposed, given[0].T)
        assert nothing is None
        assert constant == "constant"
    assert host.events == [None] * 3


def test_results_are_kept(device, host):
    """Small results of many calls share memory, but no two results overlap."""
    arrays = [device.array(np.zeros(shape)) for shape in ((), (0,), (33,), (1000,), (2, 3))]
    made = Replay(host.graph, [], [], arrays, range(5))
    kept = []
    for i in range(40):
        for j, array in enumerate(arrays):
            array[...] = 10 * i + j
        kept.append(made.run())
    starts = set()
    for i, results in enumerate(kept):
        for j, (found, array) in enumerate(zip(results, arrays, strict=True)):
            assert (found.shape, found.dtype) == (array.shape, array.dtype)
            np.testing.assert_array_equal(found, np.full(array.shape, 10 * i + j))
            starts.add(found.ctypes.data)
    assert len(starts) >= 4 * len(kept)


def test_memory_of_the_next_results_is_short(device, host, monkeypatch):
    """A launch returns its results even if there is no memory for those of the next one."""
    out = device.array(np.zeros(400))
    made = Replay(host.graph, [], [], [out], [0])
    kept = []
    limit, allocated = 3, 0

    def allocate(nbytes: int) -> _Memory:
        nonlocal allocated
        if allocated == limit:
            raise MemoryError
        allocated += 1
        return _Memory(nbytes)

    monkeypatch.setattr(made, "_allocate", allocate)
    for i in range(3 * 16):
        out[...] = i
        kept += made.run()
    with pytest.raises(MemoryError):
        made.run()
    assert host.launches == len(kept)
    limit = 4
    out[...] = len(kept)
    kept += made.run()
    np.testing.assert_array_equal(kept, np.arange(49.0)[:, None] * np.ones(400))


def test_threads_have_their_own_results(device, host):
    """Memory of one stream's pool must not be written by a launch on another stream."""
    out = device.array(np.zeros(()))
    made = Replay(host.graph, [], [], [out], [0])
    made.run()
    own = np.frombuffer(made._memory.buffer, "u1")
    with ThreadPoolExecutor(1) as executor:
        (second,) = executor.submit(made.run).result()
    others = np.frombuffer(made._memory.buffer, "u1")
    (third,) = made.run()
    assert not np.shares_memory(second, own)
    assert not np.shares_memory(third, others)


def test_the_next_results_are_made_behind_the_launch(device, host, monkeypatch):
    out = device.array(np.zeros(()))
    made = Replay(host.graph, [], [], [out], [0])
    order = []
    make = made._ndarray

    def made_array(*args: Any) -> Any:
        order.append("array")
        return make(*args)

    monkeypatch.setattr(made, "_ndarray", made_array)
    host.launched = lambda: order.append("launch")
    for _ in range(2):
        made.run()
    assert order == ["array", *["launch", "array"] * 2]


@pytest.mark.parametrize("is_one_block", [False, True])
@pytest.mark.parametrize("length", [4, 5000])
def test_host_values(device, host, length, is_one_block):
    """The graph reads small values itself; buffers of large ones take turns."""
    rate, labels = [np.array(0.5, "float32")], [np.arange(length)]
    block = device.array(np.zeros(length + 12, "int64"))
    targets = [block[1:2].view("float32")[0:1].reshape(()), block[4 : 4 + length]]
    uploads = uploads_of(
        list(zip([labels, rate], targets[::-1], strict=True)),
        (lambda address: 0) if is_one_block else int,
    )
    assert len(uploads) == (1 if is_one_block else 2)
    out = device.array(np.zeros(length))
    made = Replay(host.graph, [], uploads, [out], [0])
    host.launched = lambda: np.multiply(targets[0], targets[1], out=out)
    for i in range(4):
        rate[0], labels[0] = np.array(i, "float32"), np.arange(length) + i
        (found,) = made.run()
        np.testing.assert_array_equal(found, i * (np.arange(length) + i))
    if length == 4:
        assert host.events == [None] * 4
    else:
        assert host.events[0] != host.events[1]
        assert host.events[:2] == host.events[2:]
    assert np.array_equal(block[4 + length :], np.zeros(8))


def test_a_host_value_of_another_shape_or_dtype(device, host):
    cell = [np.arange(4)]
    target = device.array(np.zeros(4, "int64"))
    made = Replay(host.graph, [], uploads_of([(cell, target)], int), [], [])
    for value in (np.arange(3), np.arange(4.0)):
        cell[0] = value
        message = (
            rf"int64 array had shape \(4,\); it is a {value.dtype} array of shape \({value.size},\)"
        )
        with pytest.raises(DnnError, match=message):
            made.run()
    assert host.events == []
    cell[0] = np.arange(4) + 9
    assert made.run() == []
    np.testing.assert_array_equal(target, np.arange(4) + 9)


def _sums(device: FakeDevices, host: HostReplays) -> tuple[Any, Any, Any]:
    """Return a replay whose result is the sum of an argument and a host value, and both."""
    cell, step = [device.array(np.zeros(3))], [np.array(0.0)]
    own, number = device.array(np.zeros(3)), device.array(np.zeros(()))
    out = device.array(np.zeros(3))
    host.launched = lambda: np.add(own, number, out=out)
    uploads = uploads_of([(step, number)], int)
    return Replay(host.graph, [(cell, cell[0], own)], uploads, [out], [0]), cell, step


def test_launches_that_wait_keep_their_slots(device, host, monkeypatch):
    """The host does not overwrite a slot that a launch is still to read; it waits."""
    made, cell, step = _sums(device, host)
    host.lag = 10_000
    pauses = []

    def run_some(seconds: float) -> None:
        pauses.append(len(host.waiting))
        for _ in range(5):
            host.waiting.popleft()()

    device.cuda.runtime.streamQuery = lambda stream: 600
    monkeypatch.setattr(table.time, "sleep", run_some)
    given, found = [], []
    for i in range(500):
        cell[0], step[0] = device.array(np.full(3, 1000.0 * i)), np.array(float(i))
        given.append(cell[0])
        found += made.run()
    assert set(pauses) == {host.table.slots}
    while host.waiting:
        host.waiting.popleft()()
    np.testing.assert_array_equal(found, np.arange(500.0)[:, None] * np.full(3, 1001))


def test_launches_on_another_stream_are_waited_for(device, host, monkeypatch):
    made, _, _ = _sums(device, host)
    host.lag = 10_000
    device.cuda.runtime.streamQuery = lambda stream: 0

    def synchronize(own: Any) -> None:
        while host.waiting:
            host.waiting.popleft()()

    monkeypatch.setattr(type(device.cuda.Device(0)), "synchronize", synchronize, raising=False)
    kept = [made.run() for _ in range(300)]
    assert 0 < len(host.waiting) < len(kept)


@pytest.mark.parametrize("status", [0, 700])
def test_launches_that_never_end(device, host, monkeypatch, status):
    """The device has failed, or its count is not that of the host."""
    made, _, _ = _sums(device, host)
    host.lag = 10_000
    device.cuda.runtime.streamQuery = lambda stream: status

    def synchronize(own: Any) -> None:
        if status:
            raise RuntimeError("an illegal address")

    monkeypatch.setattr(type(device.cuda.Device(0)), "synchronize", synchronize, raising=False)
    kept = [made.run() for _ in range(host.table.slots)]
    message = "an illegal address" if status else "without reading their slots"
    with pytest.raises(RuntimeError if status else DnnError, match=message):
        made.run()
    assert len(host.waiting) == len(kept)


def test_a_launch_that_fails(device, host):
    """The next launch uses its slot."""
    made, cell, step = _sums(device, host)
    made.run()
    host.status = 1
    for _ in range(3):
        with pytest.raises(DnnError):
            made.run()
    host.status = 0
    cell[0], step[0] = device.array(np.ones(3)), np.array(2.0)
    np.testing.assert_array_equal(made.run(), [[3.0] * 3])


def test_counts_wrap_around(device, host):
    made, cell, step = _sums(device, host)
    start = 2**32 - 3
    launches = (ctypes.c_uint32 * 2).from_address(host.table.memory)
    launches[0] = launches[1] = host.launches = start
    for i in range(6):
        cell[0], step[0] = device.array(np.full(3, float(i))), np.array(10.0)
        np.testing.assert_array_equal(made.run(), [[10.0 + i] * 3])
    assert launches[1] == 3


def test_memory_that_launches_still_read_is_kept(device, host):
    host.lag = 1
    made, *arrays = _sums(device, host)
    arrays.append(made.run())
    address = host.table.memory
    del made
    host.graph = None
    gc.collect()
    assert host.destroyed == [(7, None), (None, 1)]
    assert [kept[1].ptr for kept in table._still_read] == [address]
    table.LaunchTable([], [8])
    assert len(table._still_read) == 1
    host.waiting.popleft()()
    table.LaunchTable([], [8])
    assert not table._still_read


def test_large_slots_are_fewer(device, host):
    for nbytes in (0, 1 << 14, 1 << 20):
        made = table.LaunchTable([8], [8], [nbytes])
        size = made.slots * made.structure.slot_bytes
        assert made.slots == 8 or size <= 1 << 20
        assert made.slots in (8, 32, 128)

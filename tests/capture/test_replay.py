"""What a replay of a CUDA graph copies, on a device in host memory."""

from __future__ import annotations

import ctypes
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dnnops.capture import replay
from dnnops.capture.replay import Replay
from dnnops.capture.staging import Staging
from dnnops.errors import DnnError
from tests.gpuarray.fake_devices import FakeDevices


class HostReplays:
    """Runs the copies of replays, and a function in place of a graph."""

    def __init__(self) -> None:
        self.graph: Any = SimpleNamespace(executable=1)
        self.launched: Any = lambda: None
        self.events: list[int] = []

    def dnnops_cudnn_graph_replay(
        self, executable: int, words: Any, before: int, after: int, uploaded: Any, stream: int
    ) -> int:
        assert (executable, stream) == (1, 0)
        copies = np.ctypeslib.as_array(words).reshape(-1, 3) if len(words) else []
        assert len(copies) == before + after
        for i, (to, source, nbytes) in enumerate([*copies, (0, 0, 0)]):
            if i == before:
                self.events.append(uploaded)
                self.launched()
            ctypes.memmove(int(to), int(source), int(nbytes))
        return 0


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
    monkeypatch.setattr(replay, "CUDNN", SimpleNamespace(library=made))
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
        Staging([], int),
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
    made = Replay(host.graph, [], Staging([], int), arrays, range(5))
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


@pytest.mark.parametrize("is_one_block", [False, True])
def test_host_values_take_turns(device, host, is_one_block):
    """A buffer is not overwritten before the copy from it has run."""
    rate, labels = [np.array(0.5, "float32")], [np.arange(4)]
    block = device.array(np.zeros(12, "int64"))
    targets = [block[1:2].view("float32")[0:1].reshape(()), block[4:8]]
    uploads = list(zip([labels, rate], targets[::-1], strict=True))
    staging = Staging(uploads, (lambda address: 0) if is_one_block else int)
    out = device.array(np.zeros(4))
    made = Replay(host.graph, [], staging, [out], [0])
    host.launched = lambda: np.multiply(targets[0], targets[1], out=out)
    for i in range(4):
        rate[0], labels[0] = np.array(i, "float32"), np.arange(4) + i
        (found,) = made.run()
        np.testing.assert_array_equal(found, i * (np.arange(4) + i))
    assert host.events[0] != host.events[1]
    assert host.events[:2] == host.events[2:]
    copies = 1 if is_one_block else 2
    assert len({address for copy in staging.copies for address in copy[1]}) == 2 * copies
    assert np.array_equal(block[8:], np.zeros(4))


def test_a_host_value_of_another_shape_or_dtype(device, host):
    cell = [np.arange(4)]
    staging = Staging([(cell, device.array(np.zeros(4, "int64")))], int)
    made = Replay(host.graph, [], staging, [], [])
    for value in (np.arange(3), np.arange(4.0)):
        cell[0] = value
        message = (
            rf"int64 array had shape \(4,\); it is a {value.dtype} array of shape \({value.size},\)"
        )
        with pytest.raises(DnnError, match=message):
            made.run()
    assert host.events == []
    cell[0] = np.arange(4)
    assert made.run() == []

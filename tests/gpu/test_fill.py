"""Fills of memory in CUDA graphs."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import numpy as np
import pytest

from dnnops.capture.graph import recorded
from dnnops.capture.memory import Pool
from dnnops.capture.replay import Replay
from tests.emulation.host_kernels import compile_for_gpu, compile_for_host, launch_struct
from tests.oracle import SEED

_CASES = 200


class Fill(NamedTuple):
    """Sets some items to a value."""

    item_size: int
    offset: int
    length: int
    value: int

    def fill(self, memory):
        """Return a filled copy of an array of bytes."""
        filled = memory.copy()
        filled.view(f"u{self.item_size}")[self.offset :][: self.length] = self.value
        return filled

    @property
    def word(self):
        """The four bytes that repeat."""
        return int.from_bytes(
            self.value.to_bytes(self.item_size, "little") * (4 // self.item_size), "little"
        )


def _random_fill(random):
    item_size = int(random.choice([1, 2, 4]))
    offset = int(random.integers(0, 40)) // item_size
    length = int(random.choice([0, 4, 12, 15, 16, 20, 100, 5000, 40000])) // item_size
    return Fill(item_size, offset, length, int(random.integers(0, 2 ** (8 * item_size))))


def test_fills_of_the_emulated_kernel(tmp_path):
    random = np.random.default_rng(SEED)
    library = compile_for_host(tmp_path, "fill", {"fill": "FillParams"}, {})
    for seed in range(_CASES):
        case = _random_fill(random)
        memory = random.integers(0, 256, 1 << 17).astype("u1")
        # NumPy's memory has the alignment of a vector.
        memory = memory[-memory.ctypes.data % 16 :][: 1 << 16]
        expected = case.fill(memory)
        part = memory[case.item_size * case.offset :]
        launch = launch_struct(to=part, bytes=case.item_size * case.length, word=case.word)
        assert not library.run_fill(launch, int(random.integers(1, 5)), 32, seed)
        np.testing.assert_array_equal(memory, expected, err_msg=repr(case))


@pytest.mark.needs("nvrtc")
def test_compiles():
    assert "fill" in compile_for_gpu("fill", {})


@pytest.mark.gpu
def test_fills_of_a_captured_graph():
    """All fills become kernels, except those of rows with gaps between them."""
    import cupy

    random = np.random.default_rng(SEED)
    cases = [case for case in (_random_fill(random) for _ in range(_CASES)) if case.length]
    memory = cupy.zeros((len(cases) + 1, 1 << 16), "u1")
    driver, stream = ctypes.CDLL("libcuda.so.1"), cupy.cuda.Stream(non_blocking=True)
    on = ctypes.c_void_p(stream.ptr)
    with recorded(Pool(), stream) as recording:
        for row, case in zip(memory, cases, strict=False):
            fill = getattr(driver, f"cuMemsetD{8 * case.item_size}Async")
            to = ctypes.c_uint64(row.data.ptr + case.item_size * case.offset)
            assert not fill(to, case.value, ctypes.c_size_t(case.length), on)
        to, pitch, width, height = (
            ctypes.c_uint64(n) for n in (memory[-1].data.ptr, 512, 100, 128)
        )
        assert not driver.cuMemsetD2D8Async(to, pitch, 7, width, height, on)
    graph = recording.graph
    assert (graph.nodes, graph.fills) == (len(cases) + 1, 1)
    Replay(graph, [], [], [], []).run()
    *filled, rows = memory.get()
    zeros = np.zeros(1 << 16, "u1")
    for row, case in zip(filled, cases, strict=True):
        np.testing.assert_array_equal(row, case.fill(zeros), err_msg=repr(case))
    assert (rows.reshape(128, 512)[:, :100] == 7).all()
    assert not rows.reshape(128, 512)[:, 100:].any()

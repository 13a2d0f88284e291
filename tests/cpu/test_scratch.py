"""Scratch memory on the CPU, and how much of it a thread keeps."""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dnnops.config import flag_value
from dnnops.cpu.conv import OneDnnConv, OneDnnConvGradWeights
from dnnops.errors import DnnValueError
from dnnops.runtime.build import ONEDNN
from tests.oracle import run_op


def kept() -> int:
    return ONEDNN.library.dnnops_onednn_kept_scratch()


def set_limit(size: int) -> None:
    ONEDNN.library.dnnops_onednn_set_scratch_limit(size)


@pytest.fixture
def limit() -> Iterator[Any]:
    yield set_limit
    set_limit(flag_value("onednn.scratch_limit"))


CALLS = {
    "5x5": (OneDnnConv(2, "half"), (4, 8, 64, 64), (8, 8, 5, 5)),
    "3x3, Winograd": (OneDnnConv(2, "half"), (4, 64, 32, 32), (64, 64, 3, 3)),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", CALLS)
def test_memory_above_the_limit_is_freed(name, dtype, limit):
    op, *shapes = CALLS[name]
    x, w = (np.ones(shape, dtype) for shape in shapes)
    limit(2**40)
    expected = run_op(op, x, w)
    taken = kept()
    assert taken > 2**18  # the call needs this much
    limit(taken)
    run_op(op, x, w)
    assert kept() == taken
    limit(taken - 1)
    np.testing.assert_array_equal(run_op(op, x, w), expected)
    assert kept() == 0


def test_it_is_given_back_after_a_failure(limit):
    x, top = np.ones((4, 8, 64, 64), "float32"), np.ones((4, 8, 64, 64), "float32")
    op = OneDnnConvGradWeights(2, "half")
    run_op(op, x, top, np.array([5, 5]))
    limit(0)
    storage: list[list] = [[None]]
    node = op.make_node(x, top, np.array([5, 5]))
    with pytest.raises(DnnValueError):
        op.perform(node, [x, top[:1], np.array([5, 5])], storage)
    run_op(op, x, top, np.array([5, 5]))
    assert kept() == 0


def test_the_default():
    assert flag_value("onednn.scratch_limit") == 64 * 2**20


_FAULTS = """
import resource
import numpy as np
from dnnops.cpu.base import onednn_available

assert onednn_available()[0]

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    arrays = [np.ones(2**19) for _ in range(40)]  # 4 MiB each
    del arrays
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

for _ in range(2):
    faults()
print(faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="requires glibc's malloc")
@pytest.mark.parametrize(
    ("environment", "keeps"),
    [
        ({}, True),
        ({"PYTENSOR_FLAGS": "onednn.kept_memory=0"}, False),
        ({"MALLOC_TRIM_THRESHOLD_": "131072"}, False),
    ],
)
def test_freed_memory_is_kept(environment, keeps):
    """Pages of freed arrays are used again, unless a flag or the environment forbids it."""
    flags = ",".join(
        filter(None, (os.environ.get("PYTENSOR_FLAGS"), environment.get("PYTENSOR_FLAGS")))
    )
    # Without huge pages, which NumPy requests, each page of 4 KiB is counted.
    given = {**os.environ, "NUMPY_MADVISE_HUGEPAGE": "0", **environment, "PYTENSOR_FLAGS": flags}
    done = subprocess.run(
        [sys.executable, "-c", _FAULTS], capture_output=True, text=True, check=True, env=given
    )
    pages = 40 * 4 * 2**20 // resource.getpagesize()
    assert (int(done.stdout) < pages / 10) == keeps


_PEAK = """
import resource
import numpy as np
from dnnops.cpu.conv import OneDnnConv, OneDnnConvGradInputs

def call(op, *arrays):
    storage = [[None]]
    op.make_node(*arrays).op.perform(op.make_node(*arrays), list(arrays), storage)
    return storage[0][0]

x, w = np.ones((8, 64, 112, 112), "float32"), np.ones((64, 64, 1, 1), "float32")
call(OneDnnConv(2, "half"), x[:1, :, :9, :9].copy(), w)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
call(OneDnnConv(2, "half"), x, w)
call(OneDnnConvGradInputs(2, "half"), w, x, np.array([112, 112]))
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(peak * 1024 / x.nbytes)
"""


def test_the_output_has_room_for_the_copy_of_the_input():
    """At most two arrays of the output's size exist, including the output."""
    done = subprocess.run([sys.executable, "-c", _PEAK], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 2.3

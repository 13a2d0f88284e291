"""Threads that share a function, processes forked after use, thread counts that change."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from dnnops.nnet import conv2d
from tests.linkers import LINKERS

#: Runs in a separate process, because a failure would end the test run.
PRELUDE = """
import multiprocessing, sys, threading
import numpy as np, pytensor, pytensor.tensor as pt, dnnops
from dnnops.nnet import conv2d, pool_2d
x, k = (pt.tensor(dtype=DTYPE, shape=(None,) * 4) for _ in range(2))
"""

FORK = """
f = pytensor.function([x, k], conv2d(x, k), mode=MODE)
image, filters = np.ones((4, 8, 24, 24), DTYPE), np.ones((16, 8, 3, 3), DTYPE)
expected = f(image, filters)
def child():
    sys.exit(0 if np.array_equal(f(image, filters), expected) else 1)
process = multiprocessing.get_context("fork").Process(target=child)
process.start()
process.join(30)
if process.is_alive():
    process.kill()
    sys.exit("the child hangs")
sys.exit(process.exitcode)
"""

SHARED = """
f = pytensor.function([x, k], pool_2d(conv2d(x, k, border_mode=1), (2, 2), True), mode=MODE)
rng = np.random.default_rng(0)
# PyTensor's check of what a call was given counts operands, of both threads' calls together.
f.trust_input = True
f(np.ones((1, 8, 16, 16), DTYPE), np.ones((16, 8, 3, 3), DTYPE))
def work(first):
    for i in range(400):
        n = 1 + (i * 7 + first) % 5
        f(np.ones((n, 8, 16 + i % 3, 16), DTYPE), np.ones((16, 8, 3, 3), DTYPE))
threads = [threading.Thread(target=work, args=(3 * i,)) for i in range(2)]
[t.start() for t in threads]
[t.join() for t in threads]
"""


NORMALIZATION = """
from dnnops.nnet import batch_normalization_test, batch_normalization_train
x, top = (pt.tensor(dtype=DTYPE, shape=(None,) * 4) for _ in range(2))
parameters = [pt.tensor(dtype=DTYPE, shape=(None,)) for _ in range(4)]
out, mean, invstd = batch_normalization_train(x, *parameters[:2], axes="spatial")
grads = pytensor.grad(None, [x, *parameters[:2]], known_grads={out: top})
train = pytensor.function([x, top, *parameters[:2]], [out, mean, invstd, *grads], mode=MODE)
out = batch_normalization_test(x, *parameters, axes="spatial")
infer = pytensor.function([x, *parameters], out, mode=MODE)
assert any("OneDnn" in str(node.op) for f in (train, infer) for node in f.maker.fgraph.apply_nodes)
rng = np.random.default_rng(0)
# Some are for several threads, and some have to be packed.
shapes = [(4, 8, 40, 33), (3, 5, 7, 7), (64, 32, 1, 1), (2, 16, 50, 64)]
cases = []
for i, shape in enumerate(shapes):
    images = [rng.standard_normal(shape).astype(DTYPE) for _ in range(2)]
    if i % 2:
        images = [np.moveaxis(np.ascontiguousarray(np.moveaxis(a, 1, 3)), 3, 1) for a in images]
    vectors = [rng.uniform(0.5, 2, shape[1]).astype(DTYPE) for _ in range(4)]
    arrays = [(*images, *vectors[:2]), (images[0], *vectors)]
    cases += [(k, a, f(*a)) for k, (f, a) in enumerate(zip((train, infer), arrays))]
wrong, done = [], []
# One function keeps one set of operands: each thread has functions of its own.
def work(first, functions):
    for i in range(150):
        k, arrays, expected = cases[(i * 3 + first) % len(cases)]
        results = functions[k](*arrays)
        pairs = zip(results, expected) if k == 0 else [(results, expected)]
        wrong.extend(1 for a, b in pairs if not np.allclose(a, b, rtol=1e-4, atol=1e-4))
    done.append(first)
threads = [
    threading.Thread(target=work, args=(i, [f.copy() for f in (train, infer)])) for i in range(2)
]
[t.start() for t in threads]
[t.join() for t in threads]
sys.exit(bool(wrong) or len(done) < 2)
"""


def run(script: str, mode: str | None, dtype: str) -> subprocess.CompletedProcess:
    head = PRELUDE.replace("DTYPE", repr(dtype)).replace("MODE", repr(mode))
    body = script.replace("DTYPE", repr(dtype)).replace("MODE", repr(mode))
    return subprocess.run(
        [sys.executable, "-c", head + body],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
@LINKERS
def test_forked_child_computes(mode, dtype):
    finished = run(FORK, mode, dtype)
    assert finished.returncode == 0, finished.stderr


@pytest.mark.slow
@LINKERS
def test_two_threads_in_one_function_do_not_crash(mode):
    finished = run(SHARED, mode, "float32")
    assert finished.returncode == 0, finished.stderr
    # Numba lets go of the lock, so one thread may call it with what the other has cleared.
    allowed = {"TypingError"} if mode is None else set()
    assert set(re.findall(r"\w+Error\b", finished.stderr)) <= allowed


def test_copies_of_one_function_run_in_threads():
    """Follow the documentation's advice for modes in which calls do not wait for each other."""
    page = Path(__file__).parents[2] / "docs" / "graphs.rst"
    if page.exists():  # not in an installed package
        text = " ".join(page.read_text().split())
        assert "two calls write to the same arrays: give each thread a copy, ``f.copy()``" in text
    x = pt.ftensor4("x")
    filters = pytensor.shared(np.ones((2, 3, 3, 3), "float32"))
    f = pytensor.function([x], conv2d(x, filters), mode="DNN")
    wrong = []

    def work(number: int, own) -> None:
        image = np.full((2, 3, 8, 8), number, "float32")
        wrong.extend(number for _ in range(50) if (own(image) != 27 * number).any())

    threads = [threading.Thread(target=work, args=(i, f.copy())) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@LINKERS
def test_batch_normalizations_in_threads_are_right(mode):
    finished = run(NORMALIZATION, mode, "float32")
    assert finished.returncode == 0, finished.stderr
    assert "Error" not in finished.stderr


def test_thread_count_set_later_is_honored():
    x, k = (pt.tensor(dtype="float32", shape=(None,) * 4) for _ in range(2))
    function = pytensor.function([x, k], conv2d(x, k), mode="CVM")
    openmp = ctypes.CDLL("libgomp.so.1")
    before = openmp.omp_get_max_threads()
    if before < 2:
        pytest.skip("one OpenMP thread only")
    image = np.ones((16, 64, 48, 48), "float32")
    filters = np.ones((64, 64, 5, 5), "float32")
    function(image, filters)
    openmp.omp_set_num_threads(1)
    try:
        function(image, filters)
        own, everybody = time.thread_time(), time.process_time()
        for _ in range(5):
            function(image, filters)
        own, everybody = time.thread_time() - own, time.process_time() - everybody
    finally:
        openmp.omp_set_num_threads(before)
    assert everybody < 1.2 * own

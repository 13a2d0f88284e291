"""Memory of a CUDA graph: where arrays are placed, and that all of it is returned."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from dnnops.capture.memory import Pool
from dnnops.capture.plan import ALIGNMENT, Lifetime, planned, rounded
from tests.needs import require
from tests.oracle import SEED


class Driver:
    """Allocates addresses as a GPU's driver does."""

    def __init__(self, limit=None):
        self.held, self.next, self.limit = {}, 1 << 20, limit

    def malloc(self, size):
        if self.limit is not None and sum(self.held.values()) + size > self.limit:
            raise MemoryError
        address, self.next = self.next, self.next + rounded(size)
        self.held[address] = size
        return address

    def free(self, address):
        del self.held[address]

    def pool(self, plan=None):
        return Pool(plan, malloc=self.malloc, free=self.free)


def random_requests(rng, count=60):
    """Return what a function allocates, as sizes, and frees, as numbers of allocations."""
    requests, used = [], []
    for number in range(count):
        while used and rng.random() < 0.5:
            requests.append(("free", used.pop(rng.integers(len(used)))))
        requests.append(("new", int(rng.integers(0, 20) * 700)))
        used.append(number)
    return requests


def run(pool, requests):
    """Serve requests, check that no arrays overlap, and return the greatest sum of sizes."""
    arrays, used, most = [], {}, 0
    for kind, value in requests:
        if kind == "free":
            del used[value]
            arrays[value] = None
            continue
        start, owner = pool.allocate(value)
        own = (start, start + rounded(value))
        assert start % ALIGNMENT == 0
        assert all(own[1] <= low or high <= own[0] for low, high in used.values())
        used[len(arrays)] = own
        arrays.append(owner)
        del owner
        most = max(most, sum(high - low for low, high in used.values()))
    return most


@pytest.mark.parametrize("seed", range(20))
def test_arrays_follow_a_plan(seed):
    """The second run takes one block, which is no larger than what the first one took."""
    requests = random_requests(np.random.default_rng([SEED, seed]))
    driver = Driver()
    trial = driver.pool()
    most = run(trial, requests)
    plan = planned(trial.lifetimes)
    assert most <= plan.size <= 1.25 * most
    assert trial.nbytes >= most
    del trial
    assert not driver.held
    pool = driver.pool(plan)
    run(pool, requests)
    assert list(driver.held.values()) == [plan.size] == [pool.nbytes]


@pytest.mark.parametrize("seed", range(20))
def test_a_run_that_differs_from_its_plan(seed):
    rng = np.random.default_rng([SEED, seed])
    driver = Driver()
    trial = driver.pool()
    run(trial, random_requests(rng))
    run(driver.pool(planned(trial.lifetimes)), random_requests(rng))


def test_a_plan_is_smaller_than_what_is_taken_one_by_one():
    """A small array in a large free range keeps the next large array out of it."""
    driver = Driver()
    requests = [("new", 8 << 10), ("free", 0), ("new", 1 << 10), ("new", 8 << 10)]
    trial = driver.pool()
    run(trial, requests)
    assert trial.nbytes == 16 << 10
    assert planned(trial.lifetimes).size == 9 << 10


def test_neighbors_are_joined():
    driver = Driver()
    pool = driver.pool()
    arrays = [pool.allocate(8 << 10)]
    arrays.clear()
    arrays += [pool.allocate(4 << 10), pool.allocate(4 << 10)]
    arrays.clear()
    pool.allocate(8 << 10)
    assert list(driver.held.values()) == [8 << 10]


def test_a_pool_lives_as_long_as_its_arrays():
    driver = Driver()
    pool = driver.pool()
    _, owner = pool.allocate(1)
    del pool
    assert driver.held
    del owner
    assert not driver.held


class Function:
    """Refers to itself, as compiled functions do."""

    def __init__(self):
        self.itself = self


def device_memory(pool, size):
    """Return memory of a pool as CuPy's arrays have it."""
    import cupy

    address, owner = pool.allocate(size)
    return cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(address, size, owner, 0), 0)


def test_memory_in_a_reference_cycle_is_returned():
    """The arrays have been split off another one."""
    require("cupy")
    driver, function = Driver(), Function()
    function.pool = driver.pool()
    function.pool.allocate(8 << 10)
    function.arrays = [device_memory(function.pool, 1 << 10) for _ in range(2)]
    assert list(driver.held.values()) == [8 << 10]
    del function
    gc.collect()
    assert not driver.held


def test_lifetimes():
    driver = Driver()
    pool = driver.pool()
    first, second = pool.allocate(1), pool.allocate(513)
    del first
    third = pool.allocate(1024)
    del second, third
    pool.allocate(0)
    assert pool.lifetimes == [
        Lifetime(512, 0, 2),
        Lifetime(1024, 1, 3),
        Lifetime(1024, 2, 3),
        Lifetime(512, 3, None),
    ]


def test_no_arrays():
    assert planned([]).size == 0
    assert Driver().pool(planned([])).nbytes == 0


def test_memory_runs_out():
    """What was allocated before the failure stays usable, and is returned."""
    driver = Driver(limit=1 << 20)
    pool = driver.pool()
    _, owner = pool.allocate(1 << 19)
    with pytest.raises(MemoryError):
        pool.allocate(1 << 20)
    del owner
    address, owner = pool.allocate(1 << 18)
    assert list(driver.held) == [address]
    del pool, owner
    assert not driver.held


def test_small_arrays_share_a_block():
    driver = Driver()
    pool = Pool(smallest=4 * ALIGNMENT, malloc=driver.malloc, free=driver.free)
    kept = [pool.allocate(size) for size in (4, 1, 2 * ALIGNMENT, 5 * ALIGNMENT, 8)]
    blocks = [pool.block_of(start) for start, _ in kept]
    assert blocks[0] == blocks[1] == blocks[2]
    assert len(set(blocks[2:])) == 3
    assert list(driver.held.values()) == [4 * ALIGNMENT, 5 * ALIGNMENT, 4 * ALIGNMENT]

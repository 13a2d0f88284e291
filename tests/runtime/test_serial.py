"""Compiled functions that several threads call: right results, as if they had called in turn."""

from __future__ import annotations

import copy
import os
import pickle
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

from dnnops.errors import DnnThreadError
from dnnops.modes import DnnMode
from dnnops.runtime.serial import SerialFunction

MODE = DnnMode(linker="vm")
THREADS = 6


class Slow(Op):
    """Its input, later: other threads run in the meantime."""

    __props__ = ()
    inside = most = 0

    def make_node(self, x: Any) -> Apply:
        return Apply(self, [x], [x.type()])

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        type(self).inside += 1
        type(self).most = max(self.most, self.inside)
        time.sleep(0.002)
        type(self).inside -= 1
        output_storage[0][0] = inputs[0].copy()


@pytest.fixture(name="slow", autouse=True)
def slow_fixture() -> type[Slow]:
    Slow.inside = Slow.most = 0
    return Slow


def doubling(**options: Any) -> Any:
    x = pt.dvector("x")
    return pytensor.function([x], Slow()(x) + x, mode=MODE, **options)


def called(functions: list[Callable[..., Any]], calls: int = 10) -> list[Any]:
    """Call functions from as many threads; return pairs of an argument and a result."""
    ready = threading.Barrier(len(functions))

    def run(number: int) -> list[Any]:
        ready.wait()
        arguments = [np.full(3, 100.0 * number + i) for i in range(calls)]
        return [(a, functions[number](a)) for a in arguments]

    with ThreadPoolExecutor(len(functions)) as pool:
        return [pair for pairs in pool.map(run, range(len(functions))) for pair in pairs]


@pytest.mark.parametrize("trust_input", [False, True])
def test_threads_that_call_one_function(slow, trust_input):
    f = doubling(trust_input=trust_input)
    for argument, result in called([f] * THREADS):
        np.testing.assert_array_equal(result, 2 * argument)
    assert slow.most == 1


def test_arguments_by_name_and_updates():
    x, total = pt.dvector("x"), pytensor.shared(np.zeros(3))
    f = pytensor.function([x], Slow()(x), updates={total: Slow()(total + x)}, mode=MODE)
    pairs = called([lambda a: f(x=a)] * THREADS)
    for argument, result in pairs:
        np.testing.assert_array_equal(result, argument)
    np.testing.assert_array_equal(total.get_value(), sum(argument for argument, _ in pairs))


def test_copies_run_at_the_same_time(slow):
    f = doubling()
    for argument, result in called([f, *(f.copy() for _ in range(THREADS - 1))]):
        np.testing.assert_array_equal(result, 2 * argument)
    assert slow.most > 1


@pytest.mark.parametrize(
    "copied",
    [lambda f: f.copy(), copy.copy, copy.deepcopy, lambda f: pickle.loads(pickle.dumps(f))],
)
def test_copies_wait_too(slow, copied):
    f = copied(doubling())
    assert type(f) is SerialFunction
    for argument, result in called([f] * THREADS, 3):
        np.testing.assert_array_equal(result, 2 * argument)
    assert slow.most == 1


def test_copies_that_share_memory_wait_for_each_other(slow):
    """They store what is computed within a call in the same places."""
    f = doubling()
    functions = [f, f.copy(share_memory=True), f.copy(True).copy(share_memory=True)] * 2
    for argument, result in called(functions, 3):
        np.testing.assert_array_equal(result, 2 * argument)
    assert slow.most == 1


class Calling(Op):
    """Its input, or what `called` returns for it."""

    __props__ = ()
    called: Any = None

    def make_node(self, x: Any) -> Apply:
        return Apply(self, [x], [x.type()])

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        output_storage[0][0] = self.called(inputs[0]) if self.called else inputs[0].copy()


def test_a_call_within_a_call(monkeypatch):
    """It would replace the arguments of the outer one, and can't wait for its end."""
    x = pt.dvector("x")
    f = pytensor.function([x], Calling()(x) + x, mode=MODE)
    monkeypatch.setattr(Calling, "called", staticmethod(f))
    with pytest.raises(DnnThreadError, match="within a call of itself"):
        f(np.ones(3))
    monkeypatch.undo()
    np.testing.assert_array_equal(f(np.ones(3)), np.full(3, 2.0))


def test_a_call_that_fails_lets_others_in():
    f = doubling()
    with pytest.raises(TypeError):
        f(np.zeros((2, 2)))
    with ThreadPoolExecutor(1) as pool:
        np.testing.assert_array_equal(pool.submit(f, np.ones(3)).result(10), np.full(3, 2.0))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_a_forked_process_does_not_wait_for_a_thread_of_its_parent():
    f, holder = doubling(), threading.Event()

    def hold() -> None:
        with f._turn.running:
            holder.set()
            time.sleep(1)

    thread = threading.Thread(target=hold)
    thread.start()
    holder.wait()
    reader, writer = os.pipe()
    child = os.fork()
    if not child:  # pragma: no cover
        os.write(writer, bytes(f(np.ones(3)) == 2))
        os._exit(0)
    os.close(writer)
    result = os.read(reader, 3)
    os.waitpid(child, 0)
    assert thread.is_alive()
    thread.join()
    os.close(reader)
    assert result == b"\x01\x01\x01"

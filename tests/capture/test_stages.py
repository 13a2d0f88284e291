"""Calls of functions with nodes between their graphs; needs no device."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dnnops.capture.between import Between, Place
from dnnops.capture.vm import ORDINARY_CALLS
from dnnops.errors import DnnError
from tests.capture.hollow import captures, doubling
from tests.gpuarray.fake_devices import FakeDevices


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> FakeDevices:
    fake = FakeDevices()
    monkeypatch.setitem(sys.modules, "cupy", fake)
    return fake


class HostPlace(Place):
    """Place of an array in the host's memory, which `pointer` holds."""

    def array(self) -> Any:
        return self.pointer.array[...]


def place(cell, array):
    pointer = SimpleNamespace(ptr=array.ctypes.data, array=array)
    return HostPlace(cell, pointer, array.shape, array.strides, array.dtype)


def between(devices, compute):
    """Return a node whose operands are an array of a graph, an argument, a length and a number."""
    own = SimpleNamespace(
        operand=devices.array(np.arange(3.0)),
        argument=devices.array(np.full(3, 10.0)),
        result=devices.array(np.zeros(3)),
        given=object(),
        cells=[[None], [None], [None], [None], [None]],
    )
    operand, argument, length, number, result = own.cells
    argument[0], number[0] = own.given, 2.0

    def thunk():
        compute(result, operand[0] * number[0] + argument[0] + length[0])

    own.node = Between(
        7,
        thunk,
        [place(operand, own.operand)],
        [place(argument, own.argument)],
        [(length, 3)],
        [place(result, own.result)],
        [],
    )
    return own


def in_place(result, value):
    result[0][...] = value


def elsewhere(result, value):
    result[0] = result[0].devices.array(np.array(value))


@pytest.mark.parametrize("compute", [in_place, elsewhere])
def test_the_arrays_of_graphs_are_read_and_written(devices, compute):
    own = between(devices, compute)
    for number in (2.0, 5.0):
        own.cells[3][0] = number
        own.node.run()
        np.testing.assert_array_equal(own.result, np.arange(3) * number + 13)
        # The caller's argument is back, and nothing keeps the others.
        assert own.cells == [[None], [own.given], [None], [number], [None]]


def test_a_result_of_another_shape(devices):
    own = between(devices, lambda result, value: elsewhere(result, value[:2]))
    with pytest.raises(DnnError, match=r"of shape \(3,\) .* has shape \(2,\)"):
        own.node.run()
    assert own.cells[4] == [None]
    np.testing.assert_array_equal(own.result, np.zeros(3))


def test_graphs_and_nodes_take_turns(devices, monkeypatch):
    vm = doubling(devices)
    captures(vm, monkeypatch)
    log: list[Any] = []
    capture = vm._recorder.capture

    def staged(in_place):
        captured = capture(in_place)
        first = SimpleNamespace(run=lambda: log.append("first"))
        nodes = [SimpleNamespace(position=i, run=lambda i=i: log.append(i)) for i in (3, 5)]
        captured.stages = [(first, nodes[0]), (None, nodes[1])]
        captured.replay = SimpleNamespace(run=lambda: log.append("last") or [])
        return captured

    monkeypatch.setattr(vm._recorder, "capture", staged)
    for _ in range(ORDINARY_CALLS + 2):
        vm()
    assert log == ["first", 3, 5, "last"] * 2
    (captured,) = vm._graphs.values()

    def fails():
        raise ValueError("no lengths")

    captured.stages[1][1].run = fails
    with pytest.raises(ValueError, match="no lengths"):
        vm()
    assert vm.position_of_error == 5

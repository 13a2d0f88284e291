"""Writing host arrays into parts of device arrays; a NumPy subclass replaces CuPy's array."""

from __future__ import annotations

import contextlib
import sys
import types

import numpy as np
import pytest

from dnnops import nnet
from dnnops.gpuarray.writable import writable


class FakeDeviceArray(np.ndarray):
    """Reject host arrays as CuPy does."""

    device = contextlib.nullcontext()
    __cuda_array_interface__ = None

    def __setitem__(self, key, value):
        if isinstance(value, np.ndarray) and not isinstance(value, FakeDeviceArray) and value.ndim:
            raise TypeError("Unsupported type <class 'numpy.ndarray'>")
        super().__setitem__(key, np.asarray(value))


@pytest.fixture(autouse=True)
def fake_cupy(monkeypatch):
    """A module with the parts of CuPy that are used."""
    fake = types.ModuleType("cupy")
    fake.ndarray = FakeDeviceArray
    fake.asarray = lambda x, dtype=None: np.asarray(x, dtype).view(FakeDeviceArray)
    monkeypatch.setitem(sys.modules, "cupy", fake)


def test_writable():
    array = np.zeros((3, 4), "float32").view(FakeDeviceArray)
    with pytest.raises(TypeError, match="Unsupported type"):
        array[:] = np.ones((3, 4))
    view = writable(array)
    view[:] = np.ones((3, 4))
    view[1:, ::2].T[0] = np.arange(2)
    view[0] = [5, 6, 7, 8]
    view[2, 3] = 9
    view[2, :2] = np.float32(4)
    wanted = [[5, 6, 7, 8], [0, 1, 1, 1], [4, 4, 1, 9]]
    np.testing.assert_array_equal(np.asarray(array), wanted)
    assert isinstance(view, FakeDeviceArray)
    assert type(writable(view)) is type(view)


def test_parts_of_a_network():
    """Use it as in Theano's documentation: ``split_params(...)[i][:] = array``."""
    block = nnet.RNNBlock("float32", 3, 1, "gru")
    size = block.get_param_size(2)
    w = np.zeros(size, "float32").view(FakeDeviceArray)
    rng = np.random.default_rng(0)
    values = [
        rng.standard_normal(part.shape).astype("float32") for part in block.split_params(w, 0, 2)
    ]
    for part, value in zip(block.split_params(w, 0, 2), values, strict=True):
        part[:] = value
    for part, value in zip(block.split_params(np.asarray(w), 0, 2), values, strict=True):
        np.testing.assert_array_equal(part, value)


@pytest.mark.gpu
def test_parts_on_a_gpu(monkeypatch):
    monkeypatch.undo()
    from dnnops import gpuarray

    block = nnet.RNNBlock("float32", 3, 1, "lstm")
    w = gpuarray.shared(np.zeros(block.get_param_size(2), "float32"))
    for i, part in enumerate(block.split_params(w, 0, 2)):
        part[:] = np.full(part.shape, i, "float32")
    for i, part in enumerate(block.split_params(w.get_value(), 0, 2)):
        np.testing.assert_array_equal(part, np.full(part.shape, i, "float32"))

"""Results that a node keeps for its next call, and who else may use their memory."""

from __future__ import annotations

import ctypes
import sys

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from dnnops.gpuarray import GpuArrayType
from tests.gpuarray.graphs import GPU_MODE
from tests.gpuarray.prepared_host import HostDevice, device_array, host_value, on_host


@pytest.fixture(scope="module")
def device(tmp_path_factory):
    host = HostDevice(tmp_path_factory.mktemp("kept"))
    with on_host(host):
        yield host


def strided(y):
    from cupy.lib.stride_tricks import as_strided

    return as_strided(y, (3, 2), (4, 4))


def of_pointer(y):
    import cupy

    return cupy.ndarray((2,), y.dtype, y.data + 4)


def of_memory(y):
    import cupy

    return cupy.ndarray(y.shape, y.dtype, cupy.cuda.MemoryPointer(y.data.mem, 0))


#: What shows the memory of an array of four numbers; not all of them refer to the array.
SHARED = {
    "strided": strided,
    "of_pointer": of_pointer,
    "of_memory": of_memory,
    "pointer": lambda y: y.data,
    "slice": lambda y: y[1:],
    "reshape": lambda y: y.reshape(2, 2),
}
sharing = pytest.mark.parametrize("share", SHARED.values(), ids=list(SHARED))


def multiplied():
    x = GpuArrayType("float32", (None,))("x")
    return pytensor.function([x], (x * 3 + 1).transfer("cuda"), mode=GPU_MODE)


@pytest.mark.needs("cupy")
@sharing
def test_shared_memory_is_not_used_again(device, share):
    f = multiplied()
    x, other = (device_array(np.arange(4, dtype="float32") + n) for n in (0, 50))
    addresses = {f(x).data.ptr for _ in range(3)}
    assert len(addresses) == 1
    y = f(x)
    held, before = share(y), host_value(y)
    pointer = y.data.ptr
    del y
    z = f(other)
    assert z.data.ptr != pointer
    floats = (ctypes.c_float * 4).from_address(pointer)
    np.testing.assert_array_equal(list(floats), before)
    # What is new now is kept, though the old memory is still in use.
    pointer = z.data.ptr
    del z
    assert f(x).data.ptr == pointer
    del held


@pytest.mark.needs("cupy")
@pytest.mark.parametrize("clears", [True, False])
@sharing
def test_shared_outputs_of_libraries_are_not_used_again(device, share, clears):
    """Also if PyTensor leaves the result in its cell between calls."""
    cell = [None]

    def take(shape=(4,)):
        address = device.take_output(cell, shape)
        assert cell[0].data.ptr == address
        array = cell[0]
        if clears:
            cell[0] = None
        return array

    addresses = {take().data.ptr for _ in range(3)}
    assert len(addresses) == 1
    y = take()
    held, pointer = share(y), y.data.ptr
    del y
    z = take()
    assert z.data.ptr != pointer
    pointer = z.data.ptr
    del z
    assert take().data.ptr == pointer
    assert take((3,)).shape == (3,)
    del held


@pytest.mark.needs("cupy")
def test_an_output_of_another_shape_is_not_used_again(device):
    cell = [None]
    device.take_output(cell, (2, 3))
    cell[0].shape = (6,)
    cell[0] = None
    device.take_output(cell, (2, 3))
    assert cell[0].shape == (2, 3)


@pytest.mark.needs("cupy")
def test_a_result_with_another_shape_is_not_used_again(device):
    x = GpuArrayType("float32", (None, None))("x")
    f = pytensor.function([x], (x * 3 + 1).transfer("cuda"), mode=GPU_MODE)
    value = device_array(np.arange(6, dtype="float32").reshape(2, 3))
    for shape in ((6,), (3, 2)):
        y = f(value)
        y.shape = shape
        del y
        assert f(value).shape == (2, 3)


def view_thunk(build, ndim=1):
    """Return the thunk of a view of the only argument."""
    x = GpuArrayType("float32", (None,) * ndim)("x")
    f = pytensor.function([x], (build(x) * 2).transfer("cuda"), mode=GPU_MODE)
    thunks = zip(f.vm.nodes, f.vm.thunks, strict=True)
    return next(t for n, t in thunks if n.inputs[0].owner is None)


@pytest.mark.needs("cupy")
def test_a_view_with_another_shape_is_not_used_again(device):
    thunk = view_thunk(lambda x: x.dimshuffle(1, 0), 2)
    thunk.inputs[0][0] = device_array(np.arange(6, dtype="float32").reshape(2, 3))
    for _ in range(2):
        thunk()
        assert thunk.outputs[0][0].shape == (3, 2)
        thunk.outputs[0][0].shape = (3, 1, 2)


@pytest.mark.needs("cupy")
def test_part_of_a_large_array_is_not_kept(device):
    """A view would keep all of its memory allocated."""
    thunk = view_thunk(lambda x: x.dimshuffle(0, "x"))
    whole = device_array(np.ones(1 << 19, "float32"))
    for array, references in ((device_array(np.ones(4, "float32")), 1), (whole[:4], 0)):
        before = sys.getrefcount(array)
        thunk.inputs[0][0] = array
        thunk()
        thunk.inputs[0][0] = thunk.outputs[0][0] = None
        assert sys.getrefcount(array) == before + references


@pytest.mark.needs("cupy")
def test_an_argument_that_is_the_result_is_not_kept(device):
    thunk = view_thunk(lambda x: pt.specify_shape(x, (None, 3)), 2)
    array = device_array(np.ones((2, 3), "float32"))
    before = sys.getrefcount(array)
    thunk.inputs[0][0] = array
    for _ in range(2):
        thunk()
        assert thunk.outputs[0][0] is array
    thunk.inputs[0][0] = thunk.outputs[0][0] = None
    assert sys.getrefcount(array) == before


@pytest.mark.gpu
@pytest.mark.parametrize("share", [strided, of_pointer, of_memory])
def test_shared_memory_on_a_gpu(share):
    """CuPy's pool allocates the memory, which is used again unless an array shares it."""
    import cupy

    f = multiplied()
    x, other = (cupy.arange(4, dtype="float32") + n for n in (0, 50))
    addresses = {f(x).data.ptr for _ in range(3)}
    assert len(addresses) == 1
    y = f(x)
    held = share(y)
    before = held.get()
    del y
    f(other)
    np.testing.assert_array_equal(held.get(), before)
    y = f(x)
    y.shape = (2, 2)
    del y
    assert f(x).shape == (4,)

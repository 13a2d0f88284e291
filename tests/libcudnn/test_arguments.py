"""Arguments: handles, addresses, numbers and structs, without the library."""

from __future__ import annotations

import copy
import ctypes
import struct
from enum import IntEnum
from typing import Any, ClassVar

import numpy as np
import pytest

from dnnops.errors import DnnOverflowError, DnnTypeError, DnnValueError
from dnnops.libcudnn import pointers
from dnnops.libcudnn.attributes import Attribute, ElementTypes, as_attribute
from dnnops.libcudnn.handles import (
    Handle,
    as_handle,
    as_optional_handle,
    known_handle,
    new_handle,
    place,
    retire,
)
from dnnops.libcudnn.memory import host_memory
from dnnops.libcudnn.pointers import as_address, as_callback, as_cuda_object, as_device
from dnnops.libcudnn.structures import Structure, as_struct, new_structs, wrap_fields
from dnnops.libcudnn.values import (
    as_element,
    as_enum,
    as_float,
    as_int,
    as_numbers,
    new_array,
    to_number,
)

ADDRESS = 0x7F0000001000


class Tensor(Handle):
    __slots__ = ()


class Filter(Handle):
    __slots__ = ()


class Type(IntEnum):
    CUDNN_DATA_FLOAT = 0
    CUDNN_DATA_DOUBLE = 1
    CUDNN_DATA_HALF = 2
    CUDNN_DATA_INT8 = 3
    CUDNN_DATA_INT8x4 = 5
    CUDNN_TYPE_INT64 = 10
    CUDNN_TYPE_FRACTION = 11
    CUDNN_TYPE_CHAR = 12
    CUDNN_TYPE_BACKEND_DESCRIPTOR = 13
    CUDNN_TYPE_VOID_PTR = 14
    CUDNN_TYPE_HEUR_MODE = 15
    CUDNN_TYPE_FLOAT = 16


class Other(IntEnum):
    OTHER = 0


class HeurMode(IntEnum):
    FASTEST = 2


TYPES = ElementTypes(Type, {"cudnnBackendDescriptor_t": Tensor, "cudnnBackendHeurMode_t": HeurMode})


class CudaArray:
    """Array with NVIDIA's protocol."""

    __cuda_array_interface__: ClassVar[dict[str, Any]] = {"data": (ADDRESS, False)}


class CupyArray:
    """Array with the attributes of CuPy's."""

    def __init__(self) -> None:
        self.data = self
        self.ptr = ADDRESS


class DlpackArray:
    """NumPy's array that claims to be on a device, without NumPy's protocol."""

    def __init__(self, array: np.ndarray, device: int) -> None:
        self._array, self._device = array, device

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device, 0

    def __dlpack__(self, stream: Any = None) -> Any:
        return self._array.__dlpack__()


class Stream:
    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, ADDRESS


class CudaPython:
    def __int__(self) -> int:
        return ADDRESS


def test_handles():
    handle = Tensor(ADDRESS)
    assert as_handle(handle, Tensor, "x") is handle
    assert as_handle(ADDRESS, Tensor, "x") == ADDRESS
    assert as_handle(np.int64(ADDRESS), Tensor, "x") == ADDRESS
    assert as_handle(ctypes.c_void_p(ADDRESS), Tensor, "x") == ADDRESS
    assert as_optional_handle(None, Tensor, "x") == 0
    assert repr(handle) == f"<Tensor {ADDRESS:#x}>"


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (None, DnnValueError, "x is null; expected a Tensor"),
        (0, DnnValueError, "x is null"),
        (ctypes.c_void_p(), DnnValueError, "x is null"),
        (64, DnnValueError, "x is 64, which is not the address"),
        (-1, DnnValueError, "x is -1"),
        (Filter(ADDRESS), DnnTypeError, "x is a Filter; expected a Tensor"),
        (True, DnnTypeError, "x is of type bool"),
        (Other.OTHER, DnnTypeError, "x is of type Other"),
        (1.0, DnnTypeError, "x is of type float"),
        ("x", DnnTypeError, "x is of type str"),
    ],
)
def test_wrong_handles(value, error, message):
    with pytest.raises(error, match=message):
        as_handle(value, Tensor, "x")


def test_destroyed_handle():
    handle = Tensor(ADDRESS)
    retire(handle, Tensor, "x")
    assert type(handle) is not Tensor
    for function in (as_handle, as_optional_handle):
        with pytest.raises(DnnValueError, match=f"x is <destroyed Tensor {ADDRESS:#x}>"):
            function(handle, Tensor, "x")
    with pytest.raises(DnnValueError, match="x is <destroyed"):
        retire(handle, Tensor, "x")
    with pytest.raises(DnnValueError, match="cannot be destroyed again"):
        handle.destroy()
    with pytest.raises(DnnValueError, match="cannot be used"), handle:
        pass
    with pytest.raises(DnnValueError, match="x is <destroyed"):
        as_address(handle, "x")
    retire(ADDRESS, Tensor, "x")  # unknown to us


def test_an_object_has_one_handle():
    handle = new_handle(ADDRESS, Tensor)
    assert Tensor(handle) is Tensor(ADDRESS) is Tensor(ctypes.c_void_p(ADDRESS)) is handle
    assert known_handle(ADDRESS, Tensor) is handle
    assert Filter(ADDRESS) is not handle
    # Destroying it by address is noticed, too.
    retire(int(handle), Tensor, "x")
    with pytest.raises(DnnValueError, match="destroyed Tensor"):
        as_handle(handle, Tensor, "x")
    # A descriptor may refer to an object of other code, or to one that is destroyed.
    borrowed = known_handle(ADDRESS, Tensor)
    assert as_handle(borrowed, Tensor, "x") == ADDRESS
    with pytest.raises(DnnValueError, match="which other code must destroy"):
        retire(borrowed, Tensor, "x")
    # If there is a new object at the address, the former one is gone.
    former, handle = new_handle(ADDRESS, Tensor), new_handle(ADDRESS, Tensor)
    assert former is not handle
    with pytest.raises(DnnValueError, match="destroyed Tensor"):
        as_handle(former, Tensor, "x")
    retire(handle, Tensor, "x")
    assert new_handle(0, Tensor) is known_handle(0, Tensor) is None


@pytest.mark.parametrize("wrong", ["7", 1.0, None, 0, 5, 2**70, Filter(ADDRESS)])
def test_no_addresses_of_handles(wrong):
    with pytest.raises((DnnTypeError, DnnValueError), match="Tensor"):
        Tensor(wrong)


def test_names_of_functions_of_users():
    def cudnn_of_user() -> str:
        return place("x")

    assert cudnn_of_user() == "x"


def test_handles_destroy_themselves():
    destroyed = []

    class Own(Handle):
        __slots__ = ()

        def destroy(self) -> None:
            destroyed.append(int(self))
            retire(self, Own, "x")

    with Own(ADDRESS) as handle:
        assert type(handle) is Own
    assert destroyed == [ADDRESS]
    with Own(ADDRESS) as handle:
        handle.destroy()
    assert len(destroyed) == 2
    # A copy would not know that its object was destroyed.
    with pytest.raises(DnnTypeError, match="cannot be copied"):
        copy.copy(Own(ADDRESS))


@pytest.mark.parametrize("value", [CudaArray(), CupyArray(), CupyArray().data])
def test_arrays_on_the_device(value):
    assert as_device(value, "x") == as_address(value, "x") == ADDRESS


def test_array_that_refuses_dlpack():
    """PyTorch's tensors do if they require a gradient."""

    class Refuses(DlpackArray):
        def __dlpack__(self, stream: Any = None) -> Any:
            raise BufferError("use detach()")

    with pytest.raises(DnnTypeError, match=r"x is a Refuses .*: use detach\(\)"):
        as_device(Refuses(np.zeros(3), 2), "x")


def test_attribute_of_another_meaning():
    array = CudaArray()
    array.data = CupyArray()
    array.data.ptr = "text"
    assert as_device(array, "x") == ADDRESS


@pytest.mark.parametrize("device", [2, 3, 13])
def test_dlpack(device):
    array = np.arange(6.0)[2:]
    value = DlpackArray(array, device)
    assert as_device(value, "x") == as_address(value, "x") == array.ctypes.data


@pytest.mark.parametrize(
    "value",
    [
        np.zeros(3),
        np.float32(1),
        np.zeros(3, "datetime64[s]"),
        DlpackArray(np.zeros(3), 1),
        (ctypes.c_float * 3)(),
        b"abc",
        bytearray(3),
        memoryview(b"abc"),
    ],
)
def test_memory_of_the_host_is_refused(value):
    with pytest.raises(DnnTypeError, match=r"x is .* in the host's memory"):
        as_device(value, "x")


@pytest.mark.parametrize("value", [1.0, "x", [1, 2], Tensor(ADDRESS), Other.OTHER, True, object()])
def test_no_addresses(value):
    with pytest.raises(DnnTypeError, match="expected an array on the device"):
        as_device(value, "x")


def test_addresses_on_the_device(monkeypatch):
    known = {ADDRESS: 0}
    monkeypatch.setattr(pointers, "_query", lambda: lambda address: known.get(address, 1))
    assert as_device(None, "x") == as_device(0, "x") == as_device(ctypes.c_void_p(), "x") == 0
    for value in (ADDRESS, np.uint64(ADDRESS), ctypes.c_void_p(ADDRESS)):
        assert as_device(value, "x") == ADDRESS
    pointer = ctypes.cast(ADDRESS, ctypes.POINTER(ctypes.c_float))
    assert as_device(pointer, "x") == ADDRESS
    with pytest.raises(DnnValueError, match="not an address of memory that CUDA"):
        as_device(np.zeros(2).ctypes.data, "x")
    for small in (1, -5, 2**70):
        with pytest.raises(DnnValueError, match="is not an address"):
            as_device(small, "x")


def test_addresses_anywhere():
    array = np.zeros(3)
    number = ctypes.c_int(5)
    assert as_address(array, "x") == array.ctypes.data
    assert as_address(Tensor(ADDRESS), "x") == ADDRESS
    assert as_address(ctypes.byref(number), "x") == ctypes.addressof(number)
    assert as_address(ctypes.pointer(number), "x") == ctypes.addressof(number)
    with pytest.raises(DnnTypeError, match="x is of type float"):
        as_address(1.0, "x")
    with pytest.raises(DnnValueError, match="x is 7, which is not an address"):
        as_address(7, "x")


def test_objects_of_cuda():
    callback = ctypes.CFUNCTYPE(None)(lambda: None)
    address = ctypes.cast(callback, ctypes.c_void_p).value
    assert as_cuda_object(callback, "f") == address
    assert as_cuda_object(None, "s") == 0
    assert as_cuda_object(CudaPython(), "s") == as_device(CudaPython(), "x") == ADDRESS
    assert as_cuda_object(CupyArray(), "s") == as_cuda_object(Stream(), "s") == ADDRESS
    assert as_callback(callback, "f") == as_callback(address, "f") == address
    assert as_callback(None, "f") == as_callback(ctypes.c_void_p(), "f") == 0
    with pytest.raises(DnnTypeError, match="in which functions can be wrapped"):
        as_callback(lambda: None, "f")
    for wrong in ("f", 1.0, CudaPython, Stream()):
        with pytest.raises(DnnTypeError, match="expected a cudnnCallback_t"):
            as_callback(wrong, "f")
    with pytest.raises(DnnValueError, match="f is 7, which is not an address"):
        as_callback(7, "f")
    for wrong in (-1, 2**70):
        with pytest.raises(DnnValueError, match="which is not an address"):
            as_cuda_object(wrong, "s")
    with pytest.raises(DnnTypeError, match="s is of type str"):
        as_cuda_object("stream", "s")


def test_numbers():
    assert as_int(np.int32(3), "n") == as_int(ctypes.c_int(3), "n") == as_int(Other.OTHER, "n") + 3
    assert as_float(1, "c") == as_float(ctypes.c_double(1), "c") == as_float(np.float32(1), "c")
    for wrong in (1.0, "1", None, Tensor(ADDRESS)):
        with pytest.raises(DnnTypeError, match=r"n is of type .* expected an integer"):
            as_int(wrong, "n")
    for wrong in ("1", None, Tensor(ADDRESS), Other.OTHER, [1.0]):
        with pytest.raises(DnnTypeError, match=r"c is of type .* expected a number"):
            as_float(wrong, "c")


def test_enums():
    assert as_enum(Type.CUDNN_DATA_HALF, Type, "t") is Type.CUDNN_DATA_HALF
    assert as_enum(1234, Type, "t") == as_enum(ctypes.c_int(1234), Type, "t") == 1234
    with pytest.raises(DnnTypeError, match=r"t is <Other.OTHER: 0>; expected a Type"):
        as_enum(Other.OTHER, Type, "t")
    with pytest.raises(DnnTypeError, match=r"such as Type\['CUDNN_DATA_FLOAT'\]"):
        as_enum("CUDNN_DATA_HALF", Type, "t")


def test_arrays_of_numbers():
    packed = struct.pack("3i", 1, 2, 3)
    for value in ([1, 2, 3], (1, 2, 3), range(1, 4), np.array([1, 2, 3])):
        assert as_numbers(value, "i", 2, "d") == packed
    assert int(as_numbers(ctypes.c_void_p(ADDRESS), "i", 2, "d") != 0)
    with pytest.raises(DnnValueError, match="d has 3 elements; expected 4"):
        as_numbers([1, 2, 3], "i", 4, "d")
    with pytest.raises(DnnValueError, match="d is null; expected 1 elements"):
        as_numbers(None, "i", 1, "d")
    assert not as_numbers(None, "i", 0, "d")
    with pytest.raises(DnnTypeError, match=r"d is \[1, 2.5\]"):
        as_numbers([1, 2.5], "i", 2, "d")
    for code, number in (("i", 2**40), ("q", 2**70), ("Q", -1)):
        with pytest.raises(DnnOverflowError, match="d is "):
            as_numbers([number], code, 1, "d")
    assert as_numbers((ctypes.c_int64 * 3)(1, 2, 3), "i", 2, "d") == packed
    with pytest.raises(DnnValueError, match="d has 1 elements; expected 4"):
        as_numbers((ctypes.c_int * 1)(1), "i", 4, "d")
    with pytest.raises(DnnTypeError, match="required argument is not an integer"):
        as_numbers((ctypes.c_float * 1)(1), "i", 1, "d")
    assert as_numbers("ab", "b", 2, "d") == b"ab\0"


@pytest.mark.parametrize("value", [5, 5000, np.int64(5000), np.array(5000), "abcd", b"ab", 1.0])
def test_no_sequences(value):
    """cuDNN would read from an integer's address."""
    with pytest.raises(DnnTypeError, match=r"d is of type .* expected a sequence"):
        as_numbers(value, "i", 1, "d")


def test_memory_of_the_host():
    array = np.zeros(2, "int64")
    numbers = (ctypes.c_int64 * 2)()
    for value, address in (
        (array, array.ctypes.data),
        (numbers, ctypes.addressof(numbers)),
        (ctypes.byref(numbers, 8), ctypes.addressof(numbers) + 8),
        (ctypes.c_void_p(ADDRESS), ADDRESS),
    ):
        assert host_memory(value, 8, "m", writable=True) == address
    for value, size, message in (
        (array, 17, "m has 16 bytes; expected 17"),
        (numbers, 17, "m has 16 bytes; expected 17"),
        (ctypes.byref(numbers, 8), 16, "m has 8 bytes; expected 16"),
        (array[::-1], 8, "m is not contiguous"),
        (np.broadcast_to(np.zeros(1), 9), 8, "m is not contiguous"),
        (np.frombuffer(bytes(8)), 8, "m is read-only"),
        (ctypes.c_void_p(), 8, "m is null; expected 8 bytes"),
        (ctypes.c_void_p(8), 8, "m is 8, which is not an address"),
    ):
        with pytest.raises(DnnValueError, match=message):
            host_memory(value, size, "m", writable=True)
    for wrong in (5000, np.int64(5000).item(), CudaArray(), CupyArray(), b"abc", None, [1]):
        with pytest.raises(DnnTypeError, match=r"m is of type .* expected an array on the host"):
            host_memory(wrong, 8, "m")


@pytest.mark.parametrize("count", [-1, 2**20 + 1, 2**62])
def test_counts(count):
    for allocate in (
        lambda: new_array("i", count, "n"),
        lambda: new_structs(Graph, count, "n"),
        lambda: Attribute(None, Type.CUDNN_TYPE_INT64, TYPES, count, "a"),
        lambda: as_attribute([1], Type.CUDNN_TYPE_INT64, TYPES, count, "a"),
    ):
        with pytest.raises(DnnValueError, match=f"is {count}[;,]"):
            allocate()


def test_numbers_that_do_not_fit():
    """The exceptions name the argument."""
    for call in (
        lambda: as_float(10**400, "n"),
        lambda: as_element(300, Type.CUDNN_DATA_INT8, Type, "n"),
        lambda: as_element(1e9, Type.CUDNN_DATA_HALF, Type, "n"),
        lambda: as_element(10**400, Type.CUDNN_DATA_DOUBLE, Type, "n"),
    ):
        with pytest.raises(DnnOverflowError, match=r"^n"):
            call()
    for wrong in (np.ones(3), [1.0]):
        with pytest.raises(DnnTypeError, match=r"^n"):
            as_element(wrong, Type.CUDNN_DATA_FLOAT, Type, "n")


def test_elements():
    assert as_element(1.5, Type.CUDNN_DATA_HALF, Type, "e") == struct.pack("e", 1.5)
    assert as_element(-3, Type.CUDNN_DATA_INT8, Type, "e") == struct.pack("b", -3)
    assert to_number(struct.pack("d", 2.5), 1, Type) == 2.5
    with pytest.raises(DnnTypeError, match=r"pointer of ctypes to an element of type .*INT8x4"):
        as_element(1.5, Type.CUDNN_DATA_INT8x4, Type, "e")


def test_attributes():
    assert as_attribute([2], Type.CUDNN_TYPE_HEUR_MODE, TYPES, 1, "a") == struct.pack("i", 2)
    kind = Type.CUDNN_TYPE_FRACTION
    assert as_attribute([(1, 2)], kind, TYPES, 1, "a") == struct.pack("2q", 1, 2)
    values = np.array([1, 2], "int32")
    assert as_attribute(values, Type.CUDNN_TYPE_INT64, TYPES, 2, "a") == struct.pack("2q", 1, 2)
    assert as_attribute("{}", Type.CUDNN_TYPE_CHAR, TYPES, 2, "a") == b"{}"
    assert as_attribute([Other.OTHER], 99, TYPES, 1, "a") == struct.pack("i", 0)  # an enum
    tensor = Tensor(ADDRESS)
    kind = Type.CUDNN_TYPE_BACKEND_DESCRIPTOR
    assert as_attribute(tensor, kind, TYPES, 1, "a") == struct.pack("P", ADDRESS)
    with pytest.raises(DnnValueError, match="a has 1 elements; expected 2"):
        as_attribute([tensor], kind, TYPES, 2, "a")
    with pytest.raises(DnnTypeError, match="a is "):
        as_attribute([1.5], Type.CUDNN_TYPE_INT64, TYPES, 1, "a")

    memory = Attribute([tensor], kind, TYPES, 1, "a")
    assert ctypes.c_void_p.from_address(memory.address).value == ADDRESS
    assert memory.elements(1) == (tensor,)
    memory = Attribute(None, Type.CUDNN_TYPE_FRACTION, TYPES, 2, "a")
    ctypes.memmove(memory.address, struct.pack("4q", 1, 2, 3, 4), 32)
    assert memory.elements(5) == ((1, 2), (3, 4))
    array = np.zeros(2, "int64")
    memory = Attribute(array, Type.CUDNN_TYPE_INT64, TYPES, 2, "a")
    assert memory.address == array.ctypes.data
    assert memory.elements(2) is array
    with pytest.raises(DnnValueError, match="a has 16 bytes; expected 24"):
        Attribute(array, Type.CUDNN_TYPE_INT64, TYPES, 3, "a")
    with pytest.raises(DnnTypeError, match="a is of type int; expected an array on the host"):
        Attribute(5000, Type.CUDNN_TYPE_INT64, TYPES, 1, "a")


def test_single_elements_of_attributes():
    """An integer is an element, never the address of elements."""
    for value in (5000, np.int64(5000), np.array(5000), ctypes.c_int(5000)):
        packed = as_attribute(value, Type.CUDNN_TYPE_INT64, TYPES, 1, "a")
        assert packed == struct.pack("q", 5000)
    for value in (ADDRESS, CudaArray(), CupyArray(), [CudaArray()], [ctypes.c_void_p(ADDRESS)]):
        packed = as_attribute(value, Type.CUDNN_TYPE_VOID_PTR, TYPES, 1, "a")
        assert packed == struct.pack("P", ADDRESS)
    memory = (ctypes.c_int64 * 1)(3)
    assert as_attribute(memory, Type.CUDNN_TYPE_INT64, TYPES, 1, "a") == bytes(memory)
    for value, message in (
        (memory, "a has 1 elements; expected 4"),
        (ctypes.byref(memory), "a has 8 bytes; expected 32"),
        (None, "a is null"),
    ):
        with pytest.raises(DnnValueError, match=message):
            as_attribute(value, Type.CUDNN_TYPE_INT64, TYPES, 4, "a")
    for value in (CudaArray(), object()):
        with pytest.raises(DnnTypeError, match="a is "):
            as_attribute(value, Type.CUDNN_TYPE_INT64, TYPES, 1, "a")


@pytest.mark.parametrize(
    ("value", "kind", "error", "message"),
    [
        ([Filter(ADDRESS)], "BACKEND_DESCRIPTOR", DnnTypeError, "a is a Filter; expected a Tensor"),
        ([None], "BACKEND_DESCRIPTOR", DnnValueError, "a is null; expected a Tensor"),
        ([Other.OTHER], "HEUR_MODE", DnnTypeError, "expected a HeurMode"),
        ([Filter(ADDRESS)], "INT64", DnnTypeError, "expected no handles"),
        ([1], "FRACTION", DnnTypeError, "a contains 1; expected pairs"),
        ([(1,)], "FRACTION", DnnTypeError, r"a contains \(1,\); expected pairs"),
        ([2**70], "INT64", DnnOverflowError, "a is "),
        ([2**70], "VOID_PTR", DnnValueError, "a is 1180591620717411303424, which is not an addr"),
        ([10**400], "FLOAT", DnnOverflowError, "a is "),
    ],
)
def test_wrong_elements_of_attributes(value, kind, error, message):
    with pytest.raises(error, match=message):
        as_attribute(value, Type[f"CUDNN_TYPE_{kind}"], TYPES, 1, "a")


def test_destroyed_descriptors_in_attributes():
    descriptor = new_handle(ADDRESS, Tensor)
    retire(descriptor, Tensor, "x")
    kind = Type.CUDNN_TYPE_BACKEND_DESCRIPTOR
    with pytest.raises(DnnValueError, match="a is <destroyed Tensor"):
        as_attribute([descriptor], kind, TYPES, 1, "a")
    with pytest.raises(DnnValueError, match="a is <destroyed Tensor"):
        Attribute([descriptor], kind, TYPES, 1, "a")


class Graph(Structure):
    _fields_ = [  # noqa: RUF012
        ("offsets", ctypes.c_void_p),
        ("type", ctypes.c_int),
        ("size", ctypes.c_uint64),
        ("heads", ctypes.c_int),
    ]


wrap_fields(Graph, {"type": Type}, ["offsets"])


def test_structs():
    graph = Graph(offsets=CudaArray(), type=Type.CUDNN_DATA_HALF)
    assert (graph.offsets, graph.type) == (ADDRESS, Type.CUDNN_DATA_HALF)
    fields = f"offsets={ADDRESS}, type={Type.CUDNN_DATA_HALF!r}, size=0, heads=0"
    assert repr(graph) == f"Graph({fields})"
    graph.size, graph.heads = np.uint64(2**64 - 1), -(2**31)
    assert (graph.size, graph.heads) == (2**64 - 1, -(2**31))
    for name, number in (("size", -1), ("size", 2**64), ("heads", 2**31), ("type", 2**40)):
        with pytest.raises(DnnOverflowError, match=rf"Graph\.{name} is {number}; expected"):
            setattr(graph, name, number)
    with pytest.raises(DnnTypeError, match=r"Graph\.heads is of type float"):
        graph.heads = 1.0
    with pytest.raises(DnnTypeError, match="g is of type int"):
        as_struct(ADDRESS, Graph, "g")
    assert as_struct(graph, Graph, "g") == ctypes.addressof(graph)
    with pytest.raises(DnnTypeError, match=r"Graph\.offsets is .* in the host's memory"):
        graph.offsets = np.zeros(3)
    with pytest.raises(DnnTypeError, match=r"Graph\.type is "):
        Graph(type=Other.OTHER)

    class Another(ctypes.Structure):
        pass

    with pytest.raises(DnnTypeError, match="g is a Another; expected Graph"):
        as_struct(Another(), Graph, "g")

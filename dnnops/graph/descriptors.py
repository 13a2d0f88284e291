"""Make cuDNN's descriptors of a graph, through `dnnops.libcudnn`."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from dnnops import libcudnn
from dnnops.errors import DnnError
from dnnops.graph.constants import constant
from dnnops.graph.names import CudnnEnum, data_type, pointwise_mode
from dnnops.graph.tensors import ALIGNMENT, Tensor, strides_of

__all__ = ["Descriptor", "Descriptors", "Double", "Fractions"]


class Double(float):
    """A number that cuDNN takes as a double; other floats are passed with 32 bits."""


class Fractions(list):
    """Pairs of numerators and denominators."""


#: Handles whose objects are gone, until the next descriptor is made. The garbage collector may run
#: while this thread holds the lock that destroying takes.
_unused: deque[Any] = deque()


def _destroy_unused() -> None:
    while _unused:
        with suppress(DnnError, IndexError):  # another thread may take the last one
            libcudnn.cudnnBackendDestroyDescriptor(_unused.popleft())


def _attribute(name: str) -> Any:
    return constant(f"CUDNN_ATTR_{name}")


class Descriptor:
    """A descriptor of cuDNN's graph API, which is destroyed with this object.

    Parameters
    ----------
    kind : str
        Its type, without ``CUDNN_BACKEND_`` and ``_DESCRIPTOR``.
    **attributes
        Values of attributes by name; the name follows `kind` in that of the attribute. None is left
        out.
    """

    def __init__(self, kind: str, **attributes: Any) -> None:
        type_ = constant(f"CUDNN_BACKEND_{kind}_DESCRIPTOR")
        _destroy_unused()
        self.kind = kind
        self.handle = libcudnn.cudnnBackendCreateDescriptor(type_)
        # At the end of the process, the driver may be gone.
        weakref.finalize(self, _unused.append, self.handle).atexit = False
        # cuDNN keeps no references to the descriptors that are values of attributes.
        self._kept: list[Any] = []
        for attribute, value in attributes.items():
            if value is not None:
                self.set(f"{kind}_{attribute}", value)

    def set(self, attribute: str, value: Any) -> None:
        """Set an attribute, given by its name without ``CUDNN_ATTR_``.

        The type of the attribute follows from that of the value.
        """
        elements = value if isinstance(value, list | tuple) else [value]
        first = elements[0] if elements else 0
        if isinstance(value, Fractions):
            kind = "FRACTION"
        elif isinstance(first, CudnnEnum):
            kind, elements = first.attribute_type(), [x.value_in_c() for x in elements]
        elif isinstance(first, Descriptor):
            kind = "BACKEND_DESCRIPTOR"
            self._kept.extend(elements)
            elements = [x.handle for x in elements]
        elif isinstance(first, bool):
            kind = "BOOLEAN"
        elif isinstance(first, float):
            kind = "DOUBLE" if isinstance(first, Double) else "FLOAT"
        else:
            kind = "INT64"
        self.set_as(attribute, kind, elements)

    def set_as(self, attribute: str, kind: str, elements: Sequence[Any]) -> None:
        """Set an attribute of a type that is given by its name without ``CUDNN_TYPE_``."""
        libcudnn.cudnnBackendSetAttribute(
            self.handle,
            _attribute(attribute),
            constant(f"CUDNN_TYPE_{kind}"),
            len(elements),
            elements,
        )

    def finalize(self) -> Descriptor:
        """Finalize the descriptor, and return it."""
        libcudnn.cudnnBackendFinalize(self.handle)
        return self

    def get(self, attribute: str, kind: str, most: int = 1) -> tuple[Any, ...]:
        """Return at most `most` elements of an attribute of the given type."""
        _, values = libcudnn.cudnnBackendGetAttribute(
            self.handle,
            _attribute(attribute),
            constant(f"CUDNN_TYPE_{kind}"),
            most,
        )
        return tuple(values)

    def count(self, attribute: str, kind: str) -> int:
        """Return the number of elements of an attribute."""
        found, _ = libcudnn.cudnnBackendGetAttribute(
            self.handle, _attribute(attribute), constant(f"CUDNN_TYPE_{kind}"), 0
        )
        return int(found)

    def get_text(self, attribute: str) -> str:
        """Return an attribute that is a text."""
        characters = self.get(attribute, "CHAR", self.count(attribute, "CHAR"))
        return "".join(characters).rstrip("\0")

    def get_descriptors(self, attribute: str, kind: str, count: int) -> list[Descriptor]:
        """Return descriptors that are elements of an attribute."""
        filled = [Descriptor(kind) for _ in range(count)]
        found, _ = libcudnn.cudnnBackendGetAttribute(
            self.handle,
            _attribute(attribute),
            constant("CUDNN_TYPE_BACKEND_DESCRIPTOR"),
            count,
            [x.handle for x in filled],
        )
        return filled[: int(found)]

    def get_all(self, attribute: str, kind: str) -> list[Descriptor]:
        """Return the elements of an attribute for which cuDNN does not say how many there are."""
        most = 8
        while len(found := self.get_descriptors(attribute, kind, most)) == most:
            most *= 2
        return found


class Descriptors:
    """Descriptors of the tensors and operations of one graph.

    Attributes
    ----------
    operations : list of Descriptor
        The operations, finalized.
    """

    def __init__(self, next_uid: int) -> None:
        self.operations: list[Descriptor] = []
        self._tensors: dict[Any, Descriptor] = {}
        self._next_uid = next_uid

    def tensor(self, tensor: Tensor) -> Descriptor:
        """Return the descriptor of a tensor or of a view, which is made once."""
        key = (tensor.uid, *tensor.dim, *tensor.stride)
        if key not in self._tensors:
            made = Descriptor("TENSOR", DATA_TYPE=tensor.data_type, UNIQUE_ID=tensor.uid)
            made.set("TENSOR_DIMENSIONS", tensor.dim)
            made.set("TENSOR_STRIDES", tensor.stride)
            made.set("TENSOR_BYTE_ALIGNMENT", ALIGNMENT)
            if tensor.is_virtual:
                made.set("TENSOR_IS_VIRTUAL", True)
            if tensor.is_pass_by_value:
                made.set("TENSOR_IS_BY_VALUE", True)
            if tensor.reordering_type.name != "NONE":
                made.set("TENSOR_REORDERING_MODE", tensor.reordering_type)
            if tensor.ragged_offset is not None:
                made.set("TENSOR_RAGGED_OFFSET_DESC", self.tensor(tensor.ragged_offset))
            self._tensors[key] = made.finalize()
        return self._tensors[key]

    def virtual_tensor(
        self,
        like: Tensor,
        dim: Sequence[int] | None = None,
        type_: Any = data_type.FLOAT,
        stride: Sequence[int] | None = None,
    ) -> Tensor:
        """Return a new virtual tensor between two operations.

        Parameters
        ----------
        like : Tensor
            Tensor whose graph it belongs to, and whose shape it has by default.
        dim, stride : sequence of int, optional
            Sizes, and strides in elements.
        type_ : data_type
            Type of the elements.
        """
        if dim is None:
            dim, stride = like.dim, like.stride
        stride = stride or strides_of(dim)
        self._next_uid += 1
        return Tensor(like.graph, "", dim, stride, type_, is_virtual=True, uid=self._next_uid - 1)

    def make(self, kind: str, **attributes: Any) -> Descriptor:
        """Return a descriptor of an operation's parameters, not yet finalized."""
        return Descriptor(kind, **attributes)

    def operation(self, kind: str, prefix: str, **attributes: Any) -> None:
        """Add an operation.

        Parameters
        ----------
        kind : str
            Its type, between ``CUDNN_BACKEND_OPERATION_`` and ``_DESCRIPTOR``.
        prefix : str
            What its attributes have after ``CUDNN_ATTR_OPERATION_``.
        **attributes
            Values by the rest of the attributes' names. Tensors are replaced by descriptors, and
            other descriptors are finalized. None is left out.
        """
        made = Descriptor(f"OPERATION_{kind}")
        for name, value in attributes.items():
            if value is None:
                continue
            if isinstance(value, Tensor):
                value = self.tensor(value)
            elif isinstance(value, Descriptor):
                value.finalize()
            elif isinstance(value, list):
                value = [self.tensor(x) if isinstance(x, Tensor) else x for x in value]
            made.set(f"OPERATION_{prefix}_{name}", value)
        self.operations.append(made.finalize())

    def pointwise(
        self,
        mode: str,
        operands: Sequence[Tensor],
        result: Tensor,
        compute: Any = data_type.FLOAT,
        axis: int | None = None,
    ) -> Tensor:
        """Add an elementwise operation that is not a gradient, and return its result."""
        parameters = self.make("POINTWISE", MODE=pointwise_mode[mode], MATH_PREC=compute, AXIS=axis)
        names = ("XDESC", "BDESC", "TDESC")
        self.operation(
            "POINTWISE",
            "POINTWISE",
            PW_DESCRIPTOR=parameters,
            **dict(zip(names, operands, strict=False)),
            YDESC=result,
            ALPHA1=1.0,
            ALPHA2=1.0,
        )
        return result

    @staticmethod
    def double(number: float) -> Double:
        """Return a number that is passed as a double."""
        return Double(number)

    @staticmethod
    def fractions(numbers: Sequence[int]) -> Fractions:
        """Return integers as fractions."""
        return Fractions((n, 1) for n in numbers)

    def operation_graph(self, handle: Any) -> Descriptor:
        """Return the finalized graph of all operations.

        Parameters
        ----------
        handle : int or None
            cuDNN's handle; None for a graph that is only compiled.
        """
        graph = Descriptor("OPERATIONGRAPH", OPS=self.operations)
        if handle is not None:
            graph.set_as("OPERATIONGRAPH_HANDLE", "HANDLE", [handle])
        return graph.finalize()

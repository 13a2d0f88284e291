"""Tensors of a cuDNN graph: their sizes, strides and data types."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from functools import partial
from numbers import Real
from typing import Any, Self

from dnnops.arguments import is_int
from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.graph.names import (
    as_data_type,
    as_member,
    data_type,
    item_size,
    tensor_reordering,
)

__all__ = [
    "ALIGNMENT",
    "Tensor",
    "as_flag",
    "as_integer",
    "as_name",
    "as_number",
    "as_sizes",
    "order_of",
    "sizes_from",
    "strides_of",
    "tensor",
]

#: Of the memory of all arrays, in bytes. The descriptors of tensors declare it.
ALIGNMENT = 16


def as_integer(value: Any, what: str) -> int:
    """Return an integer.

    Raises
    ------
    DnnTypeError
        If it is anything else.
    """
    if not is_int(value):
        raise DnnTypeError(f"{what} must be an integer, got {value!r}")
    return int(value)


def as_number(value: Any, what: str) -> float:
    """Return a real number as a float.

    Raises
    ------
    DnnTypeError
        If it is anything else.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise DnnTypeError(f"{what} must be a number, got {value!r}")
    return float(value)


def as_flag(value: Any, what: str) -> bool:
    """Return True or False.

    Parameters
    ----------
    value : object
    what : str
        Name of the value, for the message.

    Returns
    -------
    bool

    Raises
    ------
    DnnTypeError
        If it is anything else.
    """
    if not isinstance(value, bool):
        raise DnnTypeError(f"{what} must be True or False, got {value!r}")
    return value


def as_name(value: Any) -> str:
    """Return a name.

    Raises
    ------
    DnnTypeError
        If it is not a str.
    """
    if not isinstance(value, str):
        raise DnnTypeError(f"a name must be a str, got {value!r}")
    return value


def as_sizes(value: Any, what: str, least: int | None = None) -> list[int]:
    """Return a sequence of integers as a list.

    Parameters
    ----------
    value : sequence of int
        Sizes, strides or padding.
    what : str
        What they are, for the message of an error.
    least : int, optional
        The least number that is allowed.

    Raises
    ------
    DnnTypeError
        If it is not a sequence of integers.
    DnnValueError
        If a number is less than `least`.
    """
    try:
        numbers = [int(n) for n in value]
        exact = all(n == given for n, given in zip(numbers, value, strict=True))
    except (TypeError, ValueError, OverflowError):
        exact = False
    if isinstance(value, str | bytes | dict | set) or not exact:
        raise DnnTypeError(f"{what} must be a sequence of integers, got {value!r}")
    if any(n >= 2**63 for n in numbers) or (
        least is not None and min(numbers, default=least) < least
    ):
        raise DnnValueError(f"{what} must be at least {least} and fit into 64 bits, got {numbers}")
    return numbers


def sizes_from(least: int) -> Callable[[Any, str], list[int]]:
    """Return `as_sizes` for numbers of at least `least`.

    Parameters
    ----------
    least : int

    Returns
    -------
    callable
        Function of a value and its name.
    """
    return partial(as_sizes, least=least)


def strides_of(dim: Sequence[int], order: Sequence[int] | None = None) -> list[int]:
    """Return the strides of a tensor without gaps in memory.

    Parameters
    ----------
    dim : sequence of int
        Sizes.
    order : sequence of int, optional
        Axes from the one with the largest stride to that with the smallest; by default, their own
        order.

    Returns
    -------
    list of int
        Strides in elements.
    """
    strides, step = [1] * len(dim), 1
    for axis in reversed(order if order is not None else range(len(dim))):
        strides[axis] = step
        step *= dim[axis]
    return strides


def order_of(strides: Sequence[int]) -> list[int]:
    """Return the axes from the one with the largest stride to that with the smallest."""
    return sorted(range(len(strides)), key=lambda axis: (-strides[axis], axis))


class Tensor:
    """A tensor of a graph, made by the graph's methods.

    The methods that set something return the tensor, so that they can be chained. cuDNN names the
    attributes in its documentation of ``CUDNN_BACKEND_TENSOR_DESCRIPTOR``.

    Attributes
    ----------
    name : str
        Name, unique in the graph.
    dim, stride : list of int
        Sizes, and strides in elements. They are empty until they are given or inferred.
    data_type : data_type
        Type of the elements.
    is_virtual : bool
        Whether the tensor only exists inside of the graph, in no array.
    is_pass_by_value : bool
        Whether `execute` takes a number from the host in place of an array.
    value : float, int or None
        The number, if it belongs to the graph.
    uid : int
        Number that identifies the tensor; negative until the graph is validated.
    """

    __slots__ = (
        "data_type",
        "dim",
        "graph",
        "is_pass_by_value",
        "is_virtual",
        "name",
        "ragged_offset",
        "reordering_type",
        "stride",
        "uid",
        "value",
    )

    def __init__(
        self,
        graph: Any,
        name: str,
        dim: Any = (),
        stride: Any = (),
        data_type: Any = data_type.NOT_SET,
        is_virtual: bool = False,
        is_pass_by_value: bool = False,
        ragged_offset: Tensor | None = None,
        reordering_type: Any = tensor_reordering.NONE,
        uid: int = -1,
        value: Any = None,
    ) -> None:
        self.graph, self.name, self.value = graph, as_name(name), value
        self.uid = as_integer(uid, f"uid of {name}")
        self.dim = as_sizes(dim, f"dim of {name}", 1)
        self.stride = as_sizes(stride, f"stride of {name}", 0)
        self.data_type = as_data_type(data_type)
        self.is_virtual, self.is_pass_by_value = bool(is_virtual), bool(is_pass_by_value)
        self.ragged_offset = None
        if ragged_offset is not None:
            self.ragged_offset = self._as_offset(ragged_offset)
        self.reordering_type = as_member(
            name, "reordering_type", reordering_type, tensor_reordering
        )

    def _as_offset(self, offset: Any) -> Tensor:
        if not isinstance(offset, Tensor) or offset.graph is not self.graph or offset is self:
            raise DnnTypeError(
                f"{self.name}: ragged_offset must be another tensor of the graph, got {offset!r}"
            )
        return offset

    def _change(self, attribute: str, value: Any) -> Self:
        self.graph.check_open(f"change {attribute} of {self.name!r}")
        setattr(self, attribute, value)
        return self

    def set_output(self, is_output: bool) -> Self:
        """Set whether an array receives the tensor."""
        return self._change("is_virtual", not is_output)

    def set_is_virtual(self, is_virtual: bool) -> Self:
        """Set whether the tensor only exists inside of the graph."""
        return self._change("is_virtual", bool(is_virtual))

    def set_is_pass_by_value(self, is_pass_by_value: bool) -> Self:
        """Set whether `execute` takes a number from the host."""
        return self._change("is_pass_by_value", bool(is_pass_by_value))

    def set_dim(self, dim: Any) -> Self:
        """Set the sizes."""
        return self._change("dim", as_sizes(dim, f"dim of {self.name}", 1))

    def set_stride(self, stride: Any) -> Self:
        """Set the strides, in elements."""
        return self._change("stride", as_sizes(stride, f"stride of {self.name}", 0))

    def set_data_type(self, data_type: Any) -> Self:
        """Set the type of the elements; dtypes of NumPy and PyTorch are also accepted."""
        return self._change("data_type", as_data_type(data_type))

    def set_name(self, name: str) -> Self:
        """Set the name. If another tensor of the graph has it, a number is appended."""
        self.graph.check_open(f"rename {self.name!r}")
        self.graph.rename(self, name)
        return self

    def set_uid(self, uid: int) -> Self:
        """Set the number that identifies the tensor."""
        return self._change("uid", as_integer(uid, f"uid of {self.name}"))

    def set_ragged_offset(self, ragged_offset: Tensor) -> Self:
        """Set the tensor with the offsets of sequences that are stored one after the other."""
        return self._change("ragged_offset", self._as_offset(ragged_offset))

    def get_name(self) -> str:
        """Return the name."""
        return self.name

    def get_dim(self) -> list[int]:
        """Return the sizes."""
        return list(self.dim)

    def get_stride(self) -> list[int]:
        """Return the strides, in elements."""
        return list(self.stride)

    def get_data_type(self) -> Any:
        """Return the type of the elements."""
        return self.data_type

    def get_is_virtual(self) -> bool:
        """Return whether the tensor only exists inside of the graph."""
        return self.is_virtual

    def get_is_pass_by_value(self) -> bool:
        """Return whether `execute` takes a number from the host."""
        return self.is_pass_by_value

    def get_uid(self) -> int:
        """Return the number that identifies the tensor."""
        return self.uid

    @property
    def span(self) -> int:
        """Number of bytes from the first element to the end of the last one."""
        last = sum((n - 1) * s for n, s in zip(self.dim, self.stride, strict=True))
        return (last + 1) * item_size(self.data_type)

    @property
    def is_packed(self) -> bool:
        """Whether the elements have no gaps in memory."""
        used = [(s, n) for n, s in zip(self.dim, self.stride, strict=True) if n > 1]
        expected = 1
        for stride, size in sorted(used):
            if stride != expected:
                return False
            expected *= size
        return expected == math.prod(self.dim)

    def describe(self) -> dict[str, Any]:
        """Return the attributes as in the JSON text of a graph."""
        return {
            "data_type": None if self.data_type is data_type.NOT_SET else self.data_type.name,
            "dim": list(self.dim),
            "is_pass_by_value": self.is_pass_by_value,
            "is_virtual": self.is_virtual,
            "name": self.name,
            "pass_by_value": self.value,
            "reordering_type": self.reordering_type.name,
            "stride": list(self.stride),
            "uid": max(self.uid, 0),
            "uid_assigned": self.uid >= 0,
        }

    def __repr__(self) -> str:
        return json.dumps([self.describe()], separators=(",", ":"))


#: The name of the class in cuDNN's frontend.
tensor = Tensor

"""Checks of operands and parameters that the abstract Ops share."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Constant, Variable
from pytensor.tensor.basic import get_scalar_constant_value, get_vector_length
from pytensor.tensor.exceptions import NotScalarConstantError
from pytensor.tensor.variable import TensorVariable

from dnnops.errors import DnnTypeError, DnnValueError

#: The dtypes that the abstract Ops take.
FLOAT_DTYPES = ("float16", "float32", "float64")

#: cuDNN and oneDNN take sizes as 32-bit integers.
MAX_PARAMETER = 2**31 - 1

#: Sizes: ints, and None for those not yet known.
Shape = tuple[Any, ...]


def show_shape(shape: Sequence[int | None]) -> str:
    """Write a shape for a message, ``?`` standing for a size not yet known."""
    return "(" + ", ".join("?" if s is None else str(s) for s in shape) + ")"


def named_operands(where: str, names: Sequence[str], values: Sequence[Any]) -> dict[str, Any]:
    """Return an Op's operands by name.

    Raises
    ------
    DnnTypeError
        If there are more or fewer than names.
    """
    if len(values) != len(names):
        raise DnnTypeError(
            f"{where}: expected the operands {', '.join(names)}, got {len(values)} of them"
        )
    return dict(zip(names, values, strict=True))


def float_tensor(where: str, name: str, value: Any, ndim: int | None = None) -> TensorVariable:
    """Return `value` as a tensor of a floating-point dtype.

    Parameters
    ----------
    where, name : str
        The Op or function, and its argument: for the messages.
    value : tensor_like
        What the user gave.
    ndim : int, optional
        The rank that is expected.

    Raises
    ------
    DnnTypeError
        If it is no tensor, or if the rank or the dtype is another one.
    """
    try:
        x = pt.as_tensor_variable(value)
    except (TypeError, ValueError, NotImplementedError) as error:
        raise DnnTypeError(
            f"{where}: {name} must be a tensor, or numbers that make one, got {value!r}"
        ) from error
    if ndim is not None and x.type.ndim != ndim:
        raise DnnTypeError(
            f"{where}: {name} must have {ndim} dimensions, got {x.type.ndim} "
            f"(shape {show_shape(x.type.shape)})"
        )
    if x.type.dtype not in FLOAT_DTYPES:
        raise DnnTypeError(
            f"{where}: {name} has dtype {x.type.dtype}; expected one of "
            f"{', '.join(FLOAT_DTYPES)} (cast it first)"
        )
    return x


def as_floating(where: str, name: str, value: Any) -> TensorVariable:
    """Return `value` as a tensor of a floating-point dtype, integers and bools converted.

    Integers of at most 16 bits become float32, wider ones float64, as for PyTensor's ``exp``.

    Parameters
    ----------
    where, name : str
        The function and its argument, for messages.
    value : tensor_like

    Raises
    ------
    DnnTypeError
        If it is no tensor, or neither real nor integer.
    """
    try:
        value = pt.as_tensor_variable(value)
    except (TypeError, ValueError, NotImplementedError):
        return float_tensor(where, name, value)  # says what is wrong
    dtype = np.dtype(value.type.dtype)
    if dtype.kind in "biu":
        value = pt.cast(value, "float32" if dtype.itemsize <= 2 else "float64")
    return float_tensor(where, name, value)


def require_same_dtype(where: str, **operands: TensorVariable) -> str:
    """Return the dtype that all `operands` have; raise DnnTypeError if they differ."""
    dtypes = {name: x.type.dtype for name, x in operands.items()}
    if len(set(dtypes.values())) != 1:
        found = ", ".join(f"{name} {dtype}" for name, dtype in dtypes.items())
        raise DnnTypeError(f"{where}: the operands must have one dtype, got {found}")
    return next(iter(dtypes.values()))


def accumulator_dtype(dtype: Any) -> np.dtype:
    """Return the dtype in which sums over elements of `dtype` are taken."""
    return np.dtype("float32") if np.dtype(dtype) == np.float16 else np.dtype(dtype)


def int_tuple(where: str, name: str, value: Any, ndim: int, minimum: int) -> tuple[int, ...]:
    """Return `value`, an int or a sequence of `ndim` ints, as a tuple of ints.

    Raises
    ------
    DnnTypeError
        If an entry is not an integer.
    DnnValueError
        If there are not `ndim` entries, or one is out of bounds.
    """
    entries = (value,) * ndim if is_int(value) else value
    if not isinstance(entries, (tuple, list, np.ndarray)) or not all(is_int(e) for e in entries):
        raise DnnTypeError(f"{where}: {name} must be an int or {ndim} ints, got {value!r}")
    if len(entries) != ndim:
        raise DnnValueError(f"{where}: {name} must have {ndim} entries, got {value!r}")
    if not all(minimum <= e <= MAX_PARAMETER for e in entries):
        raise DnnValueError(
            f"{where}: {name} must be between {minimum} and {MAX_PARAMETER}, got {value!r}"
        )
    return tuple(int(e) for e in entries)


def switch(where: str, name: str, value: Any) -> bool:
    """Return `value`, a bool of Python or NumPy or one of the ints 0 and 1, as a bool.

    Raises
    ------
    DnnTypeError
        If it is anything else.
    """
    if isinstance(value, (bool, np.bool_)) or (is_int(value) and value in (0, 1)):
        return bool(value)
    raise DnnTypeError(f"{where}: {name} must be True or False, got {value!r}")


def check_int64(where: str, name: str, value: int) -> None:
    """Raise `DnnValueError` if an int has more than 64 bits."""
    if not -(2**63) <= value < 2**63:
        raise DnnValueError(f"{where}: {name} must be from -2**63 to 2**63 - 1, got {value}")


def is_int(value: Any) -> bool:
    """Tell whether `value` is an integer of Python or NumPy, bool excluded."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def int_vector(where: str, name: str, value: Any, length: int) -> TensorVariable:
    """Return `value` as an int64 vector of static length `length`.

    Parameters
    ----------
    where, name : str
        The Op or function, and its argument: for the messages.
    value : int vector, or sequence of ints and symbolic int scalars
        What the user gave.
    length : int
        The number of entries expected.

    Raises
    ------
    DnnTypeError
        If it is not a vector of integers.
    DnnValueError
        If its length is statically another one.
    """
    expected = f"{where}: {name} must be a vector of {length} integers"
    try:
        vector = pt.as_tensor_variable(value)
    except (TypeError, ValueError, NotImplementedError) as error:
        raise DnnTypeError(f"{expected}, got {value!r}") from error
    is_empty = vector.type.shape == (0,)  # an empty list has the dtype floatX
    if vector.type.ndim != 1 or not (is_empty or vector.type.dtype in pt.type.integer_dtypes):
        raise DnnTypeError(f"{expected}, got {vector.type}")
    if vector.type.shape[0] not in (None, length):
        raise DnnValueError(f"{expected}, got {vector.type.shape[0]} of them")
    if vector.type.dtype != "int64":
        vector = pt.cast(vector, "int64")
        if isinstance(vector.owner.inputs[0], Constant):
            vector = pt.constant(vector.owner.inputs[0].data.astype("int64"))
    if vector.type.shape[0] is None:
        vector = pt.specify_shape(vector, (length,))
    return vector


def static_int(value: Any) -> int | None:
    """Return an int or symbolic integer scalar as an int; None if it is not constant."""
    if value is None or is_int(value):
        return None if value is None else int(value)
    try:
        return int(get_scalar_constant_value(value))
    except NotScalarConstantError:
        return None


def vector_entries(vector: Any, length: int) -> tuple[int | TensorVariable, ...]:
    """Return the entries of an int vector: ints where they are constant."""
    if isinstance(vector, Constant):
        return tuple(vector.data.tolist())
    entries = []
    for i in range(length):
        entry = vector[i]
        known = static_int(entry)
        entries.append(entry if known is None else known)
    return tuple(entries)


def static_vector(vector: Any, length: int) -> Shape:
    """Return the entries of an int vector, None where they are not constant."""
    entries = vector_entries(vector, length)
    return tuple(e if isinstance(e, int) else None for e in entries)


def spatial_shape(x: TensorVariable) -> TensorVariable:
    """Return the sizes of `x` after batch and channel, as an int64 vector."""
    sizes = x.type.shape[2:]
    if all(s is not None for s in sizes):
        return pt.constant(np.array(sizes, dtype="int64"))
    return pt.stack([x.shape[i + 2] if s is None else np.int64(s) for i, s in enumerate(sizes)])


def shape_argument(
    where: str, name: str, shape: Any, ndim: int
) -> tuple[int | TensorVariable | None, ...]:
    """Canonicalise a shape that a user gave.

    Parameters
    ----------
    where, name : str
        The function and its argument: for the messages.
    shape : None, int vector, or sequence of int, symbolic int scalar or None
        What the user gave; None stands for a shape of which nothing is known.
    ndim : int
        The number of entries expected.

    Returns
    -------
    tuple
        `ndim` entries: int where constant, a symbolic scalar, or None where unknown.

    Raises
    ------
    DnnTypeError, DnnValueError
        If it is anything else, or has another length.
    """
    if shape is None:
        return (None,) * ndim
    expected = f"{where}: {name} must have {ndim} entries, each an int, a symbolic int or None"
    if isinstance(shape, TensorVariable):
        try:
            length = get_vector_length(shape)
        except ValueError as error:
            raise DnnTypeError(f"{expected}; got {shape.type}") from error
        shape = tuple(shape[i] for i in range(length))
    if not isinstance(shape, (tuple, list, np.ndarray)):
        raise DnnTypeError(f"{expected}; got {shape!r}")
    if len(shape) != ndim:
        raise DnnValueError(f"{expected}; got {len(shape)} entries")
    entries: list[int | TensorVariable | None] = []
    for entry in shape:
        if isinstance(entry, Variable):
            if entry.type.ndim != 0 or entry.type.dtype not in pt.type.integer_dtypes:
                raise DnnTypeError(f"{expected}; got an entry of type {entry.type}")
        elif not (entry is None or is_int(entry)):
            raise DnnTypeError(f"{expected}; got the entry {entry!r}")
        known = static_int(entry)
        if known is not None and known < 0:
            raise DnnValueError(f"{where}: {name} has the negative entry {known}")
        entries.append(entry if known is None else known)
    return tuple(entries)


def narrow(where: str, name: str, x: TensorVariable, shape_name: str, shape: Any) -> TensorVariable:
    """Add to the static shape of `x` what a user's shape argument tells.

    Raises
    ------
    DnnValueError
        If the argument contradicts the static shape.
    """
    entries = shape_argument(where, shape_name, shape, x.type.ndim)
    known = tuple(e if isinstance(e, int) else None for e in entries)
    pairs = zip(known, x.type.shape, strict=True)
    if any(None not in (a, b) and a != b for a, b in pairs):
        raise DnnValueError(
            f"{where}: {shape_name} {show_shape(known)} contradicts the shape "
            f"{show_shape(x.type.shape)} of {name}"
        )
    return pt.specify_shape(x, entries)


def merge_shapes(where: str, **shapes: Sequence[int | None]) -> Shape:
    """Return what is known of the one shape that all operands must have.

    Raises
    ------
    DnnValueError
        If two of the shapes differ.
    """
    merged: list[int | None] = []
    for sizes in zip(*shapes.values(), strict=True):
        known = {size for size in sizes if size is not None}
        if len(known) > 1:
            found = ", ".join(f"{name} {show_shape(shape)}" for name, shape in shapes.items())
            raise DnnValueError(f"{where}: the operands must have one shape, got {found}")
        merged.append(known.pop() if known else None)
    return tuple(merged)


def float64_scalar(where: str, name: str, value: Any, minimum: float = -np.inf) -> TensorVariable:
    """Return a number or scalar variable as a float64 scalar; a constant one is checked."""
    expected = f"{where}: {name} must be a number or a real scalar variable"
    try:
        x = pt.as_tensor_variable(value)
    except (TypeError, ValueError, NotImplementedError) as error:
        raise DnnTypeError(f"{expected}, got {value!r}") from error
    dtype = np.dtype(x.type.dtype)
    if x.type.ndim != 0 or dtype.kind not in "iuf":
        raise DnnTypeError(f"{expected}, got {x.type}")
    if isinstance(x, Constant):
        number = float(x.data)
        if not isfinite(number) or number < minimum:
            at_least = "" if minimum == -np.inf else f" and at least {minimum:g}"
            raise DnnValueError(f"{where}: {name} must be finite{at_least}, got {number}")
        return pt.constant(number, dtype="float64")
    return x if dtype == np.float64 else pt.cast(x, "float64")

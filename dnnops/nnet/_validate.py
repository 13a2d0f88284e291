"""Checks of operands and parameters that the abstract Ops share.

Those of plain values are in `dnnops.arguments`, and can be imported from here too.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Constant, Variable
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor.basic import get_scalar_constant_value, get_vector_length
from pytensor.tensor.exceptions import NotScalarConstantError
from pytensor.tensor.variable import TensorVariable

from dnnops.arguments import (
    MAX_PARAMETER,
    check_bounds,
    check_int64,
    int_tuple,
    is_int,
    is_sequence,
    number,
    one_of,
    shown,
    switch,
)
from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.nnet.checks import checked

__all__ = [
    "FLOAT_DTYPES",
    "MAX_PARAMETER",
    "Shape",
    "accumulator_dtype",
    "as_tensor",
    "check_bounds",
    "check_broadcast",
    "check_int64",
    "float64_scalar",
    "float_tensor",
    "int_tuple",
    "int_vector",
    "integer_vector",
    "is_int",
    "is_sequence",
    "merge_shapes",
    "named_operands",
    "narrow",
    "number",
    "one_of",
    "require_same_dtype",
    "shape_argument",
    "show_shape",
    "shown",
    "size_argument",
    "sizes_argument",
    "spatial_shape",
    "static_int",
    "static_vector",
    "switch",
    "vector_entries",
]

#: The dtypes that the abstract Ops take.
FLOAT_DTYPES = ("float16", "float32", "float64")

_MAX_INT64 = 2**63 - 1

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


def as_tensor(expected: str, value: Any) -> TensorVariable:
    """Return `value` as a tensor.

    Parameters
    ----------
    expected : str
        What the message says first: ``"conv2d: input must be a tensor"``.
    value : tensor_like
        What the user gave.

    Raises
    ------
    DnnTypeError
        If no tensor can be made of it.
    DnnValueError
        If it holds an int of more than 64 bits.
    """
    try:
        return pt.as_tensor_variable(value)
    except OverflowError as error:
        raise DnnValueError(
            f"{expected} whose ints have at most 64 bits, got {shown(value)}"
        ) from error
    except Exception as error:  # whatever the value's own methods raise
        raise DnnTypeError(f"{expected}, got {shown(value)}") from error


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
    x = as_tensor(f"{where}: {name} must be a tensor, or numbers that make one", value)
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


def integer_vector(where: str, name: str, value: Any) -> TensorVariable:
    """Return `value` as a vector of an integer dtype, or raise DnnTypeError."""
    expected = f"{where}: {name} must be an integer vector"
    vector = as_tensor(expected, value)
    if vector.type.ndim != 1 or vector.type.dtype not in pt.type.integer_dtypes:
        raise DnnTypeError(f"{expected}, got {vector.type}")
    return vector


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
    value = as_tensor(f"{where}: {name} must be a tensor, or numbers that make one", value)
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


def check_broadcast(where: str, **operands: TensorVariable) -> None:
    """Raise DnnValueError if the static shapes of `operands` tell that they do not broadcast."""
    ndim = max(x.type.ndim for x in operands.values())
    shapes = [(1,) * (ndim - x.type.ndim) + x.type.shape for x in operands.values()]
    for sizes in zip(*shapes, strict=True):
        if len({size for size in sizes if size not in (None, 1)}) > 1:
            found = ", ".join(f"{n} {show_shape(x.type.shape)}" for n, x in operands.items())
            raise DnnValueError(f"{where}: the operands must broadcast, got the shapes {found}")


def accumulator_dtype(dtype: Any) -> np.dtype:
    """Return the dtype in which sums over elements of `dtype` are taken."""
    return np.dtype("float32") if np.dtype(dtype) == np.float16 else np.dtype(dtype)


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
    vector = as_tensor(expected, value)
    is_empty = vector.type.shape == (0,)  # an empty list has the dtype floatX
    if vector.type.ndim != 1 or not (is_empty or vector.type.dtype in pt.type.integer_dtypes):
        raise DnnTypeError(f"{expected}, got {vector.type}")
    if vector.type.shape[0] not in (None, length):
        raise DnnValueError(f"{expected}, got {vector.type.shape[0]} of them")
    if vector.type.dtype != "int64":
        if isinstance(vector, Constant) and vector.data.max(initial=0) > _MAX_INT64:
            raise DnnValueError(f"{expected} of at most 64 bits, got {shown(value)}")
        vector = pt.cast(vector, "int64")
        if isinstance(vector.owner.inputs[0], Constant):
            vector = pt.constant(vector.owner.inputs[0].data.astype("int64"))
    if vector.type.shape[0] is None:
        # SpecifyShape alone would raise an AssertionError that names no argument.
        # PyTensor's PyTorch linker can test tensors only, which its pt.eq and a shape do not give.
        count = pt.sum(pt.ge(vector, np.iinfo("int64").min), dtype="int64")
        conditions = pt.ge(count, length), pt.le(count, length)
        check = CheckAndRaise(DnnValueError, f"{expected}, got another number")
        right: Any = check(vector, *conditions)
        vector = pt.specify_shape(right, (length,))
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
        if shape.type.ndim != 1 or shape.type.dtype not in pt.type.integer_dtypes:
            raise DnnTypeError(f"{expected}; got {shape.type}")
        try:
            length = get_vector_length(shape)
        except ValueError as error:
            raise DnnTypeError(f"{expected}; got {shape.type}, of unknown length") from error
        shape = tuple(shape[i] for i in range(length))
    if not is_sequence(shape):
        raise DnnTypeError(f"{expected}; got {shown(shape)}")
    if len(shape) != ndim:
        raise DnnValueError(f"{expected}; got {len(shape)} entries")
    entries: list[int | TensorVariable | None] = []
    for entry in shape:
        if isinstance(entry, Variable):
            is_integer = getattr(entry.type, "dtype", "") in pt.type.integer_dtypes
            if not is_integer or getattr(entry.type, "ndim", 0) != 0:
                raise DnnTypeError(f"{expected}; got an entry of type {entry.type}")
        elif not (entry is None or is_int(entry)):
            raise DnnTypeError(f"{expected}; got the entry {shown(entry)}")
        known = static_int(entry)
        if known is not None and known < 0:
            raise DnnValueError(f"{where}: {name} has the negative entry {known}")
        if known is not None and known > _MAX_INT64:
            raise DnnValueError(f"{where}: {name} has the entry {known}, of more than 64 bits")
        entries.append(entry if known is None else known)
    return tuple(entries)


def size_argument(
    where: str, name: str, value: Any, minimum: int = 0
) -> int | TensorVariable | None:
    """Canonicalise a size that a user gave: an int, a symbolic int scalar, or None if unknown.

    Raises
    ------
    DnnTypeError, DnnValueError
        If it is anything else, or an int that is out of bounds.
    """
    (size,) = sizes_argument(where, name, (value,), (1,), minimum)
    return size


def sizes_argument(
    where: str, name: str, sizes: Any, lengths: Sequence[int], minimum: int = 0
) -> tuple[int | TensorVariable | None, ...]:
    """Canonicalise sizes as `shape_argument` does a shape, where None alone stands for nothing.

    Parameters
    ----------
    where, name : str
        The function and its argument: for the messages.
    sizes : int vector, or sequence of int, symbolic int scalar or None
        What the user gave.
    lengths : sequence of int
        How many entries there may be.
    minimum : int
        The least value of an entry.

    Raises
    ------
    DnnTypeError, DnnValueError
        If they are anything else.
    """
    expected = " or ".join(map(str, lengths))
    if is_sequence(sizes):
        length = len(sizes)
    elif isinstance(sizes, TensorVariable) and sizes.type.ndim == 1:
        length = sizes.type.shape[0] or lengths[0]
    else:
        raise DnnTypeError(f"{where}: {name} must be {expected} sizes, got {shown(sizes)}")
    if length not in lengths:
        raise DnnValueError(f"{where}: {name} must have {expected} entries, got {shown(sizes)}")
    entries = shape_argument(where, name, sizes, length)
    for entry in entries:
        if isinstance(entry, int) and entry < minimum:
            raise DnnValueError(
                f"{where}: every entry of {name} must be at least {minimum}, got {shown(sizes)}"
            )
    return entries


def narrow(where: str, name: str, x: TensorVariable, shape_name: str, shape: Any) -> TensorVariable:
    """Add to the static shape of `x` what a user's shape argument tells.

    Raises
    ------
    DnnValueError
        If the argument contradicts the static shape; when `x` is computed, its shape.
    """
    entries = shape_argument(where, shape_name, shape, x.type.ndim)
    known = tuple(e if isinstance(e, int) else None for e in entries)
    pairs = zip(known, x.type.shape, strict=True)
    if any(None not in (a, b) and a != b for a, b in pairs):
        raise DnnValueError(
            f"{where}: {shape_name} {show_shape(known)} contradicts the shape "
            f"{show_shape(x.type.shape)} of {name}"
        )
    told = [i for i, e in enumerate(entries) if e is not None and x.type.shape[i] is None]
    if not told:
        return pt.specify_shape(x, entries)
    # SpecifyShape alone would raise an AssertionError that names no argument.
    problem = f"{where}: the shape of {name} is not what {shape_name} says"
    if any(e is not None for e in known):
        problem += f", {show_shape(known)}"
    fits = (pt.eq(x.shape[i], entries[i]) for i in told)
    return pt.specify_shape(checked(x, problem, *fits), entries)


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


def float64_scalar(
    where: str, name: str, value: Any, minimum: float = -inf, maximum: float = inf
) -> TensorVariable:
    """Return a number or scalar variable as a float64 scalar; a constant one is checked."""
    x = as_tensor(f"{where}: {name} must be a number or a real scalar variable", value)
    dtype = np.dtype(x.type.dtype)
    if x.type.ndim != 0 or dtype.kind not in "iuf":
        raise DnnTypeError(
            f"{where}: {name} must be a number or a real scalar variable, got {x.type}"
        )
    if isinstance(x, Constant):
        found = float(x.data)
        check_bounds(where, name, found, minimum, maximum)
        return pt.constant(found, dtype="float64")
    return x if dtype == np.float64 else pt.cast(x, "float64")

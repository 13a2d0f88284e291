"""Checks of operands and parameters, shared by the abstract Ops.

The checks of plain values are defined in `dnnops.arguments` and re-exported here.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import disconnected_grad
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
from dnnops.dtypes import HOST_FLOAT_DTYPES, compute_dtype
from dnnops.errors import DnnShapeError, DnnTypeError, DnnValueError
from dnnops.nnet.checks import checked

__all__ = [
    "MAX_PARAMETER",
    "Shape",
    "accumulator_dtype",
    "as_tensor",
    "cast_integers",
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

_MAX_INT64 = 2**63 - 1

#: A shape: ints or symbolic ints, with None for unknown sizes.
Shape = tuple[Any, ...]


def show_shape(shape: Sequence[int | None]) -> str:
    """Format a shape for an error message, with ``?`` for unknown sizes."""
    return "(" + ", ".join("?" if s is None else str(s) for s in shape) + ")"


def named_operands(where: str, names: Sequence[str], values: Sequence[Any]) -> dict[str, Any]:
    """Return a dict that maps the names of an Op's operands to their values.

    Raises
    ------
    DnnTypeError
        If the number of values differs from the number of names.
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
        Start of the error message, such as ``"conv2d: input must be a tensor"``.
    value : tensor_like
        Value that the user passed.

    Raises
    ------
    DnnTypeError
        If `value` cannot be converted to a tensor.
    DnnValueError
        If `value` contains an int that does not fit into 64 bits.
    """
    try:
        return pt.as_tensor_variable(value)
    except OverflowError as error:
        raise DnnValueError(
            f"{expected} whose ints fit into 64 bits, got {shown(value)}"
        ) from error
    except Exception as error:  # whatever the value's own methods raise
        raise DnnTypeError(f"{expected}, got {shown(value)}") from error


def float_tensor(where: str, name: str, value: Any, ndim: int | None = None) -> TensorVariable:
    """Return `value` as a tensor of a floating-point dtype.

    Parameters
    ----------
    where, name : str
        Names of the Op or function and of its argument, for error messages.
    value : tensor_like
        Value that the user passed.
    ndim : int, optional
        Expected rank. The default accepts any rank.

    Raises
    ------
    DnnTypeError
        If `value` cannot be converted to a tensor, or if its rank or dtype is invalid.
    """
    x = as_tensor(f"{where}: {name} must be a tensor or array-like", value)
    if ndim is not None and x.type.ndim != ndim:
        raise DnnTypeError(
            f"{where}: {name} must have {ndim} dimensions, got {x.type.ndim} "
            f"(shape {show_shape(x.type.shape)})"
        )
    if x.type.dtype not in HOST_FLOAT_DTYPES:
        raise DnnTypeError(
            f"{where}: {name} has dtype {x.type.dtype}; expected one of "
            f"{', '.join(HOST_FLOAT_DTYPES)} (cast it first)"
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
    """Return `value` as a floating-point tensor, converting integers and bools.

    Bools and integers of at most 16 bits become float32 and wider integers become float64, as in
    PyTensor's ``exp``.

    Parameters
    ----------
    where, name : str
        Names of the function and of its argument, for error messages.
    value : tensor_like

    Raises
    ------
    DnnTypeError
        If `value` cannot be converted to a tensor, or if its dtype is not supported.
    """
    value = as_tensor(f"{where}: {name} must be a tensor or array-like", value)
    dtype = np.dtype(value.type.dtype)
    if dtype.kind in "biu":
        value = cast_integers(value, "float32" if dtype.itemsize <= 2 else "float64")
    return float_tensor(where, name, value)


def cast_integers(x: TensorVariable, dtype: str) -> TensorVariable:
    """Cast integers or bools to a floating-point dtype, without a gradient for what made them.

    PyTensor's gradient of a comparison or of a cast to integers is zeros of floatX. Added to
    another gradient of a float32 operand, they would make it float64.
    """
    return pt.cast(x if x.owner is None else disconnected_grad(x), dtype)


def require_same_dtype(where: str, **operands: TensorVariable) -> str:
    """Return the common dtype of all `operands`, or raise DnnTypeError if their dtypes differ."""
    dtypes = {name: x.type.dtype for name, x in operands.items()}
    if len(set(dtypes.values())) != 1:
        found = ", ".join(f"{name} {dtype}" for name, dtype in dtypes.items())
        raise DnnTypeError(f"{where}: the operands must have one dtype, got {found}")
    return next(iter(dtypes.values()))


def check_broadcast(where: str, **operands: TensorVariable) -> None:
    """Raise DnnValueError if the static shapes of `operands` cannot broadcast together."""
    ndim = max(x.type.ndim for x in operands.values())
    shapes = [(1,) * (ndim - x.type.ndim) + x.type.shape for x in operands.values()]
    for sizes in zip(*shapes, strict=True):
        if len({size for size in sizes if size not in (None, 1)}) > 1:
            found = ", ".join(f"{n} {show_shape(x.type.shape)}" for n, x in operands.items())
            raise DnnValueError(f"{where}: the operands must broadcast together, got {found}")


def accumulator_dtype(dtype: Any) -> np.dtype:
    """Return the dtype in which to accumulate elements of `dtype`."""
    return np.dtype(compute_dtype(np.dtype(dtype).name))


def int_vector(where: str, name: str, value: Any, length: int) -> TensorVariable:
    """Return `value` as an int64 vector of static length `length`.

    Parameters
    ----------
    where, name : str
        Names of the Op or function and of its argument, for error messages.
    value : int vector, or sequence of ints and symbolic int scalars
        Value that the user passed.
    length : int
        Expected number of entries.

    Raises
    ------
    DnnTypeError
        If `value` is not a vector of integers.
    DnnValueError
        If its static length is not `length`, or if an entry does not fit into an int64. If the
        static length is unknown, the returned variable raises this error when it is computed.
    """
    expected = f"{where}: {name} must be a vector of {length} integers"
    vector = as_tensor(expected, value)
    is_empty = vector.type.shape == (0,)  # PyTensor gives an empty list the dtype floatX
    if vector.type.ndim != 1 or not (is_empty or vector.type.dtype in pt.type.integer_dtypes):
        raise DnnTypeError(f"{expected}, got {vector.type}")
    if vector.type.shape[0] not in (None, length):
        raise DnnValueError(f"{expected}, got {vector.type.shape[0]} entries")
    if vector.type.dtype != "int64":
        if isinstance(vector, Constant) and vector.data.max(initial=0) > _MAX_INT64:
            raise DnnValueError(f"{expected} that fit into int64, got {shown(value)}")
        vector = pt.cast(vector, "int64")
        if isinstance(vector.owner.inputs[0], Constant):
            vector = pt.constant(vector.owner.inputs[0].data.astype("int64"))
    if vector.type.shape[0] is None:
        # SpecifyShape alone would raise an AssertionError that does not name the argument.
        # PyTensor's PyTorch linker can only check tensors, and there pt.eq of a shape is not one.
        count = pt.sum(pt.ge(vector, np.iinfo("int64").min), dtype="int64")
        conditions = pt.ge(count, length), pt.le(count, length)
        check = CheckAndRaise(DnnValueError, f"{expected}, got a different number of them")
        right: Any = check(vector, *conditions)
        vector = pt.specify_shape(right, (length,))
    return vector


def static_int(value: Any) -> int | None:
    """Return an int or symbolic integer scalar as an int, or None if it is not constant."""
    if value is None or is_int(value):
        return None if value is None else int(value)
    try:
        return int(get_scalar_constant_value(value))
    except NotScalarConstantError:
        return None


def vector_entries(vector: Any, length: int) -> tuple[int | TensorVariable, ...]:
    """Return the entries of an int vector, with constant entries as ints."""
    if isinstance(vector, Constant):
        return tuple(vector.data.tolist())
    entries = []
    for i in range(length):
        entry = vector[i]
        known = static_int(entry)
        entries.append(entry if known is None else known)
    return tuple(entries)


def static_vector(vector: Any, length: int) -> Shape:
    """Return the entries of an int vector, with None for entries that are not constant."""
    entries = vector_entries(vector, length)
    return tuple(e if isinstance(e, int) else None for e in entries)


def spatial_shape(x: TensorVariable) -> TensorVariable:
    """Return the spatial sizes of `x`, after batch and channels, as an int64 vector."""
    sizes = x.type.shape[2:]
    if all(s is not None for s in sizes):
        return pt.constant(np.array(sizes, dtype="int64"))
    return pt.stack([x.shape[i + 2] if s is None else np.int64(s) for i, s in enumerate(sizes)])


def shape_argument(
    where: str, name: str, shape: Any, ndim: int, negative: bool = False
) -> tuple[int | TensorVariable | None, ...]:
    """Canonicalize a shape argument.

    Parameters
    ----------
    where, name : str
        Names of the function and of its argument, for error messages.
    shape : None, int vector, or sequence of int, symbolic int scalar or None
        Shape that the user passed. None means that the whole shape is unknown.
    ndim : int
        Expected number of entries.
    negative : bool
        Whether entries may be negative.

    Returns
    -------
    tuple
        `ndim` entries, each an int if constant, a symbolic scalar, or None if unknown.

    Raises
    ------
    DnnTypeError
        If `shape` or one of its entries has an invalid type.
    DnnValueError
        If `shape` has the wrong length, or if an entry is negative or too large.
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
            raise DnnTypeError(f"{expected}; got {shape.type} of unknown length") from error
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
        if known is not None and known < 0 and not negative:
            raise DnnValueError(f"{where}: entries of {name} must not be negative, got {known}")
        if known is not None and abs(known) > _MAX_INT64:
            raise DnnValueError(f"{where}: {name} has an entry {known} that exceeds 64 bits")
        entries.append(entry if known is None else known)
    return tuple(entries)


def size_argument(
    where: str, name: str, value: Any, minimum: int | None = 0
) -> int | TensorVariable | None:
    """Canonicalize a size argument: an int, a symbolic int scalar, or None if unknown.

    Raises
    ------
    DnnTypeError
        If `value` has another type.
    DnnValueError
        If `value` is an int that is out of bounds.
    """
    (size,) = sizes_argument(where, name, (value,), (1,), minimum)
    return size


def sizes_argument(
    where: str, name: str, sizes: Any, lengths: Sequence[int], minimum: int | None = 0
) -> tuple[int | TensorVariable | None, ...]:
    """Canonicalize a sequence of sizes.

    This function is like `shape_argument`, but several lengths may be allowed, and None is not
    accepted in place of the sequence.

    Parameters
    ----------
    where, name : str
        Names of the function and of its argument, for error messages.
    sizes : int vector, or sequence of int, symbolic int scalar or None
        Sizes that the user passed.
    lengths : sequence of int
        Allowed numbers of entries.
    minimum : int or None
        Smallest allowed value of an entry, or None if entries may have any sign.

    Raises
    ------
    DnnTypeError
        If `sizes` or one of its entries has an invalid type.
    DnnValueError
        If the number of entries is not in `lengths`, or if an entry is out of bounds.
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
    entries = shape_argument(where, name, sizes, length, negative=minimum is None)
    for entry in entries:
        if isinstance(entry, int) and minimum is not None and entry < minimum:
            raise DnnValueError(
                f"{where}: every entry of {name} must be at least {minimum}, got {shown(sizes)}"
            )
    return entries


def narrow(where: str, name: str, x: TensorVariable, shape_name: str, shape: Any) -> TensorVariable:
    """Refine the static shape of `x` with a shape argument.

    Raises
    ------
    DnnShapeError
        If the argument contradicts the static shape. Sizes that are not known statically are
        checked when the result is computed.
    """
    entries = shape_argument(where, shape_name, shape, x.type.ndim)
    known = tuple(e if isinstance(e, int) else None for e in entries)
    pairs = zip(known, x.type.shape, strict=True)
    if any(None not in (a, b) and a != b for a, b in pairs):
        raise DnnShapeError(
            f"{where}: {shape_name} {show_shape(known)} contradicts the shape "
            f"{show_shape(x.type.shape)} of {name}"
        )
    told = [i for i, e in enumerate(entries) if e is not None and x.type.shape[i] is None]
    if not told:
        return pt.specify_shape(x, entries)
    # SpecifyShape alone would raise an AssertionError that does not name the argument.
    problem = f"{where}: the shape of {name} does not match the {shape_name} argument"
    if any(e is not None for e in known):
        problem += f" {show_shape(known)}"
    fits = (pt.eq(x.shape[i], entries[i]) for i in told)
    return pt.specify_shape(checked(x, problem, *fits, error=DnnShapeError), entries)


def merge_shapes(where: str, **shapes: Sequence[int | None]) -> Shape:
    """Return the common shape of all operands, combining the known sizes of each.

    Raises
    ------
    DnnValueError
        If two known sizes of the same axis differ.
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
    """Return a number or scalar variable as a float64 scalar, checking the bounds of constants."""
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

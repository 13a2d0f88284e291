"""Checks of arguments that are plain values: flags, numbers, words and tuples of ints.

For any input, each check returns a value of the documented type or raises an error from
`dnnops.errors` that names the argument.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf, isfinite
from typing import Any

import numpy as np

from dnnops.config import flag_value
from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.hints import value_hint

__all__ = [
    "MAX_PARAMETER",
    "check_bounds",
    "check_int64",
    "host_array",
    "int_tuple",
    "is_int",
    "is_sequence",
    "number",
    "one_of",
    "probability",
    "shown",
    "switch",
    "switch_or_flag",
]

#: cuDNN and oneDNN take sizes as 32-bit integers.
MAX_PARAMETER = 2**31 - 1


def shown(value: Any) -> str:
    """Format a user's value for a message, on one line and truncated if it is long."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # __repr__ of the value may raise anything
        text = object.__repr__(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def one_of(where: str, name: str, value: Any, accepted: Iterable[str]) -> str:
    """Return `value` if it is one of the strings in `accepted`.

    Raises
    ------
    DnnValueError
        If `value` is not accepted.
    """
    if not isinstance(value, str) or value not in accepted:
        raise DnnValueError(
            f"{where}: {name} must be one of {', '.join(accepted)}, got {shown(value)}"
            f"{value_hint(name, value)}"
        )
    return value


def _real(where: str, name: str, value: Any) -> float:
    if isinstance(value, (bool, np.bool_)) or not isinstance(
        value, (int, float, np.integer, np.floating)
    ):
        raise DnnTypeError(f"{where}: {name} must be a number, got {shown(value)}")
    try:
        return float(value)
    except OverflowError:
        return inf if value > 0 else -inf


def number(where: str, name: str, value: Any, minimum: float = -inf, maximum: float = inf) -> float:
    """Return `value`, a finite Python or NumPy number within bounds, as a float.

    Raises
    ------
    DnnTypeError
        If `value` is not a number. A bool does not count as one.
    DnnValueError
        If `value` is not finite or out of bounds.
    """
    found = _real(where, name, value)
    check_bounds(where, name, found, minimum, maximum)
    return found


def probability(where: str, name: str, value: Any, with_one: bool = False) -> float:
    """Return `value`, a number that is at least 0 and less than 1, as a float.

    Parameters
    ----------
    where, name : str
        Names of the function and of its argument, for error messages.
    value : float
    with_one : bool
        Whether `value` may also be 1.

    Raises
    ------
    DnnTypeError
        If `value` is not a number. A bool does not count as one.
    DnnValueError
        If `value` is out of bounds.
    """
    found = _real(where, name, value)
    if not (0 <= found < 1 or (with_one and found == 1)):  # NaN, too
        most = "at most" if with_one else "less than"
        raise DnnValueError(f"{where}: {name} must be at least 0 and {most} 1, got {found}")
    return found


def check_bounds(where: str, name: str, found: float, minimum: float, maximum: float) -> None:
    """Raise `DnnValueError` unless a number is finite and within bounds."""
    if isfinite(found) and minimum <= found <= maximum:
        return
    bounds = "".join(
        f" and at {which} {bound:g}"
        for which, bound in (("least", minimum), ("most", maximum))
        if isfinite(bound)
    )
    raise DnnValueError(f"{where}: {name} must be finite{bounds}, got {found}")


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
    if not is_sequence(entries) or not all(map(is_int, entries)):
        raise DnnTypeError(f"{where}: {name} must be an int or {ndim} ints, got {shown(value)}")
    if len(entries) != ndim:
        raise DnnValueError(f"{where}: {name} must have {ndim} entries, got {shown(value)}")
    if not all(minimum <= e <= MAX_PARAMETER for e in entries):
        raise DnnValueError(
            f"{where}: {name} must be between {minimum} and {MAX_PARAMETER}, got {shown(value)}"
        )
    return tuple(int(e) for e in entries)


def switch(where: str, name: str, value: Any) -> bool:
    """Return `value`, a Python or NumPy bool or the int 0 or 1, as a bool.

    Raises
    ------
    DnnTypeError
        If `value` is anything else.
    """
    if isinstance(value, (bool, np.bool_)) or (is_int(value) and value in (0, 1)):
        return bool(value)
    raise DnnTypeError(f"{where}: {name} must be True or False, got {shown(value)}")


def switch_or_flag(where: str, name: str, value: Any, flag: str) -> bool:
    """Return `value` as a bool, or the value of `flag` if `value` is None."""
    return bool(flag_value(flag)) if value is None else switch(where, name, value)


def check_int64(where: str, name: str, value: int) -> None:
    """Raise `DnnValueError` if an int does not fit into 64 bits."""
    if not -(2**63) <= value < 2**63:
        raise DnnValueError(f"{where}: {name} must be from -2**63 to 2**63 - 1, got {value}")


def is_sequence(value: Any) -> bool:
    """Return whether `value` is a tuple, a list or an array with at least one axis."""
    return isinstance(value, (tuple, list)) or (isinstance(value, np.ndarray) and value.ndim > 0)


def is_int(value: Any) -> bool:
    """Return whether `value` is a Python or NumPy integer, but not a bool."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _tensor_on_host(where: str, name: str, tensor: Any) -> Any:
    """Return a tensor of PyTorch as one that NumPy can read."""
    kind = advice = ""
    if hasattr(tensor, "materialize"):
        kind, advice = "a lazy tensor without values", "call its module with a batch first"
    elif tensor.is_nested:
        kind, advice = "a nested tensor", "convert it with to_padded_tensor()"
    elif tensor.is_meta:
        kind, advice = "a meta tensor without values", "load the values of its module first"
    elif tensor.is_quantized:
        kind, advice = "a quantized tensor", "convert it with dequantize()"
    elif str(tensor.layout) != "torch.strided":
        kind, advice = f"a tensor of layout {tensor.layout}", "convert it with to_dense()"
    elif tensor.is_complex():
        kind, advice = "a complex tensor", "convert it with view_as_real()"
    if kind:
        raise DnnTypeError(f"{where}: {name} must be an array of numbers, got {kind}; {advice}")
    tensor = tensor.detach().cpu()
    return tensor.double() if tensor.is_floating_point() else tensor  # NumPy has no bfloat16


def host_array(where: str, name: str, value: Any) -> np.ndarray:
    """Return an array of numbers on the host.

    Parameters
    ----------
    where, name : str
        Names of the function and of the value, for error messages.
    value : array_like
        Value, which may also be a tensor of PyTorch or an array on a CUDA device.

    Raises
    ------
    DnnTypeError
        If `value` is no array of real numbers.
    """
    if hasattr(value, "detach"):  # PyTorch
        value = _tensor_on_host(where, name, value)
    elif hasattr(value, "__cuda_array_interface__"):
        # CuPy's and Numba's methods; arrays of JAX need none.
        copy = getattr(value, "get", None) or getattr(value, "copy_to_host", None)
        value = value if copy is None else copy()
    try:
        array = np.asarray(value)
    except (RuntimeError, TypeError, ValueError) as error:  # such as lists of different lengths
        raise DnnTypeError(f"{where}: {name} must be an array of numbers: {error}") from error
    if array.dtype.kind not in "fiub" and array.dtype.name != "bfloat16":
        raise DnnTypeError(f"{where}: {name} must be an array of numbers, got {shown(value)}")
    return array

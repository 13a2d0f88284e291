"""The dtypes of device arrays: names and NumPy dtypes."""

from __future__ import annotations

import functools
from collections.abc import Iterable

import numpy as np

from dnnops.arguments import shown
from dnnops.errors import DnnTypeError, DnnUnavailableError
from dnnops.runtime.op import DTYPE_CODES

#: Every dtype that a :class:`~dnnops.gpuarray.type.GpuArrayType` can have.
DTYPES: frozenset[str] = frozenset(DTYPE_CODES) | {"int16", "uint16", "uint32", "uint64"}

FLOAT_DTYPES: frozenset[str] = frozenset({"float16", "bfloat16", "float32", "float64"})


@functools.cache
def numpy_dtype(name: str) -> np.dtype:
    """Give the NumPy dtype of a device dtype.

    Parameters
    ----------
    name : str
        One of :data:`DTYPES`.

    Returns
    -------
    numpy.dtype
        For ``"bfloat16"`` the one that ``ml_dtypes`` adds to NumPy.

    Raises
    ------
    DnnTypeError
        If `name` isn't a device dtype.
    DnnUnavailableError
        If `name` is ``"bfloat16"`` and ``ml_dtypes`` isn't installed.
    """
    if name not in DTYPES:
        raise DnnTypeError(f"no dtype {name!r} on the GPU; it is one of {sorted(DTYPES)}")
    if name != "bfloat16":
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError as error:
        raise DnnUnavailableError(
            "dtype bfloat16 needs the package ml_dtypes: pip install ml_dtypes"
        ) from error
    return np.dtype(ml_dtypes.bfloat16)


def dtype_name(dtype: object) -> str:
    """Canonicalize what a user gives as a dtype.

    Parameters
    ----------
    dtype : str, numpy.dtype or type
        ``"floatX"`` stands for PyTensor's flag of that name.

    Returns
    -------
    str
        One of :data:`DTYPES`.

    Raises
    ------
    DnnTypeError
        If no device array has that dtype.
    """
    if isinstance(dtype, str):
        if dtype == "floatX":
            from pytensor.configdefaults import config

            dtype = config.floatX
        # Checked first: NumPy knows "bfloat16" only once ml_dtypes is imported.
        if dtype in DTYPES:
            return dtype
    try:
        # Anything else with an attribute `dtype`, such as an array, is not what was meant.
        name = np.dtype(dtype).name if isinstance(dtype, (str, np.dtype, type)) else ""
    except TypeError:
        name = ""
    if not name:
        raise DnnTypeError(f"{shown(dtype)} is no dtype")
    if name not in DTYPES:
        raise DnnTypeError(f"no dtype {name!r} on the GPU; it is one of {sorted(DTYPES)}")
    return name


def widest_dtype(dtypes: Iterable[str]) -> str | None:
    """Give the narrowest floating-point dtype that has all numbers of some, None if there is none.

    Parameters
    ----------
    dtypes : iterable of str
        bfloat16 beside float16 has none: neither has the other's numbers. Nor have integers.
    """
    found = set(dtypes)
    if not found <= FLOAT_DTYPES or {"float16", "bfloat16"} <= found:
        return None
    return max(found, key=("float16", "bfloat16", "float32", "float64").index)


def host_dtype(name: str) -> str:
    """Give the dtype in which a host `TensorType` holds values of a device dtype.

    `TensorType` doesn't know bfloat16; every bfloat16 number is a float32 number.
    """
    return "float32" if name == "bfloat16" else name

"""The dtypes of arrays, in one table, and functions that read and convert dtypes.

``c_code/abi/dnnops_dtypes.h`` is the same table for C; a test compares them. Sizes come from NumPy.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

import numpy as np

from dnnops.arguments import shown
from dnnops.errors import DnnTypeError, DnnUnavailableError

__all__ = [
    "DTYPES",
    "DTYPE_CODES",
    "DTYPE_NAMES",
    "FLOAT_DTYPES",
    "HALF_DTYPES",
    "HOST_FLOAT_DTYPES",
    "compute_dtype",
    "dtype_name",
    "host_dtype",
    "item_bytes",
    "numpy_dtype",
    "widest_dtype",
]


class DType(NamedTuple):
    """Code and C type of a dtype that arrays on the device can have.

    Attributes
    ----------
    code : int or None
        ``dnnops_dtype`` in C, or None if the runtime libraries don't support the dtype.
    c_type : str
        C type in which kernels compute with elements.
    """

    code: int | None
    c_type: str


#: Every dtype that a :class:`~dnnops.gpuarray.type.GpuArrayType` can have. The floating-point ones
#: are in the order of their range.
DTYPES: dict[str, DType] = {
    "bool": DType(8, "bool"),
    "int8": DType(4, "signed char"),
    "uint8": DType(5, "unsigned char"),
    "int16": DType(None, "short"),
    "uint16": DType(None, "unsigned short"),
    "int32": DType(6, "int"),
    "uint32": DType(None, "unsigned int"),
    "int64": DType(7, "long long"),
    "uint64": DType(None, "unsigned long long"),
    "float16": DType(2, "float"),
    "bfloat16": DType(3, "float"),
    "float32": DType(0, "float"),
    "float64": DType(1, "double"),
}

#: ``dnnops_dtype`` of each dtype that the runtime libraries support, and the other way round.
DTYPE_CODES: dict[str, int] = {
    name: dtype.code for name, dtype in DTYPES.items() if dtype.code is not None
}
DTYPE_NAMES: dict[int, str] = {code: name for name, code in DTYPE_CODES.items()}

#: Floating-point dtypes. Each holds every value of those before it, except that neither 16-bit one
#: holds those of the other.
FLOAT_DTYPES = tuple(name for name in DTYPES if "float" in name)
#: Floating-point dtypes with 16 bits; kernels compute with them in float32.
HALF_DTYPES = ("float16", "bfloat16")
#: Floating-point dtypes of host tensors.
HOST_FLOAT_DTYPES = tuple(name for name in FLOAT_DTYPES if name != "bfloat16")


def compute_dtype(dtype: str) -> str:
    """Return the dtype in which elements of `dtype` are computed."""
    return "float32" if dtype in HALF_DTYPES else dtype


@cache
def numpy_dtype(name: str) -> np.dtype:
    """Return the NumPy dtype of a device dtype.

    Parameters
    ----------
    name : str
        One of :data:`DTYPES`.

    Returns
    -------
    numpy.dtype
        NumPy dtype; ``ml_dtypes.bfloat16`` for ``"bfloat16"``.

    Raises
    ------
    DnnTypeError
        If `name` isn't a device dtype.
    DnnUnavailableError
        If `name` is ``"bfloat16"`` and ``ml_dtypes`` isn't installed.
    """
    if name not in DTYPES:
        raise DnnTypeError(
            f"dtype {name!r} is not supported on the GPU; supported dtypes: {sorted(DTYPES)}"
        )
    if name != "bfloat16":
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError as error:
        raise DnnUnavailableError(
            "dtype bfloat16 needs the package ml_dtypes: pip install ml_dtypes"
        ) from error
    return np.dtype(ml_dtypes.bfloat16)


def item_bytes(name: str) -> int:
    """Return the bytes of an element of a device dtype; needs no package."""
    return 2 if name in HALF_DTYPES else np.dtype(name).itemsize


def dtype_name(dtype: object) -> str:
    """Return the canonical name of a dtype given by a user.

    Parameters
    ----------
    dtype : str, numpy.dtype or type
        Dtype; ``"floatX"`` stands for the value of PyTensor's flag of that name.

    Returns
    -------
    str
        One of :data:`DTYPES`.

    Raises
    ------
    DnnTypeError
        If device arrays can't have that dtype.
    """
    if isinstance(dtype, str):
        if dtype == "floatX":
            from pytensor.configdefaults import config

            dtype = config.floatX
        # Check this first: NumPy recognizes "bfloat16" only once ml_dtypes is imported.
        if dtype in DTYPES:
            return dtype
    try:
        # np.dtype also accepts objects with an attribute `dtype`, such as arrays: reject those.
        name = np.dtype(dtype).name if isinstance(dtype, (str, np.dtype, type)) else ""
    except (TypeError, ValueError):
        name = ""
    if not name:
        raise DnnTypeError(f"{shown(dtype)} is not a dtype")
    if name not in DTYPES:
        raise DnnTypeError(
            f"dtype {name!r} is not supported on the GPU; supported dtypes: {sorted(DTYPES)}"
        )
    return name


def widest_dtype(dtypes: Iterable[str]) -> str | None:
    """Return the widest of some floating-point dtypes, which holds every value of the others.

    Parameters
    ----------
    dtypes : iterable of str
        Names of dtypes.

    Returns
    -------
    str or None
        None if a dtype isn't floating-point, or if `dtypes` contains both float16 and bfloat16,
        since neither holds every value of the other.
    """
    found = set(dtypes)
    if not found <= set(FLOAT_DTYPES) or found.issuperset(HALF_DTYPES):
        return None
    return max(found, key=FLOAT_DTYPES.index)


def host_dtype(name: str) -> str:
    """Return the dtype of the host `TensorType` that holds values of a device dtype.

    `TensorType` doesn't support bfloat16; float32 represents every bfloat16 value exactly.
    """
    return "float32" if name == "bfloat16" else name

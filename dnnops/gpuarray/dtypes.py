"""Read the dtypes that users give, and convert between them and those of NumPy."""

from __future__ import annotations

import functools
from collections.abc import Iterable

import numpy as np

from dnnops.arguments import shown
from dnnops.dtypes import DTYPES, FLOAT_DTYPES, HALF_DTYPES
from dnnops.errors import DnnTypeError, DnnUnavailableError


@functools.cache
def numpy_dtype(name: str) -> np.dtype:
    """Return the NumPy dtype of a device dtype.

    Parameters
    ----------
    name : str
        One of :data:`dnnops.dtypes.DTYPES`.

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


def dtype_name(dtype: object) -> str:
    """Return the canonical name of a dtype given by a user.

    Parameters
    ----------
    dtype : str, numpy.dtype or type
        Dtype; ``"floatX"`` stands for the value of PyTensor's flag of that name.

    Returns
    -------
    str
        One of :data:`dnnops.dtypes.DTYPES`.

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
    except TypeError:
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

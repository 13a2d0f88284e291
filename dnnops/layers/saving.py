"""Arrays by name in safetensors files."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, deserialize
from safetensors import numpy as format_

from dnnops.errors import DnnValueError
from dnnops.runtime import output

__all__ = ["load", "save"]

#: NumPy's dtypes of the format's. bfloat16 is the upper half of float32.
DTYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "u1",
    "BOOL": "?",
}


def save(path: str | Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays to a safetensors file, as `dnnops.runtime.output.write` does.

    Parameters
    ----------
    path : str or Path
        File to write.
    arrays : mapping of str to ndarray

    Raises
    ------
    DnnValueError
        If there is a folder, a device or a socket.
    OSError
        If the file cannot be written.
    """
    # Not ascontiguousarray, which makes vectors of scalars.
    contiguous = {name: np.asarray(value, order="C") for name, value in arrays.items()}
    output.write(path, format_.save(contiguous))


def load(path: str | Path) -> dict[str, np.ndarray]:
    """Read the arrays of a safetensors file.

    Parameters
    ----------
    path : str or Path
        File to read.

    Returns
    -------
    dict of str to ndarray
        The arrays; those in bfloat16 as float32.

    Raises
    ------
    OSError
        If the file cannot be read.
    DnnValueError
        If the path is a device, which may have no end, or the file is not a complete safetensors
        file, or has an array of another dtype.
    """
    with open(path, "rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
            raise DnnValueError(f"{path} is a device, not a safetensors file")
        data = file.read()
    try:
        entries = deserialize(data)
    except SafetensorError as error:
        raise DnnValueError(f"{path} is not a complete safetensors file: {error}") from error
    found = {}
    for name, entry in entries:
        dtype = entry["dtype"]
        if dtype not in DTYPES:
            raise DnnValueError(f"{path}: {name} has the dtype {dtype}, which NumPy does not have")
        array = np.frombuffer(entry["data"], DTYPES[dtype]).reshape(entry["shape"])
        if dtype == "BF16":
            array = (array.astype("<u4") << 16).view("<f4")
        found[name] = array
    return found

"""Arrays by name in safetensors files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors import numpy as format_

from dnnops.errors import DnnValueError
from dnnops.runtime.files import replace

__all__ = ["load", "save"]


def save(path: str | Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays to a safetensors file, which replaces a former one only when it is complete.

    Parameters
    ----------
    path : str or Path
        File to write.
    arrays : mapping of str to ndarray

    Raises
    ------
    OSError
        If the file cannot be written.
    """
    contiguous = {name: np.ascontiguousarray(value) for name, value in arrays.items()}
    replace(Path(path), format_.save(contiguous), mode=0o666)


def load(path: str | Path) -> dict[str, np.ndarray]:
    """Read the arrays of a safetensors file.

    Parameters
    ----------
    path : str or Path
        File to read.

    Returns
    -------
    dict of str to ndarray

    Raises
    ------
    OSError
        If the file cannot be read.
    DnnValueError
        If the file is not a complete safetensors file.
    """
    data = Path(path).read_bytes()
    try:
        return format_.load(data)
    except SafetensorError as error:
        raise DnnValueError(f"{path} is not a complete safetensors file: {error}") from error

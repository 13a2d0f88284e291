"""Device arrays into which arrays of the host can be written."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

__all__ = ["writable"]


def writable(array: Any) -> Any:
    """Give a view of a device array that takes assignments of NumPy's arrays, as pygpu's did.

    Parameters
    ----------
    array : cupy.ndarray
        CuPy's own refuse them, since a copy to the device may be slow.

    Returns
    -------
    cupy.ndarray
        Of a subclass, as all views and slices of it are.
    """
    return array.view(_writable_class(type(array)))


@cache
def _writable_class(array_class: type) -> type:
    if "_takes_host_arrays" in vars(array_class):
        return array_class

    def assign(self: Any, key: Any, value: Any) -> None:
        if isinstance(value, np.ndarray | list | tuple) and np.ndim(value):
            import cupy

            with self.device:
                value = cupy.asarray(np.asarray(value), dtype=self.dtype)
        super(written, self).__setitem__(key, value)  # type: ignore[misc]

    members = {"__setitem__": assign, "_takes_host_arrays": True}
    written = type("WritableArray", (array_class,), members)
    return written

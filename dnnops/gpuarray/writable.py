"""Device arrays that accept assignments of host arrays."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

__all__ = ["writable"]


def writable(array: Any) -> Any:
    """Return a view of a device array that accepts assignments of NumPy arrays, as in pygpu.

    CuPy arrays reject such assignments, since a copy to the device may be slow.

    Parameters
    ----------
    array : cupy.ndarray

    Returns
    -------
    cupy.ndarray
        View of a subclass; its own views and slices have the same class.
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

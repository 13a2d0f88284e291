"""``theano.tensor.io``: arrays from files."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant
from pytensor.graph.op import Op
from pytensor.link.c.type import generic

from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.theano.tensor import tensor

__all__ = ["LoadFromDisk", "load", "mpi_enabled"]

mpi_enabled = False


class LoadFromDisk(Op):  # type: ignore[misc]
    """Op that reads an array from a file of NumPy's format npy.

    Parameters
    ----------
    dtype : str
        Dtype of the array.
    broadcastable : tuple of bool
        Whether the size of each axis is 1.
    mmap_mode : 'c', optional
        With 'c', the file is mapped into memory.

    Raises
    ------
    DnnValueError
        If `mmap_mode` is invalid, or, when a function is called, the file is an archive.
    DnnTypeError
        When a function is called, if the array in the file has another dtype.
    """

    __props__ = ("dtype", "broadcastable", "mmap_mode")

    def __init__(self, dtype: Any, broadcastable: Any, mmap_mode: str | None = None):
        if mmap_mode not in (None, "c"):
            raise DnnValueError(f"LoadFromDisk: mmap_mode must be None or 'c', got {mmap_mode!r}")
        self.dtype = np.dtype(dtype)
        self.broadcastable = tuple(broadcastable)
        self.mmap_mode = mmap_mode

    def make_node(self, path: Any) -> Apply:
        """Make a node with a path, which may be a string or a generic variable.

        Parameters
        ----------
        path : str or Variable

        Returns
        -------
        Apply
        """
        path = Constant(generic, path) if isinstance(path, str) else path
        return Apply(self, [path], [tensor(str(self.dtype), self.broadcastable)])

    def perform(self, node: Apply, inputs: Any, outputs: Any) -> None:
        """Read the array.

        Parameters
        ----------
        node : Apply
        inputs, outputs : list
            The path, and the storage of the array.

        Raises
        ------
        DnnValueError
            If the path ends with ``.npz``.
        DnnTypeError
            If the array has another dtype.
        OSError
            If the file cannot be read.
        """
        (path,) = inputs
        if str(path).endswith(".npz"):
            raise DnnValueError(f"LoadFromDisk: expected a file npy, got {path}")
        array = np.load(path, mmap_mode="c" if self.mmap_mode else None)
        if array.dtype != self.dtype:
            raise DnnTypeError(f"LoadFromDisk: {path} has {array.dtype}; expected {self.dtype}")
        outputs[0][0] = array


def load(path: Any, dtype: Any, broadcastable: Any, mmap_mode: str | None = None) -> Any:
    """Return the array in a file of NumPy's format npy; see `LoadFromDisk`.

    Parameters
    ----------
    path : str or Variable
    dtype : dtype
    broadcastable : sequence of bool
        Whether each axis has the size 1.
    mmap_mode : 'c', optional
        With 'c', the file is mapped into memory.

    Returns
    -------
    TensorVariable

    Raises
    ------
    DnnValueError
        If `mmap_mode` is invalid.
    """
    return pt.as_tensor_variable(LoadFromDisk(dtype, broadcastable, mmap_mode)(path))

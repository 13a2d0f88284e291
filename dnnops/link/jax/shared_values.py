"""Let functions of other linkers read the shared variables that JAX functions have updated."""

from __future__ import annotations

from functools import wraps
from typing import Any

import jax
import numpy as np
from pytensor.compile.executor import Function
from pytensor.link.jax.linker import JAXLinker
from pytensor.tensor.type import TensorType

__all__ = ["give_arrays_to_other_linkers"]


def give_arrays_to_other_linkers() -> None:
    """Convert JAX arrays in shared variables when a function of another linker is called.

    PyTensor stores what a JAX function returns. C code, Numba and NumPy code for NumPy arrays
    then fail. JAX functions should keep their arrays, which may be on a device, so they are
    converted where they are read.
    """
    call = Function.__call__

    @wraps(call)
    def with_arrays(self: Any, *args: Any, **kwargs: Any) -> Any:
        for container in self.input_storage:
            if isinstance(container.storage[0], jax.Array):
                _convert(self, container)
        return call(self, *args, **kwargs)

    Function.__call__ = with_arrays  # type: ignore[method-assign]


def _convert(function: Any, container: Any) -> None:
    if isinstance(function.maker.linker, JAXLinker) or not isinstance(container.type, TensorType):
        return
    # Not a view: a function may overwrite it, but JAX arrays are immutable and may share memory.
    # Without 64 bits, JAX has other dtypes than the variable.
    container.storage[0] = np.array(container.storage[0], dtype=container.type.dtype)

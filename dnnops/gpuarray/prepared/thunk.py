"""Run nodes with a ``prepare`` method from C.

PyTensor's virtual machine calls the C function of a node directly. All nodes share one function
of the runtime library, so that nothing is compiled for a node.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from pytensor.graph.basic import Apply

from dnnops.errors import DnnUnavailableError
from dnnops.gpuarray.prepared.cache import ARRAY, CONSTANT, prepared_call, roles
from dnnops.runtime.build import CUDNN

__all__ = ["native_thunk"]


@cache
def _functions() -> tuple[Any, Any] | None:
    """Return the C functions that make and call a thunk; None if there is no library."""
    try:
        import cupy  # noqa: F401  the library's functions import it

        make, run = map(CUDNN.address, ("dnnops_prepared_thunk", "dnnops_prepared_run"))
    except (DnnUnavailableError, ImportError):
        return None
    any_object = ctypes.py_object
    integers = (ctypes.c_int64,) * 2
    made = ctypes.PYFUNCTYPE(
        any_object, any_object, ctypes.c_char_p, any_object, any_object, any_object, *integers
    )
    return made(make), ctypes.PYFUNCTYPE(any_object, any_object)(run)


class _NativeThunk:
    """A thunk that PyTensor's virtual machine in C runs through `cthunk`, and others by a call."""

    lazy = False

    def __init__(self, cthunk: Any, run: Any, inputs: list[Any], outputs: list[Any], computed: Any):
        self.cthunk, self.inputs, self.outputs = cthunk, inputs, outputs
        self._run, self._computed = run, computed

    def __call__(self) -> None:
        self._run(self.cthunk)
        for cell in self._computed:
            cell[0] = True


def native_thunk(node: Apply, storage_map: Any, compute_map: Any) -> Any:
    """Return a thunk that runs a node from C.

    Parameters
    ----------
    node : Apply
        Node of a `GpuOp`.
    storage_map, compute_map : dict
        As for ``Op.make_thunk``.

    Returns
    -------
    callable or None
        None if the Op does not prepare calls, or if the runtime library is not available.
    """
    op: Any = node.op
    if not op.prepares(node) or (functions := _functions()) is None:
        return None
    make, run = functions
    cells = [storage_map[x] for x in node.inputs]
    outputs = [storage_map[z] for z in node.outputs]
    letters = roles(node)

    def prepare() -> Any:
        # The thunk has made the node's device the current one.
        call = prepared_call(node, [cell[0] for cell in cells])
        return None if call is None else call.encoded()

    def in_python() -> None:
        op.perform(node, [cell[0] for cell in cells], outputs)

    # The views of an argument are kept, since it is often the same array in the next call, as
    # parameters are.
    changing = [x for x, role in zip(node.inputs, letters, strict=True) if role != CONSTANT]
    keeps = len(changing) == 1 and letters.count(ARRAY) == 1 and changing[0].owner is None
    cthunk = make(
        cells, letters.encode(), outputs, prepare, in_python, op.node_device(node), int(keeps)
    )
    computed = [compute_map[z] for z in node.outputs] if compute_map is not None else []
    return _NativeThunk(cthunk, run, cells, outputs, computed)

"""Run nodes with a ``prepare`` method from C.

PyTensor's virtual machine calls the C function of a node directly. All nodes share one function
of the runtime library, so that nothing is compiled for a node.
"""

from __future__ import annotations

import ctypes
import logging
from collections import deque
from functools import cache
from typing import Any

from pytensor.graph.basic import Apply

from dnnops.config import flag_value
from dnnops.errors import DnnCompileError, DnnUnavailableError
from dnnops.gpuarray.prepared.cache import ARRAY, CONSTANT, prepared_call, roles
from dnnops.gpuarray.type import GpuArrayType
from dnnops.runtime.build import CUDNN
from dnnops.runtime.op import MAX_NDIM

__all__ = ["fallbacks", "native_thunk"]

_log = logging.getLogger(__name__)

#: Why nodes ran in Python though their calls were prepared for C: the last reasons.
fallbacks: deque[str] = deque(maxlen=64)


def _report(what: Any, error: BaseException) -> None:
    """Say why a node runs in Python, under ``dnn.verbose`` once for each reason."""
    reason = f"{what}: {type(error).__name__}: {error}"
    if reason in fallbacks:
        return
    fallbacks.append(reason)
    _log.debug("not run from C: %s", reason)
    if flag_value("dnn.verbose"):
        print(f"dnnops: not run from C: {reason}", flush=True)


@cache
def _functions() -> tuple[Any, Any] | None:
    """Return the C functions that make and call a thunk; None if there is no library."""
    try:
        import cupy  # noqa: F401  the library's functions import it

        make, run = map(CUDNN.address, ("dnnops_prepared_thunk", "dnnops_prepared_run"))
    except (DnnUnavailableError, ImportError):
        return None
    except Exception as error:
        _report("GPU nodes", error)
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
        None if the Op does not prepare calls, if an array has too many axes, if the flag
        ``dnn.prepared_calls`` is False, or if the runtime library cannot be used.
    """
    op: Any = node.op
    variables = (*node.inputs, *node.outputs)
    ranks = [x.type.ndim for x in variables if isinstance(x.type, GpuArrayType)]
    if not op.prepares(node) or max(ranks, default=0) > MAX_NDIM:
        return None
    if not flag_value("dnn.prepared_calls"):
        return None
    if (functions := _functions()) is None:
        return None
    make, run = functions
    cells = [storage_map[x] for x in node.inputs]
    outputs = [storage_map[z] for z in node.outputs]
    letters = roles(node)

    def prepare(inputs: list[Any]) -> Any:
        # The thunk has made the node's device the current one.
        try:
            call = prepared_call(node, inputs)
        except DnnCompileError as error:
            error.name_node(node)
            raise
        try:
            return None if call is None else call.encoded()
        except Exception as error:
            _report(op, error)
            return None

    def in_python(error: BaseException | None = None) -> None:
        if error is not None:
            _report(op, error)
        op.perform(node, [cell[0] for cell in cells], outputs)

    # The views of an argument are kept, since it is often the same array in the next call, as
    # parameters are.
    changing = [x for x, role in zip(node.inputs, letters, strict=True) if role != CONSTANT]
    keeps = len(changing) == 1 and letters.count(ARRAY) == 1 and changing[0].owner is None
    words = cells, letters.encode(), outputs, prepare, in_python, op.node_device(node), int(keeps)
    try:
        cthunk = make(*words)
    except Exception as error:
        _report(op, error)
        return None
    computed = [compute_map[z] for z in node.outputs] if compute_map is not None else []
    return _NativeThunk(cthunk, run, cells, outputs, computed)

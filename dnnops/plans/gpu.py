"""List, time and run the plans of one convolution on its operands."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply

from dnnops.errors import DnnValueError
from dnnops.gpu.algorithms import APIS, MATH_TYPES, parse_algorithm
from dnnops.gpu.conv import GpuDnnConvBase
from dnnops.gpuarray.device import on_device
from dnnops.plans.plan import ConvPlan
from dnnops.runtime.build import CUDNN
from dnnops.runtime.headers import GPU, structure
from dnnops.runtime.op import describe_operands, make_context, raise_status

__all__ = ["NUMERICAL_NOTES", "PlanList"]

#: Names of ``cudnnBackendNumericalNote_t``, by number.
NUMERICAL_NOTES = (
    "tensor_core",
    "down_convert_inputs",
    "reduced_precision_reduction",
    "fft",
    "nondeterministic",
    "winograd",
    "winograd_tile_4x4",
    "winograd_tile_6x6",
    "winograd_tile_13x13",
    "strict_nan_prop",
)


class PlanList:
    """A context manager that holds the plans for a node's operands.

    Use it only in the thread that created it. Running a plan overwrites the output; if the Op
    accumulates into the output, the plan writes to separate memory instead.

    Parameters
    ----------
    node : Apply
        Node of a `GpuDnnConvBase`, whose parameters say which plans are allowed.
    inputs : list
        Values of the node's inputs, as for ``perform``.
    output : cupy.ndarray
        Array for the result, with its dtype and shape.

    Raises
    ------
    DnnError
        If the operands don't match, or cuDNN can't be used.
    """

    def __init__(self, node: Apply, inputs: list[Any], output: Any):
        op = node.op
        assert isinstance(op, GpuDnnConvBase)
        self.op = op
        self.device = op.node_device(node)
        # The library keeps the addresses, so the arrays must live as long as this object.
        self._operands = (list(inputs), output)
        self._library = CUDNN.library
        self._list = ctypes.c_void_p()
        words = op.words
        with on_device(self.device):
            context = make_context(*op.context(node, inputs))
            self._check(
                self._library.dnnops_cudnn_plan_list_open(
                    ctypes.byref(context),
                    words.ctypes.data,
                    describe_operands(node.inputs, inputs),
                    describe_operands(node.outputs, [output]),
                    ctypes.byref(self._list),
                )
            )

    def __enter__(self) -> PlanList:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the plans."""
        if self._list:
            self._library.dnnops_cudnn_plan_list_close(self._list)
            self._list = ctypes.c_void_p()

    @property
    def _open(self) -> ctypes.c_void_p:
        if not self._list:
            raise DnnValueError("this list of plans is closed")
        return self._list

    def __len__(self) -> int:
        return self._library.dnnops_cudnn_plan_list_size(self._open)

    def _check(self, status: int) -> None:
        raise_status(CUDNN, status)

    @property
    def plans(self) -> list[ConvPlan]:
        """All plans, with the information gathered so far.

        Plans that can run come first, in the order in which they would be tried.
        """
        return [self._plan(index) for index in range(len(self))]

    def _plan(self, index: int) -> ConvPlan:
        row = structure("dnnops_plan_row", GPU)()
        self._library.dnnops_cudnn_plan_list_row(self._open, index, ctypes.byref(row))
        known = row.workspace >= 0
        notes = [name for bit, name in enumerate(NUMERICAL_NOTES) if row.notes >> bit & 1]
        return ConvPlan(
            name=row.name.decode(),
            direction=self.op.direction,
            api=APIS[row.api],
            number=row.number if row.number >= 0 else None,
            workspace_bytes=row.workspace if known else None,
            deterministic=bool(row.deterministic) if known else None,
            math_type=MATH_TYPES[row.math] if row.math >= 0 else "",
            notes=tuple(notes),
            time_ms=None if math.isnan(row.milliseconds) else row.milliseconds,
            reason=row.reason.decode(errors="replace"),
        )

    def time(self, index: int) -> float:
        """Time a plan on the operands with CUDA events.

        Parameters
        ----------
        index : int
            Index into `plans`.

        Returns
        -------
        float
            Milliseconds per execution: the median of several rounds, or a single time if the plan
            is slow.

        Raises
        ------
        DnnError
            If the plan can't run; it is then listed as refused.
        """
        self._check(self._library.dnnops_cudnn_plan_list_time(self._open, index))
        time_ms = self._plan(index).time_ms
        assert time_ms is not None
        return time_ms

    def run(self, index: int, repeats: int = 1) -> None:
        """Execute a plan `repeats` times and wait for the device; see `time` for the errors."""
        self._check(self._library.dnnops_cudnn_plan_list_run(self._open, index, repeats))

    def search(self, seconds: float) -> None:
        """Search for the fastest plan in the same way as ``time_on_shape_change``.

        The search also tries knob values that cuDNN doesn't propose. Such plans are added to the
        list once they have been timed.

        Parameters
        ----------
        seconds : float
            Approximate duration of the search.
        """
        self._check(self._library.dnnops_cudnn_plan_list_search(self._open, seconds))

    def choice(self, algo: Any) -> str:
        """Return the name of the plan that a value of the flags or of ``algo`` selects.

        Values that select the fastest plan return the fastest one timed so far, if there is one.

        Raises
        ------
        DnnError
            If no plan can be selected, or if `algo` is invalid.
        """
        chosen = parse_algorithm(algo, self.op.direction)
        spec = np.array(chosen.spec(), dtype=np.int64)
        name = ctypes.c_char_p()
        self._check(
            self._library.dnnops_cudnn_plan_list_choose(
                self._open,
                chosen.policy,
                spec.ctypes.data,
                ctypes.byref(name),
            )
        )
        assert name.value is not None
        return name.value.decode()

"""List, time and run the individual plans of a convolution on the CPU."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply

from dnnops.cpu.conv import ALGORITHMS
from dnnops.errors import DnnError, DnnValueError
from dnnops.plans.plan import ConvPlan, conv_flops
from dnnops.runtime.build import ONEDNN
from dnnops.runtime.headers import CPU, structure
from dnnops.runtime.op import describe_operands, raise_status

__all__ = ["DIRECTIONS", "PlanList", "conv_node"]

#: Directions in the order of ConvDirection in c_code/common/conv_problem.hpp.
DIRECTIONS = ("forward", "grad_inputs", "grad_weights")
#: Plans that are not dnnops' own, by their numbers of ConvWay in c_code/cpu/conv/conv_ways.hpp.
_BLAS, _ONEDNN = 0, 1
_ROLES = ("image", "filters", "output")

#: Time in milliseconds after which timing a plan starts no further call.
_BUDGET = 1500.0
#: A plan that takes this many times as long as the fastest is not timed in full.
_MAX_SLOWDOWN = 20
#: Number of operations above which a smaller convolution is timed first, and limit for that one.
_LARGE, _SAMPLE = 4e9, 1e8


class PlanList:
    """All plans of a convolution on the CPU: those of oneDNN and those of dnnops.

    The time of a plan covers a call of the Op, including copies into and out of the memory formats
    that the implementation needs. The notes of the plan name the arrays that are copied. An
    instance must be used by one thread at a time.

    Parameters
    ----------
    node : Apply
        Node of `OneDnnConv`, `OneDnnConvGradInputs` or `OneDnnConvGradWeights`.
    inputs : list of ndarray
        Values of the inputs of the node, as passed to ``perform``.
    output : ndarray
        Array that receives the result; must be contiguous if its dtype is float64.

    Raises
    ------
    DnnValueError
        If the operands don't match or are empty.
    DnnTypeError
        If no implementation supports their dtype.
    """

    def __init__(self, node: Apply, inputs: list[Any], output: Any):
        self.op = node.op
        # The library stores the addresses of these arrays, so they must stay alive.
        self._inputs, self._output = inputs, output
        self._direction = DIRECTIONS[self.op.direction]
        self._list = ctypes.c_void_p()
        words = self.op.words
        self._call(
            "open",
            words.ctypes.data,
            describe_operands(node.inputs, inputs),
            describe_operands(node.outputs, [output]),
            ctypes.byref(self._list),
        )
        size = ctypes.c_int64()
        self._call("size", self._list, ctypes.byref(size))
        rows = [self._read(number) for number in range(size.value)]
        self._numbers = {row.name: number for number, row in enumerate(rows)}
        self._rows = sorted(rows, key=lambda row: bool(row.reason))

    def __enter__(self) -> PlanList:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the plans."""
        if self._list:
            self._call("close", self._list)
            self._list = ctypes.c_void_p()

    @property
    def plans(self) -> list[ConvPlan]:
        """All plans in their current state.

        Plans that can run come first, in the order in which they would be tried.
        """
        return list(self._rows)

    def time(self, index: int) -> float:
        """Time a plan, as the median of several calls after two warm-up calls.

        Parameters
        ----------
        index : int
            Index of the plan in `plans`.

        Returns
        -------
        float
            Time of a call in milliseconds. It is infinite if a small part of the convolution shows
            that the plan is far too slow; the notes of the plan then give an estimate.

        Raises
        ------
        DnnError
            If the plan cannot run. It is then listed as rejected.
        """
        row = self._rows[index]
        best = min((x.time_ms for x in self._rows if x.time_ms is not None), default=math.inf)
        expected = self._expected_time(row)
        if expected > max(_BUDGET, _MAX_SLOWDOWN * best):
            note = f"about {expected / 1000:.3g} s, estimated from a small part of it"
            self._rows[index] = replace(row, notes=(*row.notes, note))
            return math.inf
        time = ctypes.c_double()
        try:
            self._call("time", self._list, self._number(index), _BUDGET, ctypes.byref(time))
        except DnnError as error:
            self._rows[index] = replace(row, reason=row.reason or str(error))
            raise
        self._rows[index] = replace(row, time_ms=time.value)
        return time.value

    def run(self, index: int, repeats: int = 1) -> None:
        """Compute the convolution with a plan, `repeats` times.

        Raises
        ------
        DnnError
            If the plan cannot run.
        """
        self._call("run", self._list, self._number(index), repeats)

    def choice(self, algo: str) -> str:
        """Return the name of the plan that a value of the flag ``onednn.conv.algo`` selects.

        Raises
        ------
        DnnValueError
            If `algo` is neither a value of the flag nor the name of a plan that can run.
        """
        if algo not in ALGORITHMS:
            names = [row.name for row in self._rows if not row.reason]
            if algo in names:
                return algo
            raise DnnValueError(
                f"{algo!r} is not available on the CPU for this convolution; use one of "
                f"{', '.join([*ALGORITHMS, *names])}"
            )
        number = ctypes.c_int64()
        self._call("chosen", self._list, ALGORITHMS.index(algo), ctypes.byref(number))
        return list(self._numbers)[number.value]

    # -- the runtime library -----------------------------------------------------------------

    def _call(self, function: str, *arguments: Any) -> None:
        if not self._list and function != "open":
            raise DnnValueError("the list of plans is closed")
        status = getattr(ONEDNN.library, f"dnnops_onednn_conv_list_{function}")(*arguments)
        raise_status(ONEDNN, status)

    def _number(self, index: int) -> int:
        return self._numbers[self._rows[index].name]

    def _read(self, number: int) -> ConvPlan:
        listed = structure("dnnops_onednn_listed_plan", CPU)()
        self._call("plan", self._list, number, ctypes.byref(listed))
        copied = [role for role, moved in zip(_ROLES, listed.reordered, strict=True) if moved]
        notes = [f"reorders {', '.join(copied)}"] if copied else []
        if listed.remark:
            notes.append(listed.remark.decode())
        can_run = not listed.reason
        own = listed.way not in (_BLAS, _ONEDNN)
        return ConvPlan(
            name=listed.name.decode(),
            direction=self._direction,
            api="onednn" if listed.way == _ONEDNN else "dnnops",
            workspace_bytes=listed.scratch_bytes if can_run else None,
            # dnnops divides work by the number of threads only. oneDNN's convolutions and BLAS make
            # no such promise.
            deterministic=True if own else None,
            math_type=self._output.dtype.name,
            notes=tuple(notes),
            reason=listed.reason.decode(errors="replace"),
        )

    # -- estimating long times ---------------------------------------------------------------

    def _expected_time(self, plan: ConvPlan) -> float:
        """Estimate the milliseconds of a call from part of it; return 0 for small convolutions."""
        op = self.op
        image, filters, top = self._shapes()
        flops = conv_flops(filters, top)
        if flops < _LARGE:
            return 0.0
        part_top = _shrunk(filters, top)
        extents = [(k - 1) * d + 1 for k, d in zip(filters[2:], op.filter_dilation, strict=True)]
        pads = [sum(pair) for pair in op.padding(filters[2:])]
        part_image = (
            1,
            image[1],
            *(
                max(1, (n - 1) * stride + extent - pad)
                for n, stride, extent, pad in zip(
                    part_top[2:], op.subsample, extents, pads, strict=True
                )
            ),
        )
        part_top = op.output_shape(part_image, filters)
        inputs, output = self._cut(part_image, filters, part_top)
        with PlanList(conv_node(op, inputs), inputs, output) as part:
            known = [row.name for row in part.plans if not row.reason]
            if plan.name not in known:
                return 0.0
            index = known.index(plan.name)
            part.run(index)
            seconds = min(_seconds(part, index) for _ in range(3))
        return 1000 * seconds * flops / conv_flops(filters, part_top)

    def _shapes(self) -> tuple[Any, Any, Any]:
        """Return the shapes of the image, the filters and the output."""
        first, second = self._inputs[0].shape, self._inputs[1].shape
        if self._direction == "forward":
            return first, second, self._output.shape
        if self._direction == "grad_inputs":
            return self._output.shape, first, second
        return first, self._output.shape, second

    def _cut(self, image: Any, filters: Any, top: Any) -> tuple[list[Any], Any]:
        """Return the operands of a smaller convolution, in the same memory format."""
        if self._direction == "forward":
            shapes, sizes = (image, filters, top), []
        elif self._direction == "grad_inputs":
            shapes, sizes = (filters, top, image), [np.array(image[2:], dtype="int64")]
        else:
            shapes, sizes = (image, top, filters), [np.array(filters[2:], dtype="int64")]
        arrays = (*self._inputs[:2], self._output)
        first, second, output = (
            array[tuple(map(slice, shape))].copy(order="K")
            for array, shape in zip(arrays, shapes, strict=True)
        )
        return [first, second, *sizes], output


def _seconds(listing: PlanList, index: int) -> float:
    start = perf_counter()
    listing.run(index)
    return perf_counter() - start


def conv_node(op: Any, inputs: Sequence[Any]) -> Apply:
    """Make a convolution node with symbolic operands that have the types of arrays."""
    variables = [pt.tensor(dtype=x.dtype.name, shape=x.shape) for x in inputs[:2]]
    return op.make_node(*variables, *map(pt.constant, inputs[2:]))


def _shrunk(filters: Sequence[int], top: Sequence[int]) -> list[int]:
    """Return an output shape for one image, reduced until it needs few operations."""
    shape = [1, *top[1:]]
    while conv_flops(filters, shape) > _SAMPLE and max(shape[2:]) > 1:
        axis = max(range(2, len(shape)), key=shape.__getitem__)
        shape[axis] = (shape[axis] + 1) // 2
    return shape

"""The ways to run one convolution on the CPU, one by one."""

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

from dnnops.errors import DnnError, DnnValueError
from dnnops.onednn.conv import ALGORITHMS
from dnnops.plans import ConvPlan, conv_flops
from dnnops.runtime.build import ONEDNN
from dnnops.runtime.op import describe_operands, raise_status

__all__ = ["DIRECTIONS", "PlanList", "conv_node"]

#: In the order of ConvDirection in c_code/runtime/common/conv_problem.hpp.
DIRECTIONS = ("forward", "grad_inputs", "grad_weights")
_BLAS, _WINOGRAD = 0, 1
_ROLES = ("image", "filters", "output")

#: Milliseconds that timing one plan may take; it may take longer by one call.
_BUDGET = 1500.0
#: A plan that takes so many times as long as the fastest one isn't timed in full.
_HOPELESS = 20
#: From how many operations on it is worthwhile to look at a smaller convolution first.
_LARGE, _SAMPLE = 4e9, 1e8


class _ListedPlan(ctypes.Structure):
    # ListedPlan in c_code/runtime/onednn/conv_list.cpp.
    _fields_ = [
        ("name", ctypes.c_char * 128),
        ("remark", ctypes.c_char * 128),
        ("reason", ctypes.c_char * 512),
        ("way", ctypes.c_int64),
        ("scratch_bytes", ctypes.c_int64),
        ("reordered", ctypes.c_int64 * 3),
    ]


class PlanList:
    """Every implementation that oneDNN has of a convolution, and those of our own.

    A plan's time is that of a call of the Op, with the copies into and out of the memory layouts
    that the implementation wants; its notes say of which arrays. To be used by one thread at a
    time.

    Parameters
    ----------
    node : Apply
        Of `OneDnnConv`, `OneDnnConvGradInputs` or `OneDnnConvGradWeights`.
    inputs : list of ndarray
        Values of the node's inputs, as ``perform`` takes them.
    output : ndarray
        What to compute into; in float64 it has to be contiguous.

    Raises
    ------
    DnnValueError
        If the operands don't fit together, or are empty.
    DnnTypeError
        If nothing computes in their dtype.
    """

    def __init__(self, node: Apply, inputs: list[Any], output: Any):
        self.op = node.op
        # The library keeps the addresses: what they point to has to live as long.
        self._inputs, self._output = inputs, output
        self._direction = DIRECTIONS[self.op.direction]
        self._list = ctypes.c_void_p()
        words = self.op.words
        self._call(
            "open",
            ctypes.c_void_p(words.ctypes.data),
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
        """All plans, with what is known of them now: those that can run first, in the order in
        which they would be tried."""
        return list(self._rows)

    def time(self, index: int) -> float:
        """Milliseconds of a call: the median of several after two to warm up.

        Parameters
        ----------
        index : int
            Into `plans`.

        Returns
        -------
        float
            Infinite if a small part of the convolution told that the plan is hopelessly slow. The
            plan's notes then say how slow.

        Raises
        ------
        DnnError
            If it can't be run; it counts as refused from then on.
        """
        row = self._rows[index]
        best = min((x.time_ms for x in self._rows if x.time_ms is not None), default=math.inf)
        expected = self._expected_time(row)
        if expected > max(_BUDGET, _HOPELESS * best):
            note = f"about {expected / 1000:.3g} s, judged by a small part of it"
            self._rows[index] = replace(row, notes=(*row.notes, note))
            return math.inf
        time = ctypes.c_double()
        arguments = (self._number(index), ctypes.c_double(_BUDGET), ctypes.byref(time))
        try:
            self._call("time", self._list, *arguments)
        except DnnError as error:
            self._rows[index] = replace(row, reason=row.reason or str(error))
            raise
        self._rows[index] = replace(row, time_ms=time.value)
        return time.value

    def run(self, index: int, repeats: int = 1) -> None:
        """Compute the convolution with a plan, so many times.

        Raises
        ------
        DnnError
            If it can't be run.
        """
        self._call("run", self._list, self._number(index), ctypes.c_int64(repeats))

    def choice(self, algo: str) -> str:
        """The name of the plan that a value of the flag ``onednn.conv.algo`` stands for.

        Raises
        ------
        DnnValueError
            If there is no such value.
        """
        if algo not in ALGORITHMS:
            names = [row.name for row in self._rows if not row.reason]
            if algo in names:
                return algo
            raise DnnValueError(
                f"{algo!r} is no algorithm on the CPU for this convolution; give one of "
                f"{', '.join([*ALGORITHMS, *names])}"
            )
        number = ctypes.c_int64()
        algorithm = ctypes.c_int64(ALGORITHMS.index(algo))
        self._call("chosen", self._list, algorithm, ctypes.byref(number))
        return list(self._numbers)[number.value]

    # -- the runtime library -----------------------------------------------------------------

    def _call(self, function: str, *arguments: Any) -> None:
        if not self._list and function != "open":
            raise DnnValueError("the list of plans was closed")
        status = getattr(ONEDNN.library, f"dnnops_onednn_conv_list_{function}")(*arguments)
        raise_status(ONEDNN, status)

    def _number(self, index: int) -> ctypes.c_int64:
        return ctypes.c_int64(self._numbers[self._rows[index].name])

    def _read(self, number: int) -> ConvPlan:
        listed = _ListedPlan()
        self._call("plan", self._list, ctypes.c_int64(number), ctypes.byref(listed))
        copied = [role for role, moved in zip(_ROLES, listed.reordered, strict=True) if moved]
        notes = [f"reorders {', '.join(copied)}"] if copied else []
        if listed.remark:
            notes.append(listed.remark.decode())
        can_run = not listed.reason
        own = listed.way in (_BLAS, _WINOGRAD)
        return ConvPlan(
            name=listed.name.decode(),
            direction=self._direction,
            api="dnnops" if own else "onednn",
            workspace_bytes=listed.scratch_bytes if can_run else None,
            # As long as the number of threads stays. oneDNN and BLAS don't say.
            deterministic=True if listed.way == _WINOGRAD else None,
            math_type=self._output.dtype.name,
            notes=tuple(notes),
            reason=listed.reason.decode(errors="replace"),
        )

    # -- what would take too long ------------------------------------------------------------

    def _expected_time(self, plan: ConvPlan) -> float:
        """Milliseconds of a call, judged by a part of a large convolution; else 0."""
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
        """Shapes of image, filters and output."""
        first, second = self._inputs[0].shape, self._inputs[1].shape
        if self._direction == "forward":
            return first, second, self._output.shape
        if self._direction == "grad_inputs":
            return self._output.shape, first, second
        return first, self._output.shape, second

    def _cut(self, image: Any, filters: Any, top: Any) -> tuple[list[Any], Any]:
        """Operands of a smaller convolution, in the same order in memory."""
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
    """Make a node of a convolution whose operands have the types of arrays, but no values."""
    variables = [pt.tensor(dtype=x.dtype.name, shape=x.shape) for x in inputs[:2]]
    return op.make_node(*variables, *map(pt.constant, inputs[2:]))


def _shrunk(filters: Sequence[int], top: Sequence[int]) -> list[int]:
    """An output of one image, cut down to few operations."""
    shape = [1, *top[1:]]
    while conv_flops(filters, shape) > _SAMPLE and max(shape[2:]) > 1:
        axis = max(range(2, len(shape)), key=shape.__getitem__)
        shape[axis] = (shape[axis] + 1) // 2
    return shape

"""Shared helpers for tests of selections: compiled functions, statistics, stored plans."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt

import dnnops
from dnnops.errors import DnnNotSupportedError
from dnnops.gpuarray.type import GpuArrayType
from dnnops.plans import ConvPlan
from dnnops.plans.gpu import PlanList
from dnnops.plans.used import ChosenPlan
from tests.gpu.conv.convolutions import PAIRS, in_dtype, moved, operands, reference
from tests.gpu.device import apply_op, check, make_node, on_gpu, rounded
from tests.oracle import TRANSFORM_RELATIVE_ERROR, ConvCase

#: Whether other processes of this test run use the device, which makes times unreliable.
SHARED = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) > 1


def compiled(op: Any, dtype: str = "float32") -> Any:
    """Compile a function of an Op's arrays and sizes."""
    arrays = [GpuArrayType(dtype, (None,) * (op.ndim + 2))() for _ in range(2)]
    sizes = [pt.lvector()] * (op.leading - 2)
    return pytensor.function([*arrays, *sizes], op(*arrays, *sizes), mode="CVM")


def only_row(f: Any) -> ChosenPlan:
    """Return the plan that a function with one convolution has selected."""
    (row,) = dnnops.chosen_plans(f)
    return row


class Convolution:
    """A case in one direction, with its operands on the device and the oracle's result."""

    def __init__(
        self,
        case: ConvCase,
        index: int,
        dtype: str = "float32",
        memory_format: str = "contiguous",
    ):
        self.dtype, self.memory_format = dtype, memory_format
        self.cls, self.params = PAIRS[index][0], case.params
        arrays = in_dtype(operands(case, index), dtype)
        self.expected = reference(case, index, arrays)
        self.given = moved(arrays, dtype, memory_format)
        synchronize()  # other streams may use them

    def op(self, **settings: Any) -> Any:
        return self.cls(**{**self.params, "memory_format": self.memory_format, **settings})

    def compiled(self, **settings: Any) -> Any:
        return compiled(self.op(**settings), self.dtype)

    def run(self, **settings: Any) -> Any:
        """Run the Op's `perform`, and check its result."""
        out = apply_op(self.op(**settings), *self.given)
        self.check(out)
        return out

    def run_on(
        self, old: np.ndarray, alpha: float = 1.0, beta: float = 1.0, **settings: Any
    ) -> tuple[Any, Any]:
        """Add the result to an array, check it, and return both arrays."""
        out = on_gpu(old, self.dtype, self.memory_format)
        result = apply_op(self.op(**settings, accumulate=True), *self.given, alpha, beta, out)
        expected = alpha * self.expected + beta * rounded(old, self.dtype)
        check(result, expected, self.dtype, bound=2 * TRANSFORM_RELATIVE_ERROR[self.dtype])
        return result, out

    def refusal(self, **settings: Any) -> str:
        """Run with the plan; return the error's message if it is not supported, otherwise empty."""
        try:
            self.run(**settings)
        except DnnNotSupportedError as error:
            return str(error)
        return ""

    def listing(self, **settings: Any) -> PlanList:
        """Provide the list of all plans; to be used as a context manager."""
        output = on_gpu(np.zeros(self.expected.shape), self.dtype, self.memory_format)
        return PlanList(*make_node(self.op(**settings), *self.given), output)

    def plans(self, **settings: Any) -> list[ConvPlan]:
        """Return the rows of all plans."""
        with self.listing(**settings) as plans:
            return plans.plans

    def runnable(self, **settings: Any) -> dict[str, ConvPlan]:
        """Return the rows of plans that can run, by name."""
        return {row.name: row for row in self.plans(**settings) if not row.reason}

    def check(self, out: Any, bound: float | None = None) -> None:
        """Compare a result with the oracle's, within the bounds of FFT and Winograd algorithms."""
        check(out, self.expected, self.dtype, bound=bound or TRANSFORM_RELATIVE_ERROR[self.dtype])

    def run_row(self, f: Any) -> ChosenPlan:
        """Run a function, check its result, and return its selection."""
        self.check(f(*self.given))
        return only_row(f)


def synchronize() -> None:
    """Wait for the device."""
    import cupy

    cupy.cuda.Device().synchronize()


def seconds_of(call: Callable[[], Any]) -> float:
    """Return the duration of a call, including its work on the device."""
    synchronize()
    start = time.perf_counter()
    call()
    synchronize()
    return time.perf_counter() - start


def bits(array: Any) -> Any:
    """Return the memory of a dense device array as integers."""
    import cupy

    return cupy.ndarray((array.nbytes // 2,), "uint16", memptr=array.data)


def lines_of(text: str) -> list[str]:
    """Return what dnn.verbose printed."""
    return [line for line in text.splitlines() if line.startswith("dnnops: GpuDnnConv")]


def in_threads(count: int, work: Callable[[int], Any]) -> None:
    """Run a function in several threads; reraise an exception of any thread."""
    failures: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]

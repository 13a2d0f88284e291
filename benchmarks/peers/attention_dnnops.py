"""Attention in dnnops, on one GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt

from benchmarks.attention_data import CALLS_BETWEEN_EVENTS, attention_arrays
from benchmarks.harness import Task
from benchmarks.peers.dnnops_gpu import versions
from benchmarks.peers.graphs import library_ops
from dnnops.gpuarray import GpuArrayType
from dnnops.gpuarray.dtypes import numpy_dtype
from dnnops.gpuarray.transfer import as_gpuarray_variable, cast
from dnnops.nnet import scaled_dot_product_attention

__all__ = ["make_task", "versions"]


class Attention(Task):
    """The abstract function, compiled in the mode CUDNN; timed by CUDA events."""

    def __init__(self, case: dict[str, Any]) -> None:
        import cupy

        dtype = case["dtype"]
        arrays = attention_arrays(case)
        self.operands = [cupy.asarray(a.astype(numpy_dtype(dtype))) for a in arrays.values()]
        variables = [GpuArrayType(dtype, a.shape)(name) for name, a in arrays.items()]
        query, key, value, gout = variables
        out = scaled_dot_product_attention(
            query, key, value, is_causal=case["is_causal"], enable_gqa=True
        )
        results, self.names = [out], ("out",)
        if case["training"]:
            known = {out: pt.as_tensor_variable(gout)}
            results += pytensor.grad(None, [query, key, value], known_grads=known)
            self.names += ("dquery", "dkey", "dvalue")
        else:
            variables, self.operands = variables[:3], self.operands[:3]
        on_device = [cast(as_gpuarray_variable(x, 0), dtype) for x in results]
        self.function = pytensor.function(variables, on_device, mode="CUDNN")
        library_ops(self.function, "GpuDnn")
        self.function(*self.operands)

    def times(self, calls: int) -> list[float]:
        """The device's seconds, each a mean over some calls in a row."""
        import cupy

        start, stop = cupy.cuda.Event(), cupy.cuda.Event()
        seconds = []
        for _ in range(calls):
            start.record()
            for _ in range(CALLS_BETWEEN_EVENTS):
                self.function(*self.operands)
            stop.record()
            stop.synchronize()
            elapsed = cupy.cuda.get_elapsed_time(start, stop)
            seconds.append(elapsed / 1000 / CALLS_BETWEEN_EVENTS)
        return seconds

    def results(self) -> dict[str, np.ndarray]:
        found = (x.get().astype("float32") for x in self.function(*self.operands))
        return dict(zip(self.names, found, strict=True))


def make_task(case: dict[str, Any]) -> Task:
    """Prepare a case of ``benchmarks/attention.py``."""
    return Attention(case)

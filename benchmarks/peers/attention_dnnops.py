"""Attention in dnnops on one GPU, or on the CPU for a quick check."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import cycle
from math import prod
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt

from benchmarks.attention_data import NAMES, PLACES, SEEDS, attention_shapes
from benchmarks.harness import Task
from benchmarks.peers.dnnops_gpu import versions
from benchmarks.peers.gated import ArrayTask
from benchmarks.peers.graphs import compile_nodes, library_ops
from dnnops.gpuarray import GpuArrayType
from dnnops.gpuarray.transfer import as_gpuarray_variable, cast
from dnnops.nnet import scaled_dot_product_attention

__all__ = ["graph", "make_task", "prepare", "versions"]


def graph(dtype: str, is_causal: bool, training: bool, device: str) -> tuple[list[Any], list[Any]]:
    """Build the graph of attention, with its gradients if `training`, for operands of any size.

    Returns
    -------
    variables, results : list
    """
    on_device = device == "cuda"
    make = GpuArrayType if on_device else pt.TensorType
    variables = [make(dtype, (None,) * 4)() for _ in range(4 if training else 3)]
    query, key, value = variables[:3]
    out = scaled_dot_product_attention(query, key, value, is_causal=is_causal, enable_gqa=True)
    results = [out]
    if training:
        known = {out: pt.as_tensor_variable(variables[3])}
        results += pytensor.grad(None, [query, key, value], known_grads=known)
    if on_device:
        results = [cast(as_gpuarray_variable(x, 0), dtype) for x in results]
    return variables, results


@cache
def compiled(dtype: str, is_causal: bool, training: bool, device: str) -> Any:
    """Return the compiled function of `graph`, which serves all sizes."""
    mode, prefix = ("CUDNN", "GpuDnn") if device == "cuda" else ("DNN", "OneDnn")
    function = compile_nodes(*graph(dtype, is_causal, training, device), mode=mode)
    library_ops(function, prefix)
    return function


def _compiled_for(case: dict[str, Any]) -> Any:
    return compiled(case["dtype"], case["is_causal"], case["training"], case["device"])


class Attention(ArrayTask):
    """Attention as a compiled function of dnnops."""

    def __init__(self, case: dict[str, Any]) -> None:
        super().__init__(case["timer"], case["calls"])
        self.device = case["device"]
        self.function = _compiled_for(case)
        shapes, dtype = attention_shapes(case), case["dtype"]
        self.places = [
            [self.flat(prod(s), SEEDS[name], dtype).reshape(s) for name, s in shapes.items()]
            for _ in range(PLACES)
        ]
        self.places_in_turn = cycle(self.places)
        self.operands = self.places[0]
        self.warm()

    def times(self, calls: int) -> list[float]:
        self.operands = next(self.places_in_turn)
        return super().times(calls)

    def run(self) -> Any:
        return self.function(*self.operands)

    def results(self) -> dict[str, np.ndarray]:
        found = (np.array(self.sketch(x)) for x in self.run())
        return dict(zip(NAMES, found, strict=False))

    def close(self) -> None:
        super().close()
        del self.places, self.places_in_turn, self.operands
        self.function.free()


def make_task(case: dict[str, Any]) -> Task:
    """Prepare a case of ``benchmarks/attention.py``."""
    return Attention(case)


def prepare(cases: Sequence[dict[str, Any]]) -> None:
    """Compile the functions of all cases, and the kernels that make and sum numbers."""
    for case in cases:
        _compiled_for(case)
    task = ArrayTask(cases[0]["timer"], 1)
    task.device = cases[0]["device"]
    for dtype in {case["dtype"]: None for case in cases}:
        task.sketch(task.flat(1000, 1, dtype))

"""Batch normalization and pooling in dnnops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt

from benchmarks.harness import Task
from benchmarks.norm_data import EPSILON, norm_arrays, pool_arrays
from benchmarks.peers.dnnops_cpu import versions
from benchmarks.peers.graphs import library_ops
from dnnops.nnet import batch_normalization_test, batch_normalization_train, pool_2d

__all__ = ["make_task", "versions"]


def written_out(x: Any, gamma: Any, beta: Any, axes: Any, mean: Any = None, var: Any = None) -> Any:
    """Normalize with an expression that a user would write, by statistics of `x` or given ones."""

    def spread(vector: Any) -> Any:
        return pt.expand_dims(vector, axes)

    if mean is None:
        mean, var = x.mean(axis=axes), x.var(axis=axes)
    normalized = (x - spread(mean)) / pt.sqrt(spread(var) + np.float32(EPSILON))
    return normalized * spread(gamma) + spread(beta)


class _FunctionTask(Task):
    """Repeated calls of a compiled function with the same arrays."""

    names: tuple[str, ...]

    def compile(self, inputs: list[Any], outputs: list[Any], arrays: list[np.ndarray]) -> None:
        self.operands = arrays
        self.function = pytensor.function(inputs, outputs)
        self.ops = library_ops(self.function, "OneDnn")

    def call(self) -> None:
        self.function(*self.operands)

    def results(self) -> dict[str, np.ndarray]:
        return dict(zip(self.names, self.function(*self.operands), strict=True))


def _tensor(array: np.ndarray) -> Any:
    return pt.tensor(dtype=array.dtype.name, shape=(None,) * array.ndim)


class Normalization(_FunctionTask):
    """Batch normalization, with its gradients in training."""

    def __init__(self, case: dict[str, Any]) -> None:
        arrays = norm_arrays(case)
        axes = tuple(i for i in range(len(case["shape"])) if i != 1)
        x, gamma, beta = (_tensor(arrays[name]) for name in ("x", "gamma", "beta"))
        if case["training"]:
            top = _tensor(arrays["top"])
            if case["written_out"]:
                out = written_out(x, gamma, beta, axes)
            else:
                out = batch_normalization_train(x, gamma, beta, axes, EPSILON)[0]
            grads: Any = pytensor.grad(None, [x, gamma, beta], known_grads={out: top})
            self.names = ("out", "dx", "dgamma", "dbeta")
            used = ("x", "gamma", "beta", "top")
            inputs, outputs = [x, gamma, beta, top], [out, *grads]
        else:
            mean, var = (_tensor(arrays[name]) for name in ("mean", "var"))
            if case["written_out"]:
                out = written_out(x, gamma, beta, axes, mean, var)
            else:
                out = batch_normalization_test(x, gamma, beta, mean, var, axes, EPSILON)
            self.names = ("out",)
            used = ("x", "gamma", "beta", "mean", "var")
            inputs, outputs = [x, gamma, beta, mean, var], [out]
        self.compile(inputs, outputs, [arrays[name] for name in used])


class Pooling(_FunctionTask):
    """Pooling, with its gradient in training."""

    def __init__(self, case: dict[str, Any]) -> None:
        image, topgrad = pool_arrays(case)
        x, top = _tensor(image), _tensor(topgrad)
        out = pool_2d(
            x,
            (case["window"],) * 2,
            ignore_border=True,
            stride=(case["stride"],) * 2,
            pad=(case["pad"],) * 2,
            mode="max" if case["mode"] == "max" else "average_inc_pad",
        )
        if case["training"]:
            grad: Any = pytensor.grad(None, x, known_grads={out: top})
            self.names = ("out", "dx")
            self.compile([x, top], [out, grad], [image, topgrad])
        else:
            self.names = ("out",)
            self.compile([x], [out], [image])


def make_task(case: dict[str, Any]) -> Task:
    """Prepare a case of ``benchmarks/norm.py``."""
    return {"normalization": Normalization, "pooling": Pooling}[case["kind"]](case)

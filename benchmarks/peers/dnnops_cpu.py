"""dnnops on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt

import dnnops
from benchmarks.harness import Task
from benchmarks.machine import resident_mib
from benchmarks.networks import conv_arrays, vgg_batch
from benchmarks.peers.graphs import (
    compile_small_step,
    compile_vgg_step,
    library_ops,
    small_batch,
)
from dnnops.nnet import conv2d, conv2d_grad_wrt_inputs, conv2d_grad_wrt_weights

CHECKED_STEPS = 3


def versions() -> dict[str, Any]:
    """Return the versions of what is measured."""
    from dnnops.runtime.find import find_onednn

    return {
        "dnnops": dnnops.__version__,
        "pytensor": pytensor.__version__,
        "numpy": np.__version__,
        "onednn": find_onednn().version_text,
        "compiler": f"g++ {pytensor.config.gcc_version_str}",
    }


class Training(Task):
    """A training step of the VGG-like network."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.batch = vgg_batch(case["size"], case["batch"])
        mode = None if case["mode"] == "default" else case["mode"]
        self.step = compile_vgg_step(case["size"], case["layers"], mode)
        library_ops(self.step, "OneDnn")

    def call(self) -> None:
        float(self.step(*self.batch))

    def results(self) -> dict[str, np.ndarray]:
        return {"losses": np.array([float(self.step(*self.batch)) for _ in range(CHECKED_STEPS)])}

    def facts(self) -> dict[str, Any]:
        linker = self.step.maker.linker
        if getattr(linker, "use_cloop", False):
            return {"linker": "cvm"}
        return {"linker": type(linker).__name__.removesuffix("Linker").lower()}


class Convolution(Task):
    """One convolution, or one of its gradients."""

    def __init__(self, case: dict[str, Any]) -> None:
        image, filters, topgrad = conv_arrays(case)
        params: dict[str, Any] = {
            "border_mode": case["pad"],
            "subsample": (case["stride"],) * 2,
            "filter_flip": False,
            "num_groups": case["groups"],
        }
        x, w, g = (
            pt.tensor(name, dtype="float32", shape=array.shape)
            for name, array in (("x", image), ("w", filters), ("g", topgrad))
        )
        if case["direction"] == "forward":
            inputs, self.operands, y = [x, w], (image, filters), conv2d(x, w, **params)
        elif case["direction"] == "grad_inputs":
            inputs, self.operands = [g, w], (topgrad, filters)
            y = conv2d_grad_wrt_inputs(g, w, image.shape, **params)
        else:
            inputs, self.operands = [x, g], (image, topgrad)
            y = conv2d_grad_wrt_weights(x, g, filters.shape, **params)
        self.function = pytensor.function(inputs, y, mode="DNN")
        library_ops(self.function, "OneDnn")

    def call(self) -> None:
        self.function(*self.operands)

    def results(self) -> dict[str, np.ndarray]:
        return {"y": self.function(*self.operands)}


def make_task(case: dict[str, Any]) -> Task:
    """Prepare a case of ``benchmarks/cpu.py``."""
    kinds: dict[str, Callable[[dict[str, Any]], Task]] = {
        "training": Training,
        "convolution": Convolution,
    }
    return kinds[case["kind"]](case)


def resident_memory(mode: str, calls_at: list[int]) -> list[dict[str, Any]]:
    """Call a compiled function many times and measure this process's memory.

    Parameters
    ----------
    mode : str
        PyTensor mode, or ``"default"``.
    calls_at : list of int
        Numbers of calls after which memory is measured.

    Returns
    -------
    list of dict
        ``calls`` and ``resident_mib``.
    """
    step = compile_small_step("cpu", None if mode == "default" else mode)
    library_ops(step, "OneDnn")
    batch = small_batch()
    rows, done = [], 0
    for calls in calls_at:
        for _ in range(calls - done):
            step(*batch)
        done = calls
        rows.append({"calls": calls, "resident_mib": round(resident_mib(), 2)})
    return rows

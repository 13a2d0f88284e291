"""Cases of recurrent networks with their data, for every library: NumPy only."""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple

import numpy as np

__all__ = [
    "LEARNING_RATE",
    "RNNArrays",
    "compared",
    "cpu_cases",
    "gpu_cases",
    "parameter_shapes",
    "rnn_arrays",
]

SEED = 40
#: So small that after many steps the network still is about the one that it was at first.
LEARNING_RATE = 1e-6
GATES = {"lstm": 4, "gru": 3}

#: Batch and steps.
SHAPES = ((32, 50), (32, 200), (128, 100), (256, 200))
HIDDEN = (512, 1024)
LAYERS = (1, 2, 4)
#: JAX runs a network as a scan, which takes long to compile: only in these.
WITH_JAX = {(2, 128, 100)}
CPU_SHAPES = ((16, 25), (32, 50))


def _case(
    mode: str, hidden: int, layers: int, batch: int, steps: int, dtype: str, **more: Any
) -> dict[str, Any]:
    words = f"{mode.upper()} {hidden}, {layers} layers, batch {batch}, {steps} steps, {dtype}"
    words = words.replace("1 layers", "1 layer")
    return {
        "case": words,
        "mode": mode,
        "hidden": hidden,
        "layers": layers,
        "batch": batch,
        "steps": steps,
        "dtype": dtype,
        **more,
    }


def gpu_cases(small: bool = False) -> list[dict[str, Any]]:
    """Training steps of LSTM and GRU, of networks whose input is as large as a layer."""
    if small:
        return [
            _case(mode, 32, 2, 4, 5, dtype, jax=True)
            for mode in GATES
            for dtype in ("float32", "float16")
        ]
    return [
        _case(mode, hidden, layers, batch, steps, dtype, jax=(layers, batch, steps) in WITH_JAX)
        for mode, hidden, layers, (batch, steps), dtype in product(
            GATES, HIDDEN, LAYERS, SHAPES, ("float32", "float16")
        )
    ]


def cpu_cases(small: bool = False) -> list[dict[str, Any]]:
    """The same for a CPU, in float32."""
    shapes, hidden = (((4, 5),), (16,)) if small else (CPU_SHAPES, (256, 512))
    return [
        _case(mode, size, layers, batch, steps, "float32", jax=False)
        for mode, size, layers, (batch, steps) in product(GATES, hidden, (1, 2), shapes)
    ]


def parameter_shapes(case: dict[str, Any]) -> list[tuple[int, ...]]:
    """The shapes of the parameters: both matrices of each layer, then both biases of each."""
    hidden, rows = case["hidden"], GATES[case["mode"]] * case["hidden"]
    return [(rows, hidden)] * (2 * case["layers"]) + [(rows,)] * (2 * case["layers"])


class RNNArrays(NamedTuple):
    """The parameters in one vector, the input, and the gradient by the output."""

    w: np.ndarray
    x: np.ndarray
    gy: np.ndarray


def rnn_arrays(case: dict[str, Any]) -> RNNArrays:
    """Draw the data of a case, in float32."""
    rng = np.random.default_rng(SEED)
    count = sum(int(np.prod(shape)) for shape in parameter_shapes(case))
    bound = case["hidden"] ** -0.5
    shape = (case["steps"], case["batch"], case["hidden"])
    return RNNArrays(
        rng.uniform(-bound, bound, count).astype("float32"),
        rng.standard_normal(shape, dtype="float32"),
        rng.standard_normal(shape, dtype="float32"),
    )


def compared(w: np.ndarray, after: np.ndarray) -> dict[str, np.ndarray]:
    """What of the parameters before and after a step has to be the same in every library.

    In float32 the difference tells the gradient; in float16 it is as small as the rounding.
    """
    if after.dtype == np.float16:
        return {"w": after}
    return {"gw": (w.astype("float64") - after) / LEARNING_RATE}

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
#: Small, so that hundreds of steps on the same data lead nowhere; and so large that the parameters'
#: change in float32 tells the gradient.
LEARNING_RATE = 1e-5
GATES = {"lstm": 4, "gru": 3}
#: Of how many sequences results are compared, and of every how many-th parameter.
COMPARED_SEQUENCES, COMPARED_STEP = 8, 97

HIDDEN = (512, 1024)
#: Layers, batch and steps.
SHAPES = (
    *((layers, *shape) for layers in (1, 4) for shape in ((32, 50), (32, 200), (256, 200))),
    (1, 128, 100),
    (2, 128, 100),
    (4, 128, 100),
)
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
        _case(mode, hidden, *shape, dtype, jax=shape in WITH_JAX)
        for mode, hidden, shape, dtype in product(GATES, HIDDEN, SHAPES, ("float32", "float16"))
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
        np.float32(bound) * (2 * rng.random(count, dtype="float32") - 1),
        rng.standard_normal(shape, dtype="float32"),
        rng.standard_normal(shape, dtype="float32"),
    )


def compared(
    before: np.ndarray, after: np.ndarray, y: np.ndarray, gx: np.ndarray
) -> dict[str, np.ndarray]:
    """What of a step has to be the same in every library: a part of all, for there is much.

    Of the parameters before and after the step the difference tells the gradient in float32; in
    float16 it is as small as the rounding.
    """
    found = {"y": y[:, :COMPARED_SEQUENCES], "gx": gx[:, :COMPARED_SEQUENCES]}
    before, after = before[::COMPARED_STEP], after[::COMPARED_STEP]
    if after.dtype == np.float16:
        return {**found, "w": after}
    return {**found, "gw": (before.astype("float64") - after) / LEARNING_RATE}

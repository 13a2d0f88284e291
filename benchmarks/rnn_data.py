"""Cases of recurrent networks with their data, shared by all libraries; needs only NumPy."""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple

import numpy as np

__all__ = [
    "ALGORITHMS",
    "COMPARED_STEP",
    "LEARNING_RATE",
    "RNNArrays",
    "compared",
    "cpu_cases",
    "gpu_cases",
    "parameter_shapes",
    "rnn_arrays",
]

SEED = 40
#: dnnops' names for cuDNN's algorithms; not imported, because every library uses this file.
ALGORITHMS = (
    "standard",
    "persist_static",
    "persist_dynamic",
    "persist_static_small_h",
    "auto",
)
#: Small enough that hundreds of steps on the same data do not diverge, and large enough that the
#: change of the parameters in float32 shows the gradient.
LEARNING_RATE = 1e-5
GATES = {"lstm": 4, "gru": 3}
#: How many sequences are compared, and the step between the parameters that are.
COMPARED_SEQUENCES, COMPARED_STEP = 8, 97

HIDDEN = (512, 1024)
#: Layers, batch and steps: the most informative cases first, the slowest last.
SHAPES = (
    (1, 32, 200),
    (4, 32, 50),
    (1, 128, 100),
    (1, 32, 50),
    (4, 128, 100),
    (4, 32, 200),
    (1, 256, 200),
    (4, 256, 200),
    (2, 128, 100),
)
#: JAX runs a network as a scan, which takes long to compile: only these shapes, with 1024 units.
WITH_JAX = {(2, 128, 100)}
#: Number of random values, which are then repeated. It is prime, so no two rows are equal.
DRAWN = 1_000_003
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
    """Return cases of LSTM and GRU training steps whose input is as large as a layer."""
    if small:
        return [
            _case(mode, 32, 2, 4, 5, dtype, jax=True)
            for mode in GATES
            for dtype in ("float32", "float16")
        ]
    return [
        _case(mode, hidden, *shape, dtype, jax=shape in WITH_JAX and hidden == max(HIDDEN))
        for shape, hidden, dtype, mode in product(SHAPES, HIDDEN, ("float32", "float16"), GATES)
    ]


def cpu_cases(small: bool = False) -> list[dict[str, Any]]:
    """Return the same cases for a CPU, in float32."""
    shapes, hidden = (((4, 5),), (16,)) if small else (CPU_SHAPES, (256, 512))
    return [
        _case(mode, size, layers, batch, steps, "float32", jax=False)
        for mode, size, layers, (batch, steps) in product(GATES, hidden, (1, 2), shapes)
    ]


def parameter_shapes(case: dict[str, Any]) -> list[tuple[int, ...]]:
    """Return the parameters' shapes: both matrices of each layer, then both biases of each."""
    hidden, rows = case["hidden"], GATES[case["mode"]] * case["hidden"]
    return [(rows, hidden)] * (2 * case["layers"]) + [(rows,)] * (2 * case["layers"])


class RNNArrays(NamedTuple):
    """The parameters in one vector, the input, and the gradient with respect to the output."""

    w: np.ndarray
    x: np.ndarray
    gy: np.ndarray


def rnn_arrays(case: dict[str, Any]) -> RNNArrays:
    """Make the arrays of a case."""
    rng = np.random.default_rng(SEED)

    def repeated(drawn: np.ndarray, shape: Any) -> np.ndarray:
        return np.resize(drawn.astype(case["dtype"]), shape)

    count = sum(int(np.prod(shape)) for shape in parameter_shapes(case))
    bound = case["hidden"] ** -0.5
    shape = (case["steps"], case["batch"], case["hidden"])
    return RNNArrays(
        repeated(np.float32(bound) * (2 * rng.random(DRAWN, dtype="float32") - 1), count),
        repeated(rng.standard_normal(DRAWN, dtype="float32"), shape),
        repeated(rng.standard_normal(DRAWN, dtype="float32"), shape),
    )


def compared(
    before: np.ndarray, after: np.ndarray, y: Any, gx: Any, fetched: Any = np.asarray
) -> dict[str, np.ndarray]:
    """Return a part of a step's results, on which all libraries have to agree.

    `fetched` copies the selected part of `y` and `gx` to the host. The parameters contain only
    every `COMPARED_STEP`-th value already.

    In float32, the difference of the parameters before and after the step shows the gradient. In
    float16 it is as small as the rounding.
    """
    found = {"y": fetched(y[:, :COMPARED_SEQUENCES]), "gx": fetched(gx[:, :COMPARED_SEQUENCES])}
    if after.dtype == np.float16:
        return {**found, "w": after}
    return {**found, "gw": (before.astype("float64") - after) / LEARNING_RATE}

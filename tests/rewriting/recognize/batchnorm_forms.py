"""Batch normalizations as users write them, and comparisons of graphs with and without an Op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.mode import Mode

from tests.oracle import assert_close

SPATIAL = (0, 2, 3)
TRAIN, INFERENCE = "OneDnnBatchNormTrain", "OneDnnBatchNormInference"
GRAD = "OneDnnBatchNormTrainGrad"
#: Without compiled code, because compiling takes long.
PERFORM = Mode("py", "fast_run").excluding("fusion")
#: Computes a user's graph without the rewrite.
PLAIN = PERFORM.excluding("onednn")


def ops(function: Any) -> dict[str, int]:
    """Count each batch normalization Op in a compiled function."""
    names = sorted(type(node.op).__name__ for node in function.maker.fgraph.apply_nodes)
    return {name: names.count(name) for name in names if "BatchNorm" in name}


def tensor(ndim: int, dtype: str = "float32") -> Any:
    return pt.tensor(dtype=dtype, shape=(None,) * ndim)


def images(count: int = 1, ndim: int = 4) -> list[Any]:
    return [tensor(ndim) for _ in range(count)]


def values(inputs: list[Any], seed: int = 0) -> list[np.ndarray]:
    """Return images of different sizes with 3 channels, and vectors of 3 positive numbers."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(4, 8, 4)
    arrays = []
    for x in inputs:
        shape = [int(n) for n in sizes[: x.type.ndim]]
        shape[0 if x.type.ndim == 1 else 1] = 3
        draw = rng.uniform(0.5, 2, shape) if x.type.ndim == 1 else 1 + rng.standard_normal(shape)
        arrays.append(draw.astype(x.type.dtype))
    return arrays


def check(
    inputs: list[Any],
    outputs: Any,
    expected: dict[str, int],
    bound: float = 1e-5,
    mode: Any = PERFORM,
) -> Any:
    """Check the Ops of a compiled function; if there are any, compare with results without them."""
    outputs = outputs if isinstance(outputs, list) else [outputs]
    function = pytensor.function(inputs, outputs, mode=mode, on_unused_input="ignore")
    assert ops(function) == expected
    if not expected:
        return function
    plain = pytensor.function(inputs, outputs, mode=PLAIN, on_unused_input="ignore")
    assert not ops(plain)
    for seed in (0, 1):
        arrays = values(inputs, seed)
        for result, reference in zip(function(*arrays), plain(*arrays), strict=True):
            assert_close(result, reference, bound=bound, allow_zero=True)
    return function


def spread(vector: Any) -> Any:
    return vector.dimshuffle("x", 0, "x", "x")


def moments(x: Any, axes: Any = SPATIAL, keepdims: bool = True) -> tuple[Any, Any]:
    return x.mean(axis=axes, keepdims=keepdims), x.var(axis=axes, keepdims=keepdims)


# -- forms of the training expression ------------------------------------------------------


def multiplied_first(x: Any, gamma: Any, beta: Any) -> Any:
    mean, var = moments(x)
    return (x - mean) * spread(gamma) / pt.sqrt(var + 1e-4) + spread(beta)


def normalized_first(x: Any, gamma: Any, beta: Any) -> Any:
    mean, var = moments(x)
    normalized = (x - mean) / pt.sqrt(1e-4 + var)
    return gamma[None, :, None, None] * normalized + beta[None, :, None, None]


def by_inverse_root(x: Any, gamma: Any, beta: Any) -> Any:
    mean, var = moments(x)
    return spread(beta) + (x - mean) * (var + 1e-4) ** -0.5 * spread(gamma)


def by_reciprocal(x: Any, gamma: Any, beta: Any) -> Any:
    mean, var = moments(x)
    return (x - mean) * (pt.reciprocal((var + 1e-4) ** 0.5) * spread(gamma)) + spread(beta)


def vectors_of_statistics(x: Any, gamma: Any, beta: Any) -> Any:
    mean, var = moments(x, keepdims=False)
    factor = gamma / pt.sqrt(var + 1e-4)
    return (x - spread(mean)) * spread(factor) + spread(beta)


def folded(x: Any, gamma: Any, beta: Any) -> Any:
    mean, var = moments(x, keepdims=False)
    factor = gamma / pt.sqrt(var + 1e-4)
    return x * spread(factor) + spread(beta - mean * factor)


def squares_by_hand(x: Any, gamma: Any, beta: Any) -> Any:
    mean = x.mean(axis=SPATIAL, keepdims=True)
    centered = x - mean
    var = pt.mean(pt.sqr(centered), axis=SPATIAL, keepdims=True)
    return centered / pt.sqrt(var + 1e-4) * spread(gamma) + spread(beta)


def sums_and_counts(x: Any, gamma: Any, beta: Any) -> Any:
    count = (x.shape[0] * x.shape[2] * x.shape[3]).astype("float32")
    mean = x.sum(axis=SPATIAL, keepdims=True) / count
    centered = x - mean
    var = (centered * centered).sum(axis=SPATIAL, keepdims=True) / count
    return centered / pt.sqrt(var + 1e-4) * spread(gamma) + spread(beta)


def mean_of_squares(x: Any, gamma: Any, beta: Any) -> Any:
    mean = x.mean(axis=SPATIAL, keepdims=True)
    var = (x**2).mean(axis=SPATIAL, keepdims=True) - mean**2
    return (x - mean) / pt.sqrt(var + 1e-4) * spread(gamma) + spread(beta)


def without_parameters(x: Any, gamma: Any, beta: Any) -> Any:
    mean, var = moments(x)
    return (x - mean) / pt.sqrt(var + 1e-4)


def subtracted(x: Any, gamma: Any, beta: Any) -> Any:
    mean, var = moments(x)
    return -((mean - x) / pt.sqrt(var + 1e-4)) * spread(gamma) - spread(beta)


def one_scale_for_all(x: Any, gamma: Any, beta: Any) -> Any:
    mean, var = moments(x)
    return 2 * gamma[0] * (x - mean) / pt.sqrt(var + 1e-4)


TRAINING: list[Callable] = [
    multiplied_first,
    normalized_first,
    by_inverse_root,
    by_reciprocal,
    vectors_of_statistics,
    folded,
    squares_by_hand,
    sums_and_counts,
    mean_of_squares,
    without_parameters,
    subtracted,
    one_scale_for_all,
]


# -- with given statistics -------------------------------------------------------------------


def divided(x: Any, gamma: Any, beta: Any, mean: Any, var: Any) -> Any:
    return (x - spread(mean)) / pt.sqrt(spread(var) + 1e-4) * spread(gamma) + spread(beta)


def factor_of_vectors(x: Any, gamma: Any, beta: Any, mean: Any, var: Any) -> Any:
    return (x - spread(mean)) * spread(gamma * (var + 1e-4) ** -0.5) + spread(beta)


def folded_inference(x: Any, gamma: Any, beta: Any, mean: Any, var: Any) -> Any:
    factor = gamma / pt.sqrt(var + 1e-4)
    return x * spread(factor) + spread(beta - mean * factor)


def unscaled(x: Any, gamma: Any, beta: Any, mean: Any, var: Any) -> Any:
    return (x - spread(mean)) / pt.sqrt(spread(var) + 1e-4)


INFERENCE_FORMS: list[Callable] = [divided, factor_of_vectors, folded_inference, unscaled]

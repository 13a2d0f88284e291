"""Attention whose scores are large, up to the limits of their dtype, and exact.

Rounding changes a score by a fraction of its size. From about 1e7 on, that is more than 1 in
float32, so that weights of arbitrary operands are arbitrary where scores are close. Here, the
scores are products of small integers and powers of 2: nothing rounds them, and the weights of a
query are equal for the keys with its largest score, and 0 for the others.
"""

from __future__ import annotations

import numpy as np

__all__ = ["error_of", "exact_operands", "exact_scores"]

#: The largest sum of the exponents of 2 that a query and a key have: scores are up to 2**8 times as
#: large, and those of 16-bit numbers may be multiplied by log2(e) in float32.
MOST = {"float16": 28, "bfloat16": 117, "float32": 117, "float64": 1000}


def exact_scores(rng: np.random.Generator, most: int) -> tuple[float, float]:
    """Return two powers of 2, the sizes of queries and keys; `most` limits their product."""
    exponent = int(rng.integers(8, most + 1))
    least = max(0, exponent - (most + 1) // 2)
    first = int(rng.integers(least, exponent - least + 1))
    return 2.0**first, 2.0 ** (exponent - first)


def exact_operands(
    rng: np.random.Generator,
    query: np.ndarray,
    key: np.ndarray,
    mask: np.ndarray | None,
    dtype: str,
) -> None:
    """Replace queries, keys and an additive mask, so that scores are exact and far apart.

    Parameters
    ----------
    rng : numpy.random.Generator
        Source of random numbers.
    query, key : ndarray, (batch, heads, queries or keys, depth)
        Arrays to overwrite.
    mask : ndarray or None
        If not boolean, its finite elements become 0.
    dtype : str
        Dtype whose range limits the operands and the scores.
    """
    sizes = exact_scores(rng, MOST[dtype])
    offset = int(rng.integers(-3, 4))
    for array, size in zip((query, key), sizes, strict=True):
        array[...] = 0
        array[..., 1:4] = rng.integers(-2, 3, array[..., 1:4].shape) * size
        array[..., 0] = size
    # Of all scores; larger than their differences.
    key[..., 0] *= offset
    if mask is not None and mask.dtype != bool:
        mask[np.isfinite(mask)] = 0


def error_of(
    name: str,
    found: np.ndarray,
    wanted: np.ndarray,
    operands: dict[str, np.ndarray],
    scale: float,
    relative: float,
    unit: float,
) -> float:
    """Return the norm of a result's error as a fraction of what is allowed.

    With equal weights, gradients of scores are differences of products of the output's gradient
    and values, which have errors of `unit` times their sizes. Those with respect to queries and
    keys are these differences times the other operand, which is large.

    Parameters
    ----------
    name : str
        The result: "out", "dquery", "dkey" or "dvalue".
    found, wanted : ndarray
        The result, and the same in float64.
    operands : dict
        "query", "key", "value" and "gout".
    scale : float
        Factor of the scores.
    relative : float
        Allowed relative error of a result.
    unit : float
        Relative error of products.

    Returns
    -------
    float
        Infinity if the result is not finite.
    """
    allowed = relative * np.linalg.norm(wanted) + 1e-30
    other = {"dquery": "key", "dkey": "query"}.get(name)
    if other is not None:
        rows = np.linalg.norm(operands[other], axis=3).max(initial=0)
        sizes = np.linalg.norm(operands["gout"]) * np.abs(operands["value"]).max(initial=0)
        allowed += abs(scale) * unit * sizes * rows
    with np.errstate(invalid="ignore", over="ignore"):
        error = float(np.linalg.norm(found.astype("float64") - wanted) / allowed)
    return error if np.isfinite(error) else np.inf

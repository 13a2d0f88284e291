"""Numbers that every library generates and sums for itself, identical to the last bit.

Arrays of a gigabyte are too large to send between processes. So each entry of an array is a
function of its position in memory, computed in integers until the last step, and results are
compared by `sketch`. The functions here work with NumPy and CuPy; ``peers/conv_torch.py`` and
``peers/conv_jax.py`` implement the same for their libraries.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = [
    "CHUNK",
    "MULTIPLIER",
    "SKETCH_SIZE",
    "STEPS",
    "difference",
    "hash_words",
    "operand_scales",
    "operand_seed",
    "ring_size",
    "sketch",
    "stored",
    "strides_of",
    "values",
]

#: Below 2**31, so that its product with a 32-bit number fits into a signed 64-bit integer.
MULTIPLIER = 0x45D9F3B
#: Offset between the two hashed words of a number.
SECOND_WORD = 0x3C6EF372
#: A number is the sum of four 16-bit integers, minus the mean of that sum, divided by STEPS.
STEPS = 2.0**15
OFFSET = 2 * 65535
#: Number of entries of a sketch.
SKETCH_SIZE = 256
#: Number of entries that are generated or summed at a time; a multiple of SKETCH_SIZE.
CHUNK = 1 << 24
SIGN_SEED = 0x2545F491

#: More than twice the level 2 cache of an H200.
_RING_BYTES = 160 << 20
_MAX_RING = 64


def ring_size(bytes_of_one: int) -> int:
    """Return how many sets of operands take turns, so that none is still in the GPU's cache."""
    return max(1, min(_MAX_RING, math.ceil(_RING_BYTES / bytes_of_one)))


def hash_words(xp: Any, index: Any, seed: int) -> Any:
    """Hash 32-bit numbers; `index` is an array of uint32."""
    word = index
    for _ in range(2):
        word = ((word >> xp.uint32(16)) ^ word) * xp.uint32(MULTIPLIER)
    word = word ^ xp.uint32(seed)
    for _ in range(2):
        word = ((word >> xp.uint32(16)) ^ word) * xp.uint32(MULTIPLIER)
    return (word >> xp.uint32(16)) ^ word


def values(xp: Any, count: int, seed: int, scale: float, dtype: str) -> Any:
    """Generate numbers that look normally distributed, with mean 0 and standard deviation 1.15.

    Parameters
    ----------
    xp : module
        NumPy or CuPy.
    count : int
        Number of entries.
    seed : int
        32-bit seed; see `operand_seed`.
    scale : float
        Factor; a power of two, so that the products are exact in float32.
    dtype : str
        Dtype to which the numbers are rounded.

    Returns
    -------
    array
        Array with one axis. bfloat16 is returned as uint16 with the same bits.
    """
    result = xp.empty(count, _storage(dtype))
    for start in range(0, count, CHUNK):
        stop = min(count, start + CHUNK)
        index = xp.arange(start, stop, dtype=xp.uint32)
        total = xp.full(stop - start, -OFFSET, xp.int32)
        for word_seed in (seed, (seed + SECOND_WORD) & 0xFFFFFFFF):
            word = hash_words(xp, index, word_seed)
            total += (word & xp.uint32(0xFFFF)).astype(xp.int32)
            total += (word >> xp.uint32(16)).astype(xp.int32)
        numbers = total.astype(xp.float32) * xp.float32(scale / STEPS)
        result[start:stop] = stored(xp, numbers, dtype)
    return result


def _storage(dtype: str) -> str:
    return "uint16" if dtype == "bfloat16" else dtype


def stored(xp: Any, numbers: Any, dtype: str) -> Any:
    """Round float32 to nearest even, even if the array library has no bfloat16."""
    if dtype != "bfloat16":
        return numbers.astype(dtype)
    bits = numbers.view(xp.uint32)
    bits = bits + (xp.uint32(0x7FFF) + ((bits >> xp.uint32(16)) & xp.uint32(1)))
    return (bits >> xp.uint32(16)).astype(xp.uint16)


def sketch(xp: Any, array: Any) -> list[float]:
    """Sum the entries of a one-dimensional array in `SKETCH_SIZE` numbers.

    Entry ``i`` is added with a pseudorandom sign to number ``i % SKETCH_SIZE``, in float64. The
    squared norm of the difference of two sketches has the squared norm of the difference of the
    arrays as its expectation.

    Parameters
    ----------
    xp : module
        NumPy or CuPy.
    array : array
        Array as returned by `values`.

    Returns
    -------
    list of float
    """
    total = xp.zeros(SKETCH_SIZE, xp.float64)
    for start in range(0, array.size, CHUNK):
        part = array[start : start + CHUNK]
        if part.dtype == np.uint16:
            part = (part.astype(xp.uint32) << xp.uint32(16)).view(xp.float32)
        index = xp.arange(start, start + part.size, dtype=xp.uint32)
        signs = (hash_words(xp, index, SIGN_SEED) & xp.uint32(1)).astype(xp.float64) * 2 - 1
        signed = xp.zeros(-(-part.size // SKETCH_SIZE) * SKETCH_SIZE, xp.float64)
        signed[: part.size] = signs * part.astype(xp.float64)
        total += signed.reshape(-1, SKETCH_SIZE).sum(axis=0)
    return total.tolist()


def difference(found: Sequence[float], expected: Sequence[float]) -> float:
    """Estimate the relative difference of two arrays in the 2-norm from their sketches."""
    a, b = np.asarray(found), np.asarray(expected)
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def operand_seed(operand: str, number: int) -> int:
    """Return the seed of an operand, given its name and the number of its set."""
    names = ("image", "filters", "output")
    return (0x9E3779B9 * (1 + names.index(operand) + 3 * number)) & 0xFFFFFFFF


def operand_scales(direction: str, terms: int) -> dict[str, float]:
    """Return a power of two for each operand that keeps the result near 1."""
    scale = 2.0 ** -round(math.log2(terms) / 2)
    if direction == "backward_filter":
        return {"image": 1.0, "output": scale}
    return {"image" if direction == "forward" else "output": 1.0, "filters": scale}


def strides_of(shape: Sequence[int], layout: str, item_size: int = 1) -> tuple[int, ...]:
    """Return strides for a memory format, in items or, with `item_size`, in bytes."""
    order = [0, *range(1, len(shape))]
    if layout == "channels_last":
        order = [0, *range(2, len(shape)), 1]
    strides = [0] * len(shape)
    step = item_size
    for axis in reversed(order):
        strides[axis] = step
        step *= shape[axis]
    return tuple(strides)

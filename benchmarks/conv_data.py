"""Numbers that every library makes and sums up for itself, the same to the last bit.

Arrays of a gigabyte are not to be sent from one process to another. So the entry of an array at a
place in memory is a function of this place, in whole numbers up to the last step, and results are
compared by `sketch`. The functions here work with NumPy and CuPy; ``peers/conv_torch.py`` and
``peers/conv_jax.py`` have the same in their library's words.
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

#: Below 2**31, so that a product with 32 bits fits into 64 with a sign.
MULTIPLIER = 0x45D9F3B
#: Added between the two words of a number.
SECOND_WORD = 0x3C6EF372
#: A number is the sum of four of 16 bits, less their mean, over this.
STEPS = 2.0**15
OFFSET = 2 * 65535
#: Entries of a sketch.
SKETCH_SIZE = 256
#: Entries that are made or summed up at a time; a multiple of SKETCH_SIZE.
CHUNK = 1 << 24
SIGN_SEED = 0x2545F491

#: More than twice what an H200 has of level 2 cache.
_RING_BYTES = 160 << 20
_MAX_RING = 64


def ring_size(bytes_of_one: int) -> int:
    """How many sets of operands to use in turns, so that none is still in a GPU's cache."""
    return max(1, min(_MAX_RING, math.ceil(_RING_BYTES / bytes_of_one)))


def hash_words(xp: Any, index: Any, seed: int) -> Any:
    """Scramble 32-bit numbers; `index` is an array of uint32."""
    word = index
    for _ in range(2):
        word = ((word >> xp.uint32(16)) ^ word) * xp.uint32(MULTIPLIER)
    word = word ^ xp.uint32(seed)
    for _ in range(2):
        word = ((word >> xp.uint32(16)) ^ word) * xp.uint32(MULTIPLIER)
    return (word >> xp.uint32(16)) ^ word


def values(xp: Any, count: int, seed: int, scale: float, dtype: str) -> Any:
    """Make numbers that look normally distributed, of mean 0 and a deviation of 1.15.

    Parameters
    ----------
    xp : module
        NumPy or CuPy.
    count : int
        How many.
    seed : int
        32 bits; see `operand_seed`.
    scale : float
        A power of two that they are multiplied by, so that float32 holds them exactly.
    dtype : str
        What they are rounded to.

    Returns
    -------
    array
        One axis; bfloat16 as uint16, bit by bit.
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
    """Round float32 to nearest even, without asking the library for bfloat16."""
    if dtype != "bfloat16":
        return numbers.astype(dtype)
    bits = numbers.view(xp.uint32)
    bits = bits + (xp.uint32(0x7FFF) + ((bits >> xp.uint32(16)) & xp.uint32(1)))
    return (bits >> xp.uint32(16)).astype(xp.uint16)


def sketch(xp: Any, array: Any) -> list[float]:
    """Sum up an array of one axis in `SKETCH_SIZE` numbers.

    Entry ``i`` is added, with a sign that looks random, to number ``i % SKETCH_SIZE``, in float64.
    The squared norm of the difference of two arrays' sketches has the arrays' as its expectation.

    Parameters
    ----------
    xp : module
        NumPy or CuPy.
    array : array
        As `values` gives it.

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
    """About the relative difference of the arrays that two sketches are of, by 2-norms."""
    a, b = np.asarray(found), np.asarray(expected)
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def operand_seed(operand: str, number: int) -> int:
    """The seed of an operand, by its name and the number of its set."""
    names = ("image", "filters", "output")
    return (0x9E3779B9 * (1 + names.index(operand) + 3 * number)) & 0xFFFFFFFF


def operand_scales(direction: str, terms: int) -> dict[str, float]:
    """Powers of two that keep a result's size near 1, by operand."""
    scale = 2.0 ** -round(math.log2(terms) / 2)
    if direction == "backward_filter":
        return {"image": 1.0, "output": scale}
    return {"image" if direction == "forward" else "output": 1.0, "filters": scale}


def strides_of(shape: Sequence[int], layout: str, item_size: int = 1) -> tuple[int, ...]:
    """Strides of an array in a memory format, in items or, with `item_size`, in bytes."""
    order = [0, *range(1, len(shape))]
    if layout == "channels_last":
        order = [0, *range(2, len(shape)), 1]
    strides = [0] * len(shape)
    step = item_size
    for axis in reversed(order):
        strides[axis] = step
        step *= shape[axis]
    return tuple(strides)

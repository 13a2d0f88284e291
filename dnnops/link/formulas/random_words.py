"""The random numbers of `dnnops.nnet`, computed with 32-bit words.

Products are computed from 16-bit halves, so that they don't overflow in the integers of either
library: unsigned 32-bit or signed 64-bit integers.
"""

from __future__ import annotations

from math import prod
from typing import Any

from dnnops.nnet.regularization.dropout import BLOCKS, GROUP

__all__ = ["philox_words", "splitmix_words"]

_PHILOX_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_PHILOX_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_PHILOX_ROUNDS = 10
_SPLITMIX_MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_SPLITMIX_INCREMENT = 0x9E3779B97F4A7C15
_HALF, _WORD = 0xFFFF, 0xFFFFFFFF


def _product(a: Any, number: int) -> tuple[Any, Any]:
    """Multiply words by a 32-bit number; return the upper and lower words of the products."""
    high, low = number >> 16, number & _HALF
    a_high, a_low = a >> 16, a & _HALF
    first, last = a_low * low, a_high * high
    across, back = a_low * high, a_high * low
    middle = (first >> 16) + (across & _HALF) + (back & _HALF)
    upper = last + (across >> 16) + (back >> 16) + (middle >> 16)
    return upper, ((middle & _HALF) << 16) | (first & _HALF)


def philox_words(lib: Any, state: Any, shape: Any) -> Any:
    """Return `dnnops.nnet.regularization.dropout.random_words` for an array of the given shape."""
    count = prod(shape)
    groups = -(-count // GROUP)
    upper, lower = lib.halves(state)
    a = lib.words(lib.uint32_range(groups * BLOCKS) + lower[1])
    b = lib.words(upper[1] + lib.word(a < lower[1]))  # the carry
    c = d = a ^ a
    key = (lower[0], upper[0])
    for step in range(_PHILOX_ROUNDS):
        first, second = (
            lib.words(k + lib.word(step * by & _WORD))
            for k, by in zip(key, _PHILOX_KEY_STEPS, strict=True)
        )
        (a_high, a_low), (c_high, c_low) = (
            _product(x, by) for x, by in zip((a, c), _PHILOX_MULTIPLIERS, strict=True)
        )
        a, b, c, d = c_high ^ b ^ first, c_low, a_high ^ d ^ second, a_low
    blocks = lib.stack([a, b, c, d], 1).reshape((groups, BLOCKS, 4))
    return blocks.swapaxes(1, 2).reshape((-1,))[:count].reshape(tuple(shape))


def _product64(lib: Any, upper: Any, lower: Any, number: int) -> tuple[Any, Any]:
    """Multiply 64-bit numbers, given as pairs of words, by a number modulo ``2**64``."""
    high, low = _product(lower, number & _WORD)
    across, back = _product(lower, number >> 32)[1], _product(upper, number & _WORD)[1]
    return lib.words(high + across + back), low


def _mixed(lib: Any, upper: Any, lower: Any) -> tuple[Any, Any]:
    """Apply the output function of SplitMix64."""
    for shift, by in zip((30, 27), _SPLITMIX_MULTIPLIERS, strict=True):
        upper, lower = _shifted(lib, upper, lower, shift)
        upper, lower = _product64(lib, upper, lower, by)
    return _shifted(lib, upper, lower, 31)


def _shifted(lib: Any, upper: Any, lower: Any, shift: int) -> tuple[Any, Any]:
    """Compute ``x ^ (x >> shift)`` for 64-bit numbers, given as pairs of words."""
    moved = lib.words(upper << (32 - shift)) | (lower >> shift)
    return upper ^ (upper >> shift), lower ^ moved


def splitmix_words(lib: Any, seed: Any, layer: int, shape: Any) -> Any:
    """Return the upper words of the random numbers of `dnnops.nnet.rnn.layout.keep_mask`."""
    start = (layer + 1) * _SPLITMIX_INCREMENT & (2**64 - 1)
    upper, lower = lib.halves(seed)
    upper, lower = _sum64(lib, (upper, lower), (lib.word(start >> 32), lib.word(start & _WORD)))
    steps = lib.uint32_range(prod(shape)) + lib.word(1)
    products = _product64(lib, steps ^ steps, steps, _SPLITMIX_INCREMENT)
    begin = _mixed(lib, upper, lower)
    return _mixed(lib, *_sum64(lib, begin, products))[0].reshape(tuple(shape))


def _sum64(lib: Any, first: Any, second: Any) -> tuple[Any, Any]:
    lower = lib.words(first[1] + second[1])
    carry = lib.word(lower < second[1])
    return lib.words(first[0] + second[0] + carry), lower

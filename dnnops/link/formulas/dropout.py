"""Dropout, which drops the same elements as `dnnops.nnet.regularization.dropout`."""

from __future__ import annotations

from math import prod
from typing import Any

from dnnops.errors import DnnValueError
from dnnops.link.formulas.random_words import philox_words
from dnnops.nnet.regularization.dropout import BLOCKS, GROUP

__all__ = ["dropout", "dropout_gradient", "kept_elements"]


def kept_elements(lib: Any, state: Any, shape: Any, p: Any) -> Any:
    """Return whether each element of an array of the given shape is kept."""
    words = philox_words(lib, state, shape)
    # The threshold of a probability of 1 would exceed every word.
    return (words >= lib.word(p * (p < 1) * 2.0**32)) & (p < 1)


def _scale(p: Any) -> Any:
    """Return the factor of the elements that are kept; if `p` is 1, there are none."""
    return 1 / (1 - p * (p < 1))


def dropout(lib: Any, op: Any, x: Any, p: Any, state: Any) -> tuple[Any, Any, Any]:
    """Compute the results of `Dropout`."""
    kept = kept_elements(lib, state, x.shape, p)
    blocks = BLOCKS * -(-prod(x.shape) // GROUP)
    y = lib.where(kept, x * _scale(p), 0.0)
    return y, lib.packed_bits(kept.reshape((-1,))), lib.stack([state[0], state[1] + blocks], 0)


def dropout_gradient(lib: Any, op: Any, gy: Any, p: Any, reserve: Any) -> tuple[Any]:
    """Compute the results of `DropoutGrad`."""
    expected = (prod(gy.shape) + 7) // 8
    if reserve.shape[0] != expected:
        raise DnnValueError(f"{op}: reserve must have {expected} bytes, got {reserve.shape[0]}")
    kept = lib.from_packed_bits(reserve, prod(gy.shape)).reshape(gy.shape)
    return (lib.where(kept, gy * _scale(p), 0.0),)

"""PyTorch implementations of the functions that `dnnops.link.formulas` calls."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import clip, concatenate, exp, floor, isnan, log, moveaxis, sigmoid, sqrt, stack, where
from torch.nn import functional

__all__ = [
    "add_at",
    "amax",
    "arange",
    "cast",
    "clip",
    "concatenate",
    "exp",
    "floor",
    "from_packed_bits",
    "halves",
    "integers",
    "isnan",
    "log",
    "moveaxis",
    "packed_bits",
    "sigmoid",
    "sqrt",
    "stack",
    "sum_of_windows",
    "uint32_range",
    "where",
    "widen",
    "widest",
    "word",
    "words",
    "zeros",
]

arange = torch.arange


def cast(x: Any, dtype: str) -> Any:
    """Cast to the dtype with the given name."""
    return x.to(getattr(torch, dtype))


def widen(x: Any) -> Any:
    """Cast a floating-point array to the dtype of its accumulator."""
    return x.float() if x.dtype == torch.float16 else x


def widest(x: Any) -> Any:
    """Cast to float64."""
    return x.double()


def integers(x: Any) -> Any:
    """Cast to int64."""
    return x.long()


def amax(x: Any, axis: Any) -> Any:
    """Return the maximum along axes, which are kept; minus infinity if there are no elements."""
    axes = (axis,) if isinstance(axis, int) else axis
    if all(x.shape[a] for a in axes):
        return torch.amax(x, dim=axis, keepdim=True)
    return x.new_full([1 if a in axes else n for a, n in enumerate(x.shape)], -torch.inf)


def zeros(shape: Any, like: Any) -> Any:
    """Return zeros with the dtype of the array `like`."""
    return like.new_zeros(tuple(shape))


def add_at(x: Any, index: Any, values: Any) -> Any:
    """Add values to the indexed elements of an array; repeated indices accumulate."""
    whole = [i for i, part in enumerate(index) if isinstance(part, slice)]
    last = range(-len(whole), 0)
    parts = [part for part in index if not isinstance(part, slice)]
    return (
        x.movedim(whole, [*last]).index_put(parts, values, accumulate=True).movedim([*last], whole)
    )


def sum_of_windows(x: Any, n: int, axis: int, sides: tuple[int, int]) -> Any:
    """Return the sums over a window around each element along one axis."""
    if x.numel() == 0:
        return x
    lead, tail = prod(x.shape[:axis]), prod(x.shape[axis + 1 :])
    rows = functional.pad(x.reshape(lead, 1, x.shape[axis], tail), (0, 0, *sides))
    return functional.avg_pool2d(rows, (n, 1), 1, divisor_override=1).reshape(x.shape)


# -- 32-bit words in 64-bit integers: PyTorch has little arithmetic of unsigned integers ------

_WORD = 0xFFFFFFFF


def halves(x: Any) -> tuple[Any, Any]:
    """Return the upper and the lower words of 64-bit integers."""
    return (x >> 32) & _WORD, x & _WORD


def word(number: Any) -> Any:
    """Convert a non-negative number to a word."""
    return number.long() if isinstance(number, torch.Tensor) else int(number)


def words(x: Any) -> Any:
    """Truncate integers to 32 bits."""
    return x & _WORD


def uint32_range(size: int) -> Any:
    """Return the words 0, 1, 2..."""
    return torch.arange(size)


def packed_bits(x: Any) -> Any:
    """Pack a bool vector into bytes, starting with the lowest bit."""
    groups = functional.pad(x.to(torch.uint8), (0, -len(x) % 8)).reshape(-1, 8)
    return (groups << torch.arange(8, dtype=torch.uint8)).sum(dim=1, dtype=torch.uint8)


def from_packed_bits(x: Any, count: int) -> Any:
    """Undo `packed_bits`."""
    bits = (x[:, None] >> torch.arange(8, dtype=torch.uint8)) & 1
    return bits.reshape(-1)[:count].bool()

"""Random convolutions of every kind for which cuDNN has special engines, reproducible by seed.

A configuration depends only on the session's seed and its number. Any 40 consecutive numbers
combine each direction with each dtype and memory format, and cover every kind of convolution.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dnnops.gpu.algorithms import DIRECTIONS
from tests.oracle import RELATIVE_ERROR, SEED, TRANSFORM_RELATIVE_ERROR, ConvCase

COUNT = 40
_FACTORS = ((1.0, 0.0),) * 4 + ((2.0, 1.0), (-0.5, 0.25))

#: Keys of the oracle's bounds: a dtype, or TF32 for float32 computed with it.
PRECISIONS = ("float32", "tf32", "float16", "bfloat16", "float64")
MEMORY_FORMATS = ("contiguous", "channels_last")
_COMBINATIONS = list(itertools.product(range(len(DIRECTIONS)), PRECISIONS, MEMORY_FORMATS))


@dataclass(frozen=True)
class Configuration:
    """A convolution with its dtype, memory formats and other settings."""

    number: int
    kind: str
    case: ConvCase
    index: int
    precision: str
    memory_format: str
    integers: bool
    #: Alpha and beta: the factors of the convolution and of the output's previous values.
    factors: tuple[float, float]

    @property
    def direction(self) -> str:
        return DIRECTIONS[self.index]

    @property
    def dtype(self) -> str:
        """Return the dtype of all arrays."""
        return "float32" if self.precision == "tf32" else self.precision

    @property
    def settings(self) -> dict[str, Any]:
        """Return keyword arguments of the Op."""
        return {
            **self.case.params,
            "memory_format": self.memory_format,
            "allow_tf32": self.precision == "tf32",
        }

    def bound(self, transforms: bool) -> float:
        """Return the largest relative error, for plans that transform their operands or do not."""
        bounds = TRANSFORM_RELATIVE_ERROR if transforms else RELATIVE_ERROR
        return bounds[self.precision]


def _one_of(rng: np.random.Generator, choices: Sequence[Any]) -> Any:
    return choices[int(rng.integers(len(choices)))]


def _between(rng: np.random.Generator, low: int, high: int, count: int) -> tuple[int, ...]:
    """Return a strategy for integers from `low` to `high`, inclusive."""
    return tuple(int(n) for n in rng.integers(low, high + 1, size=count))


def _fitted(
    rng: np.random.Generator,
    kernel: tuple[int, ...],
    extra: tuple[int, ...],
    channels: tuple[int, int],
    stride: tuple[int, ...] | None = None,
    dilation: tuple[int, ...] | None = None,
    border: Any = None,
    groups: int = 1,
    flip: bool | None = None,
) -> ConvCase:
    """Return a case with an image larger than the filters by `extra`, and `channels` per group."""
    ndim = len(kernel)
    dilation = dilation or (1,) * ndim
    if border is None:
        border = _one_of(rng, ("valid", "half", "full", _between(rng, 0, 2, ndim)))
    spatial = [(k - 1) * d + 1 + n for k, d, n in zip(kernel, dilation, extra, strict=True)]
    return ConvCase(
        img_shape=(int(rng.integers(1, 9)), groups * channels[0], *spatial),
        kern_shape=(groups * channels[1], channels[0], *kernel),
        border_mode=border,
        subsample=stride or (1,) * ndim,
        filter_flip=bool(rng.integers(2)) if flip is None else flip,
        filter_dilation=dilation,
        num_groups=groups,
        seed=int(rng.integers(2**32)),
    )


_EIGHTS = (8, 16, 32, 64)


def _eights(rng: np.random.Generator) -> tuple[int, int]:
    """Use numbers of channels that tensor cores support."""
    return _one_of(rng, _EIGHTS), _one_of(rng, _EIGHTS)


def _winograd(rng: np.random.Generator) -> ConvCase:
    border = _one_of(rng, ("valid", "half"))
    return _fitted(rng, (3, 3), _between(rng, 4, 28, 2), _eights(rng), border=border)


def _fft(rng: np.random.Generator) -> ConvCase:
    size, channels = _one_of(rng, (5, 7)), _between(rng, 2, 16, 2)
    border = _one_of(rng, ("valid", "half"))
    return _fitted(rng, (size, size), _between(rng, 9, 28, 2), channels, border=border)


def _strided(rng: np.random.Generator) -> ConvCase:
    kernel, stride = _between(rng, 1, 5, 2), _between(rng, 1, 3, 2)
    return _fitted(rng, kernel, _between(rng, 6, 16, 2), _eights(rng), stride)


def _dilated(rng: np.random.Generator) -> ConvCase:
    kernel, stride, dilation = _between(rng, 2, 3, 2), _between(rng, 1, 2, 2), (2, 3)
    return _fitted(rng, kernel, _between(rng, 4, 14, 2), _eights(rng), stride, dilation)


def _grouped(rng: np.random.Generator) -> ConvCase:
    kernel, stride, groups = _between(rng, 1, 3, 2), _between(rng, 1, 2, 2), _one_of(rng, (2, 3, 4))
    channels = _one_of(rng, (1, 3, 4, 8, 16)), _one_of(rng, (2, 4, 8, 16))
    return _fitted(rng, kernel, _between(rng, 4, 14, 2), channels, stride, groups=groups)


def _depthwise(rng: np.random.Generator) -> ConvCase:
    size, stride = _one_of(rng, (3, 5, 7)), _between(rng, 1, 2, 2)
    dilation = (_one_of(rng, (1, 1, 2)),) * 2
    groups, channels = _one_of(rng, (6, 8, 32, 64)), (1, _one_of(rng, (1, 1, 2)))
    extra = _between(rng, 4, 16, 2)
    return _fitted(rng, (size, size), extra, channels, stride, dilation, groups=groups)


def _pointwise(rng: np.random.Generator) -> ConvCase:
    return _fitted(rng, (1, 1), _between(rng, 3, 20, 2), _eights(rng), border="valid")


def _whole_image(rng: np.random.Generator) -> ConvCase:
    """Use filters as large as the image, so that each result is one inner product."""
    kernel = _between(rng, 2, 7, 2)
    return _fitted(rng, kernel, (0, 0), _eights(rng), border="valid", flip=False)


def _one_axis(rng: np.random.Generator) -> ConvCase:
    kernel, dilation = _between(rng, 1, 9, 1), _between(rng, 1, 2, 1)
    stride = _between(rng, 1, 2, 1)
    return _fitted(rng, kernel, _between(rng, 8, 60, 1), _eights(rng), stride, dilation)


def _three_axes(rng: np.random.Generator) -> ConvCase:
    kernel, stride = _between(rng, 1, 3, 3), _between(rng, 1, 2, 3)
    channels = _one_of(rng, (3, 8, 16)), _one_of(rng, (4, 8, 16))
    return _fitted(rng, kernel, _between(rng, 3, 7, 3), channels, stride)


def _odd(rng: np.random.Generator) -> ConvCase:
    """Use sizes that do not suit vector instructions."""
    channels = _one_of(rng, (1, 3, 5, 13)), _one_of(rng, (1, 3, 7, 11))
    kernel, stride = _between(rng, 1, 4, 2), _between(rng, 1, 3, 2)
    dilation = _between(rng, 1, 2, 2)
    return _fitted(rng, kernel, _between(rng, 3, 13, 2), channels, stride, dilation)


KINDS: dict[str, Callable[[np.random.Generator], ConvCase]] = {
    "winograd": _winograd,
    "fft": _fft,
    "strided": _strided,
    "dilated": _dilated,
    "grouped": _grouped,
    "depthwise": _depthwise,
    "pointwise": _pointwise,
    "whole_image": _whole_image,
    "one_axis": _one_axis,
    "three_axes": _three_axes,
    "odd": _odd,
}


def configuration_id(number: int) -> str:
    """Return the test id of a configuration, which is the same for all seeds."""
    index, precision, memory_format = _COMBINATIONS[number % len(_COMBINATIONS)]
    return f"{number}-{DIRECTIONS[index]}-{precision}-{memory_format}"


def make_configuration(number: int, seed: int = SEED) -> Configuration:
    """Return the configuration for a number and the session's seed."""
    names = [*KINDS] * -(-COUNT // len(KINDS))
    kind = str(np.random.default_rng(seed).permutation(names)[number % len(names)])
    rng = np.random.default_rng([seed, number])
    index, precision, memory_format = _COMBINATIONS[number % len(_COMBINATIONS)]
    return Configuration(
        number=number,
        kind=kind,
        case=KINDS[kind](rng),
        index=index,
        precision=precision,
        memory_format=memory_format,
        integers=bool(rng.integers(3) == 0),
        factors=_one_of(rng, _FACTORS),
    )

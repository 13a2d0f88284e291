"""The convolutions of the suite, and the order in which its rows are measured."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, product
from math import prod
from typing import Any

__all__ = [
    "CASES",
    "DIRECTIONS",
    "LAYOUTS",
    "PRECISIONS",
    "README_CASE",
    "ConvCase",
    "Work",
    "row_key",
    "rows_in_order",
    "small_cases",
    "units",
]

DIRECTIONS = ("forward", "backward_data", "backward_filter")
PRECISIONS = ("float32", "tf32", "float16", "bfloat16")
LAYOUTS = ("channels_last", "contiguous")

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class ConvCase:
    """Sizes of a convolution. Spatial sizes have one entry per axis, height before width.

    Attributes
    ----------
    network : str
        The network or collection that the convolution comes from.
    batch, channels, filters, groups : int
        Numbers of images, of input channels, of output channels, and of groups.
    size, kernel, pad, stride, dilation : tuple of int
        Spatial sizes. Padding is the same on both sides.
    """

    network: str
    batch: int
    channels: int
    size: Sizes
    filters: int
    kernel: Sizes
    pad: Sizes
    stride: Sizes
    dilation: Sizes
    groups: int = 1

    @property
    def image_shape(self) -> Sizes:
        return (self.batch, self.channels, *self.size)

    @property
    def filters_shape(self) -> Sizes:
        return (self.filters, self.channels // self.groups, *self.kernel)

    @property
    def output_size(self) -> Sizes:
        axes = zip(self.size, self.kernel, self.pad, self.stride, self.dilation, strict=True)
        return tuple((n + 2 * pad - (k - 1) * d - 1) // s + 1 for n, k, pad, s, d in axes)

    @property
    def output_shape(self) -> Sizes:
        return (self.batch, self.filters, *self.output_size)

    @property
    def words(self) -> str:
        """Return the name that rows show as their ``case``."""
        parts = [
            f"{self.network}: {_times(self.image_shape)}",
            f"{self.filters} of {_times(self.kernel)}",
        ]
        for name, sizes, usual in (
            ("pad", self.pad, 0),
            ("stride", self.stride, 1),
            ("dilation", self.dilation, 1),
        ):
            if any(size != usual for size in sizes):
                same = len(set(sizes)) == 1
                parts.append(f"{name} {sizes[0] if same else _times(sizes)}")
        if self.groups > 1:
            parts.append(f"groups {self.groups}")
        return ", ".join(parts)

    def terms(self, direction: str) -> int:
        """Return roughly how many products are summed for one entry of the result."""
        if direction == "forward":
            return self.channels // self.groups * prod(self.kernel)
        if direction == "backward_data":
            strides = prod(self.stride)
            return max(1, self.filters // self.groups * prod(self.kernel) // strides)
        return self.batch * prod(self.output_size)

    def description(self) -> dict[str, Any]:
        """Return the sizes as the peers expect them."""
        return {
            "image_shape": self.image_shape,
            "filters_shape": self.filters_shape,
            "output_shape": self.output_shape,
            "pad": self.pad,
            "stride": self.stride,
            "dilation": self.dilation,
            "groups": self.groups,
        }


def _times(sizes: Sequence[int]) -> str:
    return "x".join(map(str, sizes))


def _case(
    network: str,
    batch: int,
    channels: int,
    size: int | Sizes,
    filters: int,
    kernel: int | Sizes = 3,
    pad: int | Sizes | None = None,
    stride: int = 1,
    dilation: int = 1,
    groups: int = 1,
    ndim: int = 2,
) -> ConvCase:
    """Return a case. A single number is for every axis; `pad` defaults to half of the kernel."""

    def each(value: int | Sizes) -> Sizes:
        return value if isinstance(value, tuple) else (value,) * ndim

    kernels = each(kernel)
    pads = tuple(k // 2 * dilation for k in kernels) if pad is None else each(pad)
    return ConvCase(
        network,
        batch,
        channels,
        each(size),
        filters,
        kernels,
        pads,
        each(stride),
        each(dilation),
        groups,
    )


#: The convolution in the README of cudnn-python-wrappers, which has its own goals.
README_CASE = _case("cudnn-python-wrappers", 64, 128, 112, 128, 7)


def _resnet50() -> Iterator[ConvCase]:
    """Yield each distinct layer, with strides in the 3x3 convolutions (version 1.5)."""

    def layer(*sizes: int, **others: int) -> ConvCase:
        return _case("ResNet-50", 64, *sizes, **others)

    yield layer(3, 224, 64, 7, stride=2)
    inputs = 64
    for size, width in ((56, 64), (28, 128), (14, 256), (7, 512)):
        first = width == 64
        before = size if first else 2 * size
        yield layer(inputs, before, width, 1)
        if not first:
            yield layer(width, before, width, 3, stride=2)
            yield layer(inputs, before, 4 * width, 1, stride=2)
        yield layer(width, size, width, 3)
        # The shortcut of the first stage, too.
        yield layer(width, size, 4 * width, 1)
        yield layer(4 * width, size, width, 1)
        inputs = 4 * width


def _vgg16() -> Iterator[ConvCase]:
    layers: tuple[tuple[int, int, int], ...]
    layers = ((3, 224, 64), (64, 224, 64), (64, 112, 128), (128, 112, 128), (128, 56, 256))
    layers += ((256, 56, 256), (256, 28, 512), (512, 28, 512), (512, 14, 512))
    for layer in layers:
        yield _case("VGG-16", 32, *layer)


def _mobilenet() -> Iterator[ConvCase]:
    for channels, size, stride in ((64, 112, 2), (128, 56, 1), (512, 14, 1)):
        yield _case("MobileNet", 64, channels, size, channels, stride=stride, groups=channels)
    for channels, size, stride in ((144, 56, 1), (576, 14, 2), (960, 7, 1)):
        yield _case("MobileNetV2", 64, channels, size, channels, stride=stride, groups=channels)


def _unet() -> Iterator[ConvCase]:
    """Yield layers of a 3-d U-Net on patches of 128 voxels per axis."""
    layers: tuple[tuple[int, int, int, int], ...]
    layers = ((1, 128, 32, 1), (32, 128, 32, 1), (32, 128, 64, 2))
    layers += ((128, 32, 128, 1), (320, 8, 320, 1))
    for channels, size, filters, stride in layers:
        yield _case("3-d U-Net", 2, channels, size, filters, stride=stride, ndim=3)


def _deeplab() -> Iterator[ConvCase]:
    """Yield layers for images of 513x513, at an eighth and a sixteenth of that size."""
    layers = ((256, 65, 256, 2), (512, 65, 512, 4), (2048, 33, 256, 6))
    for channels, size, filters, dilation in layers:
        yield _case("DeepLab", 8, channels, size, filters, dilation=dilation)


def _resnext() -> Iterator[ConvCase]:
    layers = ((128, 56, 1), (256, 56, 2), (512, 14, 1), (1024, 7, 1))
    for channels, size, stride in layers:
        yield _case("ResNeXt-50", 64, channels, size, channels, stride=stride, groups=32)


def _deepbench() -> Iterator[ConvCase]:
    """Yield cases of its training set, with the largest batch of each: speech, text, faces, ResNet.

    Numbers are in DeepBench's order: width, height, channels, batch, filters, kernel width and
    height, pad, stride. Of each network, these are the layers that differ most from those above.
    """
    layers = (
        (700, 161, 1, 32, 32, 20, 5, 0, 2),
        (341, 79, 32, 32, 32, 10, 5, 0, 2),
        (350, 80, 64, 16, 128, 5, 5, 1, 2),
        (42, 10, 512, 16, 512, 3, 3, 1, 1),
        (480, 48, 1, 16, 16, 3, 3, 1, 1),
        (108, 108, 3, 8, 64, 3, 3, 1, 2),
        (27, 27, 128, 8, 128, 3, 3, 1, 1),
        (28, 28, 192, 16, 32, 5, 5, 2, 1),
        (7, 7, 2048, 16, 512, 1, 1, 3, 2),
    )
    for width, height, channels, batch, filters, k_width, k_height, pad, stride in layers:
        kernel = (k_height, k_width)
        yield _case("DeepBench", batch, channels, (height, width), filters, kernel, pad, stride)


CASES: tuple[ConvCase, ...] = (
    README_CASE,
    # The first notebook of cuDNN's frontend.
    _case("cudnn-frontend", 8, 64, 56, 64),
    *_resnet50(),
    *_vgg16(),
    *_mobilenet(),
    *_unet(),
    *_deeplab(),
    *_resnext(),
    *_deepbench(),
)


def small_cases() -> tuple[ConvCase, ...]:
    """Return small cases of every kind, for a quick check of the program on a CPU."""
    return (
        _case("plain", 2, 4, 10, 6, 3),
        _case("strided", 2, 3, (9, 8), 4, (3, 2), (1, 0), 2),
        _case("dilated", 1, 4, 11, 4, 3, dilation=2),
        _case("grouped", 2, 8, 7, 8, 3, groups=4),
        _case("depthwise", 2, 6, 8, 6, 3, stride=2, groups=6),
        _case("3-d", 1, 2, 6, 3, 3, ndim=3),
    )


#: Case, direction, precision and layout.
Work = tuple[ConvCase, str, str, str]


def row_key(row: dict[str, Any]) -> tuple[str, str, str, str]:
    """Return the key that identifies a row."""
    return (row["case"], row["direction"], row["precision"], row["layout"])


def rows_in_order(cases: Sequence[ConvCase], seed: int = 3) -> list[Work]:
    """Return all combinations, ordered so that each prefix is a fair sample of all.

    Parameters
    ----------
    cases : sequence of ConvCase
        Cases to combine with each direction, precision and layout.
    seed : int
        Seed of the permutation.

    Returns
    -------
    list of tuple
        Case, direction, precision and layout. Rows with the same case and direction are adjacent,
        because they share the operands that libraries prepare: see `units`. A prefix contains about
        the same share of each network as the whole. `README_CASE`, which takes longest, comes in
        the middle: at the end, one GPU would work on it alone, and at the beginning, an interrupted
        run would have few other rows.
    """
    rng = random.Random(seed)
    networks = defaultdict(list)
    for pair in product(cases, DIRECTIONS):
        networks[pair[0].network].append(pair)
    places: list[tuple[float, ConvCase, str]] = []
    for network, pairs in networks.items():
        rng.shuffle(pairs)
        for number, (case, direction) in enumerate(pairs):
            place = (number + rng.random()) / len(pairs)
            if network == README_CASE.network:
                place = 0.5
            places.append((place, case, direction))
    places.sort(key=lambda entry: entry[0])
    return [
        (case, direction, precision, layout)
        for _, case, direction in places
        for precision, layout in product(PRECISIONS, LAYOUTS)
    ]


def units(rows: Sequence[Work]) -> list[list[Work]]:
    """Group rows by case and direction; one GPU measures each group."""
    return [list(group) for _, group in groupby(rows, key=lambda row: row[:2])]

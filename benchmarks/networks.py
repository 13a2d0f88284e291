"""Sizes, weights and data that all libraries share; needs only NumPy."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

__all__ = [
    "CALLS_BETWEEN_EVENTS",
    "DIRECTIONS",
    "VGG_LAYERS",
    "ConvArrays",
    "conv_arrays",
    "rotated_sets",
    "vgg_batch",
    "vgg_parameters",
]

SEED = 20

#: Output channels of the 3x3 convolutions, and ``M`` for max pooling.
VGG_LAYERS: tuple[int | str, ...] = (64, 64, "M", 128, 128, "M", 256, 256, "M")
VGG_HIDDEN = 256
VGG_CLASSES = 10
VGG_RATE = 0.01
VGG_MOMENTUM = 0.9

DIRECTIONS = ("forward", "grad_inputs", "grad_weights")

#: Calls that are timed together on a GPU, so that running them hides launching them.
CALLS_BETWEEN_EVENTS = 20
#: Total bytes of the operands that take turns: more than the caches of a GPU.
_ROTATED_BYTES = 200 << 20


def vgg_parameters(size: int, layers: tuple[int | str, ...] = VGG_LAYERS) -> list[np.ndarray]:
    """Draw the initial weights and biases of the VGG-like network.

    Parameters
    ----------
    size : int
        Height and width of the images.
    layers : tuple of int or str
        Layers in the form of `VGG_LAYERS`.

    Returns
    -------
    list of numpy.ndarray
        Weight and bias of each layer in turn, float32. Filters have the shape (output channels,
        input channels, 3, 3), dense weights (inputs, outputs).
    """
    rng = np.random.default_rng(SEED)
    parameters: list[np.ndarray] = []

    def draw(shape: tuple[int, ...], fan_in: int, outputs: int) -> None:
        weights = rng.normal(scale=np.sqrt(2 / fan_in), size=shape)
        parameters.extend((weights.astype("float32"), np.zeros(outputs, "float32")))

    channels = 3
    for layer in layers:
        if layer == "M":
            size //= 2
        else:
            draw((int(layer), channels, 3, 3), 9 * channels, int(layer))
            channels = int(layer)
    features = channels * size**2
    for inputs, outputs in ((features, VGG_HIDDEN), (VGG_HIDDEN, VGG_CLASSES)):
        draw((inputs, outputs), inputs, outputs)
    return parameters


def vgg_batch(size: int, batch: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw images, float32 of shape (batch, 3, size, size), and their classes, int64."""
    rng = np.random.default_rng(SEED + 1)
    images = rng.normal(size=(batch, 3, size, size)).astype("float32")
    return images, rng.integers(0, VGG_CLASSES, batch)


class ConvArrays(NamedTuple):
    """The operands of a convolution and of its gradients."""

    image: np.ndarray
    filters: np.ndarray
    topgrad: np.ndarray


def conv_arrays(case: dict[str, Any]) -> ConvArrays:
    """Draw the operands of a convolution.

    Parameters
    ----------
    case : dict
        Integers ``batch``, ``channels``, ``filters``, ``size``, ``kernel``, ``stride``, ``pad`` and
        ``groups``, the same for each spatial axis. ``dtype`` is float32 by default.

    Returns
    -------
    ConvArrays
        Arrays with zero mean. The filters are scaled so that the result is about as large as the
        images.
    """
    rng = np.random.default_rng(SEED + 2)
    kernel, inputs = case["kernel"], case["channels"] // case["groups"]
    out = (case["size"] + 2 * case["pad"] - kernel) // case["stride"] + 1
    dtype = case.get("dtype", "float32")

    def draw(*shape: int, scale: float = 1.0) -> np.ndarray:
        return (scale * rng.standard_normal(shape, dtype="float32")).astype(dtype)

    return ConvArrays(
        draw(case["batch"], case["channels"], case["size"], case["size"]),
        draw(case["filters"], inputs, kernel, kernel, scale=(inputs * kernel**2) ** -0.5),
        draw(case["batch"], case["filters"], out, out),
    )


def rotated_sets(case: dict[str, Any], arrays: ConvArrays) -> int:
    """Return how many copies of the operands take turns, so that none is still in a GPU's cache."""
    result = DIRECTIONS[::-1].index(case["direction"])
    names = ("filters", "image", "topgrad")
    read = sum(getattr(arrays, name).nbytes for i, name in enumerate(names) if i != result)
    return max(1, min(16, _ROTATED_BYTES // read))

"""Networks of the benchmark of models, written once for all libraries.

A network is a function of a library's `Layers` and of its inputs. It needs only NumPy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

__all__ = [
    "ADAM",
    "EPSILON",
    "MODELS",
    "MOMENTUM",
    "RATES",
    "Layers",
    "Model",
    "Parameters",
    "model_batch",
]

SEED = 30
#: Learning rates and coefficients of the optimizers. With a rate of 0.01, VGG diverges, so that
#: losses of libraries that round differently are soon different. With 1e-3, the loss of ResNet-50
#: with 32 images falls more slowly, and PyTorch's in float32 and float64 differ by 0.3 %.
RATES = {"sgd": 2e-4, "adam": 1e-3}
MOMENTUM = 0.9
ADAM = (0.9, 0.999, 1e-8)
EPSILON = 1e-5


class Layers(Protocol):
    """The operations of a library; images have the axes batch, channel, row and column."""

    def parameter(self, *shape: int, scale: float = 0.0, value: float = 0.0) -> Any: ...
    def conv(self, x: Any, w: Any, stride: int = 1, groups: int = 1) -> Any: ...
    def conv_bias(self, x: Any, w: Any, b: Any) -> Any: ...
    def conv_transpose(self, x: Any, w: Any) -> Any: ...
    def batch_norm(self, x: Any, gamma: Any, beta: Any) -> Any: ...
    def layer_norm(self, x: Any, gamma: Any, beta: Any) -> Any: ...
    def relu(self, x: Any) -> Any: ...
    def max_pool(self, x: Any, size: int, stride: int, pad: int) -> Any: ...
    def spatial_mean(self, x: Any) -> Any: ...
    def flatten(self, x: Any) -> Any: ...
    def concatenate(self, x: Any, y: Any) -> Any: ...
    def dense(self, x: Any, w: Any, b: Any) -> Any: ...
    def embed(self, table: Any, tokens: Any) -> Any: ...
    def lstm(self, x: Any, size: int, layers: int) -> Any: ...
    def causal_attention(self, q: Any, k: Any, v: Any, heads: int) -> Any: ...
    def cross_entropy(self, scores: Any, labels: Any) -> Any: ...


class Parameters:
    """Initial values in the order in which a network asks for them, equal in all libraries."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(SEED)
        self._averages_rng = np.random.default_rng(SEED + 2)

    def draw(self, shape: tuple[int, ...], scale: float, value: float) -> np.ndarray:
        """Return float32 numbers around `value` with standard deviation `scale`."""
        drawn = self._rng.standard_normal(shape, dtype="float32")
        return np.float32(value) + np.float32(scale) * drawn

    def draw_averages(self, channels: int) -> tuple[np.ndarray, np.ndarray]:
        """Return running averages of means and variances, for inference."""
        drawn = self._averages_rng.uniform(0, 1, (2, channels)).astype("float32")
        return drawn[0] / np.float32(4), drawn[1] + np.float32(0.5)


class Model(NamedTuple):
    """A network and how it is trained.

    Attributes
    ----------
    loss : callable
        Function of layers, sizes, inputs and labels that returns the mean loss.
    kind : {'images', 'tokens', 'vectors'}
        Kind of the inputs.
    optimizer : {'sgd', 'adam'}
        Optimizer; ``sgd`` has momentum.
    sizes : dict
        Sizes for two CPU cores.
    gpu_sizes : dict
        Sizes for a GPU.
    """

    loss: Callable[[Layers, dict[str, int], Any, Any], Any]
    kind: str
    optimizer: str
    sizes: dict[str, int]
    gpu_sizes: dict[str, int]


def _conv(o: Layers, x: Any, inputs: int, outputs: int, size: int, **options: int) -> Any:
    fan_in = inputs // options.get("groups", 1) * size**2
    w = o.parameter(outputs, fan_in // size**2, size, size, scale=(2 / fan_in) ** 0.5)
    return o.conv(x, w, **options)


def _norm(o: Layers, x: Any, channels: int) -> Any:
    return o.batch_norm(x, o.parameter(channels, value=1.0), o.parameter(channels))


def _dense(o: Layers, x: Any, inputs: int, outputs: int) -> Any:
    return o.dense(x, o.parameter(inputs, outputs, scale=inputs**-0.5), o.parameter(outputs))


def mlp(o: Layers, sizes: dict[str, int], x: Any, y: Any) -> Any:
    """Three dense layers of equal size."""
    width = sizes["width"]
    for _ in range(3):
        x = o.relu(_dense(o, x, width, width))
    return o.cross_entropy(_dense(o, x, width, 10), y)


def resnet(o: Layers, sizes: dict[str, int], x: Any, y: Any) -> Any:
    """ResNet with bottlenecks; 3, 4, 6 and 3 blocks and a width of 64 make it ResNet-50."""
    width = sizes["width"]
    x = o.max_pool(o.relu(_norm(o, _conv(o, x, 3, width, 7, stride=2), width)), 3, 2, 1)
    channels = width
    for stage, blocks in enumerate((3, 4, 6, 3)):
        inner = width << stage
        for block in range(blocks if sizes["deep"] else 1):
            stride = 2 if block == 0 and stage > 0 else 1
            shortcut = x
            if block == 0:
                shortcut = _norm(o, _conv(o, x, channels, 4 * inner, 1, stride=stride), 4 * inner)
            z = o.relu(_norm(o, _conv(o, x, channels, inner, 1), inner))
            z = o.relu(_norm(o, _conv(o, z, inner, inner, 3, stride=stride), inner))
            z = _norm(o, _conv(o, z, inner, 4 * inner, 1), 4 * inner)
            x, channels = o.relu(z + shortcut), 4 * inner
    return o.cross_entropy(_dense(o, o.spatial_mean(x), channels, sizes["classes"]), y)


def vgg(o: Layers, sizes: dict[str, int], x: Any, y: Any) -> Any:
    """VGG without batch normalization; deep with a width of 64 and 4096 hidden, it is VGG-16."""
    width, channels, size = sizes["width"], 3, sizes["size"]
    for stage, layers in enumerate((2, 2, 3, 3, 3) if sizes["deep"] else (1, 1, 1)):
        outputs = width << min(stage, 3)
        for _ in range(layers):
            if sizes["deep"]:
                w = o.parameter(outputs, channels, 3, 3, scale=(2 / (9 * channels)) ** 0.5)
                x = o.conv_bias(x, w, o.parameter(outputs))
            else:
                x = _conv(o, x, channels, outputs, 3)
            x, channels = o.relu(x), outputs
        x, size = o.max_pool(x, 2, 2, 0), size // 2
    x = o.relu(_dense(o, o.flatten(x), channels * size**2, sizes["hidden"]))
    if sizes["deep"]:
        x = o.relu(_dense(o, x, sizes["hidden"], sizes["hidden"]))
    return o.cross_entropy(_dense(o, x, sizes["hidden"], sizes["classes"]), y)


def mobilenet(o: Layers, sizes: dict[str, int], x: Any, y: Any) -> Any:
    """Inverted residuals with depthwise convolutions, as in MobileNetV2."""
    channels = sizes["width"]
    x = o.relu(_norm(o, _conv(o, x, 3, channels, 3, stride=2), channels))
    for stage in range(3):
        outputs = sizes["width"] << stage
        for block in range(2):
            stride, wide = (2 if block == 0 else 1), 6 * channels
            z = o.relu(_norm(o, _conv(o, x, channels, wide, 1), wide))
            z = _conv(o, z, wide, wide, 3, stride=stride, groups=wide)
            z = _norm(o, _conv(o, o.relu(_norm(o, z, wide)), wide, outputs, 1), outputs)
            x = z + x if block else z
            channels = outputs
    return o.cross_entropy(_dense(o, o.spatial_mean(x), channels, sizes["classes"]), y)


def unet(o: Layers, sizes: dict[str, int], x: Any, y: Any) -> Any:
    """Two levels down and up again with skip connections; a class for each pixel's mean."""
    width = sizes["width"]

    def block(z: Any, inputs: int, outputs: int) -> Any:
        for channels in (inputs, outputs):
            z = o.relu(_norm(o, _conv(o, z, channels, outputs, 3), outputs))
        return z

    first = block(x, 3, width)
    second = block(o.max_pool(first, 2, 2, 0), width, 2 * width)
    z = block(o.max_pool(second, 2, 2, 0), 2 * width, 4 * width)
    for skip, channels in ((second, 2 * width), (first, width)):
        w = o.parameter(2 * channels, channels, 2, 2, scale=(2 * channels) ** -0.5)
        z = block(o.concatenate(skip, o.conv_transpose(z, w)), 2 * channels, channels)
    return o.cross_entropy(_dense(o, o.spatial_mean(z), width, sizes["classes"]), y)


def lstm(o: Layers, sizes: dict[str, int], x: Any, y: Any) -> Any:
    """Language model: embedding, LSTM and a dense layer."""
    width, vocabulary = sizes["width"], sizes["classes"]
    x = o.embed(o.parameter(vocabulary, width, scale=0.1), x)
    return o.cross_entropy(_dense(o, o.lstm(x, width, 2), width, vocabulary), y)


def transformer(o: Layers, sizes: dict[str, int], x: Any, y: Any) -> Any:
    """Language model: pre-norm layers of causal attention and two dense layers."""
    width, vocabulary, heads = sizes["width"], sizes["classes"], sizes["heads"]

    def norm(z: Any) -> Any:
        return o.layer_norm(z, o.parameter(width, value=1.0), o.parameter(width))

    x = o.embed(o.parameter(vocabulary, width, scale=0.02), x)
    x = x + o.parameter(sizes["steps"], width, scale=0.02)
    for _ in range(sizes["layers"]):
        z = norm(x)
        q, k, v = (_dense(o, z, width, width) for _ in range(3))
        x = x + _dense(o, o.causal_attention(q, k, v, heads), width, width)
        z = o.relu(_dense(o, norm(x), width, 4 * width))
        x = x + _dense(o, z, 4 * width, width)
    return o.cross_entropy(_dense(o, norm(x), width, vocabulary), y)


#: Networks by their names on the command line.
MODELS: dict[str, Model] = {
    "mlp": Model(
        mlp,
        "vectors",
        "adam",
        {"batch": 128, "width": 512, "classes": 10},
        {"batch": 1024, "width": 4096, "classes": 10},
    ),
    "resnet": Model(
        resnet,
        "images",
        "sgd",
        {"batch": 16, "size": 64, "width": 16, "deep": 0, "classes": 10},
        {"batch": 128, "size": 224, "width": 64, "deep": 1, "classes": 1000},
    ),
    "vgg": Model(
        vgg,
        "images",
        "sgd",
        {"batch": 32, "size": 32, "width": 32, "deep": 0, "hidden": 128, "classes": 10},
        {"batch": 32, "size": 224, "width": 64, "deep": 1, "hidden": 4096, "classes": 1000},
    ),
    "mobilenet": Model(
        mobilenet,
        "images",
        "sgd",
        {"batch": 16, "size": 64, "width": 16, "classes": 10},
        {"batch": 128, "size": 224, "width": 32, "classes": 1000},
    ),
    "unet": Model(
        unet,
        "images",
        "adam",
        {"batch": 8, "size": 64, "width": 16, "classes": 10},
        {"batch": 16, "size": 256, "width": 64, "classes": 10},
    ),
    "lstm": Model(
        lstm,
        "tokens",
        "adam",
        {"batch": 32, "steps": 32, "width": 128, "classes": 256},
        {"batch": 64, "steps": 64, "width": 1024, "classes": 10000},
    ),
    "transformer": Model(
        transformer,
        "tokens",
        "adam",
        {"batch": 16, "steps": 64, "width": 128, "heads": 4, "layers": 2, "classes": 256},
        {"batch": 32, "steps": 512, "width": 512, "heads": 8, "layers": 6, "classes": 8192},
    ),
}


def model_batch(model: Model, sizes: dict[str, int]) -> tuple[np.ndarray, np.ndarray]:
    """Draw inputs and labels.

    Returns
    -------
    inputs : numpy.ndarray
        Images (batch, 3, size, size) or vectors (batch, width), float32, or tokens
        (batch, steps), int64.
    labels : numpy.ndarray
        Classes, int64: one of each image or vector, or one of each token.
    """
    rng = np.random.default_rng(SEED + 1)
    batch = sizes["batch"]
    if model.kind == "tokens":
        inputs, labels = rng.integers(0, sizes["classes"], (2, batch, sizes["steps"]))
        return inputs, labels
    shape = (3, sizes["size"], sizes["size"]) if model.kind == "images" else (sizes["width"],)
    images = rng.standard_normal((batch, *shape), dtype="float32")
    return images, rng.integers(0, sizes["classes"], batch)

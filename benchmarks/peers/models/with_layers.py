"""Networks written with `dnnops.layers`; ``with_functions.py`` has the same ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dnnops import layers

__all__ = ["NETWORKS", "loss"]

Sizes = dict[str, int]


def _conv(inputs: int, outputs: int, size: int, stride: int = 1) -> layers.Layer:
    pad = size // 2
    return layers.SpatialConvolution(
        inputs, outputs, size, size, stride, stride, pad, pad, bias=False
    )


def _bottleneck(inputs: int, inner: int, stride: int) -> layers.Layer:
    outputs = 4 * inner
    shortcut = None
    if stride > 1 or inputs != outputs:
        shortcut = layers.Sequential(
            _conv(inputs, outputs, 1, stride), layers.SpatialBatchNormalization(outputs)
        )
    block = layers.Residual(
        _conv(inputs, inner, 1),
        layers.SpatialBatchNormalization(inner),
        layers.ReLU(),
        _conv(inner, inner, 3, stride),
        layers.SpatialBatchNormalization(inner),
        layers.ReLU(),
        _conv(inner, outputs, 1),
        layers.SpatialBatchNormalization(outputs),
        shortcut=shortcut,
    )
    return layers.Sequential(block, layers.ReLU())


def resnet(sizes: Sizes) -> layers.Layer:
    """ResNet with bottlenecks, as in ``model_zoo.py``."""
    width = sizes["width"]
    net = layers.Sequential(
        _conv(3, width, 7, 2),
        layers.SpatialBatchNormalization(width),
        layers.ReLU(),
        layers.SpatialMaxPooling(3, 3, 2, 2, 1, 1),
    )
    channels = width
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for block in range(blocks if sizes["deep"] else 1):
            stride = 2 if block == 0 and stage > 0 else 1
            net.add(_bottleneck(channels, width << stage, stride))
            channels = 4 * width << stage
    net.add(lambda x: x.mean(axis=(2, 3)))
    return net.add(layers.Linear(channels, sizes["classes"]))


def lstm(sizes: Sizes) -> layers.Layer:
    """Language model: embedding, LSTM and a dense layer."""
    width, vocabulary = sizes["width"], sizes["classes"]
    return layers.Sequential(
        layers.Embedding(vocabulary, width),
        layers.LSTM(width, width, 2, batch_first=True),
        layers.Linear(width, vocabulary),
    )


class Transformer(layers.Layer):
    """Encoder of a transformer with learned positions, and a class for each token."""

    positions: Any

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width, vocabulary = sizes["width"], sizes["classes"]
        self.parameter("positions", (sizes["steps"], width), layers.normal())
        self.tokens = layers.Embedding(vocabulary, width)
        self.encoder = layers.Sequential(
            *(
                layers.TransformerEncoderLayer(
                    width, sizes["heads"], 4 * width, dropout=0.0, activation="gelu"
                )
                for _ in range(sizes["layers"])
            )
        )
        self.scores = layers.Linear(width, vocabulary)

    def forward(self, x: Any) -> Any:
        return self.scores(self.encoder(self.tokens(x) + self.positions))


#: Networks by their names in ``model_zoo.py``, whose sizes and data they have.
NETWORKS: dict[str, Callable[[Sizes], layers.Layer]] = {
    "resnet": resnet,
    "lstm": lstm,
    "transformer": Transformer,
}


def loss(net: layers.Layer, x: Any, labels: Any) -> Any:
    """Return the mean cross-entropy of the labels, one of each image or token."""
    scores = net(x)
    if scores.type.ndim > 2:
        scores, labels = scores.reshape((-1, scores.shape[-1])), labels.flatten()
    return layers.CrossEntropyCriterion()(scores, labels)

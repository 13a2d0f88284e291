"""Networks written with `dnnops.nnet`; ``with_layers.py`` has the same ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt

from dnnops import nnet

__all__ = ["NETWORKS", "Variables", "loss"]

Sizes = dict[str, int]


class Variables:
    """The shared variables of a network.

    Parameters
    ----------
    values : iterable of numpy.ndarray
        Initial values in the order in which the network asks for parameters: that of
        ``parameters()`` of the same network written with layers.

    Attributes
    ----------
    parameters : list of SharedVariable
        What is trained.
    updates : dict
        New running averages.
    """

    def __init__(self, values: Iterable[np.ndarray]) -> None:
        self._values = iter(values)
        self.parameters: list[Any] = []
        self.updates: dict[Any, Any] = {}

    def parameter(self) -> Any:
        """Return the next parameter."""
        value = next(self._values)
        self.parameters.append(pytensor.shared(value, shape=value.shape))
        return self.parameters[-1]


def _conv(own: Variables, x: Any, size: int, stride: int = 1) -> Any:
    pad = size // 2
    return nnet.conv2d(
        x, own.parameter(), border_mode=(pad, pad), subsample=(stride, stride), filter_flip=False
    )


def _norm(own: Variables, x: Any) -> Any:
    gamma, beta = own.parameter(), own.parameter()
    shape = gamma.type.shape
    mean, variance = (
        pytensor.shared(np.full(shape, value, "float32"), shape=shape) for value in (0, 1)
    )
    out, _, _, new_mean, new_variance = nnet.batch_normalization_train(
        x,
        gamma,
        beta,
        axes="spatial",
        epsilon=1e-5,
        running_average_factor=0.1,
        running_mean=mean,
        running_var=variance,
    )
    own.updates |= {mean: new_mean, variance: new_variance}
    return out


def _dense(own: Variables, x: Any) -> Any:
    weight, bias = own.parameter(), own.parameter()
    return x @ weight.T + bias


def _bottleneck(own: Variables, x: Any, stride: int, has_shortcut: bool) -> Any:
    z = nnet.relu(_norm(own, _conv(own, x, 1)))
    z = nnet.relu(_norm(own, _conv(own, z, 3, stride)))
    z = _norm(own, _conv(own, z, 1))
    shortcut = _norm(own, _conv(own, x, 1, stride)) if has_shortcut else x
    return nnet.relu(z + shortcut)


def resnet(own: Variables, sizes: Sizes, x: Any) -> Any:
    """ResNet with bottlenecks, as in ``model_zoo.py``."""
    x = nnet.relu(_norm(own, _conv(own, x, 7, 2)))
    x = nnet.pool_2d(x, (3, 3), stride=(2, 2), pad=(1, 1), ignore_border=True)
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for block in range(blocks if sizes["deep"] else 1):
            x = _bottleneck(own, x, 2 if block == 0 and stage > 0 else 1, block == 0)
    return _dense(own, x.mean(axis=(2, 3)))


def lstm(own: Variables, sizes: Sizes, x: Any) -> Any:
    """Language model: embedding, LSTM and a dense layer."""
    width, depth = sizes["width"], 2
    x = nnet.embedding(x, own.parameter())
    block = nnet.RNNBlock("float32", width, depth, "lstm", batch_first=True)
    start = pt.zeros((depth, x.shape[0], width), dtype="float32")
    return _dense(own, block.apply(own.parameter(), x, start, start)[0])


def _attention(own: Variables, x: Any, heads: int) -> Any:
    batch, steps = x.shape[:2]
    width = x.type.shape[-1]
    # One product for queries, keys and values.
    joined = _dense(own, x)
    q, k, v = (
        joined[:, :, i * width : (i + 1) * width]
        .reshape((batch, steps, heads, width // heads))
        .transpose(0, 2, 1, 3)
        for i in range(3)
    )
    out = nnet.scaled_dot_product_attention(q, k, v)
    return _dense(own, out.transpose(0, 2, 1, 3).reshape((batch, steps, width)))


def _encoder(own: Variables, x: Any, heads: int) -> Any:
    attended = x + _attention(own, x, heads)
    hidden, out = ((own.parameter(), own.parameter()) for _ in range(2))
    first, second = ((own.parameter(), own.parameter()) for _ in range(2))
    x = nnet.layer_norm(attended, *first)
    z = nnet.gelu(x @ hidden[0].T + hidden[1])
    return nnet.layer_norm(x + (z @ out[0].T + out[1]), *second)


def transformer(own: Variables, sizes: Sizes, x: Any) -> Any:
    """Encoder of a transformer with learned positions, and a class for each token."""
    positions = own.parameter()
    x = nnet.embedding(x, own.parameter()) + positions
    for _ in range(sizes["layers"]):
        x = _encoder(own, x, sizes["heads"])
    return _dense(own, x)


#: Networks by their names in ``model_zoo.py``, whose sizes and data they have.
NETWORKS: dict[str, Callable[[Variables, Sizes, Any], Any]] = {
    "resnet": resnet,
    "lstm": lstm,
    "transformer": transformer,
}


def loss(scores: Any, labels: Any) -> Any:
    """Return the mean cross-entropy of the labels, one of each image or token."""
    if scores.type.ndim > 2:
        scores, labels = scores.reshape((-1, scores.shape[-1])), labels.flatten()
    return nnet.cross_entropy(scores, labels).mean()

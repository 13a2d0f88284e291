"""The small convolutional network for handwritten digits that the demo trains.

It is written like user code. The graph does not name a library; the compilation mode selects it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dnnops.errors import DnnUnavailableError

if TYPE_CHECKING:
    from pytensor.compile.executor import Function
    from pytensor.tensor.variable import TensorVariable

__all__ = [
    "Digits",
    "Network",
    "Trainer",
    "build_network",
    "load_digits",
    "missing_dependency",
    "mode_of",
    "shared_on",
    "train",
]

N_CLASSES = 10
BATCH_SIZE = 32
LEARNING_RATE = 0.05
MOMENTUM = 0.9


class Digits(NamedTuple):
    """Images of shape (n, 1, 8, 8), float32 in [0, 1], and their classes, int64 of shape (n,)."""

    train_images: np.ndarray
    train_classes: np.ndarray
    test_images: np.ndarray
    test_classes: np.ndarray


def load_digits(seed: int = 0) -> Digits:
    """Read scikit-learn's digits and set a quarter aside for testing.

    Parameters
    ----------
    seed : int
        Seed of the split.

    Returns
    -------
    Digits
        Training and test data.

    Raises
    ------
    DnnUnavailableError
        If scikit-learn is not installed.
    """
    try:
        from sklearn import datasets
    except ImportError as error:
        raise missing_dependency(error) from None
    digits = datasets.load_digits()
    images = (digits.images / 16.0).astype("float32")[:, np.newaxis]
    classes = digits.target.astype("int64")
    order = np.random.default_rng(seed).permutation(len(images))
    test, rest = np.split(order, [len(order) // 4])
    return Digits(images[rest], classes[rest], images[test], classes[test])


def missing_dependency(error: ImportError) -> DnnUnavailableError:
    """Return the error for a missing package that only the demo needs."""
    return DnnUnavailableError(
        f"the demo needs {error.name}, which is not installed: pip install 'dnnops[demo]'"
    )


@dataclass
class Network:
    """The symbolic network.

    Attributes
    ----------
    images : TensorVariable
        Input, float32 of shape (batch, 1, 8, 8).
    probabilities : TensorVariable
        Output, of shape (batch, 10).
    logits : TensorVariable
        Input of the softmax.
    parameters : list
        Shared variables of weights and biases.
    """

    images: TensorVariable
    probabilities: TensorVariable
    logits: TensorVariable
    parameters: list[Any]


def shared_on(device: str, value: np.ndarray, name: str) -> Any:
    """Create a shared variable with a static shape on a device, ignoring the flag ``device``."""
    if device == "cpu":
        import pytensor

        return pytensor.shared(value, name=name, shape=value.shape)
    from dnnops.gpuarray import shared

    return shared(value, name=name, shape=value.shape, device=device)


def build_network(seed: int = 0, device: str = "cpu") -> Network:
    """Build the graph: convolution, pooling, convolution, pooling, dense, softmax.

    Parameters
    ----------
    seed : int
        Seed of the initial weights.
    device : str
        Device of the shared variables.

    Returns
    -------
    Network
        Graph with its shared variables.
    """
    import pytensor.tensor as pt
    from pytensor.tensor.special import softmax

    from dnnops.nnet import conv2d, pool_2d, relu

    rng = np.random.default_rng(seed)
    parameters = []

    def parameter(shape: tuple[int, ...], fan_in: int, name: str) -> Any:
        scale = np.sqrt(2.0 / fan_in) if fan_in else 0.0
        value = (scale * rng.standard_normal(shape)).astype("float32")
        parameters.append(shared_on(device, value, name))
        return parameters[-1]

    def block(x: TensorVariable, channels: tuple[int, int], name: str) -> TensorVariable:
        n_in, n_out = channels
        weights = parameter((n_out, n_in, 3, 3), n_in * 9, f"{name}_weights")
        bias = parameter((n_out,), 0, f"{name}_bias")
        y = conv2d(x, weights, border_mode="half") + bias[None, :, None, None]
        return pool_2d(relu(y), ws=(2, 2), ignore_border=True)

    images = pt.tensor("images", dtype="float32", shape=(None, 1, 8, 8))
    x = block(images, (1, 16), "conv1")
    x = block(x, (16, 32), "conv2")
    weights = parameter((32 * 2 * 2, N_CLASSES), 32 * 2 * 2, "dense_weights")
    bias = parameter((N_CLASSES,), 0, "dense_bias")
    logits = x.flatten(2) @ weights + bias
    return Network(images, softmax(logits, axis=1), logits, parameters)


def mode_of(device: str) -> str:
    """Return the mode that runs a graph on a device: ``"ONEDNN"`` on the CPU, else ``"CUDNN"``."""
    return "ONEDNN" if device == "cpu" else "CUDNN"


class Trainer:
    """The network of `build_network` with compiled functions that train and apply it.

    Parameters
    ----------
    device : str
        Device: ``"cpu"``, ``"cuda"``, ``"cuda1"``, ...
    seed : int
        Seed of the initial weights and the order of the images.

    Attributes
    ----------
    step : Function
        Function that takes images, classes and a learning rate, updates the weights, and returns
        the mean cross-entropy and the fraction of correctly classified images before the update.
    """

    step: Function

    def __init__(self, device: str = "cpu", seed: int = 0) -> None:
        import pytensor
        import pytensor.tensor as pt
        from pytensor import config
        from pytensor.tensor.special import log_softmax

        self.rng = np.random.default_rng(seed)
        with config.change_flags(device=device, floatX="float32"):
            network = build_network(seed, device)
            classes, rate = pt.lvector("classes"), pt.fscalar("rate")
            # Unlike indexing, a product with one-hot rows stays on the GPU.
            targets = pt.eq(classes[:, None], np.arange(N_CLASSES)).astype("float32")
            loss = -(targets * log_softmax(network.logits, axis=1)).sum(axis=1).mean()
            accuracy = pt.eq(pt.argmax(network.logits, axis=1), classes).mean(dtype="float32")
            gradients: Any = pytensor.grad(loss, network.parameters)
            updates = []
            for weight, gradient in zip(network.parameters, gradients, strict=True):
                zeros = np.zeros(weight.type.shape, dtype="float32")
                velocity = shared_on(device, zeros, f"{weight.name}_velocity")
                change = MOMENTUM * velocity - rate * gradient
                updates += [(velocity, change), (weight, weight + change)]
            mode = mode_of(device)
            self.step = pytensor.function(
                [network.images, classes, rate], [loss, accuracy], updates=updates, mode=mode
            )
        self._network, self._mode = network, mode

    @cached_property
    def classify(self) -> Function:
        """Function from images to the probabilities of the classes, compiled on first use."""
        import pytensor

        outputs = self._network.probabilities
        return pytensor.function([self._network.images], outputs, mode=self._mode)

    def batches(self, images: np.ndarray, classes: np.ndarray) -> Iterator[tuple[Any, Any]]:
        """Yield the minibatches of one epoch in a new random order; leftover images are dropped."""
        order = self.rng.permutation(len(images))
        for start in range(0, len(order) - BATCH_SIZE + 1, BATCH_SIZE):
            chosen = order[start : start + BATCH_SIZE]
            yield images[chosen], classes[chosen]

    def train(
        self, images: np.ndarray, classes: np.ndarray, rate: float = LEARNING_RATE
    ) -> tuple[float, float]:
        """Run one training step; see the attribute `step`.

        Returns
        -------
        tuple of float
            Loss before the update and fraction of correctly classified images.
        """
        loss, accuracy = self.step(images, classes, np.float32(rate))
        return float(loss), float(accuracy)

    def probabilities(self, images: np.ndarray) -> np.ndarray:
        """Return the probabilities of the classes for each image.

        Returns
        -------
        numpy.ndarray
            Probabilities of the classes, of shape (n, 10).
        """
        result = self.classify(images)
        # Functions compiled for a GPU may leave their results there.
        return result.get() if hasattr(result, "get") else result

    def library_ops(self) -> dict[str, int]:
        """Count the library calls in one training step.

        Returns
        -------
        dict
            Number of occurrences of each Op that calls cuDNN or oneDNN, keyed by its name.
        """
        counts: dict[str, int] = {}
        for node in self.step.maker.fgraph.toposort():
            name = type(node.op).__name__
            if name.startswith(("OneDnn", "GpuDnn")):
                counts[name] = counts.get(name, 0) + 1
        return counts


def train(device: str = "cpu", seed: int = 0, steps: int = 20) -> list[float]:
    """Train for some steps and return the losses, to compare devices.

    Parameters
    ----------
    device : str
        Device to train on.
    seed : int
        Seed of the initial weights, the split of the images and their order.
    steps : int
        Number of minibatches.

    Returns
    -------
    list of float
        Loss of each minibatch before its update.
    """
    digits = load_digits(seed)
    trainer = Trainer(device, seed)
    losses: list[float] = []
    while len(losses) < steps:
        for images, classes in trainer.batches(digits.train_images, digits.train_classes):
            losses.append(trainer.train(images, classes)[0])
            if len(losses) == steps:
                break
    return losses

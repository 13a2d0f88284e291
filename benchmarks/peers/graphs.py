"""PyTensor graphs of the benchmarks, for CPU and GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.executor import Function
from pytensor.tensor.special import LogSoftmax, Softmax, log_softmax

from benchmarks import networks
from benchmarks.harness import BenchmarkError
from dnnops import nnet
from dnnops.cli.digits import shared_on
from dnnops.nnet import conv2d, pool_2d

__all__ = [
    "compile_nodes",
    "compile_small_step",
    "compile_vgg_step",
    "library_ops",
    "small_batch",
]

_ABSTRACT = (
    LogSoftmax,
    Softmax,
    *(x for x in map(vars(nnet).get, nnet.__all__) if isinstance(x, type)),
)


def compile_nodes(*arguments: Any, **options: Any) -> Function:
    """Call ``pytensor.function`` for a benchmark of single Ops, which run one by one.

    As a CUDA graph, they would read copies of the arguments.
    """
    with pytensor.config.change_flags(dnn__cuda_graph="False"):
        return pytensor.function(*arguments, **options)


def library_ops(function: Function, prefix: str) -> dict[str, int]:
    """Count the Ops of a library in a compiled function.

    Parameters
    ----------
    function : Function
        Compiled function.
    prefix : str
        Prefix of the names of the library's Ops: ``OneDnn`` or ``GpuDnn``.

    Returns
    -------
    dict
        Number of nodes of each Op.

    Raises
    ------
    BenchmarkError
        If there are none, or if a convolution, pooling or softmax runs elsewhere.
    """
    counts: dict[str, int] = {}
    for node in function.maker.fgraph.toposort():
        name = type(node.op).__name__
        if name.startswith(prefix):
            counts[name] = counts.get(name, 0) + 1
        elif type(node.op) in _ABSTRACT or name.startswith(("OneDnn", "GpuDnn")):
            raise BenchmarkError(f"the compiled function has {node.op}, which is not {prefix}*")
    if not counts:
        raise BenchmarkError(f"the compiled function calls no {prefix}*")
    return counts


def _cross_entropy(logits: Any, classes: Any) -> Any:
    return -log_softmax(logits, axis=1)[pt.arange(classes.shape[0]), classes].mean()


def _momentum_updates(loss: Any, parameters: list[Any], shared: Callable[..., Any]) -> list[Any]:
    updates = []
    gradients: Any = pytensor.grad(loss, parameters)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        velocity = shared(np.zeros(parameter.type.shape, "float32"))
        change = np.float32(networks.VGG_MOMENTUM) * velocity
        change -= np.float32(networks.VGG_RATE) * gradient
        updates += [(velocity, change), (parameter, parameter + change)]
    return updates


def compile_vgg_step(
    size: int, layers: tuple[int | str, ...] = networks.VGG_LAYERS, mode: str | None = "DNN"
) -> Function:
    """Compile a training step of the VGG-like network of `networks.vgg_parameters`.

    Parameters
    ----------
    size : int
        Height and width of the images.
    layers : tuple of int or str
        Layers in the form of `networks.VGG_LAYERS`.
    mode : str, optional
        PyTensor mode; None for the default.

    Returns
    -------
    Function
        Takes images and classes, updates the weights, and returns the loss before the update.
    """

    def shared(value: np.ndarray) -> Any:
        return pytensor.shared(value, shape=value.shape)

    images = pt.tensor("images", dtype="float32", shape=(None, 3, size, size))
    classes = pt.lvector("classes")
    parameters = [shared(value) for value in networks.vgg_parameters(size, layers)]
    remaining = iter(parameters)
    x: Any = images
    for layer in layers:
        if layer == "M":
            x = pool_2d(x, (2, 2), ignore_border=True)
            continue
        # Filters are not flipped, as in PyTorch.
        x = conv2d(x, next(remaining), border_mode=1, filter_flip=False)
        x = pt.maximum(x + next(remaining)[None, :, None, None], 0)
    x = pt.maximum(x.flatten(2) @ next(remaining) + next(remaining), 0)
    logits = x @ next(remaining) + next(remaining)
    loss = _cross_entropy(logits, classes)
    updates = _momentum_updates(loss, parameters, shared)
    return pytensor.function([images, classes], loss, updates=updates, mode=mode)


def small_batch() -> tuple[np.ndarray, np.ndarray]:
    """Draw the arguments of `compile_small_step`: images and classes."""
    rng = np.random.default_rng(networks.SEED)
    return rng.normal(size=(4, 3, 12, 12)).astype("float32"), rng.integers(0, 10, 4)


def compile_small_step(device: str, mode: str | None) -> Function:
    """Compile a training step of one convolution, pooling, a dense layer and softmax.

    Parameters
    ----------
    device : str
        Device of the weights: ``"cpu"`` or ``"cuda"``.
    mode : str, optional
        PyTensor mode; None for the default.

    Returns
    -------
    Function
        Takes images and classes, updates the weights, and returns the loss before the update.
    """
    rng = np.random.default_rng(networks.SEED)

    def shared(value: np.ndarray) -> Any:
        return shared_on(device, value, "")

    images = pt.tensor("images", dtype="float32", shape=(None, 3, 12, 12))
    classes = pt.lvector("classes")
    filters = shared(rng.normal(scale=0.2, size=(8, 3, 3, 3)).astype("float32"))
    weights = shared(rng.normal(scale=0.1, size=(8 * 6 * 6, 10)).astype("float32"))
    x = pt.maximum(conv2d(images, filters, border_mode="half"), 0)
    x = pool_2d(x, (2, 2), ignore_border=True)
    logits = x.flatten(2) @ weights
    # A product with one-hot rows stays on the GPU; an index would not.
    targets = pt.eq(classes[:, None], np.arange(10)).astype("float32")
    loss = -(targets * log_softmax(logits, axis=1)).sum(axis=1).mean()
    updates = _momentum_updates(loss, [filters, weights], shared)
    return pytensor.function([images, classes], loss, updates=updates, mode=mode)

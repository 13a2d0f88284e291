"""The networks of the benchmark of models, as `tests.networks.compare` takes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor

from benchmarks.model_zoo import MODELS, model_batch
from benchmarks.peers.models.dnnops_cpu import DnnopsLayers, batch_types, optimizer_updates
from tests.networks.network import Network
from tests.networks.train import Make, State

__all__ = ["model"]


def model(name: str, sizes: dict[str, int]) -> Make:
    """Return a function that builds a network of the benchmark and its training step.

    Parameters
    ----------
    name : str
        Key of `benchmarks.model_zoo.MODELS`.
    sizes : dict
        Sizes of the network.
    """
    zoo = MODELS[name]
    batch = model_batch(zoo, sizes)

    def make(
        dtype: str,
        static: bool,
        tensor: Callable[..., Any],
        shared: Callable[..., Any],
        scale: float,
    ) -> tuple[Network, list[State]]:
        values = [x.astype(dtype) if x.dtype.kind == "f" else x for x in batch]
        types = batch_types(name, sizes)
        inputs = [
            tensor(value.dtype.name, value.shape if static else shape)
            for value, (_, shape) in zip(values, types, strict=True)
        ]
        initial: dict[Any, np.ndarray] = {}

        def parameter(value: np.ndarray, shape: tuple[int | None, ...]) -> Any:
            variable = shared(value.astype(dtype), shape)
            initial[variable] = value.astype(dtype)
            return variable

        layers = DnnopsLayers(parameter)
        loss = zoo.loss(layers, sizes, *inputs)
        number = np.dtype(dtype).type(scale)
        scaled = pytensor.grad(loss * number, layers.parameters)
        gradients = [gradient / number for gradient in scaled]
        step = parameter(np.zeros(()), ())
        updates = layers.updates + optimizer_updates(
            zoo.optimizer, layers.parameters, gradients, step, parameter
        )
        network = Network(
            inputs,
            values,
            layers.parameters,
            [initial[p] for p in layers.parameters],
            [],
            [loss, *(new for _, new in layers.updates)],
            scaled,
        )
        return network, [State(old, initial[old], new) for old, new in updates]

    return make

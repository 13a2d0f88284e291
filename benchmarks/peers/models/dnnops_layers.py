"""Training steps of networks that are written with layers or with functions."""

from __future__ import annotations

import os
import time
from typing import Any

import pytensor
import pytensor.tensor as pt

from benchmarks import model_zoo
from benchmarks.harness import Task
from benchmarks.peers.models import dnnops_gpu, with_functions, with_layers
from benchmarks.peers.models.dnnops_cpu import batch_types
from benchmarks.peers.models.dnnops_gpu import versions
from dnnops import layers, optim
from dnnops.gpuarray import GpuArrayType, put_shared_on_gpu

__all__ = ["graph", "make_task", "versions"]


def _network(case: dict[str, Any]) -> layers.Layer:
    """Return the network of a case, written with layers; all have the same initial values."""
    layers.seed(model_zoo.SEED)
    return with_layers.NETWORKS[case["model"]](case["sizes"])


def _updates(case: dict[str, Any], loss: Any, parameters: Any) -> dict[Any, Any]:
    """Return the updates of the network's optimizer."""
    optimizer = model_zoo.MODELS[case["model"]].optimizer
    rate = model_zoo.RATES[optimizer]
    if optimizer == "sgd":
        return optim.sgd(loss, parameters, rate, momentum=model_zoo.MOMENTUM)
    return optim.adam(loss, parameters, rate)


def _with_layers(case: dict[str, Any], x: Any, labels: Any) -> tuple[Any, dict[Any, Any]]:
    """Return loss and updates of a network of layers."""
    net = _network(case)
    loss = with_layers.loss(net, x, labels)
    return loss, _updates(case, loss, net) | net.updates()


def _with_functions(
    case: dict[str, Any], values: list[Any], x: Any, labels: Any
) -> tuple[Any, dict[Any, Any]]:
    """Return loss and updates of a network of functions."""
    own = with_functions.Variables(values)
    scores = with_functions.NETWORKS[case["model"]](own, case["sizes"], x)
    loss = with_functions.loss(scores, labels)
    return loss, _updates(case, loss, own.parameters) | own.updates


def graph(case: dict[str, Any]) -> tuple[list[Any], Any, list[tuple[Any, Any]]]:
    """Build a training step.

    Parameters
    ----------
    case : dict
        Case of ``benchmarks/layers.py``, with the ``way`` in which the network is written:
        ``layers`` or ``functions``.

    Returns
    -------
    inputs : list of Variable
        Inputs and labels; on the GPU unless the case's device is ``cpu``.
    loss : Variable
        Mean loss, on the same device.
    updates : list
        New values of parameters, optimizer's state and running averages.
    """
    on_gpu = case["device"] == "cuda"
    types = batch_types(case["model"], case["sizes"])
    with pytensor.config.change_flags(floatX="float32"):
        # On the host, since the functions have their own copies.
        values = [p.get_value() for p in _network(case).parameters()]
        x, labels = (
            GpuArrayType(dtype, shape)(name)
            if on_gpu
            else pt.tensor(name, dtype=dtype, shape=shape)
            for name, (dtype, shape) in zip("xy", types, strict=True)
        )
        put_shared_on_gpu(on_gpu)
        try:
            if case["way"] == "layers":
                loss, updates = _with_layers(case, x, labels)
            else:
                loss, updates = _with_functions(case, values, x, labels)
        finally:
            put_shared_on_gpu(False)
    return [x, labels], loss.transfer("cuda") if on_gpu else loss, list(updates.items())


class Step(dnnops_gpu.Step):
    """A training step in one compiled function."""

    def graph(self) -> tuple[list[Any], Any, list[tuple[Any, Any]]]:
        return graph(self.case)

    def record(self) -> Any:
        # Other load on the machine changes the CPU time less, but it counts threads that wait, too.
        if not self.on_gpu and os.environ.get("OMP_NUM_THREADS") == "1":
            return time.process_time()
        return super().record()


def make_task(case: dict[str, Any]) -> Task:
    """Prepare a case of ``benchmarks/layers.py``."""
    dnnops_gpu.use(case["device"])
    return Step(case)

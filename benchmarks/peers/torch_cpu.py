"""PyTorch on the CPU, run eagerly."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import grad

from benchmarks import networks
from benchmarks.harness import Task

CHECKED_STEPS = 3

torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


def versions() -> dict[str, Any]:
    """Return the versions of what is measured."""
    return {"torch": torch.__version__}


def memory_format(case: dict[str, Any]) -> torch.memory_format:
    """Return the memory format of a case."""
    last = case.get("memory_format") == "channels_last"
    return torch.channels_last if last else torch.contiguous_format


def vgg(size: int, layers: tuple[int | str, ...]) -> nn.Sequential:
    """Build the VGG-like network with the weights of `networks.vgg_parameters`."""
    modules: list[nn.Module] = []
    channels = 3
    for layer in layers:
        if layer == "M":
            modules.append(nn.MaxPool2d(2))
            continue
        modules += [nn.Conv2d(channels, int(layer), 3, padding=1), nn.ReLU()]
        channels = int(layer)
    features = channels * (size // 2 ** layers.count("M")) ** 2
    hidden, classes = networks.VGG_HIDDEN, networks.VGG_CLASSES
    modules += [nn.Flatten(), nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, classes)]
    net = nn.Sequential(*modules)
    values = networks.vgg_parameters(size, layers)
    with torch.no_grad():
        for parameter, value in zip(net.parameters(), values, strict=True):
            # nn.Linear stores the output axis first.
            parameter.copy_(torch.from_numpy(value.T if value.ndim == 2 else value))
    return net


class Training(Task):
    """A training step of the VGG-like network."""

    def __init__(self, case: dict[str, Any]) -> None:
        layout = memory_format(case)
        self.net = vgg(case["size"], case["layers"]).to(memory_format=layout)
        self.optimizer = torch.optim.SGD(
            self.net.parameters(), lr=networks.VGG_RATE, momentum=networks.VGG_MOMENTUM
        )
        images, classes = networks.vgg_batch(case["size"], case["batch"])
        self.images = torch.from_numpy(images).contiguous(memory_format=layout)
        self.classes = torch.from_numpy(classes)

    def step(self) -> float:
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.net(self.images), self.classes)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def call(self) -> None:
        self.step()

    def results(self) -> dict[str, np.ndarray]:
        return {"losses": np.array([self.step() for _ in range(CHECKED_STEPS)])}


def convolution_calls(
    case: dict[str, Any], image: torch.Tensor, filters: torch.Tensor, topgrad: torch.Tensor
) -> list[Callable[[], torch.Tensor]]:
    """Return the ways in which PyTorch computes a convolution or one of its gradients.

    Parameters
    ----------
    case : dict
        Case of `networks.conv_arrays` with ``direction``.
    image, filters, topgrad : torch.Tensor
        The operands.

    Returns
    -------
    list of callable
        Functions that return the result.
    """
    stride, padding, groups = (case["stride"],) * 2, (case["pad"],) * 2, case["groups"]
    params = {"stride": stride, "padding": padding, "groups": groups}
    if case["direction"] == "forward":
        return [lambda: nn.functional.conv2d(image, filters, **params)]
    mask = [case["direction"] == "grad_inputs", case["direction"] == "grad_weights", False]

    def backward() -> torch.Tensor:
        gradients = torch.ops.aten.convolution_backward(
            topgrad, image, filters, None, stride, padding, [1, 1], False, [0, 0], groups, mask
        )
        return gradients[0] if mask[0] else gradients[1]

    if mask[0]:
        return [
            backward,
            lambda: grad.conv2d_input(image.shape, filters, topgrad, **params),
        ]
    return [backward, lambda: grad.conv2d_weight(image, filters.shape, topgrad, **params)]


class Convolution(Task):
    """A convolution, or one of its gradients, computed in the fastest way."""

    def __init__(self, case: dict[str, Any]) -> None:
        layout = memory_format(case)
        operands = [
            torch.from_numpy(array).contiguous(memory_format=layout)
            for array in networks.conv_arrays(case)
        ]
        times = []
        for self.run in convolution_calls(case, *operands):
            self.times(2)
            times.append((min(self.times(3)), self.run))
        self.run = min(times, key=lambda pair: pair[0])[1]

    def call(self) -> None:
        with torch.no_grad():
            self.run()

    def results(self) -> dict[str, np.ndarray]:
        with torch.no_grad():
            return {"y": self.run().contiguous().numpy()}


def make_task(case: dict[str, Any]) -> Task:
    """Prepare a case of ``benchmarks/cpu.py``."""
    kinds: dict[str, Callable[[dict[str, Any]], Task]] = {
        "training": Training,
        "convolution": Convolution,
    }
    return kinds[case["kind"]](case)

"""Training steps of whole networks in PyTorch on the CPU, run eagerly."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from benchmarks import model_zoo
from benchmarks.harness import Task
from benchmarks.peers import torch_cpu
from benchmarks.peers.torch_cpu import memory_format, versions

__all__ = ["TorchLayers", "make_task", "optimizer_of", "versions"]


class TorchLayers(model_zoo.Layers):
    """The layers as functions of PyTorch, with the parameters of the first pass.

    Parameters
    ----------
    layout : torch.memory_format
        Memory format of images and filters.
    device : str
        Device of the parameters.
    """

    def __init__(self, layout: torch.memory_format, device: str = "cpu") -> None:
        self.layout, self.device = layout, device
        self.values = model_zoo.Parameters()
        self.parameters: list[torch.Tensor] = []
        self.averages: list[torch.Tensor] = []
        self.networks: list[torch.nn.LSTM] = []
        #: Parameters in another type, for inference.
        self.casts: list[torch.Tensor] = []
        self.begin()

    def begin(self) -> None:
        """Begin a pass through the network."""
        self._next = {"parameter": 0, "average": 0, "network": 0, "cast": 0}

    def _kept(self, kind: str, kept: list[Any], make: Any) -> Any:
        """Return what the first pass has made at this place."""
        index = self._next[kind]
        self._next[kind] += 1
        if index == len(kept):
            kept.append(make())
        return kept[index]

    def parameter(self, *shape: int, scale: float = 0.0, value: float = 0.0) -> Any:
        def make() -> torch.Tensor:
            drawn = torch.from_numpy(self.values.draw(shape, scale, value)).to(self.device)
            if drawn.ndim == 4:
                drawn = drawn.contiguous(memory_format=self.layout)
            return torch.nn.Parameter(drawn)

        return self._kept("parameter", self.parameters, make)

    def conv(self, x: Any, w: Any, stride: int = 1, groups: int = 1) -> Any:
        return functional.conv2d(x, w, None, stride, w.shape[2] // 2, groups=groups)

    def conv_bias(self, x: Any, w: Any, b: Any) -> Any:
        return functional.conv2d(x, w, b, padding=w.shape[2] // 2)

    def conv_transpose(self, x: Any, w: Any) -> Any:
        return functional.conv_transpose2d(x, w, stride=2)

    def batch_norm(self, x: Any, gamma: Any, beta: Any) -> Any:
        mean = self._kept("average", self.averages, lambda: torch.zeros_like(gamma))
        variance = self._kept("average", self.averages, lambda: torch.ones_like(gamma))
        return functional.batch_norm(
            x, mean, variance, gamma, beta, training=True, eps=model_zoo.EPSILON
        )

    def layer_norm(self, x: Any, gamma: Any, beta: Any) -> Any:
        return functional.layer_norm(x, gamma.shape, gamma, beta, model_zoo.EPSILON)

    def relu(self, x: Any) -> Any:
        return functional.relu(x)

    def max_pool(self, x: Any, size: int, stride: int, pad: int) -> Any:
        return functional.max_pool2d(x, size, stride, pad)

    def spatial_mean(self, x: Any) -> Any:
        return x.mean(dim=(2, 3))

    def flatten(self, x: Any) -> Any:
        return x.flatten(1)

    def concatenate(self, x: Any, y: Any) -> Any:
        return torch.cat([x, y], dim=1)

    def dense(self, x: Any, w: Any, b: Any) -> Any:
        # The order in which nn.Linear stores its weights.
        return functional.linear(x, w.T, b)

    def embed(self, table: Any, tokens: Any) -> Any:
        return functional.embedding(tokens, table)

    def lstm(self, x: Any, size: int, layers: int) -> Any:
        def make() -> torch.nn.LSTM:
            network = torch.nn.LSTM(size, size, layers, batch_first=True, device=self.device)
            kinds = ("weight", "bias")
            with torch.no_grad():
                for kind in kinds:
                    for layer in range(layers):
                        for part in ("ih", "hh"):
                            parameter = getattr(network, f"{kind}_{part}_l{layer}")
                            drawn = self.values.draw(tuple(parameter.shape), (3 * size) ** -0.5, 0)
                            parameter.copy_(torch.from_numpy(drawn))
            self.parameters += network.parameters()
            return network

        network = self._kept("network", self.networks, make)
        self._next["parameter"] += len(list(network.parameters()))
        return network(x)[0]

    def causal_attention(self, q: Any, k: Any, v: Any, heads: int) -> Any:
        batch, steps, width = q.shape
        split = (z.view(batch, steps, heads, width // heads).transpose(1, 2) for z in (q, k, v))
        out = functional.scaled_dot_product_attention(*split, is_causal=True)
        return out.transpose(1, 2).reshape(batch, steps, width)

    def cross_entropy(self, scores: Any, labels: Any) -> Any:
        return functional.cross_entropy(scores.flatten(0, -2), labels.flatten())


def optimizer_of(
    model: model_zoo.Model, parameters: list[torch.Tensor], **options: Any
) -> torch.optim.Optimizer:
    """Return PyTorch's fused optimizer for a network."""
    rate = model_zoo.RATES[model.optimizer]
    if model.optimizer == "sgd":
        return torch.optim.SGD(parameters, rate, model_zoo.MOMENTUM, fused=True)
    first, second, epsilon = model_zoo.ADAM
    return torch.optim.Adam(parameters, rate, (first, second), epsilon, fused=True, **options)


class Training(torch_cpu.Training):
    """A training step, with PyTorch's fused optimizer."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.sizes, self.model = case["sizes"], model_zoo.MODELS[case["model"]]
        layout = memory_format(case)
        self.layers = TorchLayers(layout)
        x, y = model_zoo.model_batch(self.model, self.sizes)
        self.x, self.y = torch.from_numpy(x), torch.from_numpy(y)
        if self.x.ndim == 4:
            self.x = self.x.contiguous(memory_format=layout)
        self.loss()
        self.optimizer = optimizer_of(self.model, self.layers.parameters)

    def loss(self) -> torch.Tensor:
        self.layers.begin()
        return self.model.loss(self.layers, self.sizes, self.x, self.y)

    def step(self) -> float:
        self.optimizer.zero_grad()
        loss = self.loss()
        loss.backward()
        self.optimizer.step()
        return loss.item()


def make_task(case: dict[str, Any]) -> Task:
    """Prepare a case of the benchmark of models."""
    return Training(case)

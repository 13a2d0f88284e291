"""Random batches for the tests of the CTC loss, and the loss computed by counting all paths."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby, pairwise, product
from typing import Any

import numpy as np
from hypothesis import strategies as st


@dataclass(frozen=True)
class Case:
    """A batch in which each label fits its sequence."""

    steps: int
    batch: int
    classes: int
    columns: int
    seed: int
    scale: float = 1.0

    def arrays(self, dtype: str = "float64", integer: str = "int32") -> tuple[np.ndarray, ...]:
        """Return activations, labels padded at their ends, input lengths and label lengths."""
        rng = np.random.default_rng(self.seed)
        shape = (self.steps, self.batch, self.classes)
        activations = (self.scale * rng.standard_normal(shape)).astype(dtype)
        labels = np.full((self.batch, self.columns), -1, integer)
        lengths, label_lengths = [], []
        for row in labels:
            longest = min(self.columns, self.steps if self.classes > 1 else 0)
            label: list[int] = []
            for symbol in rng.integers(1, max(self.classes, 2), rng.integers(0, longest + 1)):
                if needed([*label, int(symbol)]) <= self.steps:
                    label.append(int(symbol))
            row[: len(label)] = label
            lengths.append(rng.choice([self.steps, rng.integers(needed(label), self.steps + 1)]))
            label_lengths.append(len(label))
        return activations, labels, np.array(lengths, integer), np.array(label_lengths, integer)


def needed(label: list[int]) -> int:
    """Return the least number of steps for a label."""
    return len(label) + sum(a == b for a, b in pairwise(label))


@st.composite
def cases(
    draw: st.DrawFn,
    max_steps: int = 12,
    max_batch: int = 4,
    max_classes: int = 5,
    max_columns: int = 6,
    scales: Any = (1.0,),
    min_steps: int = 1,
) -> Case:
    """Return a strategy for `Case`."""
    return Case(
        steps=draw(st.integers(min_steps, max_steps)),
        batch=draw(st.integers(1, max_batch)),
        classes=draw(st.integers(1, max_classes)),
        columns=draw(st.integers(0, max_columns)),
        seed=draw(st.integers(0, 2**32 - 1)),
        scale=draw(st.sampled_from(list(scales))),
    )


def spelled(path: tuple[int, ...]) -> list[int]:
    """Return the label of a path of classes: merge repeats, then drop blanks."""
    return [symbol for symbol, _ in groupby(path) if symbol != 0]


def cost_of_paths(activations: np.ndarray, label: list[int]) -> tuple[float, np.ndarray]:
    """Return the cost and gradient of a sequence from the sum of all paths' probabilities."""
    softmax = np.exp(activations) / np.exp(activations).sum(axis=1, keepdims=True)
    total, counts = 0.0, np.zeros_like(activations)
    steps = np.arange(len(activations))
    for path in product(range(activations.shape[1]), repeat=len(activations)):
        if spelled(path) == label:
            probability = softmax[steps, list(path)].prod()
            total += probability
            counts[steps, list(path)] += probability
    return -np.log(total), softmax - counts / total


def torch_loss(
    torch: Any, activations: np.ndarray, labels: np.ndarray, lengths: Any, label_lengths: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Return PyTorch's costs and the gradient of their sum."""
    leaf = torch.tensor(activations, requires_grad=True)
    loss = torch.nn.functional.ctc_loss(
        leaf.log_softmax(2),
        torch.tensor(np.maximum(labels, 1).astype("int64")),
        torch.tensor(lengths.astype("int64")),
        torch.tensor(label_lengths.astype("int64")),
        reduction="none",
    )
    loss.sum().backward()
    return loss.detach().numpy(), leaf.grad.numpy()

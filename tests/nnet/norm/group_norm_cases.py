"""Random cases of group normalization, references, and graphs with all gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from hypothesis import strategies as st

from dnnops.nnet import group_norm
from tests.oracle import evaluate, normal


@dataclass(frozen=True)
class Case:
    """A shape and parameters."""

    shape: tuple[int, ...]
    num_groups: int
    epsilon: float
    seed: int

    def arrays(self, dtype: str = "float64") -> list[np.ndarray]:
        """Return data, scale, bias, and a gradient with respect to the output."""
        rng = np.random.default_rng(self.seed)
        channels = self.shape[1:2]
        x = 3 + 2 * normal(rng, self.shape, "float64")
        others = [normal(rng, shape, dtype) for shape in (channels, channels, self.shape)]
        return [x.astype(dtype), *others]


@st.composite
def cases(
    draw: st.DrawFn, least: int = 1, most: int = 5, epsilons: Sequence[float] = (1e-5, 1e-3, 0.5)
) -> Case:
    """Return a strategy for `Case`, with sizes from `least` and groups of two or more channels.

    A group of one element has no gradient, and one of two has little of it if epsilon is small.
    """
    num_groups = draw(st.integers(1, 4))
    channels = num_groups * draw(st.integers(2, 4))
    spatial = draw(st.lists(st.integers(least, most), max_size=3))
    return Case(
        shape=(draw(st.integers(least, 3)), channels, *spatial),
        num_groups=num_groups,
        epsilon=draw(st.sampled_from(epsilons)),
        seed=draw(st.integers(0, 2**32 - 1)),
    )


def by_groups(
    x: np.ndarray, num_groups: int, gamma: np.ndarray, beta: np.ndarray, epsilon: float
) -> np.ndarray:
    """Normalize one group of one sample after the other, as the documentation says."""
    out = np.empty(x.shape)
    for sample in range(x.shape[0]):
        for channels in np.split(np.arange(x.shape[1]), num_groups):
            part = x[sample, channels].astype("float64")
            normalized = (part - part.mean()) / np.sqrt(part.var() + epsilon)
            for channel, plane in zip(channels, normalized, strict=True):
                out[sample, channel] = plane * gamma[channel] + beta[channel]
    return out


def with_gradients(
    num_groups: int, epsilon: float, dtype: str, ndim: int, parameter_dtype: str | None = None
) -> tuple[list[Any], list[Any]]:
    """Return x, gamma, beta and gy, and the result with its gradients; no size is known."""
    x, gy = (pt.tensor(name, dtype=dtype, shape=(None,) * ndim) for name in ("x", "gy"))
    gamma, beta = (
        pt.tensor(name, dtype=parameter_dtype or dtype, shape=(None,)) for name in ("gamma", "beta")
    )
    y = group_norm(x, num_groups, gamma, beta, epsilon)
    gradients = pytensor.grad(None, [x, gamma, beta], known_grads={y: gy})
    return [x, gamma, beta, gy], [y, *gradients]


def reference(case: Case, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Return the result and its gradients, computed in NumPy in float64."""
    inputs, outputs = with_gradients(case.num_groups, case.epsilon, "float64", len(case.shape))
    values = [a.astype("float64") for a in arrays]
    return evaluate(outputs, dict(zip(inputs, values, strict=True)))


def names_of(function: Any) -> set[str]:
    return {type(node.op).__name__ for node in function.maker.fgraph.apply_nodes}

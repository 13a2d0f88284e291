"""Random cases of local response and divisive normalization, and an elementwise reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.oracle import normal


@dataclass(frozen=True)
class Case:
    """A shape and parameters."""

    shape: tuple[int, ...]
    n: int
    alpha: float
    beta: float
    k: float
    seed: int

    @property
    def parameters(self) -> dict[str, Any]:
        """Return keyword arguments of Ops and functions."""
        return {"n": self.n, "alpha": self.alpha, "beta": self.beta, "k": self.k}

    def arrays(self, count: int, dtype: str = "float64") -> list[np.ndarray]:
        """Return normally distributed arrays."""
        rng = np.random.default_rng(self.seed)
        return [normal(rng, self.shape, dtype) for _ in range(count)]


@st.composite
def cases(
    draw: st.DrawFn, min_ndim: int, max_ndim: int, max_size: int = 5, max_n: int = 16
) -> Case:
    """Return a strategy for `Case`; windows may be longer than their axis."""
    ndim = draw(st.integers(min_ndim, max_ndim))
    return Case(
        shape=tuple(draw(st.integers(1, max_size)) for _ in range(ndim)),
        n=draw(st.integers(1, max_n)),
        alpha=draw(st.sampled_from([0.0, 1e-4, 0.5, 3.0])),
        beta=draw(st.sampled_from([0.5, 0.75, 1.0, 0.01, 0.6, 2.5])),
        k=draw(st.sampled_from([0.5, 1.0, 2.0])),
        seed=draw(st.integers(0, 2**32 - 1)),
    )


def by_elements(case: Case, axes: tuple[int, ...], x: np.ndarray, squared: Any) -> np.ndarray:
    """Normalize element by element, following the functions' documentation."""
    out = np.empty_like(x)
    for place in np.ndindex(x.shape):
        window: list[Any] = list(place)
        for axis in axes:
            begin, end = place[axis] - (case.n - 1) // 2, place[axis] + case.n // 2 + 1
            window[axis] = slice(max(0, begin), end)
        total = (squared[tuple(window)] ** 2).sum()
        base = case.k + case.alpha / case.n ** len(axes) * total
        out[place] = x[place] / base**case.beta
    return out


#: Rejected parameters by name, with the error's class and a part of its message.
BAD_PARAMETERS: list[tuple[dict[str, Any], type, str]] = [
    ({"n": 0}, ValueError, "n must be between 1 and 16, got 0"),
    ({"n": 17}, ValueError, "n must be between 1 and 16, got 17"),
    ({"n": 5.0}, TypeError, r"n must be an int, got 5\.0"),
    ({"n": True}, TypeError, "n must be an int, got True"),
    ({"alpha": -1}, ValueError, "alpha must be finite and at least 0, got -1"),
    ({"alpha": float("nan")}, ValueError, "alpha must be finite and at least 0, got nan"),
    ({"alpha": "large"}, TypeError, "alpha must be a number, got 'large'"),
    ({"beta": 0.001}, ValueError, r"beta must be finite and at least 0\.01, got 0\.001"),
    ({"beta": float("inf")}, ValueError, r"beta must be finite and at least 0\.01, got inf"),
    ({"beta": None}, TypeError, "beta must be a number, got None"),
    ({"k": 0}, ValueError, "k must be finite and at least 1e-05, got 0"),
    ({"k": True}, TypeError, "k must be a number, got True"),
]

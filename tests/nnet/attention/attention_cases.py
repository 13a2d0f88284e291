"""Random cases of attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.oracle import normal


@dataclass(frozen=True)
class Case:
    """Sizes, parameters, and which operands exist."""

    batch: int
    heads: int
    group: int
    queries: int
    keys: int
    depth: int
    value_depth: int
    is_causal: bool
    scale: float | None
    mask: str | None
    mask_ones: tuple[int, ...]
    query_lengths: bool
    key_lengths: bool
    seed: int

    @property
    def optional(self) -> tuple[str, ...]:
        """Return the names of the optional operands."""
        given = {"mask": self.mask is not None}
        given |= {"query_lengths": self.query_lengths, "key_lengths": self.key_lengths}
        return tuple(name for name, is_given in given.items() if is_given)

    @property
    def parameters(self) -> dict[str, Any]:
        """Return keyword arguments of the Ops."""
        return {"scale": self.scale, "is_causal": self.is_causal, "optional": self.optional}

    def arrays(self, dtype: str = "float64") -> tuple[list[np.ndarray], np.ndarray]:
        """Return all operands, and a gradient with respect to the output."""
        rng = np.random.default_rng(self.seed)
        query_heads = self.heads * self.group
        arrays = [
            normal(rng, (self.batch, query_heads, self.queries, self.depth), dtype),
            normal(rng, (self.batch, self.heads, self.keys, self.depth), dtype),
            normal(rng, (self.batch, self.heads, self.keys, self.value_depth), dtype),
        ]
        sizes = [self.batch, query_heads, self.queries, self.keys]
        shape = [1 if axis in self.mask_ones else size for axis, size in enumerate(sizes)]
        if self.mask == "bool":
            arrays.append(rng.random(shape) < 0.7)
        elif self.mask == "float":
            mask = normal(rng, shape, dtype)
            mask[rng.random(shape) < 0.2] = -np.inf
            arrays.append(mask)
        for is_given, size in ((self.query_lengths, self.queries), (self.key_lengths, self.keys)):
            if is_given:
                arrays.append(rng.integers(0, size + 1, self.batch))
        return arrays, normal(rng, (*sizes[:3], self.value_depth), dtype)

    def seen(self, optional: list[np.ndarray]) -> np.ndarray:
        """Return which keys each query sees, as a bool array of the scores' shape."""
        sizes = (self.batch, self.heads * self.group, self.queries, self.keys)
        seen = np.ones(sizes, bool)
        for name, array in zip(self.optional, optional, strict=True):
            for n in range(self.batch):
                if name == "query_lengths":
                    seen[n, :, array[n] :] = False
                elif name == "key_lengths":
                    seen[n, :, :, array[n] :] = False
            if name == "mask":
                seen &= array if array.dtype == bool else array > -np.inf
        return np.tril(seen) if self.is_causal else seen


@st.composite
def cases(draw: st.DrawFn, max_length: int = 6, masks: Any = (None, "bool", "float")) -> Case:
    """Return a strategy for `Case`."""
    return Case(
        batch=draw(st.integers(1, 3)),
        heads=draw(st.integers(1, 3)),
        group=draw(st.integers(1, 3)),
        queries=draw(st.integers(1, max_length)),
        keys=draw(st.integers(1, max_length)),
        depth=draw(st.integers(1, 5)),
        value_depth=draw(st.integers(1, 5)),
        is_causal=draw(st.booleans()),
        scale=draw(st.sampled_from([None, 0.3, -1.0])),
        mask=draw(st.sampled_from(list(masks))),
        mask_ones=tuple(draw(st.sets(st.integers(0, 3)))),
        query_lengths=draw(st.booleans()),
        key_lengths=draw(st.booleans()),
        seed=draw(st.integers(0, 2**32 - 1)),
    )

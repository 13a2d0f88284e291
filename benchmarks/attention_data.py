"""Cases of attention with their data, for every library: NumPy only."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

__all__ = ["CALLS_BETWEEN_EVENTS", "attention_arrays", "attention_cases"]

SEED = 40
#: Calls that are timed together, so that events' own cost doesn't matter.
CALLS_BETWEEN_EVENTS = 10

# words, batch, heads of queries, of keys, queries, keys, depth
SIZES = (
    ("4x16x1024x64", 4, 16, 16, 1024, 1024, 64),
    ("4x16x2048x64", 4, 16, 16, 2048, 2048, 64),
    ("2x16x4096x128", 2, 16, 16, 4096, 4096, 128),
    ("4x32x2048x128", 4, 32, 32, 2048, 2048, 128),
    ("4x32x2048x128, 8 heads of keys", 4, 32, 8, 2048, 2048, 128),
    ("64x12x197x64", 64, 12, 12, 197, 197, 64),
    ("32x16x512x64", 32, 16, 16, 512, 512, 64),
    ("1x16x16384x128", 1, 16, 16, 16384, 16384, 128),
    ("4x8x2048x256", 4, 8, 8, 2048, 2048, 256),
)
SMALL_SIZES = (("1x2x32x16", 1, 2, 2, 32, 32, 16), ("2x4x16x8", 2, 4, 2, 16, 16, 8))
#: ||difference|| / ||result|| between two libraries.
TOLERANCE = {"float16": 5e-3, "bfloat16": 3e-2}


def attention_cases(small: bool) -> list[dict[str, Any]]:
    """All cases: forward alone, and with the gradients by all operands."""
    names = ("batch", "heads", "shared_heads", "queries", "keys", "depth")
    return [
        {
            "case": f"{words}, {dtype}{', causal' if is_causal else ''}, {direction}",
            "dtype": dtype,
            "is_causal": is_causal,
            "training": direction == "training",
            **dict(zip(names, sizes, strict=True)),
        }
        for (words, *sizes), dtype, is_causal, direction in product(
            SMALL_SIZES if small else SIZES,
            ("float16", "bfloat16"),
            (False, True),
            ("forward", "training"),
        )
    ]


def attention_arrays(case: dict[str, Any]) -> dict[str, np.ndarray]:
    """Query, key, value and the output's gradient in float32: normally distributed."""
    rng = np.random.default_rng(SEED)
    batch, depth = case["batch"], case["depth"]
    query = (batch, case["heads"], case["queries"], depth)
    key = (batch, case["shared_heads"], case["keys"], depth)
    shapes = {"query": query, "key": key, "value": key, "gout": query}
    return {name: rng.standard_normal(shape, "float32") for name, shape in shapes.items()}

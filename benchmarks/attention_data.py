"""Cases of attention with their data, shared by all libraries; needs only NumPy."""

from __future__ import annotations

from itertools import product
from math import ceil
from typing import Any

__all__ = ["NAMES", "PLACES", "SEEDS", "attention_cases", "attention_shapes"]

#: Seeds of the inputs, for `conv_data.values`.
SEEDS = {"query": 0x51ED270B, "key": 0x2E1B2138, "value": 0x7A4D1F05, "gout": 0x13198A2E}
#: Names of the results.
NAMES = ("out", "dquery", "dkey", "dvalue")

#: Target time of the calls behind one gate, the most calls, and roughly how many operations a GPU
#: does per second. They depend only on the case, so all libraries make the same number of calls.
_GATE_S, _MAX_CALLS, _OPERATIONS_PER_S = 2e-3, 8, 5e14

#: Copies of the operands that take turns. In another run a program took up to 1.6 % more or less,
#: perhaps because of the position of the arrays in memory.
PLACES = 4

# name, batch, query heads, key heads, query length, key length, depth
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
TOLERANCE = {"float16": 5e-3, "bfloat16": 3e-2, "float32": 1e-4}


def attention_cases(small: bool = False) -> list[dict[str, Any]]:
    """Return all cases: forward alone, and with gradients with respect to all operands.

    ``calls`` is the number of calls that are timed together. Only cases of the first size have
    ``with_xla``, because XLA's own attention takes seconds to compile and stores the scores.
    """
    names = ("batch", "heads", "shared_heads", "queries", "keys", "depth")
    all_sizes = SMALL_SIZES if small else SIZES
    cases = []
    for (words, *sizes), dtype, is_causal, direction in product(
        all_sizes, ("float16", "bfloat16"), (False, True), ("forward", "training")
    ):
        case = {
            "case": f"{words}, {dtype}{', causal' if is_causal else ''}, {direction}",
            "dtype": dtype,
            "is_causal": is_causal,
            "training": direction == "training",
            "with_xla": words == all_sizes[0][0],
            **dict(zip(names, sizes, strict=True)),
        }
        cases.append({**case, "calls": _calls(case)})
    return cases


def _calls(case: dict[str, Any]) -> int:
    operations = 4.0 * case["batch"] * case["heads"] * case["queries"] * case["keys"]
    operations *= case["depth"] * (0.5 if case["is_causal"] else 1)
    if case["training"]:
        operations *= 3.5  # two products forward, five for the gradients
    return max(1, min(_MAX_CALLS, ceil(_GATE_S * _OPERATIONS_PER_S / operations)))


def attention_shapes(case: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of query, key, value and, for training, the output's gradient."""
    batch, depth = case["batch"], case["depth"]
    query = (batch, case["heads"], case["queries"], depth)
    key = (batch, case["shared_heads"], case["keys"], depth)
    shapes = {"query": query, "key": key, "value": key}
    if case["training"]:
        shapes["gout"] = query
    return shapes

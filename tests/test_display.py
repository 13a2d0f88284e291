"""Sizes and counts."""

from __future__ import annotations

import pytest

from dnnops.display import show_operations, show_size


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (3 << 19, "1.5 MiB"),
        (5 << 40, "5.0 TiB"),
        (5 << 50, "5120.0 TiB"),
    ],
)
def test_sizes(size, text):
    assert show_size(size) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 FLOP"), (999, "999 FLOP"), (3_612_672, "3.61 MFLOP"), (1.29e12, "1.29 TFLOP")],
)
def test_operations(count, text):
    assert show_operations(int(count)) == text

"""Test tables and pictures of benchmark results."""

from __future__ import annotations

import pytest

from benchmarks.report import draw_ratios


@pytest.mark.needs("matplotlib")
@pytest.mark.parametrize("count", [3, 60])
def test_picture_of_few_rows_and_of_many(count):
    """The picture is not higher than a page, and the worst row comes first."""
    rows = [
        {"case": f"case {i}", "dnnops_ms": 1.0, "torch_ms": 0.5 + i / count, "jax_ms": 20.0}
        for i in reversed(range(count))
    ]
    del rows[1]["jax_ms"]
    figure = draw_ratios("title", rows)
    (axes,) = figure.axes
    assert axes.get_yticklabels()[0].get_text() == "case 0"
    bottom, top = axes.get_ylim()
    assert top < 0 < count - 1 < bottom
    assert figure.get_figheight() < 14
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["torch", "jax"]

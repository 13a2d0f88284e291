"""Sizes, and tables on terminals and elsewhere."""

from __future__ import annotations

import pytest

from dnnops.display import plain_console, plain_table, rendered, show_operations, show_size


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


def test_cells_are_shown_as_they_are():
    """Cells are neither markup nor codes of emoji, and fold only where there is a width."""
    name = "[bold]a[/bold]:x:" + 200 * "b"
    table = plain_table()
    table.add_column("name", overflow="fold")
    table.add_column("count", justify="right")
    table.add_row(name, "1")
    assert rendered(plain_console(), table).splitlines() == [
        f"name{' ' * (len(name) - 4)}  count",
        f"{name}      1",
    ]
    lines = rendered(plain_console(60, colors=False), table).splitlines()
    assert max(map(len, lines)) <= 60
    assert "".join(line[:53].strip() for line in lines[1:]) == name

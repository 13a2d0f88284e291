"""Compare texts with golden files, in sections, which lines that begin with ## name."""

from __future__ import annotations

import argparse
from difflib import unified_diff
from pathlib import Path

import pytest

__all__ = ["asked_to_write", "assert_as_golden", "difference"]


def assert_as_golden(file: Path, now: str, module: str) -> None:
    """Fail the running test if a golden file differs from a text.

    Parameters
    ----------
    file : Path
    now : str
        What the file should contain.
    module : str
        The module that replaces the file if it is run with ``--write``.
    """
    if found := difference(file.read_text(encoding="utf-8"), now):
        pytest.fail(
            f"{file.name} (-) differs from the present state (+). If that is intended:"
            f" python -m {module} --write\n{found}",
            pytrace=False,
        )


def asked_to_write() -> None:
    """Exit with the usage of a module that replaces golden files unless its option is given."""
    parser = argparse.ArgumentParser(description="Replace the golden files.")
    parser.add_argument("--write", action="store_true", required=True)
    parser.parse_args()


def _sections(text: str) -> dict[str, list[str]]:
    sections: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("## "):
            lines = sections.setdefault(line, [])
        else:
            lines.append(line)
    return sections


def difference(golden: str, now: str) -> str:
    """Compare section by section, so that a change doesn't hide what is after it."""
    was, is_ = _sections(golden), _sections(now)
    lines: list[str] = []
    for title in dict.fromkeys([*was, *is_]):
        old, new = was.get(title, []), is_.get(title, [])
        if old != new or (title in was) != (title in is_):
            lines += [title, *list(unified_diff(old, new, n=2, lineterm=""))[2:]]
    return "\n".join(lines)

"""Compare texts in sections, which lines that begin with ## name."""

from __future__ import annotations

from difflib import unified_diff

__all__ = ["difference"]


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

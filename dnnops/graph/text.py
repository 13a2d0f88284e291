"""JSON text of graphs in which lists of numbers stay on one line."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["as_text"]


def as_text(value: Any, indent: str = "") -> str:
    """Return a value as JSON, indented by 4 spaces.

    Parameters
    ----------
    value : dict, list, str, number, bool or None
        What to write.
    indent : str
        Spaces before the value.

    Returns
    -------
    str
    """
    inner = indent + " " * 4
    if isinstance(value, dict) and value:
        lines = [f"{inner}{json.dumps(key)}: {as_text(x, inner)}" for key, x in value.items()]
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(x, dict | list) for x in value):
        return "[\n" + ",\n".join(inner + as_text(x, inner) for x in value) + f"\n{indent}]"
    return json.dumps(value, separators=(",", ":"))

"""The code blocks of README.rst and of the pages in docs/, as a reader would copy them."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["ROOT", "Block", "blocks", "pages"]

ROOT = Path(__file__).parents[2]
#: How lines of a shell begin.
_SHELL = re.compile(
    r"(\$ )?(export |cd |git |pip |python3? |make |dnnops |[A-Z_]+=\S+ |apt-get |\.venv|\.ci)"
)

_OPTION = re.compile(r" +:([\w-]+): *(.*)")


class Block(NamedTuple):
    """An indented block below a directive or a paragraph that ends with two colons."""

    page: str
    line: int
    kind: str
    text: str


def pages() -> list[str]:
    """Return the paths of README.rst and of all pages, relative to the repository."""
    found = [ROOT / "README.rst", *sorted((ROOT / "docs").rglob("*.rst"))]
    return [str(path.relative_to(ROOT)) for path in found if path.exists()]


def blocks(page: str) -> Iterator[Block]:
    """Yield the blocks of a page; the kind is a language's name or ``python``, ``bash``, ``text``.

    What ``literalinclude`` shows of a file has the kind ``included``. Blocks without a language are
    commands if a line looks like one, Python code if they can be parsed as such, and text else.
    """
    lines = (ROOT / page).read_text().splitlines()
    for number, line in enumerate(lines):
        if found := re.match(r" *\.\. literalinclude:: (\S+\.py)", line):
            options = dict(_OPTION.findall("\n".join(lines[number + 1 : number + 5])))
            file = (ROOT / page).parent / found[1]
            yield Block(page, number + 1, "included", _part(file.read_text(), options))
            continue
        directive = re.match(r" *\.\. (?:code-block|code):: *(\w*)", line)
        is_paragraph = line.endswith("::") and not line.lstrip().startswith("..")
        if not directive and not is_paragraph:
            continue
        body = _body(lines[number + 1 :], len(line) - len(line.lstrip()))
        text = textwrap.dedent("\n".join(body)).strip("\n")
        kind = directive[1] if directive and directive[1] else _kind(text)
        yield Block(page, number + 1, kind, text)


def _body(lines: list[str], outer: int) -> list[str]:
    """Return the lines of a block, which are indented more than its directive."""
    body: list[str] = []
    for line in lines:
        indent = len(line) - len(line.lstrip())
        least = len(body[0]) - len(body[0].lstrip()) if body else outer + 1
        if line.strip() and indent < least:
            break
        if line.strip() or body:
            body += [] if _OPTION.fullmatch(line) else [line]
    return body


def _part(text: str, options: dict[str, str]) -> str:
    """Return the part of a file that ``literalinclude`` shows."""
    lines = text.splitlines()
    for option, skipped in (("start-at", 0), ("start-after", 1)):
        if option in options:
            first = next(i for i, line in enumerate(lines) if options[option] in line)
            lines = lines[first + skipped :]
    if "end-before" in options:
        last = next(i for i, line in enumerate(lines) if options["end-before"] in line)
        lines = lines[:last]
    return "\n".join(lines)


def _kind(text: str) -> str:
    if any(_SHELL.match(line) for line in text.splitlines()):
        return "bash"
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return "text"
    names_only = all(
        isinstance(node, ast.Expr) and isinstance(node.value, (ast.Name, ast.Tuple, ast.BinOp))
        for node in tree.body
    )
    return "text" if names_only else "python"

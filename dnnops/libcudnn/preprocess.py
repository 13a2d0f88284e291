"""Read cuDNN's headers as a C preprocessor would, without a compiler.

The headers are plain C, with include guards, a few conditions on the compiler, and macros that are
constants or annotations of the compiler.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dnnops.errors import DnnUnavailableError

__all__ = ["Preprocessor", "constant", "find_header"]

_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_DIRECTIVE = re.compile(r"\s*#\s*(\w+)\s*(.*)")
_NAME = re.compile(r"\b[A-Za-z_]\w*\b")
_SUFFIX = re.compile(r"\b(0[xX][0-9a-fA-F]+|\d+)[uUlL]+\b")
_OPERATORS: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitOr: operator.or_,
    ast.BitAnd: operator.and_,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Invert: operator.invert,
    ast.Not: operator.not_,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def constant(expression: str, names: Mapping[str, Any]) -> int | float:
    """Return the value of a constant expression of C.

    Parameters
    ----------
    expression : str
        Numbers and names with arithmetic, comparing and logical operators.
    names : mapping
        Values of names.

    Returns
    -------
    int or float

    Raises
    ------
    ValueError
        If it is not such an expression, or contains another name.
    """
    text = _SUFFIX.sub(r"\1", expression).replace("&&", " and ").replace("||", " or ")
    text = re.sub(r"!(?!=)", " not ", text).strip()
    try:
        return _value(ast.parse(text, mode="eval").body, names)
    except (SyntaxError, KeyError, TypeError, ZeroDivisionError) as error:
        raise ValueError(f"{expression!r} is not a constant expression") from error


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.Name(id=name):
            return names[name]
        case ast.UnaryOp():
            return _OPERATORS[type(node.op)](_value(node.operand, names))
        case ast.BinOp():
            return _OPERATORS[type(node.op)](_value(node.left, names), _value(node.right, names))
        case ast.BoolOp(values=values):
            every = isinstance(node.op, ast.And)
            return (all if every else any)(_value(value, names) for value in values)
        case ast.Compare(ops=[compare], comparators=[right]):
            return _OPERATORS[type(compare)](_value(node.left, names), _value(right, names))
    raise KeyError(ast.dump(node))


def find_header(folder: Path, name: str) -> Path | None:
    """Return a header of cuDNN; Debian's packages have only names that end in ``_v9.h``."""
    versions = sorted(folder.glob(f"{name.removesuffix('.h')}_v*.h"), reverse=True)
    return next((path for path in (folder / name, *versions) if path.is_file()), None)


class Preprocessor:
    """Macros and code of headers.

    Attributes
    ----------
    macros : dict of str to str
        Replacement texts by name, of macros without parameters.
    code : str
        Declarations, without comments, with these macros replaced.
    sources : list of str
        Contents of the files, with comments.
    """

    def __init__(self, folder: Path, name: str) -> None:
        """Read a header and those that it includes from the same folder.

        Parameters
        ----------
        folder : Path
            Folder of the headers.
        name : str
            Name of the first header.

        Raises
        ------
        DnnUnavailableError
            If the header does not exist.
        """
        self._folder = folder
        self._lines: list[str] = []
        self.macros: dict[str, str] = {}
        self.sources: list[str] = []
        path = find_header(folder, name)
        if path is None:
            raise DnnUnavailableError(f"cuDNN's headers in {folder} have no {name}")
        self._read(path)
        self.code = "\n".join(self._lines)

    def _read(self, path: Path) -> None:
        text = path.read_text(encoding="utf-8", errors="replace")
        self.sources.append(text)
        text = _COMMENT.sub(lambda comment: "\n" * comment[0].count("\n"), text)
        # For each open condition, whether its branch is read, and whether one has been.
        open_: list[tuple[bool, bool]] = []
        for line in re.sub(r"\\\n", " ", text).splitlines():
            directive = _DIRECTIVE.match(line)
            if directive is None:
                if all(reads for reads, _ in open_):
                    self._lines.append(self._expand(line))
                continue
            word, rest = directive[1], directive[2].strip()
            if word in ("if", "ifdef", "ifndef"):
                reads = all(outer for outer, _ in open_) and self._holds(word, rest)
                open_.append((reads, reads))
            elif word in ("elif", "else"):
                _, done = open_.pop()
                outside = all(outer for outer, _ in open_)
                reads = outside and not done and (word == "else" or self._holds("if", rest))
                open_.append((reads, done or reads))
            elif word == "endif":
                open_.pop()
            elif all(reads for reads, _ in open_):
                self._obey(word, rest)

    def _obey(self, word: str, rest: str) -> None:
        name, _, value = rest.partition(" ")
        if word == "define" and "(" not in name:
            self.macros[name] = value.strip()
        elif word == "undef":
            self.macros.pop(name, None)
        elif word == "include" and rest.startswith('"'):
            path = find_header(self._folder, rest.strip('"'))
            if path is not None:
                self._read(path)

    def _holds(self, word: str, condition: str) -> bool:
        if word != "if":
            return (condition.split()[0] in self.macros) == (word == "ifdef")
        condition = re.sub(
            r"defined\s*(?:\(\s*(\w+)\s*\)|(\w+))",
            lambda match: str(int((match[1] or match[2]) in self.macros)),
            condition,
        )
        try:
            # The preprocessor replaces unknown names with zero.
            return bool(constant(_NAME.sub("0", self._expand(condition)), {}))
        except ValueError:
            return False

    def _expand(self, line: str) -> str:
        for _ in range(8):  # a macro may contain others
            expanded = _NAME.sub(lambda match: self.macros.get(match[0], match[0]), line)
            if expanded == line:
                break
            line = expanded
        return line

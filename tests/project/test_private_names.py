"""Modules of the package do not use each other's private names."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import dnnops

PACKAGE = Path(dnnops.__file__).parent

#: Private names in dnnops that are also attributes of PyTensor's objects.
FOREIGN = {"_apply"}


def test_modules_do_not_use_private_names_of_other_modules():
    sources = {
        path.relative_to(PACKAGE.parent).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(PACKAGE.rglob("*.py"))
    }
    found = list(private_uses(sources))
    assert not found, "\n".join(["private names of other modules:", *found])


def test_private_uses_are_found():
    sources = {
        "dnnops/base.py": "_LIMIT = 1\nclass Base:\n    def _part(self): self._size = _LIMIT\n",
        "dnnops/names.py": "from numpy import _core\nfrom dnnops.base import Base, _LIMIT\n",
        "dnnops/modules.py": "from dnnops import base as b\nimport dnnops._base\nb._LIMIT\n",
        "dnnops/objects.py": "def f(x):\n    return x._part() + x._size + x._asdict()\n",
        "dnnops/sub/derived.py": "class A(Base):\n    def g(self): super()._part(self._size)\n",
    }
    assert list(private_uses(sources)) == [
        "dnnops/names.py:2: dnnops.base._LIMIT",
        "dnnops/modules.py:2: dnnops._base",
        "dnnops/modules.py:3: b._LIMIT",
        "dnnops/objects.py:2: x._part",
        "dnnops/objects.py:2: x._size",
    ]


def private_uses(sources: Mapping[str, str]) -> Iterator[str]:
    """Yield ``file:line: name`` for each use of another module's private name.

    A method may use private names of its own object, since a base class may define them. Private
    attributes of other objects count if this module does not define the name and another one does.

    Parameters
    ----------
    sources : mapping
        The modules' source code by file name.
    """
    trees = {file: ast.parse(source) for file, source in sources.items()}
    defined = {file: set(_definitions(tree)) for file, tree in trees.items()}
    everywhere = set().union(*defined.values()) - FOREIGN
    for file, tree in trees.items():
        uses = []
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                uses += [(node, alias.name) for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                origin = node.module if not node.level else f"dnnops.{node.module or ''}"
                uses += [(node, f"{origin}.{alias.name}") for alias in node.names]
        found = [
            (node, name)
            for node, name in uses
            if name.startswith("dnnops.") and any(map(_is_private, name.split(".")))
        ]
        found += [
            (node, ast.unparse(node))
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute)
            and node.attr in everywhere - defined[file]
            and not _is_own_object(node.value)
        ]
        lines = sorted((node.lineno, node.col_offset, name) for node, name in found)
        yield from dict.fromkeys(f"{file}:{line}: {name}" for line, _, name in lines)


def _definitions(tree: ast.Module) -> Iterator[str]:
    """Yield the private names that a module defines, and the attributes that its methods set."""
    for node in ast.walk(tree):
        name = ""
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            name = node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            name = node.attr if _is_own_object(node.value) else ""
        if _is_private(name):
            yield name


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def _is_own_object(value: ast.expr) -> bool:
    if isinstance(value, ast.Call):
        value = value.func
    return isinstance(value, ast.Name) and value.id in ("self", "cls", "super")

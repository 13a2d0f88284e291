"""Write the public names of Theano's modules to ``names.txt``.

``python -m tests.theano.record_names FOLDER`` reads the sources in ``FOLDER`` without importing
them: the unpacked source distribution of Theano 1.0.5, which ``pip download --no-deps --no-binary
:all: Theano==1.0.5`` fetches. The lines of ``names.txt`` are

* ``[theano.module]``, followed by the names that the module defines, or, for a package, also those
  that it imports from Theano's modules;
* ``[theano.module:Class]``, followed by the public methods and attributes of a class in `CLASSES`;
* ``[flags]``, followed by the names of the flags.
"""

from __future__ import annotations

import ast
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

#: Classes whose objects users hold.
CLASSES = {
    "theano.compile.function_module": ("Function",),
    "theano.compile.sharedvalue": ("SharedVariable",),
    "theano.gof.fg": ("FunctionGraph",),
    "theano.gof.graph": ("Apply", "Constant", "Variable"),
    "theano.gof.op": ("Op", "PureOp"),
    "theano.gof.type": ("PureType",),
    "theano.sandbox.rng_mrg": ("MRG_RandomStreams",),
    "theano.scalar.basic": ("_scalar_py_operators",),
    "theano.sparse.basic": ("_sparse_py_operators",),
    "theano.tensor.shared_randomstreams": ("RandomStreams",),
    "theano.tensor.type": ("TensorType",),
    "theano.tensor.var": ("_tensor_py_operators",),
    "theano.typed_list.basic": ("_typed_list_py_operators",),
}
NAMES = Path(__file__).with_name("names.txt")
_SKIPPED = {"tests", "c_code", "bin"}


def modules(folder: Path) -> dict[str, ast.Module]:
    """Return the syntax trees of the modules, without tests and benchmark scripts."""
    trees = {}
    for path in sorted((folder / "theano").rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        if _SKIPPED & set(parts) or path.name in ("_version.py", "generated_version.py"):
            continue
        name = ".".join(part for part in parts if part != "__init__")
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if not any(_is_main(node) for node in tree.body):
            trees[name] = tree
    return trees


def _is_main(node: ast.stmt) -> bool:
    """Return whether this is the part of a module that makes it a program."""
    return isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"


def defined(tree: ast.Module, name: str, trees: dict[str, ast.Module], package: bool) -> set[str]:
    """Return the public names of a module, without those that it imports unless it is a package."""
    names: set[str] = set()
    for node in _statements(tree.body):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Assign) and "getLogger" not in ast.unparse(node.value):
            names |= {n.id for t in node.targets for n in ast.walk(t) if isinstance(n, ast.Name)}
        elif package and isinstance(node, ast.ImportFrom):
            source = f"{name}.{node.module}" if node.level else str(node.module)
            if source not in trees:
                continue
            inner = any(other.startswith(f"{source}.") for other in trees)
            for alias in node.names:
                if alias.name != "*":
                    names.add(alias.asname or alias.name)
                elif source != name:
                    names |= defined(trees[source], source, trees, inner)
    return {n for n in names if not n.startswith("_")}


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements that a module executes, without those of loops."""
    for node in body:
        if isinstance(node, ast.If):
            yield from _statements([*node.body, *node.orelse])
        elif isinstance(node, ast.Try):
            handlers = [statement for handler in node.handlers for statement in handler.body]
            yield from _statements([*node.body, *handlers, *node.orelse])
        else:
            yield node


def members(tree: ast.Module, cls: str) -> set[str]:
    """Return the public methods and attributes that a class defines, and its operators."""
    (node,) = (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == cls)
    names = set()
    for part in node.body:
        if isinstance(part, ast.FunctionDef):
            names.add(part.name)
        elif isinstance(part, ast.Assign):
            names |= {t.id for t in part.targets if isinstance(t, ast.Name)}
    init = [n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"]
    for part in [statement for function in init for statement in ast.walk(function)]:
        if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store):
            names |= {part.attr} if ast.unparse(part.value) == "self" else set()
    return {n for n in names if not n.startswith("_") or n.endswith("__")}


def flags(trees: dict[str, ast.Module]) -> set[str]:
    """Return the names of the flags."""
    found = set()
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("AddConfigVar"):
                name = node.args[0]
                found |= {name.value} if isinstance(name, ast.Constant) else set()
    return found


def main(folder: str) -> None:
    """Write the record."""
    trees = modules(Path(folder))
    record: dict[str, set[str]] = {}
    for name, tree in trees.items():
        package = any(other.startswith(f"{name}.") for other in trees)
        record[name] = defined(tree, name, trees, package)
        for cls in CLASSES.get(name, ()):
            record[f"{name}:{cls}"] = members(tree, cls)
    record["flags"] = flags(trees)
    lines = []
    for heading, names in sorted(record.items()):
        lines += [f"[{heading}]", *textwrap.wrap(" ".join(sorted(names)), 118)]
    NAMES.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])

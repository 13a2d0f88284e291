"""Docstrings of the functions that users call have numpydoc's sections."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from types import FunctionType

import pytest

import dnnops

#: Packages whose public functions are for users. The names of `dnnops.theano` are Theano's.
PACKAGES = ("nnet", "layers", "optim", "graph", "dnn", "mixed_precision", "gpuarray", "plans")


def public_objects() -> Iterator[FunctionType | type]:
    """Yield the functions and classes that dnnops and these packages export."""
    for package in (dnnops, *(importlib.import_module(f"dnnops.{name}") for name in PACKAGES)):
        for name in package.__all__:
            value = getattr(package, name)
            is_code = inspect.isfunction(value) or inspect.isclass(value)
            if is_code and value.__module__.startswith("dnnops."):
                yield value


DOCUMENTED = {x.__name__: x for x in public_objects()}
FUNCTIONS = {f"{x.__module__}.{x.__name__}": x for x in public_objects() if inspect.isfunction(x)}


def section(doc: str, title: str) -> str | None:
    """Return the text of a section, or None."""
    match = re.search(rf"^{title}\n-+\n(.*?)(?=^\w[\w ]*\n-+\n|\Z)", doc, re.M | re.S)
    return match and match[1]


def refers_to_sections(doc: str, seen: set[str]) -> bool:
    """Whether a docstring names a function or class that has the sections, or refers to one."""
    for name in re.findall(r"`([\w.]+)`", doc):
        if name in DOCUMENTED and name not in seen:
            other = inspect.getdoc(DOCUMENTED[name]) or ""
            if section(other, "Parameters") or refers_to_sections(other, {*seen, name}):
                return True
    return False


def problem(function: FunctionType, doc: str) -> str:
    """Return what a docstring lacks; empty if nothing."""
    signature = inspect.signature(function)
    if not doc:
        return "no docstring"
    if not re.match(r"[A-Z].*\.$", doc.split("\n\n")[0].replace("\n", " ")):
        return "the summary is not a sentence"
    documented = section(doc, "Parameters")
    if not signature.parameters:
        return ""
    if documented is None:
        return "" if refers_to_sections(doc, {function.__name__}) else "no section Parameters"
    named = {
        x.strip(" *")
        for line in re.findall(r"^(\S.*?)(?: : .*)?$", documented, re.M)
        for x in line.split(",")
    }
    missing = [name for name in signature.parameters if name not in named]
    return f"Parameters lacks {', '.join(missing)}" if missing else ""


@pytest.mark.parametrize("name", FUNCTIONS)
def test_docstring(name):
    function = FUNCTIONS[name]
    assert not problem(function, inspect.getdoc(function) or "")


def test_problems_are_found():
    def function(x, *rest, **options):
        """Unused."""

    whole = "Parameters\n----------\nx, *rest : tensor\n    Operands.\n**options\n    Names.\n"
    for doc, expected in {
        "": "no docstring",
        "return x": "the summary is not a sentence",
        "Return x.": "no section Parameters",
        "Return x, see `no_such_function`.": "no section Parameters",
        "Return x, see `conv2d`.": "",
        f"Return x.\n\n{whole}": "",
        f"Return x.\n\n{whole.replace('**options', '**others')}": "Parameters lacks options",
        f"Return x.\n\n{whole}\nRaises\n------\nx\n": "",
        "Return x.\n\nParameters\n----------\nx : tensor\n\nNotes\n-----\nrest, options\n": (
            "Parameters lacks rest, options"
        ),
    }.items():
        assert problem(function, doc) == expected, doc

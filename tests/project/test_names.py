"""Public names: on the API page, in ``dir``, and of functions and modules."""

from __future__ import annotations

import importlib
import inspect
import operator
import pkgutil
import re
import types
from pathlib import Path

import pytest

import dnnops
import dnnops.gpu

API_PAGE = Path(__file__).parents[2] / "docs" / "api.rst"
DIRECTIVE = re.compile(
    r"^\.\. auto(?P<kind>\w+):: (?P<name>\S+)(?P<options>(?:\n +:.*)*)", re.MULTILINE
)
FAMILY = re.compile(r"^\.\. nnet-family:: (\S+)", re.MULTILINE)
MEMBERS = re.compile(r":members:(?P<names>.*)")
#: Packages from which users import names.
PUBLIC_PACKAGES = (
    "dnnops",
    "dnnops.dnn",
    "dnnops.gpuarray",
    "dnnops.layers",
    "dnnops.nnet",
    "dnnops.optim",
)


def _documented(module: types.ModuleType) -> list[str]:
    """Return the names that Sphinx documents for a module whose members are not listed."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == module.__name__
    ]


def _api_names() -> list[str]:
    """Return every dotted name on the API page."""
    names = []
    for directive in DIRECTIVE.finditer(API_PAGE.read_text()):
        name = directive["name"]
        names.append(name)
        members = MEMBERS.search(directive["options"])
        if directive["kind"] == "module" and members:
            listed = members["names"].replace(",", " ").split()
            found = listed or _documented(importlib.import_module(name))
            names += [f"{name}.{member}" for member in found]
    for family in FAMILY.findall(API_PAGE.read_text()):
        importlib.import_module(f"dnnops.nnet.{family}")
        for name in dnnops.nnet.__all__:
            module = getattr(dnnops.nnet, name).__module__
            if module.startswith(f"dnnops.nnet.{family}."):
                names.append(f"{module}.{name}")
    return names


def _packages() -> list[types.ModuleType]:
    """Return every package that can be imported with the installed libraries."""
    folder = Path(dnnops.__file__).parent
    packages = []
    for found in sorted(folder.rglob("__init__.py")):
        name = ".".join(("dnnops", *found.parent.relative_to(folder).parts))
        try:
            packages.append(importlib.import_module(name))
        except ModuleNotFoundError as error:
            if error.name not in ("jax", "torch"):  # of PyTensor's other linkers
                raise
    return packages


def test_names_of_the_api_page_are_attributes() -> None:
    # Implementations of Ops are loaded when they are needed.
    for module in pkgutil.walk_packages(dnnops.gpu.__path__, "dnnops.gpu."):
        importlib.import_module(module.name)
    names = _api_names()
    assert len(names) > 150
    wrong = []
    for name in names:
        try:
            operator.attrgetter(name.removeprefix("dnnops."))(dnnops)
        except AttributeError as error:
            wrong.append(f"{name}: {error}")
    assert wrong == []


def test_every_name_of_nnet_is_on_the_api_page() -> None:
    on_page = {name.rpartition(".")[2] for name in _api_names()}
    assert set(dnnops.nnet.__all__) - on_page == set()


def test_no_name_hides_a_module() -> None:
    packages = _packages()
    assert len(packages) > 8
    hidden = [
        f"{package.__name__}.{module.name}"
        for package in packages
        for module in pkgutil.iter_modules(package.__path__)
        if not isinstance(vars(package).get(module.name, package), types.ModuleType)
    ]
    assert hidden == []


@pytest.mark.parametrize("name", PUBLIC_PACKAGES)
def test_dir_holds_public_names_only(name: str) -> None:
    package = importlib.import_module(name)
    assert dir(package) == sorted(package.__all__)
    for public in dir(package):
        value = getattr(package, public)
        if isinstance(value, types.ModuleType):
            assert value.__name__ == f"dnnops.{public}"
        elif isinstance(value, type) or callable(value):
            assert value.__module__.startswith("dnnops."), public


def test_softmax_is_no_module() -> None:
    assert not isinstance(getattr(dnnops.nnet, "softmax", None), types.ModuleType)

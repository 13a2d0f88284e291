"""The page on architecture: its components and picture, and the steps of real convolutions."""

from __future__ import annotations

import ast
import configparser
import importlib.util
import re
import sys
from pathlib import Path

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import dnnops
from dnnops.cpu.conv import OneDnnConv
from dnnops.gpu.conv import GpuDnnConv
from dnnops.gpuarray.type import GpuArrayType
from dnnops.nnet import conv2d
from dnnops.runtime.build import LIBRARIES
from dnnops.runtime.op import RuntimeOp, operand_access

PACKAGE = Path(dnnops.__file__).parent
DOCS = PACKAGE.parent / "docs"

if not DOCS.exists():
    pytest.skip("the documentation is not beside the package", allow_module_level=True)


def page_data():
    """The module that the page is made from; it is not on the path."""
    spec = importlib.util.spec_from_file_location("architecture", DOCS / "_ext/architecture.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["architecture"] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


DATA = page_data()
LAYERS, CALLS = DATA.LAYERS, DATA.CALLS
#: The greatest number of steps on each device, and the library's function at the end.
ENDS = {"cpu": (10, "dnnl_primitive_execute"), "gpu": (14, "cudnnConvolutionForward")}
STEPS = [step for call in CALLS.values() for step in call]


def of_python(device):
    return [step for step in CALLS[device] if step.file.endswith(".py")]


def of_c(device):
    return [step for step in CALLS[device] if not step.file.endswith(".py")]


def python_names(path):
    """Dotted names of the functions and methods that a Python file defines."""
    names = set()

    def visit(node, prefix):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | ast.FunctionDef):
                names.add(prefix + child.name)
                visit(child, f"{prefix}{child.name}.")

    visit(ast.parse(path.read_text()), "")
    return names


def declares_op(text, function):
    """Whether a C++ file declares the Op whose exported function has this name."""
    return re.search(rf"^DNNOPS_OP\({function.removeprefix('dnnops_')}, ", text, re.M) is not None


def defines_in_c(text, function):
    """Whether a C++ file has the body of a function, or of a method inside of its class."""
    if declares_op(text, function):
        return True
    scope, _, name = function.rpartition("::")
    if scope and re.search(rf"\bclass {scope}\b[^;]*\{{", text):
        function = name
    # Not `if (function(x)) {`, which is a call.
    start = r"(?m)^(?!\s*(?:if|for|while|switch|return|else)\b)[^\n(=]*\b"
    return re.search(rf"{start}{re.escape(function)}\([^;{{]*\)[\w\s]*\{{", text) is not None


@pytest.mark.parametrize(
    ("text", "is_definition"),
    [
        ("int choose(int x) {", True),
        ("  void choose(int x,\n    int y) const {", True),
        ("  if (choose(x)) {", False),
        ("  } else if (choose(x)) {", False),
        ("  for (int i = choose(x); i < n(); i++) {", False),
        ("int choose(int x);\nint other() {", False),
    ],
)
def test_calls_are_not_definitions(text, is_definition):
    assert defines_in_c(text, "choose") == is_definition


def test_length():
    for device, (most, _) in ENDS.items():
        assert len(CALLS[device]) <= most
        assert [*of_python(device), *of_c(device)] == list(CALLS[device])


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.function)
def test_function_is_defined(step):
    path = PACKAGE / step.file
    if path.suffix == ".py":
        assert step.function in python_names(path)
    else:
        assert defines_in_c(path.read_text(), step.function)


def calls_of_package(run):
    """File and dotted name of each Python function of the package that a call enters, in order."""
    root, calls = f"{PACKAGE}/", []

    def note(frame, event, argument):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(root):
            calls.append((code.co_filename.removeprefix(root), code.co_qualname))

    former = sys.getprofile()
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(former)
    return calls


def require_in_order(steps, calls):
    left = iter(calls)
    for step in steps:
        assert any(
            file == step.file and f"{name}.<locals>.".startswith(f"{step.function}.<locals>.")
            for file, name in left
        ), f"{step.function} in {step.file} was not called after the step before"


@pytest.fixture
def compile_anew(monkeypatch):
    """Let every Op emit its C code: PyTensor keeps no module of an Op without a version."""
    monkeypatch.setattr(RuntimeOp, "c_code_cache_version", lambda self: ())


X, W = (pt.tensor(dtype="float32", shape=(None,) * 4) for _ in range(2))


def test_cpu_in_order(compile_anew):
    x, w = np.ones((2, 3, 8, 8), "float32"), np.ones((4, 3, 3, 3), "float32")

    def run():
        function = pytensor.function([X, W], conv2d(X, W), mode="ONEDNN")
        np.testing.assert_allclose(function(x, w), np.full((2, 4, 6, 6), 27), rtol=1e-5)

    require_in_order(of_python("cpu"), calls_of_package(run))


@pytest.mark.needs("cudnn", "cupy")
def test_gpu_in_order(compile_anew):
    """Compiled for a GPU, but not run."""
    with pytensor.config.change_flags(dnn__enabled="no_check"):
        calls = calls_of_package(lambda: pytensor.function([X, W], conv2d(X, W), mode="CUDNN"))
    require_in_order(of_python("gpu"), calls)


@pytest.mark.parametrize(
    ("device", "op", "operand_type"),
    [("cpu", OneDnnConv(), X.type), ("gpu", GpuDnnConv(), GpuArrayType("float32", (None,) * 4))],
    ids=["cpu", "gpu"],
)
def test_c_in_order(device, op, operand_type):
    """The emitted code calls the first two functions; each of the others is called before it."""
    header, entry, *others = of_c(device)
    access = operand_access(operand_type)
    assert access.header == Path(header.file).name
    assert header.function == access.read
    assert entry.function == op.function
    text = (PACKAGE / entry.file).read_text()
    assert declares_op(text, op.function)
    for step in others:
        scope, _, name = step.function.rpartition("::")
        called = rf"\b{scope}\b" if name.startswith("operator") else rf"(?<!::)\b{name}\("
        assert re.search(called, text), f"nothing before it calls {step.function}"
        text += (PACKAGE / step.file).read_text()
    last = (PACKAGE / others[-1].file).read_text()
    name = others[-1].function.rpartition("::")[2]
    assert ENDS[device][1] in last[last.index(f"{name}(") :]


def test_library_exports_the_entry():
    assert LIBRARIES["onednn"].address(of_c("cpu")[1].function)


@pytest.mark.needs("cudnn")
def test_gpu_library_exports_the_entry():
    assert LIBRARIES["cudnn"].address(of_c("gpu")[1].function)


def test_every_module_has_a_component():
    names = [
        name
        for layer in LAYERS
        for component in layer
        for name in (component.name, *component.modules)
    ]
    assert len(names) == len(set(names))
    # A folder of a former version may be left with compiled files.
    found = {path.relative_to(PACKAGE).parts[0] for path in PACKAGE.rglob("*.py")}
    assert {name.removesuffix(".py") for name in found} | {"c_code"} == {*names, "__init__"}


def test_picture_has_the_order_that_is_checked():
    """Import-linter's contract has more rows than the picture."""
    settings = configparser.ConfigParser(interpolation=None)
    settings.read(PACKAGE.parent / "setup.cfg")
    rows = settings["importlinter:direction"]["layers"].strip().splitlines()
    height = {name: i for i, row in enumerate(rows) for name in re.findall(r"\w+", row)}
    lowest = -1
    for layer in LAYERS:
        names = {name for component in layer for name in (component.name, *component.modules)} - {
            "c_code"
        }
        assert min(height[name] for name in names) > lowest
        lowest = max(height[name] for name in names)
    assert lowest == len(rows) - 1


def test_page_describes_every_component():
    page = (DOCS / "architecture.rst").read_text()
    described = re.findall(r"^``(\w+)``\n   ", page, re.MULTILINE)
    assert described == [component.name for layer in LAYERS for component in layer]
    for layer in LAYERS:
        for component in layer:
            assert f">{component.name}</text>" in DATA.picture()


@pytest.mark.parametrize(
    "page", ["contributing/adding_an_op.rst", "architecture.rst", "../CONTRIBUTING.rst"]
)
def test_files_on_pages_exist(page):
    text = (DOCS / page).read_text()
    paths = set(re.findall(r"``((?:dnnops|tests|docs)/[\w./*]*)``", text))
    assert paths
    assert not [path for path in paths if not any(PACKAGE.parent.glob(path))]

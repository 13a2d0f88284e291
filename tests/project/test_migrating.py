"""Names, arguments and defaults are Theano's, or docs/migrating.rst documents the difference."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

import dnnops.dnn
import dnnops.nnet
import dnnops.theano

GUIDE = (Path(__file__).parents[2] / "docs" / "migrating.rst").read_text(encoding="utf-8")


#: A line for each function and class of Theano 1.0.5, ``name(argument, argument=default)``.
SIGNATURES = (Path(__file__).parent / "theano_signatures.txt").read_text(encoding="utf-8")

#: Argument names that differ, as in the guide's table.
OTHER_NAMES = {
    "softmax": ["x"],
    "logsoftmax": ["x"],
}
#: Defaults that mean the same: of `dilation` one for each axis, and numbers for each axis.
SAME_MEANING = [{sizes, meaning} for sizes in ((1, 1), (1, 1, 1)) for meaning in (1, None)]


def recorded() -> Iterator[Any]:
    """Return modules, names and arguments of Theano."""
    module = ""
    for line in SIGNATURES.splitlines():
        if line.startswith("["):
            module = line.strip("[]")
        elif line and not line.startswith("#"):
            name, _, arguments = line.partition("(")
            call: Any = ast.parse(f"def f({arguments}: pass").body[0]
            names = [argument.arg for argument in call.args.args]
            defaults = [ast.literal_eval(default) for default in call.args.defaults]
            yield pytest.param(module, name, names, defaults, id=f"{module}.{name}")


@pytest.fixture(scope="module")
def installed() -> Iterator[None]:
    dnnops.theano.install()
    yield
    dnnops.theano.uninstall()


@pytest.mark.parametrize(("module", "name", "names", "defaults"), list(recorded()))
@pytest.mark.usefixtures("installed")
def test_signatures(module, name, names, defaults):
    """Theano's arguments come first, in its order, with its defaults; others may follow."""
    found = attrgetter(name)(importlib.import_module(module))
    parameters = [p for p in inspect.signature(found).parameters.values() if p.name != "self"]
    kind = inspect.Parameter
    variadic = {p.kind for p in parameters} & {kind.VAR_POSITIONAL, kind.VAR_KEYWORD}
    own = [
        p.name for p in parameters if p.kind in (kind.POSITIONAL_ONLY, kind.POSITIONAL_OR_KEYWORD)
    ]
    assert own[: len(names)] == OTHER_NAMES.get(name, names)
    assert not variadic or name == "conv2d" or name.startswith("GpuDnnConvGrad")
    by_name = {p.name: p.default for p in parameters}
    required = len(names) - len(defaults)
    for argument, default in zip(own[required : len(names)], defaults, strict=True):
        same = by_name[argument] == default
        assert same or {by_name[argument], default} in SAME_MEANING, argument
    # No other argument is required.
    assert all(p.default is not p.empty for p in parameters[len(names) :] if p.kind not in variadic)


def test_the_record_is_whole():
    assert len(list(recorded())) > 130
    assert "softmax" in GUIDE[GUIDE.index("What differs") :]


@pytest.mark.parametrize(
    ("module", "theirs"),
    [
        (dnnops.dnn, "theano.gpuarray.dnn"),
        (dnnops.nnet, "theano.tensor.nnet"),
        (dnnops.nnet, "theano.tensor.signal.pool"),
    ],
)
def test_names(module, theirs):
    """Functions are also in their modules; Theano's Op classes are in the table."""
    for parameters in recorded():
        where, name, *_ = parameters.values
        if not where.startswith(theirs) or "." in name or hasattr(module, name):
            continue
        assert name[0].isupper() or name in ONLY_INSTALLED, name
        others = (
            importlib.import_module(f"dnnops.theano.{m}")
            for m in ("ops", "abstract_conv", "blocksparse")
        )
        assert any(hasattr(other, name) for other in others), name


#: Functions that are useful only together with Theano's names.
ONLY_INSTALLED = {
    "ctc_available", "ctc_present", "logsoftmax_op", "sigmoid_inplace", "softmax_grad",
    "softmax_op",
}  # fmt: skip


@pytest.mark.parametrize("name", ["GpuDnnRNNOp", "GpuDnnRNNGradInputs", "GpuDnnRNNGradWeights"])
def test_missing_names_are_in_the_guide(name):
    assert not hasattr(dnnops.dnn, name)
    assert name in GUIDE


def test_the_guide_has_a_table():
    section = GUIDE[GUIDE.index("What differs") :]
    assert ".. list-table::" in section
    assert not [line for line in section.splitlines() if line.startswith("* ")]

"""Names and arguments of other libraries: each exists, or the error says what to use."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from dnnops import layers, nnet, optim
from dnnops.errors import DnnTypeError
from dnnops.foreign_layers import INITIALIZERS, LAYERS
from dnnops.foreign_optimizers import OPTIMIZERS
from dnnops.hints import name_hint

PACKAGES = {"layers": layers, "nnet": nnet, "optim": optim}
TORCH = {
    "layers": ("torch.nn", "torch.nn.init", "torch.nn.utils"),
    "nnet": ("torch.nn.functional",),
    "optim": ("torch.optim", "torch.optim.lr_scheduler", "torch.optim.swa_utils"),
}
#: Public in PyTorch's modules, but only imported there, or undocumented.
INTERNAL = re.compile(
    "assert_int_or_pair|boolean_dispatch|(handle|has)_torch_function.*|factory_kwargs|Tensor|"
    "ScalingType|SwizzleType|BroadcastingList.|skip_init|fuse_(conv|linear)_.*"
)


def _stored_names() -> dict[str, list[str]]:
    text = (Path(__file__).parent / "foreign_names.txt").read_text()
    sections = re.split(r"^\[(\w+)\]$", text, flags=re.MULTILINE)
    return {name: names.split() for name, names in zip(sections[1::2], sections[2::2], strict=True)}


def _without_hint(package: str, names: list[str]) -> list[str]:
    """Return the names that a package neither has nor explains.

    That a name is similar to another one explains nothing: those are the names of other things.
    """
    module = PACKAGES[package]
    missing = []
    for name in names:
        if not hasattr(module, name):
            with pytest.raises(AttributeError, match=f"has no attribute '{name}'") as caught:
                getattr(module, name)
            if "; use " not in str(caught.value):
                missing.append(name)
    return missing


@pytest.mark.parametrize("package", PACKAGES)
def test_stored_names(package: str):
    names = _stored_names()[package]
    assert len(names) > 100
    assert _without_hint(package, names) == []


def _torch_names(module: str) -> Iterator[tuple[str, Callable[..., Any]]]:
    for name, value in vars(import_module(module)).items():
        home = getattr(value, "__module__", None) or "torch"
        public = not name.startswith("_") and not INTERNAL.fullmatch(name)
        if public and callable(value) and home.startswith("torch"):
            yield name, value


@pytest.mark.needs("torch")
@pytest.mark.parametrize("package", PACKAGES)
def test_names_of_torch(package: str):
    names = [name for module in TORCH[package] for name, _ in _torch_names(module)]
    assert len(names) > 20
    assert _without_hint(package, names) == []


def _counterpart(package: str, name: str) -> Callable[..., Any] | None:
    """Return what dnnops has under a name, or under the name that a hint begins with."""
    if name in PACKAGES[package].__all__:
        return getattr(PACKAGES[package], name)
    hint = name_hint(f"dnnops.{package}", name)
    found = re.fullmatch(
        r"; use (?:the function )?(layers|nnet|optim)\.(\w+)( with [\w ]*|, which.*|\(.*\))?", hint
    )
    return getattr(PACKAGES[found[1]], found[2]) if found else None


def _parameters(name: str, function: Callable[..., Any]) -> list[str]:
    """Return the names of the arguments of a function of PyTorch, of one in C by its docstring."""
    try:
        return list(inspect.signature(function).parameters)
    except ValueError:
        found = re.search(rf"\b{name}\((.*?)\) ->", function.__doc__ or "")
        names = [text.partition("=")[0].strip() for text in found[1].split(",")] if found else []
        return [name for name in names if name.isidentifier()]


@pytest.mark.needs("torch")
def test_arguments_of_torch():
    """Each argument is taken, or the error says what to give or to do instead."""
    missing, calls = [], 0
    for package, modules in TORCH.items():
        for name, function in (pair for module in modules for pair in _torch_names(module)):
            own = _counterpart(package, name)
            if own is None or not callable(own):
                continue
            known = inspect.signature(own).parameters
            for argument in _parameters(name, function):
                if argument in (*known, "self", "args", "kwargs") or argument.startswith("_"):
                    continue
                calls += 1
                with pytest.raises(DnnTypeError, match=f"argument '{argument}'") as caught:
                    own(**{argument: 1})
                if "; it takes " in str(caught.value) or "did you mean" in str(caught.value):
                    missing.append((name, str(caught.value)))
    assert calls > 400
    assert missing == []


@pytest.mark.parametrize(
    ("name", "argument", "hint"),
    [
        ("layers.Softmax", "dim", "nnet.softmax and nnet.log_softmax have axis"),
        ("layers.Embedding", "max_norm", "max_norm: optim.clip_by_norm clips gradients"),
        ("layers.CrossEntropyLoss", "weight", "use weights for weight"),
        ("layers.MaxPool2d", "dilation", "dilation: it is not available here"),
        ("layers.Module", "requires_grad", "give the optimizer the parameters to train"),
        ("layers.InstanceNorm2d", "momentum", "there are no running averages"),
        ("layers.kaiming_normal_", "a", "use negative_slope for a"),
        ("layers.normal_", "tensor", "as the argument initializer of a layer"),
        ("nnet.ctc_loss", "zero_infinity", "replace infinite costs"),
        ("nnet.binary_cross_entropy", "size_average", "take the mean or the sum"),
        ("optim.StepLR", "optimizer", "a schedule is an argument of the optimizer"),
        ("optim.OneCycleLR", "epochs", "steps is the number of all steps"),
        ("optim.Adam", "fused", "fused: it is not available"),
    ],
)
def test_arguments(name: str, argument: str, hint: str):
    package, _, plain = name.partition(".")
    own = _counterpart(package, plain)
    assert own is not None
    with pytest.raises(DnnTypeError, match=re.escape(hint)):
        own(**{argument: 1})


def test_each_name_stands_once():
    """A name under two hints of a table would have only the last one."""
    for tables in ((LAYERS, INITIALIZERS), (OPTIMIZERS,)):
        names = [name for table in tables for text in table.values() for name in text.split()]
        assert sorted(names) == sorted(set(names))

"""Bad arguments of public functions raise only errors of dnnops, which name the argument."""

from __future__ import annotations

import inspect
import re
import warnings
from typing import Any

import pytest

from dnnops import dnn, nnet
from dnnops.errors import DnnError, DnnTypeError, DnnUnavailableError
from tests.bad_arguments import DNN, NEVER, NNET, OPS, SOMETIMES, SWITCHES

_MODULES = {"nnet": (nnet, NNET), "dnn": (dnn, DNN)}
_FUNCTIONS = [(module, name) for module, (_, table) in _MODULES.items() for name in table]
# Functions without arguments, or whose argument is a device.
_UNTRIED = {
    "dnn": {"dnn_available", "dnn_present", "version"},
    "nnet": set(),
}


# Volumes are taken as well, and then it is the other operand that does not fit.
_VOLUMES = {("dnn_conv", "img"), ("dnn_gradinput", "kerns"), ("dnn_gradweight", "img")}
# Old names, for which a message may give the current name.
_OLD_NAMES = {"ds": "ws", "st": "stride", "padding": "pad"}


def is_flag(parameter: inspect.Parameter) -> bool:
    return parameter.annotation in ("bool", "bool | None", bool)


def outcome(call: Any, name: str) -> str:
    """Return how a call with a bad argument `name` misbehaves; empty if it does not."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            call()
    except DnnUnavailableError:
        return ""  # a value of the device, without CuPy
    except DnnError as error:
        found = str(error)
        if not re.search(rf"\b(?:{name}|{_OLD_NAMES.get(name, name)})\b", found):
            return f"does not name it: {found}"
        return "has a message of many lines" if "\n" in found or len(found) > 900 else ""
    except Exception as error:
        return f"raises {type(error).__name__}: {error}"
    return "accepted"


@pytest.mark.parametrize(("module", "name"), _FUNCTIONS)
def test_a_bad_argument_raises_an_error_that_names_it(module, name):
    functions, table = _MODULES[module]
    function, arguments = getattr(functions, name), table[name]
    function(**arguments)
    wrong = []
    for parameter in inspect.signature(function).parameters.values():
        for label, value in {**NEVER, **SOMETIMES}.items():
            if label == "float32 of 5 axes" and (name, parameter.name) in _VOLUMES:
                continue
            found = outcome(
                lambda p=parameter.name, v=value: function(**{**arguments, p: v}), parameter.name
            )
            optional = value is None and parameter.default is None
            flag = is_flag(parameter) and label not in SWITCHES and not optional
            if found == "accepted" and not (flag or label in NEVER):
                continue
            if found:
                wrong.append(f"{parameter.name}={label}: {found}"[:300])
    assert not wrong, f"{len(wrong)} arguments of {name}:\n" + "\n".join(wrong[:20])


@pytest.mark.parametrize("module", _MODULES)
def test_every_public_function_is_tried(module):
    functions, table = _MODULES[module]
    public = {
        name
        for name in functions.__all__
        if inspect.isfunction(getattr(functions, name))
        and getattr(functions, name).__module__.startswith("dnnops.")
    }
    assert public - _UNTRIED[module] == set(table)


def ops_with_flags() -> list[Any]:
    found = []
    for module in (nnet, dnn):
        for name in module.__all__:
            cls = getattr(module, name)
            if not inspect.isclass(cls) or "__init__" not in {
                method for base in cls.__mro__[:-1] for method in vars(base)
            }:
                continue
            flags = [p.name for p in inspect.signature(cls).parameters.values() if is_flag(p)]
            if flags:
                found.append(pytest.param(cls, flags, id=f"{module.__name__}.{name}"))
    return found


@pytest.mark.parametrize(("cls", "flags"), ops_with_flags())
def test_flags_of_ops_are_true_or_false(cls, flags):
    needed = OPS.get(cls.__name__, {})
    for flag in flags:
        others = {other: False for other in flags if other != flag}
        for value in ("no", "False", "", float("nan"), 2, -1, 0.0, [], (1, 1), object()):
            with pytest.raises(DnnTypeError, match=rf"\b{flag} must be True or False, got"):
                cls(**{**others, **needed, flag: value})

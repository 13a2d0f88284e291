"""Optimizers of float32 parameters stay float32, whatever the numbers that they are given."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from dnnops import optim
from tests.nnet.test_widening import wide_nodes

OPTIMIZERS = {
    name: function
    for name, function in vars(optim).items()
    if inspect.isfunction(function) and "learning_rate" in inspect.signature(function).parameters
}
#: Learning rates, each a number, a variable, or a schedule.
RATES: dict[str, Any] = {
    "number": 0.1,
    "int": 1,
    "NumPy": np.float64(0.1),
    "float64 variable": pt.dscalar(),
    "int variable": pt.iscalar(),
    "shared": pytensor.shared(np.array(0.1)),
    "linear": optim.linear(0.1, 10, 3),
    "cosine": optim.cosine(0.1, 10, 3),
    "exponential": optim.exponential(0.1, 0.5),
    "piecewise": optim.piecewise([0.1, 0.2], [5]),
    "own": lambda step: 1 / (step + 1),
}


def numbers(function: Any) -> Iterator[dict[str, Any]]:
    """Yield values for all arguments that are numbers or switches, one by one and together."""
    found: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if isinstance(parameter.default, float) and name != "learning_rate":
            found[name] = np.float64(0.3)
        elif parameter.default is False:
            found[name] = np.bool_(True)
    assert len(found) >= 2
    yield {}
    yield from ({name: value} for name, value in found.items() if name != "nesterov")
    yield found


@pytest.mark.parametrize("floatx", ["float32", "float64"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_updates(dtype, floatx):
    assert {"adam", "adamw", "rmsprop", "sgd"} <= set(OPTIMIZERS)
    wrong = {}
    with pytensor.config.change_flags(floatX=floatx):
        parameter = pytensor.shared(np.ones((2, 3), dtype))
        loss = pt.sqr(parameter).sum(dtype="float32")
        for name, function in OPTIMIZERS.items():
            cases = [(rate, {}) for rate in RATES] + [("number", n) for n in numbers(function)]
            for rate, arguments in cases:
                updates = function(loss, [parameter], learning_rate=RATES[rate], **arguments)
                if found := wide_nodes([x for x in updates.values() if x.type.ndim]):
                    wrong[name, rate, *arguments] = found[:3]
        gradient = pytensor.grad(loss, parameter)
        for limit in (1, 0.3, np.float64(0.3), pt.dscalar(), pt.iscalar()):
            if found := wide_nodes(optim.clip_by_norm([gradient], limit)):
                wrong["clip_by_norm", str(limit)] = found[:3]
    assert not wrong

"""Training steps of the benchmark's networks agree with their graphs in float64.

`compare.check` explains the bounds.
"""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.model_zoo import MODELS, RATES
from tests.networks import models
from tests.networks.compare import check
from tests.networks.models import model
from tests.networks.settings import DEVICES, PRECISIONS, Settings
from tests.oracle import sampled

#: Number of training steps on each device. A wrong rewrite shows in the first ones, and NumPy
#: computes each step of a rewritten network several times.
STEPS = {"cpu": 20, "cuda": 20, "rewritten": 8}
#: Sizes that differ from the small ones of the benchmark: NumPy computes each step several times.
#: The images and batches leave batch normalization enough numbers to be well-conditioned.
SIZES: dict[str, dict[str, int]] = {
    "mlp": {"batch": 8, "width": 32},
    "resnet": {"batch": 16, "width": 4, "size": 32},
    "vgg": {"batch": 16, "width": 8, "size": 16, "hidden": 16},
    "mobilenet": {"batch": 16, "width": 4, "size": 32},
    "unet": {"batch": 8, "width": 4, "size": 16},
    "lstm": {"batch": 8, "width": 16, "steps": 8, "classes": 16},
    "transformer": {"batch": 8, "width": 16, "steps": 8, "classes": 16},
}
#: Networks whose tests take a few seconds; on the CPU, C code is compiled.
QUICK = {"cpu": ("mlp", "lstm"), "cuda": tuple(MODELS), "rewritten": ("mlp", "lstm", "vgg")}
#: Precisions of the other networks. All graphs are rewritten alike, so each precision adds little.
OF_SLOW = {"cpu": ("float32",), "rewritten": ("float32", "bfloat16")}


#: The slow networks that run on the CPU in this commit: compiling them takes a minute each.
ON_CPU = sampled(set(MODELS) - set(QUICK["cpu"]), 2)


def cases() -> list[Any]:
    """Return ``parametrize`` arguments: networks on each device, in their precisions."""
    found = []
    for name in MODELS:
        for device in DEVICES:
            is_slow = name not in QUICK[device]
            if device == "cpu" and is_slow and name not in ON_CPU:
                continue
            for precision in OF_SLOW[device] if is_slow else PRECISIONS[device]:
                marks = [pytest.mark.gpu] if device == "cuda" else []
                if is_slow:
                    marks.append(pytest.mark.slow)
                if precision == "bfloat16":
                    marks.append(pytest.mark.needs("ml_dtypes"))
                found.append(pytest.param(name, device, precision, marks=marks))
    return found


@pytest.fixture(autouse=True)
def large_steps(monkeypatch):
    """With larger steps than in the benchmark, a wrong gradient shows sooner."""
    monkeypatch.setitem(RATES, "sgd", 1e-3)


@pytest.mark.parametrize(("name", "device", "precision"), cases())
def test_training_steps(name, device, precision):
    sizes = {**MODELS[name].sizes, **SIZES[name]}
    settings = Settings(precision, on_device=device == "cuda")
    outcome = check(model(name, sizes), device, settings, STEPS[device])
    assert not outcome.failures, "\n".join(outcome.failures[:5])
    assert outcome.compared > outcome.uncertain


def test_a_wrong_update_is_found(monkeypatch):
    """The bounds are narrower than an error of the optimizer."""
    updates = models.optimizer_updates

    def wrong(optimizer, parameters, gradients, step, shared):
        more = [gradient * 1.01 for gradient in gradients]
        return updates(optimizer, parameters, more, step, shared)

    def run(make, settings, calls, notes):
        with monkeypatch.context() as patched:
            patched.setattr(models, "optimizer_updates", wrong)
            return original(make, settings, calls, notes)

    from tests.networks import backends

    original = backends.RUNS["rewritten"]
    monkeypatch.setitem(backends.RUNS, "rewritten", run)
    sizes = {**MODELS["mlp"].sizes, **SIZES["mlp"]}
    assert check(model("mlp", sizes), "rewritten", Settings(), 2).failures

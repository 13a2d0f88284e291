"""Random networks give the same results as their graphs in float64.

``python -m tests.networks`` runs more of them. `compare.check` explains the bounds.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict

import numpy as np
import pytensor.tensor as pt
import pytest
from pytensor import scalar
from pytensor.tensor.elemwise import Elemwise

from tests.networks.__main__ import _settings as settings_of
from tests.networks.__main__ import main, summarize
from tests.networks.compare import Outcome
from tests.networks.examine import Report, examine, shrunk
from tests.networks.layers import LAYERS
from tests.networks.network import sketch
from tests.networks.reference import Program
from tests.networks.settings import Settings, random_settings

#: Seeds of a test with a device.
CHUNK = 10
#: Nodes of the networks in tests that are not slow.
FEW_NODES = 15


def check(seeds: range, device: str, **options: int) -> list[Report]:
    reports = [examine(seed, device, **options) for seed in seeds]
    messages = [report.message for report in reports if report.message]
    assert not messages, "\n\n".join(messages)
    return reports


@pytest.mark.parametrize("first", range(0, 10, 5))
@pytest.mark.parametrize("device", ["cpu", "rewritten"])
def test_small_networks(device, first):
    reports = check(range(first, first + 5), device, most=FEW_NODES)
    outcomes = [report.outcome for report in reports]
    assert sum(o.compared for o in outcomes) > 2 * sum(o.uncertain for o in outcomes)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 30, CHUNK))
@pytest.mark.parametrize("device", ["cpu", "rewritten"])
def test_networks(device, first):
    check(range(first, first + CHUNK), device)


@pytest.mark.gpu
@pytest.mark.parametrize("first", range(0, 60, CHUNK))
def test_networks_on_the_gpu(first):
    check(range(first, first + CHUNK), "cuda")


# -- the generator -----------------------------------------------------------------------------


def test_a_seed_determines_the_network():
    assert str(sketch(3)) == str(sketch(3))
    assert str(sketch(3)) != str(sketch(4))
    assert sketch(3, 2).steps == sketch(3).steps[:2]


def test_all_layers_occur():
    found = Counter(step.name for seed in range(60) for step in sketch(seed).steps)
    # The others need images with few rows and columns, and are rare.
    assert set(LAYERS) - set(found) <= {"upsampling", "response_normalization"}


@pytest.mark.parametrize("device", ["cpu", "cuda", "rewritten"])
def test_settings_are_read_from_their_text(device):
    for seed in range(20):
        settings = random_settings(seed, device)
        assert settings_of(str(settings)) == settings


# -- these tests can fail ------------------------------------------------------------------------


def test_a_wrong_operation_is_found(monkeypatch):
    """The bound of a network is narrower than an error in one of its layers."""
    from tests.networks import backends

    run = backends.RUNS["cpu"]

    def wrong(*arguments):
        found = run(*arguments)
        return [x if isinstance(x, np.random.Generator) else x * 1.001 for x in found]

    monkeypatch.setitem(backends.RUNS, "cpu", wrong)
    report = examine(0, "cpu", most=FEW_NODES, settings=Settings(), simplify=False)
    assert "off by 0.001" in report.message
    assert "python -m tests.networks --device cpu --seeds 0" in report.message


def test_an_exception_is_a_failure(monkeypatch):
    from tests.networks import backends

    def fails(*arguments):
        raise ZeroDivisionError("a mistake")

    monkeypatch.setitem(backends.RUNS, "cpu", fails)
    report = examine(0, "cpu", most=FEW_NODES)
    assert "ZeroDivisionError in test_networks.py" in report.message


def test_failures_are_simplified():
    drawn = sketch(7)
    guilty = drawn.steps[len(drawn.steps) // 2].name

    def fails(smaller, settings):
        return settings.static and any(step.name == guilty for step in smaller.steps)

    settings = Settings("tf32", without=("fusion",), optimizer="sgd", channels_last=True)
    smaller, simpler = shrunk(drawn, settings, fails)
    assert len(smaller.steps) < 4 < len(drawn.steps)
    assert simpler == Settings()


def test_results_of_fused_nodes_have_the_shape_of_all_operands():
    """A result may read only some of them, as here a vector and a column."""
    x, y = pt.dcol(), pt.dvector()
    a, b, c = (scalar.float64() for _ in range(3))
    fused = Elemwise(scalar.Composite([a, b, c], [scalar.exp(a), scalar.add(a, b), scalar.sqr(c)]))
    z = pt.constant(2.0, dtype="float64").dimshuffle("x", "x")
    outputs = fused(x, y.dimshuffle("x", 0), z)
    values = Program([x, y], outputs)([np.ones((2, 1)), np.ones(3)])
    assert [value.shape for value in values] == [(2, 3)] * 3


def test_noise_changes_what_is_rounded():
    x = pt.dvector()
    program = Program([x], [x[::-1], pt.exp(x)])
    value = np.array([1.0, 2.0])
    np.testing.assert_array_equal(program([value])[0], value[::-1])
    moved, computed = program([value], 1e-3)
    assert 0 < np.max(np.abs(moved - value[::-1])) < 2e-3
    assert 0 < np.max(np.abs(computed / np.exp(value) - 1)) < 4e-3


def test_noise_changes_no_zero():
    """A 16-bit dtype rounds numbers below its smallest ones, but computes zeros exactly."""
    x = pt.dvector()
    value = np.array([0.0, 1e-9])
    (moved,) = Program([x], [x * 2])([value], 1e-3, least=1e-8)
    assert moved[0] == 0
    assert 1e-10 < abs(moved[1] - 2e-9) < 3e-8


def test_the_optimizer_computes_in_float32():
    """Its nodes, and the parameters that it reads, have little noise."""
    p = pt.dvector()
    gradient = p * 3
    value = np.linspace(1, 2, 20)
    noisy, new = Program([p], [gradient, p - 1e-6 * gradient], [gradient])([value], 1e-2)
    assert 1e-3 < np.max(np.abs(noisy / (value * 3) - 1)) < 3e-2
    assert np.max(np.abs(new / value - 1)) < 5e-5


# -- the command ---------------------------------------------------------------------------------


def test_the_summary(capsys):
    good = Report(0, "cpu", "", Outcome(10, 1, 0.25, notes=["a transfer"]))
    bad = Report(1, "cpu", "", Outcome(1, 0, 2.0, ["off"]), "off\nmore")
    assert summarize([asdict(good)], 1) == 0
    assert summarize([asdict(good)], 2) == 1  # a process was lost
    assert summarize([asdict(good), asdict(bad)], 2) == 1
    printed = capsys.readouterr().out
    assert "2 of 2 networks, 1 failed" in printed
    assert "seed 1: off\n" in printed
    assert "1 networks: a transfer" in printed


def test_the_command_runs_one_seed(capsys):
    assert main(["--seeds", "1", "--steps", "1"]) == 0
    assert "1 of 1 networks, 0 failed" in capsys.readouterr().out

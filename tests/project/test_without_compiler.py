"""Without a C++ compiler, the modes of the CPU work, and say once that they are slow."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor import config

from dnnops import modes, nnet
from dnnops.cli import doctor
from dnnops.cli.checks import Finding
from dnnops.cpu import base
from dnnops.errors import DnnWarning
from dnnops.modes import OneDnnMode


@pytest.fixture(autouse=True)
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The library is there, as in a wheel."""
    assert base.onednn_available()[0]
    modes._warn_of_no_compiler.cache_clear()
    with config.change_flags(cxx=""):
        yield
    modes._warn_of_no_compiler.cache_clear()


def compiled() -> Any:
    x = pt.fmatrix("x")
    return pytensor.function([x], pt.exp(x) * 2 + nnet.relu(x), mode=OneDnnMode(linker="vm"))


def test_one_warning_says_what_is_slow():
    with pytest.warns(DnnWarning, match=r"no C\+\+ compiler, so Ops that oneDNN .* install g\+\+"):
        compiled()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled()


def test_no_second_warning_where_onednn_cannot_be_used(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(base, "onednn_available", lambda: (False, "no library"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        modes._warn_of_no_compiler()


@pytest.mark.filterwarnings("ignore:there is no C")
def test_elementwise_ops_run_in_numpy():
    f = compiled()
    names = [type(node.op.scalar_op).__name__ for node in f.maker.fgraph.apply_nodes]
    assert "Composite" not in names
    x = np.array([[-1.0, 0.0, 2.0]], "float32")
    np.testing.assert_allclose(f(x), 2 * np.exp(x) + np.maximum(x, 0), rtol=1e-6)


COMPILER = Finding("C++ compiler", "missing", "no g++ on the PATH", "", "apt-get install g++")
HEADERS = Finding("Python headers", "missing", "no Python.h", "", "apt-get install python3-dev")
OK = Finding("oneDNN", "ok", "3.2.0")


@pytest.mark.filterwarnings("ignore:there is no C")
@pytest.mark.parametrize("findings", [[COMPILER, OK], [COMPILER, HEADERS, OK]])
def test_the_doctor_says_that_it_works_slowly(findings: list[Finding], capsys: Any):
    verdict = doctor.judge_cpu(findings)
    assert verdict.works
    assert "right result; without a C++ compiler" in verdict.reason
    doctor.print_report({"the CPU": findings}, {"cpu": verdict})
    printed = " ".join(capsys.readouterr().out.split())
    assert "CPU: works, slowly: without a C++ compiler, Ops that oneDNN" in printed
    assert "apt-get install g++ # C++ compiler" in printed


@pytest.mark.parametrize(
    "findings",
    [
        [Finding("C++ compiler", "missing", "cannot be run", "/nowhere/g++"), OK],
        [Finding("C++ compiler", "ok", "g++ 13", "/usr/bin/g++"), HEADERS, OK],
        [COMPILER, Finding("oneDNN", "missing", "none")],
    ],
)
def test_what_else_is_missing(findings: list[Finding]):
    verdict = doctor.judge_cpu(findings)
    assert not verdict.works
    assert verdict.summary.startswith("does not work: see ")


def test_without_a_library_it_does_not_work(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(base, "onednn_available", lambda: (False, "no library"))
    verdict = doctor.judge_cpu([COMPILER, HEADERS])
    assert verdict == doctor.Verdict(
        False, "a convolution failed: oneDNN cannot be used: no library"
    )

"""Install Theano's names for one test."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from pytensor import config

import dnnops.theano
from dnnops.theano import flags


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Iterator[None]:
    """Hide this machine's Theano flags, and restore everything after a test."""
    monkeypatch.setenv("THEANORC", str(tmp_path / "theanorc"))
    monkeypatch.delenv("THEANO_FLAGS", raising=False)
    monkeypatch.delenv("DNNOPS_FLAGS", raising=False)
    monkeypatch.setattr(flags, "_adopted", False)
    monkeypatch.setattr(flags, "_device", "")
    monkeypatch.setattr("dnnops.theano.config._without_effect", {})
    before = {name: getattr(config, name) for name in ("device", "floatX", "mode")}
    yield
    dnnops.theano.uninstall()
    assert not any(name.split(".")[0] == "theano" for name in sys.modules)
    for name, value in before.items():
        setattr(config, name, value)


@pytest.fixture
def theano() -> Any:
    """Return the module ``theano``; functions compile without C, for speed."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "PyTensor could not link to a BLAS installation")
        dnnops.theano.install()
        import theano

        with theano.config.change_flags(mode="FAST_COMPILE"):
            yield theano
        dnnops.theano.uninstall()

"""``THEANO_FLAGS``, ``.theanorc`` and ``theano.config``."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import pytest
from pytensor import config
from pytensor.configparser import parse_config_string

import dnnops.theano
from dnnops.errors import DnnValueError
from dnnops.theano import flags


@pytest.mark.parametrize(
    ("name", "value", "translated"),
    [
        ("device", "cpu", ("device", "cpu")),
        ("device", "gpu", ("device", "cuda")),
        ("device", "gpu1", ("device", "cuda1")),
        ("device", "cuda0", ("device", "cuda0")),
        ("floatX", "float32", ("floatX", "float32")),
        ("dnn.conv.algo_fwd", "time_once", ("dnn__conv__algo_fwd", "time_once")),
        ("dnn.conv.workmem", "small", ("dnn__conv__algo_fwd", "small")),
        ("gcc.cxxflags", "-O2", ("gcc__cxxflags", "-O2")),
        ("deterministic", "more", ("dnn__deterministic", "True")),
        ("mode", "ProfileMode", ("profile", "True")),
        ("lib.cnmem", "0.8", None),
        ("nvcc.fastmath", "True", None),
        ("gpuarray.preallocate", "0.5", None),
        ("cuda.root", "/usr/local/cuda", None),
        ("compute_test_value", "raise", None),
    ],
)
def test_translation(name: str, value: str, translated: tuple[str, str] | None):
    assert flags.translate(name, value) == translated


def test_other_devices_are_refused():
    with pytest.raises(DnnValueError, match=r"flag device: 'opencl0:0' is not accepted.*cuda0"):
        flags.translate("device", "opencl0:0")


def test_environment_is_handed_to_pytensor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "theanorc").write_text(
        "[global]\nfloatX = float32\nlinker=py\n[dnn.conv]\nalgo_fwd=none\n"
        "[dnn]\nverbose=False\n[lib]\ncnmem=1\n[gcc]\ncxxflags = -O1 %PATH, -g\n"
    )
    monkeypatch.setenv("THEANO_FLAGS", "linker=vm,'optimizer_excluding=a:b',profile=True")
    monkeypatch.setenv("PYTENSOR_FLAGS", "profile=False,dnn.conv.algo_fwd=large")
    monkeypatch.setenv("DNNOPS_FLAGS", "dnn.verbose=True")
    with pytest.warns(UserWarning, match=r"no effect.*: lib\.cnmem\Z") as caught:
        flags.adopt_environment()
    assert len(caught) == 1
    # The environment takes precedence over the file, and PyTensor's variable over both.
    assert parse_config_string(os.environ["PYTENSOR_FLAGS"]) == {
        "floatX": "float32",
        "linker": "vm",
        "gcc__cxxflags": "-O1 %PATH, -g",
        "optimizer_excluding": "a:b",
        "profile": "False",
        "dnn.conv.algo_fwd": "large",
    }


def test_install_sets_what_can_be_set(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(
        "THEANO_FLAGS",
        "floatX=float32,exception_verbosity=low,optimizer=None,nonsense=1,nvcc.flags=x",
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dnnops.theano.install()
    assert config.floatX == "float32"
    messages = [str(warning.message) for warning in caught]
    assert len(messages) == 3
    assert any("no effect" in text and text.endswith(": nvcc.flags") for text in messages)
    assert any("does not have" in text and text.endswith(": nonsense") for text in messages)
    assert any("before PyTensor" in text and text.endswith(": optimizer") for text in messages)


def test_install_refuses_a_wrong_value(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("THEANO_FLAGS", "floatX=float31")
    with pytest.raises(DnnValueError, match=r"THEANO_FLAGS.*floatX=float31"):
        dnnops.theano.install()
    assert not dnnops.theano.installed()


def test_unreadable_file_is_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "theanorc").write_text("no section\n")
    with pytest.warns(UserWarning, match="theanorc cannot be read"):
        dnnops.theano.install()


def test_dotted_flags(theano: Any):
    assert theano.config.dnn.conv.algo_fwd == config.dnn__conv__algo_fwd
    with theano.config.change_flags(dnn__conv__algo_fwd="large"):
        assert config.dnn__conv__algo_fwd == "large"
        theano.config.dnn.conv.algo_fwd = "none"
        assert config.dnn__conv__algo_fwd == "none"
        assert theano.config.dnn.conv.algo_fwd == "none"
    assert config.dnn__conv__algo_fwd == theano.config.dnn.conv.algo_fwd != "none"
    theano.config.floatX = "float32"
    assert config.floatX == "float32"
    assert theano.tensor.matrix().dtype == "float32"
    assert theano.config.gcc.cxxflags == config.gcc__cxxflags
    assert {"floatX", "dnn", "gcc", "device"} <= set(dir(theano.config))
    assert "algo_fwd" in dir(theano.config.dnn.conv)
    with pytest.raises(AttributeError, match=r"no flag dnn\.nonsense"):
        theano.config.dnn.nonsense  # noqa: B018
    with pytest.raises(AttributeError, match="no flag nonsense"):
        theano.config.nonsense = 1


def test_change_flags_decorates(theano: Any):
    from theano.configparser import change_flags

    @change_flags([("dnn.conv.algo_fwd", "large")], floatX="float16")
    def inside() -> tuple[str, str]:
        return config.dnn__conv__algo_fwd, config.floatX

    before = config.dnn__conv__algo_fwd, config.floatX
    assert inside() == ("large", "float16")
    assert (config.dnn__conv__algo_fwd, config.floatX) == before
    with pytest.raises(ValueError, match="float31"), change_flags(floatX="float31"):
        pass
    assert config.floatX == before[1]


def test_theanos_own_flags_warn_once(theano: Any):
    theano.config.compute_test_value = "off"  # as it is
    with pytest.warns(UserWarning, match=r"compute_test_value"):
        theano.config.compute_test_value = "raise"
    theano.config.compute_test_value = "warn"
    assert theano.config.compute_test_value == "warn"
    assert theano.config.lib.cnmem == 0.0


def test_device_keeps_its_spelling(theano: Any, monkeypatch: pytest.MonkeyPatch):
    """Scripts look for "gpu" at its beginning."""
    assert theano.config.device == config.device == "cpu"
    monkeypatch.setattr(flags, "_device", "gpu0")
    assert theano.config.device == "cpu"
    monkeypatch.setattr(type(config), "device", "cuda0")
    assert theano.config.device == "gpu0"


def test_flags_of_warnings_are_off(theano: Any):
    """Theano warned about bugs of its earlier releases."""
    assert theano.config.warn.sum_div_dimshuffle_bug is False
    assert theano.config.conv.assert_shape is False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        theano.config.warn.sum_div_dimshuffle_bug = False
    with (
        pytest.warns(UserWarning, match="conv.assert_shape"),
        theano.change_flags({"conv.assert_shape": True}),
    ):
        assert theano.config.conv.assert_shape is True
    assert theano.config.conv.assert_shape is False

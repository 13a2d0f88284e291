"""The flag ``mode`` with the names of dnnops' modes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from pytensor.compile.mode import get_mode
from pytensor.configdefaults import config

from dnnops.errors import DnnValueError
from dnnops.mode_flag import MODE_NAMES, mode_kept_back, wanted_mode
from dnnops.modes import DnnMode, OneDnnMode


def run(program: str, **environment: str) -> str:
    flags = ",".join(filter(None, (f"base_compiledir={config.base_compiledir}",
                                   environment.pop("PYTENSOR_FLAGS", ""))))  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env={**os.environ, "PYTENSOR_FLAGS": flags, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


SHOW = """
from pytensor import config
from pytensor.compile.mode import get_default_mode
print(config.mode, type(get_default_mode()).__name__)
"""


def test_pytensor_flags():
    """With dnnops imported first; child processes see the flag as it was given."""
    program = f"import os, dnnops\n{SHOW}\nprint(os.environ['PYTENSOR_FLAGS'])"
    shown, flags = run(program, PYTENSOR_FLAGS="mode=DNN,floatX=float32").splitlines()
    assert shown == "DNN DnnMode"
    assert flags.endswith(",mode=DNN,floatX=float32")


def test_own_variable_with_pytensor_first():
    assert run(f"import pytensor, dnnops\n{SHOW}", DNNOPS_FLAGS="mode=ONEDNN") == (
        "ONEDNN OneDnnMode"
    )


def test_configuration_file(tmp_path):
    file = tmp_path / "rc"
    file.write_text("[global]\nmode = ONEDNN\n")
    assert run(f"import dnnops\n{SHOW}", PYTENSORRC=str(file)) == "ONEDNN OneDnnMode"


def test_set_by_a_program():
    for name, mode in (("DNN", DnnMode), ("ONEDNN", OneDnnMode)):
        with config.change_flags(mode=name):
            assert type(get_mode(None)) is mode
    with pytest.raises(ValueError, match="Expected one of"):
        config.change_flags(mode="DNNX").__enter__()


@pytest.mark.parametrize(
    ("theirs", "own", "file", "wanted"),
    [
        ("mode=DNN", "", "", "DNN"),
        ("device=cpu, mode=CUDNN ,floatX=float32", "", "", "CUDNN"),
        ("mode=DNN,mode=FAST_RUN", "", "", ""),
        ("mode=FAST_RUN", "", "DNN", ""),
        ("", "dnn.verbose=True,mode=ONEDNN", "", "ONEDNN"),
        ("mode=ONEDNN", "mode=ONEDNN", "", "ONEDNN"),
        ("", "", "DNN", "DNN"),
        ("", "", "CVM", ""),
        ("linker=py", "", "", ""),
    ],
)
def test_wanted_mode(monkeypatch, tmp_path, theirs, own, file, wanted):
    (tmp_path / "rc").write_text(f"[global]\nmode = {file}\n" if file else "")
    monkeypatch.setenv("PYTENSORRC", str(tmp_path / "rc"))
    monkeypatch.setenv("PYTENSOR_FLAGS", theirs)
    monkeypatch.setenv("DNNOPS_FLAGS", own)
    assert wanted_mode() == wanted
    monkeypatch.delitem(sys.modules, "pytensor.configdefaults")
    with mode_kept_back():
        hidden = os.environ["PYTENSOR_FLAGS"]
    assert ("mode=Mode" in hidden) == bool(wanted)
    assert not (wanted and any(f"mode={name}" in hidden for name in MODE_NAMES))
    assert os.environ["PYTENSOR_FLAGS"] == theirs


@pytest.mark.parametrize(
    ("theirs", "own", "message"),
    [
        (
            "mode=DNN",
            "mode=CUDNN",
            "DNNOPS_FLAGS sets mode=CUDNN, but PYTENSOR_FLAGS sets mode=DNN",
        ),
        ("", "mode=FAST_RUN", "mode must be one of DNN, CUDNN, ONEDNN, got 'FAST_RUN'"),
    ],
)
def test_contradictions(monkeypatch, theirs, own, message):
    monkeypatch.setenv("PYTENSOR_FLAGS", theirs)
    monkeypatch.setenv("DNNOPS_FLAGS", own)
    with pytest.raises(DnnValueError, match=message):
        wanted_mode()

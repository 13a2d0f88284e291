"""Arguments that no command can use: one line, no traceback, and the exit status 2."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import pytest

from dnnops.__main__ import main
from dnnops.errors import DnnValueError
from dnnops.layers import Linear
from dnnops.runtime import output

ALGOS = ("algos", "--input", "1,3,8,8", "--filter", "8,3,3,3", "--no-time", "--device", "cpu")
SCRIPT = ["", "folder", "missing.py", "binary.py", "-1", "\udce9", "a" * 5000]
MODULE = ["", "folder/x", "missing", "binary.py", "-1", "nan", "missing.part", "\udce9"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", ["dnnops"])
    (tmp_path / "folder").mkdir()
    (tmp_path / "binary.py").write_bytes(bytes(range(256)))


@pytest.mark.parametrize(
    "arguments",
    [
        *(("explain", name) for name in SCRIPT),
        *(("explain", "-m", name) for name in MODULE),
        *((*ALGOS, "--dtype", name) for name in ("", "nan", "\udce9", "9" * 400)),
        *((*ALGOS, "--workspace-limit", name) for name in ("", "-1", "nan", "9" * 400)),
        *((*ALGOS, option, "9" * 400) for option in ("--pad", "--stride", "--groups")),
    ],
    ids=lambda arguments: " ".join(arguments)[:60].encode("ascii", "replace").decode(),
)
def test_one_line(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]):
    try:
        status = main(arguments)
    except SystemExit as stop:  # argparse
        status = int(str(stop.code))
    out, err = capsys.readouterr()
    assert status == 2
    assert out == ""
    (line,) = [line for line in err.splitlines() if not line.startswith(("usage:", " "))]
    assert line.startswith("dnnops ")
    assert len(line) < 1000


@pytest.mark.parametrize("text", ["def f(:\n", "x = 1\nimport missing_package\n"])
def test_errors_of_scripts_keep_their_places(text: str, capsys: pytest.CaptureFixture[str]):
    Path("script.py").write_text(text)
    assert main(["explain", "script.py"]) == 1
    assert "script.py" in capsys.readouterr().err


def test_a_package_that_fails_keeps_its_traceback(capsys: pytest.CaptureFixture[str]):
    Path("folder/__init__.py").write_text("1 / 0\n")
    assert main(["explain", "-m", "folder.part"]) == 1
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_text_that_the_output_cannot_encode(monkeypatch: pytest.MonkeyPatch):
    """Names of files in other encodings, and ASCII locales."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    assert main(["cache", "show", "--path", "\udce9\xe9"]) == 0
    stream.flush()
    assert rb"\udce9\xe9, which does not exist" in stream.buffer.getvalue()  # type: ignore


@pytest.mark.parametrize("number", ["9999999999", "1" * 5000, "99999"])
def test_descriptors_that_are_none(number: str):
    path = f"/dev/fd/{number}"
    assert output.obstacle(path) == os.strerror(9)
    with pytest.raises(OSError, match="Bad file descriptor"):
        Linear(2, 2).save(path)


def test_sizes_without_end():
    from dnnops.config import parse_flag

    with pytest.raises(DnnValueError, match="is not accepted"):
        parse_flag("dnn.conv.workspace_limit", "9" * 400)

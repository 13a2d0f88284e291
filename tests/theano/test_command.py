"""``python -m dnnops theano script.py``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dnnops.__main__ import main


def run(
    folder: Path, *arguments: str, stdin: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dnnops", "theano", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **environment},
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
    )


def test_script_arguments_flags_and_status(tmp_path: Path):
    (tmp_path / "beside.py").write_text("number = 7\n")
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (tmp_path / "theanorc").write_text("[dnn.conv]\nalgo_fwd = large\n")
    (tmp_path / "script.py").write_text(
        "from __future__ import print_function\n"
        "import sys\n"
        "import theano\n"
        "import theano.tensor as T\n"
        "from beside import number\n"
        "x = T.matrix('x')\n"
        "f = theano.function([x], T.nnet.sigmoid(x).sum(), mode='FAST_COMPILE')\n"
        "print(__name__, sys.argv[1:], theano.config.dnn.conv.algo_fwd, f([[0, 0]]))\n"
        "print(f([[0]]).dtype, theano.config.optimizer)\n"
        "sys.exit(number)\n"
    )
    done = run(
        folder,
        *("../script.py", "--rate", "0.1", "-m", "x"),
        THEANO_FLAGS="floatX=float32,optimizer=fast_compile,lib.cnmem=1",
        THEANORC=str(tmp_path / "theanorc"),
    )
    assert done.stdout == (
        "__main__ ['--rate', '0.1', '-m', 'x'] large 1.0\nfloat32 fast_compile\n"
    )
    assert done.returncode == 7
    assert done.stderr.count("lib.cnmem") == 1
    assert "recognise" not in done.stderr


def test_an_exception_is_reported_as_pythons(tmp_path: Path):
    (tmp_path / "fails.py").write_text("def f():\n    raise OSError('no such luck')\n\n\nf()\n")
    done = run(tmp_path, "fails.py")
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert 'fails.py", line 5' in lines[1]
    assert lines[-1] == "OSError: no such luck"
    assert "runpy" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.py"], "dnnops theano: there is no file missing.py\n"),
        ([], "dnnops theano: pass a script, or -m and a module\n"),
    ],
)
def test_without_a_script(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
):
    monkeypatch.chdir(tmp_path)
    assert main(["theano", *arguments]) == 2
    assert tuple(capsys.readouterr()) == ("", message)


def test_module(tmp_path: Path):
    (tmp_path / "mine.py").write_text(
        "import sys, theano\nprint(sys.argv[1:], theano.version.version, __name__)\n"
    )
    done = run(tmp_path, "-m", "mine", "-q", "--", "a")
    assert done.stdout == "['-q', '--', 'a'] 1.0.5 __main__\n"
    assert done.returncode == 0
    done = run(tmp_path, "-m", "nonsense")
    assert done.returncode == 2
    assert "No module named nonsense" in done.stderr


def test_a_wrong_flag_is_one_line(tmp_path: Path):
    (tmp_path / "script.py").write_text("import theano\n")
    done = run(tmp_path, "script.py", THEANO_FLAGS="device=opencl0")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "'opencl0' is not accepted" in done.stderr


def test_help(tmp_path: Path):
    done = run(tmp_path, "--help")
    assert done.returncode == 0
    assert "SCRIPT | -m MODULE" in done.stdout
    assert "THEANO_FLAGS" in done.stdout

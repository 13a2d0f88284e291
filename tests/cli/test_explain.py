"""The command ``explain``, on scripts that it runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from dnnops.__main__ import main
from dnnops.cli.recording import recording
from dnnops.explanation import Explanation

ROOT = Path(__file__).parents[2]

SCRIPT = """
import sys
import numpy as np
import pytensor
import pytensor.tensor as pt
from dnnops import nnet

x = pt.tensor4("x", dtype="float32")
w = pytensor.shared(np.ones((4, 3, 3, 3), "float32"), "w")
y = nnet.pool_2d(nnet.conv2d(x, w), (2, 2), True)
small = pytensor.function([x], x.sum(), mode="CVM", name="small")
step = pytensor.function([x], y, updates={w: w * 2}, mode="ONEDNN", name="step")
unused = pytensor.function([x], x + 1, mode="CVM", name="unused")
whole = pytensor.function([x], pt.exp(x), mode="NUMBA", name="whole")
image = np.ones((8, 3, 32, 32), "float32")
for _ in range(20):
    step(x=image)
small(image)
whole(image)
if __name__ == "__main__":
    print("w", int(w.get_value().max()), sys.argv[1:])
"""

#: Needs no library, so that it compiles quickly.
SMALL = """
import sys
import numpy as np
import pytensor
import pytensor.tensor as pt

x = pt.matrix("x", dtype="float64")
small = pytensor.function([x], x.sum(), mode="CVM", name="small")
small(np.ones((30, 40)))
other = pytensor.function([x], x.sum(), mode="CVM")
print("done")
"""


def explain(*arguments: Any, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "dnnops", "explain", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "80", **environment},
    )


@pytest.fixture
def explain_here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run the command in this process, because a new one spends a second importing PyTensor."""

    def run(*arguments: Any) -> subprocess.CompletedProcess:
        monkeypatch.setattr(sys, "argv", sys.argv)
        monkeypatch.setattr(sys, "path", list(sys.path))
        try:
            status = main(["explain", *map(str, arguments)])
        except SystemExit as stop:  # raised by argparse
            status = stop.code
        return subprocess.CompletedProcess(arguments, status, *capsys.readouterr())

    return run


def script(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "script.py"
    path.write_text(text)
    return path


def named(output: str) -> dict[str, Any]:
    """The functions of the command's JSON, by name."""
    found = json.loads(output)
    assert (found["schema"], found["version"]) == ("dnnops.explain.script", 1)
    return {f["explanation"]["name"]: f for f in found["functions"]}


@pytest.mark.needs("matplotlib")
def test_tables_and_files(tmp_path: Path):
    path = script(tmp_path, SCRIPT)
    file, picture = tmp_path / "a.json", tmp_path / "a.png"
    done = explain("--json", file, "--plot", picture, "--calls", 2, path, "--epochs", "3")
    assert (done.returncode, done.stderr) == (0, "")
    # The script's own output is what it prints alone.
    assert done.stdout.startswith(f"w {2**20} ['--epochs', '3']\n")
    assert max(map(len, done.stdout.splitlines())) <= 80
    for words in ("20 calls in the script", "step: ", "OneDnnConv", "peak memory"):
        assert words in done.stdout
    assert "Not measured: the script did not call it." in done.stdout
    assert "Numba compiles all nodes into one piece" in done.stdout
    assert picture.stat().st_size > 5000
    found = named(file.read_text())
    assert set(found) == {"step", "small", "unused", "whole"}
    assert [f["number"] for f in found.values()] == [1, 2, 3, 4]
    seconds = [f["script_seconds"] for f in found.values()]
    assert seconds == sorted(seconds, reverse=True)
    step = found["step"]
    assert step["script_calls"] == 20
    explanation = Explanation.from_json(json.dumps(step["explanation"]))
    assert explanation.calls == 2
    (conv,) = [node for node in explanation.nodes if node.op == "OneDnnConv"]
    assert conv.inputs[0].shape == (8, 3, 32, 32)
    assert conv.time_ms > 0
    assert found["unused"]["script_calls"] == 0
    assert found["unused"]["explanation"]["time_ms"] is None


def test_json_on_the_standard_output(tmp_path: Path):
    done = explain("--json", "-", "--function", "small", script(tmp_path, SMALL))
    assert (done.returncode, done.stderr) == (0, "done\n")
    assert list(named(done.stdout)) == ["small"]


def test_choice_of_functions(tmp_path: Path, explain_here: Any):
    path = script(tmp_path, SMALL)
    done = explain_here("--function", "1", "--calls", "0", path)
    assert done.stdout.count("-- ") == 1
    assert "-- 1: " in done.stdout
    done = explain("--function", "stop", path)
    assert done.returncode == 2
    assert "there is no function stop; there are: 1 small, 2 function" in done.stderr


def test_a_script_that_fails(tmp_path: Path):
    text = SMALL + "def fail():\n    raise KeyError('a mistake')\nfail()\n"
    done = explain("--function", "small", script(tmp_path, text))
    assert done.returncode == 1
    assert "KeyError: 'a mistake'" in done.stderr
    assert "runpy" not in done.stderr
    assert "Sum{add}" in done.stdout


@pytest.mark.parametrize(
    ("code", "status", "words"), [("3", 3, ""), ("", 0, ""), ("'enough'", 1, "enough")]
)
def test_exit_status_of_the_script(
    tmp_path: Path, explain_here: Any, code: str, status: int, words: str
):
    done = explain_here("--function", "small", script(tmp_path, f"{SMALL}\nsys.exit({code})\n"))
    assert done.returncode == status
    assert words in done.stderr
    assert "small: " in done.stdout


def test_a_script_without_functions(tmp_path: Path, explain_here: Any):
    path = script(tmp_path, "print('hello')\n")
    done = explain_here(path)
    assert (done.returncode, done.stdout) == (1, "hello\n")
    assert done.stderr == f"dnnops explain: {path} compiled no PyTensor function\n"


def test_a_function_that_cannot_run_again(tmp_path: Path, explain_here: Any):
    text = """
import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

class Once(Op):
    ran = False
    def make_node(self, x):
        return Apply(self, [x], [x.type()])
    def perform(self, node, inputs, outputs):
        if self.ran:
            raise RuntimeError("again")
        self.ran = True
        outputs[0][0] = inputs[0].copy()

x = pt.vector("x")
pytensor.function([x], Once()(x), mode="CVM")(np.ones(3))
"""
    done = explain_here(script(tmp_path, text))
    assert done.returncode == 0
    assert "Not measured: RuntimeError: again." in done.stdout
    assert "Once" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "pass a script"),
        (["nowhere.py"], "there is no file nowhere.py"),
        (["--json", "nowhere/a.json", "{script}"], "cannot write nowhere/a.json: there is no"),
        (["--plot", "{folder}", "{script}"], "it is a folder"),
        (["--plot", "{folder}/a.exe", "{script}"], "cannot write the format exe, but "),
        (["--json", "/dev/full", "{script}"], "it is a device"),
        (["--calls", "-1", "{script}"], "must be an integer of at least 0, got '-1'"),
        (["--calls", "many", "{script}"], "must be an integer of at least 0, got 'many'"),
    ],
)
def test_bad_command_lines(tmp_path: Path, explain_here: Any, arguments: list[str], words: str):
    path = script(tmp_path, "print('it ran')\n")
    done = explain_here(*(a.format(script=path, folder=tmp_path) for a in arguments))
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr


def test_a_folder_without_permission(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    path = script(tmp_path, "print('it ran')\n")
    assert main(["explain", "--json", str(tmp_path / "a.json"), str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.endswith(f"a.json: no permission to write to {tmp_path}\n")


def test_modules(tmp_path: Path):
    script(tmp_path, SMALL).rename(tmp_path / "training.py")
    done = explain("--function", "small", "-m", "training", PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert done.returncode == 0
    assert "small: " in done.stdout


# -- recording -----------------------------------------------------------------------------


def test_inner_functions_are_not_recorded():
    x = pt.vector("x", dtype="float64")
    sums = pytensor.scan(
        lambda a, b: a + b, sequences=[x], outputs_info=[pt.zeros(())], return_updates=False
    )
    with recording() as functions:
        f = pytensor.function([x], sums, mode="CVM")
        f(np.ones(3))
        f(np.ones(4))
    (entry,) = functions
    assert entry.function is f
    assert entry.calls == 2
    assert entry.seconds > 0
    assert [a.shape for a in entry.arguments] == [(4,)]
    f(np.ones(5))
    assert entry.calls == 2


def test_a_call_that_raises_is_not_recorded():
    x = pt.vector("x", dtype="float64")
    with recording() as functions:
        f = pytensor.function([x], x[2], mode="CVM")
        f(np.ones(3))
        with pytest.raises(IndexError):
            f(np.ones(1))
    assert [(e.calls, len(e.arguments[0])) for e in functions] == [(1, 3)]


#: Runs quickly, in PyTensor's Python linker.
CLOSING = """
import os
import sys
import pytensor
import pytensor.tensor as pt
from pytensor.compile import Mode

x = pt.vector("x")
pytensor.function([x], x.sum(), mode=Mode("py", None), name="kept")
print("said", flush=True)
exec(sys.argv[1])
"""


@pytest.mark.parametrize(
    ("how", "status"),
    [
        ("sys.stdout.close()", 0),
        ("os.close(sys.stdout.fileno())", 0),
        ("sys.stdout = None", 0),
        ("sys.stdout = open(os.devnull, 'w')", 0),
        ("sys.stdout.close(); sys.stderr.close(); sys.exit(3)", 3),
        ("sys.stderr.close(); 1 / 0", 1),
    ],
)
def test_a_script_that_closes_its_output(tmp_path, monkeypatch, how: str, status: int):
    """The tables still go where the command was told to print, and the traceback too."""
    files = [tmp_path / "out", tmp_path / "err"]
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with files[0].open("w") as out, files[1].open("w") as err:
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", err)
        arguments = ["--calls", "0", str(script(tmp_path, CLOSING)), how]
        assert main(["explain", *arguments]) == status
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        monkeypatch.undo()
        if how.startswith("os.close"):
            os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())  # to close it again
    printed = files[0].read_text()
    assert printed.startswith("said\n")
    assert "kept: 1 node" in printed
    assert ("ZeroDivisionError" in files[1].read_text()) == (status == 1)


@pytest.mark.parametrize("width", [40, 60, 79])
def test_names_are_whole_on_narrow_terminals(explain_here, tmp_path, monkeypatch, width: int):
    monkeypatch.setenv("COLUMNS", str(width))
    name = "gradient_of_all_parameters"
    text = CLOSING.replace("x.sum()", f"x.sum().copy(name={name!r})")
    done = explain_here("--calls", 0, script(tmp_path, text), "pass")
    assert (done.returncode, done.stderr) == (0, "")
    assert max(map(len, done.stdout.splitlines())) <= width
    assert name in done.stdout.split()

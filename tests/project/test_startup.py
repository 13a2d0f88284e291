"""The start-up file: importing PyTensor before dnnops, with flags of dnnops set."""

from __future__ import annotations

import os
import subprocess
import sys
import timeit
from pathlib import Path

import pytest
from pytensor.configdefaults import config

from dnnops import startup

ROOT = Path(__file__).parents[2]
#: Shows that a flag was read, without compiling a function.
FLAG = "from dnnops.config import flag_value; print(flag_value('dnn.conv.algo_fwd'))"


@pytest.fixture(scope="module")
def site_packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder like site-packages, with the start-up file."""
    folder = tmp_path_factory.mktemp("site-packages")
    (folder / startup.PTH_NAME).write_text(startup.PTH)
    return folder


def start(
    site_packages: Path, program: str, *options: str, **environment: str
) -> subprocess.CompletedProcess:
    """Run a program in a new process, after Python has read the files of `site_packages`."""
    flags = f"base_compiledir={config.base_compiledir},{environment.pop('PYTENSOR_FLAGS', '')}"
    # Twice, as Python does in a virtual environment.
    start = f"import site\nfor _ in range(2): site.addsitedir({str(site_packages)!r})\n"
    return subprocess.run(
        [sys.executable, *options, "-c", start + program],
        # This home has no .pytensorrc; the environment sets the flags.
        env={**os.environ, "HOME": str(site_packages), "PYTENSOR_FLAGS": flags, **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def output(*arguments, **environment) -> str:
    """Return a program's output, with warnings as errors."""
    done = start(*arguments, "-W", "error", **environment)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


def test_flags_cause_no_warning(site_packages):
    """Both spellings work; only dnnops itself imports its modules."""
    program = (
        "import sys, warnings\n"
        "import pytensor\n"
        "print([name for name in sys.modules if name.startswith('dnnops')])\n"
        "print([f for f in warnings.filters if f[1] and 'recognise' in f[1].pattern])\n"
        "print([f for f in sys.meta_path if '_dnnops_startup' in type(f).__module__])\n"
        f"import dnnops; {FLAG}; print(flag_value('device'))"
    )
    flags = "dnn.conv.algo_fwd=time_once,dnn__deterministic=True,device=cuda1"
    shown = output(site_packages, program, PYTENSOR_FLAGS=flags)
    assert shown.splitlines() == ["[]", "[]", "[]", "time_once", "cuda1"]


def test_misspelled_flag_causes_a_warning(site_packages):
    flags = "dnn.conv.algo_fwdd=small,dnn.conv.algo_fwd=time_once"
    done = start(site_packages, "import pytensor", PYTENSOR_FLAGS=flags)
    assert done.returncode == 0
    assert done.stderr.count("UserWarning") == 1
    assert "recognise this flag: dnn.conv.algo_fwdd" in done.stderr


def test_wrong_value_is_an_error_of_dnnops(site_packages):
    flags = "dnn.conv.algo_fwd=fastest"
    done = start(site_packages, "import pytensor; print('so far'); import dnnops",
                 PYTENSOR_FLAGS=flags)  # fmt: skip
    assert done.stdout == "so far\n"
    assert "flag dnn.conv.algo_fwd: 'fastest' is not accepted" in done.stderr


MODE = """
import os, sys
import pytensor
from pytensor.compile.mode import get_default_mode
print(pytensor.config.mode, type(get_default_mode()).__name__, "dnnops" in sys.modules)
print(os.environ["PYTENSOR_FLAGS"].rpartition(",")[2])
"""


def test_mode(site_packages):
    """The mode works without importing dnnops, and child processes see the flag as it was given."""
    shown = output(site_packages, MODE, PYTENSOR_FLAGS="mode=DNN")
    assert shown.splitlines() == ["DNN DnnMode True", "mode=DNN"]


def test_mode_of_own_variable(site_packages):
    assert output(site_packages, MODE, DNNOPS_FLAGS="mode=DNN").startswith("DNN DnnMode True")


def test_contradicting_modes_are_refused_as_without_it(site_packages):
    done = start(
        site_packages, "import pytensor", DNNOPS_FLAGS="mode=DNN", PYTENSOR_FLAGS="mode=CUDNN"
    )
    assert done.returncode == 1
    assert "Expected one of" in done.stderr


@pytest.mark.parametrize("home", [False, True], ids=["PYTENSORRC", "home"])
def test_configuration_file(site_packages, tmp_path, home):
    file = tmp_path / ".pytensorrc"
    file.write_text("[global]\nmode = ONEDNN\n[dnn]\ndeterministic = True\n"
                    "[dnn.conv]\nalgo_fwd = fft\n")  # fmt: skip
    program = f"{MODE}\n{FLAG}; print(flag_value('dnn.deterministic'))"
    place = {"HOME": str(tmp_path)} if home else {"PYTENSORRC": str(file)}
    shown = output(site_packages, program, **place).splitlines()
    assert (shown[0], shown[2:]) == ("ONEDNN OneDnnMode True", ["fft", "True"])


def test_configuration_file_without_a_mode(site_packages, tmp_path):
    """PyTensor does not warn about sections that it does not know; dnnops reads them as before."""
    file = tmp_path / "rc"
    file.write_text("[dnn]\ndeterministic = True\n")
    program = (
        "import sys, pytensor; print('dnnops' in sys.modules)\n"
        f"import dnnops; {FLAG}; print(flag_value('dnn.deterministic'))"
    )
    assert output(site_packages, program, PYTENSORRC=str(file)).splitlines() == [
        "False",
        "guess_once",
        "True",
    ]


def test_pytensor_is_the_same_to_tools(site_packages):
    """Looking for it imports nothing, and its source and loader can be found afterwards."""
    program = (
        "import sys, inspect, importlib.util\n"
        "spec = importlib.util.find_spec('pytensor')\n"
        "assert 'pytensor' not in sys.modules\n"
        "import pytensor\n"
        "assert inspect.getsource(pytensor).strip()\n"
        "assert type(pytensor.__loader__).__name__ == 'SourceFileLoader'\n"
        "assert 'exec_module' not in vars(pytensor.__loader__)\n"
        "assert pytensor.__spec__.origin == spec.origin\n"
    )
    assert output(site_packages, program, PYTENSOR_FLAGS="dnn.verbose=True") == ""


@pytest.mark.parametrize("what", ["nothing of dnnops", "no startup.py", "a broken startup.py"])
def test_leftovers_of_an_installation_do_no_harm(site_packages, tmp_path, what):
    """Python starts without output, and PyTensor's messages do not change."""
    site = tmp_path / "site-packages"
    site.mkdir()
    (site / startup.PTH_NAME).write_text(startup.PTH)
    if what != "nothing of dnnops":
        (site / "dnnops").mkdir()
        (site / "dnnops" / "__init__.py").touch()
    if what == "a broken startup.py":
        (site / "dnnops" / "startup.py").write_text("def install(): raise ImportError")
    program = (
        f"import site, sys; site.addsitedir({str(site)!r})\n"
        "print(any('startup' in repr(f) for f in sys.meta_path))"
    )
    done = subprocess.run(
        # Without the site-packages of this environment, where dnnops may be installed.
        [sys.executable, "-S", "-c", program],
        env={**os.environ, "PYTENSOR_FLAGS": "dnn.verbose=True", "PYTHONPATH": ""},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_hook_that_fails_leaves_pytensor_as_it_was(site_packages):
    """Test with a broken dnnops in its place."""
    program = (
        "import sys\n"
        "type(sys.meta_path[0]).find_spec.__globals__['_modules'] = lambda *names: 1 / 0\n"
        "import pytensor"
    )
    done = start(site_packages, program, PYTENSOR_FLAGS="dnn.verbose=True")
    assert done.returncode == 0
    assert "recognise this flag: dnn.verbose" in done.stderr
    assert "Error" not in done.stderr


@pytest.mark.parametrize(
    ("environment", "concerned"),
    [
        ({}, False),
        ({"PYTENSOR_FLAGS": "floatX=float32,mode=FAST_COMPILE"}, False),
        ({"DNNOPS_FLAGS": "dnn.verbose=True"}, False),
        ({"PYTENSOR_FLAGS": "onednn__scratch_limit=1GB"}, True),
        ({"PYTENSOR_FLAGS": "device=cpu"}, True),
        ({"PYTENSOR_FLAGS": "mode=CUDNN"}, True),
        ({"DNNOPS_FLAGS": "mode=CUDNN"}, True),
        ({"PYTENSORRC": "/nowhere"}, True),
    ],
)
def test_line_does_nothing_unless_flags_are_set(monkeypatch, tmp_path, environment, concerned):
    """Then it imports nothing, and takes less than 0.1 ms besides compiling the line."""
    for name in ("PYTENSOR_FLAGS", "DNNOPS_FLAGS", "PYTENSORRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert startup.PTH.count("\n") == 1  # Python executes each line of its own
    executed: list[str] = []
    modules = set(sys.modules)
    names = {"exec": executed.append}
    line = compile(startup.PTH, startup.PTH_NAME, "exec")
    seconds = min(timeit.repeat(lambda: exec(line, names), number=1, repeat=100))
    assert bool(executed) == concerned
    if not concerned:
        assert set(sys.modules) == modules
        assert seconds < 100e-6

"""The command that records a run on a GPU, on tests that need no GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from dnnops.errors import DnnUnavailableError
from dnnops.runtime import build
from tests import gpu_record
from tests.configurations_run import Configurations, count_configurations
from tests.conftest import (
    build_libraries,
    flags_of_worker,
    gpu_of_worker,
    pytest_runtest_logreport,
    share_libraries,
)

DEVICE = {
    "device": "a device",
    "driver": "1.2",
    "cuda": "13.0",
    "cudnn": "9.19.0",
    "pytensor": "3.0",
    "cupy": "14.2",
}
COMMIT = "0123456789abcdef0123456789abcdef01234567"
CONFIG = """[pytest]
markers =
    gpu: needs a GPU
    alone: needs it for itself
addopts = --strict-markers
"""
HEAD = "import pytest\npytestmark = pytest.mark.gpu\n"
PASSING = "def test_right(): pass\n"
SKIPPED = """
@pytest.mark.parametrize("i", range(3))
@pytest.mark.skip(reason="too slow, & <odd>")
def test_slow(i): pass
"""
FAILING = """
def test_wrong(): assert False

@pytest.fixture
def fragile():
    yield
    raise RuntimeError("teardown")

def test_fragile(fragile): pass
"""


def test_gpu_of_worker():
    """Processes are spread over GPUs only on request, and only over visible ones."""
    given = {"PYTEST_XDIST_WORKER": "gw6", "DNNOPS_TEST_GPUS": "4"}
    assert gpu_of_worker(given) == "2"
    assert gpu_of_worker({**given, "CUDA_VISIBLE_DEVICES": "5,GPU-1,7,3"}) == "7"
    assert gpu_of_worker({**given, "CUDA_VISIBLE_DEVICES": ""}) == "2"
    for missing in given:
        assert gpu_of_worker({key: v for key, v in given.items() if key != missing}) == ""


def test_flags_of_worker():
    """Several processes share a directory of compiled modules; given flags stay."""
    given = {"PYTEST_XDIST_WORKER": "gw6", "DNNOPS_TEST_COMPILEDIRS": "/folder"}
    own = "base_compiledir=/folder/3,gcc__cxxflags=-O0 -g0"
    assert flags_of_worker(given) == own
    assert flags_of_worker({**given, "PYTEST_XDIST_WORKER": "gw7"}) == flags_of_worker(given)
    flags = flags_of_worker({**given, "PYTENSOR_FLAGS": "floatX=float32"})
    assert flags == f"floatX=float32,{own}"
    assert flags_of_worker({"DNNOPS_TEST_COMPILEDIRS": "/folder"}) == ""


def test_directory_of_worker(tmp_path):
    """Each process has one, the same in the next run, beside PyTensor's own."""
    # Each child of a fork imports PyTensor itself.
    ask = (
        "import os, sys\n"
        "for flags in sys.argv[1:]:\n"
        "    if not (child := os.fork()):\n"
        "        os.environ['PYTENSOR_FLAGS'] = flags\n"
        "        from pytensor.configdefaults import config\n"
        "        print(config.compiledir, config.gcc__cxxflags)\n"
        "        sys.exit()\n"
        "    assert os.waitpid(child, 0)[1] == 0\n"
    )
    given = {"PYTENSOR_FLAGS": f"base_compiledir={tmp_path}"}
    flags = [flags_of_worker({**given, "PYTEST_XDIST_WORKER": f"gw{i}"}) for i in (0, 1, 0)]
    command = [sys.executable, "-c", ask, given["PYTENSOR_FLAGS"], *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = [line.split() for line in done.stdout.splitlines()]
    (own, *_), (first, *quick), (second, *_), again = found
    assert Path(own).parent == tmp_path
    assert (first, second) == (f"{own}-gw0", f"{own}-gw1")
    assert quick == ["-O0", "-g0"]
    assert again == [first, *quick]


def test_libraries_are_built_once(tmp_path):
    """This holds whichever directory comes first; one with libraries keeps its own."""
    built = []

    def build_in(own):
        if not (own / "library.so").exists():
            built.append(own)
            own.mkdir(parents=True)
            (own / "library.so").write_text(own.parent.name)

    shared = tmp_path / "libraries"
    directories = [tmp_path / str(number) / "dnnops" for number in (0, 1, 0, 2)]
    for own in directories:
        share_libraries(shared, own, lambda own=own: build_in(own))
    assert built == directories[:1]
    assert {(own / "library.so").read_text() for own in directories} == {"0"}
    (directories[1] / "library.so").write_text("its own")
    share_libraries(shared, directories[1], lambda: None)
    assert (directories[1] / "library.so").read_text() == "its own"

    # The sources have changed since.
    def build_another():
        (directories[2] / "newer.so").write_text("newer")

    share_libraries(shared, directories[2], build_another)
    share_libraries(shared, directories[1], lambda: None)
    assert (directories[1] / "newer.so").read_text() == "newer"


def test_one_library_that_cannot_be_built_is_left_to_the_tests(monkeypatch):
    """The other library is still built."""
    built = []

    class Fake:
        def __init__(self, name, error=None):
            self.name, self.error = name, error

        @property
        def path(self):
            if self.error:
                raise self.error
            built.append(self.name)

    monkeypatch.setattr(build, "CUDNN", Fake("cudnn", DnnUnavailableError("no cuDNN")))
    monkeypatch.setattr(build, "ONEDNN", Fake("onednn"))
    build_libraries()
    assert built == ["onednn"]
    monkeypatch.setattr(build, "ONEDNN", Fake("onednn", OSError("something else")))
    with pytest.raises(OSError, match="something else"):
        build_libraries()


@pytest.mark.parametrize("spread", [False, True])
def test_failures_are_told_at_once(monkeypatch, capsys, spread):
    if spread:
        monkeypatch.setenv("DNNOPS_TEST_COMPILEDIRS", "/folder")
    else:
        monkeypatch.delenv("DNNOPS_TEST_COMPILEDIRS", raising=False)
    failed = SimpleNamespace(failed=True, nodeid="test_it", longreprtext="E  wrong by 2")
    pytest_runtest_logreport(failed)
    pytest_runtest_logreport(SimpleNamespace(failed=False, nodeid="test_other"))
    assert capsys.readouterr().out == ("\ntest_it\nE  wrong by 2\n" if spread else "")


class Checkout:
    """Return a directory with its own test suite."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.record_path = root / "docs" / "gpu_record.json"
        (root / "tests").mkdir()
        (root / "docs").mkdir()
        (root / "pytest.ini").write_text(CONFIG)

    def write_tests(self, *parts: str) -> None:
        (self.root / "tests" / "test_it.py").write_text(HEAD + "\n".join(parts))

    def record(self) -> dict:
        return json.loads(self.record_path.read_text())

    def git(self, *arguments: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b")
        command = ["git", *identity, *arguments]
        done = subprocess.run(command, cwd=self.root, capture_output=True, text=True, check=True)
        return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkout:
    """Return a checkout on a machine with a GPU."""
    monkeypatch.setattr(gpu_record, "ROOT", tmp_path)
    monkeypatch.setattr(gpu_record, "describe_device", lambda: dict(DEVICE))
    monkeypatch.setattr(gpu_record, "count_gpus", lambda: 2)
    # This process may be one of several itself.
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    # Importing plugins takes two thirds of such a run; the command asks for those that it needs.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    return Checkout(tmp_path)


def test_record_of_a_run(checkout: Checkout):
    checkout.write_tests(PASSING, SKIPPED, "def test_more(): pass")
    # Unmarked tests are not recorded.
    (checkout.root / "tests" / "test_cpu.py").write_text("def test_cpu(): pass\n")
    assert gpu_record.main(["--commit", COMMIT]) == 0
    record = checkout.record()
    counts = ["passed", "failed", "skipped", "configurations"]
    assert list(record) == ["date", *DEVICE, *counts, "commit"]
    assert record.pop("date").startswith("20")
    assert record == {
        **DEVICE,
        "passed": 2,
        "failed": 0,
        "skipped": {"too slow, & <odd>": 3},
        "configurations": {},
        "commit": COMMIT,
    }
    assert [path.name for path in checkout.record_path.parent.iterdir()] == ["gpu_record.json"]


def test_failures_are_recorded(checkout: Checkout):
    checkout.write_tests(PASSING, FAILING)
    assert gpu_record.main(["--commit", COMMIT]) == 1
    record = checkout.record()
    # A test whose teardown fails has not passed.
    assert (record["passed"], record["failed"], record["skipped"]) == (1, 2, {})


def test_module_that_cannot_be_imported(checkout: Checkout, capsys: pytest.CaptureFixture[str]):
    checkout.write_tests(PASSING)
    (checkout.root / "tests" / "test_broken.py").write_text("import a_module_that_is_not_there\n")
    assert gpu_record.main(["--commit", COMMIT]) == 2
    assert "did not finish" in capsys.readouterr().err
    assert not checkout.record_path.exists()


@pytest.mark.needs("xdist")
def test_several_processes(checkout: Checkout):
    checkout.write_tests(PASSING, SKIPPED)
    assert gpu_record.main(["--commit", COMMIT, "-n", "1"]) == 0
    assert checkout.record()["passed"] == 1
    assert checkout.record()["skipped"] == {"too slow, & <odd>": 3}


class Doubled:
    """An Op that multiplies its input, and fails without one."""

    __props__ = ("factor",)

    def __init__(self, factor: int = 2) -> None:
        self.factor = factor

    def perform(self, node, inputs, output_storage) -> None:
        if not inputs:
            raise ValueError("nothing")
        output_storage[0][0] = self.factor * inputs[0]


def test_configurations_are_counted(checkout: Checkout, tmp_path: Path):
    """Different configurations are counted over all processes; failed calls do not count."""
    found = Configurations()

    class Watched(Doubled):
        pass

    found.watch(Watched)

    def run(op: Doubled, *inputs: np.ndarray) -> None:
        storage = [[None]]
        op.perform(None, inputs, storage)
        np.testing.assert_array_equal(storage[0][0], op.factor * inputs[0])

    x = np.ones((20, 3))
    for operand in (x, 3 * x, x.T, x[::2], x.astype("float32")):
        run(Watched(), operand)
    run(Watched(3), x)
    with pytest.raises(ValueError, match="nothing"):
        run(Watched())
    assert len(found.found["Watched"]) == 5
    folder = tmp_path / "found"
    folder.mkdir()
    found.write(folder)
    more = {"Another": ["a", "b"], "Watched": ["a"]}
    (folder / "configurations-0.json").write_text(json.dumps(more))
    assert count_configurations(folder) == {"Another": 2, "Watched": 6}


def test_configurations_are_recorded(checkout: Checkout):
    checkout.write_tests(
        "import os",
        "from pathlib import Path",
        "def test_it():",
        "    folder = Path(os.environ['DNNOPS_TEST_CONFIGURATIONS'])",
        """    (folder / 'configurations-1.json').write_text('{"GpuIt": ["a", "b"]}')""",
    )
    assert gpu_record.main(["--commit", COMMIT]) == 0
    assert checkout.record()["configurations"] == {"GpuIt": 2}


@pytest.mark.needs("xdist")
def test_tests_that_run_alone(checkout: Checkout):
    """They run after the others, in a separate process."""
    checkout.write_tests(
        "import os",
        "from pathlib import Path",
        "def test_shared(): Path('shared').touch(); assert 'PYTEST_XDIST_WORKER' in os.environ",
        "@pytest.mark.alone",
        "def test_alone():",
        "    assert Path('shared').exists() and 'PYTEST_XDIST_WORKER' not in os.environ",
        "@pytest.mark.alone",
        "def test_alone_and_wrong(): assert False",
    )
    assert gpu_record.main(["--commit", COMMIT, "-n", "2"]) == 1
    record = checkout.record()
    assert (record["passed"], record["failed"]) == (2, 1)


@pytest.mark.parametrize(
    ("tests", "words"),
    [
        ((SKIPPED,), "3 tests: too slow, & <odd>"),
        (("pytestmark = []", PASSING), "no tests marked gpu"),
        (("import os", "def test_exit(): os._exit(3)"), "did not finish: exit status 3"),
    ],
)
def test_nothing_ran(
    checkout: Checkout, tests: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
):
    checkout.write_tests(*tests)
    checkout.record_path.write_text("the record before")
    assert gpu_record.main(["--commit", COMMIT]) == 2
    assert words in capsys.readouterr().err
    assert checkout.record_path.read_text() == "the record before"


def test_no_gpu(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def describe_device() -> dict[str, str]:
        raise gpu_record.RecordError("no GPU: the driver is missing")

    monkeypatch.setattr(gpu_record, "describe_device", describe_device)
    checkout.write_tests(PASSING)
    assert gpu_record.main(["--commit", COMMIT]) == 2
    assert "not written: no GPU: the driver is missing" in capsys.readouterr().err
    assert not checkout.record_path.exists()


@pytest.mark.gpu
def test_description_of_a_gpu():
    description = gpu_record.describe_device()
    assert list(description) == list(DEVICE)
    assert all(description.values())


@pytest.mark.needs("cupy")
def test_description_without_a_gpu(monkeypatch: pytest.MonkeyPatch):
    import cupy

    monkeypatch.setattr(cupy.cuda.runtime, "getDeviceCount", lambda: 0)
    with pytest.raises(gpu_record.RecordError, match="no GPU"):
        gpu_record.describe_device()


@pytest.mark.parametrize("commit", ["HEAD", "", "0123456", "0123456g" * 5, "1" * 41])
def test_commit_that_is_no_hash(
    checkout: Checkout, commit: str, capsys: pytest.CaptureFixture[str]
):
    checkout.write_tests(PASSING)
    assert gpu_record.main(["--commit", commit]) == 2
    assert "is not the full hash of a commit" in capsys.readouterr().err
    assert not checkout.record_path.exists()


def test_commit_is_unknown(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    checkout.write_tests(PASSING)
    # The directory is not a repository, even if a parent is one; then there is no Git at all.
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(checkout.root.parent))
    for path in (None, "/nonexistent"):
        if path:
            monkeypatch.setenv("PATH", path)
        assert gpu_record.main([]) == 2
        assert "the commit is unknown; give it with --commit" in capsys.readouterr().err
        assert not checkout.record_path.exists()


@pytest.mark.needs("git")
def test_commit_of_a_checkout(checkout: Checkout, capsys: pytest.CaptureFixture[str]):
    checkout.write_tests(PASSING)
    (checkout.root / ".gitignore").write_text("__pycache__\n.pytest_cache\n")
    checkout.git("init", "--quiet")
    checkout.git("add", ".")
    checkout.git("commit", "--quiet", "-m", "all")
    commit = checkout.git("rev-parse", "HEAD")
    assert gpu_record.main([]) == 0
    assert checkout.record()["commit"] == commit
    # The record has changed now, but does not prevent another one.
    assert gpu_record.main([]) == 0

    (checkout.root / "pytest.ini").write_text(CONFIG + "\n")
    before = checkout.record_path.read_text()
    assert gpu_record.main([]) == 2
    assert "not committed:\n M pytest.ini" in capsys.readouterr().err
    assert checkout.record_path.read_text() == before
    assert gpu_record.main(["--commit", COMMIT]) == 0

"""The command line, and the doctor's report."""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import dnnops
from dnnops.__main__ import main
from dnnops.cli import checks, doctor
from dnnops.cli.checks import Finding
from dnnops.errors import DnnUnavailableError
from dnnops.runtime import driver

OK = Finding("thing", "ok", "1.2", "/somewhere")


def only(monkeypatch: pytest.MonkeyPatch, cpu: list[Finding], gpu: list[Finding]) -> None:
    """Let the doctor find only the given libraries."""
    monkeypatch.setattr(doctor, "CPU_CHECKS", (lambda: iter(cpu),))
    monkeypatch.setattr(doctor, "GPU_CHECKS", (lambda: iter(gpu),))


def unavailable(reason: str):
    def find():
        raise DnnUnavailableError(reason)

    return find


def test_doctor_finds_what_this_machine_has(capsys: pytest.CaptureFixture[str]):
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    found = {re.split(r"\s{2,}", line)[0]: line for line in lines if line}
    for name in ("Python", "C++ compiler", "Python headers", "BLAS"):
        assert name in found
    assert ("NVIDIA GPU" in found) != ("NVIDIA driver" in found)
    assert re.search(r"ok\s+3\.\d+\.\d+, .*libdnnl\.so", found["oneDNN"])
    assert "CPU: works: a convolution ran in oneDNN and gave the right result" in lines
    assert lines[-1].startswith("GPU: ")
    # Nothing is wrapped or padded when the output is a pipe.
    assert all(line == line.rstrip() for line in lines)


def test_doctor_in_json(capsys: pytest.CaptureFixture[str]):
    assert main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert set(report["verdicts"]) == {"cpu", "gpu"}
    assert report["verdicts"]["cpu"]["works"] is True
    onednn = next(finding for finding in report["checks"] if finding["name"] == "oneDNN")
    assert onednn["status"] == "ok"
    assert Path(onednn["where"]).exists()


def test_missing_things_come_with_commands_and_a_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    only(
        monkeypatch,
        [OK, Finding("oneDNN", "missing", "not found", "", "pip install onednn-cpu-gomp")],
        [
            Finding("CuPy", "missing", "no module", "", "pip install 'dnnops[cuda13]'"),
            Finding("cuDNN", "missing", "not found", "", "pip install 'dnnops[cuda13]'"),
        ],
    )
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "To install for the CPU:\n    pip install onednn-cpu-gomp    # oneDNN\n" in out
    assert "To install for a GPU:\n    pip install 'dnnops[cuda13]'    # CuPy, cuDNN\n" in out
    assert out.endswith("CPU: does not work: see oneDNN\nGPU: does not work: see CuPy, cuDNN\n")
    assert main(["doctor", "--json"]) == 1
    verdicts = json.loads(capsys.readouterr().out)["verdicts"]
    assert verdicts == {
        "cpu": {"works": False, "reason": "oneDNN: not found"},
        "gpu": {"works": False, "reason": "CuPy: no module; cuDNN: not found"},
    }


def test_without_a_gpu_nothing_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """One row without warnings or advice, and verdicts that fit a terminal."""

    def unreachable():
        raise AssertionError("looked for a library that only a GPU needs")

    only(monkeypatch, [OK], [])
    monkeypatch.setattr(doctor, "GPU_CHECKS", (checks.check_driver, unreachable))
    monkeypatch.setattr(checks, "driver_cuda_version", lambda: None)
    monkeypatch.setattr(checks, "has_nvidia_device", lambda: False)
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (row,) = (line for line in lines if line.startswith("NVIDIA"))
    assert re.fullmatch(r"NVIDIA GPU +- +none found, so no GPU libraries are needed", row)
    assert not any("install" in line for line in lines)
    assert lines[-2].startswith("CPU: works: ")
    assert lines[-1] == "GPU: none; graphs run on the CPU"
    assert max(map(len, lines)) <= 80


def test_a_warning_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    only(monkeypatch, [Finding("BLAS", "advice", "slow", "", "get one")], [])
    monkeypatch.setattr(doctor, "judge_gpu", lambda findings: doctor.Verdict(False, "none"))
    assert main(["doctor"]) == 0
    assert "get one    # BLAS" in capsys.readouterr().out


def test_a_gpu_is_not_needed(monkeypatch: pytest.MonkeyPatch):
    only(monkeypatch, [OK], [Finding("NVIDIA driver", "missing", "no GPU")])
    assert main(["doctor", "--json"]) == 0


def test_a_failing_convolution_is_the_verdict(monkeypatch: pytest.MonkeyPatch):
    import pytensor

    def fail(*args, **kwargs):
        raise RuntimeError("g++: out of memory")

    monkeypatch.setattr(pytensor, "function", fail)
    verdict = doctor.judge_cpu([OK])
    assert verdict == doctor.Verdict(False, "a convolution failed: g++: out of memory")


def test_no_compiler(monkeypatch: pytest.MonkeyPatch):
    from pytensor import config

    with config.change_flags(cxx=""):
        compiler = next(checks.check_compiler())
    assert (compiler.status, compiler.install) == ("missing", "apt-get install g++")


@pytest.mark.parametrize("kind", ["folder", "text", "missing", "true", "python"])
def test_a_compiler_that_is_none(tmp_path: Path, kind: str):
    """The doctor says so in its table, and goes on with its other checks."""
    from pytensor import config

    (tmp_path / "text").write_text("hello")
    places = {"true": "/bin/true", "python": sys.executable, "folder": str(tmp_path)}
    program = places.get(kind, str(tmp_path / kind))
    with config.change_flags(cxx=program):
        compiler, _ = checks.check_compiler()
    assert (compiler.status, compiler.where) == ("missing", program)
    words = {"folder": "it is a folder", "text": "denied", "missing": "No such file"}
    assert words.get(kind, "cannot compile an empty C++ file") in compiler.value
    assert compiler.install.endswith("export PYTENSOR_FLAGS=cxx=/usr/bin/g++")


def test_blas_without_a_program_to_look_for_it(monkeypatch: pytest.MonkeyPatch):
    class Config:
        @property
        def blas__ldflags(self):
            raise PermissionError(13, "Permission denied", "/tmp")

    monkeypatch.setattr("pytensor.configdefaults.config", Config())
    assert next(checks.check_blas()).status == "advice"


def test_no_python_headers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(checks.sysconfig, "get_path", lambda name: str(tmp_path))
    _, headers = checks.check_compiler()
    assert headers.status == "missing"
    assert re.fullmatch(r"apt-get install python3[.\d]*-dev", headers.install)


def test_no_onednn(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("dnnops.runtime.find.find_onednn", unavailable("nowhere to be seen"))
    finding = next(checks.check_onednn())
    assert finding.status == "missing"
    assert finding.value == "nowhere to be seen"
    assert finding.install == "pip install onednn-cpu-gomp onednn-devel-cpu-gomp"


def test_onednn_that_does_not_load(monkeypatch: pytest.MonkeyPatch):
    def refuse(name):
        raise OSError("libgomp.so.1: cannot open shared object file")

    monkeypatch.setattr(checks.ctypes, "CDLL", refuse)
    finding = next(checks.check_onednn())
    assert (finding.status, finding.install) == ("missing", "apt-get install libgomp1")


def test_no_driver(monkeypatch: pytest.MonkeyPatch):
    def refuse(name):
        raise OSError(name)

    monkeypatch.setattr(checks.ctypes, "CDLL", refuse)
    assert driver.driver_cuda_version() is None
    for has_device, install in ((True, "apt-get install nvidia-driver"), (False, "")):
        monkeypatch.setattr(checks, "has_nvidia_device", lambda answer=has_device: answer)
        assert next(checks.check_driver()).install == install


@pytest.mark.parametrize(
    ("version", "extra"), [(None, "cuda13"), ((12, 4), "cuda12"), ((13, 0), "cuda13")]
)
def test_the_extra_fits_the_driver(
    monkeypatch: pytest.MonkeyPatch, version: tuple[int, int] | None, extra: str
):
    monkeypatch.setattr(driver, "driver_cuda_version", lambda: version)
    monkeypatch.setattr("dnnops.runtime.find.find_cudnn", unavailable("not here"))
    monkeypatch.setattr("dnnops.runtime.find.find_cuda", unavailable("not here either"))
    for check in (checks.check_cudnn, checks.check_cuda_headers):
        assert next(check()).install == f"pip install 'dnnops[{extra}]'"


def test_driver_version_is_split(monkeypatch: pytest.MonkeyPatch):
    class Driver:
        def __init__(self, name):
            assert name == "libcuda.so.1"

        def cuDriverGetVersion(self, pointer):  # noqa: N802
            ctypes.cast(pointer, ctypes.POINTER(ctypes.c_int))[0] = 13020
            return 0

    monkeypatch.setattr(checks.ctypes, "CDLL", Driver)
    assert driver.driver_cuda_version() == (13, 2)


def test_instruction_sets_are_those_of_onednns_header():
    from dnnops.runtime.find import find_onednn

    header = find_onednn().include_dirs[0] / "oneapi" / "dnnl" / "dnnl_types.h"
    values = {
        int(value, 16)
        for name, value in re.findall(r"dnnl_cpu_isa_(\w+) = (0x[0-9a-f]+)", header.read_text())
        if name not in ("default", "no_hints", "prefer_ymm")
    }
    assert values
    assert values <= set(checks._INSTRUCTION_SETS)


def test_wrong_command_lines(capsys: pytest.CaptureFixture[str]):
    for argv in (["cure"], ["demo", "--epochs", "0"], ["demo", "--device", "tpu"]):
        with pytest.raises(SystemExit) as stop:
            main(argv)
        assert stop.value.code == 2
    assert "flag device: 'tpu' is not accepted. Give one of: cpu, cuda" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "minimum"), [("demo --seed", 0), ("demo --epochs", 1), ("explain --calls", 0)]
)
def test_numbers(capsys: pytest.CaptureFixture[str], option: str, minimum: int):
    for text in (str(minimum - 1), "-7", "1.5", "1e3", "x", "", "²", "9" * 5000):
        with pytest.raises(SystemExit) as stop:
            main([*option.split(), text])
        assert stop.value.code == 2
        error = capsys.readouterr().err.splitlines()[-1]
        assert f"must be an integer of at least {minimum}, got {text!r}" in error


def test_columns_are_kept_in_a_pipe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    long = Finding("oneDNN", "ok", "3.2.0, AVX-512 with AMX", "/a/rather/long/path/of/a/library.so")
    only(monkeypatch, [long], [])
    for width in (40, 60, 79):
        monkeypatch.setenv("COLUMNS", str(width))
        assert main(["doctor"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert max(map(len, lines)) <= width
        assert any("oneDNN" in line for line in lines)
    monkeypatch.delenv("COLUMNS")
    assert main(["doctor"]) == 0
    assert f"{long.value}  {long.where}" in capsys.readouterr().out


def test_errors_of_dnnops_are_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("dnnops.cli.doctor.run", lambda args: unavailable("no such luck")())
    assert main(["doctor"]) == 1
    assert capsys.readouterr().err == "dnnops doctor: no such luck\n"


def test_without_a_command_there_is_help(capsys: pytest.CaptureFixture[str]):
    assert main([]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("usage: dnnops ")
    assert "show what was found, and what is missing" in out
    assert err == ""


def test_version(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"dnnops {dnnops.__version__}\n"


def test_help_of_the_module():
    done = subprocess.run(
        [sys.executable, "-m", "dnnops", "--help"],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert "doctor" in done.stdout
    assert "demo" in done.stdout


@pytest.mark.parametrize(
    ("output", "status", "words"),
    [
        ("2>&- | cat", 0, ""),
        ("| true", 141, ""),
        ("> /dev/full", 1, "No space left on device"),
        (">&-", 0, ""),
    ],
)
def test_output_that_cannot_be_written(output: str, status: int, words: str, tmp_path: Path):
    command = f"{sys.executable} -m dnnops cache show --path {tmp_path} {output}"
    done = subprocess.run(
        ["bash", "-c", f"{command}; exit ${{PIPESTATUS[0]}}"],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    assert words in done.stderr


ROOT = Path(__file__).parents[2]
TYPO = "flag dnn.conv.algo_fwd: 'typo' is not accepted. Give one of: none, small, large, fft, "


def with_a_wrong_flag(arguments: list[str], **more: str) -> subprocess.CompletedProcess:
    flags = os.environ.get("PYTENSOR_FLAGS", "")
    environment = os.environ | {"PYTENSOR_FLAGS": f"{flags},dnn.conv.algo_fwd=typo".lstrip(",")}
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment | more,
        check=False,
    )


@pytest.mark.parametrize(
    "arguments", [["-m", "dnnops", "doctor"], ["-mdnnops"], ["-W", "ignore", "-m", "dnnops", "-h"]]
)
def test_a_wrong_flag_is_said_in_one_line(arguments: list[str]):
    finished = with_a_wrong_flag(arguments)
    assert finished.returncode == 2
    assert finished.stdout == ""
    (line,) = finished.stderr.splitlines()
    assert line.startswith(f"dnnops: {TYPO}")


def test_a_wrong_flag_in_the_installed_command(tmp_path: Path):
    command = tmp_path / "dnnops"
    command.write_text("import sys\nfrom dnnops.__main__ import main\nsys.exit(main())\n")
    finished = with_a_wrong_flag([str(command), "doctor"], PYTHONPATH=str(ROOT))
    assert finished.returncode == 2
    assert finished.stderr.startswith(f"dnnops: {TYPO}")
    assert "Traceback" not in finished.stderr


def test_a_wrong_flag_in_a_program_raises(tmp_path: Path):
    program = tmp_path / "train.py"
    program.write_text("import dnnops\n")
    for arguments in (["-c", "import dnnops", "dnnops"], [str(program), "dnnops"]):
        finished = with_a_wrong_flag(arguments, PYTHONPATH=str(ROOT))
        assert finished.returncode == 1
        assert "Traceback" in finished.stderr
        assert TYPO in finished.stderr

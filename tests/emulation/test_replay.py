"""Test which passes are replayed, and algorithm choices of recurrent networks, on the host."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from dnnops.runtime.build import CUDNN, c_code_dir

pytestmark = pytest.mark.needs("cudnn")

#: Numbers of recordings, direct launches and replays of one pass.
LAUNCHED, RECORDED, REPLAYED = "010", "101", "001"


def compiled(target: Path, program: str, *sources: str | Path) -> Path:
    headers = [argument for argument in CUDNN.recipe[1] if argument.startswith("-I")]
    folder = c_code_dir()
    command = ["g++", "-std=c++17", "-O1", "-g", "-w", "-fsanitize=address,undefined", *headers]
    command += [f"-I{folder}", "-o", str(target), "-pthread"]
    command += [str(Path(__file__).with_name(program)), *(str(folder / name) for name in sources)]
    subprocess.run(command, check=True)
    return target


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("replay")
    return compiled(folder / "replay", "host_replay.cpp", "gpu/kernels/replay.cpp")


def run(program: Path, *passes: object, length: str = "long") -> tuple[list[str], dict[str, int]]:
    command = [program, length, *(str(word) for word in passes)]
    done = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    *became, tail = done.rsplit(" graphs ", 1)
    rest = f"graphs {tail}".split()
    counts = dict(zip(rest[::2], map(int, rest[1::2]), strict=True))
    assert counts["graphs"] == counts["streams"] == 0
    return became[0].split(), counts


def test_repeated_passes_are_replayed(program):
    """A pass is first launched, then recorded and replayed; other recordings are unaffected."""
    became, counts = run(program, 1, 2, 1, 2, 1, 1, "c", 1)
    expected = [LAUNCHED] * 2 + [RECORDED] * 2 + [REPLAYED] * 2 + [LAUNCHED, REPLAYED]
    assert became == expected
    assert counts["replays"] == 5
    assert counts["executables"] == 2


def test_passes_that_never_repeat(program):
    became, counts = run(program, *range(1, 50), *range(1, 50))
    assert set(became) == {LAUNCHED}
    assert counts["executables"] == 0


def test_passes_that_cannot_be_recorded(program):
    """The pass still runs, and recording it is not tried again."""
    became, counts = run(program, "x", "x", 7, 7, 7)
    assert became == [LAUNCHED] * 5
    assert counts["executables"] == 0


def test_recordings_are_few(program):
    """Run each pass twice, so that its recording is used only once: recording soon stops."""
    became, counts = run(program, *(n for i in range(1, 100) for n in (i, i)))
    assert became[:16] == [LAUNCHED, RECORDED] * 8
    assert became.count(RECORDED) < 12
    # Recordings that are used allow new ones, and as many are kept as there is room for.
    passes = [n for i in range(1, 60) for n in [i] * 20]
    became, counts = run(program, *passes)
    assert became == [LAUNCHED, RECORDED, *[REPLAYED] * 18] * 59
    assert counts["executables"] == 24
    became, counts = run(program, *passes, length="short")
    assert counts["executables"] == 59


def test_kernels_stay_while_recordings_do(program):
    """Plans may be forgotten, and with them the kernels that cuDNN compiled."""
    _, counts = run(program, 1, 1, 2, 2)
    assert counts["owners"] == counts["executables"] == 2


def test_choice_by_times(tmp_path):
    """Select the fastest algorithm, unless it uses more memory than its speed is worth."""
    subprocess.run([compiled(tmp_path / "times", "host_rnn_times.cpp")], check=True)


def test_samples_of_results(tmp_path):
    """Sampling the results detects a wrong algorithm."""
    subprocess.run([compiled(tmp_path / "sample", "host_rnn_sample.cpp")], check=True)

"""The demo: its network, its result, its picture and its last line."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from dnnops.__main__ import main
from dnnops.cli import digits
from dnnops.cli.demo import _shown

pytestmark = pytest.mark.needs("sklearn", "matplotlib")

LAST_LINE = r"test accuracy (\d+\.\d) % on cpu \(oneDNN \d+\.\d+\.\d+\), (\d+\.\d) s"


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory):
    """Run the whole demo once; return its output and its picture."""
    picture = tmp_path_factory.mktemp("demo") / "digits.png"
    with pytest.MonkeyPatch.context() as patch:
        lines: list[str] = []
        patch.setattr(sys, "stdout", _Lines(lines))
        assert main(["demo", "--device", "cpu", "--output", str(picture)]) == 0
    return lines, picture


class _Lines:
    """A stream that is not a terminal and keeps its lines."""

    encoding = "utf-8"

    def __init__(self, lines: list[str]) -> None:
        self.lines, self.rest = lines, ""

    def write(self, text: str) -> None:
        *whole, self.rest = (self.rest + text).split("\n")
        self.lines += whole

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return False


@pytest.mark.slow
def test_accuracy_and_time(demo):
    match = re.fullmatch(LAST_LINE, demo[0][-1])
    assert match, demo[0][-1]
    assert 97 <= float(match[1]) <= 100
    assert float(match[2]) < 60


@pytest.mark.slow
def test_loss_and_accuracy_are_shown_for_every_epoch(demo):
    epochs = [line for line in demo[0] if line.startswith("epoch ")]
    assert len(epochs) == 15
    losses = [float(re.search(r"loss (\d+\.\d+)", line)[1]) for line in epochs]
    assert losses[-1] < losses[0] / 10


@pytest.mark.slow
def test_the_training_step_calls_onednn(demo):
    calls = next(line for line in demo[0] if line.startswith("One training step calls:"))
    for name in ("OneDnnConv", "OneDnnPool"):
        assert name in calls


@pytest.mark.slow
def test_output_fits_a_terminal(demo):
    assert max(map(len, demo[0])) <= 80
    assert any(re.fullmatch(r"compiled in \d+\.\d s", line) for line in demo[0])


def test_mistakes_are_shown_first_and_then_every_class():
    classes = np.repeat(np.arange(10), 30)
    guesses = classes.copy()
    assert [classes[i] for i in _shown(classes, guesses)[:20]] == [*range(10)] * 2
    guesses[[40, 100]] = 0
    first = _shown(classes, guesses)[:12].tolist()
    assert first[:2] == [40, 100]
    assert [classes[i] for i in first[2:]] == list(range(10))
    guesses[:] = 0  # 270 mistakes leave room for right answers, too
    shown = _shown(classes, guesses)
    assert (guesses[shown[8:]] == classes[shown[8:]]).all()


@pytest.mark.slow
def test_picture(demo):
    from matplotlib.image import imread

    picture = imread(demo[1])
    assert picture.shape[0] > 300
    assert picture.shape[1] > 2 * 300
    # Neither half is empty.
    for half in np.array_split(picture[..., :3], 2, axis=1):
        assert half.std() > 0.05


def test_same_seed_same_losses_and_other_seed_others():
    first, second, other = (digits.train("cpu", seed, steps=3) for seed in (1, 1, 2))
    assert first == second
    assert first != other


def test_split_covers_all_images_once():
    data = digits.load_digits(seed=3)
    assert len(data.train_images) + len(data.test_images) == 1797
    assert data.train_images.dtype == data.test_images.dtype == np.float32
    assert data.train_images.shape[1:] == (1, 8, 8)
    again = digits.load_digits(seed=3)
    np.testing.assert_array_equal(data.test_classes, again.test_classes)
    assert not np.array_equal(data.test_classes, digits.load_digits(seed=4).test_classes)


@pytest.mark.parametrize("package", ["sklearn", "matplotlib", "rich"])
def test_missing_package(
    package: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setitem(sys.modules, package, None)
    assert main(["demo", "--device", "cpu"]) == 1
    err = capsys.readouterr().err
    assert package in err
    assert "pip install 'dnnops[demo]'" in err


def test_a_device_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    import dnnops.dnn

    def dnn_available(context_name: str) -> bool:
        return False

    dnn_available.msg = "the GPU is on holiday"
    monkeypatch.setattr(dnnops.dnn, "dnn_available", dnn_available)
    assert main(["demo", "--device", "cuda", "--output", str(tmp_path / "x.png")]) == 1
    assert "cannot train on cuda: the GPU is on holiday" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("{folder}/x.exe", "matplotlib cannot write the format exe, but "),
        ("{folder}/missing/d.png", "there is no folder {folder}/missing"),
        ("{folder}", "it is a folder"),
        ("/dev/full", "it is a device"),
    ],
)
def test_a_picture_that_cannot_be_written(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    output: str,
    reason: str,
):
    """It is found before anything is compiled or trained."""
    monkeypatch.setattr(digits, "load_digits", None)
    path, reason = output.format(folder=tmp_path), reason.format(folder=tmp_path)
    assert main(["demo", "--device", "cpu", "--output", path]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"dnnops demo: cannot write {path}: {reason}")
    assert os.listdir(tmp_path) == []

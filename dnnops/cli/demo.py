"""Train a small convolutional network on handwritten digits and show its accuracy."""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dnnops.cli import digits
from dnnops.cli.options import integer
from dnnops.config import FLAGS
from dnnops.display import line_width
from dnnops.errors import DnnUnavailableError, DnnValueError
from dnnops.explanation.picture import obstacle, save
from dnnops.tables import wrapped

if TYPE_CHECKING:
    from rich.console import Console

HELP = "train a small network on handwritten digits"

#: Layout of the images in the picture.
ROWS, COLUMNS = 3, 6


@dataclass
class History:
    """Losses and accuracies during training, one entry per epoch."""

    losses: list[float] = field(default_factory=list)
    train_accuracies: list[float] = field(default_factory=list)
    test_accuracies: list[float] = field(default_factory=list)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument(
        "--device",
        type=_device,
        default="auto",
        metavar="{auto,cpu,cuda}",
        help="where to train; auto is the GPU if cuDNN can be used, else the CPU",
    )
    parser.add_argument("--epochs", type=integer(1), default=15, help="passes over the images")
    parser.add_argument(
        "--seed", type=integer(0), default=0, help="the same seed gives the same result"
    )
    parser.add_argument(
        "--output", type=Path, default=Path("demo.png"), help="picture to write (default demo.png)"
    )


def _device(name: str) -> str:
    if name != "auto":
        try:
            next(flag for flag in FLAGS if flag.name == "device").parse(name)
        except DnnValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
    return name


def run(args: argparse.Namespace) -> int:
    """Run the command.

    Parameters
    ----------
    args : argparse.Namespace
        Arguments with the attributes `device`, `epochs`, `seed` and `output`.

    Returns
    -------
    int
        0 for success; 2 if the picture cannot be written, which is found before the training.

    Raises
    ------
    DnnUnavailableError
        If the device or a package that the demo needs is missing.
    """
    start = time.perf_counter()
    console = _require_packages()
    if reason := obstacle(args.output):
        print(f"dnnops demo: cannot write {args.output}: {reason}", file=sys.stderr)
        return 2
    device = _choose_device(args.device)
    data = digits.load_digits(args.seed)
    _say(
        f"{len(data.train_images)} images of handwritten digits for training, "
        f"{len(data.test_images)} for testing"
    )
    with console.status("compiling"):
        trainer = digits.Trainer(device, args.seed)
    # A no-break space keeps each name next to its count when lines are wrapped.
    calls = ", ".join(f"{name}\xa0x{count}" for name, count in trainer.library_ops().items())
    sentence = f"One training step calls: {calls or 'neither cuDNN nor oneDNN'}"
    _say(sentence)
    print(f"compiled in {time.perf_counter() - start:.1f} s", flush=True)

    history = _train(trainer, data, args.epochs, console)
    probabilities = trainer.probabilities(data.test_images)
    seconds = time.perf_counter() - start
    _draw(args.output, history, data, probabilities)
    console.print(f"wrote {args.output}", soft_wrap=True, highlight=False)
    accuracy = 100 * np.mean(probabilities.argmax(axis=1) == data.test_classes)
    _say(f"test accuracy {accuracy:.1f} % on {device} ({_library(device)}), {seconds:.1f} s")
    return 0


def _say(sentence: str) -> None:
    """Print a sentence, wrapped for readers of narrow and of wide terminals."""
    lines = wrapped(sentence, min(line_width(80), 100), "    ")
    print("\n".join(lines).replace("\xa0", " "), flush=True)


def _require_packages() -> Console:
    try:
        for name in ("matplotlib", "rich", "sklearn"):
            importlib.import_module(name)
    except ImportError as error:
        raise digits.missing_dependency(error) from None
    from rich.console import Console

    return Console()


def _choose_device(name: str) -> str:
    from dnnops.dnn import dnn_available

    if name == "cpu":
        return name
    if name == "auto":
        return "cuda" if dnn_available() else "cpu"
    if not dnn_available(name):
        reason = dnn_available.msg  # type: ignore[attr-defined]
        raise DnnUnavailableError(f"cannot train on {name}: {reason}")
    return name


def _library(device: str) -> str:
    from dnnops.runtime.find import find_cudnn, find_onednn

    name, library = ("oneDNN", find_onednn()) if device == "cpu" else ("cuDNN", find_cudnn())
    return f"{name} {library.version_text}"


def _train(trainer: digits.Trainer, data: digits.Digits, epochs: int, console: Console) -> History:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (
        TextColumn("epoch"),
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("loss {task.fields[loss]:.4f}  test accuracy {task.fields[accuracy]:.1f} %"),
    )
    history = History()
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("training", total=epochs, loss=np.nan, accuracy=np.nan)
        for epoch in range(1, epochs + 1):
            # The learning rate decays to zero, so that the result does not depend on the last few
            # steps.
            rate = digits.LEARNING_RATE * (1 - (epoch - 1) / epochs)
            steps = [
                trainer.train(*batch, rate)
                for batch in trainer.batches(data.train_images, data.train_classes)
            ]
            loss, train_accuracy = (float(mean) for mean in np.mean(steps, axis=0))
            guesses = trainer.probabilities(data.test_images).argmax(axis=1)
            test_accuracy = float(np.mean(guesses == data.test_classes))
            history.losses.append(loss)
            history.train_accuracies.append(train_accuracy)
            history.test_accuracies.append(test_accuracy)
            progress.update(task, advance=1, loss=loss, accuracy=100 * test_accuracy)
            if not console.is_terminal:
                # A progress bar is useless in a log.
                _say(
                    f"epoch {epoch}/{epochs}  loss {loss:.4f}  "
                    f"test accuracy {100 * test_accuracy:.1f} %"
                )
    return history


def _draw(path: Path, history: History, data: digits.Digits, probabilities: np.ndarray) -> None:
    """Write a picture with the learning curve and classified digits, mistakes first."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    halves: Any = figure.subfigures(1, 2, width_ratios=(1, 1.1), wspace=0.04)
    left, right = halves

    epochs = np.arange(1, len(history.losses) + 1)
    above, below = left.subplots(2, 1, sharex=True)
    above.plot(epochs, history.losses, color="tab:red", marker=".")
    above.set(ylabel="training loss", ylim=(0, None))
    for values, name, style in (
        (history.train_accuracies, "training images", "--"),
        (history.test_accuracies, "test images", "-"),
    ):
        below.plot(epochs, 100 * np.array(values), style, marker=".", label=name)
    below.set(xlabel="epoch", ylabel="accuracy (%)", ylim=(None, 101))
    below.xaxis.get_major_locator().set_params(integer=True)
    below.legend(loc="lower right", frameon=False)
    for axes in (above, below):
        axes.grid(alpha=0.3)

    guesses = probabilities.argmax(axis=1)
    for axes, index in zip(
        right.subplots(ROWS, COLUMNS).flat, _shown(data.test_classes, guesses), strict=False
    ):
        image, truth, guess = data.test_images[index, 0], data.test_classes[index], guesses[index]
        axes.imshow(image, cmap="gray_r")
        axes.set_axis_off()
        right_guess = guess == truth
        axes.set_title(
            f"{guess}" if right_guess else f"{guess}, is {truth}",
            color="black" if right_guess else "tab:red",
            fontsize=10,
        )
    count = np.count_nonzero(guesses != data.test_classes)
    right.suptitle(
        f"What the network reads: {count} mistakes in {len(guesses)} test images", fontsize=11
    )
    save(figure, path)


def _shown(classes: np.ndarray, guesses: np.ndarray) -> np.ndarray:
    """Choose images to show: mistakes first, then correct ones from each class in turn."""
    (wrong,), (read,) = np.nonzero(guesses != classes), np.nonzero(guesses == classes)
    turns = np.array(
        [np.count_nonzero(classes[read[:i]] == classes[read[i]]) for i in range(len(read))]
    )
    mistakes = wrong[: ROWS * COLUMNS - digits.N_CLASSES]
    return np.concatenate([mistakes, read[np.lexsort((classes[read], turns))]])

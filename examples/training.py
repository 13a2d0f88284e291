"""What the training programs share: options, parameters, optimizers, progress and curves."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from dnnops.dnn import dnn_available
from dnnops.gpuarray import put_shared_on_gpu

#: How often a training program evaluates its network.
EVALUATIONS = 10


# Options. The device is chosen here only: by the mode of compiled functions, and by where
# pytensor.shared puts parameters.
MODES = {"auto": "DNN", "cpu": "ONEDNN", "cuda": "CUDNN"}


def options(description: str, **defaults: Any) -> argparse.ArgumentParser:
    """Create a parser for the options of all programs, with the defaults of one program."""
    parser = argparse.ArgumentParser(
        description=description.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--device", choices=MODES, default="auto", help="where to train")
    add("--steps", type=positive, help="number of training steps")
    add("--batch", type=positive, help="number of examples in a step")
    add("--seed", type=not_negative, default=0, help="the same seed gives the same result")
    add("--output", type=Path, help="picture to write")
    parser.set_defaults(**defaults)
    return parser


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse the command line, check what can be checked early, and choose the device."""
    args = parser.parse_args()
    if importlib.util.find_spec("matplotlib") is None:
        parser.error("the picture needs matplotlib: pip install 'dnnops[demo]'")
    if not args.output.parent.is_dir():
        parser.error(f"argument --output: there is no folder {args.output.parent}")
    if args.output.suffix not in (".pdf", ".png", ".svg"):
        parser.error(f"argument --output: {args.output} must end in .pdf, .png or .svg")
    if args.device == "cuda" and not dnn_available():
        parser.error(f"argument --device: {dnn_available.msg}")
    args.mode = MODES[args.device]
    on_gpu = args.device != "cpu" and dnn_available()
    if not on_gpu or pytensor.config.device == "cpu":  # otherwise the flag has already done it
        put_shared_on_gpu(on_gpu)
    return args


def positive(text: str) -> int:
    """Convert an option to a positive integer."""
    if not (text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer")
    return int(text)


def not_negative(text: str) -> int:
    """Convert an option to an integer that is at least 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a non-negative integer")
    return int(text)


class Parameters(dict[str, Any]):
    """Shared variables by name, created when they are first used.

    A network that is built twice, for training and for evaluation, uses the same variables.
    """

    def __init__(self, seed: int):
        super().__init__()
        self.rng = np.random.default_rng(seed)

    def normal(self, name: str, *shape: int, scale: float) -> Any:
        """Return a parameter that starts with normal random numbers of a standard deviation."""
        if name not in self:
            self._add(name, scale * self.rng.standard_normal(shape))
        return self[name]

    def constant(self, name: str, *shape: int, value: float = 0.0) -> Any:
        """Return a parameter that starts with a constant."""
        if name not in self:
            self._add(name, np.full(shape, value))
        return self[name]

    def _add(self, name: str, value: np.ndarray) -> None:
        self[name] = pytensor.shared(value.astype("float32"), name=name, shape=value.shape)


# Optimizers: functions of a loss and its parameters that return the updates of a step. The learning
# rate falls linearly, to zero after the given number of steps.


def momentum(
    loss: Any, parameters: Iterable[Any], rate: float, steps: int, decay: float = 0.9
) -> list[tuple[Any, Any]]:
    """Stochastic gradient descent with momentum."""
    parameters = list(parameters)
    _, rate, updates = falling(rate, steps)
    for p, gradient in zip(parameters, pytensor.grad(loss, parameters), strict=True):
        velocity = zeros_like(p)
        new_velocity = np.float32(decay) * velocity - rate * gradient
        updates += [(velocity, new_velocity), (p, p + new_velocity)]
    return updates


def adam(
    loss: Any,
    parameters: Iterable[Any],
    rate: float,
    steps: int,
    decay1: float = 0.9,
    decay2: float = 0.999,
) -> list[tuple[Any, Any]]:
    """Adam, with bias correction."""
    parameters = list(parameters)
    count, rate, updates = falling(rate, steps)
    n = count + np.float32(1)
    rate = rate * pt.sqrt(1 - np.float32(decay2) ** n) / (1 - np.float32(decay1) ** n)
    for p, gradient in zip(parameters, pytensor.grad(loss, parameters), strict=True):
        mean, square = zeros_like(p), zeros_like(p)
        new_mean = np.float32(decay1) * mean + np.float32(1 - decay1) * gradient
        new_square = np.float32(decay2) * square + np.float32(1 - decay2) * gradient**2
        change = rate * new_mean / (pt.sqrt(new_square) + np.float32(1e-8))
        updates += [(mean, new_mean), (square, new_square), (p, p - change)]
    return updates


def falling(rate: float, steps: int) -> tuple[Any, Any, list[tuple[Any, Any]]]:
    """Return a variable that counts steps, the learning rate, and the updates of the variable."""
    count = pytensor.shared(np.float32(0), name="count")
    left = pt.maximum(1 - count / np.float32(steps), np.float32(0))
    return count, np.float32(rate) * left, [(count, count + np.float32(1))]


def zeros_like(parameter: Any) -> Any:
    """Create a shared variable of zeros with the shape of a parameter."""
    value = np.zeros_like(parameter.get_value())
    return pytensor.shared(value, shape=value.shape)


# Training.


@dataclass
class Curve:
    """The losses of all steps, and pairs of a step and what was measured after it."""

    measure: str
    losses: list[float] = field(default_factory=list)
    measured: list[tuple[int, float]] = field(default_factory=list)


def run(steps: int, train: Callable[[], Any], measure: str, evaluate: Callable[[], float]) -> Curve:
    """Train with a progress bar; an interrupt (Ctrl-C) ends the training early.

    Parameters
    ----------
    steps : int
        Number of training steps.
    train : callable
        Runs a training step and returns its loss.
    measure : str
        Name of what `evaluate` returns.
    evaluate : callable
        Measures how good the network is, such as its accuracy.
    """
    curve = Curve(measure)
    console = Console()
    bar = Progress(
        TextColumn("step"),
        MofNCompleteColumn(),
        BarColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
        console=console,
        disable=not console.is_terminal,  # in a file, lines are better than a bar
    )
    due = {round(steps * i / EVALUATIONS) for i in range(1, EVALUATIONS + 1)} - {0}
    try:
        with bar:
            task = bar.add_task("", total=steps)
            for step in range(1, steps + 1):
                curve.losses.append(float(train()))
                if step in due:
                    curve.measured.append((step, float(evaluate())))
                    loss = np.mean(curve.losses[-steps // EVALUATIONS :])
                    words = f"loss {loss:.3f}, {measure} {curve.measured[-1][1]:.3f}"
                    bar.update(task, description=words)
                    if not console.is_terminal:
                        print(f"step {step}: {words}", flush=True)
                bar.advance(task)
    except KeyboardInterrupt:
        print(f"interrupted after {len(curve.losses)} steps")
    return curve


def draw(path: Path, curve: Curve, show: Callable[[Any], None] | None = None) -> None:
    """Write a picture of a learning curve; `show` draws into a second half of the figure."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10 if show else 6, 4), layout="constrained")
    left, right = figure.subfigures(1, 2, wspace=0.05) if show else (figure, None)
    above, below = left.subplots(2, 1, sharex=True)
    above.plot(np.arange(1, len(curve.losses) + 1), curve.losses, color="tab:red", linewidth=0.8)
    above.set(ylabel="training loss")
    below.plot(*zip(*curve.measured, strict=True), color="tab:blue", marker=".")
    below.set(xlabel="step", ylabel=curve.measure)
    for axes in (above, below):
        axes.grid(alpha=0.3)
    if show:
        show(right)
    figure.savefig(path, dpi=80)
    print(f"wrote {path}")

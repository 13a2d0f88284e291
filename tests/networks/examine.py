"""Check the network of a seed, and simplify it if it fails."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from tests.networks.compare import Outcome, check
from tests.networks.network import MOST, Sketch, sketch
from tests.networks.settings import Settings, random_settings
from tests.networks.train import trained

__all__ = ["Report", "examine", "shrunk"]


@dataclass
class Report:
    """The outcome of a seed.

    Attributes
    ----------
    seed : int
        Seed of the network and its settings.
    device : str
        Where it ran.
    settings : str
        How it was compiled.
    outcome : Outcome
        What was compared; its failures include an exception.
    message : str
        What failed, in which smaller network, and a command that repeats it. Empty if nothing did.
    """

    seed: int
    device: str
    settings: str
    outcome: Outcome = field(default_factory=Outcome)
    message: str = ""


def _outcome(drawn: Sketch, device: str, settings: Settings) -> Outcome:
    """Return the outcome of `check`; an exception is one of its failures."""
    try:
        return check(trained(drawn, settings.optimizer), device, settings)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{last.filename.rsplit('/', 1)[-1]}:{last.lineno}"
        return Outcome(failures=[f"{type(error).__name__} in {place}: {error}"])


def examine(
    seed: int,
    device: str,
    most: int = MOST,
    steps: int | None = None,
    without: Collection[int] = (),
    settings: Settings | None = None,
    simplify: bool = True,
) -> Report:
    """Check the network of a seed.

    Parameters
    ----------
    seed : int
        Seed of the network and its settings.
    device : {'cpu', 'cuda', 'rewritten'}
        Where it runs.
    most : int
        Largest number of nodes.
    steps, without
        See `sketch`.
    settings : Settings, optional
        Settings instead of random ones.
    simplify : bool
        Whether to look for a smaller network and simpler settings that fail, too.

    Returns
    -------
    Report
    """
    settings = settings or random_settings(seed, device)
    drawn = sketch(seed, steps, without, most)
    report = Report(seed, device, str(settings), _outcome(drawn, device, settings))
    if not report.outcome.failures:
        return report
    found = report.outcome.failures
    if simplify:
        drawn, settings = shrunk(drawn, settings, lambda *given: _fails(device, *given))
        found = _outcome(drawn, device, settings).failures or found
    report.message = "\n".join(
        [*found[:5], str(drawn), str(settings), f"repeat with: {_command(drawn, device, settings)}"]
    )
    return report


def _fails(device: str, drawn: Sketch, settings: Settings) -> bool:
    return bool(_outcome(drawn, device, settings).failures)


def shrunk(
    drawn: Sketch, settings: Settings, fails: Callable[[Sketch, Settings], bool]
) -> tuple[Sketch, Settings]:
    """Return the smallest part of a network that fails, and the simplest settings.

    Parameters
    ----------
    drawn : Sketch
        A network that fails.
    settings : Settings
        Settings with which it does.
    fails : callable
        Returns whether a network fails with settings.
    """
    for steps in range(1, drawn.last):
        smaller = sketch(drawn.seed, steps, drawn.without)
        if fails(smaller, settings):
            drawn = smaller
            break
    for number in range(drawn.last, 0, -1):
        smaller = sketch(drawn.seed, drawn.last, {*drawn.without, number})
        if smaller.steps and fails(smaller, settings):
            drawn = smaller
    while True:
        simpler = next((s for s in settings.simpler() if fails(drawn, s)), None)
        if simpler is None:
            return drawn, settings
        settings = simpler


def _command(drawn: Sketch, device: str, settings: Settings) -> str:
    command = f"python -m tests.networks --device {device} --seeds {drawn.seed}"
    command += f" --steps {drawn.last}"
    if drawn.without:
        command += " --without " + ",".join(map(str, sorted(drawn.without)))
    return f"{command} --settings {str(settings)!r}"

"""Run a part of the cases of each test; each commit draws others.

With ``--one-in=N``, pytest runs one in N cases of each parametrized test, but at least as many as
``--at-least=M`` says, and all other tests. The seed of the random cases determines which.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable

import pytest

from tests.oracle import SEED

__all__ = ["add_option", "drawn", "keep_drawn"]


def add_option(parser: pytest.Parser) -> None:
    """Add the options ``--one-in`` and ``--at-least``."""
    parser.addoption(
        "--one-in",
        metavar="N",
        type=int,
        default=1,
        help="run one in N cases of each parametrized test, and other ones for each commit",
    )
    parser.addoption(
        "--at-least",
        metavar="M",
        type=int,
        default=4,
        help="with --one-in, run at least M cases of a test, or all; with 0, it may run none",
    )


def drawn(names: Iterable[str], one_in: int, at_least: int, seed: int = SEED) -> set[str]:
    """Draw cases of each test.

    Parameters
    ----------
    names : iterable of str
        Tests by pytest's names. Those of cases end with brackets; all others are drawn.
    one_in : int
        A test has so many cases for each that is drawn. What does not divide is left to chance.
    at_least : int
        Number of cases of a test to draw, if it has so many.
    seed : int

    Returns
    -------
    set of str
    """
    cases = defaultdict(set)
    found = set()
    for name in names:
        test, bracket, _ = name.partition("[")
        (cases[test] if bracket else found).add(name)
    for test, of in cases.items():
        rng = random.Random(f"{seed} {test}")
        count = max(at_least, int(len(of) / one_in + rng.random()))
        found.update(rng.sample(sorted(of), min(count, len(of))))
    return found


def keep_drawn(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the cases that are not drawn, if ``--one-in`` is given.

    Tests that will be skipped are not drawn from, but kept.

    Raises
    ------
    pytest.UsageError
        If a number is too small.
    """
    one_in, at_least = config.getoption("--one-in"), config.getoption("--at-least")
    if one_in < 1 or at_least < 0:
        raise pytest.UsageError(f"--one-in={one_in} --at-least={at_least}: the number is too small")
    if one_in == 1:
        return
    skipped = {item.nodeid for item in items if item.get_closest_marker("skip")}
    names = skipped | drawn({item.nodeid for item in items} - skipped, one_in, at_least)
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in names])
    items[:] = [item for item in items if item.nodeid in names]

"""Counts how many configurations of each Op ran on a GPU, for the record of a run."""

from __future__ import annotations

import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Iterable
from functools import wraps
from pathlib import Path
from typing import Any

__all__ = ["FOLDER", "Configurations", "configuration", "count_configurations"]

#: The environment variable that names the folder where each process leaves what it ran.
FOLDER = "DNNOPS_TEST_CONFIGURATIONS"


def _described(value: Any) -> tuple[Any, ...]:
    """The shape, the strides and the dtype."""
    shape, strides = getattr(value, "shape", None), getattr(value, "strides", None)
    return shape, strides, str(getattr(value, "dtype", type(value).__name__))


def configuration(op: Any, described: Iterable[Any]) -> str:
    """A digest of an Op's parameters, and of what describes its operands and results.

    Parameters
    ----------
    op : Op
    described : iterable of tuple

    Returns
    -------
    str
    """
    parameters = [getattr(op, name) for name in getattr(op, "__props__", ())]
    text = repr((type(op).__name__, parameters, list(described)))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


class Configurations:
    """What ran in this process: digests by the Op's class."""

    def __init__(self) -> None:
        self.found: defaultdict[str, set[str]] = defaultdict(set)

    def watch(self, cls: type) -> None:
        """Note what runs through the method ``perform`` of a class, and does not fail."""
        perform = cls.perform  # type: ignore[attr-defined]

        @wraps(perform)
        def watched(op: Any, node: Any, inputs: Any, output_storage: Any) -> None:
            described = [_described(x) for x in inputs]  # before operands are destroyed
            perform(op, node, inputs, output_storage)
            # Sizes of results may be values of operands.
            described += [_described(value) for (value,) in output_storage]
            self.found[type(op).__name__].add(configuration(op, described))

        cls.perform = watched  # type: ignore[attr-defined]

    def write(self, folder: Path) -> None:
        """Leave what ran in a file of this process."""
        found = {name: sorted(digests) for name, digests in self.found.items()}
        (folder / f"configurations-{os.getpid()}.json").write_text(json.dumps(found))


def count_configurations(folder: Path) -> dict[str, int]:
    """Count the different configurations of each Op that all processes have left.

    Parameters
    ----------
    folder : Path

    Returns
    -------
    dict
        By the Op's class, in the order of the alphabet.
    """
    found: defaultdict[str, set[str]] = defaultdict(set)
    for path in folder.glob("configurations-*.json"):
        for name, digests in json.loads(path.read_text()).items():
            found[name].update(digests)
    return {name: len(found[name]) for name in sorted(found)}

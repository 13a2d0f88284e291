"""Count how many configurations of each Op ran on cuDNN and oneDNN.

With ``DNNOPS_TEST_CONFIGURATIONS=FOLDER``, pytest stores in a folder what ran, and
``python -m tests.configurations_run FOLDER`` prints the counts. Calls from code that Numba compiles
are not counted.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterable
from functools import wraps
from pathlib import Path
from typing import Any

__all__ = ["FOLDER", "Configurations", "configuration", "count_configurations", "watch_all"]

#: The environment variable with the folder where each process stores what it ran.
FOLDER = "DNNOPS_TEST_CONFIGURATIONS"


def _described(value: Any) -> tuple[Any, ...]:
    """Return the shape, the strides and the dtype."""
    shape, strides = getattr(value, "shape", None), getattr(value, "strides", None)
    return shape, strides, str(getattr(value, "dtype", type(value).__name__))


def configuration(op: Any, described: Iterable[Any]) -> str:
    """Return a digest of an Op's parameters and the description of its operands and results.

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
    """Configurations that ran in this process: digests by the Op's class."""

    def __init__(self) -> None:
        self.found: defaultdict[str, set[str]] = defaultdict(set)

    def watch(self, cls: type) -> None:
        """Record the successful calls of a class's ``perform``."""
        perform = cls.perform  # type: ignore[attr-defined]

        @wraps(perform)
        def watched(op: Any, node: Any, inputs: Any, output_storage: Any) -> None:
            described = [_described(x) for x in inputs]  # before operands are destroyed
            perform(op, node, inputs, output_storage)
            # The sizes of results may depend on the values of operands.
            described += [_described(value) for (value,) in output_storage]
            self.found[type(op).__name__].add(configuration(op, described))

        cls.perform = watched  # type: ignore[attr-defined]

    def watch_c(self, cls: type) -> None:
        """Record the calls of a class's C code, too; for that, PyTensor calls it from Python."""
        make_c_thunk = cls.make_c_thunk  # type: ignore[attr-defined]

        @wraps(make_c_thunk)
        def watched(op: Any, node: Any, storage_map: Any, *arguments: Any, **keywords: Any) -> Any:
            thunk = make_c_thunk(op, node, storage_map, *arguments, **keywords)
            inputs = [storage_map[x] for x in node.inputs]
            outputs = [storage_map[z] for z in node.outputs]

            # Without the address of the C function, which PyTensor's C VM would call instead.
            def run() -> None:
                described = [_described(value) for (value,) in inputs]
                thunk()
                described += [_described(value) for (value,) in outputs]
                self.found[type(op).__name__].add(configuration(op, described))

            run.thunk, run.lazy = thunk.thunk, thunk.lazy  # type: ignore[attr-defined]
            run.inputs, run.outputs = inputs, outputs  # type: ignore[attr-defined]
            return run

        cls.make_c_thunk = watched  # type: ignore[attr-defined]

    def write(self, folder: Path) -> None:
        """Store what ran in a file of this process."""
        found = {name: sorted(digests) for name, digests in self.found.items()}
        (folder / f"configurations-{os.getpid()}.json").write_text(json.dumps(found))


def count_configurations(folder: Path) -> dict[str, int]:
    """Count the different configurations of each Op that all processes have stored.

    Parameters
    ----------
    folder : Path

    Returns
    -------
    dict
        Counts by the Op's class, in alphabetical order.
    """
    found: defaultdict[str, set[str]] = defaultdict(set)
    for path in folder.glob("configurations-*.json"):
        for name, digests in json.loads(path.read_text()).items():
            found[name].update(digests)
    return {name: len(found[name]) for name in sorted(found)}


def watch_all() -> Configurations:
    """Record what cuDNN Ops run from Python, and what oneDNN Ops run from Python and from C."""
    from dnnops.cpu.base import OneDnnOp
    from dnnops.gpu.base import CudnnOp

    found = Configurations()
    found.watch(CudnnOp)
    found.watch(OneDnnOp)
    found.watch_c(OneDnnOp)
    return found


if __name__ == "__main__":
    for _name, _count in count_configurations(Path(sys.argv[1])).items():
        print(f"{_count:7d} {_name}")

"""A call of each public function, which tests of all Ops use.

The test file of an Op defines ``EXAMPLE``. From it follow tests of bad arguments, of the Ops that
run it on the CPU in every dtype, and of its rewritten graphs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from pytensor.graph.basic import Variable

FOLDER = Path(__file__).parent / "nnet"


@dataclass(frozen=True)
class Example:
    """A call of a public function.

    Attributes
    ----------
    function : callable
        The function.
    operands : callable
        Takes a dtype; returns keyword arguments, of which variables are inputs of the graph.
    cpu_ops : frozenset of str
        Names of the CPU Ops that compute the function and its gradients.
    """

    function: Callable[..., Any]
    operands: Callable[[str], dict[str, Any]]
    cpu_ops: frozenset[str]

    def graph(self, dtype: str) -> tuple[list[Any], Any]:
        """Return the variables among the operands, and the function's result."""
        operands = self.operands(dtype)
        inputs = [x for x in operands.values() if isinstance(x, Variable)]
        return inputs, self.function(**operands)


@cache
def examples() -> tuple[Example, ...]:
    """Return the examples of all test files."""
    files = [file for file in sorted(FOLDER.rglob("test_*.py")) if _defines_one(file)]
    names = [file.relative_to(FOLDER).with_suffix("").parts for file in files]
    return tuple(import_module(".".join(("tests.nnet", *parts))).EXAMPLE for parts in names)


def _defines_one(file: Path) -> bool:
    return "\nEXAMPLE = Example(" in file.read_text(encoding="utf-8")

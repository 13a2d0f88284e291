"""Evaluate graphs node by node in NumPy, and find how much rounding may change the results."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import toposort
from pytensor.scalar.basic import Composite
from pytensor.tensor.elemwise import Elemwise

from dnnops.gpuarray.elemwise import elementwise_expressions
from tests.oracle import RELATIVE_ERROR

__all__ = ["Program", "distance"]


def _parts(node: Apply, inputs: Sequence[Any]) -> list[Any] | None:
    """Return the results of a node as those of the graph that its Op contains, if it does."""
    op: Any = node.op
    if isinstance(op, OpFromGraph):
        given = dict(zip(op.inner_inputs, inputs, strict=True))
        return _inlined(clone_replace(op.inner_outputs, given))
    if isinstance(op, Elemwise) and isinstance(op.scalar_op, Composite):
        return elementwise_expressions(op.scalar_op, inputs)
    return None


def _inlined(outputs: Sequence[Variable]) -> list[Variable]:
    """Replace Ops that contain graphs by these graphs, so that each step in them is a node."""
    new: dict[Any, Any] = {}
    for node in toposort(outputs):
        inputs = [new.get(x, x) for x in node.inputs]
        found = _parts(node, inputs)
        if found is None and inputs == node.inputs:
            continue
        if found is None:
            found = node.clone_with_new_inputs(inputs, strict=False).outputs
        new.update(zip(node.outputs, found, strict=True))
    return [new.get(z, z) for z in outputs]


_PRECISE = RELATIVE_ERROR["float32"]


class Program:
    """A graph that each node's ``perform`` evaluates, without rewrites or compilation.

    Parameters
    ----------
    inputs : sequence of Variable
        Variables whose values are given. Shared variables among them need values, too.
    outputs : sequence of Variable
        Variables to evaluate.
    noisy : sequence of Variable, optional
        Outputs with nodes that noise changes fully; all outputs by default. Other nodes have at
        most the noise of float32.
    """

    def __init__(
        self,
        inputs: Sequence[Variable],
        outputs: Sequence[Variable],
        noisy: Sequence[Variable] | None = None,
    ):
        self.inputs = list(inputs)
        noisy = list(outputs) if noisy is None else list(noisy)
        found = _inlined([*outputs, *noisy])
        self.outputs = found[: len(outputs)]
        self._nodes = list(toposort(self.outputs, blockers=self.inputs))
        self._noisy = set(toposort(found[len(outputs) :], blockers=self.inputs))

    def __call__(
        self, values: Sequence[Any], noise: float = 0.0, seed: int = 0, least: float = 0.0
    ) -> list[Any]:
        """Return the values of the outputs.

        Parameters
        ----------
        values : sequence
            Values of the inputs.
        noise : float
            Largest relative change of each element of each float array that is given or computed.
        seed : int
            Seed of these changes.
        least : float
            Largest absolute change of numbers other than zero, in addition, for dtypes whose
            smallest numbers are not small.
        """
        rng = np.random.default_rng(seed)

        def changed(value: Any, noise: float = noise, least: float = least) -> Any:
            if not noise or getattr(getattr(value, "dtype", None), "kind", "") != "f":
                return value
            factors, terms = rng.uniform(-1, 1, (2, *np.shape(value)))
            moved = value * (1 + noise * factors) + least * terms * (value != 0)
            return np.asarray(moved, value.dtype)

        precise = (min(noise, _PRECISE), 0.0)
        # Generators of random numbers are copied, because their Ops change them.
        storage = {x: copy.deepcopy(v) for x, v in zip(self.inputs, values, strict=True)}
        # The optimizer reads float32 parameters, which are rounded only for other nodes.
        rounded = {x: changed(v) for x, v in storage.items()}
        storage = {x: changed(v, *precise) for x, v in storage.items()}

        def read(x: Variable, is_noisy: bool = False) -> Any:
            if isinstance(x, Constant) and x not in storage:
                return x.data
            return rounded[x] if is_noisy and x in rounded else storage[x]

        with np.errstate(all="ignore"):
            for node in self._nodes:
                is_noisy = node in self._noisy
                cells: list[list[Any]] = [[None] for _ in node.outputs]
                node.op.perform(node, [read(x, is_noisy) for x in node.inputs], cells)
                moved = _only_moves(node)
                amounts = (noise, least) if is_noisy else precise
                for z, (value,) in zip(node.outputs, cells, strict=True):
                    storage[z] = value if moved else changed(value, *amounts)
        return [read(z) for z in self.outputs]


def _only_moves(node: Any) -> bool:
    """Return whether a node returns elements of its operands, which no backend rounds."""
    return node.op.view_map or type(node.op).__name__ in _MOVES


_MOVES = {"Join", "AdvancedSubtensor", "AdvancedSubtensor1", "IncSubtensor", "Alloc", "Second"}


def distance(value: Any, expected: Any) -> float:
    """Return the norm of the difference of two arrays; infinity if one is not finite."""
    if getattr(getattr(expected, "dtype", None), "kind", "O") not in "fiub":
        return 0.0  # a generator of random numbers
    if np.shape(value) != np.shape(expected):
        return np.inf
    difference = np.asarray(value, "float64") - np.asarray(expected, "float64")
    norm = float(np.linalg.norm(difference.ravel()))
    return norm if np.isfinite(norm) else np.inf

"""Sizes that an Op takes as an operand, for linkers that need them before they have any values.

JAX compiles a graph for arrays of given shapes, so what follows from shapes is known to it. But in
PyTensor's conversion only the shape itself stays a number; vectors and arithmetic of them become
arrays of JAX's, whose values are not known. `StaticSizes` takes the place of such a vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import Op
from pytensor.graph.replace import clone_replace
from pytensor.tensor.shape import Shape, Shape_i

__all__ = ["StaticSizes", "sizes_by_shapes"]


class StaticSizes(Op):
    """A vector of sizes, made of the shapes of other arrays: ``StaticSizes(...)(*arrays)``.

    Parameters
    ----------
    shapes : sequence of Variable
        A vector for the shape of each array.
    sizes : Variable
        The vector of sizes, made of them.
    """

    def __init__(self, shapes: Sequence[Variable], sizes: Variable):
        self.shapes = list(shapes)
        self.sizes = sizes
        self._function: Any = None

    def make_node(self, *arrays: Variable) -> Apply:
        return Apply(self, list(arrays), [self.sizes.type()])

    def evaluate(self, *shapes: Sequence[int]) -> np.ndarray:
        """Compute the sizes.

        Parameters
        ----------
        *shapes : sequence of int
            Of the arrays.

        Returns
        -------
        ndarray of int64
        """
        if self._function is None:
            mode: Any = Mode(linker="py", optimizer=None)  # type: ignore[arg-type]
            self._function = pytensor.function(self.shapes, self.sizes, mode=mode)
        return self._function(*(np.array(shape, dtype="int64") for shape in shapes))

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        output_storage[0][0] = self.evaluate(*(x.shape for x in inputs))


def sizes_by_shapes(sizes: Variable) -> Variable | None:
    """Write a vector of sizes as one `StaticSizes`.

    Parameters
    ----------
    sizes : Variable

    Returns
    -------
    Variable or None
        None if it depends on something else than shapes and constants.
    """
    arrays: list[Variable] = []
    shapes: list[Any] = []
    replacements: dict[Variable, Variable] = {}
    pending, seen = [sizes], set()
    while pending:
        variable = pending.pop()
        if variable in seen or isinstance(variable, Constant):
            continue
        seen.add(variable)
        if variable.owner is None:
            return None
        op, inputs = variable.owner.op, variable.owner.inputs
        if not isinstance(op, Shape | Shape_i):
            pending += inputs
            continue
        if inputs[0] not in arrays:
            arrays.append(inputs[0])
            shapes.append(pt.tensor(dtype="int64", shape=(inputs[0].type.ndim,)))
        shape = shapes[arrays.index(inputs[0])]
        replaced = shape[op.i] if isinstance(op, Shape_i) else shape
        replacements[variable] = variable.type.filter_variable(replaced, allow_convert=True)
    own = clone_replace(sizes, replacements) if sizes not in replacements else replacements[sizes]
    found: Any = StaticSizes(shapes, own)(*arrays)
    return found

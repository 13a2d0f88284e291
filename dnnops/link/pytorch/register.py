"""How the conversions are registered, and what they ask of a node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from pytensor.graph.basic import Apply, Constant
from pytensor.link.pytorch.dispatch.basic import pytorch_funcify

from dnnops.errors import DnnValueError
from dnnops.link.parameters import constant_numbers
from dnnops.link.pytorch import library
from dnnops.link.sizes import StaticSizes
from dnnops.nnet._validate import show_shape

__all__ = ["converts", "require_same_shape"]


@pytorch_funcify.register(StaticSizes)
def pytorch_funcify_static_sizes(op: StaticSizes, **kwargs: Any) -> Callable[..., Any]:
    """Give the sizes as ints, which PyTorch compiles as constants, or as expressions of shapes."""

    def static_sizes(*arrays: Any) -> Any:
        return op.evaluate(*[tuple(x.shape) for x in arrays])

    return static_sizes


def converts(*op_types: type, sizes: int = 0) -> Callable[[Any], Any]:
    """Decorate what computes an Op's results in PyTorch: register it.

    Parameters
    ----------
    *op_types : type
        The classes of Ops.
    sizes : int
        How many of the operands, the last ones, are vectors of sizes.

    Returns
    -------
    callable
        The decorator of a function of the Op and its operands, floating-point ones in the dtype in
        which sums are taken, and sizes as tuples of ints, that gives a tuple of results.  They are
        cast to the dtypes that they are to have.
    """

    def register(compute: Callable[..., tuple]) -> Callable[..., tuple]:
        def funcify(op: Any, node: Apply, **kwargs: Any) -> Callable[..., Any]:
            return _conversion(compute, op, node, sizes)

        for op_type in op_types:
            pytorch_funcify.register(op_type)(funcify)
        return compute

    return register


def _conversion(
    compute: Callable[..., tuple], op: Any, node: Apply, sizes: int
) -> Callable[..., Any]:
    dtypes = [output.type.dtype for output in node.outputs]
    data = len(node.inputs) - sizes
    # Constants are read now: of a tensor it would interrupt what PyTorch compiles.
    known = constant_numbers(node)
    for i, variable in enumerate(node.inputs[data:], start=data):
        if isinstance(variable, Constant):
            known[i] = tuple(variable.data.tolist())

    def dnnops_op(*operands: Any) -> Any:
        values = []
        for i, operand in enumerate(operands):
            if i in known:
                values.append(known[i])
            elif i < data:
                values.append(library.widen(operand))
            else:
                # A tensor if sizes depend on values: that interrupts what PyTorch compiles.
                vector = operand.tolist() if isinstance(operand, torch.Tensor) else operand
                values.append(tuple(vector))
        results = compute(op, *values)
        cast = [library.cast(r, dtype) for r, dtype in zip(results, dtypes, strict=False)]
        return cast[0] if len(cast) == 1 else tuple(cast)

    return dnnops_op


def require_same_shape(op: Any, *shapes: Any) -> None:
    """Raise `DnnValueError` if there are several shapes, which PyTorch might broadcast."""
    if any(tuple(shape) != tuple(shapes[0]) for shape in shapes[1:]):
        found = ", ".join(show_shape(tuple(shape)) for shape in shapes)
        raise DnnValueError(f"{op}: the operands must have one shape, got {found}")

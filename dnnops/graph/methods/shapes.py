"""Methods that add products, reductions and operations on shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dnnops.errors import DnnValueError
from dnnops.graph.methods.base import Methods
from dnnops.graph.names import data_type
from dnnops.graph.nodes.joining import Concatenate, Reshape
from dnnops.graph.nodes.matmul import Matmul
from dnnops.graph.nodes.reduction import Reduction
from dnnops.graph.tensors import Tensor

__all__ = ["ShapeMethods"]

_NOT_SET: Any = data_type.NOT_SET


class ShapeMethods(Methods):
    """Products, reductions and operations on shapes."""

    def matmul(
        self,
        A: Tensor,
        B: Tensor,
        compute_data_type: Any = _NOT_SET,
        padding: float = 0.0,
        name: str = "",
    ) -> Tensor:
        """Multiply matrices in the last two axes; the other axes are broadcast.

        `padding` is the value of elements beyond sizes that tensors override.
        """
        (result,) = self.add_operation(
            Matmul,
            {"A": A, "B": B},
            name,
            compute_data_type,
            padding_value=padding,
        )
        return result

    def reduction(
        self, input: Tensor, mode: Any, compute_data_type: Any = _NOT_SET, name: str = ""
    ) -> Tensor:
        """Reduce along the axes for which you set the size 1 in the dim of the result."""
        (result,) = self.add_operation(Reduction, {"X": input}, name, compute_data_type, mode=mode)
        return result

    def concatenate(
        self, inputs: Sequence[Tensor], axis: int, in_place_index: int | None = None, name: str = ""
    ) -> Tensor:
        """Join tensors along an axis.

        The memory of the operand `in_place_index` is part of the result, and is not copied.
        """
        if isinstance(inputs, Tensor) or not inputs:
            raise DnnValueError("concatenate needs a list of at least one tensor")
        operands = {f"IN_{i}": x for i, x in enumerate(inputs)}
        (result,) = self.add_operation(
            Concatenate,
            operands,
            name,
            _NOT_SET,
            axis=axis,
            in_place_index=in_place_index,
        )
        return result

    def reshape(self, input: Tensor, name: str = "") -> Tensor:
        """View the same memory with the dim and stride that you set for the result."""
        (result,) = self.add_operation(Reshape, {"X": input}, name, _NOT_SET)
        return result

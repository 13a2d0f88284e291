"""Base class of the methods of a graph that add operations."""

from __future__ import annotations

from typing import Any

from dnnops.graph.tensors import Tensor

__all__ = ["Methods"]


class Methods:
    """Base class of the methods of `pygraph` that add operations.

    Each returns the result or the results as virtual tensors. With `compute_data_type`, the
    operation computes in this type, and not in that of the graph; `name` is its name, which is
    unique in the graph. Inputs that aren't tensors of the graph raise `DnnTypeError`; shapes are
    checked by `validate`.
    """

    def add_operation(
        self,
        kind: Any,
        inputs: dict[str, Any],
        name: str,
        compute_data_type: Any,
        **parameters: Any,
    ) -> list[Tensor]:
        raise NotImplementedError

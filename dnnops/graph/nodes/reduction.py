"""Reductions along axes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import pytensor.tensor as pt

from dnnops.errors import DnnValueError
from dnnops.graph.names import reduction_mode
from dnnops.graph.nodes.base import Node

__all__ = ["Reduction"]

_EXPRESSIONS: dict[str, Callable[[Any, list[int]], Any]] = {
    "ADD": lambda x, axes: pt.sum(x, axes, keepdims=True),
    "MUL": lambda x, axes: pt.prod(x, axes, keepdims=True),
    "MIN": lambda x, axes: pt.min(x, axes, keepdims=True),
    "MAX": lambda x, axes: pt.max(x, axes, keepdims=True),
    "AMAX": lambda x, axes: pt.max(abs(x), axes, keepdims=True),
    "AVG": lambda x, axes: pt.mean(x, axes, keepdims=True),
    "NORM1": lambda x, axes: pt.sum(abs(x), axes, keepdims=True),
    "NORM2": lambda x, axes: pt.sqrt(pt.sum(x * x, axes, keepdims=True)),
    "MUL_NO_ZEROS": lambda x, axes: pt.prod(pt.where(pt.eq(x, 0), 1, x), axes, keepdims=True),
}


class Reduction(Node):
    """Reduction along the axes in which the result has the size 1."""

    tag = "REDUCTION"
    results = ("Y",)
    members: ClassVar[dict[str, Any]] = {"mode": reduction_mode}

    def infer(self) -> None:
        (x,) = self.dims("X")
        y = self.require_dim("Y", f"{x} with 1 for the axes to reduce")
        if len(x) != len(y) or any(n not in (1, size) for n, size in zip(y, x, strict=True)):
            raise DnnValueError(
                f"{self.where}: {self.outputs['Y'].name!r} has dim {y}; expected {x} with 1 for"
                " the axes to reduce"
            )
        self.set_stride("Y", like=self.inputs["X"])

    def lower(self, descriptors: Any) -> None:
        reduction = descriptors.make(
            "REDUCTION", OPERATOR=self.parameters["mode"], COMP_TYPE=self.compute_data_type
        )
        descriptors.operation(
            "REDUCTION",
            "REDUCTION",
            XDESC=self.inputs["X"],
            YDESC=self.outputs["Y"],
            DESC=reduction,
        )

    def expressions(self, values: Mapping[str, Any]) -> dict[str, Any]:
        x, y = self.inputs["X"].dim, self.outputs["Y"].dim
        axes = [axis for axis, (n, k) in enumerate(zip(x, y, strict=True)) if k == 1 and n != 1]
        return {"Y": _EXPRESSIONS[self.parameters["mode"].name](values["X"], axes)}

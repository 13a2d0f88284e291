"""Operations that join tensors or view them with other shapes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import pytensor.tensor as pt

from dnnops.errors import DnnValueError
from dnnops.graph.nodes.base import Node
from dnnops.graph.tensors import as_integer

__all__ = ["Concatenate", "Reshape"]


class Concatenate(Node):
    """Joins tensors along an axis.

    With ``in_place_index``, the memory of that operand is part of the result, and cuDNN does not
    copy it.
    """

    tag = "CONCATENATE"
    results = ("Y",)
    checks: ClassVar[dict[str, Any]] = {"axis": as_integer, "in_place_index": as_integer}
    optional = frozenset({"in_place_index"})
    computes = False

    def infer(self) -> None:
        dims = self.dims(*self.inputs)
        axis = self.parameters["axis"]
        if not 0 <= axis < len(dims[0]):
            raise DnnValueError(f"{self.where}: axis {axis} of tensors with {len(dims[0])} axes")
        others = {(*dim[:axis], *dim[axis + 1 :]) for dim in dims}
        if len(others) > 1:
            raise DnnValueError(
                f"{self.where}: the operands differ in other axes than {axis}: {dims}"
            )
        index = self.parameters["in_place_index"]
        if index is not None and not 0 <= index < len(dims):
            raise DnnValueError(f"{self.where}: in_place_index {index} of {len(dims)} operands")
        result = list(dims[0])
        result[axis] = sum(dim[axis] for dim in dims)
        first = next(iter(self.inputs.values()))
        self.set_result("Y", result, like=first)

    def lower(self, descriptors: Any) -> None:
        descriptors.operation(
            "CONCAT",
            "CONCAT",
            AXIS=self.parameters["axis"],
            INPUT_DESCS=list(self.inputs.values()),
            INPLACE_INDEX=self.parameters["in_place_index"],
            OUTPUT_DESC=self.outputs["Y"],
        )

    def expressions(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {"Y": pt.concatenate(list(values.values()), axis=self.parameters["axis"])}


class Reshape(Node):
    """Views the same memory with other sizes and strides."""

    tag = "RESHAPE"
    results = ("Y",)
    computes = False

    def infer(self) -> None:
        (x,) = self.dims("X")
        y = self.require_dim("Y", "the new shape")
        if math.prod(x) != math.prod(y):
            raise DnnValueError(f"{self.where}: {x} and {y} have different numbers of elements")
        self.set_stride("Y")

    def lower(self, descriptors: Any) -> None:
        descriptors.operation("RESHAPE", "RESHAPE", XDESC=self.inputs["X"], YDESC=self.outputs["Y"])

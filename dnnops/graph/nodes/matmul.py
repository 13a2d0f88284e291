"""Products of matrices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytensor.tensor as pt

from dnnops.errors import DnnValueError
from dnnops.graph.nodes.base import Node, broadcast
from dnnops.graph.tensors import as_number

__all__ = ["Matmul"]


class Matmul(Node):
    """Product of matrices in the last two axes; the others are broadcast."""

    tag = "MATMUL"
    results = ("C",)
    checks: ClassVar[dict[str, Any]] = {"padding_value": as_number}
    optional = frozenset({"M_override", "N_override", "K_override"})

    def infer(self) -> None:
        a, b = self.dims("A", "B")
        if len(a) < 2:
            raise DnnValueError(f"{self.where}: the operands must have at least 2 axes, got {a}")
        if a[-1] != b[-2]:
            raise DnnValueError(
                f"{self.where}: the last size of A {a} differs from the last but one of B {b}"
            )
        self.set_result("C", [*broadcast(self.where, a[:-2], b[:-2]), a[-2], b[-1]])

    def lower(self, descriptors: Any) -> None:
        product = descriptors.make("MATMUL", COMP_TYPE=self.compute_data_type)
        if self.parameters["padding_value"]:
            product.set("MATMUL_PADDING_VALUE", self.parameters["padding_value"])
        descriptors.operation(
            "MATMUL",
            "MATMUL",
            ADESC=self.inputs["A"],
            BDESC=self.inputs["B"],
            CDESC=self.outputs["C"],
            DESC=product,
            GEMM_M_OVERRIDE_DESC=self.inputs.get("M_override"),
            GEMM_N_OVERRIDE_DESC=self.inputs.get("N_override"),
            GEMM_K_OVERRIDE_DESC=self.inputs.get("K_override"),
        )

    def expressions(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {"C": pt.matmul(values["A"], values["B"])}

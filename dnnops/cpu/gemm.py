"""Matrix products in float32 with oneDNN.

BLAS libraries have their own threads, which keep spinning between calls and compete with oneDNN's
threads. On two cores, this makes both several times slower. The dense layers of a network therefore
run in oneDNN's threads.
"""

from __future__ import annotations

from typing import Any

import pytensor.tensor as pt
from pytensor.graph.basic import Apply

from dnnops.arguments import switch
from dnnops.compat import shape_inference
from dnnops.cpu.base import OneDnnOp
from dnnops.errors import DnnTypeError

__all__ = ["OneDnnDot", "OneDnnGemm"]


def _matrices(where: str, *operands: Any) -> list[Any]:
    matrices = [pt.as_tensor_variable(x) for x in operands]
    for x in matrices:
        if x.type.ndim != 2 or x.type.dtype != "float32":
            raise DnnTypeError(f"{where}: expected float32 matrices, got {x.type}")
    return matrices


class OneDnnDot(OneDnnOp):
    """Product of two matrices, computed by ``dnnl_sgemm``: ``OneDnnDot()(x, y)``."""

    __props__ = ()
    function = "dnnops_onednn_gemm"

    def parameters(self) -> list[int]:
        return [0]

    def make_node(self, x: Any, y: Any) -> Apply:
        x, y = _matrices("OneDnnDot", x, y)
        shape = (x.type.shape[0], y.type.shape[1])
        return Apply(self, [x, y], [pt.tensor(dtype="float32", shape=shape)])

    @shape_inference
    def infer_shape(self, node: Apply, shapes: list[Any]) -> list[Any]:
        return [(shapes[0][0], shapes[1][1])]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        (x, y), (g,) = inputs, cotangents
        return [pt.dot(g, y.T), pt.dot(x.T, g)]


class OneDnnGemm(OneDnnOp):
    """``beta * z + alpha * x @ y``, computed by ``dnnl_sgemm``.

    Call it as ``OneDnnGemm(inplace)(z, alpha, x, y, beta)``. It replaces PyTensor's ``Gemm`` and
    has the same operands.

    Parameters
    ----------
    inplace : bool
        Whether the result is written into `z`.
    """

    __props__ = ("inplace",)
    function = "dnnops_onednn_gemm"

    def __init__(self, inplace: bool = False):
        self.inplace = switch(type(self).__name__, "inplace", inplace)
        if self.inplace:
            self.destroy_map = {0: [0]}

    def parameters(self) -> list[int]:
        return [1]

    def make_node(self, z: Any, alpha: Any, x: Any, y: Any, beta: Any) -> Apply:
        z, x, y = _matrices("OneDnnGemm", z, x, y)
        scalars = [pt.as_tensor_variable(s).astype("float32") for s in (alpha, beta)]
        if any(s.type.ndim for s in scalars):
            raise DnnTypeError(f"OneDnnGemm: alpha and beta must be scalars, got {scalars}")
        shape = (x.type.shape[0], y.type.shape[1])
        inputs = [z, scalars[0], x, y, scalars[1]]
        return Apply(self, inputs, [pt.tensor(dtype="float32", shape=shape)])

    @shape_inference
    def infer_shape(self, node: Apply, shapes: list[Any]) -> list[Any]:
        return [(shapes[2][0], shapes[3][1])]

"""Dense layers on a GPU: a product, a bias, a sum and an activation in one call of cuBLASLt.

`dnnops.rewriting.fuse.dense` inserts this Op. If cuBLASLt has no algorithm for an epilogue, a
dnnops kernel completes a plain product in place.
"""

from __future__ import annotations

from math import pi, sqrt
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply
from pytensor.graph.op import io_connection_pattern
from pytensor.tensor import as_tensor_variable

import dnnops.gpu.kernels  # noqa: F401 - registers what C code calls
from dnnops.arguments import switch, switch_or_flag
from dnnops.compat import shape_inference
from dnnops.errors import DnnTypeError
from dnnops.gpu.base import TAKES_CONTIGUOUS, TAKES_GAPS, TAKES_MATRIX, device_operands
from dnnops.gpu.derivatives import GpuExpressionOp
from dnnops.gpuarray.products.blas import product_algo, product_settings
from dnnops.gpuarray.type import GpuArrayType
from dnnops.nnet.activation.op import Activation
from dnnops.nnet.validate import merge_shapes, one_of

__all__ = ["ACTIVATIONS", "GpuDense", "gelu"]

#: In the order of ``DenseActivation`` in the C code; the first is none.
ACTIVATIONS = ("", "relu", "gelu")


def gelu(x: Any) -> Any:
    """Return GELU with the tanh approximation, which is what cuBLASLt computes."""
    number = np.dtype(x.type.dtype).type
    inner = number(sqrt(2 / pi)) * (x + number(0.044715) * x**3)
    return number(0.5) * x * (1 + pt.tanh(inner))


class Operands(NamedTuple):
    """Operands of `GpuDense`, or None for those that a node does not have."""

    x: Any
    w: Any
    bias: Any
    addend: Any


class GpuDense(GpuExpressionOp):
    """``activation(x @ w + bias + addend)``, called as ``GpuDense(...)(x, w, bias, addend)``.

    `x` has the shape (rows, inner), `w` (inner, columns), `bias` (columns,), and `addend` and the
    result (rows, columns). They have the same dtype: float16, bfloat16, float32 or float64. Numbers
    of 16 bits are added up in float32, and the result is rounded once.

    Parameters
    ----------
    activation : {'', 'relu', 'gelu'}
        'relu' propagates NaN. 'gelu' uses the tanh approximation.
    bias, addend : bool
        Whether the Op takes these operands.
    allow_tf32 : bool, optional
        Whether float32 operands may be rounded to TF32. Defaults to the flag ``dnn.allow_tf32``.
    algo : {'guess_once', 'time_once'}, optional
        How cuBLASLt's algorithm is selected. Defaults to the flag ``dnn.matmul.algo``, or to
        'guess_once' if ``dnn.deterministic`` is set.

    Raises
    ------
    DnnTypeError, DnnValueError
        If a parameter or an operand is invalid.

    Notes
    -----
    NVIDIA's documentation of ``cublasLtEpilogue_t`` defines the epilogues.
    """

    __props__ = ("activation", "bias", "addend", "allow_tf32", "algo")
    function = "dnnops_cudnn_dense"
    called_library = "cuBLASLt"

    def __init__(
        self,
        activation: str = "",
        bias: bool = False,
        addend: bool = False,
        allow_tf32: bool | None = None,
        algo: str | None = None,
    ):
        name = type(self).__name__
        one_of(name, "activation", activation, ACTIVATIONS)
        self.activation = activation
        self.bias = switch(name, "bias", bias)
        self.addend = switch(name, "addend", addend)
        self.allow_tf32 = switch_or_flag(name, "allow_tf32", allow_tf32, "dnn.allow_tf32")
        self.algo = product_algo(name, algo)

    @property
    def epilogue(self) -> str:
        """What follows the product, in the words of cuBLASLt's epilogues."""
        return "_".join(filter(None, (self.activation.upper(), "BIAS" * self.bias)))

    def operands(self, inputs: Any) -> Operands:
        """Return a node's operands by name."""
        x, w, *rest = inputs
        given = (self.bias, self.addend)
        if len(rest) != sum(given):
            raise DnnTypeError(f"{type(self).__name__}: expected {2 + sum(given)} operands")
        left = iter(rest)
        return Operands(x, w, *(next(left) if takes else None for takes in given))

    def make_node(self, *inputs: Any) -> Apply:
        name = type(self).__name__
        if len(inputs) < 2:
            raise DnnTypeError(f"{name}: expected at least 2 operands, got {len(inputs)}")
        of = self.operands(inputs)._asdict()
        given = {key: x for key, x in of.items() if x is not None}
        arrays = dict(zip(given, device_operands(name, None, **given), strict=True))
        for key, x in arrays.items():
            if x.type.ndim != (1 if key == "bias" else 2):
                raise DnnTypeError(f"{name}: {key} has {x.type.ndim} dimensions ({x.type})")
        x, w = arrays["x"], arrays["w"]
        merge_shapes(name, x=x.type.shape[1:], w=w.type.shape[:1])
        shapes: dict[str, Any] = {"product": (x.type.shape[0], w.type.shape[1])}
        if "bias" in arrays:
            shapes["bias"] = (None, *arrays["bias"].type.shape)
        if "addend" in arrays:
            shapes["addend"] = arrays["addend"].type.shape
        rows, columns = merge_shapes(name, **shapes)
        output = GpuArrayType(x.type.dtype, (rows, columns), x.type.device)()
        return Apply(self, list(arrays.values()), [output])

    @shape_inference
    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        return [(shapes[0][0], shapes[1][1])]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        own = [as_tensor_variable(x.type()) for x in node.inputs]
        return io_connection_pattern(own, self._expressions(*own))

    def _expressions(self, *inputs: Any) -> list[Any]:
        of = self.operands(inputs)
        out = pt.dot(of.x, of.w)
        for term in (of.bias, of.addend):
            out = out if term is None else out + term
        if self.activation == "relu":
            (out,) = Activation("relu").expressions(out)
        elif self.activation == "gelu":
            out = gelu(out)
        return [out]

    def parameters(self) -> list[int]:
        activation = ACTIVATIONS.index(self.activation)
        settings = product_settings(self.allow_tf32, self.algo)
        return [settings, activation, self.bias, self.addend]

    def _layouts(self, operand: int) -> int:
        if operand < 2:
            return TAKES_CONTIGUOUS | TAKES_MATRIX
        is_addend = self.addend and operand == 2 + self.bias
        return TAKES_CONTIGUOUS | (TAKES_GAPS if is_addend else 0)

    def __str__(self) -> str:
        words = [self.activation, "bias" * self.bias, "addend" * self.addend]
        words.append("TF32" * self.allow_tf32)
        return f"{type(self).__name__}{{{', '.join(filter(None, words))}}}"

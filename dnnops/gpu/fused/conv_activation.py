"""Convolution on cuDNN with a scale, a bias, a residual sum and an activation in the same call.

`dnnops.rewriting.fuse.conv_epilogue` inserts this Op.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply
from pytensor.tensor import as_tensor_variable

from dnnops.arguments import one_of, switch
from dnnops.compat import shape_inference
from dnnops.dtypes import compute_dtype
from dnnops.errors import DnnTypeError
from dnnops.gpu.base import device_operand
from dnnops.gpu.conv import GpuDnnConv
from dnnops.gpu.derivatives import GpuExpressionOp
from dnnops.nnet.activation.op import Activation
from dnnops.nnet.conv.op import Conv
from dnnops.nnet.validate import merge_shapes

__all__ = ["ACTIVATIONS", "GpuDnnConvActivation"]

#: Activations, in the order of ``EpilogueActivation`` in c_code/gpu/conv/conv_case.hpp.
ACTIVATIONS = ("identity", "relu", "clipped_relu", "tanh", "sigmoid", "elu", "swish")

_PARTS = ("scale", "bias", "addend")


class GpuDnnConvActivation(GpuExpressionOp, GpuDnnConv):
    """A convolution and what happens to its result, its epilogue, on cuDNN.

    Called as ``op(img, kerns, alpha[, scale][, bias][, addend])``, it returns
    ``activation(alpha * convolution(img, kerns) * scale + addend + bias)``. `scale` and `bias` have
    the shape ``(1, channels, 1...)``, and the dtype of `img` or float32, the same for both.
    `addend` has the shape and dtype of the result.

    Algorithms are selected as for `GpuDnnConv`. Plans of cuDNN's graph API compute the epilogue in
    the convolution's kernel. Any other plan is followed by a dnnops kernel that computes it in
    place; the name of such a plan ends in ``_unfused``. Timing compares both.

    Parameters
    ----------
    activation : str
        One of `ACTIVATIONS`. All propagate NaN.
    coef : float
        The ceiling of clipped relu, alpha of elu or beta of swish; 0 for the others.
    scale, bias, addend : bool
        Whether the Op takes these operands.
    **conv
        Parameters of `GpuDnnConv`, except `accumulate` and `inplace`.

    Raises
    ------
    DnnTypeError, DnnValueError
        If a parameter is invalid, or an operand has the wrong rank, dtype or static shape.
    DnnNotSupportedError
        If padding differs before and after an axis; raised by ``make_node``.
    """

    __props__ = (
        *(name for name in GpuDnnConv.__props__ if name not in ("accumulate", "inplace")),
        "activation",
        "coef",
        *_PARTS,
    )

    def __init__(
        self,
        activation: str = "identity",
        coef: float = 0.0,
        scale: bool = False,
        bias: bool = False,
        addend: bool = False,
        **conv: Any,
    ):
        super().__init__(**conv)
        name = type(self).__name__
        self.activation = one_of(name, "activation", activation, ACTIVATIONS)
        checked = Activation("relu" if activation == "identity" else activation, coef)
        self.coef = checked.coef
        self.scale = switch(name, "scale", scale)
        self.bias = switch(name, "bias", bias)
        self.addend = switch(name, "addend", addend)
        self.vectors = tuple(range(3, 3 + self.scale + self.bias))
        self.packed_operands = (1, *self.vectors)
        self.matched_operands = (3 + len(self.vectors),) if self.addend else ()

    __str__ = GpuDnnConv.__str__

    @property
    def parts(self) -> list[str]:
        """Names of the operands after alpha."""
        return [part for part in _PARTS if getattr(self, part)]

    @property
    def epilogue(self) -> str:
        """Description of the epilogue, such as ``"bias, addend, relu"``."""
        return ", ".join([*self.parts, *[self.activation] * (self.activation != "identity")])

    def parameters(self) -> list[int]:
        words = super().parameters()
        parts = sum(getattr(self, part) << i for i, part in enumerate(_PARTS))
        coef = int(np.float64(self.coef).view(np.int64))
        return [*words[:-3], parts, ACTIVATIONS.index(self.activation), coef]

    def make_node(self, img: Any, kerns: Any, alpha: Any = 1.0, *operands: Any) -> Apply:  # type: ignore[override]
        where, parts = self.where, self.parts
        if len(operands) != len(parts):
            raise DnnTypeError(
                f"{where}: expected the operands {', '.join(('img', 'kerns', 'alpha', *parts))};"
                f" the number of operands given is {3 + len(operands)}"
            )
        plain = super().make_node(img, kerns, alpha)
        (out,) = plain.outputs
        device, ndim, dtype = out.type.device, out.type.ndim, out.type.dtype
        given = [
            device_operand(where, part, x, device) for part, x in zip(parts, operands, strict=True)
        ]
        vector_dtypes = {x.type.dtype for x in given[: len(self.vectors)]}
        if len(vector_dtypes) > 1 or not vector_dtypes <= {dtype, compute_dtype(dtype)}:
            raise DnnTypeError(
                f"{where}: scale and bias must both have dtype {dtype} or {compute_dtype(dtype)},"
                f" got {', '.join(sorted(vector_dtypes))}"
            )
        shape = out.type.shape
        of_vector = (1, shape[1], *(1,) * (ndim - 2))
        for part, x in zip(parts, given, strict=True):
            if x.type.ndim != ndim or (part == "addend" and x.type.dtype != dtype):
                raise DnnTypeError(
                    f"{where}: {part} must have {ndim} dimensions"
                    f"{f' and dtype {dtype}' if part == 'addend' else ''}, got {x.type}"
                )
            if part == "addend":
                shape = merge_shapes(where, result=shape, addend=x.type.shape)
            else:
                merge_shapes(where, **{"result's channels": of_vector, part: x.type.shape})
        result = out.type.clone(shape=shape)()
        return Apply(self, [*plain.inputs, *given], [result])

    @shape_inference
    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        return [self._result_shape(shapes[0], shapes[1], None)]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        return [[True] for _ in node.inputs]

    def _expressions(self, img: Any, kerns: Any, alpha: Any, *operands: Any) -> list[Any]:
        img, kerns, *operands = map(as_tensor_variable, (img, kerns, *operands))
        dtype = img.type.dtype
        wide = compute_dtype(dtype)
        given = dict(zip(self.parts, (pt.cast(x, wide) for x in operands), strict=True))
        out = pt.cast(alpha, wide) * pt.cast(Conv(**self.conv_params())(img, kerns), wide)
        others = [i for i in range(out.type.ndim) if i != 1]
        if self.scale:
            out *= pt.specify_broadcastable(given["scale"], *others)
        if self.addend:
            out += given["addend"]
        if self.bias:
            out += pt.specify_broadcastable(given["bias"], *others)
        out = pt.cast(out, dtype)
        if self.activation != "identity":
            (out,) = Activation(self.activation, self.coef).expressions(out)
        return [out]

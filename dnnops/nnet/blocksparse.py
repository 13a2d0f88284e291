"""Products of vectors with selected blocks of a weight matrix."""

from __future__ import annotations

from typing import Any

import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from dnnops.errors import DnnTypeError
from dnnops.nnet.operands import float_operands
from dnnops.nnet.validate import as_tensor, merge_shapes

__all__ = ["sparse_block_dot"]


def sparse_block_dot(W: Any, h: Any, inputIdx: Any, b: Any, outputIdx: Any) -> TensorVariable:  # noqa: N803
    """Apply a dense layer to some of its input blocks, computing only some of its output blocks.

    Parameters
    ----------
    W : tensor_like, (input blocks, output blocks, input size, output size)
        Weights of each pair of an input block and an output block.
    h : tensor_like, (batch, inputs, input size) or (inputs, input size)
        Input blocks.
    inputIdx : integer tensor, (batch, inputs) or (inputs,)
        Indices of the blocks of `h` among all input blocks of the layer.
    b : tensor_like, (output blocks, output size)
        Bias of each output block.
    outputIdx : integer tensor, (batch, outputs) or (outputs,)
        Indices of the output blocks to compute.

    Returns
    -------
    TensorVariable, (batch, outputs, output size)
        ``b[j] + sum(h[i] @ W[inputIdx[i], j])`` for each output block ``j`` in `outputIdx`. The
        batch size is 1 if the operands have no batch axis.

    Raises
    ------
    DnnTypeError
        If a rank or dtype is invalid.
    DnnValueError
        If the static shapes don't match.

    Notes
    -----
    The product copies the selected blocks of `W`.
    """
    where = "sparse_block_dot"
    weights, bias, x = float_operands(where, {"W": W, "b": b, "h": h}, {"W": 4, "b": 2})
    if x.type.ndim not in (2, 3):
        raise DnnTypeError(f"{where}: h must have 2 or 3 dimensions, got {x.type.ndim}")
    inputs, outputs = (
        _blocks(where, name, value, x.type.ndim - 1)
        for name, value in (("inputIdx", inputIdx), ("outputIdx", outputIdx))
    )
    merge_shapes(where, W=weights.type.shape[1::2], b=bias.type.shape)
    merge_shapes(where, h=x.type.shape[:-1], inputIdx=inputs.type.shape)
    merge_shapes(where, **{"W's input size": weights.type.shape[2:3], "h's": x.type.shape[-1:]})
    if x.type.ndim == 2:
        x, inputs, outputs = x[None], inputs[None], outputs[None]
    chosen = weights[inputs[:, :, None], outputs[:, None, :]]
    products = x[:, :, None, None, :] @ chosen
    return bias[outputs] + products[:, :, :, 0, :].sum(axis=1)


def _blocks(where: str, name: str, value: Any, ndim: int) -> TensorVariable:
    index = as_tensor(f"{where}: {name} must be an integer tensor", value)
    if index.type.ndim != ndim or index.type.dtype not in pt.type.integer_dtypes:
        raise DnnTypeError(
            f"{where}: {name} must be a {ndim}-dimensional integer tensor (one axis fewer than h),"
            f" got {index.type}"
        )
    return index

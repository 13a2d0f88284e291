"""Names of ``theano.tensor.nnet.blocksparse``: products of selected blocks of matrices."""

from __future__ import annotations

from typing import Any

import pytensor.tensor as pt

from dnnops import nnet
from dnnops.theano.ops import OpName

__all__ = [
    "SparseBlockGemv",
    "SparseBlockOuter",
    "sparse_block_gemv",
    "sparse_block_gemv_inplace",
    "sparse_block_outer",
    "sparse_block_outer_inplace",
]


def sparse_block_gemv(
    o: Any,
    W: Any,  # noqa: N803 - Theano's names
    h: Any,
    inputIdx: Any,  # noqa: N803
    outputIdx: Any,  # noqa: N803
) -> Any:
    """Add products of blocks to `o`; see `dnnops.nnet.sparse_block_dot`.

    Parameters
    ----------
    o : tensor, (batch, output window, output size)
    W : tensor, (input blocks, output blocks, input size, output size)
    h : tensor, (batch, input window, input size)
    inputIdx : integer matrix, (batch, input window)
        Input blocks.
    outputIdx : integer matrix, (batch, output window)
        Output blocks.

    Returns
    -------
    TensorVariable, of the shape of `o`
    """
    o, W = (pt.as_tensor_variable(x) for x in (o, W))  # noqa: N806
    bias = pt.zeros((W.shape[1], W.shape[3]), dtype=W.type.dtype)
    return o + nnet.sparse_block_dot(W, h, inputIdx, bias, outputIdx)


def sparse_block_outer(
    o: Any,
    x: Any,
    y: Any,
    xIdx: Any,  # noqa: N803
    yIdx: Any,  # noqa: N803
    alpha: Any = None,
) -> Any:
    """Add outer products of vectors to blocks of a matrix.

    Parameters
    ----------
    o : tensor_like, (x blocks, y blocks, x size, y size)
    x : tensor_like, (batch, x window, x size)
    y : tensor_like, (batch, y window, y size)
    xIdx : tensor_like, (batch, x window)
        Indices of blocks.
    yIdx : tensor_like, (batch, y window)
        Indices of blocks.
    alpha : tensor_like, optional
        Factor of the products.
    """
    o, x, y, xIdx, yIdx = (  # noqa: N806
        pt.as_tensor_variable(operand) for operand in (o, x, y, xIdx, yIdx)
    )
    products = x[:, :, None, :, None] * y[:, None, :, None, :]
    if alpha is not None:
        products = pt.cast(alpha, products.type.dtype) * products
    return pt.inc_subtensor(o[xIdx[:, :, None], yIdx[:, None, :]], products)


# The rewrites decide which operations work in place.
sparse_block_gemv_inplace = sparse_block_gemv
sparse_block_outer_inplace = sparse_block_outer
SparseBlockGemv = OpName("SparseBlockGemv", lambda inplace=False: sparse_block_gemv)
SparseBlockOuter = OpName("SparseBlockOuter", lambda inplace=False: sparse_block_outer)

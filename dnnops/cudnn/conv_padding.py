"""Padding that differs before and after an axis, which cuDNN isn't asked for.

cuDNN's legacy API can't express it. Its graph API can, and cuDNN 9.19 then computed wrong gradients
by the filters on an H200, in float32 and float64, without an error: relative error 1.36 for padding
((0, 2), (3, 1)) and stride (2, 1). No list of good engines can be trusted after that, in any
direction. So cuDNN gets the padding that both sides have, and the image gets the rest as zeros: one
more pass over the image, after which all engines and algorithms can run the convolution.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor.tensor as pt

from dnnops.cudnn.base import device_operands
from dnnops.gpuarray.pad import GpuPad
from dnnops.nnet._validate import int_vector, vector_entries

__all__ = ["is_asymmetric", "padded_explicitly"]


def is_asymmetric(op: Any) -> bool:
    """Whether a convolution pads some axis by different amounts before and after it."""
    return not isinstance(op.border_mode, str) and any(b != e for b, e in op.border_mode)


def padded_explicitly(op: Any, operands: tuple[Any, ...], **kwargs: Any) -> Any:
    """Apply a convolution of asymmetric padding as one of symmetric padding.

    Parameters
    ----------
    op : GpuDnnConvBase
        Its padding may be asymmetric.
    operands : tuple
        What it is called with.
    **kwargs
        For the Op that computes the result.

    Returns
    -------
    GpuArrayVariable
        The result. An `out` to be added to the gradient by the image is left alone even if the Op
        is in place.
    """
    common = tuple((min(pair),) * 2 for pair in op.border_mode)
    rest = [(b - min(b, e), e - min(b, e)) for b, e in op.border_mode]
    pad = GpuPad([(0, 0), (0, 0), *rest])
    symmetric = op.replace(border_mode=common)
    first, second, *others = operands
    if op.direction != "grad_inputs":
        (image,) = device_operands(op.where, op.ndim + 2, **{op.operand_names[0]: first})
        return symmetric(pad(image), second, *others, **kwargs)
    # The gradient by the padded image, of which the zeros' part is cut off.
    sizes = vector_entries(int_vector(op.where, "the spatial shape", others[0], op.ndim), op.ndim)
    padded_sizes = [n + begin + end for n, (begin, end) in zip(sizes, rest, strict=True)]
    if all(isinstance(n, int) for n in padded_sizes):
        others[0] = pt.constant(np.array(padded_sizes, dtype="int64"))
    else:
        others[0] = pt.stack([pt.as_tensor_variable(n, dtype="int64") for n in padded_sizes])
    if len(others) > 3:
        (out,) = device_operands(op.where, op.ndim + 2, out=others[3])
        others[3] = pad(out)
        symmetric = symmetric.replace(inplace=False)
    gradient = symmetric(first, second, *others)
    crop = GpuPad([(-begin, -end) for begin, end in pad.pads])
    return crop(gradient, **kwargs)

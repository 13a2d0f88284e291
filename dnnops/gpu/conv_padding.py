"""Apply padding that differs before and after an axis without cuDNN.

cuDNN's legacy API can't express such padding. Its graph API can, but with such padding cuDNN 9.19
on an H200 computed wrong gradients with respect to the filters, in float32 and float64, without
reporting an error: the relative error was 1.36 for padding ((0, 2), (3, 1)) and stride (2, 1).
dnnops therefore trusts no engine with such padding, in any direction.

Instead, cuDNN applies the padding that both sides share, and the image is padded with zeros for the
rest. This costs one more pass over the image, but then every engine and algorithm can run the
convolution.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor.tensor as pt

from dnnops.gpu.base import device_operands
from dnnops.gpuarray.pad import GpuPad
from dnnops.nnet.validate import int_vector, vector_entries

__all__ = ["is_asymmetric", "padded_explicitly"]


def is_asymmetric(op: Any) -> bool:
    """Return whether a convolution pads an axis by different amounts before and after it."""
    return not isinstance(op.border_mode, str) and any(b != e for b, e in op.border_mode)


def padded_explicitly(op: Any, operands: tuple[Any, ...], **kwargs: Any) -> Any:
    """Apply a convolution with asymmetric padding as one with symmetric padding.

    Parameters
    ----------
    op : GpuDnnConvBase
        Op with any padding.
    operands : tuple
        Operands of the call.
    **kwargs
        Keyword arguments for the Op that computes the result.

    Returns
    -------
    GpuArrayVariable
        The result. For the gradient with respect to the image, `out` is not overwritten, even if
        the Op is in place.
    """
    common = tuple((min(pair),) * 2 for pair in op.border_mode)
    rest = [(b - min(b, e), e - min(b, e)) for b, e in op.border_mode]
    pad = GpuPad([(0, 0), (0, 0), *rest])
    symmetric = op.replace(border_mode=common)
    first, second, *others = operands
    if op.direction != "grad_inputs":
        (image,) = device_operands(op.where, op.ndim + 2, **{op.operand_names[0]: first})
        return symmetric(pad(image), second, *others, **kwargs)
    # Compute the gradient with respect to the padded image, and crop the padding from it.
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

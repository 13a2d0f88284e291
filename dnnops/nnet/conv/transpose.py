"""Gradients of convolution as public functions, and transposed convolution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from dnnops.errors import DnnValueError
from dnnops.nnet.conv.base import ConvBase, ConvWords
from dnnops.nnet.conv.geometry import canonical_conv_params
from dnnops.nnet.conv.op import ConvGradInputs, ConvGradWeights, conv_operands, refuse_unshared
from dnnops.nnet.validate import is_int, narrow, shape_argument, shown

__all__ = [
    "conv2d_grad_wrt_inputs",
    "conv2d_grad_wrt_weights",
    "conv2d_transpose",
    "conv3d_grad_wrt_inputs",
    "conv3d_grad_wrt_weights",
    "conv3d_transpose",
]


def _apply_gradient(
    where: str, op: Any, first: Any, second: Any, shape_name: str, entries: Sequence[Any]
) -> TensorVariable:
    # The spatial part of the requested shape is an operand; the rest refines the static type.
    result = op(first, second, pt.as_tensor_variable(entries[2:], dtype="int64"))
    wanted = (*entries[:2], *(None,) * op.ndim)
    return narrow(where, "the result", result, shape_name, wanted)


def _wanted_shape(where: str, name: str, shape: Any, ndim: int) -> tuple[Any, ...]:
    entries = shape_argument(where, name, shape, ndim + 2)
    if any(entry is None for entry in entries[2:]):
        raise DnnValueError(
            f"{where}: {name} must contain the {ndim} spatial sizes, because several are possible; "
            f"got {shown(shape)}"
        )
    return entries


def _static(entries: Sequence[Any]) -> tuple[int | None, ...]:
    return tuple(entry if isinstance(entry, int) else None for entry in entries)


def _grad_wrt_inputs(
    where: str,
    ndim: int,
    output_grad: Any,
    filters: Any,
    input_shape: Any,
    filter_shape: Any,
    transposed: bool = False,
    **params: Any,
) -> TensorVariable:
    words = ConvWords(where, "input_shape", "filters", "output_grad")
    if transposed:
        words = ConvWords(where, "output_shape", "filters", "input", "input_dilation")
    op = ConvGradInputs(
        **canonical_conv_params(where, ndim, **params, names={"subsample": words.subsample})
    )
    operands = {words.top: output_grad, "filters": filters}
    output_grad, filters = conv_operands(where, ndim, **operands)
    filters = narrow(where, "filters", filters, "filter_shape", filter_shape)
    entries = _wanted_shape(where, words.image, input_shape, ndim)
    if transposed:
        output_grad = _with_rest(op, output_grad, filters, entries[2:])
    kern, top = filters.type.shape, output_grad.type.shape
    op.check_shapes(_static(entries), kern, top, words)
    return _apply_gradient(where, op, filters, output_grad, words.image, entries)


def _with_rest(op: ConvBase, x: Any, filters: Any, wanted: Sequence[Any]) -> TensorVariable:
    """Append zeros to `x` if the requested result requires a larger `x`.

    With stride s and dilation d, the result of a transposed convolution may be up to
    ``max(s, d) - 1`` elements longer than the filters reach, like ``output_padding`` in other
    libraries. Up to ``s - 1`` extra elements need no zeros, because the forward convolution maps
    images of these sizes to outputs of the same size. With s or more, the forward convolution would
    have a larger output, so `x` is extended with zeros, which contribute nothing.
    """
    if all(d <= s for d, s in zip(op.filter_dilation, op.subsample, strict=True)):
        return x

    def sizes(of: Any) -> list[Any]:
        static = enumerate(of.type.shape)
        return [of.shape[i] if size is None else size for i, size in static]

    own, kern = sizes(x), sizes(filters)[2:]
    shape, is_same = own[:2], True
    axes = zip(
        own[2:], kern, wanted, op.padding(kern), op.subsample, op.filter_dilation, strict=True
    )
    for size, kernel, result, (begin, end), stride, dilation in axes:
        extent = result + begin + end - (kernel - 1) * dilation - 1
        rest = extent - (size - 1) * stride  # elements of the result that no filter reaches
        if is_int(rest):
            more = rest // stride if 0 <= rest < max(stride, dilation) else 0
            is_same &= more == 0
        else:
            fits = pt.ge(rest, 0) & pt.lt(rest, max(stride, dilation))
            more = pt.switch(fits, rest // stride, 0)
            is_same = False
        shape.append(size + more)
    if is_same:
        return x
    place = (slice(None), slice(None), *(slice(0, size) for size in own[2:]))
    return pt.set_subtensor(pt.zeros(shape, dtype=x.type.dtype)[place], x)


def _grad_wrt_weights(
    where: str,
    ndim: int,
    input: Any,
    output_grad: Any,
    filter_shape: Any,
    input_shape: Any,
    **params: Any,
) -> TensorVariable:
    op = ConvGradWeights(**canonical_conv_params(where, ndim, **params))
    input, output_grad = conv_operands(where, ndim, input=input, output_grad=output_grad)
    input = narrow(where, "input", input, "input_shape", input_shape)
    entries = _wanted_shape(where, "filter_shape", filter_shape, ndim)
    words = ConvWords(where, "input", "filter_shape", "output_grad")
    op.check_shapes(input.type.shape, _static(entries), output_grad.type.shape, words)
    return _apply_gradient(where, op, input, output_grad, "filter_shape", entries)


def conv2d_grad_wrt_inputs(
    output_grad: Any,
    filters: Any,
    input_shape: Any,
    filter_shape: Any = None,
    border_mode: Any = "valid",
    subsample: Any = (1, 1),
    filter_flip: bool = True,
    filter_dilation: Any = (1, 1),
    num_groups: int = 1,
    unshared: bool = False,
) -> TensorVariable:
    """Return the gradient of a 2-d convolution with respect to its input.

    Parameters
    ----------
    output_grad : tensor_like, (batch, output channels, rows, columns)
        Gradient with respect to the output of the convolution.
    filters : tensor_like, (output channels, input channels // num_groups, rows, columns)
        Filters of the convolution.
    input_shape : sequence of 4 entries
        Shape of the input of the convolution. Each entry is an int, a symbolic int or None. The
        last two must not be None, because several sizes are possible with a stride.
    filter_shape : None, or sequence of 4 entries
        Shape of the filters, as far as it is known when the graph is built.
    border_mode, subsample, filter_flip, filter_dilation, num_groups, unshared
        Parameters of the convolution; see `conv2d`.

    Returns
    -------
    TensorVariable, (batch, input channels, rows, columns)
        Gradient, with the shape of the input of the convolution.

    Raises
    ------
    DnnTypeError, DnnValueError, DnnNotSupportedError
        As for `conv2d`. DnnValueError is also raised if the convolution of an input of shape
        `input_shape` does not have an output with the shape of `output_grad`.
    """
    refuse_unshared("conv2d_grad_wrt_inputs", unshared)
    return _grad_wrt_inputs(
        "conv2d_grad_wrt_inputs",
        2,
        output_grad,
        filters,
        input_shape,
        filter_shape,
        border_mode=border_mode,
        subsample=subsample,
        filter_flip=filter_flip,
        filter_dilation=filter_dilation,
        num_groups=num_groups,
    )


def conv3d_grad_wrt_inputs(
    output_grad: Any,
    filters: Any,
    input_shape: Any,
    filter_shape: Any = None,
    border_mode: Any = "valid",
    subsample: Any = (1, 1, 1),
    filter_flip: bool = True,
    filter_dilation: Any = (1, 1, 1),
    num_groups: int = 1,
) -> TensorVariable:
    """Return the gradient of a 3-d convolution with respect to its input.

    This function is like `conv2d_grad_wrt_inputs`, but with three spatial axes and shapes of 5
    entries.
    """
    return _grad_wrt_inputs(
        "conv3d_grad_wrt_inputs",
        3,
        output_grad,
        filters,
        input_shape,
        filter_shape,
        border_mode=border_mode,
        subsample=subsample,
        filter_flip=filter_flip,
        filter_dilation=filter_dilation,
        num_groups=num_groups,
    )


def conv2d_grad_wrt_weights(
    input: Any,
    output_grad: Any,
    filter_shape: Any,
    input_shape: Any = None,
    border_mode: Any = "valid",
    subsample: Any = (1, 1),
    filter_flip: bool = True,
    filter_dilation: Any = (1, 1),
    num_groups: int = 1,
    unshared: bool = False,
) -> TensorVariable:
    """Return the gradient of a 2-d convolution with respect to its filters.

    Parameters
    ----------
    input : tensor_like, (batch, input channels, rows, columns)
        Input of the convolution.
    output_grad : tensor_like, (batch, output channels, rows, columns)
        Gradient with respect to the output of the convolution.
    filter_shape : sequence of 4 entries
        Shape of the filters. Each entry is an int, a symbolic int or None. The last two must not
        be None, because several sizes are possible with a stride.
    input_shape : None, or sequence of 4 entries
        Shape of the input, as far as it is known when the graph is built.
    border_mode, subsample, filter_flip, filter_dilation, num_groups, unshared
        Parameters of the convolution; see `conv2d`.

    Returns
    -------
    TensorVariable, (output channels, input channels // num_groups, rows, columns)
        Gradient, with the shape of the filters.

    Raises
    ------
    DnnTypeError, DnnValueError, DnnNotSupportedError
        As for `conv2d`. DnnValueError is also raised if the convolution with filters of shape
        `filter_shape` does not have an output with the shape of `output_grad`.
    """
    refuse_unshared("conv2d_grad_wrt_weights", unshared)
    return _grad_wrt_weights(
        "conv2d_grad_wrt_weights",
        2,
        input,
        output_grad,
        filter_shape,
        input_shape,
        border_mode=border_mode,
        subsample=subsample,
        filter_flip=filter_flip,
        filter_dilation=filter_dilation,
        num_groups=num_groups,
    )


def conv3d_grad_wrt_weights(
    input: Any,
    output_grad: Any,
    filter_shape: Any,
    input_shape: Any = None,
    border_mode: Any = "valid",
    subsample: Any = (1, 1, 1),
    filter_flip: bool = True,
    filter_dilation: Any = (1, 1, 1),
    num_groups: int = 1,
) -> TensorVariable:
    """Return the gradient of a 3-d convolution with respect to its filters.

    This function is like `conv2d_grad_wrt_weights`, but with three spatial axes and shapes of 5
    entries.
    """
    return _grad_wrt_weights(
        "conv3d_grad_wrt_weights",
        3,
        input,
        output_grad,
        filter_shape,
        input_shape,
        border_mode=border_mode,
        subsample=subsample,
        filter_flip=filter_flip,
        filter_dilation=filter_dilation,
        num_groups=num_groups,
    )


def conv2d_transpose(
    input: Any,
    filters: Any,
    output_shape: Any,
    filter_shape: Any = None,
    border_mode: Any = "valid",
    input_dilation: Any = (1, 1),
    filter_flip: bool = True,
    filter_dilation: Any = (1, 1),
    num_groups: int = 1,
    unshared: bool = False,
) -> TensorVariable:
    """Compute a transposed 2-d convolution, also known as deconvolution.

    This function computes `conv2d_grad_wrt_inputs` with other argument names: it maps the output of
    a forward convolution back to the shape of its input.

    Parameters
    ----------
    input : tensor_like, (batch, input channels, rows, columns)
        Images.
    filters : tensor_like, (input channels, output channels // num_groups, rows, columns)
        Filters, with the axes in the order of the forward convolution.
    output_shape : sequence of 4 entries
        Shape of the result. Each entry is an int, a symbolic int or None; the last two must not be
        None. On each spatial axis, the result may extend beyond the reach of the filters by fewer
        elements than the larger of `input_dilation` and `filter_dilation`. Other libraries call
        this output padding.
    filter_shape : None, or sequence of 4 entries
        Shape of the filters, as far as it is known when the graph is built.
    border_mode : {'valid', 'half', 'full'}, int, or tuple
        Padding of the forward convolution, which is cropped from the result.
    input_dilation : int or tuple of 2 ints
        Stride of the forward convolution, which is the distance between neighboring pixels of the
        images in the result.
    filter_flip, filter_dilation, num_groups, unshared
        See `conv2d`.

    Returns
    -------
    TensorVariable, (batch, output channels, rows, columns)
        Result of the transposed convolution.

    Raises
    ------
    DnnTypeError, DnnValueError, DnnNotSupportedError
        As for `conv2d_grad_wrt_inputs`.
    """
    refuse_unshared("conv2d_transpose", unshared)
    return _grad_wrt_inputs(
        "conv2d_transpose",
        2,
        input,
        filters,
        output_shape,
        filter_shape,
        transposed=True,
        border_mode=border_mode,
        subsample=input_dilation,
        filter_flip=filter_flip,
        filter_dilation=filter_dilation,
        num_groups=num_groups,
    )


def conv3d_transpose(
    input: Any,
    filters: Any,
    output_shape: Any,
    filter_shape: Any = None,
    border_mode: Any = "valid",
    input_dilation: Any = (1, 1, 1),
    filter_flip: bool = True,
    filter_dilation: Any = (1, 1, 1),
    num_groups: int = 1,
) -> TensorVariable:
    """Compute a transposed 3-d convolution.

    This function is like `conv2d_transpose`, but with three spatial axes and shapes of 5 entries.
    """
    return _grad_wrt_inputs(
        "conv3d_transpose",
        3,
        input,
        filters,
        output_shape,
        filter_shape,
        transposed=True,
        border_mode=border_mode,
        subsample=input_dilation,
        filter_flip=filter_flip,
        filter_dilation=filter_dilation,
        num_groups=num_groups,
    )

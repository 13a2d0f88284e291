"""Convolution and its two gradients, in one, two or three spatial dimensions.

The Ops in this module define the computation and run in NumPy. Rewrites replace them with Ops that
call oneDNN or cuDNN. `Conv` is bilinear, and `ConvGradInputs` and `ConvGradWeights` are its two
adjoints. Derivatives of any order therefore consist of these three Ops.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import disconnected_type
from pytensor.graph.basic import Apply
from pytensor.tensor.variable import TensorVariable

from dnnops.compat import shape_inference
from dnnops.errors import DnnNotSupportedError, DnnValueError
from dnnops.nnet.conv.base import ConvBase, ConvWords
from dnnops.nnet.conv.geometry import canonical_conv_params, conv_output_shape, resolve_padding
from dnnops.nnet.operands import float_operands
from dnnops.nnet.validate import (
    accumulator_dtype,
    float_tensor,
    int_vector,
    narrow,
    require_same_dtype,
    spatial_shape,
    static_vector,
    switch,
    vector_entries,
)

__all__ = [
    "Conv",
    "ConvBase",
    "ConvGradInputs",
    "ConvGradWeights",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_output_shape",
    "resolve_padding",
]


class Conv(ConvBase):
    """Convolve images with filters: ``Conv(...)(img, kern)``.

    `img` has the shape (batch, in channels, spatial...) and `kern` the shape
    (out channels, in channels // num_groups, spatial...). Both have the same floating-point dtype.
    The output has the shape (batch, out channels, spatial...). See `ConvBase` for the parameters.
    """

    def make_node(self, img: Any, kern: Any) -> Apply:  # type: ignore[override]
        img = float_tensor(self.where, "the image", img, self.ndim + 2)
        kern = float_tensor(self.where, "the filters", kern, self.ndim + 2)
        dtype = require_same_dtype(self.where, image=img, filters=kern)
        shape = self.check_shapes(img.type.shape, kern.type.shape)
        return Apply(self, [img, kern], [pt.tensor(dtype=dtype, shape=shape)])

    @shape_inference
    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        return [self.output_shape(*shapes)]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        return [[True], [True]]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        img, kern = inputs
        (topgrad,) = cotangents
        return [
            self._sibling(ConvGradInputs)(kern, topgrad, spatial_shape(img)),
            self._sibling(ConvGradWeights)(img, topgrad, spatial_shape(kern)),
        ]

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        img, kern = inputs
        top_shape = self.check_shapes(img.shape, kern.shape)
        dtype = accumulator_dtype(img.dtype)
        padded, inside = self._pad(img.shape, kern.shape[2:], dtype)
        padded[inside] = img
        kern = kern.astype(dtype, copy=False)
        top = np.zeros(top_shape, dtype)
        grouped_top = self._grouped(top, 1)
        for tap, window in self._taps(kern.shape[2:], top_shape[2:]):
            grouped_top += self._grouped(kern[tap], 0) @ self._grouped(padded[window], 1)
        output_storage[0][0] = top.astype(img.dtype, copy=False)


class ConvGradInputs(ConvBase):
    """Compute the gradient of `Conv` with respect to its image.

    In ``ConvGradInputs(...)(kern, topgrad, shape)``, `kern` is as for `Conv`, `topgrad` has the
    shape of its output, and `shape` is an int64 vector with the spatial sizes of the image (with a
    stride, several sizes fit one `topgrad`). See `ConvBase` for the parameters, which describe the
    convolution.
    """

    def make_node(self, kern: Any, topgrad: Any, shape: Any) -> Apply:  # type: ignore[override]
        kern = float_tensor(self.where, "the filters", kern, self.ndim + 2)
        topgrad = float_tensor(
            self.where, "the gradient with respect to the output", topgrad, self.ndim + 2
        )
        dtype = require_same_dtype(self.where, filters=kern, gradient=topgrad)
        shape = int_vector(self.where, "the image's spatial shape", shape, self.ndim)
        img_shape = self._img_shape(
            kern.type.shape, topgrad.type.shape, static_vector(shape, self.ndim)
        )
        self.check_shapes(img_shape, kern.type.shape, topgrad.type.shape)
        return Apply(self, [kern, topgrad, shape], [pt.tensor(dtype=dtype, shape=img_shape)])

    def _img_shape(self, kern: Any, topgrad: Any, spatial: Any) -> tuple[Any, ...]:
        channels = None if kern[1] is None else kern[1] * self.num_groups
        return (topgrad[0], channels, *spatial)

    @shape_inference
    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        kern, topgrad, _ = shapes
        return [self._img_shape(kern, topgrad, vector_entries(node.inputs[2], self.ndim))]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        return [[True], [True], [False]]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        kern, topgrad, _ = inputs
        (img,) = cotangents
        return [
            self._sibling(ConvGradWeights)(img, topgrad, spatial_shape(kern)),
            self._sibling(Conv)(img, kern),
            disconnected_type(),
        ]

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        kern, topgrad, spatial = inputs
        img_shape = self._img_shape(kern.shape, topgrad.shape, spatial.tolist())
        self.check_shapes(img_shape, kern.shape, topgrad.shape)
        dtype = accumulator_dtype(kern.dtype)
        padded, inside = self._pad(img_shape, kern.shape[2:], dtype)
        kern = kern.astype(dtype, copy=False)
        grouped_top = self._grouped(topgrad.astype(dtype, copy=False), 1)
        for tap, window in self._taps(kern.shape[2:], topgrad.shape[2:]):
            part = self._grouped(kern[tap], 0).mT @ grouped_top
            padded[window] += part.reshape(*img_shape[:2], *topgrad.shape[2:])
        output_storage[0][0] = np.ascontiguousarray(padded[inside], dtype=topgrad.dtype)


class ConvGradWeights(ConvBase):
    """Compute the gradient of `Conv` with respect to its filters.

    In ``ConvGradWeights(...)(img, topgrad, shape)``, `img` is as for `Conv`, `topgrad` has the
    shape of its output, and `shape` is an int64 vector with the spatial sizes of the filters. See
    `ConvBase` for the parameters, which describe the convolution.
    """

    def make_node(self, img: Any, topgrad: Any, shape: Any) -> Apply:  # type: ignore[override]
        img = float_tensor(self.where, "the image", img, self.ndim + 2)
        topgrad = float_tensor(
            self.where, "the gradient with respect to the output", topgrad, self.ndim + 2
        )
        dtype = require_same_dtype(self.where, image=img, gradient=topgrad)
        shape = int_vector(self.where, "the filters' spatial shape", shape, self.ndim)
        kern_shape = self._kern_shape(
            img.type.shape, topgrad.type.shape, static_vector(shape, self.ndim)
        )
        self.check_shapes(img.type.shape, kern_shape, topgrad.type.shape)
        return Apply(self, [img, topgrad, shape], [pt.tensor(dtype=dtype, shape=kern_shape)])

    def _kern_shape(self, img: Any, topgrad: Any, spatial: Any) -> tuple[Any, ...]:
        channels = None if img[1] is None else img[1] // self.num_groups
        return (topgrad[1], channels, *spatial)

    @shape_inference
    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        img, topgrad, _ = shapes
        return [self._kern_shape(img, topgrad, vector_entries(node.inputs[2], self.ndim))]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        return [[True], [True], [False]]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        img, topgrad, _ = inputs
        (kern,) = cotangents
        return [
            self._sibling(ConvGradInputs)(kern, topgrad, spatial_shape(img)),
            self._sibling(Conv)(img, kern),
            disconnected_type(),
        ]

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        img, topgrad, spatial = inputs
        kern_shape = self._kern_shape(img.shape, topgrad.shape, spatial.tolist())
        self.check_shapes(img.shape, kern_shape, topgrad.shape)
        dtype = accumulator_dtype(img.dtype)
        padded, inside = self._pad(img.shape, kern_shape[2:], dtype)
        padded[inside] = img
        kern = np.zeros(kern_shape, dtype)
        grouped_top = self._grouped(topgrad.astype(dtype, copy=False), 1)
        for tap, window in self._taps(kern_shape[2:], topgrad.shape[2:]):
            products = grouped_top @ self._grouped(padded[window], 1).mT
            kern[tap] = products.sum(axis=0).reshape(kern_shape[:2])
        output_storage[0][0] = kern.astype(img.dtype, copy=False)


def conv_operands(where: str, ndim: int, **operands: Any) -> list[TensorVariable]:
    """Check the rank and dtype of each operand, and cast all to the widest of their dtypes.

    Raises
    ------
    DnnTypeError
        If a rank is not `ndim` + 2, or a dtype is not a supported floating-point dtype.
    """
    tensors = float_operands(where, operands, dict.fromkeys(operands, ndim + 2))
    dtype = np.result_type(*(x.type.dtype for x in tensors)).name
    return [x if x.type.dtype == dtype else pt.cast(x, dtype) for x in tensors]


def refuse_unshared(where: str, unshared: bool) -> None:
    """Raise DnnNotSupportedError if `unshared` is true, or DnnTypeError if it is not a bool."""
    if switch(where, "unshared", unshared):
        raise DnnNotSupportedError(
            f"{where}: unshared=True (locally connected filters) is not supported, because "
            "neither cuDNN nor oneDNN implements it"
        )


def convolve(
    where: str,
    ndim: int,
    input: Any,
    filters: Any,
    input_shape: Any,
    filter_shape: Any,
    names: Mapping[str, str] | None = None,
    **params: Any,
) -> TensorVariable:
    """Convolve on behalf of the public function `where`.

    `names` maps the names of arguments here to their names in that function, where these differ.
    """
    own = ("input", "filters", "input_shape", "filter_shape", "num_groups")
    given = {name: name for name in own} | dict(names or {})
    op: Any = Conv(**canonical_conv_params(where, ndim, **params, names=given))
    operands = {given["input"]: input, given["filters"]: filters}
    input, filters = conv_operands(where, ndim, **operands)
    input = narrow(where, given["input"], input, given["input_shape"], input_shape)
    filters = narrow(where, given["filters"], filters, given["filter_shape"], filter_shape)
    words = ConvWords(where, given["input"], given["filters"], num_groups=given["num_groups"])
    op.check_shapes(input.type.shape, filters.type.shape, words=words)
    return op(input, filters)


def conv1d(
    input: Any,
    filters: Any,
    input_shape: Any = None,
    filter_shape: Any = None,
    border_mode: Any = "valid",
    subsample: Any = 1,
    filter_flip: bool = True,
    filter_dilation: Any = 1,
    num_groups: int = 1,
) -> TensorVariable:
    """Convolve a batch of multi-channel sequences with filters.

    This function is like `conv2d`, but with one spatial axis: `input` has the shape
    (batch, input channels, length) and `filters` the shape
    (output channels, input channels // num_groups, filter length). `subsample`, `filter_dilation`
    and `border_mode` can be ints or tuples with one entry.
    """
    return convolve(
        "conv1d",
        1,
        input,
        filters,
        input_shape,
        filter_shape,
        border_mode=border_mode,
        subsample=subsample,
        filter_flip=filter_flip,
        filter_dilation=filter_dilation,
        num_groups=num_groups,
    )


def conv2d(
    input: Any,
    filters: Any,
    input_shape: Any = None,
    filter_shape: Any = None,
    border_mode: Any = "valid",
    subsample: Any = (1, 1),
    filter_flip: bool = True,
    image_shape: Any = None,
    filter_dilation: Any = (1, 1),
    num_groups: int = 1,
    unshared: bool = False,
) -> TensorVariable:
    """Convolve a batch of multi-channel images with filters.

    Parameters
    ----------
    input : tensor_like, (batch, input channels, rows, columns)
        Images in float16, float32 or float64.
    filters : tensor_like, (output channels, input channels // num_groups, rows, columns)
        Filters. If their dtype differs from that of `input`, the result has the wider dtype.
    input_shape, filter_shape : None, or sequence of 4 entries
        Shapes, as far as they are known when the graph is built. Each entry is an int, a symbolic
        int or None. They refine the static types and are checked at run time.
    border_mode : {'valid', 'half', 'full'}, int, or tuple of 2 ints or pairs of ints
        Zero padding of the images:

        * 'valid': no padding.
        * 'half': half the dilated filter size, rounded down, on each side. Filters of odd size
          then preserve the image size if the stride is 1.
        * 'full': the dilated filter size minus one, on each side.
        * int: the padding on each side.
        * tuple: an entry for rows and one for columns, each an int for both sides or a pair
          (before, after).
    subsample : int or tuple of 2 ints
        Stride of the filters.
    filter_flip : bool
        Whether to flip the filters along their spatial axes, as in the mathematical definition of
        convolution. False computes the cross-correlation.
    image_shape : None, or sequence of 4 entries
        Alias of `input_shape`, from Theano.
    filter_dilation : int or tuple of 2 ints
        Distance between neighboring filter taps.
    num_groups : int
        Number of groups into which channels and filters are split. Each group is convolved
        separately. With as many groups as input channels, this is a depthwise convolution.
    unshared : bool
        Whether to use locally connected filters. Not supported; must be False.

    Returns
    -------
    TensorVariable, (batch, output channels, rows, columns)
        Convolved images. The size of each spatial axis is
        ``(image + padding - ((filter - 1) * dilation + 1)) // stride + 1``, where ``padding`` is
        the sum of both sides.

    Raises
    ------
    DnnTypeError
        If a rank or dtype is invalid.
    DnnValueError
        If a parameter is out of bounds, or if the shapes don't match. Shapes that are not known
        statically are checked when the function runs.
    DnnNotSupportedError
        If `unshared` is true.
    """
    refuse_unshared("conv2d", unshared)
    if image_shape is not None and input_shape is not None:
        raise DnnValueError("conv2d: image_shape is an alias of input_shape; pass only one of them")
    return convolve(
        "conv2d",
        2,
        input,
        filters,
        input_shape if image_shape is None else image_shape,
        filter_shape,
        {} if image_shape is None else {"input_shape": "image_shape"},
        border_mode=border_mode,
        subsample=subsample,
        filter_flip=filter_flip,
        filter_dilation=filter_dilation,
        num_groups=num_groups,
    )


def conv3d(
    input: Any,
    filters: Any,
    input_shape: Any = None,
    filter_shape: Any = None,
    border_mode: Any = "valid",
    subsample: Any = (1, 1, 1),
    filter_flip: bool = True,
    filter_dilation: Any = (1, 1, 1),
    num_groups: int = 1,
) -> TensorVariable:
    """Convolve a batch of multi-channel volumes with filters.

    This function is like `conv2d`, but with three spatial axes: `input` has the shape
    (batch, input channels, depth, rows, columns) and `filters` the shape
    (output channels, input channels // num_groups, depth, rows, columns).
    """
    return convolve(
        "conv3d",
        3,
        input,
        filters,
        input_shape,
        filter_shape,
        border_mode=border_mode,
        subsample=subsample,
        filter_flip=filter_flip,
        filter_dilation=filter_dilation,
        num_groups=num_groups,
    )

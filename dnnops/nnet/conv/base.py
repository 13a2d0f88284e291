"""Base class of the convolution Ops: parameters, shapes, checks and iteration over filter taps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pytensor.gradient import DisconnectedType, disconnected_type
from pytensor.graph.op import Op

from dnnops.errors import DnnValueError
from dnnops.nnet.conv.geometry import (
    MAX_EXTENT,
    BorderMode,
    canonical_conv_params,
    output_shape,
    padding,
)
from dnnops.nnet.validate import show_shape


@dataclass(frozen=True)
class ConvWords:
    """Names of a function and its arguments in error messages about shapes.

    Attributes
    ----------
    where : str
        Name of the function; empty for the name of the Op.
    image, filters, top : str
        Names of the image, of the filters, and of the gradient with respect to the output.
    subsample, filter_dilation, num_groups : str
        Names of these parameters.
    """

    where: str = ""
    image: str = "the image"
    filters: str = "the filters"
    top: str = "the gradient with respect to the output"
    subsample: str = "subsample"
    filter_dilation: str = "filter_dilation"
    num_groups: str = "num_groups"


_OWN_WORDS = ConvWords()


class ConvBase(Op):
    """Base class of `Conv`, `ConvGradInputs` and `ConvGradWeights`.

    Parameters
    ----------
    ndim : {1, 2, 3}
        Number of spatial axes.
    border_mode : {'valid', 'half', 'full'}, int, or tuple of ints or pairs of ints
        Zero padding; see `conv2d`.
    subsample : int or tuple of int
        Stride of the filters.
    filter_flip : bool
        Whether to flip the filters (convolution) or not (cross-correlation).
    filter_dilation : int or tuple of int
        Distance between neighboring filter taps.
    num_groups : int
        Number of groups into which the channels are split.

    Raises
    ------
    DnnTypeError, DnnValueError
        If a parameter has an invalid type or is out of bounds.
    """

    __props__: tuple[str, ...] = (
        "ndim",
        "border_mode",
        "subsample",
        "filter_flip",
        "filter_dilation",
        "num_groups",
    )
    # The spatial sizes of a gradient are the values of an operand.
    _output_type_depends_on_input_value = True

    ndim: int
    border_mode: BorderMode
    subsample: tuple[int, ...]
    filter_flip: bool
    filter_dilation: tuple[int, ...]
    num_groups: int

    def __init__(
        self,
        ndim: int = 2,
        border_mode: Any = "valid",
        subsample: Any = 1,
        filter_flip: bool = True,
        filter_dilation: Any = 1,
        num_groups: int = 1,
    ):
        params = canonical_conv_params(
            type(self).__name__,
            ndim,
            border_mode,
            subsample,
            filter_flip,
            filter_dilation,
            num_groups,
        )
        self.__dict__.update(params)

    @property
    def where(self) -> str:
        """Name of the Op in error messages, such as ``Conv2d`` for `Conv` with two spatial axes."""
        return f"{type(self).__name__}{self.ndim}d"

    def conv_params(self) -> dict[str, Any]:
        """Return the parameters as keyword arguments for any subclass."""
        return {name: getattr(self, name) for name in ConvBase.__props__}

    def geometry(self) -> np.ndarray:
        """Return the parameters as the 16 int64 words that the runtime libraries read.

        The words are ``[ndim, border, num_groups, filter_flip, stride[3], dilation[3],
        pad_begin[3], pad_end[3]]``, where border is 0 for explicit padding, 1 for 'half' and 2 for
        'full'.
        """
        if isinstance(self.border_mode, str):
            border, pads = {"half": 1, "full": 2}[self.border_mode], ((0, 0),) * self.ndim
        else:
            border, pads = 0, self.border_mode
        unused = 3 - self.ndim
        words = [self.ndim, border, self.num_groups, int(self.filter_flip)]
        words += [*self.subsample, *(1,) * unused]
        words += [*self.filter_dilation, *(1,) * unused]
        words += [*(begin for begin, _ in pads), *(0,) * unused]
        words += [*(end for _, end in pads), *(0,) * unused]
        return np.array(words, dtype="int64")

    def padding(self, kernel_spatial: Sequence[Any]) -> tuple[tuple[Any, Any], ...]:
        """Return the padding before and after each spatial axis for filters of the given size."""
        return padding(self.border_mode, kernel_spatial, self.filter_dilation)

    def output_shape(self, img_shape: Sequence[Any], kern_shape: Sequence[Any]) -> tuple[Any, ...]:
        """Return the output shape of the convolution, as ints, symbolic sizes or None."""
        return output_shape(
            img_shape, kern_shape, self.border_mode, self.subsample, self.filter_dilation
        )

    def check_shapes(
        self,
        img: Sequence[int | None],
        kern: Sequence[int | None],
        topgrad: Sequence[int | None] | None = None,
        words: ConvWords = _OWN_WORDS,
    ) -> tuple[Any, ...]:
        """Check the shapes of the image, the filters and the output, as far as they are known.

        Parameters
        ----------
        img, kern : sequence of int or None
            Shapes of the image, (batch, in channels, spatial...), and of the filters,
            (out channels, in channels per group, spatial...).
        topgrad : sequence of int or None, optional
            Shape of the gradient with respect to the output, which must be the output's shape.
        words : ConvWords, optional
            Names of these arguments in error messages.

        Returns
        -------
        tuple of int or None
            Shape of the output.

        Raises
        ------
        DnnValueError
            If the shapes don't match.
        """

        image, filters = (word.removeprefix("the ") for word in (words.image, words.filters))

        def fail(problem: str) -> None:
            shapes = {image: img, filters: kern}
            if topgrad is not None:
                shapes[words.top.removeprefix("the ")] = topgrad
            found = ", ".join(f"{name} {show_shape(shape)}" for name, shape in shapes.items())
            raise DnnValueError(
                f"{words.where or self.where}: {problem}; {found}, border_mode={self.border_mode}, "
                f"{words.subsample}={self.subsample}, "
                f"{words.filter_dilation}={self.filter_dilation}, "
                f"{words.num_groups}={self.num_groups}"
            )

        groups = self.num_groups
        for size, what in ((img[1], "input channels"), (kern[0], "filters")):
            if size is not None and size % groups:
                fail(f"{words.num_groups} {groups} does not divide the {size} {what}")
        if img[1] is not None and kern[1] is not None and img[1] != kern[1] * groups:
            fail(
                f"{words.image} has {img[1]} channels, but {filters} of {kern[1]} channels in "
                f"{groups} group(s) need {kern[1] * groups}"
            )
        axes = zip(img[2:], kern[2:], self.padding(kern[2:]), self.filter_dilation, strict=True)
        for axis, (size, kernel, (begin, end), dilation) in enumerate(axes):
            if size is not None and size < 0:
                fail(f"{words.image}'s size on spatial axis {axis} is negative")
            if kernel is None:
                continue
            if kernel < 1:
                fail(f"{words.filters}' size on spatial axis {axis} must be at least 1")
            extent = (kernel - 1) * dilation + 1
            if extent > MAX_EXTENT:
                fail(
                    f"{words.filters}' extent {extent} on spatial axis {axis} is more than "
                    f"{MAX_EXTENT}"
                )
            if size is not None and size + begin + end > MAX_EXTENT:
                fail(
                    f"the padded {image}'s extent {size + begin + end} on spatial axis {axis} is "
                    f"more than {MAX_EXTENT}"
                )
            if size is not None and extent > size + begin + end:
                fail(
                    f"{words.filters}' extent {extent} on spatial axis {axis} is larger than the "
                    f"padded {image}'s {size + begin + end}"
                )
        top = self.output_shape(img, kern)
        if topgrad is not None:
            for found, expected in zip(topgrad, top, strict=True):
                if None not in (found, expected) and found != expected:
                    fail(f"{words.top} must have the shape {show_shape(top)}")
        return top

    def pushforward(self, inputs: Any, outputs: Any, tangents: Any) -> list[Any]:
        # Each Op is bilinear in its first two operands.
        first, second, *shape = inputs
        terms: list[Any] = []
        if not isinstance(tangents[0].type, DisconnectedType):
            terms.append(self(tangents[0], second, *shape))
        if not isinstance(tangents[1].type, DisconnectedType):
            terms.append(self(first, tangents[1], *shape))
        if not terms:
            return [disconnected_type()]
        return [terms[0] if len(terms) == 1 else terms[0] + terms[1]]

    def _sibling(self, cls: type[ConvBase]) -> ConvBase:
        return cls(**self.conv_params())

    def _grouped(self, array: np.ndarray, axis: int) -> np.ndarray:
        # Split the channels on `axis` into (groups, channels), and flatten the axes after it.
        shape = array.shape
        inner = (self.num_groups, shape[axis] // self.num_groups)
        return array.reshape(*shape[:axis], *inner, int(np.prod(shape[axis + 1 :])))

    def _taps(
        self, kernel_spatial: Sequence[int], top_spatial: Sequence[int]
    ) -> Iterator[tuple[tuple, tuple]]:
        # Yield the index of each filter tap in the filters, and the indices of the elements of the
        # padded image that it is multiplied with.
        for offset in np.ndindex(*kernel_spatial):
            tap = offset
            if self.filter_flip:
                tap = tuple(k - 1 - i for k, i in zip(kernel_spatial, offset, strict=True))
            window = tuple(
                slice(i * dilation, i * dilation + (size - 1) * stride + 1, stride)
                for i, dilation, size, stride in zip(
                    offset, self.filter_dilation, top_spatial, self.subsample, strict=True
                )
            )
            yield (..., *tap), (..., *window)

    def _pad(
        self, img_shape: Sequence[int], kernel_spatial: Sequence[int], dtype: np.dtype
    ) -> tuple[np.ndarray, tuple]:
        # Return zeros with the shape of the padded image, and the index of the image in them.
        pads = self.padding(kernel_spatial)
        padded = [n + begin + end for n, (begin, end) in zip(img_shape[2:], pads, strict=True)]
        inside = [
            slice(begin, begin + n) for n, (begin, _) in zip(img_shape[2:], pads, strict=True)
        ]
        return np.zeros((*img_shape[:2], *padded), dtype), (..., *inside)

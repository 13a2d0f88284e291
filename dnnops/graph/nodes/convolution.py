"""Convolution and its gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from dnnops.errors import DnnValueError
from dnnops.graph.names import convolution_mode
from dnnops.graph.nodes.base import Node
from dnnops.graph.tensors import as_sizes, sizes_from
from dnnops.nnet.conv.op import Conv, ConvGradInputs, ConvGradWeights

__all__ = ["ConvDgrad", "ConvFprop", "ConvWgrad", "as_padding"]


def as_padding(
    where: str, padding: Any, pre_padding: Any, post_padding: Any
) -> tuple[list[int], list[int]]:
    """Return the padding before and after each spatial axis.

    Raises
    ------
    DnnValueError
        If `padding` is given together with another one.
    """
    if padding is not None:
        if pre_padding is not None or post_padding is not None:
            raise DnnValueError(f"{where}: give padding, or pre_padding and post_padding")
        pre_padding = post_padding = padding
    given = (("pre_padding", pre_padding), ("post_padding", post_padding))
    before, after = (
        as_sizes(() if value is None else value, f"{where}: {name}", 0) for name, value in given
    )
    return before or [0] * len(after), after or [0] * len(before)


class _Convolution(Node):
    """Base class of the convolution and its gradients.

    The parameters are ``pre_padding``, ``post_padding``, ``stride``, ``dilation`` and
    ``math_mode``; lists that are empty have their default for each spatial axis.
    """

    members: ClassVar[dict[str, Any]] = {"math_mode": convolution_mode}
    checks: ClassVar[dict[str, Any]] = {
        "pre_padding": sizes_from(0),
        "post_padding": sizes_from(0),
        "stride": sizes_from(1),
        "dilation": sizes_from(1),
    }

    #: Names of images, filters and outputs of the convolution among the node's operands.
    images: ClassVar[str]
    filters: ClassVar[str]
    tops: ClassVar[str]
    #: Words of the names of descriptor and attributes.
    words: ClassVar[tuple[str, str]]

    def _tensor(self, port: str) -> Any:
        return self.inputs.get(port) or self.outputs[port]

    def complete(self, ndim: int) -> None:
        """Fill in parameters that are not given, for a number of spatial axes."""
        if not 1 <= ndim <= 3:
            raise DnnValueError(f"{self.where}: the tensors must have 3 to 5 axes, not {ndim + 2}")
        for name, default in (
            ("pre_padding", 0),
            ("post_padding", 0),
            ("stride", 1),
            ("dilation", 1),
        ):
            given = self.parameters[name] or [default] * ndim
            if len(given) != ndim:
                raise DnnValueError(
                    f"{self.where}: {name} must have a number for each of {ndim} spatial axes,"
                    f" got {given}"
                )
            self.parameters[name] = given

    def top_dim(self, images: list[int], filters: list[int]) -> list[int]:
        """Return the sizes of the convolution's output."""
        if images[1] % filters[1]:
            raise DnnValueError(
                f"{self.where}: images with {images[1]} channels and filters with {filters[1]}:"
                " the number of groups would not be an integer"
            )
        if filters[0] % (images[1] // filters[1]):
            raise DnnValueError(
                f"{self.where}: {filters[0]} filters do not divide into"
                f" {images[1] // filters[1]} groups"
            )
        p, sizes = self.parameters, []
        for axis, (n, k) in enumerate(zip(images[2:], filters[2:], strict=True)):
            padded = n + p["pre_padding"][axis] + p["post_padding"][axis]
            left = padded - (k - 1) * p["dilation"][axis] - 1
            if left < 0:
                raise DnnValueError(
                    f"{self.where}: filters {filters} are larger than padded images {images}"
                )
            sizes.append(left // p["stride"][axis] + 1)
        return [images[0], filters[0], *sizes]

    def check_dims(self) -> list[int]:
        """Check the sizes of all tensors, and return those of the output of the convolution."""
        images, filters = self._tensor(self.images).dim, self._tensor(self.filters).dim
        if len(images) != len(filters):
            raise DnnValueError(
                f"{self.where}: images {images} and filters {filters} have different ranks"
            )
        self.complete(len(images) - 2)
        return self.top_dim(images, filters)

    def check_top(self) -> None:
        """Check that the gradient with respect to the output has its sizes."""
        expected, given = self.check_dims(), self.inputs[self.tops]
        if given.dim != expected:
            raise DnnValueError(
                f"{self.where}: {given.name!r} has dim {given.dim}, but the output of the"
                f" convolution has {expected}"
            )

    def lower(self, descriptors: Any) -> None:
        p = self.parameters
        convolution = descriptors.make(
            "CONVOLUTION",
            COMP_TYPE=self.compute_data_type,
            CONV_MODE=p["math_mode"],
            DILATIONS=p["dilation"],
            FILTER_STRIDES=p["stride"],
            PRE_PADDINGS=p["pre_padding"],
            POST_PADDINGS=p["post_padding"],
            SPATIAL_DIMS=len(p["stride"]),
        )
        kind, prefix = self.words
        descriptors.operation(
            kind,
            prefix,
            **{port: self._tensor(port) for port in (self.images, self.filters, self.tops)},
            CONV_DESC=convolution,
            ALPHA=1.0,
            BETA=0.0,
        )

    def op_parameters(self) -> dict[str, Any]:
        """Return the parameters of the Ops in `dnnops.nnet`."""
        p = self.parameters
        images, filters = self._tensor(self.images).dim, self._tensor(self.filters).dim
        return {
            "ndim": len(images) - 2,
            "border_mode": tuple(zip(p["pre_padding"], p["post_padding"], strict=True)),
            "subsample": tuple(p["stride"]),
            "filter_flip": p["math_mode"] is convolution_mode.CONVOLUTION,
            "filter_dilation": tuple(p["dilation"]),
            "num_groups": images[1] // filters[1],
        }


class ConvFprop(_Convolution):
    """Convolution."""

    tag = "CONV_FPROP"
    results = ("Y",)
    images, filters, tops = "X", "W", "Y"
    words = ("CONVOLUTION_FORWARD", "CONVOLUTION_FORWARD")

    def infer(self) -> None:
        self.dims("X", "W")
        self.set_result("Y", self.check_dims(), like=self.inputs["X"])

    def expressions(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {"Y": Conv(**self.op_parameters())(values["X"], values["W"])}


class ConvDgrad(_Convolution):
    """Gradient of a convolution with respect to its images."""

    tag = "CONV_DGRAD"
    results = ("DX",)
    images, filters, tops = "DX", "W", "DY"
    words = ("CONVOLUTION_BACKWARD_DATA", "CONVOLUTION_BWD_DATA")

    def infer(self) -> None:
        self.dims("DY", "W")
        self.require_dim("DX", "the shape of the images")
        self.check_top()
        self.set_stride("DX", like=self.inputs["DY"])

    def expressions(self, values: Mapping[str, Any]) -> dict[str, Any]:
        sizes = np.array(self.outputs["DX"].dim[2:])
        op = ConvGradInputs(**self.op_parameters())
        return {"DX": op(values["W"], values["DY"], sizes)}


class ConvWgrad(_Convolution):
    """Gradient of a convolution with respect to its filters."""

    tag = "CONV_WGRAD"
    results = ("DW",)
    images, filters, tops = "X", "DW", "DY"
    words = ("CONVOLUTION_BACKWARD_FILTER", "CONVOLUTION_BWD_FILTER")

    def infer(self) -> None:
        self.dims("X", "DY")
        self.require_dim("DW", "the shape of the filters")
        self.check_top()
        self.set_stride("DW", like=self.inputs["X"])

    def expressions(self, values: Mapping[str, Any]) -> dict[str, Any]:
        sizes = np.array(self.outputs["DW"].dim[2:])
        op = ConvGradWeights(**self.op_parameters())
        return {"DW": op(values["X"], values["DY"], sizes)}

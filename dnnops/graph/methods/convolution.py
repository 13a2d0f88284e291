"""Methods that add convolutions."""

from __future__ import annotations

from typing import Any

from dnnops.graph.methods.base import Methods
from dnnops.graph.names import convolution_mode, data_type
from dnnops.graph.nodes.convolution import ConvDgrad, ConvFprop, ConvWgrad, as_padding
from dnnops.graph.tensors import Tensor

__all__ = ["ConvolutionMethods"]

_NOT_SET: Any = data_type.NOT_SET
_CROSS_CORRELATION: Any = convolution_mode.CROSS_CORRELATION


class ConvolutionMethods(Methods):
    """Convolution and its gradients."""

    def _convolution(
        self,
        kind: Any,
        inputs: dict[str, Any],
        padding: Any,
        pre_padding: Any,
        post_padding: Any,
        stride: Any,
        dilation: Any,
        convolution_mode: Any,
        compute_data_type: Any,
        name: str,
    ) -> Tensor:
        before, after = as_padding(kind.tag, padding, pre_padding, post_padding)
        (result,) = self.add_operation(
            kind,
            inputs,
            name,
            compute_data_type,
            pre_padding=before,
            post_padding=after,
            stride=stride,
            dilation=dilation,
            math_mode=convolution_mode,
        )
        return result

    def conv_fprop(
        self,
        image: Tensor,
        weight: Tensor,
        padding: Any = None,
        stride: Any = (),
        dilation: Any = (),
        convolution_mode: Any = _CROSS_CORRELATION,
        compute_data_type: Any = _NOT_SET,
        name: str = "",
        pre_padding: Any = None,
        post_padding: Any = None,
    ) -> Tensor:
        """Convolve images of (n, c, spatial...) with filters of (k, c // groups, spatial...).

        Parameters
        ----------
        image, weight : Tensor
            Images and filters.
        padding : sequence of int, optional
            Padding on both sides of each spatial axis, 0 by default.
        stride, dilation : sequence of int
            Steps, and distances of the elements of filters; 1 by default.
        convolution_mode : convolution_mode
            Whether to flip the filters, ``CONVOLUTION``, or not.
        compute_data_type : data_type
            Type in which to compute.
        name : str
            Name of the operation.
        pre_padding, post_padding : sequence of int, optional
            Padding before and after, in place of `padding`.

        Returns
        -------
        Tensor
        """
        return self._convolution(
            ConvFprop,
            {"X": image, "W": weight},
            padding,
            pre_padding,
            post_padding,
            stride,
            dilation,
            convolution_mode,
            compute_data_type,
            name,
        )

    def conv_dgrad(
        self,
        loss: Tensor,
        filter: Tensor,
        padding: Any = None,
        stride: Any = (),
        dilation: Any = (),
        convolution_mode: Any = _CROSS_CORRELATION,
        compute_data_type: Any = _NOT_SET,
        name: str = "",
        pre_padding: Any = None,
        post_padding: Any = None,
    ) -> Tensor:
        """Return the gradient with respect to the images, whose dim you set.

        `loss` is the gradient with respect to the output. See `conv_fprop` for other parameters.
        """
        return self._convolution(
            ConvDgrad,
            {"DY": loss, "W": filter},
            padding,
            pre_padding,
            post_padding,
            stride,
            dilation,
            convolution_mode,
            compute_data_type,
            name,
        )

    def conv_wgrad(
        self,
        image: Tensor,
        loss: Tensor,
        padding: Any = None,
        stride: Any = (),
        dilation: Any = (),
        convolution_mode: Any = _CROSS_CORRELATION,
        compute_data_type: Any = _NOT_SET,
        name: str = "",
        pre_padding: Any = None,
        post_padding: Any = None,
    ) -> Tensor:
        """Return the gradient with respect to the filters, whose dim you set.

        `loss` is the gradient with respect to the output. See `conv_fprop` for other parameters.
        """
        return self._convolution(
            ConvWgrad,
            {"X": image, "DY": loss},
            padding,
            pre_padding,
            post_padding,
            stride,
            dilation,
            convolution_mode,
            compute_data_type,
            name,
        )

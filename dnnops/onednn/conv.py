"""Convolution and its gradients on oneDNN in float32, on BLAS in float64."""

from __future__ import annotations

from dnnops.nnet.conv import Conv, ConvGradInputs, ConvGradWeights
from dnnops.onednn.base import OneDnnOp

__all__ = ["OneDnnConv", "OneDnnConvGradInputs", "OneDnnConvGradWeights"]


class OneDnnConv(OneDnnOp, Conv):
    """`Conv` by ``dnnl_convolution_forward`` (float32) or matrix products (float64)."""

    function = "dnnops_onednn_conv"

    def parameters(self) -> list[int]:
        return [0, *self.geometry()]


class OneDnnConvGradInputs(OneDnnOp, ConvGradInputs):
    """`ConvGradInputs` by ``dnnl_convolution_backward_data`` or matrix products."""

    function = "dnnops_onednn_conv"

    def parameters(self) -> list[int]:
        return [1, *self.geometry()]


class OneDnnConvGradWeights(OneDnnOp, ConvGradWeights):
    """`ConvGradWeights` by ``dnnl_convolution_backward_weights`` or matrix products."""

    function = "dnnops_onednn_conv"

    def parameters(self) -> list[int]:
        return [2, *self.geometry()]

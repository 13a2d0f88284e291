"""Spatial transformers on the CPU, computed by dnnops kernels because oneDNN lacks them."""

from __future__ import annotations

from typing import Any, ClassVar

from pytensor.gradient import disconnected_type
from pytensor.graph.basic import Apply, Variable

from dnnops.compat import inferred_shapes, shape_inference
from dnnops.cpu.base import CPU, OneDnnOp
from dnnops.nnet.resample.spatial_transformer import (
    SpatialTransformerGrid,
    SpatialTransformerGridGrad,
    SpatialTransformerSampler,
    SpatialTransformerSamplerGrad,
)
from dnnops.runtime.implementations import BuildContext, implements

__all__ = [
    "OneDnnSpatialTransformerGrid",
    "OneDnnSpatialTransformerGridGrad",
    "OneDnnSpatialTransformerSampler",
    "OneDnnSpatialTransformerSamplerGradGrid",
    "OneDnnSpatialTransformerSamplerGradImage",
]


@implements(SpatialTransformerGrid, on=CPU)
class OneDnnSpatialTransformerGrid(OneDnnOp, SpatialTransformerGrid):
    """`SpatialTransformerGrid` on the CPU, computed in float64."""

    function = "dnnops_onednn_affine_grid"


@implements(SpatialTransformerGridGrad, on=CPU)
class OneDnnSpatialTransformerGridGrad(OneDnnOp, SpatialTransformerGridGrad):
    """`SpatialTransformerGridGrad` on the CPU, with sums in float64."""

    function = "dnnops_onednn_affine_grid_grad"


@implements(SpatialTransformerSampler, on=CPU)
class OneDnnSpatialTransformerSampler(OneDnnOp, SpatialTransformerSampler):
    """`SpatialTransformerSampler` on the CPU; the inner loop runs over dense channels."""

    function = "dnnops_onednn_sampler"


class _SamplerGradPart(OneDnnOp):
    """One of the two results of `SpatialTransformerSamplerGrad`."""

    __props__ = ()
    result: ClassVar[int]

    def make_node(self, img: Any, grid: Any, gout: Any) -> Apply:
        both = SpatialTransformerSamplerGrad().make_node(img, grid, gout)
        return Apply(self, both.inputs, [both.outputs[self.result].type()])

    @shape_inference
    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        return [inferred_shapes(SpatialTransformerSamplerGrad(), node, shapes)[self.result]]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        both = SpatialTransformerSamplerGrad().connection_pattern(node)
        return [[connected[self.result]] for connected in both]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        of_both = [disconnected_type(), disconnected_type()]
        of_both[self.result] = cotangents[0]
        return SpatialTransformerSamplerGrad().pullback(inputs, None, of_both)

    def pushforward(self, inputs: Any, outputs: Any, tangents: Any) -> list[Any]:
        both = SpatialTransformerSamplerGrad().pushforward(inputs, None, tangents)
        return [both[self.result]]


class OneDnnSpatialTransformerSamplerGradImage(_SamplerGradPart):
    """Gradient of the sampler with respect to its images; only their shape is used.

    Threads divide the work by images or channels, so that the result does not depend on their
    number.
    """

    function = "dnnops_onednn_sampler_grad_image"
    result = 0


@implements(SpatialTransformerSamplerGrad, on=CPU)
class OneDnnSpatialTransformerSamplerGradGrid(_SamplerGradPart):
    """Gradient of the sampler with respect to its grid."""

    function = "dnnops_onednn_sampler_grad_grid"
    result = 1

    @classmethod
    def build(cls, op: Any, inputs: list[Any], context: BuildContext) -> list[Variable]:
        # One Op for each result, so that an unused one is dropped.
        return [OneDnnSpatialTransformerSamplerGradImage()(*inputs), cls()(*inputs)]

"""`GpuPad`: pad a device array with zeros, or crop it."""

from __future__ import annotations

from typing import Any, ClassVar

import pytensor.tensor as pt
from pytensor.gradient import DisconnectedType, disconnected_type
from pytensor.graph.basic import Apply, Variable

from dnnops.compat import shape_inference
from dnnops.errors import DnnValueError
from dnnops.gpuarray.layout import dense_order, inverse
from dnnops.gpuarray.op import GpuOp
from dnnops.gpuarray.transfer import as_gpuarray_variable, cast
from dnnops.gpuarray.type import GpuArrayType

__all__ = ["GpuPad"]


class GpuPad(GpuOp):
    """Pad a device array with zeros, or crop it: ``GpuPad(pads)(x)``.

    A padded array is a new array in the memory format of `x`; a cropped array is a view.

    Parameters
    ----------
    pads : sequence of (int, int)
        Number of zeros to add before and after each axis. If all pads are negative or 0, their
        absolute values are the number of elements to remove.

    Raises
    ------
    DnnValueError
        If some pads are positive and some negative, if there isn't a pair for each axis of `x`,
        or if `x` has fewer elements along an axis than should be removed.
    """

    __props__: ClassVar[tuple[str, ...]] = ("pads",)

    def __init__(self, pads: Any):
        self.pads = tuple((int(begin), int(end)) for begin, end in pads)
        amounts = [amount for pair in self.pads for amount in pair]
        if min(amounts, default=0) < 0 < max(amounts, default=0):
            raise DnnValueError(
                f"GpuPad: pads must be all non-negative or all non-positive; got {self.pads}"
            )
        self._crops = max(amounts, default=0) <= 0
        if self._crops:
            self.view_map = {0: [0]}

    def make_node(self, x: Any) -> Apply:
        """Build the node from a device variable."""
        x = as_gpuarray_variable(x)
        if x.type.ndim != len(self.pads):
            raise DnnValueError(f"GpuPad: pads {self.pads} do not fit {x.type}")
        shape = self._padded(x.type.shape)
        return Apply(self, [x], [GpuArrayType(x.type.dtype, shape, x.type.device)()])

    def host_expressions(self, x: Any) -> list[Any]:
        """Return a part of the operand, or zeros of which a part is set to it."""
        if self._crops:
            parts = [slice(-a, x.shape[i] + b) for i, (a, b) in enumerate(self.pads)]
            return [x[tuple(parts)]]
        lengths = [x.shape[i] + a + b for i, (a, b) in enumerate(self.pads)]
        inside = tuple(slice(a, a + x.shape[i]) for i, (a, _) in enumerate(self.pads))
        zeros = pt.zeros(lengths, dtype=x.type.dtype)
        return [pt.set_subtensor(zeros[inside], x)]

    def _padded(self, shape: Any) -> list[Any]:
        lengths = [
            None if n is None else n + begin + end
            for n, (begin, end) in zip(shape, self.pads, strict=True)
        ]
        if any(isinstance(n, int) and n < 0 for n in lengths):
            raise DnnValueError(
                f"GpuPad: pads {self.pads} remove more elements than there are in shape"
                f" {tuple(shape)}"
            )
        return lengths

    @shape_inference
    def infer_shape(self, node: Apply, shapes: Any) -> Any:
        """Add the pads to the lengths of the operand."""
        return [tuple(self._padded(shapes[0]))]

    def _reverse(self) -> GpuPad:
        return GpuPad([(-begin, -end) for begin, end in self.pads])

    def pullback(self, inputs: Any, outputs: Any, output_grads: Any) -> list[Variable]:
        """Crop the gradient of a padded array; pad the gradient of a cropped array with zeros."""
        (x,), (gradient,) = inputs, output_grads
        result = self._reverse()(as_gpuarray_variable(gradient, x.type.device))
        return [cast(result, "float32") if result.type.dtype == "bfloat16" else result]

    def pushforward(self, inputs: Any, outputs: Any, tangents: Any) -> list[Variable]:
        """Apply the Op, which is linear, to the tangent."""
        (tangent,) = tangents
        if isinstance(tangent.type, DisconnectedType):
            return [disconnected_type()]
        return [self(as_gpuarray_variable(tangent, inputs[0].type.device))]

    def compute(self, node: Apply, x: Any) -> Any:
        import cupy

        shape = self._padded(x.shape)
        if self._crops:
            return x[
                tuple(
                    slice(-begin, n + end)
                    for n, (begin, end) in zip(x.shape, self.pads, strict=True)
                )
            ]
        order = dense_order(x) or tuple(range(x.ndim))
        out = cupy.zeros([shape[axis] for axis in order], x.dtype).transpose(inverse(order))
        inside = tuple(
            slice(begin, begin + n) for n, (begin, _) in zip(x.shape, self.pads, strict=True)
        )
        out[inside] = x
        return out

    def __str__(self) -> str:
        return f"GpuPad{{{', '.join(map(str, self.pads))}}}"

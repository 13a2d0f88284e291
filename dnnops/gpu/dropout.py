"""Dropout on a GPU with dnnops kernels, which draw the same random numbers as the CPU."""

from __future__ import annotations

from typing import Any

import pytensor.tensor as pt
from pytensor.gradient import disconnected_type
from pytensor.graph.basic import Apply, Variable

import dnnops.gpu.deferred
import dnnops.gpu.kernels  # noqa: F401 - both register what C code calls
from dnnops.errors import DnnTypeError
from dnnops.gpu.base import CudnnOp, as_gradient, device_operands, gradient_like
from dnnops.gpu.descriptors import GpuDnnDropoutDesc
from dnnops.gpu.library import GPU_KERNELS
from dnnops.gpuarray.transfer import as_gpuarray_variable
from dnnops.gpuarray.type import GpuArrayType
from dnnops.nnet.expressions import is_connected
from dnnops.nnet.regularization.dropout import Dropout, DropoutGrad, is_moving, undefined_by_p
from dnnops.nnet.streams import advance
from dnnops.nnet.validate import switch
from dnnops.runtime.implementations import implements

__all__ = ["GpuDnnDropoutGrad", "GpuDnnDropoutOp"]


class _GpuDropout(CudnnOp):
    __props__ = ("inplace", "from_device")
    contiguous_only = True

    def __init__(self, inplace: bool = False, from_device: bool = False):
        name = type(self).__name__
        self.inplace = switch(name, "inplace", inplace)
        self.from_device = switch(name, "from_device", from_device)
        if self.inplace:
            self.destroy_map = {0: [0]}

    def parameters(self) -> list[int]:
        return [int(self.from_device)]

    def _placed(self, x: Any, number: Any, ndim: int, dtype: str) -> Any:
        """Return `p` or a state where the Op reads it, on the device of `x` if it is there."""
        if not self.from_device:
            return number
        moved = as_gpuarray_variable(number, x.type.device)
        if (moved.type.ndim, moved.type.dtype) != (ndim, dtype):
            raise DnnTypeError(
                f"{type(self).__name__}: expected a {dtype} array of {ndim} dimensions on the"
                f" device, got {moved.type}"
            )
        return moved


@implements(Dropout, on=GPU_KERNELS, operands=(0,))
class GpuDnnDropoutOp(_GpuDropout, Dropout):
    """`Dropout` of a device array, called as ``GpuDnnDropoutOp()(x, p, state)``.

    The results are bitwise identical to those on the CPU. `x` is float16, bfloat16, float32 or
    float64. `x`, `y` and `reserve` are on the device; `p` and the states are on the host, or on the
    device with `from_device`. Only then can a CUDA graph draw other numbers each time.

    A `GpuDnnDropoutDesc` can be given in place of `p`. If no state is given with it, a state is
    created from the descriptor's seed, and each call of a compiled function updates it.

    Parameters
    ----------
    inplace : bool
        Whether the result overwrites `x`.
    from_device : bool
        Whether `p` and the states are on the device, too. If `p` is out of bounds, the results are
        NaN, and the next transfer to the host raises an error.
    """

    function = "dnnops_cudnn_dropout"
    abstract_class = Dropout

    def make_node(self, x: Any, p: Any, state: Any = None) -> Apply:
        if isinstance(p, GpuDnnDropoutDesc):
            if state is None:
                own = p.state()
                node = self.make_node(x, p.dropout, own)
                advance(own, node.outputs[2])
                return node
            p = p.dropout
        (x,) = device_operands(type(self).__name__, None, x=x)
        # The abstract Op checks the rest. It doesn't support bfloat16, so give it a stand-in.
        stand_in = pt.tensor(dtype="float32", shape=x.type.shape)
        p, state = self._placed(x, p, 0, "float64"), self._placed(x, state, 1, "int64")
        known = (0.5, pt.lvector()) if self.from_device else (p, state)
        checked = Dropout.make_node(self, stand_in, *known)
        if not self.from_device:
            _, p, state = checked.inputs
        _, reserve, next_state = checked.outputs
        on_device = GpuArrayType("uint8", reserve.type.shape, x.type.device)
        next_type = state.type.clone(shape=(2,)) if self.from_device else next_state.type
        return Apply(self, [x, p, state], [x.type(), on_device(), next_type()])

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        x, p, _ = inputs
        if not is_connected(cotangents[0]):
            return [disconnected_type() for _ in inputs]
        gradient = self._gradient(gradient_like(cotangents[0], x), p, outputs[1])
        return [as_gradient(gradient), undefined_by_p(self, p), disconnected_type()]

    def pushforward(self, inputs: Any, outputs: Any, tangents: Any) -> list[Variable]:
        x, p, _ = inputs
        tangent: Any = disconnected_type()
        if is_moving(tangents[1]):
            tangent = undefined_by_p(self, p)
        elif is_connected(tangents[0]):
            tangent = self._gradient(gradient_like(tangents[0], x), p, outputs[1])
        return [tangent, disconnected_type(), disconnected_type()]

    def _gradient(self, g: Any, p: Any, reserve: Any) -> Any:
        return GpuDnnDropoutGrad(from_device=self.from_device)(g, p, reserve)


@implements(DropoutGrad, on=GPU_KERNELS, operands=(0, 2))
class GpuDnnDropoutGrad(_GpuDropout, DropoutGrad):
    """`DropoutGrad` of device arrays, called as ``GpuDnnDropoutGrad()(gy, p, reserve)``.

    Parameters
    ----------
    inplace : bool
        Whether the result overwrites `gy`.
    from_device : bool
        Whether `p` is on the device, too; see `GpuDnnDropoutOp`.
    """

    function = "dnnops_cudnn_dropout_grad"
    abstract_class = DropoutGrad

    def make_node(self, gy: Any, p: Any, reserve: Any) -> Apply:
        name = type(self).__name__
        (gy,) = device_operands(name, None, gy=gy)
        reserve = as_gpuarray_variable(reserve, gy.type.device)
        if reserve.type.ndim != 1 or reserve.type.dtype != "uint8":
            raise DnnTypeError(f"{name}: reserve must be a uint8 vector, got {reserve.type}")
        p = self._placed(gy, p, 0, "float64")
        if not self.from_device:
            stand_in = pt.tensor(dtype="float32", shape=gy.type.shape)
            p = DropoutGrad.make_node(self, stand_in, p, pt.vector(dtype="uint8")).inputs[1]
        return Apply(self, [gy, p, reserve], [gy.type()])

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        gy, p, reserve = inputs
        gradient = self(gradient_like(cotangents[0], gy), p, reserve)
        return [as_gradient(gradient), undefined_by_p(self, p), disconnected_type()]

    def pushforward(self, inputs: Any, outputs: Any, tangents: Any) -> list[Variable]:
        gy, p, reserve = inputs
        if is_moving(tangents[1]):
            return [undefined_by_p(self, p)]
        if not is_connected(tangents[0]):
            return [disconnected_type()]
        return [self(gradient_like(tangents[0], gy), p, reserve)]

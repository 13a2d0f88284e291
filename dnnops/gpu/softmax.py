"""Softmax, log-softmax and their gradients on cuDNN."""

from __future__ import annotations

from typing import Any, ClassVar

from pytensor.gradient import DisconnectedType, disconnected_type
from pytensor.graph.basic import Apply, Variable
from pytensor.tensor import as_tensor_variable

from dnnops.arguments import shown
from dnnops.compat import shape_inference
from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.gpu.base import CudnnOp, as_gradient, device_operands, gradient_like
from dnnops.gpu.derivatives import GpuAbstractOp
from dnnops.gpu.library import GPU_CUDNN
from dnnops.nnet.activation.softmax import LogSoftmaxGrad, SoftmaxGrad, WholeSoftmax
from dnnops.nnet.validate import is_int, merge_shapes, named_operands, one_of
from dnnops.runtime.axes import neighboring_axes
from dnnops.runtime.implementations import BuildContext, implements

__all__ = ["ALGORITHMS", "GpuDnnSoftmax", "GpuDnnSoftmaxBase", "GpuDnnSoftmaxGrad"]

#: In the order of ``cudnnSoftmaxAlgorithm_t``. Of these, 'fast' can overflow.
ALGORITHMS = ("fast", "accurate", "log")
MODES = ("instance", "channel")


class GpuDnnSoftmaxBase(CudnnOp):
    """Base class of softmax and its gradient on cuDNN.

    Parameters
    ----------
    algo : {'fast', 'accurate', 'log'}
        'accurate' subtracts the maximum before it computes exponentials. 'fast' doesn't, and cuDNN
        stores the exponentials in the arrays' dtype: operands above 11 in float16, or above 88 in
        float32, overflow, and the result contains infinities or NaN. 'log' computes the logarithm
        of the softmax.
    mode : {'channel', 'instance'}
        Axes over which the results sum to one: axis 1, or all axes but the first.
    axis : int, tuple of int, or None
        Adjacent axes to use instead of `mode`.

    Raises
    ------
    DnnTypeError, DnnValueError
        If a parameter is invalid.
    """

    __props__ = ("algo", "mode", "axis")
    function = "dnnops_cudnn_softmax"
    contiguous_only = True
    operands: ClassVar[tuple[str, ...]]

    def __init__(self, algo: str = "accurate", mode: str = "channel", axis: Any = None):
        name = type(self).__name__
        for what, value, known in (("algo", algo, ALGORITHMS), ("mode", mode, MODES)):
            one_of(name, what, value, known)
        self.algo = algo
        self.mode = mode
        if is_int(axis):
            axis = (int(axis),)
        if axis is not None:
            if not isinstance(axis, tuple | list) or not all(is_int(a) for a in axis):
                raise DnnTypeError(
                    f"{name}: axis must be None, an int or a tuple of ints, got {shown(axis)}"
                )
            axis = tuple(int(a) for a in axis)
        self.axis: tuple[int, ...] | None = axis

    @classmethod
    def build(cls, op: Any, inputs: list[Any], context: BuildContext) -> list[Variable] | None:
        axes = neighboring_axes(op.axis, inputs[0].type.ndim)
        if axes is None:
            return None
        is_log = isinstance(op, LogSoftmaxGrad) or getattr(op, "log", False)
        return cls("log" if is_log else "accurate", axis=axes).make_node(*inputs).outputs

    def axes(self, ndim: int) -> range:
        """Return the axes over which the result sums to one, for arrays of rank `ndim`.

        Raises
        ------
        DnnValueError
            If the array doesn't have these axes, or if they aren't adjacent.
        """
        if self.axis is None:
            found = [1] if self.mode == "channel" else [*range(1, ndim)]
        else:
            found = sorted(a % ndim if -ndim <= a < ndim else ndim for a in self.axis)
        if not found or found[-1] >= ndim or found != [*range(found[0], found[-1] + 1)]:
            what = f"mode={self.mode!r}" if self.axis is None else f"axis={self.axis}"
            raise DnnValueError(
                f"{type(self).__name__}: {what} does not fit an array of {ndim} dimensions; the"
                " axes must exist and be adjacent"
            )
        return range(found[0], found[-1] + 1)

    def make_node(self, *inputs: Any) -> Apply:
        name = type(self).__name__
        data = device_operands(name, None, **named_operands(name, self.operands, inputs))
        if len({x.type.ndim for x in data}) > 1:
            raise DnnTypeError(f"{name}: the operands must have the same rank, got {data}")
        axes = self.axes(data[0].type.ndim)
        shapes = {n: x.type.shape for n, x in zip(self.operands, data, strict=True)}
        shape = merge_shapes(name, **shapes)
        # The C functions need the axes, so make them part of the Op.
        op = type(self)(self.algo, self.mode, tuple(axes))
        return Apply(op, data, [data[0].type.clone(shape=shape)()])

    def parameters(self) -> list[int]:
        axes = self.axis or (1,)
        return [axes[0], axes[-1] + 1, ALGORITHMS.index(self.algo), len(self.operands) - 1]

    @shape_inference
    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        return [shapes[0]]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        return [[True] for _ in node.inputs]


@implements(WholeSoftmax, on=GPU_CUDNN)
class GpuDnnSoftmax(GpuDnnSoftmaxBase):
    """Softmax or its logarithm, called as ``GpuDnnSoftmax(algo, mode)(x)``.

    See `GpuDnnSoftmaxBase` for the parameters.
    """

    operands = ("x",)

    def abstract_op(self) -> WholeSoftmax:
        return WholeSoftmax(self.axis, self.algo == "log")

    def _grad(self) -> GpuDnnSoftmaxGrad:
        return GpuDnnSoftmaxGrad(self.algo, self.mode, self.axis)

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        gz = gradient_like(cotangents[0], inputs[0])
        return [as_gradient(self._grad()(gz, outputs[0]))]

    def pushforward(self, inputs: Any, outputs: Any, tangents: Any) -> list[Variable]:
        if isinstance(tangents[0].type, DisconnectedType):
            return [disconnected_type()]
        tangent = gradient_like(tangents[0], inputs[0])
        if self.algo != "log":  # its Jacobian is symmetric
            return [self._grad()(tangent, outputs[0])]
        sm = as_tensor_variable(GpuDnnSoftmax("accurate", self.mode, self.axis)(inputs[0]))
        host = as_tensor_variable(tangent)
        return [gradient_like(host - (sm * host).sum(axis=self.axis, keepdims=True), tangent)]


@implements(SoftmaxGrad, LogSoftmaxGrad, on=GPU_CUDNN)
class GpuDnnSoftmaxGrad(GpuDnnSoftmaxBase, GpuAbstractOp):
    """Gradient of `GpuDnnSoftmax`, called as ``GpuDnnSoftmaxGrad(algo, mode)(gz, out)``.

    `gz` is the gradient with respect to the output `out`. See `GpuDnnSoftmaxBase` for the
    parameters.
    """

    operands = ("gz", "out")

    def abstract_op(self) -> SoftmaxGrad | LogSoftmaxGrad:
        return (LogSoftmaxGrad if self.algo == "log" else SoftmaxGrad)(self.axis)

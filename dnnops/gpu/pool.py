"""Pooling and its gradient on cuDNN."""

from __future__ import annotations

from typing import Any, ClassVar

from pytensor.gradient import disconnected_type
from pytensor.graph.basic import Apply, Variable

from dnnops.arguments import one_of, switch_or_flag
from dnnops.errors import DnnTypeError
from dnnops.gpu.base import CudnnOp, as_gradient, device_operands, gradient_like
from dnnops.gpu.library import GPU_CUDNN
from dnnops.gpu.pool_kernels import (
    GpuMaxPoolGradGrad,
    GpuPoolGradOperands,
    GpuPoolOperands,
)
from dnnops.gpuarray.layout import MEMORY_FORMATS
from dnnops.nnet.pool.geometry import MAX_DETERMINISTIC, POOL_MODES
from dnnops.nnet.pool.op import AveragePoolGrad, MaxPoolGrad, ModePoolBase, Pool
from dnnops.nnet.validate import named_operands, static_vector
from dnnops.runtime.implementations import BuildContext, implements

__all__ = ["GpuDnnPool", "GpuDnnPoolBase", "GpuDnnPoolGrad"]


def _has_whole_windows(op: Any, x: Any, vectors: list[Any]) -> bool:
    """Return whether no window extends past the end of the image, as cuDNN requires."""
    if op.ignore_border:
        return True
    ws, stride, _ = (static_vector(v, op.ndim) for v in vectors)
    sizes = x.type.shape[2:]
    if None in (*ws, *stride, *sizes):
        return False
    return all(
        n >= w and (n - w) % s == 0 and s <= w for n, w, s in zip(sizes, ws, stride, strict=True)
    )


class GpuDnnPoolBase(CudnnOp, GpuPoolOperands):
    """Base class of pooling and its gradient on cuDNN.

    Parameters
    ----------
    mode : {'max', 'max_deterministic', 'sum', 'average_inc_pad', 'average_exc_pad', 'average'}
        Value computed for each window. As in Theano, 'max_deterministic' is 'max' with
        ``deterministic=True``, and 'average' is another name for 'average_inc_pad'.
    ndim : {1, 2, 3}, optional
        Number of spatial axes. Default: taken from the image that the Op is applied to.
    ignore_border : bool
        Whether to leave out windows that extend past the end of the image. If False, a call with
        such windows raises DnnNotSupportedError, because cuDNN doesn't support them; the Ops in
        `dnnops.gpu.pool_kernels` do.
    deterministic : bool, optional
        Whether the gradient of max pooling must be identical in every run. Default: the flag
        ``dnn.deterministic``.
    memory_format : {'contiguous', 'channels_last'}
        Memory format of the result. Operands can have either format, but the gradient copies those
        that have another one than the result.

    Raises
    ------
    DnnValueError
        If a parameter is invalid.
    """

    __props__ = ("ndim", "mode", "ignore_border", "deterministic", "memory_format")
    function = "dnnops_cudnn_pool"
    is_gradient: ClassVar[bool]
    #: Whether the last data operand is added to the result.
    adds: ClassVar[bool] = False

    def __init__(
        self,
        mode: str = "max",
        ndim: int | None = None,
        ignore_border: bool = True,
        deterministic: bool | None = None,
        memory_format: str = "contiguous",
    ):
        if isinstance(mode, str) and mode == "average":
            mode = "average_inc_pad"
        ModePoolBase.__init__(self, 2 if ndim is None else ndim, mode, ignore_border)
        if ndim is None:
            self.ndim = 0
        if mode == MAX_DETERMINISTIC:
            self.mode, deterministic = "max", True
        self.deterministic = switch_or_flag(
            type(self).__name__, "deterministic", deterministic, "dnn.deterministic"
        )
        self.memory_format = one_of(
            type(self).__name__, "memory_format", memory_format, MEMORY_FORMATS
        )

    @classmethod
    def build(cls, op: Any, inputs: list[Any], context: BuildContext) -> list[Variable] | None:
        vectors = inputs[-3:]
        if not _has_whole_windows(op, inputs[0], vectors):
            return None
        if isinstance(op, AveragePoolGrad):
            # cuDNN also requires the pooled array, but reads its values only for maxima.
            inputs = [*inputs[:2], *inputs[1:]]
        if isinstance(op, MaxPoolGrad):
            mode = MAX_DETERMINISTIC if op.deterministic else "max"
        else:
            mode = op.mode
        return [cls(mode, op.ndim, op.ignore_border)(*inputs)]

    def make_node(self, *inputs: Any) -> Apply:
        if self.ndim:
            return super().make_node(*inputs)
        named_operands(type(self).__name__, (*self.operands, "ws", "stride", "pad"), inputs)
        (x,) = device_operands(type(self).__name__, None, x=inputs[0])
        ndim = x.type.ndim - 2
        if ndim not in (1, 2, 3):
            raise DnnTypeError(
                f"{type(self).__name__}: the image must have three to five dimensions, got {x.type}"
            )
        return self.replace(ndim=ndim).make_node(*inputs)

    def parameters(self) -> list[int]:
        return [
            self.ndim,
            POOL_MODES.index(self.mode),
            int(self.ignore_border),
            int(self.is_gradient),
            int(self.deterministic),
            int(self.adds),
        ]

    def _sibling(self, cls: type[GpuDnnPoolBase]) -> GpuDnnPoolBase:
        return cls(**{name: getattr(self, name) for name in self.__props__})


@implements(Pool, on=GPU_CUDNN, operands=(0,))
class GpuDnnPool(GpuDnnPoolBase):
    """`Pool` on cuDNN, called as ``GpuDnnPool(mode)(x, ws, stride, pad)``.

    `x` has the shape (batch, channels, spatial...). The other operands are int64 vectors with an
    entry for each spatial axis. See `GpuDnnPoolBase` for the parameters. dnnops kernels compute
    maxima: cuDNN's maximum of a window of minus infinity is the lowest finite number.
    """

    operands = ("x",)
    abstract_class = Pool
    pooled_result = True
    connected = ("x",)
    is_gradient = False

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        x, *vectors = inputs
        op = self._sibling(GpuDnnPoolGrad)
        gz = gradient_like(cotangents[0], x)
        return [
            as_gradient(op(x, outputs[0], gz, *vectors)),
            *(disconnected_type() for _ in vectors),
        ]

    def pushforward(self, inputs: Any, outputs: Any, tangents: Any) -> list[Variable]:
        if self.mode == "max":
            x, *vectors = inputs
            op = GpuMaxPoolGradGrad(self.ndim, self.mode, self.ignore_border)
            return [op(x, outputs[0], gradient_like(tangents[0], x), *vectors)]
        return super().pushforward(inputs, outputs, tangents)


@implements(MaxPoolGrad, on=GPU_CUDNN, operands=(0, 1, 2))
@implements(AveragePoolGrad, on=GPU_CUDNN, operands=(0, 1))
class GpuDnnPoolGrad(GpuPoolGradOperands, GpuDnnPoolBase):
    """Gradient of pooling on cuDNN, called as ``op(x, out, gz, ws, stride, pad)``.

    `out` is the pooling output; its values matter only for max pooling. `gz` is the gradient with
    respect to `out`. See `GpuDnnPoolBase` for the parameters. A dnnops kernel computes the gradient
    of max pooling on channels-last images if the windows are small.
    """

    operands = ("x", "maxout", "gz")
    pooled_result = False
    connected = ("x", "gz")
    is_gradient = True
    # cudnnPoolingBackward wants an array and its gradient to have the same strides.
    matched_operands = (0, 1, 2)

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        x, out, _, *vectors = inputs
        g = gradient_like(cotangents[0], x)
        if self.mode == "max":
            op = GpuMaxPoolGradGrad(self.ndim, self.mode, self.ignore_border)
            by_gz = op(x, out, g, *vectors)
        else:
            by_gz = self._sibling(GpuDnnPool)(g, *vectors)
        # The result is piecewise constant in x, so that gradient is zero.
        return [
            as_gradient(gradient_like(x.zeros_like(), x)),
            disconnected_type(),
            as_gradient(by_gz),
            *(disconnected_type() for _ in vectors),
        ]

"""Pooling and its gradient on cuDNN."""

from __future__ import annotations

from typing import Any, ClassVar

from pytensor.gradient import disconnected_type
from pytensor.graph.basic import Apply, Variable

from dnnops.arguments import one_of, switch_or_flag
from dnnops.cudnn.base import CudnnOp, as_gradient, device_operands, gradient_like
from dnnops.errors import DnnTypeError
from dnnops.gpuarray.layout import MEMORY_FORMATS
from dnnops.gpuarray.type import GpuArrayType
from dnnops.nnet._validate import int_vector, named_operands, static_vector
from dnnops.nnet.pool import ModePoolBase
from dnnops.nnet.pool_geometry import MAX_DETERMINISTIC, POOL_MODES

__all__ = ["GpuDnnPool", "GpuDnnPoolBase", "GpuDnnPoolGrad"]


class GpuPoolOperands(ModePoolBase):
    """The symbolic side of a pooling Op whose data operands are in device memory."""

    def make_node(self, *inputs: Any) -> Apply:
        names = (*self.operands, "ws", "stride", "pad")
        named_operands(self.where, names, inputs)
        count = len(self.operands)
        data = device_operands(
            self.where, self.ndim + 2, **dict(zip(self.operands, inputs[:count], strict=True))
        )
        vectors = [
            int_vector(self.where, name, value, self.ndim)
            for name, value in zip(names[count:], inputs[count:], strict=True)
        ]
        img_shape, out_shape = self.check_shapes(
            [x.type.shape for x in data], *(static_vector(v, self.ndim) for v in vectors)
        )
        shape = out_shape if self.pooled_result else img_shape
        output_type = GpuArrayType(data[0].type.dtype, shape, data[0].type.device)
        return Apply(self, [*data, *vectors], [output_type()])


class GpuDnnPoolBase(CudnnOp, GpuPoolOperands):
    """What pooling and its gradient share.

    Parameters
    ----------
    mode : {'max', 'max_deterministic', 'sum', 'average_inc_pad', 'average_exc_pad', 'average'}
        'max_deterministic' is 'max' with `deterministic`, and 'average' another name of
        'average_inc_pad', as in Theano.
    ndim : {1, 2, 3}, optional
        The number of spatial axes. Default: those that the image has which the Op is applied to.
    ignore_border : bool
        Whether windows that reach over the end are left out. If not, cuDNN takes only images that
        have no such windows, and anything else raises DnnNotSupportedError at the call;
        `dnnops.cudnn.pool_kernels` has Ops that take them.
    deterministic : bool, optional
        Whether the gradient of maxima is to be the same bits in every run. Default: the flag
        ``dnn.deterministic``.
    memory_format : {'contiguous', 'channels_last'}
        The order in memory of the result. The operands may have either.

    Raises
    ------
    DnnValueError
        If a parameter is another one.
    """

    __props__ = ("ndim", "mode", "ignore_border", "deterministic", "memory_format")
    function = "dnnops_cudnn_pool"
    is_gradient: ClassVar[bool]

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
        return self._sibling(type(self), ndim).make_node(*inputs)

    def parameters(self) -> list[int]:
        return [
            self.ndim,
            POOL_MODES.index(self.mode),
            int(self.ignore_border),
            int(self.is_gradient),
            int(self.deterministic),
        ]

    def _sibling(self, cls: type[GpuDnnPoolBase], ndim: int | None = None) -> GpuDnnPoolBase:
        props = {name: getattr(self, name) for name in self.__props__}
        return cls(**{**props, "ndim": ndim or self.ndim})


class GpuDnnPool(GpuDnnPoolBase):
    """`Pool` by cuDNN: ``GpuDnnPool(mode)(x, ws, stride, pad)``.

    Parameters as for `GpuDnnPoolBase`; `x` is (batch, channels, spatial...), the others are int64
    vectors with an entry for each spatial axis.
    """

    operands = ("x",)
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
            from dnnops.cudnn.pool_kernels import GpuMaxPoolGradGrad

            x, *vectors = inputs
            op = GpuMaxPoolGradGrad(self.ndim, self.mode, self.ignore_border)
            return [op(x, outputs[0], gradient_like(tangents[0], x), *vectors)]
        return super().pushforward(inputs, outputs, tangents)


class GpuDnnPoolGrad(GpuDnnPoolBase):
    """The gradient of pooling by cuDNN: ``(x, out, gz, ws, stride, pad)``.

    Parameters as for `GpuDnnPoolBase`. `out` is the pooling's output, of which only maxima need the
    values, and `gz` the gradient by it.
    """

    operands = ("x", "maxout", "gz")
    pooled_result = False
    connected = ("x", "gz")
    is_gradient = True

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        x, out, _, *vectors = inputs
        g = gradient_like(cotangents[0], x)
        if self.mode == "max":
            from dnnops.cudnn.pool_kernels import GpuMaxPoolGradGrad

            op = GpuMaxPoolGradGrad(self.ndim, self.mode, self.ignore_border)
            by_gz = op(x, out, g, *vectors)
        else:
            by_gz = self._sibling(GpuDnnPool)(g, *vectors)
        # Piecewise constant in x, whose values only select.
        return [
            as_gradient(gradient_like(x.zeros_like(), x)),
            disconnected_type(),
            as_gradient(by_gz),
            *(disconnected_type() for _ in vectors),
        ]

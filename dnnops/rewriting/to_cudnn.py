"""Put Ops on cuDNN in the place of abstract ones whose graph moves to the GPU.

The functions registered here are asked by the pass of `dnnops.rewriting.lifting`, which hands them
operands on the device and deals with transfers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pytensor.compile.mode import optdb
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import Op
from pytensor.graph.rewriting.basic import GraphRewriter

from dnnops.cudnn.activation import GpuDnnActivation, GpuDnnActivationGrad
from dnnops.cudnn.base import check_cudnn, cudnn_usable
from dnnops.cudnn.conv import GpuDnnConv, GpuDnnConvBase, GpuDnnConvGradI, GpuDnnConvGradW
from dnnops.cudnn.cross_entropy import GpuCrossEntropy, GpuCrossEntropyGrad
from dnnops.cudnn.dropout import GpuDnnDropoutGrad, GpuDnnDropoutOp
from dnnops.cudnn.pool import GpuDnnPool, GpuDnnPoolGrad
from dnnops.cudnn.pool_kernels import GpuMaxPoolGradGrad, GpuPool, GpuPoolGrad
from dnnops.cudnn.softmax import GpuDnnSoftmax, GpuDnnSoftmaxGrad
from dnnops.cudnn.transform import GpuDnnAddTensor
from dnnops.errors import DnnRequiredError, DnnUnavailableError
from dnnops.nnet._validate import static_vector
from dnnops.nnet.conv import Conv, ConvGradInputs, ConvGradWeights
from dnnops.nnet.cross_entropy import CrossEntropy, CrossEntropyGrad
from dnnops.nnet.dropout import Dropout, DropoutGrad
from dnnops.nnet.pool import AveragePoolGrad, MaxPoolGrad, MaxPoolGradGrad, Pool
from dnnops.nnet.softmax import LogSoftmaxGrad, SoftmaxGrad, WholeSoftmax
from dnnops.rewriting.inplace import register_gpu_inplace
from dnnops.rewriting.lifting import LiftContext, LiftFunction, _graph_device, register_lifter

__all__ = ["RequireCudnn"]

Build = Callable[[Any, list[Any]], Sequence[Variable] | None]


def _register(
    op_class: type, build: Build, operands: tuple[int, ...] | None = None, heavy: bool = False
) -> None:
    """Register ``build(op, inputs)`` as the lifter of an abstract Op to cuDNN."""

    def lift(node: Apply, inputs: list[Any], context: LiftContext) -> Sequence[Variable] | None:
        # Backend Ops derive from abstract ones; they are where somebody put them.
        if type(node.op) is not op_class:
            return None
        usable, _ = cudnn_usable(context.device)
        return build(node.op, inputs) if usable else None

    register_lifter(op_class, operands=operands, heavy=heavy, tags=("cudnn",), priority=10)(lift)


# -- convolution ---------------------------------------------------------------------------


def _build_conv(cls: type[GpuDnnConvBase]) -> Build:
    def build(abstract: Any, inputs: list[Any]) -> list[Variable]:
        return [cls.from_abstract(abstract)(*inputs)]

    return build


_register(Conv, _build_conv(GpuDnnConv), heavy=True)
_register(ConvGradInputs, _build_conv(GpuDnnConvGradI), operands=(0, 1), heavy=True)
_register(ConvGradWeights, _build_conv(GpuDnnConvGradW), operands=(0, 1), heavy=True)


@register_gpu_inplace(GpuDnnConv, GpuDnnConvGradI, GpuDnnConvGradW)
def inplace_conv(fgraph: FunctionGraph, node: Apply) -> Op | None:
    """A convolution that adds to an operand may overwrite it."""
    return node.op.replace(inplace=True) if node.op.accumulate else None


# -- pooling -------------------------------------------------------------------------------


def _whole_windows(op: Any, img: Any, vectors: list[Any]) -> bool:
    """Whether no window reaches over the end of the image, so that cuDNN takes it."""
    if op.ignore_border:
        return True
    ws, stride, _ = (static_vector(v, op.ndim) for v in vectors)
    sizes = img.type.shape[2:]
    if None in (*ws, *stride, *sizes):
        return False
    return all(
        n >= w and (n - w) % s == 0 and s <= w for n, w, s in zip(sizes, ws, stride, strict=True)
    )


def _build_pool(op: Any, inputs: list[Any]) -> list[Variable] | None:
    x, *vectors = inputs
    if not _whole_windows(op, x, vectors):
        return None
    return [GpuDnnPool(op.ndim, op.mode, op.ignore_border)(*inputs)]


def _build_max_grad(op: Any, inputs: list[Any]) -> list[Variable] | None:
    x, _, _, *vectors = inputs
    if not _whole_windows(op, x, vectors):
        return None
    return [GpuDnnPoolGrad(op.ndim, "max", op.ignore_border)(*inputs)]


def _build_average_grad(op: Any, inputs: list[Any]) -> list[Variable] | None:
    x, gz, *vectors = inputs
    if not _whole_windows(op, x, vectors):
        return None
    # cuDNN wants the pooled array too, but reads its values for maxima only.
    return [GpuDnnPoolGrad(op.ndim, op.mode, op.ignore_border)(x, gz, gz, *vectors)]


_register(Pool, _build_pool, operands=(0,))
_register(MaxPoolGrad, _build_max_grad, operands=(0, 1, 2))
_register(AveragePoolGrad, _build_average_grad, operands=(0, 1))


def _kernel(op_class: type, build: Callable[[Any, list[Any]], Variable], operands: Any) -> None:
    """Register the kernel that does what cuDNN doesn't."""

    def lift(node: Apply, inputs: list[Any], context: LiftContext) -> Sequence[Variable] | None:
        return [build(node.op, inputs)] if type(node.op) is op_class else None

    function: LiftFunction = lift
    register_lifter(op_class, operands=operands)(function)


_kernel(Pool, lambda op, x: GpuPool(op.ndim, op.mode, op.ignore_border)(*x), (0,))
_kernel(MaxPoolGrad, lambda op, x: GpuPoolGrad(op.ndim, "max", op.ignore_border)(*x), (0, 1, 2))
_kernel(
    AveragePoolGrad,
    lambda op, x: GpuPoolGrad(op.ndim, op.mode, op.ignore_border)(x[0], x[1], *x[1:]),
    (0, 1),
)
_kernel(
    MaxPoolGradGrad,
    lambda op, x: GpuMaxPoolGradGrad(op.ndim, "max", op.ignore_border)(*x),
    (0, 1, 2),
)


# -- softmax -------------------------------------------------------------------------------


def _build_softmax(cls: type, algo: Callable[[Any], str]) -> Build:
    def build(op: Any, inputs: list[Any]) -> list[Variable] | None:
        ndim = inputs[0].type.ndim
        axes = range(ndim) if op.axis is None else sorted(a % ndim for a in op.axis)
        if not axes or list(axes) != list(range(axes[0], axes[0] + len(axes))):
            return None
        return [cls(algo(op), axis=tuple(axes))(*inputs)]

    return build


_register(WholeSoftmax, _build_softmax(GpuDnnSoftmax, lambda op: "log" if op.log else "accurate"))
_register(SoftmaxGrad, _build_softmax(GpuDnnSoftmaxGrad, lambda op: "accurate"))
_register(LogSoftmaxGrad, _build_softmax(GpuDnnSoftmaxGrad, lambda op: "log"))


# -- cross-entropy and dropout -------------------------------------------------------------


def _build_cross_entropy(cls: type) -> Build:
    return lambda op, inputs: cls(op.every_row).make_node(*inputs).outputs


_register(CrossEntropy, _build_cross_entropy(GpuCrossEntropy), operands=(0, 1))
_register(CrossEntropyGrad, _build_cross_entropy(GpuCrossEntropyGrad), operands=(0, 1, 2, 3))
_register(Dropout, lambda op, x: GpuDnnDropoutOp().make_node(*x).outputs, operands=(0,))
_register(DropoutGrad, lambda op, x: [GpuDnnDropoutGrad()(*x)], operands=(0, 2))


@register_gpu_inplace(
    GpuDnnActivation, GpuDnnActivationGrad, GpuDnnAddTensor, GpuDnnDropoutGrad, GpuDnnDropoutOp
)
def inplace_elementwise(fgraph: FunctionGraph, node: Apply) -> Op:
    """Ops whose elements are computed one by one may overwrite an operand."""
    props = {name: getattr(node.op, name) for name in node.op.__props__}
    return type(node.op)(**props | {"inplace": True})


# -- requiring cuDNN -----------------------------------------------------------------------


class RequireCudnn(GraphRewriter):
    """Raise unless cuDNN can be used: of modes that include the tag ``cudnn``."""

    def apply(self, fgraph: FunctionGraph) -> None:
        """Check; the graph stays as it is."""
        try:
            check_cudnn(_graph_device(fgraph))
        except DnnUnavailableError as error:
            raise DnnRequiredError(f"optimizer_including=cudnn: {error}") from error


optdb.register("cudnn_required", RequireCudnn(), "cudnn", position=0)

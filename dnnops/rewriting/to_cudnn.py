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

from dnnops.cudnn.attention import MAX_DEPTH, GpuDnnAttention, GpuDnnAttentionGrad
from dnnops.cudnn.base import check_cudnn, cudnn_usable, cudnn_version
from dnnops.cudnn.conv import GpuDnnConv, GpuDnnConvBase, GpuDnnConvGradI, GpuDnnConvGradW
from dnnops.cudnn.pool import GpuDnnPool, GpuDnnPoolGrad
from dnnops.cudnn.pool_kernels import GpuMaxPoolGradGrad, GpuPool, GpuPoolGrad
from dnnops.cudnn.softmax import GpuDnnSoftmax, GpuDnnSoftmaxGrad
from dnnops.errors import DnnRequiredError, DnnUnavailableError
from dnnops.gpuarray.transfer import GpuCast, cast
from dnnops.nnet._validate import static_vector
from dnnops.nnet.attention import OPTIONAL, Attention, AttentionGrad
from dnnops.nnet.conv import Conv, ConvGradInputs, ConvGradWeights
from dnnops.nnet.pool import AveragePoolGrad, MaxPoolGrad, MaxPoolGradGrad, Pool
from dnnops.nnet.softmax import LogSoftmaxGrad, SoftmaxGrad, WholeSoftmax
from dnnops.rewriting.inplace import register_gpu_inplace
from dnnops.rewriting.lifters import Operands
from dnnops.rewriting.lifting import LiftContext, LiftFunction, _graph_device, register_lifter

__all__ = ["RequireCudnn"]

Build = Callable[[Any, list[Any]], Sequence[Variable] | None]


def _register(
    op_class: type, build: Build, operands: Operands | None = None, heavy: Any = False
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


# -- attention -----------------------------------------------------------------------------

# From 9.6 on gradients need nothing cleared before; those of 9.10.0 and 9.10.1 were wrong.
_FIRST_ATTENTION = 90600
_WRONG_ATTENTION = (91000, 91001)


def _narrow(x: Any) -> Any:
    """What was widened to float32 for lack of a host's bfloat16."""
    node = x.owner
    is_wide = node is not None and isinstance(node.op, GpuCast) and node.op.dtype == "float32"
    return node.inputs[0] if is_wide else x


def _build_attention(cls: type) -> Build:
    def build(op: Any, inputs: list[Any]) -> list[Variable] | None:
        given = dict(zip(op.operands, inputs, strict=True))
        depths = [given[operand].type.shape[3] for operand in ("query", "value")]
        version = cudnn_version()
        if any(depth is not None and depth > MAX_DEPTH for depth in depths):
            return None
        if version < _FIRST_ATTENTION or version in _WRONG_ATTENTION:
            return None
        if op.dropout and "mask" in given and given["mask"].type.dtype != "bool":
            return None  # the gradient by the mask is an expression, with other random numbers
        dtype = given["query"].type.dtype
        if dtype == "float32":
            # Of bfloat16 arrays, everything is float32 on the host's types.
            arrays = [_narrow(given[operand]) for operand in ("query", "key", "value")]
            if any(x.type.dtype != "bfloat16" for x in arrays):
                return None
            for operand, x in given.items():
                is_mask = operand == "mask" and x.type.dtype != "bool"
                if is_mask or operand not in (*OPTIONAL, "stats"):
                    given[operand] = cast(_narrow(x), "bfloat16")
        elif dtype != "float16":
            return None
        made = cls(op.scale, op.is_causal, op.optional, op.dropout).make_node(*given.values())
        if dtype == "float16":
            return made.outputs
        return [cast(out, "float32") for out in made.outputs]

    return build


def _arrays(node: Apply) -> list[int]:
    return [i for i, operand in enumerate(node.op.operands) if operand != "state"]


def _is_narrow(node: Apply) -> bool:
    return node.inputs[0].type.dtype == "float16"


_register(Attention, _build_attention(GpuDnnAttention), _arrays, heavy=_is_narrow)
_register(AttentionGrad, _build_attention(GpuDnnAttentionGrad), _arrays, heavy=_is_narrow)


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

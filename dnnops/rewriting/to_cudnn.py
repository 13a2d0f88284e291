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
from dnnops.cudnn.attention import MAX_DEPTH, GpuDnnAttention, GpuDnnAttentionGrad
from dnnops.cudnn.base import check_cudnn, cudnn_usable, cudnn_version
from dnnops.cudnn.batchnorm import (
    GpuDnnBatchNorm,
    GpuDnnBatchNormGrad,
    GpuDnnBatchNormInference,
    parameter_dtype,
)
from dnnops.cudnn.conv import GpuDnnConv, GpuDnnConvBase, GpuDnnConvGradI, GpuDnnConvGradW
from dnnops.cudnn.cross_entropy import GpuCrossEntropy, GpuCrossEntropyGrad
from dnnops.cudnn.ctc import GpuCTC
from dnnops.cudnn.dropout import GpuDnnDropoutGrad, GpuDnnDropoutOp
from dnnops.cudnn.lrn import GpuDnnLRN, GpuDnnLRNGrad
from dnnops.cudnn.pool import GpuDnnPool, GpuDnnPoolGrad
from dnnops.cudnn.pool_kernels import GpuMaxPoolGradGrad, GpuPool, GpuPoolGrad
from dnnops.cudnn.rnn import GpuDnnRNNBackward, GpuDnnRNNBase, GpuDnnRNNForward
from dnnops.cudnn.softmax import GpuDnnSoftmax, GpuDnnSoftmaxGrad
from dnnops.cudnn.spatial_transformer import (
    GpuTransformerGradI,
    GpuTransformerGradT,
    GpuTransformerGrid,
    GpuTransformerSampler,
)
from dnnops.cudnn.transform import GpuDnnAddTensor
from dnnops.cudnn.window_sum import GpuWindowSum
from dnnops.errors import DnnRequiredError, DnnUnavailableError
from dnnops.gpuarray.transfer import GpuCast, cast
from dnnops.nnet._validate import static_vector
from dnnops.nnet.attention import OPTIONAL, Attention, AttentionGrad
from dnnops.nnet.batchnorm import BatchNormInference, BatchNormTrain, BatchNormTrainGrad
from dnnops.nnet.conv import Conv, ConvGradInputs, ConvGradWeights
from dnnops.nnet.cross_entropy import CrossEntropy, CrossEntropyGrad
from dnnops.nnet.ctc import CTC
from dnnops.nnet.divisive_normalization import DivisiveNormalization, DivisiveNormalizationGrad
from dnnops.nnet.dropout import Dropout, DropoutGrad
from dnnops.nnet.lrn import LRN, LRNGrad
from dnnops.nnet.lrn_base import WindowNormBase, WindowSum
from dnnops.nnet.pool import AveragePoolGrad, MaxPoolGrad, MaxPoolGradGrad, Pool
from dnnops.nnet.pool_geometry import MAX_DETERMINISTIC
from dnnops.nnet.rnn_ops import INT_OPERANDS, RNNBackward, RNNForward
from dnnops.nnet.softmax import LogSoftmaxGrad, SoftmaxGrad, WholeSoftmax
from dnnops.nnet.spatial_transformer import (
    SpatialTransformerGrid,
    SpatialTransformerGridGrad,
    SpatialTransformerSampler,
    SpatialTransformerSamplerGrad,
)
from dnnops.onednn.batchnorm import has_neighboring_statistics
from dnnops.rewriting.inplace import register_gpu_inplace
from dnnops.rewriting.lifters import Operands
from dnnops.rewriting.lifting import (
    LiftContext,
    LiftFunction,
    _graph_device,
    register_expansion,
    register_lifter,
)

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
    mode = MAX_DETERMINISTIC if op.deterministic else "max"
    return [GpuDnnPoolGrad(op.ndim, mode, op.ignore_border)(*inputs)]


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


# -- normalization by windows -----------------------------------------------------------------


@register_lifter(LRN, LRNGrad, tags=("cudnn",), priority=10)
def lift_lrn(node: Apply, inputs: list[Any], context: LiftContext) -> list[Variable] | None:
    """LRN; its gradient takes the output, too, which mostly is there already."""
    op = node.op
    if type(op) not in (LRN, LRNGrad) or not cudnn_usable(context.device)[0]:
        return None
    parameters = (op.n, op.alpha, op.beta, op.k)
    out = context.apply_once(GpuDnnLRN(*parameters), inputs[0])
    if type(op) is LRN:
        return [out]
    x, gy = inputs
    return [GpuDnnLRNGrad(*parameters)(x, out, gy)]


_kernel(WindowSum, lambda op, x: GpuWindowSum(op.n, op.axes, op.backward)(*x), (0,))


@register_expansion(LRN, LRNGrad, DivisiveNormalization, DivisiveNormalizationGrad)
def expand_window_norm(node: Apply, inputs: list[Any]) -> list[Variable]:
    """A normalization that cuDNN does not take, in elementwise Ops and sums over windows."""
    op: WindowNormBase = node.op
    return op.expressions(*inputs)


# -- spatial transformers and the CTC loss ------------------------------------------------------

# By kernels of our own, which know what cuDNN does not: NaN, infinity, a single row or column;
# labels of any length, other dtypes, and labels that infinite activations rule out.


def _register_outputs(
    op_class: type, make: Callable[[Any], Any], operands: tuple[int, ...] | None = None
) -> None:
    _register(op_class, lambda op, inputs: make(op).make_node(*inputs).outputs, operands)


_register_outputs(SpatialTransformerGrid, lambda op: GpuTransformerGrid(), (0,))
_register_outputs(SpatialTransformerGridGrad, lambda op: GpuTransformerGradT())
_register_outputs(SpatialTransformerSampler, lambda op: GpuTransformerSampler())
_register_outputs(SpatialTransformerSamplerGrad, lambda op: GpuTransformerGradI())
_register_outputs(CTC, lambda op: GpuCTC(op.with_gradients, op.with_label_lengths), (0,))


# -- recurrent networks --------------------------------------------------------------------


def _build_rnn(cls: type[GpuDnnRNNBase]) -> Build:
    def build(abstract: Any, inputs: list[Any]) -> Sequence[Variable] | None:
        if inputs[1].type.shape[2] == 0:  # cuDNN has no inputs without elements
            return None
        own = {n: getattr(abstract, n) for n in type(abstract).__props__}
        return cls(**own).make_node(*inputs).outputs

    return build


def _rnn_arrays(node: Apply) -> list[int]:
    names = getattr(node.op, "all_operands", node.op.operands)
    return [i for i, name in enumerate(names) if name not in INT_OPERANDS]


# Both or none: the reserve of one library means nothing to another.
_register(RNNForward, _build_rnn(GpuDnnRNNForward), operands=_rnn_arrays, heavy=True)
_register(RNNBackward, _build_rnn(GpuDnnRNNBackward), operands=_rnn_arrays, heavy=True)


@register_gpu_inplace(GpuDnnRNNBackward)
def inplace_rnn_backward(fgraph: FunctionGraph, node: Apply) -> Op:
    """A gradient may overwrite a reserve that nobody needs after it."""
    names = {n: getattr(node.op, n) for n in node.op.__props__}
    return GpuDnnRNNBackward(**{**names, "inplace": True})


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


# -- batch normalization -------------------------------------------------------------------


def _build_batch_norm(make: Callable[[Any], Any]) -> Build:
    def build(op: Any, inputs: list[Any]) -> list[Variable] | None:
        x = inputs[0]
        if not has_neighboring_statistics(op.axes, x.type.ndim):
            return None
        given = dict(zip(op.operands, inputs, strict=True))
        dtype = given[op.parameter_operands[0]].type.dtype
        wanted = parameter_dtype(x.type.dtype)
        for operand in op.parameter_operands:
            given[operand] = cast(given[operand], wanted)
        results = make(op).make_node(*given.values()).outputs
        return [
            result if is_data else cast(result, dtype)
            for is_data, result in zip(op.data_results, results, strict=True)
        ]

    return build


def _arrays(node: Apply) -> list[int]:
    """The operands of batch normalization that are no scalars."""
    return [i for i, operand in enumerate(node.op.operands) if operand not in node.op.scalars]


for _abstract, _make in (
    (BatchNormTrain, lambda op: GpuDnnBatchNorm("spatial", op.running, axes=op.axes)),
    (BatchNormTrainGrad, lambda op: GpuDnnBatchNormGrad("spatial", axes=op.axes)),
    (BatchNormInference, lambda op: GpuDnnBatchNormInference("spatial", axes=op.axes)),
):
    _register(_abstract, _build_batch_norm(_make), operands=_arrays)


@register_gpu_inplace(GpuDnnBatchNorm, GpuDnnBatchNormGrad, GpuDnnBatchNormInference)
def inplace_batch_norm(fgraph: FunctionGraph, node: Apply) -> Sequence[Op]:
    """Batch normalization may overwrite running averages, and what it normalizes."""
    return node.op.inplace_versions()


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


def _attention_arrays(node: Apply) -> list[int]:
    return [i for i, operand in enumerate(node.op.operands) if operand != "state"]


def _is_narrow(node: Apply) -> bool:
    return node.inputs[0].type.dtype == "float16"


_register(Attention, _build_attention(GpuDnnAttention), _attention_arrays, heavy=_is_narrow)
_register(AttentionGrad, _build_attention(GpuDnnAttentionGrad), _attention_arrays, heavy=_is_narrow)

"""Batch normalization on a GPU: training, its gradient, and inference with given statistics."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any, ClassVar, Self

from pytensor.gradient import disconnected_type
from pytensor.graph.basic import Apply, Variable
from pytensor.tensor import as_tensor_variable

from dnnops.compat import inferred_shapes, shape_inference
from dnnops.dtypes import compute_dtype
from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.gpu.base import (
    TAKES_CHANNELS_LAST,
    TAKES_CONTIGUOUS,
    CudnnOp,
    as_gradient,
    device_operands,
    gradient_like,
)
from dnnops.gpu.library import GPU_KERNELS
from dnnops.gpuarray.op import host_operands, is_on_device
from dnnops.gpuarray.transfer import cast
from dnnops.gpuarray.type import GpuArrayType
from dnnops.nnet.expressions import is_connected
from dnnops.nnet.norm.batchnorm import BatchNormInference, BatchNormTrain, BatchNormTrainGrad
from dnnops.nnet.norm.batchnorm_base import BatchNormBase
from dnnops.nnet.validate import float64_scalar, one_of, switch
from dnnops.runtime.axes import has_neighboring_statistics
from dnnops.runtime.implementations import BuildContext, implements

__all__ = [
    "MODES",
    "GpuDnnBatchNorm",
    "GpuDnnBatchNormBase",
    "GpuDnnBatchNormGrad",
    "GpuDnnBatchNormInference",
    "parameter_dtype",
]

MODES = ("per-activation", "spatial")


def parameter_dtype(dtype: str) -> str:
    """Return the dtype of the parameters: float32 for arrays of a 16-bit dtype, else `dtype`."""
    return compute_dtype(dtype)


def _arrays(node: Apply) -> list[int]:
    """Return the indices of the operands of batch normalization that are not scalars."""
    return [i for i, operand in enumerate(node.op.operands) if operand not in node.op.scalars]


class GpuDnnBatchNormBase(CudnnOp):
    """Base class of batch normalization, its gradient and inference.

    Arrays can have any rank and the dtypes float16, bfloat16, float32 and float64. Parameters have
    the same rank, with size 1 along the axes that statistics are computed over, and the same dtype,
    or float32 for 16-bit arrays.

    With statistics per channel (axis 1), arrays can be contiguous or channels-last in memory, and
    results have the format of `x`. Otherwise, or if `x` has neither format, contiguous copies are
    made.

    Parameters
    ----------
    mode : {'per-activation', 'spatial'}
        Axes that statistics are computed over: the first axis, or all axes but the second.
    axes : tuple of int, optional
        Non-negative axes to use instead of `mode`. The remaining axes must be adjacent.

    Raises
    ------
    DnnTypeError, DnnValueError
        If a parameter is invalid.
    """

    __props__: tuple[str, ...] = ("mode", "axes")
    function = "dnnops_cudnn_batchnorm"
    #: A value of ``BatchNormKind``.
    kind: ClassVar[int]
    abstract_class: ClassVar[type[BatchNormBase]]
    running_averages = False
    #: Bits of ``BatchNormFused``: what else the kernel computes.
    fused = 0

    def __init__(self, mode: str = "per-activation", axes: Sequence[int] | None = None):
        self.mode = one_of(type(self).__name__, "mode", mode, MODES)
        self.axes = None if axes is None else self._make_abstract(axes).axes

    @classmethod
    def from_abstract(cls, op: Any, **others: Any) -> Self:
        return cls("spatial", axes=op.axes, **others)

    @classmethod
    def build(cls, op: Any, inputs: list[Any], context: BuildContext) -> list[Variable] | None:
        x = inputs[0]
        if not has_neighboring_statistics(op.axes, x.type.ndim):
            return None
        given = dict(zip(op.operands, inputs, strict=True))
        dtype = given[op.parameter_operands[0]].type.dtype
        wanted = parameter_dtype(x.type.dtype)
        for operand in op.parameter_operands:
            given[operand] = cast(given[operand], wanted)
        results = cls.from_abstract(op).make_node(*given.values()).outputs
        return [
            result if is_data else cast(result, dtype)
            for is_data, result in zip(op.data_results, results, strict=True)
        ]

    def _make_abstract(self, axes: Sequence[int]) -> Any:
        return self.abstract_class(tuple(axes))

    def abstract_op(self) -> Any:
        """Return the abstract Op that computes the same as a node, whose Op has axes."""
        return self._make_abstract(self.axes)

    def _with_axes(self, ndim: int) -> Self:
        """Return the Op with the axes for arrays of rank `ndim`."""
        if self.axes is not None:
            return self
        of_mode = (0,) if self.mode == "per-activation" else (0, *range(2, ndim))
        return self.replace(axes=of_mode)

    def make_node(self, *inputs: Any) -> Apply:
        name = type(self).__name__
        ndim = getattr(getattr(inputs[0], "type", inputs[0]), "ndim", 0) if inputs else 0
        if not ndim:
            raise DnnTypeError(f"{name}: x must have at least 1 dimension")
        # The C functions need the axes, so make them part of the Op.
        op = self._with_axes(ndim)
        abstract = op.abstract_op()
        if len(inputs) != len(abstract.operands):
            raise DnnTypeError(
                f"{name}: expected the operands {', '.join(abstract.operands)}, "
                f"got {len(inputs)} operands"
            )
        given = dict(zip(abstract.operands, inputs, strict=True))
        data = device_operands(name, ndim, **{o: given[o] for o in abstract.data})
        device = data[0].type.device
        parameters = device_operands(
            name, ndim, **{o: given[o] for o in abstract.parameter_operands}
        )
        given |= dict(zip(abstract.data, data, strict=True))
        given |= dict(zip(abstract.parameter_operands, parameters, strict=True))
        for operand, bounds in abstract.scalars.items():
            given[operand] = float64_scalar(name, operand, given[operand], *bounds)
        dtype = data[0].type.dtype
        wanted = parameter_dtype(dtype)
        if parameters[0].type.dtype != wanted or parameters[0].type.device != device:
            raise DnnTypeError(
                f"{name}: {', '.join(abstract.parameter_operands)} must be {wanted} on "
                f"cuda{device} for x of dtype {dtype}, got {parameters[0].type}"
            )
        shape, parameter_shape = abstract.check_shapes({o: x.type.shape for o, x in given.items()})
        results = [
            GpuArrayType(dtype, shape, device)()
            if is_data
            else GpuArrayType(wanted, parameter_shape, device)()
            for is_data in abstract.data_results
        ]
        return Apply(op, list(given.values()), results)

    def changing_operands(self, node: Apply) -> frozenset[int]:
        """Return the indices of epsilon and of the factor of running averages."""
        return host_operands(node)

    def parameters(self) -> list[int]:
        mask = sum(1 << axis for axis in self.axes or (0,))
        return [mask, int(self.running_averages), self.kind, self.fused]

    def _is_data(self, operand: int) -> bool:
        return operand < len(self.abstract_class.data)

    def _layouts(self, operand: int) -> int:
        axes = self.axes or ()
        of_channels = len(axes) > 1 and axes == (0, *range(2, len(axes) + 1))
        takes_both = of_channels and self._is_data(operand)
        return TAKES_CONTIGUOUS | TAKES_CHANNELS_LAST if takes_both else TAKES_CONTIGUOUS

    def output_format(self, index: int, inputs: list[Any]) -> str:
        dense = index > 0 or inputs[0].flags.c_contiguous
        return "contiguous" if dense else "channels_last"

    def c_output_format(self, index: int) -> str:
        return "DNNOPS_CONTIGUOUS" if index else "dnnops_cudnn_format(&in[0])"

    @shape_inference
    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        return inferred_shapes(self.abstract_op(), node, shapes)

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        return self.abstract_op().connection_pattern(node)

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        # Built from host variables; rewrites move the gradients to the device.
        abstract = self.abstract_op()
        host, results = ([as_tensor_variable(x) for x in xs] for xs in (inputs, outputs))
        gradients = abstract.pullback(
            host, results, [as_tensor_variable(g) if is_connected(g) else g for g in cotangents]
        )
        return _like(gradients, inputs, as_gradient)

    def pushforward(self, inputs: Any, outputs: Any, tangents: Any) -> list[Variable]:
        abstract = self.abstract_op()
        host, results = ([as_tensor_variable(x) for x in xs] for xs in (inputs, outputs))
        moved = [as_tensor_variable(t) if is_connected(t) else t for t in tangents]
        return _like(abstract.pushforward(host, results, moved), outputs, lambda x: x)


def _like(derivatives: Sequence[Any], variables: Sequence[Any], change: Any) -> list[Any]:
    """Move derivatives to the devices and dtypes of their variables, except for host variables."""
    return [
        change(gradient_like(d, v)) if is_connected(d) and is_on_device(v) else d
        for d, v in zip(derivatives, variables, strict=True)
    ]


@implements(BatchNormTrain, on=GPU_KERNELS, operands=_arrays)
class GpuDnnBatchNorm(GpuDnnBatchNormBase):
    """`BatchNormTrain` on a GPU: normalize with the mean and variance of the batch.

    ``GpuDnnBatchNorm(mode)(x, scale, bias, epsilon=1e-4)`` returns ``out``, ``mean`` and
    ``invstd``. ``GpuDnnBatchNorm(mode, running_averages=True)(x, scale, bias, epsilon=1e-4,
    running_average_factor=0.1, running_mean, running_var)`` also returns the new running averages.

    Parameters
    ----------
    mode, axes
        See `GpuDnnBatchNormBase`.
    running_averages : bool
        Whether the Op takes and returns running averages.
    inplace_running_mean, inplace_running_var : bool
        Whether the new running average overwrites the old one.
    inplace_output : bool
        Whether ``out`` overwrites `x`.

    Notes
    -----
    A rewrite makes Ops work in place if nothing else needs the values that they overwrite.
    """

    __props__ = (
        "mode",
        "running_averages",
        "inplace_running_mean",
        "inplace_running_var",
        "inplace_output",
        "axes",
    )
    kind = 0
    abstract_class = BatchNormTrain

    def __init__(
        self,
        mode: str = "per-activation",
        running_averages: bool = False,
        inplace_running_mean: bool = False,
        inplace_running_var: bool = False,
        inplace_output: bool = False,
        axes: Sequence[int] | None = None,
    ):
        where = type(self).__name__
        self.running_averages = switch(where, "running_averages", running_averages)
        inplace_mean = switch(where, "inplace_running_mean", inplace_running_mean)
        inplace_var = switch(where, "inplace_running_var", inplace_running_var)
        self.inplace_running_mean = inplace_mean and self.running_averages
        self.inplace_running_var = inplace_var and self.running_averages
        self.inplace_output = switch(where, "inplace_output", inplace_output)
        super().__init__(mode, axes)
        overwritten = {
            0: (0, self.inplace_output),
            3: (5, self.inplace_running_mean),
            4: (6, self.inplace_running_var),
        }
        self.destroy_map = {k: [i] for k, (i, wanted) in overwritten.items() if wanted}

    def make_node(  # type: ignore[override]
        self,
        x: Any,
        scale: Any,
        bias: Any,
        epsilon: Any = 1e-4,
        running_average_factor: Any = 0.1,
        running_mean: Any = None,
        running_var: Any = None,
    ) -> Apply:
        averages = [running_mean, running_var]
        if any((average is not None) != self.running_averages for average in averages):
            wanted = "must both be given" if self.running_averages else "must not be given"
            raise DnnValueError(
                f"{type(self).__name__}: with running_averages={self.running_averages},"
                f" running_mean and running_var {wanted}"
            )
        more = [running_average_factor, *averages] if self.running_averages else []
        return super().make_node(x, scale, bias, epsilon, *more)

    @classmethod
    def from_abstract(cls, op: Any, **others: Any) -> Self:
        return super().from_abstract(op, running_averages=op.running, **others)

    def _make_abstract(self, axes: Sequence[int]) -> Any:
        return BatchNormTrain(tuple(axes), self.running_averages)

    def inplace_versions(self) -> list[GpuDnnBatchNorm]:
        """Return all in-place versions of this Op, in descending order of overwritten operands."""
        averages = (True, False) if self.running_averages else (False,)
        flags = [flag for flag in product(averages, averages, (True, False)) if any(flag)]
        flags.sort(key=lambda flag: -sum(flag))
        names = ("inplace_running_mean", "inplace_running_var", "inplace_output")
        return [self.replace(**dict(zip(names, flag, strict=True))) for flag in flags]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        gout, *others = cotangents
        if not is_connected(gout) or any(is_connected(g) for g in others):
            return super().pullback(inputs, outputs, cotangents)
        x, scale, _, _ = inputs[:4]
        _, mean, invstd = outputs[:3]
        op = GpuDnnBatchNormGrad(self.mode, axes=self.axes)
        dx, dscale, dbias = op(x, gradient_like(gout, x), scale, mean, invstd)
        products = [as_tensor_variable(a).astype("float64") for a in (dscale, scale, invstd)]
        depsilon = -0.5 * (products[0] * products[1] * products[2] ** 2).sum()
        rest = [disconnected_type() for _ in inputs[4:]]
        return [*map(as_gradient, (dx, dscale, dbias)), depsilon, *rest]


class _InplaceBatchNorm(GpuDnnBatchNormBase):
    """Base class of batch normalization Ops that can overwrite one operand."""

    __props__ = ("mode", "inplace", "axes")
    #: Index of the operand that the first result overwrites in place.
    overwritten: ClassVar[int]

    def __init__(
        self,
        mode: str = "per-activation",
        inplace: bool = False,
        axes: Sequence[int] | None = None,
    ):
        super().__init__(mode, axes)
        self.inplace = switch(type(self).__name__, "inplace", inplace)
        self.destroy_map = {0: [self.overwritten]} if self.inplace else {}


@implements(BatchNormTrainGrad, on=GPU_KERNELS, operands=_arrays)
class GpuDnnBatchNormGrad(_InplaceBatchNorm):
    """`BatchNormTrainGrad` on a GPU, called as ``op(x, gout, scale, mean, invstd)``.

    Returns the gradients with respect to x, scale and bias. For compatibility with Theano, a sixth
    operand, epsilon, is accepted and ignored.

    Parameters
    ----------
    mode, axes
        See `GpuDnnBatchNormBase`.
    inplace : bool
        Whether the gradient with respect to x overwrites `gout`.
    """

    kind = 1
    overwritten = 1
    matched_operands = (1,)
    abstract_class = BatchNormTrainGrad

    def make_node(  # type: ignore[override]
        self, x: Any, dy: Any, scale: Any, x_mean: Any, x_invstd: Any, epsilon: Any = None
    ) -> Apply:
        # Theano passes an epsilon, which x_invstd already includes.
        return super().make_node(x, dy, scale, x_mean, x_invstd)


@implements(BatchNormInference, on=GPU_KERNELS, operands=_arrays)
class GpuDnnBatchNormInference(_InplaceBatchNorm):
    """`BatchNormInference` on a GPU, called as ``op(x, scale, bias, mean, var, epsilon=1e-4)``.

    Parameters
    ----------
    mode, axes
        See `GpuDnnBatchNormBase`.
    inplace : bool
        Whether the result overwrites `x`.
    """

    kind = 2
    overwritten = 0
    abstract_class = BatchNormInference

    def make_node(  # type: ignore[override]
        self,
        x: Any,
        scale: Any,
        bias: Any,
        estimated_mean: Any,
        estimated_variance: Any,
        epsilon: Any = 1e-4,
    ) -> Apply:
        return super().make_node(x, scale, bias, estimated_mean, estimated_variance, epsilon)

"""Batch normalization on a GPU with relu and the sum with another array in the same kernel.

`dnnops.rewriting.fuse.batchnorm_activation` inserts these Ops. In order of their operands and
results, they take those of the Ops in `dnnops.gpu.batchnorm`, followed by those that fusion adds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytensor.tensor as pt
from pytensor.graph.basic import Apply
from pytensor.graph.op import io_connection_pattern
from pytensor.tensor import as_tensor_variable

from dnnops.compat import shape_inference
from dnnops.errors import DnnTypeError
from dnnops.gpu.base import device_operands
from dnnops.gpu.batchnorm import (
    GpuDnnBatchNorm,
    GpuDnnBatchNormBase,
    GpuDnnBatchNormGrad,
    GpuDnnBatchNormInference,
)
from dnnops.gpu.derivatives import GpuExpressionOp
from dnnops.gpuarray.type import GpuArrayType
from dnnops.nnet.activation.op import Activation
from dnnops.nnet.validate import accumulator_dtype, merge_shapes, switch

__all__ = [
    "GpuDnnBatchNormActivation",
    "GpuDnnBatchNormActivationGrad",
    "GpuDnnBatchNormActivationInference",
]

# ``BatchNormFused`` in the kernels.
_RELU, _ADDEND, _SLOPE_AT_ZERO, _SLOPE_AT_NAN = 1, 2, 4, 8


class _Fused(GpuExpressionOp, GpuDnnBatchNormBase):
    """Base class of the Ops in this module, to precede the Op that it extends.

    Derivatives are those of the expressions, without fusion.
    """

    # The array that is read along with x must have its memory format.
    matched_operands: tuple[int, ...] = ()
    #: Indices of results of the shape of x.
    data_results: tuple[int, ...] = (0,)

    @shape_inference
    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        of_parameters = tuple([1 if i in self.axes else n for i, n in enumerate(shapes[0])])
        results = range(len(node.outputs))
        return [shapes[0] if i in self.data_results else of_parameters for i in results]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        own = [as_tensor_variable(x.type()) for x in node.inputs]
        return io_connection_pattern(own, self._expressions(*own))

    def _is_data(self, operand: int) -> bool:
        return operand in (0, *self.matched_operands)


class _Forward(_Fused):
    """Base class of training and inference."""

    def _set_fused(self, relu: bool, addend: bool, operands: int) -> None:
        name = type(self).__name__
        self.relu, self.addend = switch(name, "relu", relu), switch(name, "addend", addend)
        self.fused = _RELU * self.relu | _ADDEND * self.addend
        self.matched_operands = (operands,) if self.addend else ()

    #: Whether the last result is the offsets for the gradient.
    returns_offsets = False

    def make_node(self, *inputs: Any) -> Apply:  # type: ignore[override]
        name = type(self).__name__
        if len(inputs) <= self.addend:
            raise DnnTypeError(f"{name}: expected more operands than {len(inputs)}")
        plain = super().make_node(*inputs[: len(inputs) - self.addend])
        operands, types = list(plain.inputs), [z.type for z in plain.outputs]
        x = operands[0]
        if self.addend:
            _, addend = device_operands(name, x.type.ndim, x=x, addend=inputs[-1])
            operands.append(addend)
            shape = merge_shapes(name, x=types[0].shape, addend=addend.type.shape)
            types[0] = GpuArrayType(x.type.dtype, shape, x.type.device)
        if self.returns_offsets:
            types.append(types[1])
        return Apply(plain.op, operands, [t() for t in types])

    def _expressions(self, *inputs: Any) -> list[Any]:
        plain = inputs[: len(inputs) - self.addend]
        out, *others = self.abstract_op()(*plain, return_list=True)
        if self.addend:
            out += inputs[-1]
        if self.relu:
            (out,) = Activation("relu").expressions(out)
        return [out, *others]


class GpuDnnBatchNormActivation(_Forward, GpuDnnBatchNorm):
    """`GpuDnnBatchNorm`, the sum of its result and another array, and relu of that.

    With an addend, it is the last operand. With relu but no addend, the last result is the offsets
    that `GpuDnnBatchNormActivationGrad` takes: the bias, less what rounding the mean has changed.

    Parameters
    ----------
    mode, running_averages, inplace_running_mean, inplace_running_var, inplace_output, axes
        See `GpuDnnBatchNorm`.
    relu : bool
        Whether to apply relu, which propagates NaN.
    addend : bool
        Whether there is an addend of the shape and dtype of `x`.
    """

    __props__ = (*GpuDnnBatchNorm.__props__, "relu", "addend")

    def __init__(
        self,
        mode: str = "per-activation",
        running_averages: bool = False,
        inplace_running_mean: bool = False,
        inplace_running_var: bool = False,
        inplace_output: bool = False,
        axes: Sequence[int] | None = None,
        relu: bool = True,
        addend: bool = False,
    ):
        GpuDnnBatchNorm.__init__(
            self,
            mode,
            running_averages,
            inplace_running_mean,
            inplace_running_var,
            inplace_output,
            axes,
        )
        self._set_fused(relu, addend, 7 if self.running_averages else 4)

    @property
    def returns_offsets(self) -> bool:  # type: ignore[override]
        return self.relu and not self.addend

    def _expressions(self, *inputs: Any) -> list[Any]:
        results = super()._expressions(*inputs)
        return [*results, inputs[2]] if self.returns_offsets else results


class GpuDnnBatchNormActivationInference(_Forward, GpuDnnBatchNormInference):
    """`GpuDnnBatchNormInference`, the sum of its result and another array, and relu of that.

    With an addend, it is the last operand.

    Parameters
    ----------
    mode, inplace, axes
        See `GpuDnnBatchNormInference`.
    relu, addend
        See `GpuDnnBatchNormActivation`.
    """

    __props__ = (*GpuDnnBatchNormInference.__props__, "relu", "addend")

    def __init__(
        self,
        mode: str = "per-activation",
        inplace: bool = False,
        axes: Sequence[int] | None = None,
        relu: bool = True,
        addend: bool = False,
    ):
        GpuDnnBatchNormInference.__init__(self, mode, inplace, axes)
        self._set_fused(relu, addend, 6)


class GpuDnnBatchNormActivationGrad(_Fused, GpuDnnBatchNormGrad):
    """`GpuDnnBatchNormGrad` behind relu: ``op(x, gout, scale, mean, invstd, offset)``.

    `gout` is the gradient with respect to the result of relu. `mean`, `invstd` and `offset` are
    results of `GpuDnnBatchNormActivation`. With them, the Op computes the normalized data again,
    with the same bits.

    With an addend, ``op(x, gout, scale, mean, invstd, out)`` gets the result of relu instead of the
    offsets, and the last result is the gradient with respect to the addend.

    Parameters
    ----------
    mode, axes
        See `GpuDnnBatchNormGrad`.
    inplace : bool
        Whether a gradient overwrites `gout`: that with respect to the addend or, without an addend,
        to x.
    slope_at_zero, slope_at_nan : bool
        Whether relu has the slope 1 rather than 0 at zero and at NaN. The defaults are those of
        `dnnops.nnet.relu`.
    addend : bool
        Whether relu was applied to a sum with another array.
    inplace_x : bool
        With an addend, whether the gradient with respect to x overwrites `x`.
    """

    __props__ = (
        *GpuDnnBatchNormGrad.__props__,
        "slope_at_zero",
        "slope_at_nan",
        "addend",
        "inplace_x",
    )

    def __init__(
        self,
        mode: str = "per-activation",
        inplace: bool = False,
        axes: Sequence[int] | None = None,
        slope_at_zero: bool = False,
        slope_at_nan: bool = True,
        addend: bool = False,
        inplace_x: bool = False,
    ):
        GpuDnnBatchNormGrad.__init__(self, mode, inplace, axes)
        name = type(self).__name__
        self.slope_at_zero = switch(name, "slope_at_zero", slope_at_zero)
        self.slope_at_nan = switch(name, "slope_at_nan", slope_at_nan)
        self.addend = switch(name, "addend", addend)
        at = _SLOPE_AT_ZERO * self.slope_at_zero | _SLOPE_AT_NAN * self.slope_at_nan
        self.fused = _RELU | _ADDEND * self.addend | at
        self.matched_operands = (1,)
        self.inplace_x = self.addend and switch(name, "inplace_x", inplace_x)
        if self.addend:
            self.matched_operands, self.data_results = (1, 5), (0, 3)
            overwritten = {3: (1, self.inplace), 0: (0, self.inplace_x)}
            self.destroy_map = {k: [i] for k, (i, wanted) in overwritten.items() if wanted}

    def inplace_versions(self) -> list[GpuDnnBatchNormActivationGrad]:
        """Return all in-place versions of this Op, in descending order of overwritten operands."""
        flags = [(True, True), (True, False), (False, True)] if self.addend else [(True, False)]
        return [self.replace(inplace=gout, inplace_x=x) for gout, x in flags]

    def make_node(  # type: ignore[override]
        self, x: Any, dy: Any, scale: Any, x_mean: Any, x_invstd: Any, last: Any
    ) -> Apply:
        plain = super().make_node(x, dy, scale, x_mean, x_invstd)
        x, scale = plain.inputs[0], plain.inputs[2]
        name, types = type(self).__name__, [z.type for z in plain.outputs]
        if self.addend:
            _, last = device_operands(name, x.type.ndim, x=x, out=last)
            shape = merge_shapes(name, x=types[0].shape, out=last.type.shape)
            types[0] = GpuArrayType(x.type.dtype, shape, x.type.device)
            types.append(types[0])
        else:
            _, last = device_operands(name, scale.type.ndim, scale=scale, offset=last)
            merge_shapes(name, scale=types[1].shape, offset=last.type.shape)
        return Apply(plain.op, [*plain.inputs, last], [t() for t in types])

    def output_format(self, index: int, inputs: list[Any]) -> str:
        return super().output_format(0 if index in self.data_results else index, inputs)

    def c_output_format(self, index: int) -> str:
        return super().c_output_format(0 if index in self.data_results else index)

    def _expressions(self, *inputs: Any) -> list[Any]:
        x, gout, scale, mean, invstd, last = inputs
        wide = accumulator_dtype(x.type.dtype).name
        scale, mean, invstd = (
            pt.specify_broadcastable(p, *self.axes) for p in (scale, mean, invstd)
        )
        y = last
        if not self.addend:
            offset = pt.specify_broadcastable(last, *self.axes)
            y = (pt.cast(x, wide) - mean) * (scale * invstd) + offset
            y = pt.cast(y, x.type.dtype)
        has_slope = y >= 0 if self.slope_at_zero else y > 0
        if self.slope_at_nan:
            has_slope = has_slope | pt.isnan(y)
        masked = pt.switch(has_slope, gout, pt.zeros_like(gout))
        results = self.abstract_op()(x, masked, scale, mean, invstd, return_list=True)
        return [*results, masked] if self.addend else results

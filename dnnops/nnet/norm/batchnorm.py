"""Batch normalization for training and inference, and the gradient for training.

The Ops in this module define the computation and run in NumPy. Rewrites replace them with Ops that
call a library. The output is ``(x - mean) * invstd * scale + bias``, where ``invstd`` is
``1 / sqrt(var + epsilon)``. In training, the mean and the biased variance are computed over `axes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import pytensor.tensor as pt
from numpy.exceptions import AxisError
from numpy.lib.array_utils import normalize_axis_tuple
from pytensor.gradient import disconnected_type
from pytensor.graph.basic import Apply, Variable
from pytensor.tensor.variable import TensorVariable

from dnnops.arguments import shown, switch
from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.nnet.expressions import is_connected
from dnnops.nnet.norm.batchnorm_base import BatchNormBase
from dnnops.nnet.operands import real_operands
from dnnops.nnet.validate import (
    float64_scalar,
    is_int,
    show_shape,
)

__all__ = [
    "BatchNormInference",
    "BatchNormTrain",
    "BatchNormTrainGrad",
    "batch_normalization_test",
    "batch_normalization_train",
]


def _store(node: Apply, output_storage: Any, results: Sequence[np.ndarray]) -> None:
    for output, storage, result in zip(node.outputs, output_storage, results, strict=True):
        storage[0] = np.asarray(result, dtype=output.type.dtype)


class BatchNormTrain(BatchNormBase):
    """Normalize a batch with its own statistics.

    ``BatchNormTrain(axes)(x, scale, bias, epsilon)`` returns ``out``, ``mean`` and ``invstd``.
    ``BatchNormTrain(axes, running=True)(x, scale, bias, epsilon, factor, running_mean,
    running_var)`` also returns the new running mean and the new running variance, which is updated
    with the unbiased variance. All results but ``out`` have the shape and dtype of the parameters.

    Parameters
    ----------
    axes : tuple of int
        Axes to compute the statistics over, as for `BatchNormBase`.
    running : bool
        Whether to update running averages.
    """

    __props__ = ("axes", "running")

    def __init__(self, axes: Sequence[int], running: bool = False):
        super().__init__(axes)
        self.running = switch(type(self).__name__, "running", running)
        averages = ("running_mean", "running_var") if self.running else ()
        self.parameter_operands = ("scale", "bias", *averages)
        self.scalars = {"epsilon": (0.0, np.inf)}
        self.operands = ("x", "scale", "bias", "epsilon")
        self.data_results = (True, False, False)
        if self.running:
            self.scalars["factor"] = (0.0, 1.0)
            self.operands = (*self.operands, "factor", *averages)
            self.data_results = (*self.data_results, False, False)

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        influenced = {
            "x": (0, 1, 2, 3, 4),
            "scale": (0,),
            "bias": (0,),
            "epsilon": (0, 2),
            "factor": (3, 4),
            "running_mean": (3,),
            "running_var": (4,),
        }
        return [[k in influenced[o] for k in range(len(node.outputs))] for o in self.operands]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        x, scale = inputs[:2]
        _, mean, invstd = outputs[:3]
        gout, *others = cotangents
        gradients: list[Any] = [disconnected_type() for _ in inputs]
        if any(is_connected(g) for g in others):
            gradients = super().pullback(inputs, outputs, [disconnected_type(), *others])
        if is_connected(gout):
            op: Any = BatchNormTrainGrad(self.axes)
            dx, dscale, dbias = op(x, gout, scale, mean, invstd)
            depsilon = -0.5 * (pt.cast(dscale, "float64") * scale * invstd * invstd).sum()
            for i, term in enumerate((dx, dscale, dbias, depsilon)):
                gradients[i] = gradients[i] + term if is_connected(gradients[i]) else term
        return gradients

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        x, scale, bias, epsilon, *running = self._arrays(inputs)
        count = prod(x.shape[axis] for axis in self.axes)
        if count == 0:
            raise DnnValueError(
                f"{type(self).__name__}: there are no elements to take statistics of: x "
                f"{show_shape(x.shape)}, axes {self.axes}"
            )
        mean = self._sum(x) / count
        centered = x - mean
        var = self._sum(centered**2) / count
        invstd = 1 / np.sqrt(var + epsilon)
        results = [centered * (invstd * scale) + bias, mean, invstd]
        if self.running:
            factor, running_mean, running_var = running
            unbiased = var * (count / max(count - 1, 1))
            results.append(running_mean * (1 - factor) + mean * factor)
            results.append(running_var * (1 - factor) + unbiased * factor)
        _store(node, output_storage, results)

    def _expressions(self, *inputs: Any) -> list[Any]:
        x, scale, bias, epsilon, *running = self._variables(inputs)
        dtype, parameter_dtype = inputs[0].type.dtype, inputs[1].type.dtype
        count = self._count(x)
        mean = self._sum(x) / count
        centered = x - mean
        # Not `centered**2`, because its pushforward computes the logarithm of `centered`.
        var = self._sum(pt.sqr(centered)) / count
        invstd = 1 / pt.sqrt(var + epsilon)
        results = [mean, invstd]
        if self.running:
            factor, running_mean, running_var = running
            unbiased = var * (count / pt.maximum(count - 1, 1))
            results.append(running_mean * (1 - factor) + mean * factor)
            results.append(running_var * (1 - factor) + unbiased * factor)
        out = centered * (invstd * scale) + bias
        return [pt.cast(out, dtype), *(pt.cast(result, parameter_dtype) for result in results)]


class BatchNormTrainGrad(BatchNormBase):
    """Compute the gradients of the output of `BatchNormTrain`.

    ``BatchNormTrainGrad(axes)(x, gout, scale, mean, invstd)`` returns the gradients with respect to
    ``x``, ``scale`` and ``bias``. `gout` is the gradient with respect to ``out``; `mean` and
    `invstd` are results of `BatchNormTrain`. After `mean` has been subtracted from `x`, the mean of
    the differences is subtracted as well, which corrects the rounding error of `mean`.
    """

    data = ("x", "gout")
    parameter_operands = ("scale", "mean", "invstd")
    operands = ("x", "gout", "scale", "mean", "invstd")
    data_results = (True, False, False)

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        return [
            [True, True, False],
            [True, True, True],
            [True, False, False],
            [True, True, False],
            [True, True, False],
        ]

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        x, gout, scale, mean, invstd = self._arrays(inputs)
        # Without elements, the sums are zero and dx is empty.
        count = max(prod(x.shape[axis] for axis in self.axes), 1)
        centered = x - mean
        normalized = (centered - self._sum(centered) / count) * invstd
        dbias = self._sum(gout)
        dscale = self._sum(gout * normalized)
        dx = (gout - dbias / count - normalized * (dscale / count)) * (scale * invstd)
        _store(node, output_storage, [dx, dscale, dbias])

    def _expressions(self, *inputs: Any) -> list[Any]:
        x, gout, scale, mean, invstd = self._variables(inputs)
        dtype, parameter_dtype = inputs[0].type.dtype, inputs[2].type.dtype
        count = self._count(x)
        centered = x - mean
        normalized = (centered - self._sum(centered) / count) * invstd
        dbias = self._sum(gout)
        dscale = self._sum(gout * normalized)
        dx = (gout - dbias / count - normalized * (dscale / count)) * (scale * invstd)
        return [
            pt.cast(dx, dtype),
            pt.cast(dscale, parameter_dtype),
            pt.cast(dbias, parameter_dtype),
        ]


class BatchNormInference(BatchNormBase):
    """Normalize with given statistics.

    ``BatchNormInference(axes)(x, scale, bias, mean, var, epsilon)`` computes
    ``(x - mean) / sqrt(var + epsilon) * scale + bias``.
    """

    parameter_operands = ("scale", "bias", "mean", "var")
    scalars = {"epsilon": (0.0, np.inf)}  # noqa: RUF012 - replaced, never altered
    operands = ("x", "scale", "bias", "mean", "var", "epsilon")
    data_results = (True,)

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        x, scale, bias, mean, var, epsilon = self._arrays(inputs)
        out = (x - mean) * (scale / np.sqrt(var + epsilon)) + bias
        _store(node, output_storage, [out])

    def _expressions(self, *inputs: Any) -> list[Any]:
        x, scale, bias, mean, var, epsilon = self._variables(inputs)
        out = (x - mean) * (scale / pt.sqrt(var + epsilon)) + bias
        return [pt.cast(out, inputs[0].type.dtype)]


def _axes(where: str, axes: Any, ndim: int) -> tuple[int, ...]:
    """Return the canonical form of an `axes` argument for an input with `ndim` dimensions."""
    if isinstance(axes, str) and axes == "per-activation":
        return (0,)
    if isinstance(axes, str) and axes == "spatial":
        return (0, *range(2, ndim))
    if isinstance(axes, np.ndarray) and axes.ndim == 1:
        axes = axes.tolist()
    if not isinstance(axes, (tuple, list)) or not all(is_int(a) for a in axes):
        raise DnnTypeError(
            f"{where}: axes must be 'per-activation', 'spatial' or a tuple of ints, got"
            f" {shown(axes)}"
        )
    try:
        canonical = tuple(sorted(normalize_axis_tuple(axes, ndim)))
    except (AxisError, ValueError, OverflowError) as error:
        raise DnnValueError(
            f"{where}: axes {axes!r} do not fit {ndim} dimensions of inputs: {error}"
        ) from error
    if not canonical:
        raise DnnValueError(f"{where}: axes must not be empty")
    return canonical


def check_sizes(where: str, name: str, parameter: Any, inputs: Any, axes: tuple[int, ...]) -> None:
    """Raise DnnValueError if the static shape of a parameter does not match that of `inputs`."""
    wanted = [1 if i in axes else size for i, size in enumerate(inputs.type.shape)]
    if any(
        None not in (a, b) and a != b for a, b in zip(parameter.type.shape, wanted, strict=True)
    ):
        raise DnnValueError(
            f"{where}: {name} must have size 1 on the axes {axes} and the sizes of inputs on the"
            f" others, got {name} {show_shape(parameter.type.shape)}, inputs"
            f" {show_shape(inputs.type.shape)}"
        )


def _operands(
    where: str, axes: Any, operands: dict[str, TensorVariable]
) -> tuple[TensorVariable, tuple[int, ...], list[TensorVariable]]:
    """Return the input, the axes, and the parameters with as many dimensions as the input.

    All are cast to the widest of their dtypes, but a float16 input with float32 parameters keeps
    its dtype.
    """
    given = dict(operands)
    x = given.pop("inputs")
    ndim = x.type.ndim
    if ndim == 0:
        raise DnnTypeError(f"{where}: inputs must have at least 1 dimension, got a scalar")
    canonical = _axes(where, axes, ndim)
    x, given = _widened(x, given)
    padded = []
    for name, parameter in given.items():
        if parameter.type.ndim == ndim - len(canonical):
            parameter = pt.expand_dims(parameter, canonical)
        elif parameter.type.ndim != ndim:
            raise DnnTypeError(
                f"{where}: {name} must have {ndim} dimensions, or "
                f"{ndim - len(canonical)} without the axes {canonical}, if inputs have {ndim}; "
                f"got {parameter.type.ndim}"
            )
        check_sizes(where, name, parameter, x, canonical)
        padded.append(parameter)
    return x, canonical, padded


def _widened(
    x: TensorVariable, parameters: dict[str, TensorVariable]
) -> tuple[TensorVariable, dict[str, TensorVariable]]:
    """Cast an input and its parameters to the widest dtypes that the Ops accept together."""
    wanted = np.result_type(*(p.type.dtype for p in parameters.values()))
    dtype = np.result_type(x.type.dtype, wanted)
    if x.type.dtype == "float16" and wanted == np.float32:
        dtype = np.dtype("float16")
    else:
        wanted = dtype
    return pt.cast(x, dtype.name), {n: pt.cast(p, wanted.name) for n, p in parameters.items()}


def like_parameter(result: Any, axes: Sequence[int], parameter: Any) -> Any:
    """Drop the reduced axes from a result if its parameter does not have them."""
    ndim = result.type.ndim
    if parameter.type.ndim == ndim:
        return result
    return result.dimshuffle([axis for axis in range(ndim) if axis not in axes])


def batch_normalization_train(
    inputs: Any,
    gamma: Any,
    beta: Any,
    axes: Any = "per-activation",
    epsilon: Any = 1e-4,
    running_average_factor: Any = 0.1,
    running_mean: Any = None,
    running_var: Any = None,
) -> tuple[Variable, ...]:
    """Normalize a batch with its own mean and variance.

    Parameters
    ----------
    inputs : tensor_like
        Batch with one or more dimensions, in float16, float32 or float64. Lists and integers, also
        as parameters, get the dtype of the other operands. If all operands are integers, they are
        converted to float32 if they have at most 16 bits, and to float64 otherwise.
    gamma, beta : tensor_like
        Scale and bias. They have as many dimensions as `inputs`, with size 1 on `axes`, or lack
        these axes; for 'spatial', they can be vectors. The computation uses the widest dtype of
        `inputs` and all parameters, but float16 `inputs` with float32 parameters stay float16.
    axes : {'per-activation', 'spatial'} or tuple of int
        Axes to compute the mean and the variance over. 'per-activation' is the first axis,
        'spatial' is all axes but the second. The ints of a tuple may be negative.
    epsilon : number or scalar variable
        Constant added to the variance.
    running_average_factor : number or scalar variable
        Weight of this batch in the new running averages, from 0 to 1.
    running_mean, running_var : tensor_like, optional
        Current running averages, with a shape as described for `gamma`.

    Returns
    -------
    out : TensorVariable
        ``(inputs - mean) * invstd * gamma + beta``, with the shape of `inputs`.
    mean, invstd : TensorVariable
        The mean and ``1 / sqrt(var + epsilon)``, where ``var`` is the biased variance. They have
        the dtype of the parameters and the same axes as `gamma`.
    new_running_mean, new_running_var : TensorVariable
        The new running averages, with the same axes as the given ones. Each is the old average
        times ``1 - running_average_factor``, plus `running_average_factor` times the mean or the
        unbiased variance of the batch. The variance of a single element counts as 0. Only returned
        if running averages were given.

    Raises
    ------
    DnnTypeError
        If a dtype or rank is invalid.
    DnnValueError
        If the axes are invalid, the shapes don't match, `epsilon` is negative or not finite,
        `running_average_factor` is not between 0 and 1, or only one of the running averages is
        given. When the function runs, if `inputs` has no elements.

    Notes
    -----
    A shared vector accepts a new running average as its update. A shared variable with as many
    dimensions as `inputs` does so only if its static shape is 1 on `axes`; for 'spatial' and
    images, create it with ``pytensor.shared(array, shape=(1, None, 1, 1))``. Shared variables of
    `dnnops.gpuarray` don't need this.

    If the mean is many times the standard deviation, its rounding error would affect the gradient
    with respect to `gamma`, as it does in other libraries. The gradient corrects this error.

    PyTensor's default linker, Numba, does not support float16.

    References
    ----------
    Ioffe and Szegedy, Batch Normalization: Accelerating Deep Network Training by Reducing Internal
    Covariate Shift (2015).
    """
    where = "batch_normalization_train"
    if (running_mean is None) != (running_var is None):
        missing = "running_mean" if running_mean is None else "running_var"
        raise DnnValueError(
            f"{where}: running_mean and running_var must be given together, {missing} is missing"
        )
    parameters = {"gamma": gamma, "beta": beta}
    running = running_mean is not None
    if running:
        parameters |= {"running_mean": running_mean, "running_var": running_var}
    given = real_operands(where, inputs=inputs, **parameters)
    x, canonical, padded = _operands(where, axes, given)
    scalars = [float64_scalar(where, "epsilon", epsilon, 0.0)]
    factor = float64_scalar(
        where, "running_average_factor", running_average_factor, minimum=0.0, maximum=1.0
    )
    if running:
        scalars.append(factor)
    op = BatchNormTrain(canonical, running)
    out, *results = op.make_node(x, *padded[:2], *scalars, *padded[2:]).outputs
    _, first, _, *averages = given.values()
    like = (first, first, *averages)
    return (
        out,
        *(like_parameter(z, canonical, p) for z, p in zip(results, like, strict=True)),
    )


def batch_normalization_test(
    inputs: Any,
    gamma: Any,
    beta: Any,
    mean: Any,
    var: Any,
    axes: Any = "per-activation",
    epsilon: Any = 1e-4,
) -> TensorVariable:
    """Normalize with a given mean and variance, such as the running averages of training.

    Parameters
    ----------
    inputs, gamma, beta, axes, epsilon
        See `batch_normalization_train`.
    mean, var : tensor_like
        Mean and variance, with a shape as described for `gamma`.

    Returns
    -------
    TensorVariable
        ``(inputs - mean) / sqrt(var + epsilon) * gamma + beta``, with the shape of `inputs`.

    Raises
    ------
    DnnTypeError
        If a dtype or rank is invalid.
    DnnValueError
        If the axes are invalid, the shapes don't match, or `epsilon` is negative or not finite.
    """
    where = "batch_normalization_test"
    given = real_operands(where, inputs=inputs, gamma=gamma, beta=beta, mean=mean, var=var)
    x, canonical, padded = _operands(where, axes, given)
    op: Any = BatchNormInference(canonical)
    return op(x, *padded, float64_scalar(where, "epsilon", epsilon, 0.0))

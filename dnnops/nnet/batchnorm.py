"""Batch normalization: in training, its gradient, and with given statistics.

The Ops here say what is computed and run in plain NumPy; rewrites replace them by Ops that call a
library.  Mean and variance are taken over `axes`; with the biased variance, and `invstd` for
``1 / sqrt(var + epsilon)``, the output is ``(x - mean) * invstd * scale + bias``.
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
from dnnops.nnet._validate import (
    as_floating,
    float64_scalar,
    is_int,
    show_shape,
)
from dnnops.nnet.batchnorm_base import BatchNormBase
from dnnops.nnet.expressions import is_connected

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
    """Batch normalization by the batch's own statistics.

    ``BatchNormTrain(axes)(x, scale, bias, epsilon)`` gives ``out``, ``mean`` and ``invstd``;
    ``BatchNormTrain(axes, running=True)(x, scale, bias, epsilon, factor, running_mean,
    running_var)`` moreover the new running averages, of which the variance is the unbiased one.
    All but ``out`` have the parameters' shape and dtype.

    Parameters
    ----------
    axes : tuple of int
        As for `BatchNormBase`.
    running : bool
        Whether there are running averages.
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
        # Not `centered**2`: its pushforward takes the logarithm, for the constant exponent.
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
    """The gradient of `BatchNormTrain`'s ``out``.

    ``BatchNormTrainGrad(axes)(x, gout, scale, mean, invstd)`` gives the gradients by ``x``,
    ``scale`` and ``bias``: `gout` is the one by ``out``, and `mean` and `invstd` are what
    `BatchNormTrain` gave.  What rounding took of the mean is made good: values are counted from
    `mean`, and then from their own mean.
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
        # Without elements the sums are zero, and there is no dx.
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
    """Batch normalization by given statistics.

    ``BatchNormInference(axes)(x, scale, bias, mean, var, epsilon)`` is
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
    """Return the axes of a user's argument for an input of `ndim` dimensions."""
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
    """Raise DnnValueError if a parameter's static shape does not go with that of the inputs."""
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
    where: str, inputs: Any, axes: Any, **parameters: Any
) -> tuple[TensorVariable, tuple[int, ...], list[TensorVariable]]:
    """Return the input, the axes, and the parameters with as many dimensions as the input.

    All get the widest dtype among them; but parameters of a float16 input stay float32.
    """
    x = as_floating(where, "inputs", inputs)
    ndim = x.type.ndim
    if ndim == 0:
        raise DnnTypeError(f"{where}: inputs must have at least 1 dimension, got a scalar")
    canonical = _axes(where, axes, ndim)
    given = {name: as_floating(where, name, value) for name, value in parameters.items()}
    x, given = _widened(x, given)
    padded = []
    for name, parameter in given.items():
        if parameter.type.ndim == ndim - len(canonical):
            parameter = pt.expand_dims(parameter, canonical)
        elif parameter.type.ndim != ndim:
            raise DnnTypeError(
                f"{where}: {name} must have {ndim} dimensions, or "
                f"{ndim - len(canonical)} without the axes {canonical}, beside inputs of {ndim}; "
                f"got {parameter.type.ndim}"
            )
        check_sizes(where, name, parameter, x, canonical)
        padded.append(parameter)
    return x, canonical, padded


def _widened(
    x: TensorVariable, parameters: dict[str, TensorVariable]
) -> tuple[TensorVariable, dict[str, TensorVariable]]:
    """Cast an input and its parameters to the widest of their dtypes, as the Ops take them."""
    wanted = np.result_type(*(p.type.dtype for p in parameters.values()))
    dtype = np.result_type(x.type.dtype, wanted)
    if x.type.dtype == "float16" and wanted == np.float32:
        dtype = np.dtype("float16")
    else:
        wanted = dtype
    return pt.cast(x, dtype.name), {n: pt.cast(p, wanted.name) for n, p in parameters.items()}


def like_parameter(result: Any, axes: Sequence[int], parameter: Any) -> Any:
    """Drop the axes that statistics are over from a result, if its parameter has none of them."""
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
    """Normalize a batch by its own mean and variance.

    Parameters
    ----------
    inputs : tensor_like
        float16, float32 or float64, of one or more dimensions; integers are converted, as those of
        the parameters are: to float32 if they have at most 16 bits, else to float64.
    gamma, beta : tensor_like
        Scale and bias: of as many dimensions as `inputs` with size 1 on `axes`, or without
        these, such as vectors for 'spatial'.  Everything is computed in the widest dtype among
        `inputs` and these; only float32 parameters leave float16 `inputs` as they are.
    axes : {'per-activation', 'spatial'} or tuple of int
        The axes over which mean and variance are taken: the first one, all but the second one,
        or those given, which may be negative.
    epsilon : number or scalar variable
        What is added to the variance.
    running_average_factor : number or scalar variable
        The weight of this batch in the new running averages, from 0 to 1.
    running_mean, running_var : tensor_like, optional
        The averages so far, as `gamma`.

    Returns
    -------
    out : TensorVariable
        ``(inputs - mean) * invstd * gamma + beta``, of the shape of `inputs`.
    mean, invstd : TensorVariable
        The mean, and ``1 / sqrt(var + epsilon)`` of the biased variance: of the dtype of the
        parameters, and, as `gamma`, with size 1 on `axes` or without these.
    new_running_mean, new_running_var : TensorVariable
        If averages were given, and of as many dimensions as these: each times
        ``1 - running_average_factor``, plus this factor times the batch's mean and unbiased
        variance (of one element, its variance 0).

    Raises
    ------
    DnnTypeError
        If a dtype or a rank is another one.
    DnnValueError
        If the axes don't fit, shapes don't match, `epsilon` is negative or not finite,
        `running_average_factor` is not between 0 and 1, or only one of the running averages is
        given; at the call, if `inputs` has no elements.

    Notes
    -----
    A shared vector takes a new running average as its update. One of as many dimensions as
    `inputs` does if its type says where it has size 1: ``pytensor.shared(array, shape=(1, None, 1,
    1))`` for 'spatial' and images. Those of `dnnops.gpuarray` need not say it.

    Where the mean is many times the deviation, what rounding took of it would show in the gradient
    by `gamma`, as it does in other libraries; here the gradient makes it good.
    Numba, PyTensor's default linker, knows no float16.

    After Ioffe and Szegedy, Batch Normalization: Accelerating Deep Network Training by Reducing
    Internal Covariate Shift (2015).
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
    given = {name: as_floating(where, name, value) for name, value in parameters.items()}
    x, canonical, padded = _operands(where, inputs, axes, **given)
    scalars = [float64_scalar(where, "epsilon", epsilon, 0.0)]
    factor = float64_scalar(
        where, "running_average_factor", running_average_factor, minimum=0.0, maximum=1.0
    )
    if running:
        scalars.append(factor)
    op = BatchNormTrain(canonical, running)
    out, *results = op.make_node(x, *padded[:2], *scalars, *padded[2:]).outputs
    first, _, *averages = given.values()
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
    """Normalize by a given mean and variance, such as the running averages of training.

    Parameters
    ----------
    inputs, gamma, beta, axes, epsilon
        As for `batch_normalization_train`.
    mean, var : tensor_like
        The statistics, as `gamma`.

    Returns
    -------
    TensorVariable
        ``(inputs - mean) / sqrt(var + epsilon) * gamma + beta``, of the shape of `inputs`.

    Raises
    ------
    DnnTypeError
        If a dtype or a rank is another one.
    DnnValueError
        If the axes don't fit, shapes don't match, or `epsilon` is negative or not finite.
    """
    where = "batch_normalization_test"
    x, canonical, padded = _operands(
        where, inputs, axes, gamma=gamma, beta=beta, mean=mean, var=var
    )
    op: Any = BatchNormInference(canonical)
    return op(x, *padded, float64_scalar(where, "epsilon", epsilon, 0.0))

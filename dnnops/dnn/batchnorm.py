"""Theano's functions for batch normalization, on a GPU."""

from __future__ import annotations

from typing import Any

import pytensor.tensor as pt

from dnnops.arguments import one_of
from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.gpu.base import device_operand, device_operands
from dnnops.gpu.batchnorm import (
    MODES,
    GpuDnnBatchNorm,
    GpuDnnBatchNormInference,
    parameter_dtype,
)
from dnnops.gpuarray.transfer import as_gpuarray_variable, cast
from dnnops.nnet.norm.batchnorm import check_sizes, like_parameter
from dnnops.nnet.validate import float64_scalar

__all__ = ["dnn_batch_normalization_test", "dnn_batch_normalization_train"]


def _axes(mode: str, ndim: int) -> tuple[int, ...]:
    return (0, *range(2, ndim)) if mode == "spatial" else (0,)


def _batch_norm_parameters(where: str, inputs: Any, mode: str, **parameters: Any) -> list[Any]:
    """Return the inputs and parameters in the dtypes that the Ops take; ranks don't change."""
    (x,) = device_operands(where, None, inputs=inputs)
    ndim = x.type.ndim
    one_of(where, "mode", mode, MODES)
    if ndim < 2:
        raise DnnTypeError(f"{where}: inputs must have 2 dimensions or more, got {ndim}")
    moved = {
        name: device_operand(where, name, value, x.type.device)
        for name, value in parameters.items()
    }
    arrays = device_operands(where, None, widen=True, **moved)
    axes = _axes(mode, ndim)
    kept = ndim - len(axes)
    for name, array in zip(parameters, arrays, strict=True):
        if array.type.ndim not in (ndim, kept):
            raise DnnTypeError(
                f"{where}: {name} must have {ndim} dimensions, as inputs has, or {kept} for"
                f" mode={mode!r}; got {array.type.ndim}"
            )
        check_sizes(where, name, _with_rank(array, mode, ndim), x, axes)
    dtype = arrays[0].type.dtype
    if dtype != parameter_dtype(x.type.dtype):
        # float64 parameters make everything float64; 16-bit inputs take float32 parameters.
        x = cast(x, "float64") if dtype == "float64" else x
        arrays = [cast(array, parameter_dtype(x.type.dtype)) for array in arrays]
    return [x, *arrays]


def _with_rank(array: Any, mode: str, ndim: int) -> Any:
    """Expand a parameter to the rank of the inputs."""
    if array.type.ndim == ndim:
        return array
    spread = pt.expand_dims(pt.as_tensor_variable(array), _axes(mode, ndim))
    return as_gpuarray_variable(spread, array.type.device)


def _like_parameter(result: Any, mode: str, parameter: Any) -> Any:
    """Drop the axes of a result that a parameter lacks."""
    ndim = result.type.ndim
    if parameter.type.ndim == ndim:
        return result
    dropped = like_parameter(pt.as_tensor_variable(result), _axes(mode, ndim), parameter)
    return as_gpuarray_variable(dropped, result.type.device)


def dnn_batch_normalization_train(
    inputs: Any,
    gamma: Any,
    beta: Any,
    mode: str = "per-activation",
    epsilon: Any = 1e-4,
    running_average_factor: Any = 0.1,
    running_mean: Any = None,
    running_var: Any = None,
) -> tuple[Any, ...]:
    """Normalize a batch with its own mean and variance on a GPU.

    Parameters
    ----------
    inputs : array
        Batch with at least 2 dimensions.
    gamma, beta : array
        Scale and bias. They have the rank of `inputs` with size 1 along the axes that statistics
        are computed over, or lack these axes: for 'spatial' they can be vectors. They are cast to
        the dtype of `inputs`, or to float32 for 16-bit inputs. If any of them is float64,
        everything is computed in float64.
    mode : {'per-activation', 'spatial'}
        Axes that statistics are computed over: the first axis, or all axes but the second.
    epsilon : number or scalar variable
        Finite number that is at least 0, which is cuDNN's ``CUDNN_BN_MIN_EPSILON``. Variables are
        checked when the function runs.
    running_average_factor, running_mean, running_var
        See `dnnops.nnet.batch_normalization_train`.

    Returns
    -------
    tuple of GpuArrayVariable
        The results of `dnnops.nnet.batch_normalization_train`.

    Raises
    ------
    DnnTypeError
        If an operand or a parameter has the wrong type.
    DnnValueError
        If a value is invalid, or operands don't match. `DnnValueError` is a subclass of
        `ValueError`.
    """
    where = "dnn_batch_normalization_train"
    if (running_mean is None) != (running_var is None):
        raise DnnValueError(f"{where}: running_mean and running_var must be given together")
    parameters = {"gamma": gamma, "beta": beta}
    running = running_mean is not None
    running_average_factor = float64_scalar(
        where, "running_average_factor", running_average_factor, minimum=0.0, maximum=1.0
    )
    if running:
        parameters |= {"running_mean": running_mean, "running_var": running_var}
    x, *given = _batch_norm_parameters(where, inputs, mode, **parameters)
    scale, bias, *averages = (_with_rank(array, mode, x.type.ndim) for array in given)
    op = GpuDnnBatchNorm(mode, running)
    more = [running_average_factor, *averages] if running else []
    out, *results = op.make_node(x, scale, bias, epsilon, *more).outputs
    like = (given[0], given[0], *given[2:])
    return (out, *(_like_parameter(z, mode, p) for z, p in zip(results, like, strict=True)))


def dnn_batch_normalization_test(
    inputs: Any,
    gamma: Any,
    beta: Any,
    mean: Any,
    var: Any,
    mode: str = "per-activation",
    epsilon: Any = 1e-4,
) -> Any:
    """Normalize a batch with a given mean and variance on a GPU.

    Parameters
    ----------
    inputs, gamma, beta, mode, epsilon
        See `dnn_batch_normalization_train`.
    mean, var : array
        Mean and variance, with the shapes and dtypes allowed for `gamma`.

    Returns
    -------
    GpuArrayVariable
        ``(inputs - mean) / sqrt(var + epsilon) * gamma + beta``.

    Raises
    ------
    DnnTypeError, DnnValueError
        If an operand or a parameter has the wrong type or value, or if operands don't match.
    """
    where = "dnn_batch_normalization_test"
    x, *given = _batch_norm_parameters(
        where, inputs, mode, gamma=gamma, beta=beta, mean=mean, var=var
    )
    parameters = [_with_rank(array, mode, x.type.ndim) for array in given]
    return GpuDnnBatchNormInference(mode)(x, *parameters, epsilon)

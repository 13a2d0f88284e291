"""Batch normalization."""

from __future__ import annotations

from typing import Any

import pytensor.tensor as pt

from dnnops.arguments import one_of
from dnnops.cudnn.base import device_operand, device_operands
from dnnops.cudnn.batchnorm import (
    MODES,
    GpuDnnBatchNorm,
    GpuDnnBatchNormInference,
    parameter_dtype,
)
from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.gpuarray.transfer import as_gpuarray_variable, cast
from dnnops.nnet._validate import float64_scalar
from dnnops.nnet.batchnorm import check_sizes

__all__ = ["dnn_batch_normalization_test", "dnn_batch_normalization_train"]


def _batch_norm_parameters(where: str, inputs: Any, mode: str, **parameters: Any) -> list[Any]:
    """The inputs, and parameters as the Ops take them: with the inputs' rank, in their dtype."""
    (x,) = device_operands(where, None, inputs=inputs)
    ndim = x.type.ndim
    one_of(where, "mode", mode, MODES)
    if ndim < 2:
        raise DnnTypeError(f"{where}: inputs must have 2 dimensions or more, got {ndim}")
    kept = 1 if mode == "spatial" else ndim - 1
    arrays = []
    for name, value in parameters.items():
        moved = device_operand(where, name, value, x.type.device)
        (array,) = device_operands(where, None, **{name: moved})
        if array.type.ndim == kept != ndim:
            axes = (0, *range(2, ndim)) if mode == "spatial" else (0,)
            array = as_gpuarray_variable(pt.expand_dims(pt.as_tensor_variable(array), axes))
        elif array.type.ndim != ndim:
            raise DnnTypeError(
                f"{where}: {name} must have {ndim} dimensions, as inputs has, or {kept} for"
                f" mode={mode!r}; got {array.type.ndim}"
            )
        check_sizes(
            where, name, array, x, (0,) if mode == "per-activation" else (0, *range(2, ndim))
        )
        arrays.append(cast(array, parameter_dtype(x.type.dtype)))
    return [x, *arrays]


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
    """Normalize a batch by its own mean and variance on a GPU.

    Parameters
    ----------
    inputs : array
        Of any rank.
    gamma, beta : array
        Scale and bias: of the inputs' rank with size 1 on the axes that statistics are over, or
        without these. They are cast to the dtype of `inputs`, or to float32 if that has 16 bits.
    mode : {'per-activation', 'spatial'}
        Statistics are over the first axis, or over all but the second one.
    epsilon : number or scalar variable
        At least 0, cuDNN's ``CUDNN_BN_MIN_EPSILON``, and finite; of a variable this is checked at
        the call.
    running_average_factor, running_mean, running_var
        As for `dnnops.nnet.batch_normalization_train`.

    Returns
    -------
    tuple of GpuArrayVariable
        As of `dnnops.nnet.batch_normalization_train`.

    Raises
    ------
    DnnTypeError, DnnValueError
        If an operand or a parameter is of another kind, or if they don't fit together. The latter
        is a `ValueError`.
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
    x, scale, bias, *averages = _batch_norm_parameters(where, inputs, mode, **parameters)
    op = GpuDnnBatchNorm(mode, running)
    more = [running_average_factor, *averages] if running else []
    return tuple(op.make_node(x, scale, bias, epsilon, *more).outputs)


def dnn_batch_normalization_test(
    inputs: Any,
    gamma: Any,
    beta: Any,
    mean: Any,
    var: Any,
    mode: str = "per-activation",
    epsilon: Any = 1e-4,
) -> Any:
    """Normalize by a given mean and variance on a GPU.

    Parameters
    ----------
    inputs, gamma, beta, mode, epsilon
        As for `dnn_batch_normalization_train`.
    mean, var : array
        As `gamma`.

    Returns
    -------
    GpuArrayVariable
        ``(inputs - mean) / sqrt(var + epsilon) * gamma + beta``.

    Raises
    ------
    DnnTypeError, DnnValueError
        If an operand or a parameter is of another kind, or if they don't fit together.
    """
    where = "dnn_batch_normalization_test"
    operands = _batch_norm_parameters(
        where, inputs, mode, gamma=gamma, beta=beta, mean=mean, var=var
    )
    return GpuDnnBatchNormInference(mode)(*operands, epsilon)

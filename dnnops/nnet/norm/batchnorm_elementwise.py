"""Batch normalization with a given mean and standard deviation, in elementwise operations."""

from __future__ import annotations

from typing import Any

from pytensor.tensor.variable import TensorVariable

from dnnops.nnet.operands import real_operands
from dnnops.nnet.validate import check_broadcast, one_of

__all__ = ["batch_normalization"]


def batch_normalization(
    inputs: Any, gamma: Any, beta: Any, mean: Any, std: Any, mode: str = "low_mem"
) -> TensorVariable:
    """Normalize with a given mean and standard deviation.

    The mean and the standard deviation may depend on the inputs. `batch_normalization_train` and
    `batch_normalization_test` are faster; they use the variance instead.

    Parameters
    ----------
    inputs : tensor_like
        Values to normalize, in float16, float32 or float64. Integers are converted.
    gamma, beta, mean, std : tensor_like
        Scale, bias, mean and standard deviation. They broadcast against `inputs`. Operands that are
        numbers, lists, integers or bools get the dtype of the others.
    mode : {'low_mem', 'high_mem'}
        Order of the operations. 'high_mem' divides `gamma` by `std`, which are small arrays, and
        'low_mem' divides the inputs. The names come from Theano. Once the operations are fused,
        neither mode stores intermediate results.

    Returns
    -------
    TensorVariable
        ``(inputs - mean) / std * gamma + beta``.

    Raises
    ------
    DnnTypeError
        If an operand is not a real tensor.
    DnnValueError
        If `mode` is invalid, or if the static shapes of the operands cannot broadcast together.
    """
    where = "batch_normalization"
    one_of(where, "mode", mode, ("low_mem", "high_mem"))
    given = {"inputs": inputs, "gamma": gamma, "beta": beta, "mean": mean, "std": std}
    operands = real_operands(where, **given)
    check_broadcast(where, **operands)
    x, scale, bias, center, deviation = operands.values()
    if mode == "high_mem":
        return (x - center) * (scale / deviation) + bias
    return (x - center) / deviation * scale + bias

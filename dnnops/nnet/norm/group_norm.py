"""Group normalization, from Wu and He, Group Normalization (2018), and its gradient.

The Ops in this module define the computation and run in plain NumPy; rewrites replace them with Ops
that run compiled code.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply
from pytensor.tensor.variable import TensorVariable

from dnnops.arguments import MAX_PARAMETER, is_int, number, shown
from dnnops.compat import shape_inference
from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.nnet.checks import checked
from dnnops.nnet.expressions import ExpandableOp, ExpressionOp, reshaped
from dnnops.nnet.norm.batchnorm import BatchNormTrain, BatchNormTrainGrad
from dnnops.nnet.norm.widened import widened
from dnnops.nnet.operands import float_operands
from dnnops.nnet.validate import (
    Shape,
    accumulator_dtype,
    float_tensor,
    merge_shapes,
    named_operands,
    require_same_dtype,
    show_shape,
)

__all__ = ["GroupNorm", "GroupNormGrad", "group_norm"]


class GroupNormBase(ExpandableOp, ExpressionOp):
    """Base class of group normalization and its gradient.

    The data operands have one dtype and one shape, (batch, channels, ...). The parameter operands
    are vectors, with one element for each channel. They have the dtype of the data, or float32 if
    the data is float16.

    Parameters
    ----------
    num_groups : int
        Number of groups, which must divide the number of channels.
    epsilon : float
        Non-negative constant added to the variance.

    Raises
    ------
    DnnTypeError
        If `num_groups` is not an int, or if `epsilon` is not a number.
    DnnValueError
        If a parameter is out of bounds or not finite.
    """

    expands_elementwise = True
    __props__ = ("num_groups", "epsilon")

    #: The data operands, the parameter operands, and all operands in order.
    data: tuple[str, ...]
    parameter_operands: tuple[str, ...]
    operands: tuple[str, ...]
    #: For each result, whether it has the shape of the data (True) or of the parameters (False).
    data_results: tuple[bool, ...]

    def __init__(self, num_groups: int, epsilon: float = 1e-5):
        name = type(self).__name__
        self.num_groups = group_count(name, num_groups)
        self.epsilon = number(name, "epsilon", epsilon, 0.0)

    def make_node(self, *inputs: Any) -> Apply:
        name = type(self).__name__
        given = named_operands(name, self.operands, inputs)
        x = given["x"] = data_tensor(name, given["x"])
        for operand in self.operands[1:]:
            ndim = 1 if operand in self.parameter_operands else x.type.ndim
            given[operand] = float_tensor(name, operand, given[operand], ndim)
        dtype = require_same_dtype(name, **{o: given[o] for o in self.data})
        parameter_dtype = require_same_dtype(name, **{o: given[o] for o in self.parameter_operands})
        if parameter_dtype != dtype and (dtype, parameter_dtype) != ("float16", "float32"):
            raise DnnTypeError(
                f"{name}: {', '.join(self.parameter_operands)} have dtype {parameter_dtype}; "
                f"expected {dtype}, as x has" + (", or float32" if dtype == "float16" else "")
            )
        shape = self.check_shapes({o: x.type.shape for o, x in given.items()})
        results = [
            pt.tensor(dtype=dtype, shape=shape)
            if is_data
            else pt.tensor(dtype=parameter_dtype, shape=shape[1:2])
            for is_data in self.data_results
        ]
        return Apply(self, list(given.values()), results)

    @shape_inference
    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        shape = shapes[0]
        return [shape if is_data else [shape[1]] for is_data in self.data_results]

    def check_shapes(self, shapes: dict[str, Shape]) -> Shape:
        """Check the operands' shapes; return the shape of the data, as far as known."""
        name = type(self).__name__
        batch, channels, *spatial = merge_shapes(name, **{o: shapes[o] for o in self.data})
        for operand in self.parameter_operands:
            (length,) = shapes[operand]
            if None not in (length, channels) and length != channels:
                raise DnnValueError(
                    f"{name}: {operand} must have one element for each of the {channels} channels "
                    f"of x, got {length} (x has shape {show_shape(shapes['x'])})"
                )
            channels = length if channels is None else channels
        if channels is not None and channels % self.num_groups:
            raise DnnValueError(
                f"{name}: num_groups must divide the {channels} channels of x, got "
                f"{self.num_groups} (x has shape {show_shape(shapes['x'])})"
            )
        return (batch, channels, *spatial)

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        self.check_shapes({o: x.shape for o, x in zip(self.operands, inputs, strict=True)})
        results = self._compute(inputs[0].shape, *widened(inputs))
        for output, storage, result in zip(node.outputs, output_storage, results, strict=True):
            storage[0] = np.asarray(result, dtype=output.type.dtype)

    def expressions(self, *inputs: Any) -> list[Any]:
        node = self.make_node(*inputs)
        if inputs[0].type.dtype == "float16":  # whose squares do not overflow in float32
            return self._expressions(*inputs)
        # Kernels of batch normalization read the data less often, and are right for numbers of any
        # magnitude.
        results = self._by_rows(self._checked_sizes(node), *inputs)
        return [pt.cast(z, y.type.dtype) for z, y in zip(results, node.outputs, strict=True)]

    def _expressions(self, *inputs: Any) -> list[Any]:
        node = self.make_node(*inputs)
        sizes = self._checked_sizes(node)
        dtype = accumulator_dtype(inputs[0].type.dtype).name
        results = self._compute(sizes, *(pt.cast(a, dtype) for a in inputs))
        return [pt.cast(z, y.type.dtype) for z, y in zip(results, node.outputs, strict=True)]

    def _checked_sizes(self, node: Apply) -> list[Any]:
        """Return the sizes of the data, which are checked when they are computed."""
        inputs: list[Any] = node.inputs
        x, shape = inputs[0], node.outputs[0].type.shape
        sizes = [x.shape[i] if n is None else n for i, n in enumerate(shape)]
        given = zip(self.operands, inputs, strict=True)
        lengths = [a.shape[0] for o, a in given if o in self.parameter_operands]
        if shape[1] is None:
            problem = (
                f"{type(self).__name__}: num_groups, {self.num_groups}, must divide the channels "
                f"of x, and {' and '.join(self.parameter_operands)} must have one element for each"
            )
            divides = pt.eq(sizes[1] % self.num_groups, 0)
            fits = (pt.eq(length, sizes[1]) for length in lengths)
            sizes[1] = checked(sizes[1], problem, divides, *fits)
        return sizes

    def _rows(self, sizes: Sequence[Any], *data: Any) -> list[Any]:
        """View data as one row for each group of each sample; without elements, as no rows."""
        count = sizes[1] // self.num_groups * prod(sizes[2:])
        count = max(count, 1) if isinstance(count, int) else pt.maximum(count, 1)
        return [reshaped(a, (prod(sizes) // count, count)) for a in data]

    def _normalize_rows(self, x: Any) -> list[Any]:
        """Return rows less their mean, divided by their deviation, with mean and its inverse."""
        ones, zeros = (f((x.shape[0], 1), dtype=x.type.dtype) for f in (pt.ones, pt.zeros))
        op: Any = BatchNormTrain((1,))
        return list(op(x, ones, zeros, pt.constant(self.epsilon, dtype="float64")))

    def _by_rows(self, sizes: Sequence[Any], *inputs: Any) -> list[Any]:
        """Compute the results by Ops of batch normalization."""
        raise NotImplementedError

    def _compute(self, shape: Sequence[Any], *inputs: Any) -> list[Any]:
        """Compute the results from the shape of the data and from arrays or variables."""
        raise NotImplementedError

    def _grouped(self, shape: Sequence[Any], a: Any) -> Any:
        """View data or parameters as (batch, group, channel of the group, position)."""
        batch, channels, *spatial = shape
        per_group = channels // self.num_groups
        if a.ndim == 1:
            return reshaped(a, (1, self.num_groups, per_group, 1))
        return reshaped(a, (batch, self.num_groups, per_group, prod(spatial)))

    def _mean(self, shape: Sequence[Any], grouped: Any) -> Any:
        """Return the mean of each group; 0 for groups without elements."""
        total = grouped.sum(axis=(2, 3), keepdims=True)
        count = shape[1] // self.num_groups * prod(shape[2:])
        # Not an int, by which PyTensor divides in float64 if it is larger than 32767.
        if isinstance(count, int):
            return total / np.asarray(max(count, 1), total.dtype)
        return total / pt.cast(pt.maximum(count, 1), total.type.dtype)

    def _statistics(self, shape: Sequence[Any], x: Any) -> tuple[Any, Any]:
        """Return grouped data less its mean, and the inverse of the standard deviation."""
        centered = x - self._mean(shape, x)
        variance = self._mean(shape, centered * centered)
        # Not a Python float, with which PyTensor would compute in float64.
        return centered, (variance + np.asarray(self.epsilon, x.dtype)) ** np.asarray(-0.5, x.dtype)


class GroupNorm(GroupNormBase):
    """Group normalization: ``GroupNorm(num_groups, epsilon)(x, gamma, beta)``.

    See `GroupNormBase` for the parameters and `group_norm` for the definition.
    """

    data = ("x",)
    parameter_operands = ("gamma", "beta")
    operands = ("x", "gamma", "beta")
    data_results = (True,)

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        x, gamma, _ = inputs
        op = GroupNormGrad(self.num_groups, self.epsilon)
        return list(op.make_node(x, gamma, *cotangents).outputs)

    def _compute(self, shape: Sequence[Any], *inputs: Any) -> list[Any]:
        x, gamma, beta = (self._grouped(shape, a) for a in inputs)
        centered, invstd = self._statistics(shape, x)
        return [reshaped(centered * (invstd * gamma) + beta, shape)]

    def _by_rows(self, sizes: Sequence[Any], *inputs: Any) -> list[Any]:
        x, gamma, beta = inputs
        normalized = reshaped(self._normalize_rows(*self._rows(sizes, x))[0], sizes)
        gamma, beta = (_along_channels(a, len(sizes)) for a in (gamma, beta))
        return [normalized * gamma + beta]


class GroupNormGrad(GroupNormBase):
    """Gradients of `GroupNorm`: ``GroupNormGrad(num_groups, epsilon)(x, gamma, gy)``.

    The results are the gradients with respect to ``x``, ``gamma`` and ``beta``; `gy` is the
    gradient with respect to the output. The statistics are computed again. A group's elements are
    read from memory only once for this, since the gradient needs them, too.
    """

    data = ("x", "gy")
    parameter_operands = ("gamma",)
    operands = ("x", "gamma", "gy")
    data_results = (True, False, False)

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        return [[True, True, False], [True, False, False], [True, True, True]]

    def _compute(self, shape: Sequence[Any], *inputs: Any) -> list[Any]:
        x, gamma, gy = (self._grouped(shape, a) for a in inputs)
        centered, invstd = self._statistics(shape, x)
        normalized = centered * invstd
        scaled = gy * gamma
        slope = self._mean(shape, scaled * normalized)
        dx = (scaled - self._mean(shape, scaled) - normalized * slope) * invstd
        dgamma, dbeta = (terms.sum(axis=(0, 3)) for terms in (gy * normalized, gy))
        return [reshaped(dx, shape), reshaped(dgamma, shape[1:2]), reshaped(dbeta, shape[1:2])]

    def _by_rows(self, sizes: Sequence[Any], *inputs: Any) -> list[Any]:
        x, gamma, gy = inputs
        rows, scaled = self._rows(sizes, x, gy * _along_channels(gamma, len(sizes)))
        _, mean, invstd = self._normalize_rows(rows)
        op: Any = BatchNormTrainGrad((1,))
        dx = op(rows, scaled, pt.ones_like(mean), mean, invstd)[0]
        # Computed again, since the result of the normalization would be kept for this.
        normalized = reshaped((rows - mean) * invstd, sizes)
        others = (0, *range(2, len(sizes)))
        return [reshaped(dx, sizes), *(terms.sum(axis=others) for terms in (gy * normalized, gy))]


def _along_channels(parameters: Any, ndim: int) -> Any:
    return parameters.dimshuffle("x", 0, *["x"] * (ndim - 2))


def group_count(where: str, num_groups: Any) -> int:
    """Return `num_groups` as an int, or raise DnnTypeError or DnnValueError."""
    if not is_int(num_groups):
        raise DnnTypeError(f"{where}: num_groups must be an int, got {shown(num_groups)}")
    if not 1 <= num_groups <= MAX_PARAMETER:
        raise DnnValueError(
            f"{where}: num_groups must be between 1 and {MAX_PARAMETER}, got {num_groups}"
        )
    return int(num_groups)


def data_tensor(where: str, x: Any) -> TensorVariable:
    """Return `x` as a floating-point tensor of two or more dimensions, or raise DnnTypeError."""
    x = float_tensor(where, "x", x)
    if x.type.ndim < 2:
        raise DnnTypeError(
            f"{where}: x must have 2 or more dimensions (batch, channels, spatial...), got "
            f"{x.type.ndim}"
        )
    return x


def group_norm(
    x: Any, num_groups: int, gamma: Any = None, beta: Any = None, epsilon: float = 1e-5
) -> TensorVariable:
    """Normalize each sample over groups of channels and all positions.

    The channels are divided into `num_groups` groups of adjacent channels. With the mean and the
    biased variance of a sample's elements in a group, over its channels and all spatial axes, the
    result is ``(x - mean) / sqrt(variance + epsilon) * gamma + beta``.

    Parameters
    ----------
    x : tensor_like
        A float16, float32 or float64 tensor of shape (batch, channels, ...), with any number of
        spatial axes.
    num_groups : int
        Number of groups. It must divide the number of channels. One group normalizes over all
        channels, as layer normalization does; as many groups as channels normalize each channel,
        as instance normalization does.
    gamma, beta : tensor_like, optional
        Scale and bias, vectors with one element for each channel. They have the dtype of `x`, or
        float32 if `x` is float16. By default, 1 and 0.
    epsilon : float
        Non-negative constant added to the variance.

    Returns
    -------
    TensorVariable
        The normalized tensor, with the shape and dtype of `x`.

    Raises
    ------
    DnnTypeError
        If an operand has an unsupported dtype or number of dimensions, if `num_groups` is not an
        int, or if `epsilon` is not a number.
    DnnValueError
        If `num_groups` is less than 1 or does not divide the number of channels, if `gamma` or
        `beta` has another length, or if `epsilon` is negative or not finite. Sizes that are not
        known statically are checked when the result is computed.

    Notes
    -----
    The meaning is that of ``torch.nn.functional.group_norm(x, num_groups, gamma, beta, epsilon)``.
    PyTorch rejects groups of one element in a batch of one; here, their result is `beta`.

    References
    ----------
    Wu and He, Group Normalization (2018).
    """
    where = "group_norm"
    vectors = {"gamma": gamma, "beta": beta}
    named = {"x": x, **{name: v for name, v in vectors.items() if v is not None}}
    x, *values = float_operands(where, named, dict.fromkeys(vectors, 1))
    x = data_tensor(where, x)
    op: Any = GroupNorm(group_count(where, num_groups), number(where, "epsilon", epsilon, 0.0))
    given = dict(zip(list(named)[1:], values, strict=True))
    dtype = next((vector.type.dtype for vector in given.values()), x.type.dtype)
    channels = x.shape[1] if x.type.shape[1] is None else x.type.shape[1]
    for name, fill in (("gamma", pt.ones), ("beta", pt.zeros)):
        if name not in given:
            given[name] = fill((channels,), dtype=dtype)
    return op(x, given["gamma"], given["beta"])

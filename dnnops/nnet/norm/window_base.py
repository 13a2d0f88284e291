"""Base class of normalizations by the sum of squares in a window around each element.

With windows of length ``n`` on each of ``d`` axes, the output is ``x * s**-beta``, where
``s = k + alpha / n**d * sum(v**2)`` over the window and ``v`` is the input or its difference from
given means. Elements outside the array count as zeros, and the divisor is ``n**d`` at the borders,
too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import disconnected_type
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.tensor.variable import TensorVariable

from dnnops.arguments import shown, switch
from dnnops.compat import shape_inference
from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.nnet.expressions import ExpandableOp, ExpressionOp, is_connected
from dnnops.nnet.norm.widened import widened
from dnnops.nnet.validate import (
    accumulator_dtype,
    float_tensor,
    is_int,
    merge_shapes,
    named_operands,
    number,
    require_same_dtype,
)

__all__ = ["MAX_N", "MIN_BETA", "MIN_K", "WindowNormBase", "WindowSum", "window_sides"]

#: cuDNN's limits, enforced on every device so that graphs stay portable.
MAX_N = 16
MIN_K = 1e-5
MIN_BETA = 0.01


def window_sides(n: int) -> tuple[int, int]:
    """Return the number of elements before and after the center of a window of length `n`."""
    behind = (n - 1) // 2
    return behind, n - 1 - behind


class WindowNormBase(ExpandableOp, ExpressionOp):
    """Base class of window normalizations and their gradients.

    All operands and results have the same shape and dtype.

    Parameters
    ----------
    n : int
        Window length, from 1 to 16. If it is even, the window has one more element after its center
        than before it.
    alpha : float
        Non-negative factor of the mean square.
    beta : float
        Exponent, at least 0.01.
    k : float
        Constant added to the scaled mean square, at least 1e-5.

    Raises
    ------
    DnnTypeError
        If `n` is not an int, or if another parameter is not a number.
    DnnValueError
        If a parameter is out of bounds or not finite.
    """

    expands_elementwise = True
    __props__: tuple[str, ...] = ("n", "alpha", "beta", "k")

    #: Names of the operands and results.
    operands: tuple[str, ...]
    results: tuple[str, ...]
    #: Minimum and maximum number of dimensions.
    ndim_bounds: tuple[int, float]

    def __init__(self, n: int, alpha: float, beta: float, k: float):
        name = type(self).__name__
        if not is_int(n):
            raise DnnTypeError(f"{name}: n must be an int, got {shown(n)}")
        if not 1 <= n <= MAX_N:
            raise DnnValueError(f"{name}: n must be between 1 and {MAX_N}, got {n}")
        self.n = int(n)
        self.alpha = number(name, "alpha", alpha, 0.0)
        self.beta = number(name, "beta", beta, MIN_BETA)
        self.k = number(name, "k", k, MIN_K)

    def window_axes(self, ndim: int) -> tuple[int, ...]:
        """Return the axes that the windows of an `ndim`-dimensional array extend along."""
        raise NotImplementedError

    def check_rank(self, where: str, name: str, ndim: int) -> None:
        """Raise DnnTypeError if `ndim`, the rank of the operand `name`, is not supported."""
        least, most = self.ndim_bounds
        if not least <= ndim <= most:
            bounds = f"{least} or more" if most == np.inf else f"{least} to {most}"
            raise DnnTypeError(
                f"{where}: {name} must have {bounds} dimensions (batch, channel, spatial...), got "
                f"{ndim}"
            )

    def make_node(self, *inputs: Any) -> Apply:
        name = type(self).__name__
        given: dict[str, TensorVariable] = {}
        ndim = None
        for operand, value in named_operands(name, self.operands, inputs).items():
            given[operand] = float_tensor(name, operand, value, ndim)
            ndim = given[operand].type.ndim
        self.check_rank(name, self.operands[0], given[self.operands[0]].type.ndim)
        dtype = require_same_dtype(name, **given)
        shape = merge_shapes(name, **{o: x.type.shape for o, x in given.items()})
        results = [pt.tensor(dtype=dtype, shape=shape) for _ in self.results]
        return Apply(self, list(given.values()), results)

    @shape_inference
    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        return [shapes[0]] * len(self.results)

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        names = self.operands
        merge_shapes(
            type(self).__name__, **{o: x.shape for o, x in zip(names, inputs, strict=True)}
        )
        results = self._compute(*widened(inputs))
        for storage, result in zip(output_storage, results, strict=True):
            storage[0] = np.asarray(result, dtype=inputs[0].dtype)

    def _expressions(self, *inputs: Any) -> list[Any]:
        dtype = inputs[0].type.dtype
        results = self._compute(*(pt.cast(x, accumulator_dtype(dtype).name) for x in inputs))
        return [pt.cast(result, dtype) for result in results]

    def _compute(self, *inputs: Any) -> list[Any]:
        """Compute the results from arrays or from variables."""
        given = dict(zip(self.operands, inputs, strict=True))
        x = given["x"]
        squared = x - given["means"] if "means" in given else x
        axes = self.window_axes(x.ndim)
        share = self.alpha / self.n ** len(axes)
        # Not Python floats, with which PyTensor may compute in float64.
        k, alpha, beta, twice = (
            np.asarray(number, x.dtype)
            for number in (self.k, share, self.beta, 2 * share * self.beta)
        )
        base = k + alpha * self._window_sum(squared * squared, axes)
        power = base**-beta
        if "gy" not in given:
            return [x * power]
        # A larger square lowers the output of every element whose window contains it.
        gy = given["gy"]
        shares = self._window_sum(gy * x * (power / base), axes, backward=True)
        through_squares = twice * squared * shares
        return [gy * power - through_squares, through_squares][: len(self.results)]

    def _window_sum(self, x: Any, axes: Sequence[int], backward: bool = False) -> Any:
        """Sum over each element's window, or over the elements whose windows contain it."""
        if isinstance(x, np.ndarray):
            return _sum_of_array(x, self.n, axes, backward)
        op: Any = WindowSum(self.n, axes, backward)
        return op(x)


class WindowSum(Op):
    """Sum over the window of each element: ``WindowSum(n, axes)(x)``.

    Elements outside the array count as zeros. The second derivatives of the normalizations are
    built from this Op.

    Parameters
    ----------
    n : int
        Window length, as for `WindowNormBase`.
    axes : tuple of int
        Axes that the windows extend along; they must not include the batch axis, 0.
    backward : bool
        Whether the extra element of an even window comes before its center. This gives the
        transposed operator.
    """

    __props__ = ("n", "axes", "backward")

    def __init__(self, n: int, axes: Sequence[int], backward: bool = False):
        self.n = int(n)
        self.axes = tuple(int(axis) for axis in axes)
        self.backward = switch(type(self).__name__, "backward", backward)

    def make_node(self, x: Any) -> Apply:
        x = float_tensor(type(self).__name__, "x", x)
        self._check_axes(x.type.ndim)
        return Apply(self, [x], [pt.tensor(dtype=x.type.dtype, shape=x.type.shape)])

    def _check_axes(self, ndim: int) -> None:
        if not all(0 < axis < ndim for axis in self.axes):
            raise DnnValueError(
                f"{type(self).__name__}: axes {self.axes} do not fit {ndim} dimensions"
            )

    @shape_inference
    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        return [shapes[0]]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        transposed: Any = WindowSum(self.n, self.axes, not self.backward)
        return [transposed(*cotangents)]

    def pushforward(self, inputs: Any, outputs: Any, tangents: Any) -> list[Any]:
        (tangent,) = tangents
        return [self(tangent) if is_connected(tangent) else disconnected_type()]

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        (x,) = inputs
        values = x.astype(accumulator_dtype(x.dtype), copy=False)
        result = _sum_of_array(values, self.n, self.axes, self.backward)
        output_storage[0][0] = np.asarray(result, dtype=x.dtype)


def _sum_of_array(x: np.ndarray, n: int, axes: Sequence[int], backward: bool) -> np.ndarray:
    sides = window_sides(n)[::-1] if backward else window_sides(n)
    for axis in axes:
        padded = np.pad(x, [sides if a == axis else (0, 0) for a in range(x.ndim)])
        before, size = (slice(None),) * axis, x.shape[axis]
        x = sum((padded[(*before, slice(i, i + size))] for i in range(n)), np.zeros_like(x))
    return x

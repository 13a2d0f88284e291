"""What normalization by the squares in a window around each element shares.

With ``v`` for what is squared, the inputs or their distances from means, and windows of ``n`` on
each of ``d`` axes, the output is ``x * s**-beta``, where ``s = k + alpha / n**d * sum(v**2)`` over
the window.  Elements outside the array count as zeros, and the divisor is ``n**d`` at the borders,
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
from dnnops.nnet._validate import (
    accumulator_dtype,
    float_tensor,
    is_int,
    merge_shapes,
    named_operands,
    number,
    require_same_dtype,
)
from dnnops.nnet.expressions import ExpressionOp, is_connected

__all__ = ["MAX_N", "MIN_BETA", "MIN_K", "WindowNormBase", "WindowSum", "window_sides"]

#: cuDNN's limits, which hold everywhere, so that a graph that runs on one device runs on all.
MAX_N = 16
MIN_K = 1e-5
MIN_BETA = 0.01


def window_sides(n: int) -> tuple[int, int]:
    """Return how many elements a window of `n` has before and after its center."""
    behind = (n - 1) // 2
    return behind, n - 1 - behind


class WindowNormBase(ExpressionOp):
    """An Op of such a normalization, or its gradient: parameters, operands and checks.

    Its operands have one shape and one dtype, which the results have, too.

    Parameters
    ----------
    n : int
        The windows' length, 1 to 16. If it is even, they have one element more after their
        center than before it.
    alpha : float
        The factor of the mean of squares; not negative.
    beta : float
        The exponent, at least 0.01.
    k : float
        What the squares are added to, at least 1e-5.

    Raises
    ------
    DnnTypeError
        If `n` is no int, or another parameter no number.
    DnnValueError
        If one is out of these bounds, or not finite.
    """

    __props__: tuple[str, ...] = ("n", "alpha", "beta", "k")

    #: The operands and the results.
    operands: tuple[str, ...]
    results: tuple[str, ...]
    #: The least and greatest number of dimensions.
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
        """Return the axes that windows extend along, of an array of `ndim` dimensions."""
        raise NotImplementedError

    def check_rank(self, where: str, name: str, ndim: int) -> None:
        """Raise DnnTypeError unless the operand `name` has a rank that there are windows of."""
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
        dtype = accumulator_dtype(inputs[0].dtype)
        results = self._compute(*(x.astype(dtype, copy=False) for x in inputs))
        for storage, result in zip(output_storage, results, strict=True):
            storage[0] = np.asarray(result, dtype=inputs[0].dtype)

    def expressions(self, *inputs: Any) -> list[Any]:
        """Return the results as expressions of elementwise Ops and `WindowSum`."""
        return self._expressions(*inputs)

    def _expressions(self, *inputs: Any) -> list[Any]:
        dtype = inputs[0].type.dtype
        results = self._compute(*(pt.cast(x, accumulator_dtype(dtype).name) for x in inputs))
        return [pt.cast(result, dtype) for result in results]

    def _compute(self, *inputs: Any) -> list[Any]:
        """The results, of arrays or of variables."""
        given = dict(zip(self.operands, inputs, strict=True))
        x = given["x"]
        squared = x - given["means"] if "means" in given else x
        axes = self.window_axes(x.ndim)
        alpha = self.alpha / self.n ** len(axes)
        base = self.k + alpha * self._window_sum(squared * squared, axes)
        power = base**-self.beta
        if "gy" not in given:
            return [x * power]
        # What the output of each element that has this one in its window loses by a larger square.
        gy = given["gy"]
        shares = self._window_sum(gy * x * (power / base), axes, backward=True)
        through_squares = (2 * alpha * self.beta) * squared * shares
        return [gy * power - through_squares, through_squares][: len(self.results)]

    def _window_sum(self, x: Any, axes: Sequence[int], backward: bool = False) -> Any:
        """Sum over the window of each element, or over the elements whose window it is in."""
        if isinstance(x, np.ndarray):
            return _sum_of_array(x, self.n, axes, backward)
        op: Any = WindowSum(self.n, axes, backward)
        return op(x)


class WindowSum(Op):
    """The sum over the window of each element: ``WindowSum(n, axes)(x)``.

    What is not there counts as zero.  It is what derivatives of the normalizations' gradients
    consist of.

    Parameters
    ----------
    n : int
        The windows' length, as for `WindowNormBase`.
    axes : tuple of int
        The axes along which they extend, the first one, which is the batch's, excepted.
    backward : bool
        Whether the element that an even window has more is before the center. It makes the
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

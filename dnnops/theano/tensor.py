"""Functions of ``theano.tensor`` that have other names or arguments in PyTensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.replace import vectorize_graph
from pytensor.tensor.shape import Shape, specify_broadcastable
from pytensor.tensor.type import TensorType

from dnnops.errors import DnnTypeError, DnnValueError

__all__ = [
    "abs_",
    "addbroadcast",
    "batched_dot",
    "batched_tensordot",
    "chi2sf",
    "choose",
    "clip",
    "col",
    "flatten",
    "inv",
    "matrix",
    "mean",
    "patternbroadcast",
    "repeat",
    "reshape",
    "row",
    "scalar",
    "split",
    "stack",
    "switch",
    "tensor",
    "tensor3",
    "tensor4",
    "tensor5",
    "tensor6",
    "tensor7",
    "tile",
    "unbroadcast",
    "unravel_index",
    "vector",
]


abs_ = pt.abs
inv = pt.reciprocal


def _constructor(kind: str) -> Callable[..., Any]:
    make: Any = getattr(pt, kind)

    def construct(name: str | None = None, dtype: Any = None) -> Any:
        return make(name, dtype=dtype)

    construct.__name__ = construct.__qualname__ = kind
    construct.__doc__ = f"Create a {kind} variable; the dtype defaults to floatX."
    return construct


scalar = _constructor("scalar")
vector = _constructor("vector")
row = _constructor("row")
col = _constructor("col")
matrix = _constructor("matrix")
tensor3 = _constructor("tensor3")
tensor4 = _constructor("tensor4")
tensor5 = _constructor("tensor5")
tensor6 = _constructor("tensor6")
tensor7 = _constructor("tensor7")


def tensor(dtype: Any, broadcastable: Any, name: str | None = None) -> Any:
    """Create a tensor variable.

    Parameters
    ----------
    dtype : str
    broadcastable : sequence of bool
        Whether the size of each axis is always 1.
    name : str, optional
    """
    return TensorType(dtype, shape=tuple(1 if one else None for one in broadcastable))(name)


def stack(*tensors: Any, **kwargs: Any) -> Any:
    """Stack tensors, given as separate arguments or as a list and an axis, along a new axis."""
    if tensors and not kwargs and not isinstance(tensors[0], (list, tuple)):
        return pt.stack(tensors)
    return pt.stack(*tensors, **kwargs)


def flatten(x: Any, ndim: int | None = None, outdim: int | None = None) -> Any:
    """Flatten the last axes, leaving `ndim` dimensions, by default 1; `outdim` is an alias."""
    if ndim is not None and outdim is not None:
        raise DnnValueError("flatten: give either ndim or outdim, not both")
    return pt.flatten(x, next((n for n in (ndim, outdim) if n is not None), 1))


def reshape(x: Any, newshape: Any, ndim: int | None = None) -> Any:
    """Change the shape of a tensor to `newshape`, of `ndim` elements.

    Parameters
    ----------
    x : tensor
    newshape : sequence of int or scalar, or integer vector
        At most one element may be -1.
    ndim : int, optional
        Required where the length of a vector is not known.

    Returns
    -------
    TensorVariable
    """
    return pt.reshape(x, newshape, ndim=ndim)


def split(x: Any, splits_size: Any, n_splits: int, axis: int = 0) -> Any:
    """Split a tensor into `n_splits` parts along an axis."""
    return pt.split(x, splits_size, n_splits=n_splits, axis=axis)


def tile(x: Any, reps: Any, ndim: int | None = None) -> Any:
    """Repeat a tensor along its axes; if `ndim` is given, `reps` applies to the last axes."""
    if ndim is not None and isinstance(reps, (list, tuple)):
        reps = (*(1,) * (ndim - len(reps)), *reps)
    return pt.tile(x, reps)


def repeat(x: Any, repeats: Any, axis: int | None = None) -> Any:
    """Repeat the elements of a tensor."""
    return pt.repeat(x, repeats, axis)


def unravel_index(indices: Any, dims: Any, order: str = "C", ndim: int | None = None) -> Any:
    """Convert flat indices to one index per axis; `ndim` is ignored."""
    return pt.unravel_index(indices, dims, order)


def mean(
    input: Any,
    axis: Any = None,
    dtype: Any = None,
    op: Any = False,
    keepdims: bool = False,
    acc_dtype: Any = None,
) -> Any:
    """Compute the mean of a tensor; `op` is ignored."""
    return pt.mean(input, axis=axis, dtype=dtype, keepdims=keepdims, acc_dtype=acc_dtype)


def choose(a: Any, choices: Any, out: Any = None, mode: str = "raise") -> Any:
    """Select each element from one of several tensors."""
    if out is not None:
        raise DnnValueError("choose: out must be None")
    return pt.choose(a, choices, mode)


def clip(x: Any, min: Any, max: Any) -> Any:
    """Clip the elements of a tensor to the range from `min` to `max`."""
    return pt.clip(x, min, max)


def switch(cond: Any, ift: Any, iff: Any) -> Any:
    """Select elements of `ift` where `cond` is true, and of `iff` elsewhere."""
    return pt.switch(cond, ift, iff)


def addbroadcast(x: Any, *axes: int) -> Any:
    """Make the axes broadcastable; their size must be 1."""
    return specify_broadcastable(x, *axes)


def unbroadcast(x: Any, *axes: int) -> Any:
    """Make the axes not broadcastable, even if their size is 1."""
    x = pt.as_tensor_variable(x)
    if not any(x.type.shape[axis] == 1 for axis in axes):
        return x
    if None not in x.type.shape:
        # The product below would be folded to a constant, but the type of nonzero()'s result
        # doesn't know its length.
        for axis in axes:
            (index,) = pt.nonzero(pt.ones(x.shape[axis], dtype="bool"))
            x = pt.take(x, index, axis=axis)
        return x
    shape: Any = Shape()(x)
    # Sizes known from the type would reappear in the type of the result.
    sizes = [
        pt.prod(shape[axis : axis + 1]) if axis in axes else shape[axis] for axis in range(x.ndim)
    ]
    return pt.reshape(x, pt.stack(sizes), ndim=x.ndim)


def patternbroadcast(x: Any, broadcastable: Any) -> Any:
    """Make each axis broadcastable or not, according to `broadcastable`."""
    x = unbroadcast(x, *(axis for axis, one in enumerate(broadcastable) if not one))
    return specify_broadcastable(x, *(axis for axis, one in enumerate(broadcastable) if one))


def batched_dot(a: Any, b: Any) -> Any:
    """Compute the dot product of each pair of elements of two batches.

    Parameters
    ----------
    a, b : tensor
        Tensors whose first axis is the batch. If one is a vector, it scales the elements of the
        other; otherwise, the last axis of `a` is summed with the second to last axis of `b`, or
        its only one, besides the batch.

    Raises
    ------
    DnnTypeError
        If an operand is a scalar.
    """
    a, b = pt.as_tensor_variable(a), pt.as_tensor_variable(b)
    if 0 in (a.ndim, b.ndim):
        raise DnnTypeError("batched_dot: a and b must have a batch axis")
    if 1 in (a.ndim, b.ndim):
        ndim = max(a.ndim, b.ndim)
        return pt.shape_padright(a, ndim - a.ndim) * pt.shape_padright(b, ndim - b.ndim)
    if max(a.ndim, b.ndim) > 3:
        return batched_tensordot(a, b, [[a.ndim - 1], [max(1, b.ndim - 2)]])
    one_a, one_b = a[0].type(), b[0].type()
    return vectorize_graph(pt.dot(one_a, one_b), {one_a: a, one_b: b})


def chi2sf(x: Any, k: Any) -> Any:
    """Compute the survival function of the chi-squared distribution of `k` degrees of freedom.

    Parameters
    ----------
    x : tensor
        Non-negative numbers.
    k : tensor
        Degrees of freedom, which broadcast against `x`.

    Returns
    -------
    TensorVariable, in [0, 1]
    """
    return pt.gammaincc(pt.as_tensor_variable(k) / 2.0, pt.as_tensor_variable(x) / 2.0)


def batched_tensordot(x: Any, y: Any, axes: Any = 2) -> Any:
    """Compute the tensor dot product of each pair of elements of two batches.

    Parameters
    ----------
    x, y : tensor
        Tensors whose first axis is the batch.
    axes : int or pair of int or sequences of int
        Number of axes to sum over: the last ones of `x` and the first ones of `y` after the batch
        axis. Or the axis or axes of `x` and those of `y`, which must not include the batch axis, 0.

    Raises
    ------
    DnnValueError
        If `axes` isn't a number or a pair, includes the batch axis, or doesn't fit the operands.
    """
    x, y = pt.as_tensor_variable(x), pt.as_tensor_variable(y)
    pair: Any
    if not isinstance(axes, (list, tuple, np.ndarray)):
        count = int(axes)
        if not 0 <= count < min(x.ndim, y.ndim):
            raise DnnValueError(
                f"batched_tensordot: cannot sum over {count} axes of x and y, which have"
                f" {x.ndim - 1} and {y.ndim - 1} besides the batch axis"
            )
        pair = [range(x.ndim - count, x.ndim), range(1, 1 + count)]
    else:
        pair = [list(np.atleast_1d(each)) for each in axes]
        if len(pair) != 2 or len(pair[0]) != len(pair[1]):
            raise DnnValueError(
                f"batched_tensordot: axes must be a number, or as many axes of x as of y; got"
                f" {axes}"
            )
    one_x, one_y = x[0].type(), y[0].type()
    inner = [
        [_below_batch(name, axis, operand) for axis in one]
        for name, operand, one in zip("xy", (x, y), pair, strict=True)
    ]
    return vectorize_graph(pt.tensordot(one_x, one_y, inner), {one_x: x, one_y: y})


def _below_batch(name: str, axis: Any, operand: Any) -> int:
    """Return the number of an axis among those that follow the batch axis."""
    index = int(axis) + operand.ndim if axis < 0 else int(axis)
    if not 0 < index < operand.ndim:
        raise DnnValueError(
            f"batched_tensordot: {axis} is not an axis of {name}, which has {operand.ndim}, or is"
            " its batch axis"
        )
    return index - 1

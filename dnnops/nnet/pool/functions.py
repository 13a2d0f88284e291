"""Pooling functions for inputs of any rank and dtype, which also accept Theano's old names."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.tensor.variable import TensorVariable

from dnnops.arguments import one_of, switch
from dnnops.errors import DnnTypeError, DnnValueError, DnnWarning
from dnnops.nnet.pool.op import Pool
from dnnops.nnet.validate import as_floating, as_tensor, int_vector, is_int, show_shape

__all__ = ["pool_2d", "pool_3d"]


def _ignores_border(where: str, value: Any) -> bool:
    # Callers used to other libraries pass the stride as the third positional argument.
    if value is None:
        return False
    try:
        return switch(where, "ignore_border", value)
    except DnnTypeError as error:
        raise DnnTypeError(
            f"{error}; it is the third positional argument, so name the stride: stride=..."
        ) from None


def pool_nd(
    where: str,
    ndim: int,
    input: Any,
    mode: str,
    ignore_border: bool | None,
    ws: Any,
    stride: Any,
    pad: Any,
) -> TensorVariable:
    """Pool over windows of the last `ndim` axes on behalf of the public function `where`."""
    mode = one_of(where, "mode", mode, (*Pool.modes, "average"))
    op: Any = Pool(
        ndim,
        "average_inc_pad" if mode == "average" else mode,
        _ignores_border(where, ignore_border),
    )
    kept = as_tensor(f"{where}: input must be a tensor or array-like", input)
    x = as_floating(where, "input", kept)
    lead = x.type.ndim - ndim
    if lead < 0:
        raise DnnTypeError(
            f"{where}: input must have at least {ndim} dimensions, got {x.type.ndim}"
        )
    if ws is None:
        raise DnnValueError(f"{where}: ws, the window size, must be given")

    def vector(name: str, value: Any) -> TensorVariable:
        entries = (value,) * ndim if is_int(value) or _is_scalar(value) else value
        return int_vector(where, name, entries, ndim)

    size = vector("ws", ws)
    step = size if stride is None else vector("stride", stride)
    pad = vector("pad", 0 if pad is None else pad)
    out = over_leading_axes(op, [x], [size, step, pad])
    if 0 in out.type.shape[lead:] and 0 not in x.type.shape[lead:]:
        # Averages over an empty result are NaN, far from the reason.
        message = f"{where}: no window fits in input of shape {show_shape(x.type.shape)}"
        warnings.warn(DnnWarning(f"{message}, so the result is empty"), stacklevel=3)
    if kept.type.dtype == x.type.dtype:
        return out
    # Cast through int64, so that sums that are too large wrap around. Averages round toward zero.
    return pt.cast(pt.cast(out, "int64"), kept.type.dtype)


def over_leading_axes(op: Any, data: Sequence[Any], vectors: Sequence[Any]) -> TensorVariable:
    """Apply a pooling Op to tensors with any number of axes before the spatial ones.

    Parameters
    ----------
    op : PoolBase
    data : sequence of TensorVariable
        Data operands of `op`, which must have the same leading axes.
    vectors : sequence
        Window size, stride and padding.
    """
    x = data[0]
    lead = x.type.ndim - op.ndim
    if lead == 2:
        return op(*data, *vectors)
    if lead < 2:
        missing = tuple(range(2 - lead))
        out = op(*(pt.expand_dims(operand, missing) for operand in data), *vectors)
        return out.squeeze(missing)
    # Use the last leading axis as the channels and merge those before it into the batch.
    sizes = _sizes(x)[:lead]
    batch = sizes[0]
    for size in sizes[1 : lead - 1]:
        batch = batch * size
    merged = [operand.reshape((batch, *_sizes(operand)[lead - 1 :])) for operand in data]
    out = op(*merged, *vectors)
    return out.reshape((*sizes[: lead - 1], *_sizes(out)[1:]))


def _sizes(x: Any) -> list[Any]:
    return [x.shape[i] if n is None else n for i, n in enumerate(x.type.shape)]


def _renamed(
    where: str, name: str, value: Any, old: str, old_value: Any, default: tuple[Any, ...] = ()
) -> Any:
    """Return the value given under Theano's old name for an argument, if any, else `value`."""
    if old_value is None:
        return value
    # As in Theano, zero padding may be given under the new name in addition.
    is_default = value is None or (isinstance(value, (int, tuple)) and value in default)
    if not is_default:
        raise DnnValueError(f"{where}: {old} is an old name of {name}; give only {name}")
    return old_value


def _is_scalar(value: Any) -> bool:
    return isinstance(value, Variable) and getattr(value.type, "ndim", None) == 0


def _windows(
    where: str, ws: Any, stride: Any, pad: Any, ds: Any, st: Any, padding: Any
) -> tuple[Any, Any, Any]:
    """Return the window size, stride and padding, each given under its new or old name."""
    return (
        _renamed(where, "ws", ws, "ds", ds),
        _renamed(where, "stride", stride, "st", st),
        _renamed(where, "pad", pad, "padding", padding, (0, (0, 0), (0, 0, 0))),
    )


def pool_2d(
    input: Any,
    ws: Any = None,
    ignore_border: bool | None = None,
    stride: Any = None,
    pad: Any = (0, 0),
    mode: str = "max",
    ds: Any = None,
    st: Any = None,
    padding: Any = None,
) -> TensorVariable:
    """Pool over windows of the last two axes.

    Parameters
    ----------
    input : tensor_like, (..., rows, columns)
        Input with two or more dimensions; the last two are pooled. Integers are pooled as float32
        or float64 numbers and then cast back to their dtype: large sums wrap around, averages are
        rounded toward zero, and 64-bit integers beyond ``2**53`` are rounded.
    ws : int, sequence of 2 ints, or int vector
        Window size. Like `stride` and `pad`, it may be symbolic, including an int scalar, and may
        differ from call to call.
    ignore_border : bool, optional
        Whether to ignore windows that extend past the end. If false or None, these windows have
        fewer elements, and `pad` must be 0.
    stride : int, sequence of 2 ints, or int vector, optional
        Distance between windows. The default is `ws`, so that windows don't overlap.
    pad : int, sequence of 2 ints, or int vector
        Padding on both sides of rows and columns, smaller than `ws`. It is never the maximum and
        adds nothing to a sum.
    mode : {'max', 'max_deterministic', 'sum', 'average_inc_pad', 'average_exc_pad', 'average'}
        Reduction applied to each window. 'average_inc_pad' counts the padding and 'average_exc_pad'
        does not. With 'max_deterministic', gradients are bitwise reproducible even on a GPU.
        'average' is an alias of 'average_inc_pad'.
    ds, st, padding : optional
        Theano's old names of `ws`, `stride` and `pad`.

    Returns
    -------
    TensorVariable, (..., windows over the rows, windows over the columns)
        With `ignore_border`, an axis has ``(size + 2 * pad - ws) // stride + 1`` windows, or none
        if the window is larger than the padded image. The result is empty then; if the sizes are
        known, there is a `DnnWarning`. Otherwise, it has as many windows as start
        inside the image or, if windows overlap, as many as are needed to cover it.

    Raises
    ------
    DnnTypeError
        If the dtype, rank or type of an argument is invalid.
    DnnValueError
        If an argument is out of bounds, or given under both of its names. Symbolic values are
        checked when the compiled function is called.
    """
    windows = _windows("pool_2d", ws, stride, pad, ds, st, padding)
    return pool_nd("pool_2d", 2, input, mode, ignore_border, *windows)


def pool_3d(
    input: Any,
    ws: Any = None,
    ignore_border: bool | None = None,
    stride: Any = None,
    pad: Any = (0, 0, 0),
    mode: str = "max",
    ds: Any = None,
    st: Any = None,
    padding: Any = None,
) -> TensorVariable:
    """Pool over windows of the last three axes.

    See `pool_2d`. Here, the parameters have 3 entries and the input has three or more dimensions.
    """
    windows = _windows("pool_3d", ws, stride, pad, ds, st, padding)
    return pool_nd("pool_3d", 3, input, mode, ignore_border, *windows)

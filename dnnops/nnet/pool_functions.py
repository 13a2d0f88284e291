"""The functions of pooling: arguments under all their names, input of any rank and dtype."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.tensor.variable import TensorVariable

from dnnops.arguments import one_of, switch
from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.nnet._validate import as_floating, as_tensor, int_vector, is_int
from dnnops.nnet.pool import Pool

__all__ = ["pool_2d", "pool_3d"]


def _ignores_border(where: str, value: Any) -> bool:
    # Callers of other libraries give the stride in this place, by position.
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
    """Pool over windows of the last `ndim` axes, for the function `where`; None is the default."""
    mode = one_of(where, "mode", mode, (*Pool.modes, "average"))
    op: Any = Pool(
        ndim,
        "average_inc_pad" if mode == "average" else mode,
        _ignores_border(where, ignore_border),
    )
    kept = as_tensor(f"{where}: input must be a tensor, or numbers that make one", input)
    x = as_floating(where, "input", kept)
    lead = x.type.ndim - ndim
    if lead < 0:
        raise DnnTypeError(
            f"{where}: input must have at least {ndim} dimensions, got {x.type.ndim}"
        )
    if ws is None:
        raise DnnValueError(f"{where}: ws, the size of the windows, must be given")

    def vector(name: str, value: Any) -> TensorVariable:
        entries = (value,) * ndim if is_int(value) or _is_scalar(value) else value
        return int_vector(where, name, entries, ndim)

    size = vector("ws", ws)
    step = size if stride is None else vector("stride", stride)
    pad = vector("pad", 0 if pad is None else pad)
    out = over_leading_axes(op, [x], [size, step, pad])
    if kept.type.dtype == x.type.dtype:
        return out
    # By way of int64: sums that are too large wrap around, averages are rounded toward zero.
    return pt.cast(pt.cast(out, "int64"), kept.type.dtype)


def over_leading_axes(op: Any, data: Sequence[Any], vectors: Sequence[Any]) -> TensorVariable:
    """Apply an Op of pooling to arrays with more or fewer than two axes before the spatial ones.

    Parameters
    ----------
    op : PoolBase
    data : sequence of TensorVariable
        Its data operands, which have the same leading axes.
    vectors : sequence
        The windows' size, stride and padding.
    """
    x = data[0]
    lead = x.type.ndim - op.ndim
    if lead == 2:
        return op(*data, *vectors)
    if lead < 2:
        missing = tuple(range(2 - lead))
        out = op(*(pt.expand_dims(operand, missing) for operand in data), *vectors)
        return out.squeeze(missing)
    # The last leading axis is taken as the channels, all before it as the batch.
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
    """Take an argument by the name that Theano had for it before, if it was given by that one."""
    if old_value is None:
        return value
    # As in Theano, padding that is none may be given beside.
    is_default = value is None or (isinstance(value, (int, tuple)) and value in default)
    if not is_default:
        raise DnnValueError(f"{where}: {old} is an old name of {name}; give only {name}")
    return old_value


def _is_scalar(value: Any) -> bool:
    return isinstance(value, Variable) and getattr(value.type, "ndim", None) == 0


def _windows(
    where: str, ws: Any, stride: Any, pad: Any, ds: Any, st: Any, padding: Any
) -> tuple[Any, Any, Any]:
    """The windows' size, stride and padding, each under one of its names."""
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
        Of two or more dimensions; pooling is along the last two. Integers are pooled as float32 or
        float64 numbers and keep their dtype, in which large sums wrap around and averages are
        rounded toward zero; of 64 bits, those beyond ``2**53`` are rounded.
    ws : int, sequence of 2 ints, or int vector
        The windows' size. Like `stride` and `pad` it may be symbolic, an int scalar too, with
        other values in each call.
    ignore_border : bool, optional
        Whether windows that reach over the end are left out.  If not (None is False too),
        they have fewer elements, and `pad` must be 0.
    stride : int, sequence of 2 ints, or int vector, optional
        The distance between windows; `ws` if not given: windows that don't overlap.
    pad : int, sequence of 2 ints, or int vector
        The padding on both sides of rows and columns, less than `ws`.  It never is a maximum,
        and adds nothing to a sum.
    mode : {'max', 'max_deterministic', 'sum', 'average_inc_pad', 'average_exc_pad', 'average'}
        What is taken of each window; an average counts the padding, or does not. With
        'max_deterministic' gradients are the same bits in every run on a GPU, too. 'average' is
        another name of 'average_inc_pad'.
    ds, st, padding : optional
        Theano's old names of `ws`, `stride` and `pad`.

    Returns
    -------
    TensorVariable, (..., windows over the rows, windows over the columns)
        With `ignore_border` there are ``(size + 2 * pad - ws) // stride + 1`` windows.  Without,
        as many as start in the image, but if they overlap only as many as cover it.  No window is
        larger than the padded image: with `ignore_border` such a one leaves an empty result.

    Raises
    ------
    DnnTypeError
        If the dtype, rank or type of a parameter is invalid.
    DnnValueError
        If a parameter is out of bounds, or given under both of its names; at the call, if only
        that tells.
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

    As `pool_2d`, with parameters of 3 entries and an input of three or more dimensions.
    """
    windows = _windows("pool_3d", ws, stride, pad, ds, st, padding)
    return pool_nd("pool_3d", 3, input, mode, ignore_border, *windows)

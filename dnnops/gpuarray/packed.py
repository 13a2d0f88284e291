"""Elementwise kernels for large arrays; each thread computes several adjacent elements."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from pytensor.scalar.basic import ScalarOp

from dnnops.dtypes import DTYPES, numpy_dtype
from dnnops.runtime.scalar_code import PREAMBLE, scalar_code

__all__ = [
    "LEAST_SIZE",
    "Packed",
    "dense_rows",
    "pack_width",
    "packed_kernel",
    "packed_operands",
    "repetition",
]

#: Minimum number of elements for which a packed kernel is used.
LEAST_SIZE = 1 << 20
#: Bytes that a thread loads or stores at once, of the array with the largest elements.
_BYTES = 16
#: Maximum number of elements with an array that isn't dense, whose indices take 32 bits.
_MAX_INDEXED_SIZE = 2**31 - 1
#: Number of axes before the rows of an array.
_OUTER_AXES = 3

#: Kinds of arrays: a host number; a number in device memory; an array of the result's shape, dense
#: or of dense rows with any strides; or a smaller array, of which each element is repeated several
#: times in a row, and the whole sequence over and over again. Results are dense or of dense rows.
SCALAR, STORED, DENSE, ROWS, REPEATED = "scalar", "stored", "dense", "rows", "repeated"

_PACKS = """
template <int V, class T>
struct alignas(V * sizeof(T)) DnnopsPack {
  T of[V];
};
// Load the elements from `first` on of an array of n; past its end, repeat the last element.
template <int V, class T>
__device__ DnnopsPack<V, T> dnnops_load(const T *array, long long first, long long n) {
  DnnopsPack<V, T> pack;
  if (first + V <= n) {
    pack = *reinterpret_cast<const DnnopsPack<V, T> *>(array + first);
  } else {
    for (int k = 0; k < V; ++k) pack.of[k] = array[first + k < n ? first + k : n - 1];
  }
  return pack;
}
template <int V, class T>
__device__ void dnnops_store(T *array, long long first, long long n, const DnnopsPack<V, T> &pack) {
  if (first + V <= n) {
    *reinterpret_cast<DnnopsPack<V, T> *>(array + first) = pack;
  } else {
    for (int k = 0; k < V; ++k)
      if (first + k < n) array[first + k] = pack.of[k];
  }
}
template <int V, class T>
__device__ DnnopsPack<V, T> dnnops_pack_for(const T *) {
  return DnnopsPack<V, T>();
}
// Find an element of an array whose last axis consists of `run` adjacent elements, after three
// axes with lengths `middle` and `inner` of the second and the third.
template <class T>
__device__ T *dnnops_row(T *array, long long first, unsigned run, unsigned middle, unsigned inner,
                         long long stride0, long long stride1, long long stride2) {
  const unsigned place = (unsigned)first, row = place / run, outer = row / inner;
  const unsigned index0 = outer / middle;
  return array + index0 * stride0 + (outer - index0 * middle) * stride1 +
         (row - outer * inner) * stride2 + (place - row * run);
}
// Iterate over the elements of an array, returning each one `run` times in a row.
template <class T>
struct DnnopsRepeated {
  const T *array;
  unsigned run, count, left, at;
  __device__ T next() {
    const T value = array[at];
    if (--left == 0) {
      left = run;
      if (++at == count) at = 0;
    }
    return value;
  }
};
template <class T>
__device__ DnnopsRepeated<T> dnnops_repeat(
    const T *array, long long first, unsigned run, unsigned count) {
  const unsigned place = (unsigned)first, whole = place / run;
  return {array, run, count, run - (place - whole * run), whole % count};
}
"""


def repetition(array: Any, shape: tuple[int, ...]) -> tuple[int, int] | None:
    """Return how the elements of a contiguous array repeat when it is broadcast to `shape`.

    Parameters
    ----------
    array : cupy.ndarray
        Array with length 1 along the broadcast axes.
    shape : tuple of int
        Shape to broadcast to, in C order.

    Returns
    -------
    tuple of int or None
        How many times each element is repeated in a row, and the number of elements of `array`.
        None if the axes that aren't broadcast are not adjacent.
    """
    axes = [axis for axis, length in enumerate(array.shape) if length != 1]
    if not axes:
        return math.prod(shape), 1
    first, last = axes[0], axes[-1]
    if array.shape[first : last + 1] != shape[first : last + 1]:
        return None
    return math.prod(shape[last + 1 :]), array.size


@functools.lru_cache(maxsize=4096)
def dense_rows(
    shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int
) -> tuple[int, ...] | None:
    """Return the rows of adjacent elements that an array consists of.

    Parameters
    ----------
    shape : tuple of int
    strides : tuple of int
        Strides in bytes.
    itemsize : int

    Returns
    -------
    tuple of int or None
        The length of a row, the lengths of the second and the third of three axes before it, and
        the strides of these three axes in elements. None if there are more such axes.
    """
    axes: list[tuple[int, int]] = []
    for length, stride in zip(shape, strides, strict=True):
        if length == 1:
            continue
        if axes and axes[-1][1] == length * stride:
            axes[-1] = (axes[-1][0] * length, stride)
        else:
            axes.append((length, stride))
    if not axes or axes[-1][1] != itemsize or len(axes) > _OUTER_AXES + 1:
        return None
    if any(stride < 0 or stride % itemsize for _, stride in axes):
        return None
    *outer, (run, _) = [(1, 0)] * (_OUTER_AXES + 1 - len(axes)) + axes
    return (run, outer[1][0], outer[2][0], *(stride // itemsize for _, stride in outer))


class Packed(NamedTuple):
    """How a packed kernel accesses its operands and results.

    Attributes
    ----------
    kinds, result_kinds : tuple of str
        Kind of each operand and of each result.
    arguments : list
        Operands, each followed by the numbers that its kind needs.
    numbers : list of int
        Numbers that the kinds of the results need.
    """

    kinds: tuple[str, ...]
    result_kinds: tuple[str, ...]
    arguments: list[Any]
    numbers: list[int]


def packed_operands(
    operands: Sequence[Any], on_device: Sequence[bool], results: Sequence[Any], width: int
) -> Packed | None:
    """Return how a packed kernel accesses some operands and results.

    Parameters
    ----------
    operands : sequence
        Arrays with their axes in memory order; and numbers, on the host or as 0-d arrays.
    on_device : sequence of bool
        Whether each operand is an array that belongs to the node, rather than a number.
    results : sequence of cupy.ndarray
        Arrays for the results, of the same shape.
    width : int
        Number of elements per thread, from `pack_width`.

    Returns
    -------
    Packed or None
        None if a packed kernel can't be used.
    """
    shape, size = results[0].shape, results[0].size
    found = [_array_kind(z, size, width) for z in results]
    kinds, arguments = [], []
    for x, is_array in zip(operands, on_device, strict=True):
        arguments.append(x)
        if not is_array:
            kinds.append(STORED if hasattr(x, "data") and hasattr(x.data, "ptr") else SCALAR)
        elif x.shape == shape:
            kind, numbers = _array_kind(x, size, width)
            kinds.append(kind)
            arguments += numbers
        else:
            repeats = repetition(x, shape) if x.flags.c_contiguous else None
            if repeats is None or size > _MAX_INDEXED_SIZE:
                return None
            kinds.append(REPEATED)
            arguments += repeats
    result_kinds = [kind for kind, _ in found]
    if "" in kinds or "" in result_kinds:
        return None
    return Packed(
        tuple(kinds), tuple(result_kinds), arguments, [n for _, numbers in found for n in numbers]
    )


def _array_kind(array: Any, size: int, width: int) -> tuple[str, Sequence[int]]:
    """Return the kind of an array of the result's shape and its numbers; '' if it has none."""
    if array.data.ptr % _BYTES:
        return "", ()
    if array.flags.c_contiguous:
        return DENSE, ()
    rows = dense_rows(array.shape, array.strides, array.itemsize)
    if rows is None or size > _MAX_INDEXED_SIZE:
        return "", ()
    run, _, _, *strides = rows
    # The elements of a thread are in one row, at a multiple of their number.
    return ("", ()) if any(n % width for n in (run, *strides)) else (ROWS, rows)


def pack_width(dtypes: Sequence[str]) -> int:
    """Return the number of elements per thread for arrays of these dtypes.

    Parameters
    ----------
    dtypes : sequence of str

    Returns
    -------
    int
    """
    return _BYTES // max(numpy_dtype(dtype).itemsize for dtype in dtypes)


#: Parameters of kernels for an operand or result of each kind.
_PARAMETERS = {
    SCALAR: "{dtype} in{name}",
    STORED: "raw {dtype} a{name}",
    DENSE: "raw {dtype} a{name}",
    ROWS: "raw {dtype} a{name}, {rows}",
    REPEATED: "raw {dtype} a{name}, uint32 run{name}, uint32 count{name}",
}
_ROW_NUMBERS = ("run", "middle", "inner", "stride0_", "stride1_", "stride2_")


def _row_parameters(name: object) -> str:
    return ", ".join(
        f"{'int64' if number.startswith('stride') else 'uint32'} {number}{name}"
        for number in _ROW_NUMBERS
    )


def _where(kind: str, array: str, name: object, width: int) -> str:
    """Return the C arguments that say which elements a thread loads or stores."""
    if kind == DENSE:
        return f"{array}, first, n"
    return (
        f"dnnops_row({array}, first, {', '.join(f'{n}{name}' for n in _ROW_NUMBERS)}), 0, {width}"
    )


@functools.lru_cache(maxsize=1024)
def packed_kernel(
    scalar_op: ScalarOp,
    in_dtypes: tuple[str, ...],
    out_dtypes: tuple[str, ...],
    kinds: tuple[str, ...],
    result_kinds: tuple[str, ...],
    width: int,
) -> Any:
    """Return the CuPy kernel of a scalar Op for the operands of `packed_operands`.

    Loading one element at a time, especially of 16 bits, doesn't reach the full memory bandwidth.

    Parameters
    ----------
    scalar_op : ScalarOp
    in_dtypes, out_dtypes : tuple of str
        Dtypes of operands and results in memory.
    kinds, result_kinds : tuple of str
        Kind of each operand and of each result.
    width : int
        Number of elements per thread.

    Returns
    -------
    cupy.ElementwiseKernel
        Kernel whose parameters are the arguments and numbers of `Packed`; the number of elements;
        and the results, which may overwrite operands. Its size is the number of threads.
    """
    import cupy

    code = scalar_code(scalar_op, in_dtypes)
    lines = [f"const long long first = (long long)i * {width};"]
    elements = []
    for i, kind in enumerate(kinds):
        if kind == STORED:
            lines.append(f"const auto in{i} = a{i}[0];")
        elif kind == REPEATED:
            lines.append(f"auto p{i} = dnnops_repeat(&a{i}[0], first, run{i}, count{i});")
            elements.append(f"const auto in{i} = p{i}.next();")
        elif kind != SCALAR:
            where = _where(kind, f"&a{i}[0]", i, width)
            lines.append(f"const auto p{i} = dnnops_load<{width}>({where});")
            elements.append(f"const auto in{i} = p{i}.of[k];")
    stores = []
    for i, kind in enumerate(result_kinds):
        lines.append(f"auto q{i} = dnnops_pack_for<{width}>(&z{i}[0]);")
        where = _where(kind, f"&z{i}[0]", f"z{i}", width)
        stores.append(f"dnnops_store<{width}>({where}, q{i});")
    lines += ["#pragma unroll", f"for (int k = 0; k < {width}; ++k) {{", *elements]
    lines += [f"{DTYPES[dtype].c_type} out{i};" for i, dtype in enumerate(out_dtypes)]
    lines.append(code.operation)
    lines += [f"q{i}.of[k] = out{i};" for i in range(len(out_dtypes))]
    lines += ["}", *stores]
    operands = [
        _PARAMETERS[kind].format(dtype=dtype, name=i, rows=_row_parameters(i))
        for i, (kind, dtype) in enumerate(zip(kinds, in_dtypes, strict=True))
    ]
    numbers = [_row_parameters(f"z{i}") for i, kind in enumerate(result_kinds) if kind == ROWS]
    return cupy.ElementwiseKernel(
        ", ".join([*operands, *numbers, "int64 n"]),
        ", ".join(f"raw {dtype} z{i}" for i, dtype in enumerate(out_dtypes)),
        "\n".join(lines),
        name="dnnops_elementwise_packed",
        preamble=f"{PREAMBLE}\n{_PACKS}\n{code.support}",
        no_return=True,
    )

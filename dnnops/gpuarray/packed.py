"""Elementwise kernels for large dense arrays; each thread computes several elements."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

from pytensor.scalar.basic import ScalarOp

from dnnops.dtypes import DTYPES, numpy_dtype
from dnnops.runtime.scalar_code import PREAMBLE, scalar_code

__all__ = ["LEAST_SIZE", "pack_width", "packed_kernel", "packed_operands", "repetition"]

#: Minimum number of elements for which a packed kernel is used.
LEAST_SIZE = 1 << 20
#: Bytes that a thread loads or stores at once, of the array with the largest elements.
_BYTES = 16
#: Maximum number of elements with a repeated operand, whose indices are computed in 32 bits.
_MAX_REPEATED_SIZE = 2**31 - 1

#: Kinds of operands: a host number; a number in device memory; an array of the result's shape; or a
#: smaller array, of which each element is repeated several times in a row, and the whole sequence
#: over and over again.
SCALAR, STORED, DENSE, REPEATED = "scalar", "stored", "dense", "repeated"

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


def packed_operands(
    operands: Sequence[Any], on_device: Sequence[bool], results: Sequence[Any]
) -> tuple[tuple[str, ...], list[Any]] | None:
    """Return the kinds and arguments of a packed kernel for some operands.

    Return None if a packed kernel can't be used.

    Parameters
    ----------
    operands : sequence
        Arrays with their axes in memory order; and numbers, on the host or as 0-d arrays.
    on_device : sequence of bool
        Whether each operand is an array that belongs to the node, rather than a number.
    results : sequence of cupy.ndarray
        Arrays for the results.

    Returns
    -------
    kinds : tuple of str
        Kind of each operand, for `packed_kernel`.
    arguments : list
        Arguments for the kernel parameters that belong to operands.
    """
    shape, size = results[0].shape, results[0].size
    if not all(_is_aligned(x) for x in results):
        return None
    kinds, arguments = [], []
    for x, is_array in zip(operands, on_device, strict=True):
        arguments.append(x)
        if not is_array:
            kinds.append(STORED if hasattr(x, "data") and hasattr(x.data, "ptr") else SCALAR)
            continue
        if x.shape == shape:
            if not _is_aligned(x):
                return None
            kinds.append(DENSE)
            continue
        found = repetition(x, shape) if x.flags.c_contiguous else None
        if found is None or size > _MAX_REPEATED_SIZE:
            return None
        kinds.append(REPEATED)
        arguments += found
    return tuple(kinds), arguments


def _is_aligned(array: Any) -> bool:
    return array.flags.c_contiguous and array.data.ptr % _BYTES == 0


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


@functools.lru_cache(maxsize=1024)
def packed_kernel(
    scalar_op: ScalarOp,
    in_dtypes: tuple[str, ...],
    out_dtypes: tuple[str, ...],
    kinds: tuple[str, ...],
) -> Any:
    """Return the CuPy kernel of a scalar Op for the operands of `packed_operands`.

    Loading one element at a time, especially of 16 bits, doesn't reach the full memory bandwidth.

    Parameters
    ----------
    scalar_op : ScalarOp
    in_dtypes, out_dtypes : tuple of str
        Dtypes of operands and results in memory.
    kinds : tuple of str
        Kind of each operand.

    Returns
    -------
    cupy.ElementwiseKernel
        Kernel whose parameters are the operands, each repeated one followed by its
        `repetition`; the number of elements; and the results, which may overwrite operands. Its
        size is the number of threads.
    """
    import cupy

    code = scalar_code(scalar_op, in_dtypes)
    dense = [i for i, kind in enumerate(kinds) if kind == DENSE]
    repeated = [i for i, kind in enumerate(kinds) if kind == REPEATED]
    width = pack_width([*(in_dtypes[i] for i in (*dense, *repeated)), *out_dtypes])
    lines = [f"const long long first = (long long)i * {width};"]
    lines += [f"const auto in{i} = a{i}[0];" for i, kind in enumerate(kinds) if kind == STORED]
    lines += [f"const auto p{i} = dnnops_load<{width}>(&a{i}[0], first, n);" for i in dense]
    lines += [f"auto p{i} = dnnops_repeat(&a{i}[0], first, run{i}, count{i});" for i in repeated]
    results = range(len(out_dtypes))
    lines += [f"auto q{i} = dnnops_pack_for<{width}>(&z{i}[0]);" for i in results]
    lines += ["#pragma unroll", f"for (int k = 0; k < {width}; ++k) {{"]
    lines += [f"const auto in{i} = p{i}.of[k];" for i in dense]
    lines += [f"const auto in{i} = p{i}.next();" for i in repeated]
    lines += [f"{DTYPES[dtype].c_type} out{i};" for i, dtype in enumerate(out_dtypes)]
    lines.append(code.operation)
    lines += [f"q{i}.of[k] = out{i};" for i in results]
    lines.append("}")
    lines += [f"dnnops_store<{width}>(&z{i}[0], first, n, q{i});" for i in results]
    parameters = {
        SCALAR: "{dtype} in{i}",
        STORED: "raw {dtype} a{i}",
        DENSE: "raw {dtype} a{i}",
        REPEATED: "raw {dtype} a{i}, uint32 run{i}, uint32 count{i}",
    }
    operands = [
        parameters[kind].format(dtype=dtype, i=i)
        for i, (kind, dtype) in enumerate(zip(kinds, in_dtypes, strict=True))
    ]
    return cupy.ElementwiseKernel(
        ", ".join([*operands, "int64 n"]),
        ", ".join(f"raw {dtype} z{i}" for i, dtype in enumerate(out_dtypes)),
        "\n".join(lines),
        name="dnnops_elementwise_packed",
        preamble=f"{PREAMBLE}\n{_PACKS}\n{code.support}",
        no_return=True,
    )

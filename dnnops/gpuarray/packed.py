"""Elementwise kernels for large dense arrays: a thread has several elements."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

from pytensor.scalar.basic import ScalarOp

from dnnops.gpuarray.codegen import C_TYPES, PREAMBLE, scalar_code
from dnnops.gpuarray.dtypes import numpy_dtype

__all__ = ["LEAST_SIZE", "are_dense", "pack_width", "packed_kernel"]

#: From how many elements on it is worth a kernel of its own.
LEAST_SIZE = 1 << 20
#: What a thread moves at once of the array with the largest elements.
_BYTES = 16

_PACKS = """
template <int V, class T>
struct alignas(V * sizeof(T)) DnnopsPack {
  T of[V];
};
// The elements from `first` on of an array of n; past its end, the last one again.
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
"""


def are_dense(arrays: Iterable[Any], shape: tuple[int, ...]) -> bool:
    """Tell whether arrays have this shape, in C order without gaps, and begin at 16 bytes.

    Parameters
    ----------
    arrays : iterable of cupy.ndarray
    shape : tuple of int

    Returns
    -------
    bool
    """
    return all(
        x.shape == shape and x.flags.c_contiguous and x.data.ptr % _BYTES == 0 for x in arrays
    )


def pack_width(dtypes: Sequence[str]) -> int:
    """Give how many elements a thread has, of arrays of these dtypes.

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
    on_device: tuple[bool, ...],
) -> Any:
    """Make the CuPy kernel of a scalar Op for arrays that `are_dense`.

    Single elements, of 16 bits above all, would not use all of the memory's bandwidth.

    Parameters
    ----------
    scalar_op : ScalarOp
    in_dtypes, out_dtypes : tuple of str
        Dtypes of operands and results in memory.
    on_device : tuple of bool
        Which operands are arrays; the others are scalars of the host.

    Returns
    -------
    cupy.ElementwiseKernel
        Its parameters are the operands, the number of elements, and the results, which may
        overwrite operands; its size is the number of threads.
    """
    import cupy

    code = scalar_code(scalar_op, in_dtypes)
    arrays = [i for i, is_array in enumerate(on_device) if is_array]
    width = pack_width([*(in_dtypes[i] for i in arrays), *out_dtypes])
    lines = [f"const long long first = (long long)i * {width};"]
    lines += [f"const auto p{i} = dnnops_load<{width}>(&a{i}[0], first, n);" for i in arrays]
    results = range(len(out_dtypes))
    lines += [f"auto q{i} = dnnops_pack_for<{width}>(&z{i}[0]);" for i in results]
    lines += ["#pragma unroll", f"for (int k = 0; k < {width}; ++k) {{"]
    lines += [f"const auto in{i} = p{i}.of[k];" for i in arrays]
    lines += [f"{C_TYPES[dtype]} out{i};" for i, dtype in enumerate(out_dtypes)]
    lines.append(code.operation)
    lines += [f"q{i}.of[k] = out{i};" for i in results]
    lines.append("}")
    lines += [f"dnnops_store<{width}>(&z{i}[0], first, n, q{i});" for i in results]
    operands = [
        f"raw {dtype} a{i}" if on_device[i] else f"{dtype} in{i}"
        for i, dtype in enumerate(in_dtypes)
    ]
    return cupy.ElementwiseKernel(
        ", ".join([*operands, "int64 n"]),
        ", ".join(f"raw {dtype} z{i}" for i, dtype in enumerate(out_dtypes)),
        "\n".join(lines),
        name="dnnops_elementwise_packed",
        preamble=f"{PREAMBLE}\n{_PACKS}\n{code.support}",
        no_return=True,
    )

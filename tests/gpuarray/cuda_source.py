"""Compile the CUDA source of CuPy kernels for an H200 on a machine without a GPU.

CuPy writes a kernel's source when the kernel is launched. This module calls the functions that
write it as the launch would, and NVRTC, which needs no GPU, compiles the result.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dnnops.gpuarray.elementwise.kernel import ElementwiseKernel
from dnnops.runtime.find import find_cuda
from tests.emulation.nvrtc import CudaError, compile_cuda

ARCHITECTURE = "compute_90"

_HEADERS = """
#include <cupy/complex.cuh>
#include <cupy/carray.cuh>
#include <cupy/atomics.cuh>
#include <cupy/math_constants.h>
"""

# Values of CuPy's enum for kernel arguments.
_NDARRAY, _INDEXER, _SCALAR = 1, 2, 3


def _numpy_dtype(parameter) -> np.dtype:
    return np.dtype(parameter.dtype)


def _arguments(parameters, ndim, contiguous, scalars=()):
    import cupy
    from cupy._core import _kernel, _scalar

    infos = []
    for i, parameter in enumerate(parameters):
        dtype = _numpy_dtype(parameter)
        if i in scalars:
            infos.append(_kernel._ArgInfo(_SCALAR, _scalar.CScalar, dtype, 0, True, True))
        else:
            infos.append(_kernel._ArgInfo(_NDARRAY, cupy.ndarray, dtype, ndim, contiguous, True))
    return infos


def _indexer(ndim):
    from cupy._core import _carray, _kernel

    return _kernel._ArgInfo(_INDEXER, _carray.Indexer, None, ndim, True, True)


def elementwise_source(kernel, ndim: int, contiguous: bool, scalars=()) -> str:
    """Return the source that CuPy compiles for operands of a rank; `scalars` are on the host."""
    from cupy._core import _kernel

    parameters = [*kernel.in_params, *kernel.out_params]
    infos = (*_arguments(parameters, ndim, contiguous, scalars), _indexer(ndim))
    return _kernel._get_elementwise_kernel_code(
        infos, _kernel._TypeMap(()), kernel.params, kernel.operation, kernel.name, kernel.preamble
    )


def reduction_source(kernel, ndim: int) -> str:
    """Return the source that CuPy compiles for the reduction of an array of rank `ndim`."""
    from cupy._core import _kernel, _reduction, _scalar

    (source,) = _arguments(kernel.in_params, ndim, ndim == 1)
    (result,) = _arguments(kernel.out_params, 1, True)
    stride = _kernel._ArgInfo(_SCALAR, _scalar.CScalar, np.dtype("int32"), 0, True, True)
    parameters = (
        *kernel.in_params,
        *kernel.out_params,
        *_kernel._get_param_info("CIndexer _in_ind, CIndexer _out_ind", False),
        *_kernel._get_param_info("int32 _block_stride", True),
    )
    return _reduction._ReductionKernel_get_cached_function_code(
        1,
        1,
        parameters,
        (source, result, _indexer(ndim), _indexer(1), stride),
        _kernel._TypeMap((("IndexT", "int32"),)),
        kernel.name,
        512,
        kernel.reduce_type,
        kernel.identity,
        kernel.map_expr,
        kernel.reduce_expr,
        kernel.post_map_expr,
        kernel.preamble,
        (),
    )


def compile_log(source: str) -> str:
    """Compile CUDA source, and return the compiler's errors; empty if there are none."""
    import cupy

    cupy_include = Path(cupy.__file__).parent / "_core" / "include"
    cccl = cupy_include / "cupy" / "_cccl"
    bundled = [cupy_include, cccl / "cub", cccl / "thrust", cccl / "libcudacxx"]
    directories = [*bundled, *find_cuda().include_dirs]
    includes = (f"-I{path}" for path in directories)
    try:
        compile_cuda(_HEADERS + source, "-std=c++17", *includes, architecture=ARCHITECTURE)
    except CudaError as error:
        return str(error)
    return ""


def elementwise_log(
    scalar_op, in_dtypes, out_dtypes, kinds=None, result_kinds=None, width=1, axes=0
) -> str:
    """Compile an elementwise kernel, by default of dense arrays; return the compiler's errors."""
    kinds = kinds or ("dense",) * len(in_dtypes)
    result_kinds = result_kinds or ("dense",) * len(out_dtypes)
    words = (tuple(in_dtypes), tuple(out_dtypes), kinds, result_kinds, width, axes)
    try:
        compile_cuda(
            ElementwiseKernel(scalar_op, *words).source(), "-std=c++17", architecture=ARCHITECTURE
        )
    except CudaError as error:
        return str(error)
    return ""

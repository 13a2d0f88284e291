"""Pooling on a GPU: against the float64 oracle."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from dnnops.errors import DnnNotSupportedError
from dnnops.gpu.fused.pool_sum import GpuDnnPoolGradSum
from dnnops.gpu.pool import GpuDnnPool, GpuDnnPoolGrad
from dnnops.gpu.pool_kernels import GpuMaxPoolGradGrad, GpuPool, GpuPoolGrad
from dnnops.gpuarray.type import GpuArrayType
from dnnops.nnet.pool.op import AveragePoolGrad, MaxPoolGrad, MaxPoolGradGrad, Pool
from tests.gpu.device import DTYPES, apply_op, check, host, on_gpu, poison, restrided, rounded
from tests.oracle import POOL_MODES, RELATIVE_ERROR, PoolCase, fuzz, pool_cases, run_op

pytestmark = pytest.mark.gpu

every_dtype = pytest.mark.parametrize("dtype", DTYPES)


def params_of(case: PoolCase) -> dict:
    return {"ndim": case.ndim, "mode": case.mode, "ignore_border": case.ignore_border}


def oracle(case: PoolCase, dtype: str, ties: bool = False) -> tuple:
    """Return x, its pooling, the gradient with respect to the pooling, and that of x."""
    x, gz, _ = (rounded(a, dtype) for a in case.arrays("float64", ties))
    out = run_op(Pool(**params_of(case)), x, *case.vectors)
    if case.mode == "max":
        op = MaxPoolGrad(case.ndim, case.ignore_border)
        return x, out, gz, run_op(op, x, out, gz, *case.vectors)
    return x, out, gz, run_op(AveragePoolGrad(**params_of(case)), x, gz, *case.vectors)


@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
@every_dtype
@fuzz(max_examples=110, case=pool_cases(ignore_border=True, max_channels=5, max_size=8, empty=True))
def test_cudnn(dtype, memory_format, case):
    x, out, gz, gx = oracle(case, dtype)
    given = on_gpu(x, dtype, memory_format)
    op = GpuDnnPool(**params_of(case), memory_format=memory_format)
    poison()
    pooled = apply_op(op, given, *case.vectors)
    check(pooled, out, dtype)
    grad = GpuDnnPoolGrad(**params_of(case), memory_format=memory_format)
    result = apply_op(grad, given, pooled, on_gpu(gz, dtype, memory_format), *case.vectors)
    check(result, gx, dtype)


@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
@every_dtype
@fuzz(max_examples=60, case=pool_cases(ignore_border=True, max_channels=9, max_size=8, empty=True))
def test_gradient_and_addend(dtype, memory_format, case):
    """Kernels or cuDNN add arrays of any strides; cuDNN adds windows one after the other."""
    x, out, gz, gx = oracle(case, dtype)
    addend = rounded(case.arrays("float64")[2], dtype)
    operands = [on_gpu(a, dtype, memory_format) for a in (x, out, gz, addend)]
    operands[-1] = restrided(np.random.default_rng(case.seed), operands[-1])
    op = GpuDnnPoolGradSum(**params_of(case), memory_format=memory_format)
    poison()
    result = apply_op(op, *operands, *case.vectors)
    check(result, gx + addend, dtype, bound=4 * RELATIVE_ERROR[dtype])


@pytest.mark.parametrize("part", [slice(0, 8), slice(8, 16), slice(1, 9)])
@pytest.mark.parametrize(("pooling", "window"), [("max", 2), ("max", 5), ("average_inc_pad", 2)])
def test_compiled_sum(pooling, window, part):
    """C code passes a part of a channels-last array on, to a kernel or to cuDNN."""
    params = {"mode": pooling, "ndim": 2, "memory_format": "channels_last"}
    x, pooled, gz, joined = (GpuArrayType("float32", (None,) * 4)() for _ in range(4))
    vectors = [window] * 2, [window] * 2, [0, 0]
    out = GpuDnnPoolGradSum(**params)(x, pooled, gz, joined[:, part], *vectors)
    plain = GpuDnnPoolGrad(**params)(x, pooled, gz, *vectors)
    mode = pytensor.compile.get_mode("CVM").including("gpu")
    f = pytensor.function([x, pooled, gz, joined], [out, plain], mode=mode)
    rng = np.random.default_rng(0)
    for batch, size in ((2, 10), (1, 5), (2, 10), (0, 10)):
        shape, top = (batch, 8, size, size), (batch, 8, size // window, size // window)
        values = (rng.standard_normal(s) for s in (shape, top, (batch, 24, size, size)))
        image, gradient, wide = (on_gpu(v, "float32", "channels_last") for v in values)
        maxima = apply_op(GpuDnnPool(**params), image, *vectors)
        result, expected = f(image, maxima, gradient, wide)
        check(result, host(expected) + host(wide[:, part]), "float32")


@every_dtype
@fuzz(max_examples=110, case=pool_cases(max_channels=5, max_size=8, empty=True))
def test_kernels(dtype, case):
    x, out, gz, gx = oracle(case, dtype, ties=True)
    given = on_gpu(x, dtype)
    poison()
    pooled = apply_op(GpuPool(**params_of(case)), given, *case.vectors)
    check(pooled, out, dtype)
    operands = (given, pooled, on_gpu(gz, dtype), *case.vectors)
    check(apply_op(GpuPoolGrad(**params_of(case)), *operands), gx, dtype)
    if case.mode == "max":
        ggx = rounded(case.arrays("float64")[2], dtype)
        op = GpuMaxPoolGradGrad(case.ndim, "max", case.ignore_border)
        result = apply_op(op, given, pooled, on_gpu(ggx, dtype), *case.vectors)
        abstract = MaxPoolGradGrad(case.ndim, case.ignore_border)
        check(result, run_op(abstract, x, out, ggx, *case.vectors), dtype)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_ties(dtype, deterministic):
    """The gradient goes to the first of equal maxima, as in the abstract Op."""
    x = np.zeros((1, 1, 4, 4))
    x[0, 0, 0, 2] = x[0, 0, 1, 2] = x[0, 0, 1, 3] = 2
    ones = np.array([2, 2])
    op = GpuDnnPool(deterministic=deterministic)
    pooled = apply_op(op, on_gpu(x, dtype), ones, ones, np.array([0, 0]))
    gz = np.arange(1.0, 5).reshape(1, 1, 2, 2)
    grad = GpuDnnPoolGrad(deterministic=deterministic)
    result = host(
        apply_op(grad, on_gpu(x, dtype), pooled, on_gpu(gz, dtype), ones, ones, np.array([0, 0]))
    )
    first = np.zeros((4, 4))
    first[0, 0], first[0, 2], first[2, 0], first[2, 2] = gz.ravel()
    np.testing.assert_array_equal(result[0, 0], first)


def test_overlapping_ties():
    x = np.ones((2, 3, 7, 7))
    vectors = np.array([3, 3]), np.array([2, 2]), np.array([1, 1])
    gz = np.random.default_rng(0).standard_normal((2, 3, 4, 4))
    pooled = apply_op(GpuDnnPool(), on_gpu(x, "float32"), *vectors)
    result = apply_op(
        GpuDnnPoolGrad(), on_gpu(x, "float32"), pooled, on_gpu(gz, "float32"), *vectors
    )
    expected = run_op(MaxPoolGrad(2, True), x, np.ones(gz.shape), rounded(gz, "float32"), *vectors)
    check(result, expected, "float32")


@pytest.mark.parametrize("op", [GpuDnnPool, GpuPool])
def test_nan_is_the_maximum(op):
    x = np.zeros((1, 1, 2, 4))
    x[0, 0, 1, 2] = np.nan
    vectors = np.array([2, 2]), np.array([2, 2]), np.array([0, 0])
    out = host(apply_op(op(mode="max", ndim=2, ignore_border=True), on_gpu(x, "float32"), *vectors))
    np.testing.assert_array_equal(out[0, 0, 0], [0, np.nan])


@pytest.mark.parametrize("mode", POOL_MODES)
def test_partial_windows_are_refused(mode):
    x = on_gpu(np.zeros((1, 1, 5, 5)), "float32")
    vectors = np.array([2, 2]), np.array([2, 2]), np.array([0, 0])
    with pytest.raises(DnnNotSupportedError, match="extend past the end"):
        apply_op(GpuDnnPool(mode, 2, ignore_border=False), x, *vectors)


@pytest.mark.parametrize("mode", POOL_MODES)
def test_compiled_function(mode):
    x = GpuArrayType("float32", (None,) * 4)()
    out = GpuDnnPool(mode, 2)(x, [3, 2], [2, 2], [1, 0])
    gx = pytensor.grad((pt.as_tensor_variable(out) ** 2).sum(), x)
    ggx = pytensor.grad((pt.as_tensor_variable(gx) ** 2).sum(), x)
    f = pytensor.function(
        [x], [out, gx, ggx], mode=pytensor.compile.get_mode("CVM").including("gpu")
    )
    xd = pt.dtensor4()
    dense = Pool(2, mode, True)(xd, [3, 2], [2, 2], [1, 0])
    dense_gx = pytensor.grad((dense**2).sum(), xd)
    dense_ggx = pytensor.grad((dense_gx**2).sum(), xd)
    oracle_f = pytensor.function([xd], [dense, dense_gx, dense_ggx], mode="FAST_COMPILE")
    rng = np.random.default_rng(0)
    for shape in ((2, 3, 6, 6), (1, 1, 9, 4), (2, 3, 6, 6)):
        value = rng.standard_normal(shape).astype("float32")
        for result, ref in zip(f(on_gpu(value, "float32")), oracle_f(value), strict=True):
            check(result, ref, "float32")

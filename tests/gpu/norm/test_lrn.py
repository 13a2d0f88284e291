"""Local response and divisive normalization on a GPU: against the float64 oracle."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from functools import partial

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import strategies as st

from dnnops import dnn, nnet
from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.gpu.base import as_gradient
from dnnops.gpu.divisive_normalization import (
    CenteredDivisiveNormalization,
    CenteredDivisiveNormalizationGrad,
    GpuDnnDivisiveNormalization,
    GpuDnnDivisiveNormalizationGrad,
)
from dnnops.gpu.lrn import GpuDnnLRN, GpuDnnLRNGrad
from dnnops.gpu.window_sum import KERNEL_NAMES, GpuWindowSum, kernel_source
from dnnops.gpuarray.type import GpuArrayType
from dnnops.nnet.norm.divisive_normalization import DivisiveNormalization, DivisiveNormalizationGrad
from dnnops.nnet.norm.lrn import LRN, LRNGrad
from dnnops.nnet.norm.window_base import WindowSum, window_sides
from dnnops.runtime.build import c_code_dir
from tests.emulation.nvrtc import compile_cuda
from tests.gpu.calls import call, device_tensor, shape_of
from tests.gpu.compiled import check_module
from tests.gpu.device import DTYPES, apply_all, apply_op, host, on_gpu, poison, restrided, rounded
from tests.host_libraries import compile_once
from tests.nnet.loss.test_ctc import run
from tests.nnet.norm.window_norm_cases import BAD_PARAMETERS, Case, cases
from tests.oracle import RELATIVE_ERROR, check_gradient, check_second_derivatives, fuzz

#: Windows that cuDNN supports.
CUDNN_DTYPES = ("float16", "float32", "float64")


def arrays_of(ndim: int, count: int = 1, dtype: str = "float32") -> list:
    return [GpuArrayType(dtype, (None,) * ndim)() for _ in range(count)]


#: Ops for what cuDNN computes without means, and with them.
DIVISIVE = (DivisiveNormalization, CenteredDivisiveNormalization)
DIVISIVE_GRAD = (DivisiveNormalizationGrad, CenteredDivisiveNormalizationGrad)
#: Absolute bound for subnormal numbers, which gradients with respect to means may be.
SPACING = {"float16": 6e-8, "bfloat16": 0.0, "float32": 0.0, "float64": 0.0}


def compare(out, expected, dtype, what):
    out, expected = (np.asarray(a).astype("float64") for a in (out, expected))
    assert out.shape == expected.shape, what
    norm = np.linalg.norm(expected)
    error = np.linalg.norm(out - expected)
    assert error <= RELATIVE_ERROR[dtype] * norm + SPACING[dtype] * np.sqrt(out.size), (
        f"{what}: relative error {error / norm if norm else np.inf:.3g}\n"
        f"out {out.ravel()[:20]}\nexpected {expected.ravel()[:20]}"
    )


# -- without a GPU -------------------------------------------------------------------------


@pytest.mark.needs("cudnn")
def test_c_modules():
    x, y, gy = arrays_of(4, 3)
    check_module(GpuDnnLRN(5, 1e-4, 0.75, 2)(x))
    check_module(GpuDnnLRNGrad(5, 1e-4, 0.75, 2)(x, y, gy))
    check_module(GpuDnnDivisiveNormalization(5, 1e-4, 0.75, 2, True)(x, y))
    op = GpuDnnDivisiveNormalizationGrad(5, 1e-4, 0.75, 2, True)
    check_module(op.make_node(x, y, gy).outputs[1])


@pytest.mark.needs("cudnn")
@pytest.mark.parametrize("dtype", CUDNN_DTYPES)
@pytest.mark.parametrize("has_means", [False, True])
def test_shapes(dtype, has_means):
    x = device_tensor((2, 3, 4, 5), dtype)
    parameters = (5, 1e-4, 0.75, 2.0)
    for function, op, count in (
        ("lrn", GpuDnnLRN(*parameters), 1),
        ("lrn", GpuDnnLRNGrad(*parameters), 3),
        ("divisive_normalization", GpuDnnDivisiveNormalization(*parameters, has_means), 2),
        ("divisive_normalization", GpuDnnDivisiveNormalizationGrad(*parameters, has_means), 3),
    ):
        outputs = [device_tensor(()) for _ in op.results]
        found = call(f"dnnops_cudnn_{function}_shape", op, [x] * count, outputs)
        assert [shape_of(z) for z in found] == [(2, 3, 4, 5)] * len(op.results)


@pytest.mark.parametrize(("parameters", "error", "words"), BAD_PARAMETERS)
def test_bad_parameters(parameters, error, words):
    (x,) = arrays_of(4)
    with pytest.raises(error, match=f"GpuDnnLRN: {words}"):
        dnn.dnn_lrn(x, **parameters)
    with pytest.raises(error, match=f"GpuDnnDivisiveNormalization: {words}"):
        dnn.dnn_divisive_normalization(x, **parameters)


@pytest.mark.needs("cudnn")
def test_bad_operands():
    x3, x4, x1 = arrays_of(3)[0], arrays_of(4)[0], arrays_of(1)[0]
    half = arrays_of(4, 1, "float16")[0]
    fixed = GpuArrayType("float32", (2, 3, 4, 5))()
    other = GpuArrayType("float32", (2, 3, 4, 6))()
    with pytest.raises(DnnTypeError, match=r"dnn_lrn: img must have 2 or more dimensions.*got 1"):
        dnn.dnn_lrn(x1)
    with pytest.raises(DnnTypeError, match=r"img must have 4 to 5 dimensions.*got 3"):
        dnn.dnn_divisive_normalization(x3)
    with pytest.raises(DnnTypeError, match="expected float32 or float64, got float16; dnn_div"):
        GpuDnnDivisiveNormalization(5, 1e-4, 0.75, 2)(half)
    with pytest.raises(DnnTypeError, match="the same dtype"):
        dnn.dnn_divisive_normalization(x4, half)
    with pytest.raises(DnnTypeError, match=r"means must have 4 to 5 dimensions.*got 3"):
        dnn.dnn_divisive_normalization(x4, x3)
    with pytest.raises(DnnTypeError, match="the same rank"):
        dnn.dnn_divisive_normalization(x4, arrays_of(5)[0])
    with pytest.raises(DnnValueError, match=r"\(2, 3, 4, 6\)"):
        dnn.dnn_divisive_normalization(fixed, other)
    with pytest.raises(DnnTypeError, match="int32"):
        dnn.dnn_lrn(GpuArrayType("int32", (None,) * 4)())
    with pytest.raises(DnnValueError, match="axes"):
        GpuWindowSum(3, (4,))(x4)
    op = GpuDnnLRNGrad(5, 1.0, 0.75, 2.0)
    operands = [device_tensor(s) for s in ((2, 3), (2, 3), (2, 4))]
    with pytest.raises(DnnValueError, match="same dtype and shape"):
        call("dnnops_cudnn_lrn_shape", op, operands)


# -- what cuDNN computes of means ------------------------------------------------------------------


def centered_by_elements(case: Case, x, means):
    """Compute the result element by element, following the documentation."""
    out = np.empty_like(x)
    for place in np.ndindex(x.shape):
        window = tuple(slice(max(0, i - (case.n - 1) // 2), i + case.n // 2 + 1) for i in place[2:])
        total = ((x[(*place[:2], *window)] - means[place]) ** 2).sum()
        out[place] = x[place] / (case.k + case.alpha / case.n ** (x.ndim - 2) * total) ** case.beta
    return out


@fuzz(max_examples=40, case=cases(4, 5))
def test_means_of_the_center(case):
    x, means = case.arrays(2)
    out = run(CenteredDivisiveNormalization(**case.parameters, has_means=True), x, means)[0]
    np.testing.assert_allclose(out, centered_by_elements(case, x, means), rtol=1e-11)
    # What is the same for all costs no digits.
    single, wide = (
        run(CenteredDivisiveNormalization(**case.parameters, has_means=True), *pair)[0]
        for pair in ([(a + 300).astype(dtype) for a in (x, means)] for dtype in ("f4", "f8"))
    )
    exact = [(a + 300).astype("f4").astype("f8") for a in (x, means)]
    np.testing.assert_allclose(single, centered_by_elements(case, *exact), rtol=1e-5)
    np.testing.assert_allclose(wide, centered_by_elements(case, x + 300, means + 300), rtol=1e-8)


@fuzz(max_examples=4, case=cases(4, 4, max_size=3, max_n=4))
def test_derivatives_with_means_of_the_center(case):
    def fun(x, means):
        return CenteredDivisiveNormalization(**case.parameters, has_means=True)(x, means)

    check_gradient(fun, case.arrays(2), eps=1e-5, allow_zero=True)
    check_second_derivatives(fun, case.arrays(2), eps=1e-5, allow_zero=True)


def test_a_gradient_of_even_windows_is_refused():
    with pytest.raises(
        DnnValueError, match="GpuDnnDivisiveNormalizationGrad: n must be odd, got 4"
    ):
        GpuDnnDivisiveNormalizationGrad(4, 1.0, 0.75, 2.0)


SUM_ON_HOST = r"""
#include "gpu/norm/window_sum.cuh"
extern "C" void run(const double *x, double *out, long long size, long long step, long long before,
                    long long after, long long count) {
  for (long long i = 0; i < count; ++i)
    out[i] = window_sum<double>(x, size, step, before, after, i);
}
"""


def test_window_sum_on_the_host(tmp_path):
    (tmp_path / "sum.cpp").write_text(SUM_ON_HOST)
    command = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-o", "sum.so", "sum.cpp"]
    compile_once([*command, f"-I{c_code_dir()}"], tmp_path)
    library = ctypes.CDLL(str(tmp_path / "sum.so"))

    @fuzz(max_examples=60, case=cases(2, 4), backward=st.booleans())
    def compare_with_the_oracle(case: Case, backward: bool) -> None:
        (x,) = case.arrays(1)
        axis = case.seed % (x.ndim - 1) + 1
        before, after = window_sides(case.n)[::-1] if backward else window_sides(case.n)
        out = np.full(x.shape, np.nan)
        sizes = (x.shape[axis], int(np.prod(x.shape[axis + 1 :])), before, after, x.size)
        pointers = (ctypes.c_void_p(a.ctypes.data) for a in (x, out))
        library.run(*pointers, *map(ctypes.c_longlong, sizes))
        expected = run(WindowSum(case.n, (axis,), backward), x)[0]
        np.testing.assert_allclose(out, expected, rtol=1e-12, atol=1e-12)

    compare_with_the_oracle()


@pytest.mark.needs("nvrtc")
def test_window_sum_compiles():
    compile_cuda(kernel_source(), "-std=c++17", names=KERNEL_NAMES)


# -- on a GPU ------------------------------------------------------------------------------


def device_operands(case: Case, count: int, dtype: str) -> tuple[list, list]:
    """Return operands as float64 values that the dtype can represent, and on the device."""
    values = [rounded(a, dtype) for a in case.arrays(count)]
    rng = np.random.default_rng(case.seed)
    return values, [restrided(rng, on_gpu(a, dtype)) for a in values]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", CUDNN_DTYPES)
@fuzz(max_examples=80, case=cases(2, 6, max_size=9))
def test_lrn(dtype, case):
    parameters = case.parameters
    (x, gy), (device_x, device_gy) = device_operands(case, 2, dtype)
    poison()
    (y,) = apply_all(GpuDnnLRN(**parameters), device_x)
    compare(host(y), run(LRN(**parameters), x)[0], dtype, f"forward {dtype} {case}")
    (dx,) = apply_all(GpuDnnLRNGrad(**parameters), device_x, y, device_gy)
    compare(host(dx), run(LRNGrad(**parameters), x, gy)[0], dtype, f"gradient {dtype} {case}")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@fuzz(max_examples=60, case=cases(2, 5, max_size=9), backward=st.booleans())
def test_window_sum(dtype, case, backward):
    axes = tuple(range(1, len(case.shape)))[case.seed % 2 :]
    (x,), (device_x,) = device_operands(case, 1, dtype)
    poison()
    (out,) = apply_all(GpuWindowSum(case.n, axes, backward), device_x)
    compare(host(out), run(WindowSum(case.n, axes, backward), x)[0], dtype, f"{dtype} {case}")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("has_means", [False, True])
@fuzz(max_examples=55, case=cases(4, 5, max_size=9))
def test_cudnn_divisive(has_means, dtype, case):
    arrays, device_arrays = device_operands(case, 3, dtype)
    if not has_means:
        del arrays[1], device_arrays[1]
    *given, gy = arrays
    parameters = {**case.parameters, "has_means": has_means}
    op, oracle = GpuDnnDivisiveNormalization(**parameters), DIVISIVE[has_means](**parameters)
    poison()
    (y,) = apply_all(op, *device_arrays[:-1])
    compare(host(y), run(oracle, *given)[0], dtype, f"{op} {dtype} {case}")
    parameters["n"] -= parameters["n"] % 2 == 0
    op = GpuDnnDivisiveNormalizationGrad(**parameters)
    expected = run(DIVISIVE_GRAD[has_means](**parameters), *given, gy)
    found = apply_all(op, *device_arrays)
    for name, out, ref in zip(op.results, found, expected, strict=True):
        compare(host(out), ref, dtype, f"{name} {op} {dtype} {case}")


def by_function(parameters, kind, *operands):
    """Return ``dnn_divisive_normalization``, or its gradient with respect to an operand."""
    if kind == "y":
        return dnn.dnn_divisive_normalization(*operands, **parameters)
    *given, gy = operands
    y = dnn.dnn_divisive_normalization(*given, **parameters)
    return pytensor.grad(None, given[kind], known_grads={y: as_gradient(gy)})


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@fuzz(max_examples=60, case=cases(4, 5, max_size=9), large=st.booleans())
def test_divisive_of_16_bits(dtype, case, large):
    """Use float32, so that only results are rounded, and squares do not overflow."""
    has_means = bool(case.seed % 2)
    arrays, _ = device_operands(case, 3, dtype)
    if large:
        arrays[0] *= 512
    if not has_means:
        del arrays[1]
    case = replace(case, n=case.n - (case.n % 2 == 0))
    parameters, words = case.parameters, f"{dtype}, means {has_means}, {case}, large {large}"
    *given, gy = arrays
    operands = [on_gpu(a, dtype) for a in arrays]
    poison()
    y = apply_op(partial(by_function, parameters, "y"), *operands[:-1])
    reference = run(DIVISIVE[has_means](**parameters, has_means=has_means), *given)[0]
    compare(host(y), reference, dtype, f"y {words}")
    expected = run(DIVISIVE_GRAD[has_means](**parameters, has_means=has_means), *given, gy)
    for i, ref in enumerate(expected):
        gradient = apply_op(partial(by_function, parameters, i), *operands)
        compare(host(gradient), ref, dtype, f"gradient {i} {words}")


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(0, 3, 4, 5), (2, 0, 4, 5), (2, 3, 0, 5)])
def test_empty(shape):
    x = on_gpu(np.zeros(shape), "float32")
    parameters = (5, 1e-4, 0.75, 2.0)
    assert apply_all(GpuDnnLRN(*parameters), x)[0].shape == shape
    assert apply_all(GpuDnnLRNGrad(*parameters), x, x, x)[0].shape == shape
    assert apply_all(GpuDnnDivisiveNormalization(*parameters), x)[0].shape == shape
    assert apply_all(GpuWindowSum(3, (1, 2)), x)[0].shape == shape


@pytest.mark.gpu
@pytest.mark.parametrize(
    "shape",
    [
        *[((1 << 16) + 5, 3, 2, 2), (2 * 65535, 2, 1, 2)],  # several calls
        *[(2, 3, 300, 400), (2, (1 << 16) + 5, 2)],
    ],
)
def test_sizes(shape):
    case = Case(shape, 5, 0.5, 0.75, 2.0, 0)
    (x, gy), (device_x, device_gy) = device_operands(case, 2, "float32")
    parameters = case.parameters
    (y,) = apply_all(GpuDnnLRN(**parameters), device_x)
    compare(host(y), run(LRN(**parameters), x)[0], "float32", str(case))
    (dx,) = apply_all(GpuDnnLRNGrad(**parameters), device_x, y, device_gy)
    compare(host(dx), run(LRNGrad(**parameters), x, gy)[0], "float32", str(case))
    if len(shape) == 4:
        (y,) = apply_all(GpuDnnDivisiveNormalization(**parameters), device_x)
        expected = run(DivisiveNormalization(**parameters), x)[0]
        compare(host(y), expected, "float32", f"divisive {case}")
        (dx,) = apply_all(GpuDnnDivisiveNormalizationGrad(**parameters), device_x, device_gy)
        expected = run(DivisiveNormalizationGrad(**parameters), x, gy)[0]
        compare(host(dx), expected, "float32", f"divisive gradient {case}")


@pytest.mark.gpu
def test_compiled_functions():
    """Run the abstract Ops in a GPU mode, with derivatives, and cuDNN's Ops directly."""
    x, m = arrays_of(4, 2)

    def outputs(x, m):
        lrn = nnet.local_response_normalization(x, 4, 0.5, 0.75, 1.5)
        plain = nnet.divisive_normalization(x, 4, 0.5, 0.6, 1.5)
        around = nnet.divisive_normalization(x, 3, 0.5, 0.5, 1.5, means=m)
        gradients = pytensor.grad((lrn**2 + plain**2 + around**2).sum(), [x, m])
        second = pytensor.grad((gradients[0] ** 2).sum(), x)
        return [lrn, plain, around, *gradients, second]

    def by_hand(apply, x, m):
        """Test an odd and an even window."""
        results = [apply(n, x, m) for n in (3, 4)]
        return [*results, *(g for y in results for g in pytensor.grad((y**2).sum(), [x, m]))]

    def explicit(n, x, m):
        return pt.as_tensor_variable(dnn.dnn_divisive_normalization(x, m, n, 0.5, 0.6, 1.5))

    def expected(n, x, m):
        return CenteredDivisiveNormalization(n, 0.5, 0.6, 1.5, True)(x, m)

    on_host = [pt.as_tensor_variable(v) for v in (x, m)]
    f = pytensor.function(
        [x, m],
        [*outputs(*on_host), *by_hand(explicit, x, m)],
        mode=pytensor.compile.get_mode("CVM").including("gpu"),
    )
    names = {type(node.op).__name__ for node in f.maker.fgraph.apply_nodes}
    wanted = {"GpuDnnLRN", "GpuDnnLRNGrad", "GpuWindowSum", "GpuDnnDivisiveNormalization"}
    assert wanted | {"GpuDnnDivisiveNormalizationGrad"} <= names, names
    assert not any("OneDnn" in name for name in names), names
    wide = pt.dtensor4(), pt.dtensor4()
    reference = pytensor.function(
        [*wide], [*outputs(*wide), *by_hand(expected, *wide)], mode="FAST_COMPILE"
    )
    rng = np.random.default_rng(0)
    for shape in ((2, 3, 8, 9), (1, 1, 12, 7), (2, 3, 8, 9)):
        given = [rng.standard_normal(shape).astype("float32") for _ in range(2)]
        found = f(*(on_gpu(a, "float32") for a in given))
        for i, (out, ref) in enumerate(zip(found, reference(*given), strict=True)):
            value = out.get() if hasattr(out, "get") else out
            compare(value, ref, "float32", f"output {i} of {shape}")

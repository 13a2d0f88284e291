"""Local response and divisive normalization on a GPU: against the float64 oracle."""

from __future__ import annotations

import ctypes
import subprocess

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import strategies as st

from dnnops import dnn, nnet
from dnnops.cudnn.divisive_normalization import (
    GpuDnnDivisiveNormalization,
    GpuDnnDivisiveNormalizationGrad,
)
from dnnops.cudnn.lrn import GpuDnnLRN, GpuDnnLRNGrad
from dnnops.cudnn.window_sum import KERNEL_NAMES, GpuWindowSum, kernel_source
from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.gpuarray.type import GpuArrayType
from dnnops.nnet.divisive_normalization import DivisiveNormalization, DivisiveNormalizationGrad
from dnnops.nnet.lrn import LRN, LRNGrad
from dnnops.nnet.lrn_base import WindowSum, window_sides
from dnnops.runtime.build import c_code_dir
from tests.cudnn.calls import call, device_tensor, shape_of
from tests.cudnn.compiled import check_module
from tests.cudnn.device import DTYPES, apply_all, host, on_gpu, poison, restrided, rounded
from tests.nnet.test_ctc import run
from tests.nnet.window_norm_cases import BAD_PARAMETERS, Case, cases
from tests.oracle import RELATIVE_ERROR, fuzz

#: Those that cuDNN takes.
CUDNN_DTYPES = ("float16", "float32", "float64")


def arrays_of(ndim: int, count: int = 1, dtype: str = "float32") -> list:
    return [GpuArrayType(dtype, (None,) * ndim)() for _ in range(count)]


def compare(out, expected, dtype, what):
    out, expected = (np.asarray(a).astype("float64") for a in (out, expected))
    assert out.shape == expected.shape, what
    norm = np.linalg.norm(expected)
    error = np.linalg.norm(out - expected)
    assert error <= RELATIVE_ERROR[dtype] * norm, (
        f"{what}: relative error {error / norm if norm else np.inf:.3g}\n"
        f"out {out.ravel()[:20]}\nexpected {expected.ravel()[:20]}"
    )


# -- without a GPU -------------------------------------------------------------------------


def test_c_modules():
    x, y, gy = arrays_of(4, 3)
    check_module(GpuDnnLRN(5, 1e-4, 0.75, 2)(x))
    check_module(GpuDnnLRNGrad(5, 1e-4, 0.75, 2)(x, y, gy))
    check_module(GpuDnnDivisiveNormalization(5, 1e-4, 0.75, 2, True)(x, y))
    op = GpuDnnDivisiveNormalizationGrad(5, 1e-4, 0.75, 2, True)
    check_module(op.make_node(x, y, gy).outputs[1])


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


def test_bad_operands():
    x3, x4, x1 = arrays_of(3)[0], arrays_of(4)[0], arrays_of(1)[0]
    half = arrays_of(4, 1, "float16")[0]
    fixed = GpuArrayType("float32", (2, 3, 4, 5))()
    other = GpuArrayType("float32", (2, 3, 4, 6))()
    with pytest.raises(DnnTypeError, match=r"GpuDnnLRN: x must have 2 or more dimensions.*got 1"):
        dnn.dnn_lrn(x1)
    with pytest.raises(DnnTypeError, match=r"x must have 4 to 5 dimensions.*got 3"):
        dnn.dnn_divisive_normalization(x3)
    with pytest.raises(DnnTypeError, match="one dtype"):
        dnn.dnn_divisive_normalization(x4, half)
    with pytest.raises(DnnTypeError, match="one rank"):
        dnn.dnn_divisive_normalization(x4, x3)
    with pytest.raises(DnnValueError, match=r"\(2, 3, 4, 6\)"):
        dnn.dnn_divisive_normalization(fixed, other)
    with pytest.raises(DnnTypeError, match="int32"):
        dnn.dnn_lrn(GpuArrayType("int32", (None,) * 4)())
    with pytest.raises(DnnValueError, match="axes"):
        GpuWindowSum(3, (4,))(x4)
    op = GpuDnnLRNGrad(5, 1.0, 0.75, 2.0)
    operands = [device_tensor(s) for s in ((2, 3), (2, 3), (2, 4))]
    with pytest.raises(DnnValueError, match="one dtype and shape"):
        call("dnnops_cudnn_lrn_shape", op, operands)


SUM_ON_HOST = r"""
#include "window_sum.cuh"
extern "C" void run(const double *x, double *out, long long size, long long step, long long before,
                    long long after, long long count) {
  for (long long i = 0; i < count; ++i)
    out[i] = window_sum<double>(x, size, step, before, after, i);
}
"""


def test_window_sum_on_the_host(tmp_path):
    (tmp_path / "sum.cpp").write_text(SUM_ON_HOST)
    command = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-o", "sum.so", "sum.cpp"]
    subprocess.run([*command, f"-I{c_code_dir() / 'cudnn'}"], cwd=tmp_path, check=True)
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


def test_window_sum_compiles():
    nvrtc = pytest.importorskip("cupy_backends.cuda.libs.nvrtc")
    program = nvrtc.createProgram(kernel_source(), "window_sum.cu", (), ())
    for name in KERNEL_NAMES:
        nvrtc.addNameExpression(program, name)
    try:
        nvrtc.compileProgram(program, ("--gpu-architecture=compute_90", "-std=c++17"))
    except nvrtc.NVRTCError:
        pytest.fail(nvrtc.getProgramLog(program))
    finally:
        nvrtc.destroyProgram(program)


# -- on a GPU ------------------------------------------------------------------------------


def device_operands(case: Case, count: int, dtype: str) -> tuple[list, list]:
    """Operands as float64 that the dtype has, and on the device."""
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


def window_sum(v, n, backward=False):
    return run(WindowSum(n, tuple(range(2, v.ndim)), backward), v)[0]


def formulas(case: Case, x, means):
    """What cuDNN might compute, by names."""
    n, d = case.n, x.ndim - 2
    for side in (False, True):
        inside = window_sum(np.ones(x.shape), n, side)
        squares = {
            "(x_j - m_j)**2": window_sum((x - means) ** 2, n, side),
            "(x_j - m_i)**2 inside": window_sum(x**2, n, side)
            - 2 * means * window_sum(x, n, side)
            + means**2 * inside,
            "(x_j - m_i)**2 of n**d": window_sum(x**2, n, side)
            - 2 * means * window_sum(x, n, side)
            + means**2 * n**d,
        }
        tops = {"x": x, "x - m": x - means}
        for (top_name, top), (name, total), (divisor, count) in (
            (a, b, c)
            for a in tops.items()
            for b in squares.items()
            for c in (("n**d", n**d), ("n**2", n**2), ("n", n), ("inside", inside), ("1", 1))
        ):
            words = f"{top_name} over {name} / {divisor}, {'before' if side else 'after'} if even"
            yield words, top / (case.k + case.alpha * total / count) ** case.beta


def fitting(case: Case, x, means, out) -> str:
    errors = {
        words: np.linalg.norm(value - out) / np.linalg.norm(out)
        for words, value in formulas(case, x, means)
    }
    best = sorted(errors, key=errors.__getitem__)[:3]
    return "nearest formulas: " + "; ".join(f"{words}: {errors[words]:.2g}" for words in best)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", CUDNN_DTYPES)
@pytest.mark.parametrize("has_means", [False, True])
@fuzz(max_examples=40, case=cases(4, 5, max_size=9))
def test_cudnn_divisive(has_means, dtype, case):
    (x, means, gy), (device_x, device_means, device_gy) = device_operands(case, 3, dtype)
    parameters = {**case.parameters, "has_means": has_means}
    count = 2 if has_means else 1
    given, device_given = [x, means][:count], [device_x, device_means][:count]
    poison()
    (y,) = apply_all(GpuDnnDivisiveNormalization(**parameters), *device_given)
    expected = run(DivisiveNormalization(**parameters), *given)[0]
    try:
        compare(host(y), expected, dtype, f"forward {dtype} {case}")
    except AssertionError as error:
        found = fitting(case, x, means * has_means, host(y))
        raise AssertionError(f"{error}\n{found}") from error
    op = GpuDnnDivisiveNormalizationGrad(**parameters)
    found = apply_all(op, *device_given, device_gy)
    expected = run(DivisiveNormalizationGrad(**parameters), *given, gy)
    for name, out, ref in zip(op.results, found, expected, strict=True):
        compare(host(out), ref, dtype, f"{name} {dtype} {case}")


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
    "shape", [((1 << 16) + 5, 3, 2, 2), (2, 3, 300, 400), (2, (1 << 16) + 5, 2)]
)
def test_sizes(shape):
    case = Case(shape, 5, 0.5, 0.75, 2.0, 0)
    (x, gy), (device_x, device_gy) = device_operands(case, 2, "float32")
    parameters = case.parameters
    (y,) = apply_all(GpuDnnLRN(**parameters), device_x)
    compare(host(y), run(LRN(**parameters), x)[0], "float32", str(case))
    (dx,) = apply_all(GpuDnnLRNGrad(**parameters), device_x, y, device_gy)
    compare(host(dx), run(LRNGrad(**parameters), x, gy)[0], "float32", str(case))


@pytest.mark.gpu
def test_compiled_functions():
    """The abstract Ops in a GPU mode, with first and second derivatives."""
    x, m = pt.ftensor4(), pt.ftensor4()

    def outputs(x, m):
        lrn = nnet.local_response_normalization(x, 4, 0.5, 0.75, 1.5)
        plain = nnet.divisive_normalization(x, 4, 0.5, 0.6, 1.5)
        around = nnet.divisive_normalization(x, 3, 0.5, 0.5, 1.5, means=m)
        gradients = pytensor.grad((lrn**2 + plain**2 + around**2).sum(), [x, m])
        second = pytensor.grad((gradients[0] ** 2).sum(), x)
        return [lrn, plain, around, *gradients, second]

    f = pytensor.function(
        [x, m], outputs(x, m), mode=pytensor.compile.get_mode("CVM").including("gpu")
    )
    names = {type(node.op).__name__ for node in f.maker.fgraph.apply_nodes}
    assert {"GpuDnnLRN", "GpuDnnLRNGrad", "GpuWindowSum"} <= names, names
    wide = pt.dtensor4(), pt.dtensor4()
    reference = pytensor.function([*wide], outputs(*wide), mode="FAST_COMPILE")
    rng = np.random.default_rng(0)
    for shape in ((2, 3, 8, 9), (1, 1, 12, 7), (2, 3, 8, 9)):
        given = [rng.standard_normal(shape).astype("float32") for _ in range(2)]
        for i, (out, ref) in enumerate(zip(f(*given), reference(*given), strict=True)):
            compare(out, ref, "float32", f"output {i} of {shape}")

"""Activations with cuDNN: descriptors without a GPU, results with one."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from dnnops.dtypes import DTYPE_CODES
from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.gpu.activation import MODES, GpuDnnActivation, GpuDnnActivationGrad
from dnnops.gpuarray.type import GpuArrayType
from dnnops.nnet.activation.op import ACTIVATION_MODES, Activation, ActivationGrad
from tests.emulation.host_kernels import compile_for_host, launch_struct
from tests.gpu.calls import call, device_tensor, shape_of
from tests.gpu.device import (
    DTYPES,
    apply_op,
    bits,
    host,
    on_gpu,
    poison,
    rounded,
    values,
)
from tests.needs import of_dtypes
from tests.nnet.activation.activation_cases import COEFFICIENTS, magnitudes
from tests.oracle import RELATIVE_ERROR, SEED, repeat_command, run_op


def coefficient(rng: np.random.Generator, mode: str) -> float:
    return float(rng.uniform(0.5, 2)) if ACTIVATION_MODES[mode] else 0.0


@pytest.mark.needs("cudnn")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", MODES)
def test_descriptors(mode, dtype):
    coef = coefficient(np.random.default_rng(0), mode)
    for shape in ((), (3,), (2, 3, 4), (0, 2), (2,) * 8):
        x = device_tensor(shape, dtype)
        for op, inputs in (
            (GpuDnnActivation(mode, coef), [x]),
            (GpuDnnActivationGrad(mode, coef), [x, x, x]),
        ):
            call("dnnops_cudnn_activation_describe", op, inputs)
            (out,) = call("dnnops_cudnn_activation_shape", op, inputs)
            assert shape_of(out) == shape


@pytest.mark.needs("cudnn")
def test_bad_operands():
    x = GpuArrayType("float32", (None, 3))()
    with pytest.raises(DnnValueError, match="mode must be one of"):
        GpuDnnActivation("gelu")
    with pytest.raises(DnnValueError, match="no coefficient"):
        GpuDnnActivation("relu", 1.0)
    with pytest.raises(DnnTypeError, match="x, y, gy"):
        GpuDnnActivationGrad("relu")(x)
    with pytest.raises(DnnTypeError, match="the same rank"):
        GpuDnnActivationGrad("relu")(x, x, GpuArrayType("float32", (3,))())
    with pytest.raises(DnnValueError, match="same dtype and shape"):
        call(
            "dnnops_cudnn_activation_shape",
            GpuDnnActivationGrad("relu"),
            [device_tensor((3,)), device_tensor((3,)), device_tensor((4,))],
        )


@pytest.mark.parametrize("mode", MODES)
def test_gradients_are_built(mode):
    x = GpuArrayType("float32", (None, 3))()
    y = GpuDnnActivation(mode, coefficient(np.random.default_rng(0), mode))(x)
    g = pytensor.grad((pt.as_tensor_variable(y) ** 2).sum(), x)
    assert pytensor.grad((pt.as_tensor_variable(g) ** 2).sum(), x).type.ndim == 2
    assert GpuDnnActivation(mode, y.owner.op.coef, inplace=True).destroy_map == {0: [0]}
    gradient = GpuDnnActivationGrad(mode, y.owner.op.coef, inplace=True)
    assert gradient.destroy_map == {0: [2]}


# -- with a GPU ----------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_random(dtype):
    import cupy

    rng = np.random.default_rng(SEED)
    failures = []
    for number in range(70):
        mode = list(MODES)[number % len(MODES)]
        coef = coefficient(rng, mode)
        shape = tuple(int(n) for n in rng.integers(0 if number % 7 == 0 else 1, 9, number % 6))
        x, gy = (rounded(rng.standard_normal(shape) * 2, dtype) for _ in range(2))
        given, g = on_gpu(x, dtype), on_gpu(gy, dtype)
        if len(shape) > 1 and number % 3 == 0:
            given = cupy.asfortranarray(given)
        words = f"number {number}: {mode}({coef}) of {dtype}{shape}, strides {given.strides}"
        # 16-bit exponentials: an error of the result's last digit, and of the arithmetic.
        bound = max(RELATIVE_ERROR[dtype], 2e-6 if dtype == "float32" else 0)
        try:
            poison()
            y = apply_op(GpuDnnActivation(mode, coef), given)
            ref = run_op(Activation(mode, coef), x)
            np.testing.assert_allclose(host(y), ref, rtol=2 * bound, atol=bound)
            gx = apply_op(GpuDnnActivationGrad(mode, coef), given, y, g)
            ref = run_op(ActivationGrad(mode, coef), x, host(y), gy)
            np.testing.assert_allclose(host(gx), ref, rtol=4 * bound, atol=4 * bound)
        except Exception as error:
            failures.append(f"{words}: {type(error).__name__}: {error}")
    assert not failures, f"{len(failures)} fail; {repeat_command()}\n" + "\n".join(failures[:8])


@pytest.mark.parametrize("dtype", of_dtypes(*DTYPES, quick="float32"))
@pytest.mark.parametrize("mode", ["elu", "swish"])
def test_gradient_kernel_on_the_host(tmp_path, mode, dtype):
    macros = {"DTYPE": DTYPE_CODES[dtype], "SWISH": int(mode == "swish")}
    kernels = {"activation_grad": "ActivationGradParams"}
    library = compile_for_host(tmp_path, "activation_grad", kernels, macros)
    rng = np.random.default_rng(SEED)
    for coef in COEFFICIENTS[mode]:
        x = every_magnitude(dtype)
        gy = rounded(rng.standard_normal(x.size), dtype)
        given, gx = bits(x, dtype), bits(gy, dtype)  # in place
        launch = launch_struct(x=given, gy=gx, gx=gx, count=x.size, coef=float(coef))
        blocks = -(-x.size // 1024)
        assert library.run_activation_grad(launch, blocks, 256, SEED % 2**31) == 0
        ref = run_op(ActivationGrad(mode, coef), x, x, gy)
        check_slopes(mode, values(gx, dtype), ref, dtype)


def every_magnitude(dtype: str) -> np.ndarray:
    """Return numbers that the dtype has, as float64.

    Subnormal ones of float64 are left out, since the host takes them for 0, unlike a GPU.
    """
    x = rounded(magnitudes("float32" if dtype == "bfloat16" else dtype), dtype)
    if dtype != "float64":
        return x
    return x[(np.abs(x) >= np.finfo(dtype).tiny) | (x == 0)]


def check_slopes(mode: str, found: np.ndarray, ref: np.ndarray, dtype: str) -> None:
    """Compare relative to each element, where it is a normal number."""
    tiny = 1e-4 if dtype == "float16" else 300 * float(np.finfo("float32").tiny)
    tiny = 300 * float(np.finfo("float64").tiny) if dtype == "float64" else tiny
    if mode == "elu" and dtype in ("float32", "float64"):
        rtol = 4 * float(np.finfo(dtype).eps)
    else:
        # The exponential of a rounded product of up to 88 loses up to seven bits.
        rtol = {"float64": 1e-13, "float32": 2e-5}.get(dtype, 4 * RELATIVE_ERROR[dtype])
    near = np.where(np.abs(ref) > 1e-3, 1e-2 * rtol, 0)
    np.testing.assert_array_less(np.abs(found - ref), tiny + near + rtol * np.abs(ref))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_slopes_of_every_magnitude(dtype):
    for mode in ("elu", "swish"):
        for coef in COEFFICIENTS[mode]:
            x = every_magnitude(dtype)
            gy = np.ones(x.shape)
            given = on_gpu(x, dtype)
            y = apply_op(GpuDnnActivation(mode, coef), given)
            gx = apply_op(GpuDnnActivationGrad(mode, coef), given, y, on_gpu(gy, dtype))
            check_slopes(mode, host(gx), run_op(ActivationGrad(mode, coef), x, x, gy), dtype)


@pytest.mark.gpu
def test_special_values():
    """NaN stays NaN; at bends, slopes are those of the abstract Ops, with one exception."""
    x = np.array([np.nan, 0.0, 1.0, -1.0, 2.0])
    gy = np.ones(5)
    failures = []
    for mode in MODES:
        coef = {"clipped_relu": 2.0, "elu": 0.5, "swish": 1.5}.get(mode, 0.0)
        given = on_gpu(x, "float32")
        y = apply_op(GpuDnnActivation(mode, coef), given)
        gx = apply_op(GpuDnnActivationGrad(mode, coef), given, y, on_gpu(gy, "float32"))
        with np.errstate(invalid="ignore"):
            y_ref = run_op(Activation(mode, coef), x)
            gx_ref = run_op(ActivationGrad(mode, coef), x, y_ref, gy)
        if mode == "clipped_relu":  # at the ceiling itself, cuDNN has 1
            assert gx_ref[4] == 0
            gx_ref[4] = 1
        for name, out, ref in (("y", host(y), y_ref), ("gx", host(gx)[1:], gx_ref[1:])):
            if not np.allclose(out, ref, rtol=1e-5, atol=1e-6, equal_nan=True):
                failures.append(f"{mode}: {name} {out}, expected {ref}")
    assert not failures, "\n".join(failures)


@pytest.mark.gpu
def test_written_out():
    """Run the activations of `dnnops.nnet` and their gradients as elementwise kernels."""
    coefs = {"clipped_relu": 2.0, "elu": 0.5, "swish": 1.5}
    rng = np.random.default_rng(SEED)
    for dtype in ("float32", "float16"):
        x, gy = (GpuArrayType(dtype, (None, None))() for _ in range(2))
        outputs = []
        for mode in ACTIVATION_MODES:
            y = Activation(mode, coefs.get(mode, 0.0))(x)
            known = {y: pt.as_tensor_variable(gy)}
            outputs += [y, pt.as_tensor_variable(pytensor.grad(None, x, known_grads=known))]
        f = pytensor.function(
            [x, gy],
            [z.transfer("cuda") for z in outputs],
            mode=pytensor.compile.get_mode("CVM").including("gpu"),
        )
        assert {type(n.op).__name__ for n in f.maker.fgraph.apply_nodes} == {"GpuElemwise"}
        bound = max(RELATIVE_ERROR[dtype], 2e-6 if dtype == "float32" else 0)
        for number in range(20):
            value, g = (rounded(rng.standard_normal((7, 9)) * 2, dtype) for _ in range(2))
            value[0, :5] = np.nan, 0, 1, -1, 2
            found = f(on_gpu(value, dtype), on_gpu(g, dtype))
            for i, mode in enumerate(ACTIVATION_MODES):
                coef = coefs.get(mode, 0.0)
                with np.errstate(invalid="ignore"):
                    y = run_op(Activation(mode, coef), value)
                    gradient = run_op(ActivationGrad(mode, coef), value, y, g)
                for out, ref in zip(found[2 * i : 2 * i + 2], (y, gradient), strict=True):
                    words = f"{mode} of {dtype}, number {number}: {repeat_command()}"
                    out, ref = host(out).ravel()[1:], ref.ravel()[1:]
                    np.testing.assert_allclose(
                        out, ref, rtol=4 * bound, atol=4 * bound, err_msg=words
                    )
            assert all(np.isnan(host(y)[0, 0]) for y in found[::2])


@pytest.mark.gpu
def test_compiled_in_place():
    x = GpuArrayType("float32", (None, None))()
    moved = pt.as_tensor_variable(x) * np.float32(2)
    y = GpuDnnActivation("elu", 0.7)(moved)
    g = pytensor.grad((pt.as_tensor_variable(y) ** 2).sum(), x)
    f = pytensor.function([x], [y, g], mode=pytensor.compile.get_mode("CVM").including("gpu"))
    rng = np.random.default_rng(SEED)
    for _ in range(40):
        value = rng.standard_normal(rng.integers(1, 60, 2)).astype("float32")
        given = on_gpu(value, "float32")
        out, gradient = (np.asarray(z.get()) for z in f(given))
        np.testing.assert_array_equal(given.get(), value)
        wide = 2 * value.astype("float64")
        ref = np.where(wide > 0, wide, 0.7 * np.expm1(wide))
        slope = np.where(wide > 0, 1, 0.7 * np.exp(wide))
        np.testing.assert_allclose(out, ref, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(gradient, 4 * ref * slope, rtol=1e-4, atol=1e-5)

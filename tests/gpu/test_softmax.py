"""Softmax on a GPU: against the float64 oracle."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import strategies as st

from dnnops.gpu.softmax import GpuDnnSoftmax, GpuDnnSoftmaxGrad
from dnnops.gpuarray.type import GpuArrayType
from dnnops.nnet.activation.softmax import LogSoftmaxGrad, SoftmaxGrad
from tests.gpu.device import DTYPES, apply_op, check, host, on_gpu, poison, restrided, rounded
from tests.oracle import RELATIVE_ERROR, fuzz, normal, run_op

pytestmark = pytest.mark.gpu


def softmax(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    e = np.exp(x - x.max(axis=axes, keepdims=True))
    return e / e.sum(axis=axes, keepdims=True)


@st.composite
def cases(draw):
    shape = tuple(draw(st.lists(st.integers(1, 7), min_size=1, max_size=6)))
    first = draw(st.integers(0, len(shape) - 1))
    last = draw(st.integers(first, len(shape) - 1))
    return shape, tuple(range(first, last + 1)), draw(st.integers(0, 2**32 - 1))


@pytest.mark.parametrize("algo", ["fast", "accurate", "log"])
@pytest.mark.parametrize("dtype", DTYPES)
@fuzz(max_examples=60, case=cases())
def test_random(dtype, algo, case):
    shape, axes, seed = case
    rng = np.random.default_rng(seed)
    x = normal(rng, shape, "float64") * 3
    if algo == "fast":
        x = x.clip(-8, 8)  # what exp() keeps within float16, where cuDNN then puts it
    x = rounded(x, dtype)
    gz = rounded(normal(rng, shape, "float64"), dtype)
    expected = softmax(x, axes)
    if algo == "log":
        expected = np.log(expected)
    poison()
    given = restrided(rng, on_gpu(x, dtype)) if len(shape) > 1 else on_gpu(x, dtype)
    out = apply_op(GpuDnnSoftmax(algo, axis=axes), given)
    bound = max(RELATIVE_ERROR[dtype], 2e-7 if dtype == "float32" else 0)
    np.testing.assert_allclose(host(out), expected, rtol=bound * 5, atol=bound)
    grad = apply_op(GpuDnnSoftmaxGrad(algo, axis=axes), on_gpu(gz, dtype), out)
    abstract = (LogSoftmaxGrad if algo == "log" else SoftmaxGrad)(axes)
    np.testing.assert_allclose(
        host(grad), run_op(abstract, gz, host(out)), rtol=bound * 5, atol=bound * 5
    )


@pytest.mark.parametrize("mode", ["channel", "instance"])
def test_modes(mode):
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 5))
    axes = (1,) if mode == "channel" else (1, 2, 3)
    out = apply_op(GpuDnnSoftmax("accurate", mode), on_gpu(x, "float32"))
    check(out, softmax(rounded(x, "float32"), axes), "float32")


def test_large_operands():
    x = np.array([[1e4, 1e4 - 1, -1e4], [0, 1000, 1001]])
    out = apply_op(GpuDnnSoftmax(), on_gpu(x, "float32"))
    check(out, softmax(x, (1,)), "float32")


@pytest.mark.parametrize(
    "shape", [((1 << 16) + 5, 3), (3, (1 << 16) + 5), (2, 3, (1 << 16) + 5), (0, 3), (3, 0)]
)
def test_sizes(shape):
    x = np.random.default_rng(0).standard_normal(shape)
    out = apply_op(GpuDnnSoftmax(), on_gpu(x, "float32"))
    expected = softmax(rounded(x, "float32"), (1,)) if x.size else x
    check(out, expected, "float32")


@pytest.mark.parametrize("algo", ["accurate", "log"])
def test_compiled_function(algo):
    x = GpuArrayType("float32", (None,) * 3)()
    out = GpuDnnSoftmax(algo, axis=1)(x)
    gx = pytensor.grad((pt.as_tensor_variable(out) ** 2).sum(), x)
    ggx = pytensor.grad((pt.as_tensor_variable(gx) ** 2).sum(), x)
    f = pytensor.function(
        [x], [out, gx, ggx], mode=pytensor.compile.get_mode("CVM").including("gpu")
    )
    xd = pt.dtensor3()
    dense = (pt.special.log_softmax if algo == "log" else pt.special.softmax)(xd, axis=1)
    dense_gx = pytensor.grad((dense**2).sum(), xd)
    dense_ggx = pytensor.grad((dense_gx**2).sum(), xd)
    oracle = pytensor.function([xd], [dense, dense_gx, dense_ggx])
    rng = np.random.default_rng(0)
    for shape in ((2, 5, 3), (4, 1, 2), (2, 5, 3)):
        value = rng.standard_normal(shape).astype("float32")
        for result, ref in zip(f(on_gpu(value, "float32")), oracle(value), strict=True):
            np.testing.assert_allclose(host(result), ref, rtol=1e-4, atol=1e-5)

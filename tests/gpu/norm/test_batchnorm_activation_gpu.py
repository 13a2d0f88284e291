"""Batch normalization with relu and residual sums on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from dnnops import nnet
from dnnops.gpu.batchnorm import parameter_dtype
from dnnops.gpu.fused.batchnorm_activation import (
    GpuDnnBatchNormActivation,
    GpuDnnBatchNormActivationGrad,
    GpuDnnBatchNormActivationInference,
)
from dnnops.gpuarray.transfer import as_gpuarray_variable
from dnnops.nnet import BatchNormInference, BatchNormTrain, BatchNormTrainGrad
from tests.gpu.device import DTYPES, host, on_gpu, poison, restrided, rounded
from tests.gpu.norm.test_batchnorm_gpu import compare, gpu_arrays, reference_of, results_of
from tests.oracle import PERFORM_MODE

pytestmark = pytest.mark.gpu

SHAPES = [
    # Of all ways to distribute the work; some sizes fit no vector.
    (5, 3, 7, 7),
    (64, 6, 28, 28),
    (16, 70, 56, 56),
    (3, 4, 57, 57),
    (128, 40, 14, 14),
    (256, 512, 7, 7),
]
EPSILON = np.array(1e-3)
AXES = (0, 2, 3)


@pytest.mark.parametrize("layouts", ["cc", "ll", "cl", "lc", "aa"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_ops(dtype, shape, layouts):
    """All Ops, in place or not; the gradient's mask agrees with the result bit by bit."""
    rng = np.random.default_rng(len(layouts) + shape[0])
    of, small = parameter_dtype(dtype), (1, shape[1], 1, 1)
    # Few numbers, so that many results are zero except for rounding.
    x = rounded(rng.integers(-3, 4, shape) / 4, dtype)
    x[:, 0] = 0.5
    z, g = (rounded(rng.standard_normal(shape), dtype) for _ in range(2))
    scale, mean = (rounded(rng.standard_normal(small), of) for _ in range(2))
    var, factor = rounded(rng.uniform(0.5, 2, small), of), np.array(0.3)
    zero = (0.25 - x.mean(AXES, keepdims=True)) / np.sqrt(x.var(AXES, keepdims=True) + EPSILON)
    bias = rounded(-zero * scale, of)
    bias[:, 0] = 0

    def image(array: np.ndarray, layout: str) -> Any:
        if layout == "a":
            return restrided(rng, on_gpu(array, dtype))
        return on_gpu(array, dtype, "contiguous" if layout == "c" else "channels_last")

    poison()
    plain = reference_of(BatchNormTrain(AXES, True), x, scale, bias, EPSILON, factor, mean, var)
    inferred = reference_of(BatchNormInference(AXES), x, scale, bias, mean, var, EPSILON)
    parameters = gpu_arrays([scale, bias], dtype, 0)
    averages = [factor, *gpu_arrays([mean, var], dtype, 0)]
    for relu, addend, inplace in (
        (True, False, False),
        (True, False, True),
        (False, True, False),
        (True, True, True),
    ):
        words = f"{dtype}, {shape}, {layouts}, relu {relu}, addend {addend}, in place {inplace}"
        more = [image(z, layouts[1])] if addend else []

        def fused(result: np.ndarray, relu=relu, addend=addend) -> np.ndarray:
            result = result + z if addend else result
            return np.where(result <= 0, 0, result) if relu else result

        op = GpuDnnBatchNormActivation(
            "spatial", True, inplace_output=inplace, axes=AXES, relu=relu, addend=addend
        )
        found = results_of(op, image(x, layouts[0]), *parameters, EPSILON, *averages, *more)
        compare(found[:5], [fused(plain[0]), *plain[1:]], dtype, words)
        op = GpuDnnBatchNormActivationInference("spatial", inplace, AXES, relu, addend)
        given = [*parameters, *gpu_arrays([mean, var], dtype, 0), EPSILON]
        result = results_of(op, image(x, layouts[0]), *given, *more)
        compare(result, [fused(inferred[0])], dtype, f"inference, {words}")

    op = GpuDnnBatchNormActivation("spatial", axes=AXES)
    out, saved_mean, invstd, offsets = results_of(op, image(x, layouts[0]), *parameters, EPSILON)
    masked = np.where(host(out) > 0, g, 0)
    reference = reference_of(
        BatchNormTrainGrad(AXES), x, masked, scale, host(saved_mean), host(invstd)
    )
    for inplace in (False, True):
        op = GpuDnnBatchNormActivationGrad("spatial", inplace, AXES)
        given = [image(x, layouts[0]), image(g, layouts[1]), parameters[0]]
        found = results_of(op, *given, saved_mean, invstd, offsets)
        compare(found, reference, dtype, f"gradient, {dtype}, {shape}, {layouts}")
        op = op.replace(addend=True, inplace_x=inplace)
        given = [image(x, layouts[0]), image(g, layouts[1]), parameters[0]]
        result = image(host(out), layouts[1])
        found = results_of(op, *given, saved_mean, invstd, result)
        compare(found[:3], reference, dtype, f"from the result, {dtype}, {shape}, {layouts}")
        np.testing.assert_array_equal(host(found[3]), masked)


@pytest.mark.parametrize("shape", [(0, 3, 4, 4), (5, 0, 4, 4)])
def test_empty_arrays(shape):
    import cupy

    x = cupy.empty(shape, "float32")
    one = cupy.ones((1, shape[1], 1, 1), "float32")
    op = GpuDnnBatchNormActivationInference("spatial", addend=True)
    (out,) = results_of(op, x, *[one] * 4, EPSILON, x)
    assert out.shape == shape
    dx, dscale, dbias = results_of(GpuDnnBatchNormActivationGrad("spatial"), x, x, *[one] * 4)
    assert dx.shape == shape
    assert not host(dscale).any()
    assert not host(dbias).any()


def test_addend_of_another_shape():
    """Shapes that are known only at the call are checked then; an addend is not broadcast."""
    import cupy

    x, p = cupy.ones((2, 3, 4, 4), "float32"), cupy.ones((1, 3, 1, 1), "float32")
    op = GpuDnnBatchNormActivation("spatial", addend=True)
    with pytest.raises(ValueError, match="addend"):
        results_of(op, x, p, p, EPSILON, cupy.ones((2, 3, 4, 1), "float32"))


@pytest.mark.parametrize("residual", [False, True])
def test_compiled_function(residual):
    """A compiled network of two layers has the same gradients as on the host."""
    x, z, top = (pt.tensor(dtype="float32", shape=(None, 6, None, None)) for _ in range(3))
    gamma, beta = pt.fvector("gamma"), pt.fvector("beta")
    y = x
    for _ in range(2):
        y = nnet.batch_normalization_train(y, gamma, beta, "spatial")[0]
        y = nnet.relu(y + z if residual else y)
        y = nnet.pool_2d(y, (2, 2), stride=(1, 1), ignore_border=True)
        z = z[:, :, 1:, 1:]
    inputs = [x, gamma, beta]
    outputs = [y, *pytensor.grad((y * top).sum(), inputs)]
    inputs += [
        v for v in pytensor.graph.traversal.explicit_graph_inputs(outputs) if v not in inputs
    ]
    mode = pytensor.compile.get_mode("CUDNN")
    f = pytensor.function(inputs, [as_gpuarray_variable(v) for v in outputs], mode=mode)
    names = [type(node.op).__name__ for node in f.maker.fgraph.toposort()]
    assert names.count("GpuDnnBatchNormActivation") == 2
    assert names.count("GpuDnnBatchNormActivationGrad") == 2
    oracle = pytensor.function(inputs, outputs, mode=PERFORM_MODE)
    rng = np.random.default_rng(0)
    sizes = {x: (4, 6, 9, 8), top: (4, 6, 7, 6), gamma: (6,), beta: (6,)}
    given = [rng.standard_normal(sizes.get(v, (4, 6, 9, 8))).astype("float32") for v in inputs]
    for result, reference in zip(f(*given), oracle(*given), strict=True):
        np.testing.assert_allclose(host(result), reference, rtol=2e-3, atol=2e-3)

"""Expressions of batch normalization, compiled for a GPU, against the same in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from dnnops.gpu.batchnorm import GpuDnnBatchNorm, GpuDnnBatchNormGrad
from dnnops.gpuarray.transfer import as_gpuarray_variable
from dnnops.gpuarray.type import GpuArrayType
from tests.gpu.device import check, on_gpu, rounded
from tests.oracle import PERFORM_MODE

pytestmark = pytest.mark.gpu

GPU_MODE = pytensor.compile.get_mode("CVM").including("gpu")


def written_out(operands: list[Any], axes: tuple[int, ...]) -> list[Any]:
    """Return a normalization of `x`, with its gradients for `top`."""
    x, top, gamma, beta = operands
    mean, var = (f(x, axis=axes, keepdims=True) for f in (pt.mean, pt.var))
    epsilon = np.dtype(x.type.dtype).type(1e-3)
    out = (x - mean) / pt.sqrt(var + epsilon) * gamma + beta
    return [out, *pytensor.grad(None, [x, gamma, beta], known_grads={out: top})]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    ("shape", "axes"),
    [((16, 8, 12, 10), (0, 2, 3)), ((200, 30), (0,)), ((6, 40, 64), (2,))],
)
def test_compiled_function(shape, axes, dtype):
    """Return arrays on the device, and parameters that are sent there from the host."""
    ndim = len(shape)
    small = tuple(1 if i in axes else n for i, n in enumerate(shape))
    known = tuple(1 if i in axes else None for i in range(ndim))
    arrays = [GpuArrayType(dtype, (None,) * ndim)() for _ in range(2)]
    parameters = [pt.tensor(dtype=dtype, shape=known) for _ in range(2)]
    operands = [*(pt.as_tensor_variable(v) for v in arrays), *parameters]
    results = [as_gpuarray_variable(z) for z in written_out(operands, axes)]
    f = pytensor.function([*arrays, *parameters], results, mode=GPU_MODE)
    assert {type(node.op) for node in f.maker.fgraph.apply_nodes} >= {
        GpuDnnBatchNorm,
        GpuDnnBatchNormGrad,
    }
    wide = [pt.tensor(dtype="float64", shape=n) for n in ((None,) * ndim,) * 2 + (known,) * 2]
    oracle = pytensor.function(wide, written_out(wide, axes), mode=PERFORM_MODE)
    rng = np.random.default_rng(0)
    x, top = (rounded(1 + rng.standard_normal(shape), dtype) for _ in range(2))
    gamma, beta = (rounded(rng.uniform(0.5, 2, small), dtype) for _ in range(2))
    found = f(on_gpu(x, dtype), on_gpu(top, dtype), gamma.astype(dtype), beta.astype(dtype))
    for result, reference in zip(found, oracle(x, top, gamma, beta), strict=True):
        check(result, reference, dtype)

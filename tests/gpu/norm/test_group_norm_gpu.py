"""Group normalization on a GPU, by kernels of batch normalization."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from dnnops.modes import CudnnMode
from dnnops.nnet import group_norm
from tests.gpuarray.graphs import ops, rewritten
from tests.nnet.norm.group_norm_cases import Case, reference, with_gradients
from tests.oracle import assert_close


def test_kernels():
    """The gradient shares the statistics of the result."""
    x, gy = (pt.tensor(dtype="float32", shape=(None, 8, None, None)) for _ in range(2))
    gamma, beta = (pt.vector(dtype="float32", shape=(8,)) for _ in range(2))
    y = group_norm(x, 4, gamma, beta)
    inputs = [x, gamma, beta, gy]
    outputs = [y, *pytensor.grad(None, inputs[:3], known_grads={y: gy})]
    with pytensor.config.change_flags(dnn__enabled="no_check", on_opt_error="raise"):
        graph = rewritten(inputs, [z.transfer("cuda") for z in outputs], CudnnMode())
    found = ops(graph)
    assert [found.count(op) for op in ("GpuDnnBatchNorm", "GpuDnnBatchNormGrad")] == [1, 1]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_random(dtype):
    inputs, outputs = with_gradients(4, 1e-5, dtype, 4)
    f = pytensor.function(inputs, outputs, mode="CUDNN")
    shapes = [
        (2, 8, 5, 7),
        (1, 4, 1, 3),
        (3, 32, 16, 16),
        (2, 64, 40, 41),
        (0, 4, 2, 2),
        (2, 4, 0, 3),
    ]
    for seed, shape in enumerate(shapes):
        case = Case(shape, 4, 1e-5, seed)
        arrays = case.arrays(dtype)
        for found, expected in zip(f(*arrays), reference(case, arrays), strict=True):
            bound = 1e-4 if dtype == "float32" else 1e-11
            assert_close(np.asarray(found), expected, bound=bound, allow_zero=0 in shape)


@pytest.mark.gpu
@pytest.mark.parametrize("magnitude", [3e37, 1e30, 1e19, 1e-19, 1e-30])
def test_numbers_of_any_magnitude(magnitude):
    inputs, outputs = with_gradients(4, 0.0, "float32", 4)
    f = pytensor.function(inputs, outputs, mode="CUDNN")
    case = Case((2, 8, 6, 7), 4, 0.0, 0)
    x, *others = case.arrays("float32")
    x = ((x - 3) * np.float32(magnitude)).astype("float32")
    for found, wanted in zip(f(x, *others), reference(case, [x, *others]), strict=True):
        size = np.abs(wanted).max()
        assert_close(np.asarray(found) / size, wanted / size, bound=1e-4)

"""Expressions of batch normalization in graphs that move to a GPU; needs no GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import get_mode
from pytensor.graph.fg import FunctionGraph

from dnnops import nnet
from dnnops.gpuarray.transfer import as_gpuarray_variable
from dnnops.gpuarray.type import GpuArrayType
from dnnops.rewriting.recognize.batchnorm import RecognizeGpuBatchNorm
from tests.oracle import PERFORM_MODE, RELATIVE_ERROR, assert_close
from tests.rewriting.gpu.test_to_cudnn import GPU_MODE, names, nodes, rewritten, transfers
from tests.rewriting.recognize.batchnorm_forms import SPATIAL, TRAINING, divided, moments

FUSED, FUSED_GRAD = "GpuDnnBatchNormActivation", "GpuDnnBatchNormActivationGrad"
TRAIN, GRAD, INFERENCE = "GpuDnnBatchNorm", "GpuDnnBatchNormGrad", "GpuDnnBatchNormInference"
DTYPES = ("float16", "float32", "float64")


@pytest.fixture(autouse=True)
def without_probing():
    """Rewrite as if cuDNN worked, even on machines without a GPU."""
    with pytensor.config.change_flags(dnn__enabled="no_check", floatX="float32"):
        yield


def device_tensors(count: int, dtype: str = "float32", ndim: int = 4) -> list[Any]:
    return [GpuArrayType(dtype, (None,) * ndim)() for _ in range(count)]


def written_out(x: Any, axes: tuple[int, ...], gamma: Any = None, beta: Any = None) -> Any:
    mean, var = moments(x, axes)
    epsilon = np.dtype(x.type.dtype).type(1e-3)
    out = (x - mean) / pt.sqrt(var + epsilon)
    return out if gamma is None else out * gamma + beta


def with_gradients(x: Any, top: Any, axes: tuple[int, ...]) -> tuple[list[Any], list[Any]]:
    """Return parameters of a normalization of `x`, its output and gradients."""
    dtype, ndim = x.type.dtype, x.type.ndim
    shape = [1 if i in axes else None for i in range(ndim)]
    gamma, beta = (pt.tensor(dtype=dtype, shape=shape) for _ in range(2))
    out = written_out(x, axes, gamma, beta)
    grads = pytensor.grad(None, [x, gamma, beta], known_grads={out: top})
    return [gamma, beta], [out, *grads]


def has_batch_norm(fgraph: FunctionGraph) -> bool:
    return any("BatchNorm" in name for name in names(fgraph))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("ndim", "axes"), [(4, SPATIAL), (2, (0,)), (3, (2,)), (1, (0,))])
def test_training_and_gradients(ndim, axes, dtype):
    x, top = device_tensors(2, dtype, ndim)
    host = [pt.as_tensor_variable(v) for v in (x, top)]
    parameters, outputs = with_gradients(*host, axes)
    fgraph = rewritten([x, top, *parameters], [as_gpuarray_variable(z) for z in outputs])
    (node,), (grad,) = nodes(fgraph, TRAIN), nodes(fgraph, GRAD)
    assert node.op.axes == grad.op.axes == axes
    assert node.inputs[0].type.dtype == dtype
    # Statistics of float16 data keep their digits.
    assert node.outputs[1].type.dtype == ("float32" if dtype == "float16" else dtype)
    assert not names(fgraph) & {"GpuCAReduce", "BatchNormTrain", "BatchNormTrainGrad"}
    assert transfers(fgraph) == (2, 0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("written", TRAINING)
def test_forms(written, dtype):
    x, top = device_tensors(2, dtype)
    gamma, beta = (GpuArrayType(dtype, (None,))() for _ in range(2))
    inputs = [x, top, gamma, beta]
    host = [pt.as_tensor_variable(v) for v in inputs]
    with pytensor.config.change_flags(floatX=dtype):
        out = written(host[0], *host[2:])
    grad = pytensor.grad(None, host[0], known_grads={out: host[1]})
    found = names(rewritten(inputs, [out, grad]))
    assert found >= {TRAIN, GRAD}
    assert "GpuCAReduce" not in found


@pytest.mark.parametrize("dtype", DTYPES)
def test_values(dtype):
    """The inserted Ops compute the same as the expression, in NumPy and in float64."""

    class Recognize(RecognizeGpuBatchNorm):
        def _selection(self, fgraph, order):
            return lambda form: True

    def graph(dtype: str) -> tuple[list[Any], list[Any]]:
        x, top = (pt.tensor(dtype=dtype, shape=(None,) * 4) for _ in range(2))
        parameters, outputs = with_gradients(x, top, SPATIAL)
        statistics = [v.sum((0, 2, 3), dtype=dtype) for v in moments(x)]
        return [x, top, *parameters], [*outputs, *statistics]

    fgraph = FunctionGraph(*graph(dtype))
    types = [z.type for z in fgraph.outputs]
    Recognize().apply(fgraph)
    assert names(fgraph) >= {"BatchNormTrain", "BatchNormTrainGrad"}
    assert [z.type.dtype for z in fgraph.outputs] == [t.dtype for t in types]
    f = pytensor.function(fgraph.inputs, fgraph.outputs, mode=PERFORM_MODE)
    oracle = pytensor.function(*graph("float64"), mode=PERFORM_MODE)
    rng = np.random.default_rng(0)
    shapes = [(6, 3, 5, 4)] * 2 + [(1, 3, 1, 1)] * 2
    given = [rng.uniform(0.5, 2, shape).astype(dtype) for shape in shapes]
    for result, reference in zip(f(*given), oracle(*given), strict=True):
        assert_close(result, reference, bound=2 * RELATIVE_ERROR[dtype])


def test_a_network():
    """A convolution of host arrays leaves its result on the device."""
    x, w, v = (pt.tensor(dtype="float32", shape=(None,) * 4) for _ in range(3))
    gamma, beta = (pt.tensor(dtype="float32", shape=(1, None, 1, 1)) for _ in range(2))
    y = nnet.relu(written_out(nnet.conv2d(x, w), SPATIAL, gamma, beta))
    y = nnet.relu(written_out(nnet.conv2d(y, v), SPATIAL, gamma, beta))
    inputs = [x, w, v, gamma, beta]
    fgraph = rewritten(inputs, [(y**2).sum(), *pytensor.grad((y**2).sum(), inputs)])
    # Relu of the first layer is fused with both directions.
    assert len(nodes(fgraph, FUSED)) == len(nodes(fgraph, FUSED_GRAD)) == 1
    assert len(nodes(fgraph, TRAIN)) == len(nodes(fgraph, GRAD)) == 1


def test_parameters_on_the_device():
    x = pt.tensor(dtype="float32", shape=(None,) * 4)
    gamma = GpuArrayType("float32", (1, None, 1, 1))()
    out = written_out(x, SPATIAL, pt.as_tensor_variable(gamma), np.float32(1))
    assert nodes(rewritten([x, gamma], [out]), TRAIN)


def scattered_axes(x):
    return written_out(x, (0, 2))


def centered_as_well(x):
    mean, var = moments(x)
    centered = x - mean
    return centered / pt.sqrt(var + np.float32(1e-3)) * pt.tanh(centered)


def wider_epsilon(x):
    mean, var = moments(x)
    return (x - mean) / pt.sqrt(var.astype("float64") + 1e-3)


def given_statistics(x):
    """It is elementwise, and is fused with its neighbors."""
    parameters = [pt.constant(np.full(3, n, "float32")) for n in (1, 2, 3, 4)]
    return nnet.relu(divided(x, *parameters))


@pytest.mark.parametrize(
    "make", [scattered_axes, centered_as_well, wider_epsilon, given_statistics]
)
def test_unrecognized_forms_stay(make):
    (x,) = device_tensors(1)
    out = make(pt.as_tensor_variable(x))
    fgraph = rewritten([x], [as_gpuarray_variable(out)])
    assert not has_batch_norm(fgraph)
    assert "GpuElemwise" in names(fgraph)
    assert transfers(fgraph) == (0, 0)


def test_graphs_that_stay_on_the_host():
    for dtype in DTYPES:
        x = pt.tensor(dtype=dtype, shape=(None,) * 4)
        out = written_out(x, SPATIAL)
        assert not has_batch_norm(rewritten([x], [out]))
    x = pt.tensor(dtype="float32", shape=(None,) * 4)
    out = written_out(x, SPATIAL)
    assert "OneDnnBatchNormTrain" in names(rewritten([x], [out], get_mode("CVM")))


def test_excluded_or_disabled():
    (x,) = device_tensors(1)
    out = written_out(pt.as_tensor_variable(x), SPATIAL)
    assert not has_batch_norm(rewritten([x], [out], GPU_MODE.excluding("cudnn")))
    assert nodes(rewritten([x], [out], GPU_MODE.excluding("onednn")), TRAIN)
    with pytensor.config.change_flags(dnn__enabled="False"):
        assert not has_batch_norm(rewritten([x], [out]))

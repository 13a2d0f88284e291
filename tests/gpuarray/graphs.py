"""Build the same graph on host and device variables, rewrite, run and compare."""

from __future__ import annotations

import numpy as np
import pytensor
from pytensor.compile.aliasing import Supervisor
from pytensor.compile.mode import get_mode
from pytensor.graph.fg import FunctionGraph

import dnnops.rewriting.inplace
import dnnops.rewriting.pipeline  # noqa: F401
from dnnops.dtypes import numpy_dtype
from dnnops.gpuarray import GpuArrayType

#: Moves everything to the device that can run there. Other tests cover cuDNN.
GPU_MODE = get_mode("CVM").including("gpu").excluding("onednn", "cudnn")
HOST_MODE = get_mode("CVM").excluding("onednn")

#: Largest ||out - ref|| / ||ref|| by dtype.
TOLERANCE = {"float16": 2e-3, "bfloat16": 1e-2, "float32": 1e-5, "float64": 1e-12}


def device_variable(value, dtype=None, name=None):
    """Return a device variable for `value`."""
    return GpuArrayType(dtype or value.dtype.name, (None,) * value.ndim)(name)


def rewritten(inputs, outputs, mode=GPU_MODE) -> FunctionGraph:
    """Rewrite a graph as the compilation of a function would; needs no device."""
    graph = FunctionGraph(inputs, outputs, clone=True)
    # Compilation protects a function's inputs.
    graph.attach_feature(Supervisor(graph.inputs))
    mode.optimizer.rewrite(graph)
    return graph


def ops(graph) -> list[str]:
    """Return the names of a graph's Op classes, in topological order."""
    return [type(node.op).__name__ for node in graph.toposort()]


def to_device(value):
    """Copy a NumPy array to the device and keep its memory order, such as channels_last."""
    import cupy

    if value.ndim == 0:
        return cupy.asarray(value)
    axes = sorted(range(value.ndim), key=lambda axis: -abs(value.strides[axis]))
    dense = cupy.asarray(np.ascontiguousarray(value.transpose(axes)))
    return dense.transpose(np.argsort(axes).tolist())


def to_host(value) -> np.ndarray:
    """Return a function's result as a NumPy array."""
    return value.get() if hasattr(value, "get") else np.asarray(value)


def assert_near(got, wanted, tolerance):
    """Compare results by the norm of the difference; integers and empty arrays exactly."""
    got, wanted = to_host(got), np.asarray(wanted)
    assert got.shape == wanted.shape
    if wanted.dtype.kind in "iub" or wanted.size == 0:
        np.testing.assert_array_equal(got, wanted)
        return
    got, wanted = got.astype("float64"), wanted.astype("float64")
    finite = np.isfinite(wanted)
    np.testing.assert_array_equal(got[~finite], wanted[~finite])
    norm = np.linalg.norm(wanted[finite])
    assert np.linalg.norm(got[finite] - wanted[finite]) <= tolerance * max(norm, 1e-30)


def compare(build, *values, dtype=None, tolerance=None, mode=GPU_MODE):
    """Compare ``build(*variables)`` on the device with NumPy on the host.

    If `dtype` is bfloat16, values are rounded to it first, and the host computes in float32.
    """
    if dtype is not None:
        rounded = [v.astype(numpy_dtype(dtype)) if v.dtype.kind == "f" else v for v in values]
    else:
        rounded = list(values)
    hosts = [v.astype("float32") if v.dtype.name in ("bfloat16", "float16") else v for v in rounded]
    host_inputs = [
        pytensor.tensor.tensor(dtype=v.dtype.name, shape=(None,) * v.ndim) for v in hosts
    ]
    unused = {"on_unused_input": "ignore"}  # one of several results need not depend on all
    host_function = pytensor.function(host_inputs, build(*host_inputs), mode=HOST_MODE, **unused)
    reference = host_function(*hosts)
    device_inputs = [device_variable(v) for v in rounded]
    function = pytensor.function(device_inputs, build(*device_inputs), mode=mode, **unused)
    got = function(*map(to_device, rounded))
    names = {v.dtype.name for v in rounded}
    if tolerance is None:
        tolerance = max((TOLERANCE[n] for n in names if n in TOLERANCE), default=1e-12)
    assert_near(got, reference, tolerance)
    return function

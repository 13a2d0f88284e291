"""Graphs with arrays on another device than the first, and on two devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import get_mode
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors

from benchmarks.model_zoo import MODELS
from benchmarks.peers.models.dnnops_cpu import training_step
from dnnops import nnet
from dnnops.dtypes import FLOAT_DTYPES
from dnnops.gpu import base, library
from dnnops.gpu.softmax import GpuDnnSoftmax
from dnnops.gpuarray import GpuArrayType, GpuToGpu
from dnnops.gpuarray.op import is_on_device
from dnnops.gpuarray.products.blas import GpuDot
from dnnops.gpuarray.transfer import as_gpuarray_variable, host_from_gpu
from dnnops.rewriting.move.to_gpu import gpu_transfers
from tests.gpuarray.graphs import ops, rewritten
from tests.rewriting.golden_functions import FUNCTIONS

Graph = tuple[list[Any], list[Any]]


def there(*shape: int | None, dtype: str = "float32", device: int = 1) -> Any:
    """Return a host expression of an array on the second device."""
    return host_from_gpu(GpuArrayType(dtype, shape, device)())


def matrices(count: int) -> list[Any]:
    return [pt.fmatrix() for _ in range(count)]


def products() -> Graph:
    x, y, z = matrices(3)
    a, b = pt.fvector(), pt.fvector()
    batches = pt.ftensor3()
    blas = [0.5 * z + 2 * (x @ y), 3 * (x @ y), b + x @ a, x + pt.outer(a, b)]
    return [x, y, z, a, b, batches], [x @ y, *blas, batches @ batches]


def parts() -> Graph:
    x, y = matrices(2)
    i = pt.ivector()
    changed = [pt.inc_subtensor(x[1:], y[1:]), pt.set_subtensor(x[i], 0), pt.inc_subtensor(x[i], y)]
    filled = pt.set_subtensor(pt.zeros((x.shape[0], 2 * x.shape[1]))[:, : x.shape[1]], x)
    joined = pt.concatenate([x, y, pt.ones((3, x.shape[1]), "float32")])
    pieces = pt.split(x, [2, 3], n_splits=2, axis=0)
    return [x, y, i], [x[2:], x[i], joined, filled.astype("float32"), *changed, *pieces]


def numbers() -> Graph:
    x, y = matrices(2)
    along = pt.arange(x.shape[1], dtype="float32")
    whole = [x.argmax(axis=1), x.max(), (x**2).sum(axis=0), pt.prod(x, axis=1)]
    made = [x * along, pt.alloc(x[0], 4, x.shape[1]), pt.specify_shape(x, (3, 4))]
    return [x, y], [*whole, *made, x.T.reshape((-1,)) + pt.sqrt(x.mean()), pt.exp(x) / y]


BUILDERS: dict[str, Callable[[], Graph]] = {
    **{name: lambda f=f: f.build("float32") for name, f in FUNCTIONS.items()},
    "products": products,
    "parts": parts,
    "numbers": numbers,
}
#: Modes that move everything, and one that moves only what is worth a transfer.
MODES = {
    "cudnn": get_mode("CUDNN"),
    "kernels": get_mode("CUDNN").excluding("cudnn"),
    "worthwhile": get_mode("CVM").including("gpu", "cudnn"),
}


@pytest.fixture(autouse=True)
def without_probing() -> Iterator[None]:
    with pytensor.config.change_flags(dnn__enabled="no_check", floatX="float32"):
        yield


def on_second(build: Callable[[], Graph]) -> Graph:
    """Build a graph whose floating-point inputs and results are on the second device."""
    inputs, outputs = build()
    given = {
        x: there(*x.type.shape, dtype=x.type.dtype) for x in inputs if x.type.dtype in FLOAT_DTYPES
    }
    moved = clone_replace(outputs, given)
    return (
        [given[x].owner.inputs[0] if x in given else x for x in inputs],
        [z.transfer("cuda1") if z.type.dtype in FLOAT_DTYPES else z for z in moved],
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", BUILDERS)
def test_every_op_stays_on_its_device(name, mode):
    inputs, outputs = on_second(BUILDERS[name])
    # A second graph, so that the first device is the one that this function prefers.
    first = GpuArrayType("float32", (None,), 0)()
    doubled = (first * 2).transfer("cuda0")
    graph = rewritten([first, *inputs], [doubled, *outputs], MODES[mode])
    devices = [x.type.device for x in graph.variables if is_on_device(x)]
    assert devices.count(0) == 2
    assert set(devices) == {0, 1}
    assert not any(isinstance(node.op, GpuToGpu) for node in graph.apply_nodes)


@pytest.mark.parametrize(("model", "precision"), [("resnet", "bfloat16"), ("lstm", "off")])
def test_training_stays_on_its_device(model, precision):
    def variable(name: Any, dtype: str, shape: tuple[int | None, ...]) -> Any:
        return GpuArrayType(dtype, shape, 1)(name)

    def parameter(value: Any, shape: tuple[int, ...]) -> Any:
        return variable(None, value.dtype.name, shape)

    with pytensor.config.change_flags(dnn__mixed_precision=precision):
        inputs, loss, updates = training_step(model, MODELS[model].sizes, variable, parameter)
        outputs = [loss.transfer("cuda1")]
        outputs += [old.type.filter_variable(new) for old, new in updates]
        graph = rewritten([*inputs, *(old for old, _ in updates)], outputs, MODES["worthwhile"])
    assert {x.type.device for x in graph.variables if is_on_device(x)} == {1}
    assert not gpu_transfers(graph)
    assert "GpuMultiElemwise" in ops(graph)


# Several devices in one graph


def convolutions(x: Any, w: Any, v: Any) -> Any:
    return pt.as_tensor_variable(v) * np.float32(0.5) - nnet.conv2d(x, w)


def test_merged_convolutions_stay_on_their_devices():
    here, far = (
        [there(None, None, None, None, device=device) for _ in range(3)] for device in (0, 1)
    )
    outputs = [convolutions(*here).transfer("cuda0"), convolutions(*far).transfer("cuda1")]
    graph = rewritten([z.owner.inputs[0] for z in (*here, *far)], outputs, MODES["cudnn"])
    assert ops(graph).count("GpuDnnConv") == 2
    assert not gpu_transfers(graph)


def test_operands_on_two_devices_are_copied_to_that_of_the_first():
    x, w = there(8, 3, 9, 9, device=1), there(4, 3, 3, 3, device=0)
    graph = rewritten([x.owner.inputs[0], w.owner.inputs[0]], [nnet.conv2d(x, w)], MODES["cudnn"])
    names = [str(node.op) for node in gpu_transfers(graph)]
    assert names == ["GpuToGpu{cuda1}", "HostFromGpu"]


def test_host_arrays_go_to_the_device_of_their_users():
    x, w = (pt.tensor(dtype="float32", shape=(8, 8, 64, 64)) for _ in range(2))
    here, far = there(None, device=0), there(None, None, None, None)
    outputs = [(here * 2).transfer("cuda0"), (nnet.conv2d(x, w) * far).transfer("cuda1")]
    inputs = [x, w, here.owner.inputs[0], far.owner.inputs[0]]
    graph = rewritten(inputs, outputs, MODES["worthwhile"])
    assert {str(node.op) for node in gpu_transfers(graph)} == {"GpuFromHost{cuda1}"}


def test_a_node_whose_lifter_fails_returns_to_its_device(monkeypatch):
    monkeypatch.setattr(GpuDot, "make_node", lambda *args: 1 // 0)
    here, x = there(None, device=0), there(None, None)
    outputs = [(here * 2).transfer("cuda0"), (pt.exp(x @ x) * x).transfer("cuda1")]
    with pytensor.config.change_flags(on_opt_error="ignore"):
        inputs = [here.owner.inputs[0], x.owner.inputs[0]]
        graph = rewritten(inputs, outputs, MODES["worthwhile"])
    assert {str(node.op) for node in gpu_transfers(graph)} == {"HostFromGpu", "GpuFromHost{cuda1}"}


def test_a_library_is_asked_about_the_device_of_the_operands(monkeypatch):
    monkeypatch.setattr(library, "cudnn_status", lambda device: "broken" if device else "")
    results = [nnet.softmax(there(None, 10, device=device), axis=1) for device in (0, 1)]
    inputs = [next(x for x in ancestors([z]) if is_on_device(x)) for z in results]
    outputs = [z.transfer(f"cuda{device}") for device, z in enumerate(results)]
    with pytensor.config.change_flags(dnn__enabled="auto"):
        graph = rewritten(inputs, outputs, MODES["worthwhile"])
    devices = {
        node.outputs[0].type.device
        for node in graph.apply_nodes
        if isinstance(node.op, GpuDnnSoftmax)
    }
    assert devices == {0}


def test_the_flag_s_device():
    x, w = (pt.tensor(dtype="float32", shape=(8, 8, 64, 64)) for _ in range(2))
    with pytensor.config.change_flags(device="cuda1"):
        graph = rewritten([x, w], [nnet.conv2d(x, w)], MODES["worthwhile"])
        assert "GpuFromHost{cuda1}" in {str(node.op) for node in gpu_transfers(graph)}
        assert as_gpuarray_variable(np.zeros(3, "float32")).type.device == 1
        assert as_gpuarray_variable(x).type.device == 1
        assert x.transfer("cuda").type.device == 1
        assert x.transfer("cuda0").type.device == 0
        (operand,) = base.device_operands("an Op", None, x=x)
        assert operand.type.device == 1
    assert x.transfer("cuda").type.device == 0

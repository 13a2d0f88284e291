"""Copies between devices, and what selects a device at run time."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytensor
import pytest
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Apply
from pytensor.link.c.op import COp
from pytensor.link.vm import VMLinker

from dnnops import nnet
from dnnops.gpuarray import GpuArrayType, GpuToGpu, shared
from dnnops.gpuarray.copying import copied_to_device
from tests.gpuarray.fake_devices import FakeDevices
from tests.gpuarray.graphs import to_device

VALUES = np.arange(2 * 3 * 4 * 5, dtype="float32").reshape(2, 3, 4, 5)
LAYOUTS = {
    "contiguous": VALUES,
    "channels-last": VALUES.transpose(0, 3, 1, 2),
    "with gaps": VALUES[:, :, ::2, 1:4],
    "reversed": VALUES[:, ::-1],
    "broadcast": np.broadcast_to(VALUES[:1], (6, 3, 4, 5)),
    "empty": VALUES[:0],
    "a number": VALUES[1, 2, 3, 4],
}
#: The C header looks Python objects up once in a process.
FAKE = FakeDevices()


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDevices]:
    FAKE.log.clear()
    monkeypatch.setitem(sys.modules, "cupy", FAKE)
    yield FAKE
    assert FAKE.current == 0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_copies_wait_for_both_devices(devices, layout):
    values = np.asarray(LAYOUTS[layout])
    array = devices.array(values)
    there = copied_to_device(array, 1)
    assert there.device.id == 1
    assert not np.may_share_memory(there, array)
    np.testing.assert_array_equal(there, values)
    if layout in ("channels-last", "contiguous"):
        assert there.strides == values.strides
    assert [entry for entry in devices.log if entry[0] != "copy"] == [
        ("record", 0),  # after what computes the array
        ("wait", 1, 0),
        ("peer", 0, 1),
        ("record", 1),
        ("wait", 0, 1),  # before the array's memory is used again
    ]


def test_copies_to_the_first_device(devices):
    with devices.used(1):
        array = devices.array(LAYOUTS["channels-last"])
    node = GpuToGpu(0)(GpuArrayType("float32", (None,) * 4, 1)()).owner
    cell = [None]
    node.op.perform(node, [array], [cell])
    assert cell[0].device.id == 0
    np.testing.assert_array_equal(cell[0], array)


class Copied(COp):
    """Copy with the C function that PyTensor's deep copies use."""

    __props__ = ()

    def make_node(self, x: Any) -> Apply:
        return Apply(self, [x], [x.type()])

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        raise NotImplementedError("only C")

    def c_code_cache_version(self) -> tuple[int, ...]:
        return (1,)

    def c_code(self, node: Apply, name: str, inputs: Any, outputs: Any, sub: Any) -> str:
        (x,), (z,) = inputs, outputs
        return f"""
            Py_XDECREF({z});
            {z} = dnnops_gpuarray_copy({x});
            if ({z} == NULL) {{ {sub["fail"]} }}
        """


@pytest.mark.needs("cupy")
def test_deep_copies_stay_on_their_device(devices, monkeypatch):
    runtime = ModuleType("cupy_backends.cuda.api.runtime")
    vars(runtime).update(vars(devices.cuda.runtime))
    monkeypatch.setitem(sys.modules, runtime.__name__, runtime)
    x = GpuArrayType("float32", (None,) * 4, 1)()
    mode = Mode(VMLinker(use_cloop=True), None)
    function = pytensor.function([x], Copied()(x), mode=mode, accept_inplace=True)
    with devices.used(1):
        array = devices.array(VALUES)
    copy = function(array)
    assert copy.device.id == 1
    np.testing.assert_array_equal(copy, VALUES)
    assert ("copy", 1, 1) in devices.log


# On two GPUs


@pytest.mark.gpu
@pytest.mark.alone  # other processes of a run see one GPU
@pytest.mark.needs("two gpus")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_copies_between_gpus(layout):
    values = np.asarray(LAYOUTS[layout])
    there = copied_to_device(to_device(values), 1)
    assert there.device.id == 1
    np.testing.assert_array_equal(there.get(), values)
    np.testing.assert_array_equal(copied_to_device(there, 0).get(), values)


@pytest.mark.gpu
@pytest.mark.alone  # other processes of a run see one GPU
@pytest.mark.needs("two gpus")
def test_copies_wait_for_streams():
    import cupy

    wanted = to_device(np.linspace(0, 1, 2**24, dtype="float32"))
    with cupy.cuda.Stream(non_blocking=True):
        x = wanted
        for _ in range(100):
            x = cupy.sin(x)
        there = copied_to_device(x, 1)
        x.fill(0)  # has to wait for the copy
    for _ in range(100):
        wanted = cupy.sin(wanted)
    with cupy.cuda.Device(1):
        np.testing.assert_array_equal(there.get(), wanted.get())


def train(device: int, steps: int = 6) -> tuple[Any, list[np.ndarray]]:
    """Train a small network; return the function and the losses."""
    drawn = np.random.default_rng(5)
    w, v = (
        shared(drawn.normal(0, 0.2, shape).astype("float32"), device=device)
        for shape in ((8, 3, 3, 3), (8, 10))
    )
    gamma, beta = (shared(np.full(8, n, "float32"), device=device) for n in (1, 0))
    x = GpuArrayType("float32", (None, 3, 12, 12), device)("x")
    normal = nnet.batch_normalization_train(nnet.conv2d(x, w), gamma, beta, "spatial")[0]
    scores = nnet.pool_2d(nnet.relu(normal), (2, 2)).mean(axis=(2, 3)) @ v
    loss = (nnet.softmax(scores)[:, 0] ** 2).mean()
    wrt = [w, v, gamma, beta]
    updates = [
        (s, s - np.float32(0.1) * g) for s, g in zip(wrt, pytensor.grad(loss, wrt), strict=True)
    ]
    outputs = [loss, normal.transfer(f"cuda{device}")]
    function = pytensor.function([x], outputs, updates=updates, mode="CUDNN")
    import cupy

    with cupy.cuda.Device(device):
        batch = cupy.asarray(drawn.normal(size=(16, 3, 12, 12)).astype("float32"))
    losses = []
    for _ in range(steps):
        value, images = function(batch)
        assert images.device.id == device
        losses.append(value)
    assert cupy.cuda.runtime.getDevice() == 0
    return function, losses


@pytest.mark.gpu
@pytest.mark.alone  # other processes of a run see one GPU
@pytest.mark.needs("two gpus")
def test_functions_on_the_second_gpu():
    """Plans, kernels and CUDA graphs of both devices are used in turn."""
    functions, losses = zip(*(train(device) for device in (0, 1, 0)), strict=True)
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)
    np.testing.assert_allclose(losses[2], losses[0], rtol=1e-4)
    for function in functions:
        assert function.vm.captures
        assert function.vm.replays

"""Binding of arrays to the tensors of a graph, with a stand-in for the call that executes it."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import numpy as np
import pytest

from dnnops import graph as cudnn
from dnnops import libcudnn
from dnnops.errors import DnnError, DnnTypeError, DnnValueError
from dnnops.graph import execution
from tests.graph.planning import declared

pytestmark = pytest.mark.needs("cudnn")

HANDLE, PLAN = 1 << 20, 1 << 21


class Array:
    """An array on no device, with CuPy's attributes."""

    def __init__(self, shape, dtype="float16", address=1 << 24, strides=None):
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.itemsize, self.data = self.dtype.itemsize, SimpleNamespace(ptr=address)
        self.strides = strides or tuple(
            int(np.prod(shape[i + 1 :])) * self.itemsize for i in range(len(shape))
        )


class Calls(list):
    """What was called, and the recordings that were given."""

    def __init__(self):
        self.replays = []


@pytest.fixture
def calls(monkeypatch):
    """The calls that would have executed plans: the address by uid, the workspace and its size."""
    made = Calls()

    def run(address):
        fixed = (ctypes.c_int64 * 7).from_address(address)[:]
        handle, plan, workspace, size, _, replays, count = fixed
        assert (handle, plan) == (HANDLE, PLAN)
        bound = (ctypes.c_int64 * count).from_address(address + 8 * len(fixed))[:]
        made.append((dict(zip(bound[::2], bound[1::2], strict=True)), workspace, size))
        made.replays.append(replays)
        return 0

    monkeypatch.setattr(execution, "_runner", lambda: run)
    return made


def built(name="conv_bias_relu", workspace=64):
    """Return a validated graph with a plan."""
    graph, results = declared(name)
    graph.validate()
    graph.handle = libcudnn.cudnnHandle_t(HANDLE)
    descriptor = SimpleNamespace(handle=PLAN)
    plan = SimpleNamespace(descriptor=descriptor, workspace=workspace, calls=None)
    graph.plans, graph._chosen = [plan], 0
    return graph, results


def arrays(**changes):
    given = {
        "x": Array((4, 16, 9, 9), address=1 << 24),
        "w": Array((8, 16, 3, 3), address=1 << 25),
        "b": Array((1, 8, 1, 1), address=1 << 26),
        "2::OUT_0": Array((4, 8, 9, 9), address=1 << 27),
    }
    return {**given, **changes}


def normalization():
    """Return layer normalization with a plan, and its arrays but for the number ``epsilon``."""
    graph, _ = built("layernorm")
    images = {name: Array((32, 64, 1, 1)) for name in ("x", "0::Y")}
    vectors = {name: Array((1, 64, 1, 1), "float32") for name in "sb"}
    stats = {f"0::{name}": Array((32, 1, 1, 1), "float32") for name in ("MEAN", "INV_VARIANCE")}
    return graph, {**images, **vectors, **stats}


def test_keys_are_tensors_names_or_uids(calls):
    graph, (y,) = built()
    given = arrays()
    graph.execute(given)
    graph.execute({graph.find_tensor(name): x for name, x in given.items()}, 1 << 22)
    graph.execute({graph.find_tensor(name).uid: x for name, x in given.items()})
    graph.execute({**given, None: None})
    expected = {graph.find_tensor(name).uid: x.data.ptr for name, x in given.items()}
    assert [call[0] for call in calls] == [expected] * 4
    assert [call[1:] for call in calls[:2]] == [(0, 64), (1 << 22, 64)]
    assert y.uid in expected


def test_arrays_with_an_interface_and_on_the_host(calls):
    """Arrays as Numba has them; and those of NumPy whose dtype has no buffer."""

    class Interface:
        def __init__(self, shape):
            self.shape, self.dtype = shape, np.dtype("float16")
            self.strides = Array(shape).strides
            self.__cuda_array_interface__ = {"data": (1 << 28, False), "shape": shape}

    graph, _ = built()
    graph.execute(arrays(x=Interface((4, 16, 9, 9))), 1 << 22)
    assert calls[0][0][graph.find_tensor("x").uid] == 1 << 28
    host = np.zeros((4, 16, 9, 9), "datetime64[s]")
    with pytest.raises(DnnTypeError):
        graph.execute(arrays(x=host), 1 << 22)


def test_numbers_are_in_host_memory(calls):
    graph, given = normalization()
    read = []
    run = execution._runner()

    def look(*arguments):
        run(*arguments)
        address = calls[-1][0][graph.find_tensor("epsilon").uid]
        read.append(ctypes.c_float.from_address(address).value)
        return 0

    graph._prepare()
    graph._run = look
    for value in (1e-5, np.float64(0.5), np.array([2], "float32")):
        graph.execute({**given, "epsilon": value})
    assert read == pytest.approx([1e-5, 0.5, 2])
    # A kernel in a CUDA graph would keep the number of the call that was recorded.
    assert calls.replays == [0] * 3
    with pytest.raises(DnnTypeError, match="'epsilon' is a number"):
        graph.execute({**given, "epsilon": "small"})


def test_numbers_of_the_graph_need_not_be_given(calls):
    graph, _ = built("scaled")
    given = {"x": Array((4, 16, 9, 9)), "0::OUT_0": Array((4, 16, 9, 9))}
    graph.execute(given)
    uid = graph.find_tensor("factor").uid
    assert ctypes.c_float.from_address(calls[0][0][uid]).value == 2.5
    with pytest.raises(DnnValueError, match=r"'factor' has the value 2.5 of the graph"):
        graph.execute({**given, "factor": 1.0})


def test_an_array_is_checked_when_it_moves(calls):
    """The same array object may be given other memory."""
    graph, _ = built()
    given = arrays()
    uid = graph.find_tensor("x").uid
    for address in (1 << 24, 1 << 24, 1 << 29, 1 << 24):
        given["x"].data.ptr = address
        graph.execute(given, 1 << 22)
        assert calls[-1][0][uid] == address
    given["x"].data.ptr, given["x"].shape = 1 << 30, (4, 16, 9, 8)
    with pytest.raises(DnnValueError, match="needs 10368 bytes"):
        graph.execute(given, 1 << 22)
    given = arrays()
    given["x"].data.ptr += 8
    with pytest.raises(DnnValueError, match="not aligned"):
        graph.execute(given, 1 << 22)


def test_another_array_at_the_same_address_is_checked(calls):
    graph, _ = built()
    graph.execute(arrays(), 1 << 22)
    with pytest.raises(DnnValueError, match="needs 10368 bytes"):
        graph.execute(arrays(x=Array((4, 16, 9, 8))), 1 << 22)
    with pytest.raises(DnnTypeError, match="data type"):
        graph.execute(arrays(x=Array((4, 16, 9, 9), "float32")), 1 << 22)


def test_another_workspace_is_checked(calls):
    class Memory:
        def __init__(self, nbytes):
            self.nbytes, self.__cuda_array_interface__ = nbytes, {"data": (1 << 23, False)}

    graph, _ = built()
    for _ in range(2):
        graph.execute(arrays(), Memory(64))
        with pytest.raises(DnnValueError, match="the workspace has 63 bytes"):
            graph.execute(arrays(), Memory(63))


def test_recordings_belong_to_a_plan(calls):
    """Calls share the recordings of a plan until it is built again."""
    graph, _ = built()
    given = arrays()
    for _ in range(3):
        graph.execute(given, 1 << 22)
    graph.plans[0].descriptor = SimpleNamespace(handle=PLAN)
    graph.execute(given, 1 << 22)
    first, *same, other = calls.replays
    assert first
    assert same == [first] * 2
    assert graph.plans[0].calls.replays == other


def test_strided_arrays_may_reach_over_the_tensor(calls):
    graph, _ = built()
    wide = Array((4, 16, 9, 9), strides=(2 * 16 * 81 * 2, 162, 18, 2))
    graph.execute(arrays(x=wide))
    assert len(calls) == 1


def test_strides_are_checked_in_each_call(calls):
    """An array of the same shape that was accepted before may reach less far."""
    graph, _ = built()
    wide = Array((4, 16, 9, 9), strides=(2 * 16 * 81 * 2, 162, 18, 2))
    for _ in range(2):
        graph.execute(arrays(x=wide))
        with pytest.raises(DnnValueError, match=r"needs 10368 bytes, but .* has"):
            graph.execute(arrays(x=Array((4, 16, 9, 9), strides=(0, 2, 32, 2 * 16))))
        with pytest.raises(DnnValueError, match="needs 10368 bytes"):
            graph.execute(arrays(x=Array((4, 16, 9, 9), strides=(0, 162, 18, 2))))


def test_workspace_is_large_enough(calls):
    graph, _ = built(workspace=64)
    for size, is_enough in ((63, False), (64, True)):
        workspace = Array((size,), "uint8")
        workspace.nbytes = size
        if is_enough:
            graph.execute(arrays(), workspace)
        else:
            with pytest.raises(DnnValueError, match="has 63 bytes; the plan needs 64"):
                graph.execute(arrays(), workspace)
    assert len(calls) == 1


def test_unused_tensors_need_no_arrays(calls):
    graph, _ = declared("conv_bias_relu")
    graph.tensor([2], name="unused")
    graph.validate()
    graph.handle = libcudnn.cudnnHandle_t(HANDLE)
    plan = SimpleNamespace(descriptor=SimpleNamespace(handle=PLAN), workspace=0, calls=None)
    graph.plans, graph._chosen = [plan], 0
    graph.execute(arrays())
    with pytest.raises(DnnValueError, match=r"no operation .* uses tensor 'unused'"):
        graph.execute({**arrays(), "unused": Array((2,))})
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"x": np.zeros((4, 16, 9, 9), "float16")}, DnnTypeError, "in the host's memory"),
        ({"x": [1, 2]}, DnnTypeError, "of type list"),
        ({"x": None}, DnnValueError, "null pointer"),
        ({"x": Array((4, 16, 9, 9), "float32")}, DnnTypeError, "data type HALF, got float32"),
        ({"x": Array((4, 16, 9, 8))}, DnnValueError, "needs 10368 bytes, but .* has 9216"),
        ({"x": Array((4, 16, 9, 9), address=(1 << 24) + 8)}, DnnValueError, "not aligned"),
        ({"x": 17}, DnnValueError, "not an address"),
        ({"0::Y": Array((4, 8, 9, 9))}, DnnValueError, r"virtual; call set_output\(True\)"),
        ({"z": Array((1,))}, DnnValueError, "no tensor 'z'"),
        ({3.5: Array((1,))}, DnnValueError, "no tensor 3.5"),
    ],
    ids=lambda x: "",
)
def test_wrong_arrays(calls, changes, error, words):
    graph, _ = built()
    for _ in range(2):  # what was checked once is not taken for granted
        with pytest.raises(error, match=words):
            graph.execute(
                arrays(**{k: v for k, v in changes.items() if isinstance(k, str)}) | changes
            )
    graph.execute(arrays())
    with pytest.raises(error, match=words):
        graph.execute(arrays() | changes)
    assert len(calls) == 1


def test_missing_and_repeated_arrays(calls):
    graph, (y,) = built()
    given = arrays()
    del given["w"]
    with pytest.raises(DnnValueError, match="no arrays for w"):
        graph.execute(given)
    with pytest.raises(DnnValueError, match="more than one array"):
        graph.execute({**arrays(), y: Array((4, 8, 9, 9))})
    other = declared("conv")[0].find_tensor("x")
    with pytest.raises(DnnValueError, match="has no tensor"):
        graph.execute({**arrays(), other: Array((4, 16, 9, 9))})
    assert not calls


def test_handles_are_checked(calls):
    with pytest.raises(DnnTypeError, match="handle"):
        cudnn.pygraph(handle="h")
    graph, _ = built()
    with pytest.raises(DnnValueError, match="handle"):
        graph.execute(arrays(), handle=0)
    with pytest.raises(DnnTypeError, match="handle"):
        graph.execute(arrays(), handle="h")
    descriptor = libcudnn.cudnnCreateTensorDescriptor()
    with descriptor, pytest.raises(DnnTypeError, match="handle"):
        graph.execute(arrays(), handle=descriptor)
    graph.execute(arrays(), handle=HANDLE)
    assert len(calls) == 1


def test_failures_have_cudnns_text():
    """cuDNN refuses what is no plan; the function in C++ is the real one."""
    graph, given = normalization()
    with libcudnn.cudnnBackendCreateDescriptor(
        libcudnn.cudnnBackendDescriptorType_t["CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR"]
    ) as descriptor:
        graph.plans[0].descriptor.handle = descriptor
        with pytest.raises(DnnError, match="cudnnBackend"):
            graph.execute({**given, "epsilon": 1e-5}, 1 << 22)


def test_graphs_without_a_plan():
    graph, _ = declared("conv")
    with pytest.raises(DnnValueError, match="no plan; call build first"):
        graph.execute({})


@pytest.mark.needs("no gpu")
def test_without_a_gpu():
    graph, _ = declared("conv")
    with pytest.raises(DnnError):
        graph.build()
    with pytest.raises(DnnError):
        cudnn.create_handle()

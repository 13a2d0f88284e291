"""Dropout on a GPU: kernels on the host and compiled; on a GPU equal to the CPU bit by bit."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.sharedvalue import SharedVariable

from dnnops import nnet
from dnnops.capture.schedule import Role, schedule
from dnnops.capture.vm import ORDINARY_CALLS
from dnnops.dtypes import DTYPE_CODES
from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.gpu.dropout import GpuDnnDropoutGrad, GpuDnnDropoutOp
from dnnops.gpuarray import shared
from dnnops.gpuarray.op import is_on_device
from dnnops.gpuarray.transfer import host_from_gpu
from dnnops.gpuarray.type import GpuArrayType
from dnnops.nnet.regularization.dropout import BLOCKS, GROUP, Dropout, DropoutGrad
from tests.emulation.host_kernels import compile_for_gpu, compile_for_host, launch_struct
from tests.gpu.calls import call, device_tensor, shape_of
from tests.gpu.device import DTYPES, bits, make_node, on_gpu, poison, rounded, values
from tests.gpuarray.graphs import ops, rewritten
from tests.needs import of_dtypes
from tests.oracle import SEED, repeat_command

KERNELS = dict.fromkeys(("dropout", "dropout_grad"), "dropout_launch")
BLOCK_ELEMENTS = 2048


def run_op(op, *arrays):
    node = op.make_node(*arrays)
    storage = [[None] for _ in node.outputs]
    op.perform(node, [np.asarray(a) for a in arrays], storage)
    return [cell[0] for cell in storage]


def expected(x: np.ndarray, gy: np.ndarray, p: float, state: np.ndarray, dtype: str) -> list:
    """Return the abstract Ops' y, reserve, next state and gradient, floats as float64."""
    # The abstract Ops do not support bfloat16, which is computed in float32 like float16.
    named = "float32" if dtype == "bfloat16" else dtype
    y, reserve, next_state = run_op(Dropout(), x.astype(named), p, state)
    (gx,) = run_op(DropoutGrad(), gy.astype(named), p, reserve)
    return [rounded(y, dtype), reserve, next_state, rounded(gx, dtype)]


def random_state(rng: np.random.Generator) -> np.ndarray:
    # Counters of more than 32 bits, too.
    seed = rng.integers(2**63, dtype="int64")
    offset = int(rng.choice([0, 16, 2**32 - 32, int(rng.integers(2**40))]))
    return np.array([seed, offset], dtype="int64")


def moved(array: np.ndarray, first: int) -> np.ndarray:
    """Return a copy that starts so many elements after an address that is a multiple of 32."""
    memory = np.empty(array.size + 40, array.dtype)
    first += -(memory.ctypes.data // array.itemsize) % (32 // array.itemsize)
    copy = memory[first : first + array.size]
    copy[...] = array
    return copy


@pytest.mark.parametrize("dtype", of_dtypes(*DTYPES, quick="float32"))
def test_kernels_on_the_host(tmp_path, dtype):
    library = compile_for_host(tmp_path, "dropout", KERNELS, {"DTYPE": DTYPE_CODES[dtype]})
    rng = np.random.default_rng(SEED)
    for number in range(25):
        count = int(rng.choice([1, 63, 64, 65, 1025, 2048, 2049, int(rng.integers(1, 9000))]))
        # At some of these addresses, four elements cannot be moved at once.
        first = int(rng.choice([0, 0, 1, 2]))
        p = float(rng.choice([0.0, 0.5, rng.random() * 0.99]))
        state = random_state(rng)
        x, gy = (rounded(rng.standard_normal(count), dtype) for _ in range(2))
        given, g = (moved(bits(values, dtype), first) for values in (x, gy))
        y, gx = (moved(np.full_like(given, 7), first) for _ in range(2))
        reserve = np.full((count + 7) // 8 + 1, 255, "uint8")
        next_state, flag = np.zeros(2, "int64"), np.zeros(2, "int32")
        in_memory = {"p": np.array(p), "state": state, "flag": flag, "error": 3}
        on_host = {"seed": state[0], "offset": state[1], "threshold": int(p * 2**32)}
        for kernel, source, target in (("dropout", given, y), ("dropout_grad", g, gx)):
            own = on_host | {"scale": 1 / (1 - p)} if number % 2 else in_memory
            launch = {
                "source": source, "target": target, "reserve": reserve, "seed": 0, "offset": 0,
                "count": count, "threshold": 0, "scale": 0.0, "p": 0, "state": 0,
                "next_state": next_state if kernel == "dropout" else 0, "flag": 0, "error": 0,
            } | own  # fmt: skip
            run = getattr(library, f"run_{kernel}")
            assert run(launch_struct(**launch), -(-count // BLOCK_ELEMENTS), 256, number) == 0
        assert not flag.any()
        y_ref, reserve_ref, next_ref, gx_ref = expected(x, gy, p, state, dtype)
        words = f"{dtype}, {count} from {first} on, p={p}, state {state}: {repeat_command()}"
        np.testing.assert_array_equal(values(y, dtype), y_ref, err_msg=words)
        np.testing.assert_array_equal(reserve, [*reserve_ref, 255], err_msg=words)
        np.testing.assert_array_equal(values(gx, dtype), gx_ref, err_msg=words)
        assert next_ref[1] - state[1] == -(-count // GROUP) * BLOCKS
        if number % 2 == 0:
            np.testing.assert_array_equal(next_state, next_ref, err_msg=words)


def training_step(make):
    """Return a step of two dropout layers that share a state, and one with its own."""
    rng = np.random.default_rng(0)
    x, p = pt.fmatrix(), pt.dscalar()
    w = make(rng.standard_normal((8, 8)).astype("float32"))
    state = nnet.dropout_state(seed=3)
    y, next_state = nnet.dropout(x @ pt.as_tensor_variable(w), 0.3, state=state)
    z, next_state = nnet.dropout(nnet.relu(y) + 1, p, state=next_state)
    loss = (nnet.dropout(z, 0.5, seed=4) ** 2).mean()
    new = w - np.float32(0.01) * pytensor.grad(loss, w)
    return [x, p], loss, {w: new, state: next_state}


def test_a_training_step_can_be_captured():
    """Its states are uploaded, and those of the next step do not wait for the device."""
    inputs, loss, updates = training_step(pytensor.shared)
    (w, state), own = updates, loss
    array = GpuArrayType("float32", (8, 8))()
    found = pytensor.graph.traversal.graph_inputs([loss])
    (own,) = [s for s in found if isinstance(s, SharedVariable) and s not in (w, state)]
    outputs = [loss, *updates.values(), own.default_update]
    results = pytensor.graph.clone_replace(
        outputs, {w: w.type.filter_variable(host_from_gpu(array))}
    )
    results[1] = results[1].transfer("cuda")
    with pytensor.config.change_flags(dnn__enabled="no_check"):
        mode = pytensor.compile.get_mode("CUDNN")
        graph = rewritten([array, *inputs, state, own], results, mode)
    order = graph.toposort()
    found = schedule(graph, order, [None] * len(order))
    assert found.by_value == ()
    assert ops(graph).count("HostFromGpu") == 1  # the loss
    roles = dict(zip(order, found.roles, strict=True))
    next_states = [z.owner for z in graph.outputs[2:]]
    assert [roles[node] for node in next_states] == [Role.AFTER] * 2
    drawn = [node for node in order if isinstance(node.op, GpuDnnDropoutOp)]
    assert len(drawn) == 3
    assert all(is_on_device(v) for node in drawn for v in node.inputs)
    with pytensor.config.change_flags(dnn__enabled="no_check", dnn__cuda_graph="False"):
        graph = rewritten([array, *inputs, state, own], results, mode)
    assert not any(getattr(node.op, "from_device", False) for node in graph.apply_nodes)


@pytest.mark.gpu
def test_a_captured_training_step():
    """It draws the numbers of the CPU, with other probabilities in each call."""
    rng = np.random.default_rng(1)
    batches = [rng.standard_normal((20, 8)).astype("float32") for _ in range(8)]
    found = []
    for mode, make in (("CUDNN", shared), ("ONEDNN", pytensor.shared)):
        inputs, loss, updates = training_step(make)
        if mode == "CUDNN":
            updates = {s: z.transfer("cuda") if z.type.ndim == 2 else z for s, z in updates.items()}
        f = pytensor.function(inputs, loss, updates=updates, mode=mode)
        losses = [float(f(x, 0.1 * (1 + i % 7))) for i, x in enumerate(batches)]
        w, state = (np.asarray(s.get_value()) for s in updates)
        found.append((losses, w, state))
        if mode == "CUDNN":
            assert (f.vm.captures, f.vm.replays) == (1, len(batches) - ORDINARY_CALLS), f.vm.reason
    for got, wanted in zip(*found, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
    assert len(set(found[0][0])) == len(batches)


@pytest.mark.needs("nvrtc")
def test_gpu_compiler():
    for dtype in DTYPES:
        code = compile_for_gpu("dropout", {"DTYPE": DTYPE_CODES[dtype]})
        assert "griddepcontrol.wait" in code


@pytest.mark.needs("cudnn")
def test_shapes():
    state = np.array([1, 2])
    outputs = [device_tensor(())] * 3
    y, reserve, next_state = call(
        "dnnops_cudnn_dropout_shape",
        GpuDnnDropoutOp(),
        [device_tensor((3, 7), "bfloat16"), np.array(0.5), state],
        outputs,
    )
    assert [shape_of(t) for t in (y, reserve, next_state)] == [(3, 7), (3,), (2,)]
    with pytest.raises(DnnValueError, match="p must be at least 0"):
        call(
            "dnnops_cudnn_dropout_shape",
            GpuDnnDropoutOp(),
            [device_tensor((3,)), np.array(1.5), state],
            outputs,
        )
    with pytest.raises(DnnValueError, match="2 bytes, expected 1"):
        call(
            "dnnops_cudnn_dropout_grad_shape",
            GpuDnnDropoutGrad(),
            [device_tensor((3,)), np.array(0.5), device_tensor((2,), "uint8")],
            outputs,
        )


def test_gradients_are_built():
    x, state = GpuArrayType("float32", (None, 4))(), pt.lvector()
    y, reserve, next_state = GpuDnnDropoutOp()(x, 0.5, state)
    assert (y.type, next_state.type.ndim) == (x.type, 1)
    assert reserve.type.dtype == "uint8"
    g = pytensor.grad((pt.as_tensor_variable(y) ** 2).sum(), x)
    assert pytensor.grad((pt.as_tensor_variable(g) ** 2).sum(), x).type.ndim == 2
    assert GpuDnnDropoutOp(inplace=True).destroy_map == {0: [0]}
    with pytest.raises(DnnTypeError, match="int64"):
        GpuDnnDropoutOp()(x, 0.5, pt.ivector())


# -- with a GPU ----------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_random(dtype):
    rng = np.random.default_rng(SEED)
    for number in range(90):
        shape = tuple(int(n) for n in rng.integers(0, 12, int(rng.integers(0, 5))))
        if number % 5 == 0:
            shape = (int(rng.integers(1, 200_000)),)
        p = float(rng.choice([0.0, 0.5, 1.0, rng.random() * 0.99]))
        state = random_state(rng)
        x, gy = (rounded(rng.standard_normal(shape), dtype) for _ in range(2))
        given, g = on_gpu(x, dtype), on_gpu(gy, dtype)
        if len(shape) > 1 and number % 3 == 0:
            import cupy

            given, g = cupy.asfortranarray(given), cupy.asfortranarray(g)
        poison()
        node, inputs = make_node(GpuDnnDropoutOp(), given, p, state)
        storage = [[None] for _ in node.outputs]
        node.op.perform(node, inputs, storage)
        y, reserve, next_state = (cell[0] for cell in storage)
        node, inputs = make_node(GpuDnnDropoutGrad(), g, p, reserve)
        storage = [[None]]
        node.op.perform(node, inputs, storage)
        found = [y.get().astype("float64"), reserve.get(), next_state]
        found.append(storage[0][0].get().astype("float64"))
        words = f"number {number}: {dtype} {shape}, p={p}, state {state}: {repeat_command()}"
        for out, ref in zip(found, expected(x, gy, p, state, dtype), strict=True):
            np.testing.assert_array_equal(out, ref, err_msg=words)


@pytest.mark.gpu
def test_compiled_function():
    """The state is kept across calls, and both devices draw the same elements."""
    xg, xc = GpuArrayType("float32", (None, None))(), pt.fmatrix()
    functions = []
    for x, mode in ((xg, "gpu"), (xc, "fast_run")):
        y = nnet.dropout(pt.as_tensor_variable(x), 0.3, seed=11)
        g = pytensor.grad((y**2).sum(), x)
        compiled = pytensor.compile.get_mode("CVM").including(mode)
        functions.append(pytensor.function([x], [y, g], mode=compiled))
    names = {type(node.op).__name__ for node in functions[0].maker.fgraph.apply_nodes}
    assert names >= {"GpuDnnDropoutOp", "GpuDnnDropoutGrad"}, names
    rng = np.random.default_rng(SEED)
    zeros = []
    for shape in ((3, 70), (65, 5), (3, 70), (1, 1), (200, 300)):
        value = rng.standard_normal(shape).astype("float32")
        on_device, on_host = functions[0](on_gpu(value, "float32")), functions[1](value)
        for out, ref in zip(on_device, on_host, strict=True):
            out = np.asarray(out.get() if hasattr(out, "get") else out)
            np.testing.assert_array_equal(out, ref, err_msg=str(shape))
        zeros.append(np.asarray(on_host[0]) == 0)
    assert (zeros[0] != zeros[2]).any()

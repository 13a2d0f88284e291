"""Declared graphs on a GPU, against their Ops in float64."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from dnnops import graph as cudnn
from dnnops.errors import DnnNotSupportedError, DnnValueError
from dnnops.graph.names import dtype_of
from dnnops.graph.op import GpuDeclaredGraph
from tests.graph.declarations import DECLARATIONS, OWN_DECLARATIONS, channels_last
from tests.graph.planning import declared
from tests.oracle import PERFORM_MODE
from tests.project.test_examples import run

pytestmark = pytest.mark.gpu

EVERY = [*DECLARATIONS, *OWN_DECLARATIONS]
#: Bounds of the relative error of a result, by the type of inputs and outputs.
BOUNDS = {"HALF": 3e-3, "BFLOAT16": 2e-2, "FLOAT": 2e-3}
#: Types of inputs and outputs for which cuDNN has no plan. One graph is declared with two types.
NOT_SUPPORTED = {
    "scale_bias_relu_conv": ("FLOAT", "BFLOAT16"),
    "sdpa_backward": ("FLOAT",),
}


def on_device(tensor, value):
    """Return an array with the strides of a tensor."""
    import cupy

    order = sorted(range(len(tensor.dim)), key=lambda axis: -tensor.stride[axis])
    memory = cupy.asarray(np.ascontiguousarray(value.transpose(order)))
    return memory.transpose(np.argsort(order))


def in_dtype(tensor, value):
    """Round values to the data type of a tensor, and return them in float64, too."""
    name = dtype_of(tensor.data_type)
    if name == "bfloat16":
        import ml_dtypes

        value = value.astype(ml_dtypes.bfloat16)
    else:
        value = value.astype(name)
    return value, value.astype("float64") if value.dtype.kind not in "ib" else value


def random_inputs(name, graph, rng):
    """Return values for the inputs of a graph, as they are on the device, and in float64."""
    given = {}
    for tensor in graph.get_inputs():
        shape = tuple(tensor.dim)
        if tensor.value is not None:
            continue
        if tensor.is_pass_by_value:
            given[tensor.name] = (1e-3, 1e-3)
        elif tensor.data_type is cudnn.data_type.INT32:
            lengths = rng.integers(1, 65, shape)
            given[tensor.name] = in_dtype(tensor, lengths)
        elif tensor.data_type is cudnn.data_type.INT8:
            given[tensor.name] = in_dtype(tensor, rng.integers(0, 4, shape))
        elif tensor.name == "v" and "norm" in name:
            given[tensor.name] = in_dtype(tensor, rng.random(shape) + 0.5)
        else:
            given[tensor.name] = in_dtype(tensor, rng.standard_normal(shape) / 2)
    return given


def consistent(name, given):
    """Make results of a forward operation, which its gradient takes, fit to its operands."""
    if name != "sdpa_backward":
        return
    (q, k, v) = (given[key][1] for key in "qkv")
    scores = np.where(np.tri(64, dtype=bool), q @ k.swapaxes(2, 3) * 0.25, -np.inf)
    largest = scores.max(3, keepdims=True)
    terms = np.exp(scores - largest)
    total = terms.sum(3, keepdims=True)
    for key, value in (("o", terms / total @ v), ("stats", largest + np.log(total))):
        given[key] = (value.astype(given[key][0].dtype), value)


@pytest.mark.parametrize("io", BOUNDS)
@pytest.mark.parametrize("name", EVERY)
def test_execution(name, io):
    if io in NOT_SUPPORTED.get(name, ()):
        with pytest.raises(DnnNotSupportedError):
            declared(name, io=io)[0].build()
        return
    import cupy

    graph, results = declared(name, io=io)
    if name in ("max_pool_with_index", "max_pool_backward"):
        check_pooling_pair(io)
        return
    graph.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    given = random_inputs(name, graph, np.random.default_rng(0))
    consistent(name, given)
    arrays = {
        key: value if np.ndim(value) == 0 else on_device(graph.find_tensor(key), value)
        for key, (value, _) in given.items()
    }
    for result in results:
        # Not every engine writes the results of queries beyond a length.
        empty = np.full(result.dim, 0 if name == "sdpa_with_lengths" else 7, "float32")
        arrays[result] = on_device(result, in_dtype(result, empty)[0])
    graph.execute(arrays)
    cupy.cuda.Device().synchronize()
    found = [arrays[result].get().astype("float64") for result in results]

    op = exact(name).as_op()
    operands = [given[t.name][1] for t in op.operands]
    expected = op(*operands)
    expected = expected if isinstance(expected, list) else [expected]
    expected = pytensor.function([], expected, mode=PERFORM_MODE)()
    for one, other in zip(found, expected, strict=True):
        error = relative_error(one, other)
        assert error <= BOUNDS[io], f"relative error {error:.2g}"


def relative_error(found, expected):
    """Return the relative error of finite numbers; others must be equal."""
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(found[~finite], expected[~finite])
    found, expected = (x[finite].astype("float64") for x in (found, expected))
    return np.linalg.norm(found - expected) / np.linalg.norm(expected)


def exact(name):
    """Return the graph in float64."""
    double = cudnn.data_type.DOUBLE
    api = type("api", (), {key: getattr(cudnn, key) for key in dir(cudnn)})
    api.data_type = type("types", (), {t.name: t for t in cudnn.data_type})
    api.data_type.FLOAT = api.data_type.HALF = double
    graph = cudnn.pygraph(
        io_data_type=double, intermediate_data_type=double, compute_data_type=double
    )
    {**DECLARATIONS, **OWN_DECLARATIONS}[name](api, graph)
    return graph


def check_pooling_pair(io):
    """The indices of one graph give the other one the places of the maxima."""
    rng = np.random.default_rng(0)
    forward, (y, index) = declared("max_pool_with_index", io=io)
    backward, (dx,) = declared("max_pool_backward", io=io)
    for graph in (forward, backward):
        graph.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    # The numbers of a window differ in every type.
    ranks = rng.permuted(np.tile(np.arange(4.0), (4 * 16 * 16, 1)), axis=1)
    windows = ranks.reshape(4, 16, 4, 4, 2, 2).swapaxes(3, 4)
    x = in_dtype(y, windows.reshape(4, 16, 8, 8) - 2)[0]
    g = in_dtype(y, rng.standard_normal((4, 16, 4, 4)))[0]
    arrays = {
        "x": on_device(forward.find_tensor("x"), x),
        y: on_device(y, g),
        index: on_device(index, np.zeros(index.dim, "int8")),
    }
    forward.execute(arrays)
    blocks = x.astype("float64").reshape(4, 16, 4, 2, 4, 2)
    largest = blocks.max((3, 5), keepdims=True)
    np.testing.assert_array_equal(arrays[y].get().astype("float64"), largest[:, :, :, 0, :, 0])
    gradient = on_device(dx, in_dtype(dx, np.zeros(dx.dim))[0])
    backward.execute({"dy": on_device(y, g), "i": arrays[index], dx: gradient})
    expected = (blocks == largest) * g.astype("float64")[:, :, :, None, :, None]
    np.testing.assert_allclose(gradient.get().astype("float64"), expected.reshape(x.shape))


def built(io="HALF", **more):
    """Return a graph with a plan, its result, and arrays for it."""
    graph, (y,) = declared("conv_bias_relu", io=io, **more)
    graph.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    rng = np.random.default_rng(0)
    arrays = {
        t.name: on_device(t, in_dtype(t, rng.standard_normal(t.dim))[0]) for t in graph.get_inputs()
    }
    arrays[y.name] = on_device(y, in_dtype(y, np.zeros(y.dim))[0])
    return graph, y, arrays


def test_every_plan_gives_the_same_result():
    graph, y, arrays = built()
    plans = graph.time_plans(arrays, repeats=3)
    assert plans[0].time_ms == min(p.time_ms for p in plans if p.time_ms)
    assert graph.plan_at() is plans[0]
    assert plans[0].name in graph.plan_table(200)
    graph.execute(arrays)
    expected = arrays[y.name].get().astype("float64")
    assert np.linalg.norm(expected) > 1
    checked = 0
    for index, plan in enumerate(graph.plans):
        if plan.time_ms is None:
            continue
        arrays[y.name][...] = 0
        graph.execute_plan_at_index(arrays, None, index)
        found = arrays[y.name].get().astype("float64")
        assert np.linalg.norm(found - expected) <= 3e-3 * np.linalg.norm(expected), plan.name
        checked += 1
    assert checked > 1


def test_arrays_workspace_handle_and_stream():
    import cupy

    handle = cudnn.create_handle()
    graph, y, arrays = built(handle=handle)
    graph.execute(arrays)
    cupy.cuda.Device().synchronize()
    expected = arrays[y.name].copy()
    workspace = cupy.empty(max(1, graph.get_workspace_size()), "uint8")
    stream = cupy.cuda.Stream(non_blocking=True)
    cudnn.set_stream(stream=stream, handle=handle)
    assert cudnn.get_stream(handle) == stream.ptr

    class Dlpack:
        def __init__(self, array):
            self.__dlpack__, self.__dlpack_device__ = array.__dlpack__, array.__dlpack_device__

    for form in (lambda a: a, lambda a: a.data.ptr, Dlpack):
        arrays[y.name][...] = 0
        cupy.cuda.Device().synchronize()
        given = {key: form(a) for key, a in arrays.items()}
        graph.execute(given, workspace, handle)
        stream.synchronize()
        cupy.testing.assert_array_equal(arrays[y.name], expected)
    cudnn.destroy_handle(handle)
    with pytest.raises(DnnValueError, match="destroyed"):
        graph.execute(arrays)


def test_repeated_calls():
    """Calls with the same addresses replay a CUDA graph, which reads what the arrays have then."""
    import cupy

    from dnnops.runtime.build import CUDNN

    replays = CUDNN.library.dnnops_cudnn_replays
    graph, y, arrays = built()
    x, other = arrays["x"], arrays["x"].copy("K")
    stream = cupy.cuda.Stream(non_blocking=True)
    workspace = cupy.empty(max(1, graph.get_workspace_size()), "uint8")
    cupy.cuda.Device().synchronize()
    results, counts = [], []
    for on, given, factor in ((None, x, 1), (None, x, 2), (None, other, 1), (stream, x, 2)) * 4:
        before = replays()
        with on or cupy.cuda.Stream.null:
            x[...] *= factor
            graph.execute({**arrays, "x": given}, workspace)
            results.append(arrays[y.name].get().astype("float64"))
            x[...] /= factor
            x.get()  # waits for the stream
        counts.append(replays() - before)
    assert np.linalg.norm(results[0]) > 1
    for i, result in enumerate(results):
        np.testing.assert_array_equal(result, results[i % 4])
    np.testing.assert_array_equal(results[0], results[2])
    assert not np.allclose(results[0], results[1])
    assert counts[:3] == [0, 1, 0]
    assert counts[4:] == [1] * 12


def test_a_call_in_the_capture_of_a_user():
    import cupy

    handle = cudnn.create_handle()
    graph, y, arrays = built(handle=handle)
    workspace = cupy.empty(max(1, graph.get_workspace_size()), "uint8")
    stream = cupy.cuda.Stream(non_blocking=True)
    cudnn.set_stream(stream=stream, handle=handle)
    cupy.cuda.Device().synchronize()
    for _ in range(3):
        graph.execute(arrays, workspace)
    stream.synchronize()
    expected = arrays[y.name].get()
    with stream:
        stream.begin_capture()
        graph.execute(arrays, workspace)
        captured = stream.end_capture()
        arrays[y.name][...] = 0
        captured.launch(stream)
        found = arrays[y.name].get()
    np.testing.assert_array_equal(found, expected)


def test_current_stream_and_workspace():
    import cupy

    graph, y, arrays = built()
    graph.execute(arrays)
    expected = arrays[y.name].copy()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        arrays[y.name][...] = 0
        graph.execute(arrays)
        stream.synchronize()
    cupy.testing.assert_array_equal(arrays[y.name], expected)
    other, z, of_other = built("FLOAT")
    with stream:
        other.execute(of_other)
    arrays[y.name][...] = 0
    graph.execute(arrays)
    cupy.cuda.get_current_stream().synchronize()
    cupy.testing.assert_array_equal(arrays[y.name], expected)
    assert of_other[z.name].dtype == "float32"
    for plan in graph.plans:
        if plan.descriptor is not None and plan.workspace:
            small = cupy.empty(plan.workspace - 1, "uint8")
            with pytest.raises(DnnValueError, match="the plan needs"):
                graph.execute_plan_at_index(arrays, small, graph.plans.index(plan))


def test_stored_plan():
    graph, y, arrays = built()
    graph.execute(arrays)
    expected = arrays[y.name].copy()
    again = cudnn.pygraph()
    again.deserialize(cudnn.create_handle(), graph.serialize())
    assert again.plan_at().name == graph.plan_at().name
    arrays[y.name][...] = 0
    again.execute(arrays)
    assert (arrays[y.name] == expected).all()


@pytest.mark.alone  # other processes take memory of the GPU, too
def test_many_calls_take_no_memory():
    import cupy

    graph, _, arrays = built()
    for _ in range(10):
        graph.execute(arrays)
    free = cupy.cuda.runtime.memGetInfo()[0]
    for _ in range(2000):
        graph.execute(arrays)
    cupy.cuda.Device().synchronize()
    assert free - cupy.cuda.runtime.memGetInfo()[0] < 1 << 20


def test_threads_run_one_plan():
    import cupy

    graph, y, arrays = built()
    graph.execute(arrays)
    expected = arrays[y.name].get()

    def work():
        own = {**arrays, y.name: arrays[y.name].copy("K")}  # cuDNN writes channels-last
        handle = cudnn.create_handle()
        for _ in range(50):
            own[y.name][...] = 0
            # The whole device must not be waited for while another thread captures a graph.
            cupy.cuda.get_current_stream().synchronize()
            graph.execute(own, handle=handle)
            cupy.cuda.get_current_stream().synchronize()
            assert (own[y.name].get() == expected).all()

    with ThreadPoolExecutor(4) as pool:
        for job in [pool.submit(work) for _ in range(4)]:
            job.result()


def test_unsupported_graph():
    graph, _ = declared("conv_bias_relu", io="DOUBLE")
    with pytest.raises(DnnNotSupportedError, match="eng"):
        graph.build()


# -- as an Op ------------------------------------------------------------------------------


@pytest.mark.parametrize("io", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("cuda_graph", ["False", "True"])
def test_op(io, cuda_graph):
    rng = np.random.default_rng(0)
    types = {"intermediate_data_type": "float32", "compute_data_type": "float32"}
    graph = cudnn.pygraph(io_data_type=io, **types)
    dims = {"x": [4, 16, 9, 9], "w": [8, 16, 3, 3], "b": [1, 8, 1, 1]}
    x, w, b = (graph.tensor(dim, channels_last(dim), name=key) for key, dim in dims.items())
    graph.relu(graph.bias(graph.conv_fprop(x, w, padding=[1, 1]), b)).set_output(True)
    op = graph.as_op()
    dtype = op.make_node(*(op._host_variable(t) for t in op.operands)).inputs[0].type.dtype
    values = [(rng.standard_normal(dim) / 2).astype(dtype) for dim in dims.values()]
    variables = [pt.tensor(dtype=dtype, shape=(None,) * 4) for _ in values]
    y = op(*variables)
    outputs = [y, *pytensor.grad((y.astype("float32") ** 2).sum(), variables)]
    with pytensor.config.change_flags(dnn__cuda_graph=cuda_graph):
        function = pytensor.function(variables, outputs, mode="CUDNN")
    assert any(isinstance(n.op, GpuDeclaredGraph) for n in function.maker.fgraph.apply_nodes)
    host = pytensor.function(variables, outputs, mode="ONEDNN")
    for _ in range(5):
        found, expected = function(*values), host(*values)
        for one, other in zip(found, expected, strict=True):
            assert relative_error(one, other) <= (2e-2 if io == "bfloat16" else 3e-3)


def test_op_in_threads():
    """A function that one thread compiled runs in another one, with its own handle."""
    op = declared("conv_bias_relu")[0].as_op()
    variables = [op._host_variable(t) for t in op.operands]
    rng = np.random.default_rng(0)
    values = [rng.standard_normal(v.type.shape).astype(v.type.dtype) for v in variables]
    functions = [pytensor.function(variables, op(*variables), mode="CUDNN") for _ in range(3)]
    expected = functions[0](*values)
    found = []
    threads = [
        threading.Thread(target=lambda f=f: found.extend(f(*values) for _ in range(20)))
        for f in functions
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 60
    for result in found:
        np.testing.assert_array_equal(result, expected)


def test_op_with_numbers_and_attention():
    rng = np.random.default_rng(0)
    for name in ("layernorm", "sdpa_with_lengths", "scaled"):
        op = declared(name)[0].as_op()
        variables = [op._host_variable(t) for t in op.operands]
        values = [
            np.asarray(1e-3, v.type.dtype)
            if t.is_pass_by_value
            else rng.integers(1, 65, tuple(t.dim)).astype("int32")
            if v.type.dtype == "int32"
            else (rng.standard_normal(tuple(t.dim)) / 2).astype(v.type.dtype)
            for t, v in zip(op.operands, variables, strict=True)
        ]
        outputs = op(*variables)
        function = pytensor.function(variables, outputs, mode="CUDNN")
        assert any(isinstance(n.op, GpuDeclaredGraph) for n in function.maker.fgraph.apply_nodes)
        expected = pytensor.function(variables, outputs, mode="FAST_COMPILE")(*values)
        found = function(*values)
        if not isinstance(found, list):
            found, expected = [found], [expected]
        for one, other in zip(found, expected, strict=True):
            assert relative_error(one, other) <= 3e-3


def test_operands_that_are_not_aligned():
    import cupy

    from dnnops.gpuarray.type import GpuArrayType

    graph = cudnn.pygraph(io_data_type="float16", compute_data_type="float32")
    graph.relu(graph.tensor([4, 16, 8, 8], channels_last([4, 16, 8, 8]))).set_output(True)
    x = GpuArrayType("float16", (None,) * 4)()
    function = pytensor.function([x], GpuDeclaredGraph(graph.as_op().data)(x), mode="CUDNN")
    memory = cupy.ones(4 * 16 * 64 + 8, "float16")
    images = memory[1:-7].reshape(4, 8, 8, 16).transpose(0, 3, 1, 2)
    assert images.data.ptr % 16
    assert (function(images) == 1).all()


# -- the documents' examples ---------------------------------------------------------------


@pytest.mark.needs("torch")
def test_first_notebook():
    assert "relative error" in run("examples/seeds/graph_convolution.py")


def test_conv_bias_relu_example():
    printed = run("examples/seeds/graph_conv_bias_relu.py")
    assert "x best" in printed
    assert "relative difference" in printed

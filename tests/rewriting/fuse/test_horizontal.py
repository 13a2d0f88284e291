"""Updates of all parameters are one kernel for each formula."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.aliasing import Supervisor
from pytensor.compile.mode import get_mode
from pytensor.graph.destroyhandler import DestroyHandler
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.utils import InconsistencyError
from pytensor.link.basic import Container

from benchmarks import model_zoo
from benchmarks.peers.models.dnnops_cpu import training_step
from dnnops.capture.schedule import Role, schedule
from dnnops.explanation.graph import describe_graph
from dnnops.gpuarray import GpuArrayType, shared
from dnnops.gpuarray.elemwise import GpuElemwise
from dnnops.gpuarray.multi_elemwise.op import GpuMultiElemwise
from dnnops.gpuarray.shared_variables import GpuArraySharedVariable
from dnnops.gpuarray.transfer import as_gpuarray_variable, host_from_gpu
from dnnops.rewriting.fuse.horizontal import LARGE
from tests.gpuarray.graphs import GPU_MODE

NAME = "gpu_horizontal_fusion"
#: Nodes stay as they are.
UNFUSED = GPU_MODE.excluding("elemwise_fusion")
F = np.float32
#: Shapes of 30 parameters. PyTensor itself fuses those of one element that share a rate.
SHAPES = [(2,), (7,), (1, 5), (4, 3), (2, 3, 4), (8, 3, 5, 5)] * 5


@pytest.fixture(autouse=True)
def without_a_device():
    with pytensor.config.change_flags(dnn__enabled="no_check"):
        yield


def device(shape=(None, None), dtype="float32", name=None):
    return GpuArrayType(dtype, shape)(name)


def rewritten(inputs, updates, mode=GPU_MODE, outputs=()) -> FunctionGraph:
    """Rewrite the graph of a function with updates, as its compilation would.

    The inputs of the graph are `inputs` and the updated variables.
    """
    states = [state for state, _ in updates]
    results = [*outputs, *(as_gpuarray_variable(new) for _, new in updates)]
    places = {len(outputs) + i: len(inputs) + i for i in range(len(updates))}
    graph = FunctionGraph([*inputs, *states], results, clone=True, update_mapping=places)
    graph.attach_feature(Supervisor(graph.inputs[: len(inputs)]))
    mode.optimizer.rewrite(graph)
    return graph


def merged(graph):
    return [node for node in graph.toposort() if isinstance(node.op, GpuMultiElemwise)]


def elementwise(graph):
    return [n for n in graph.toposort() if isinstance(n.op, GpuElemwise | GpuMultiElemwise)]


def assert_in_place(graph, node):
    """Check that each result overwrites the value that it updates, so that no array is made."""
    old = {graph.outputs[i]: graph.inputs[j] for i, j in graph.update_mapping.items()}
    for o, z in enumerate(node.outputs):
        assert node.inputs[node.op.destroy_map[o][0]] is old[z]


# -- optimizers ----------------------------------------------------------------------------


def like(p):
    """Return a variable for the optimizer's state of a parameter."""
    return device(p.type.shape)


def momentum(p, g, rate, state=like):
    v = state(p)
    new = F(0.9) * v + g
    return [(v, new), (p, p - rate * new)]


def nesterov(p, g, rate, state=like):
    v = state(p)
    new = F(0.9) * v - rate * g
    return [(v, new), (p, p + F(0.9) * new - rate * g)]


def rmsprop(p, g, rate, state=like):
    v = state(p)
    new = F(0.9) * v + F(0.1) * g**2
    return [(v, new), (p, p - rate * g / pt.sqrt(new + F(1e-6)))]


def adam(p, g, rate, state=like):
    m, v = state(p), state(p)
    new_m, new_v = F(0.9) * m + F(0.1) * g, F(0.99) * v + F(0.01) * g**2
    change = rate * new_m / (pt.sqrt(new_v) + F(1e-8))
    return [(m, new_m), (v, new_v), (p, p - change)]


def averaged(p, g, rate, state=like):
    """Gradient descent with an average of the parameters, which uses their new values."""
    average = state(p)
    new = p - rate * g
    return [(p, new), (average, F(0.99) * average + F(0.01) * new)]


OPTIMIZERS = (momentum, nesterov, rmsprop, adam, averaged)


def step(optimizer, shapes, rate):
    """Return gradients and updates of parameters."""
    gradients = [device(shape) for shape in shapes]
    updates = []
    for shape, g in zip(shapes, gradients, strict=True):
        updates += optimizer(device(shape), g, rate)
    return gradients, updates


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda f: f.__name__)
def test_one_node_for_all_parameters(optimizer):
    rate = pt.fscalar("rate")
    gradients, updates = step(optimizer, SHAPES, rate)
    graph = rewritten([rate, *gradients], updates)
    (node,) = elementwise(graph)
    assert node.op.count == len(SHAPES)
    assert_in_place(graph, node)
    # The rate is there once, in front of nothing but numbers.
    assert [x for x in node.inputs if x in graph.inputs[:1]] == [node.inputs[-1]]


def test_updates_stay_in_order():
    gradients, updates = step(momentum, SHAPES, F(0.1))
    graph = rewritten(gradients, updates)
    (node,) = merged(graph)
    inputs = dict(zip([*gradients, *(s for s, _ in updates)], graph.inputs, strict=True))
    for place, (state, _) in enumerate(updates):
        z = graph.outputs[place]
        item, output = divmod(z.owner.outputs.index(z), 2)
        own = node.op.operands(node.inputs, item)
        assert inputs[state] in own
        assert inputs[gradients[place // 2]] in own
        assert own[dict(node.op.inplace_pattern)[output]] is inputs[state]


def test_a_rate_on_the_device():
    """A number on the device is an array of one element for each rank."""
    rate = device(())
    shapes = [*SHAPES[1:6], (6, 7), (None, None)]
    gradients, updates = step(momentum, shapes, rate)
    graph = rewritten([rate, *gradients], updates)
    (node,) = elementwise(graph)
    assert node.op.count == len(shapes)
    assert node.op.kinds.count("stored") == 1
    assert_in_place(graph, node)


def test_different_formulas_and_dtypes_are_apart():
    gradients, updates = step(momentum, SHAPES[:3], F(0.1))
    more, others = step(rmsprop, SHAPES[:4], F(0.1))
    doubles = []
    for shape in SHAPES[:5]:
        p, g = device(shape, "float64"), device(shape, "float64")
        more.append(g)
        doubles.append((p, p - 0.5 * g))
    graph = rewritten([*gradients, *more], [*updates, *others, *doubles])
    assert sorted(node.op.count for node in elementwise(graph)) == [3, 4, 5]


def test_different_numbers_are_apart():
    rates = pt.fscalars("a", "b")
    inputs, updates = [*rates], []
    for rate in rates:
        gradients, new = step(momentum, SHAPES[:3], rate)
        inputs += gradients
        updates += new
    assert [n.op.count for n in elementwise(rewritten(inputs, updates))] == [3, 3]


def shared_without_value(shape):
    """Return a shared variable of a device that is not there."""
    type_ = GpuArrayType("float32", shape)
    container = Container(type_(), [None])
    return GpuArraySharedVariable(type=type_, value=None, strict=None, container=container)


def cast_parameters(uses):
    """Return parameters, and a graph that uses each one in 16 bits so many times."""
    shapes = [(3, 4), (4, 5), (5, 3)]
    parameters = [shared_without_value(shape) for shape in shapes]
    x = device((None, 3), "float16")
    y = x
    for _ in range(uses):
        for p in parameters:
            y = pt.tanh(y @ p.astype("float16"))
    return rewritten([x, *parameters], [], outputs=[as_gpuarray_variable(y)])


def test_parameters_in_16_bits():
    """They are converted at once, since the gradient uses them again."""
    graph = cast_parameters(2)
    (node,) = merged(graph)
    assert node is graph.toposort()[0]
    assert set(node.inputs) == set(graph.inputs[1:])
    assert {z.type.dtype for z in node.outputs} == {"float16"}
    assert not node.op.destroy_map


# -- what is not merged --------------------------------------------------------------------


def test_a_new_value_that_is_used_elsewhere():
    """Nothing waits for a merged node."""
    gradients, updates = step(momentum, [(3, 4)] * 4, F(0.1))
    used = (updates[1][1] @ updates[3][1].T).transfer("cuda")
    graph = rewritten(gradients, updates, outputs=[used])
    (node,) = merged(graph)
    assert node.op.count == 2
    assert len(elementwise(graph)) == 3
    assert all(x.owner is None for x in node.inputs)


def test_a_node_that_depends_on_another():
    x, y = device((4, 4)), device((4, 4))
    first = pt.tanh(x)
    second = pt.tanh(y + first @ y)
    graph = rewritten([x, y], [], outputs=[as_gpuarray_variable(z) for z in (first, second)])
    assert not merged(graph)


def test_intermediates_are_not_kept_longer():
    """Results of arrays that are not the function's may be large, and are computed at once."""
    x, w = device(), device()
    outputs = [as_gpuarray_variable(pt.tanh(z @ w)) for z in (x, x * 2)]
    graph = rewritten([x, w], [], outputs=outputs)
    assert not merged(graph)


def test_parameters_that_are_used_once():
    """Otherwise, a network that has no gradient would have all of them at once."""
    assert not merged(cast_parameters(1))


def test_large_parameters_have_their_own_kernels():
    shapes = [(LARGE // 4, 4), (LARGE // 4, 2), (LARGE // 2, 2), (5,)]
    gradients, updates = step(momentum, shapes, F(0.1))
    graph = rewritten(gradients, updates)
    assert sorted(type(n.op).__name__ for n in elementwise(graph)) == [
        "GpuElemwise",
        "GpuElemwise",
        "GpuMultiElemwise",
    ]
    assert [n.op.count for n in merged(graph)] == [2]


def test_broadcast_operands():
    rows, updates = [], []
    for _ in range(3):
        p, row = device((4, 3)), device((3,))
        rows.append(row)
        updates.append((p, p - row))
    graph = rewritten(rows, updates)
    assert [type(n.op) for n in elementwise(graph)] == [GpuElemwise] * 3


@pytest.mark.parametrize("excluded", [NAME, "fusion"])
def test_excluded(excluded):
    gradients, updates = step(momentum, SHAPES, F(0.1))
    graph = rewritten(gradients, updates, GPU_MODE.excluding(excluded))
    assert not merged(graph)


def test_nothing_happens_on_the_cpu():
    x, y = pt.fvectors("x", "y")
    states = [pytensor.shared(np.zeros(3, "float32")) for _ in range(2)]
    updates = [(s, s - F(0.5) * z) for s, z in zip(states, (x, y), strict=True)]
    f = pytensor.function([x, y], updates=updates, mode="ONEDNN")
    assert not merged(f.maker.fgraph)


# -- in place ------------------------------------------------------------------------------


def test_an_array_that_is_overwritten_and_read():
    """In one kernel, it would be read before or after it is overwritten."""
    p, q, r, g, h = (device((5,)) for _ in range(5))
    updates = [(p, p - q), (q, q - g), (r, r - h)]
    graph = rewritten([g, h], updates, UNFUSED)
    (node,) = merged(graph)
    old, new = graph.inputs[2:], graph.outputs
    assert [z.owner is node for z in new] == [True, False, True]
    assert_in_place(graph, node)
    assert_in_place(graph, new[1].owner)
    order = graph.toposort()
    assert order.index(node) < order.index(new[1].owner)
    assert old[1] in node.inputs


def test_parameters_that_read_each_other():
    p, q = device((5,)), device((5,))
    graph = rewritten([], [(p, p - q), (q, q - p)], UNFUSED)
    assert graph.toposort()
    assert not merged(graph)
    assert [bool(node.op.destroy_map) for node in graph.toposort()] == [False, True]


def test_exchanged_parameters():
    """A new value may be where another old one was."""
    p, q, g, h = (device((5,)) for _ in range(4))
    graph = rewritten([g, h], [(p, q - g), (q, p - h)], UNFUSED)
    (node,) = merged(graph)
    old, new = graph.inputs[2:], graph.outputs
    for z, x in zip(new, reversed(old), strict=True):
        assert node.inputs[node.op.destroy_map[node.outputs.index(z)][0]] is x


def test_nodes_that_would_wait_for_each_other():
    """A third node overwrites what one of them reads, and reads what the other overwrites."""
    a, b, t, g = (device((6, 6)) for _ in range(4))
    updates = [(a, a - t), (b, b - g), (t, t + b)]
    graph = rewritten([g], updates, UNFUSED)
    assert not merged(graph)
    order = graph.toposort()
    first, last, between = (order.index(z.owner) for z in graph.outputs)
    assert first < between < last
    for node in order:
        assert_in_place(graph, node)


def test_a_refused_group_is_divided(monkeypatch):
    """The graph refuses a group with nodes that would wait for others; the rest is merged."""
    gradients, updates = step(momentum, [(5,)] * 8, F(0.1))
    on_validate, refused = DestroyHandler.on_validate, []

    def refuse(self, graph):
        for node in merged(graph):
            if graph.inputs[8] in node.inputs:
                refused.append(node.op.count)
                raise InconsistencyError("refused")
        return on_validate(self, graph)

    monkeypatch.setattr(DestroyHandler, "on_validate", refuse)
    graph = rewritten(gradients, updates)
    assert refused == [8, 4, 2]
    assert sorted(node.op.count for node in merged(graph)) == [2, 4]
    assert len(elementwise(graph)) == 4


# -- whole functions -----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mlp", "resnet"])
def test_training_steps(name):
    """All updates with momentum or Adam of a network are in one node, in place, and captured."""
    inputs, loss, updates = training_step(name, model_zoo.MODELS[name].sizes)
    moved = {s: device(s.type.shape) for s, _ in updates if s.type.ndim}
    replaced = [(s, host_from_gpu(x)) for s, x in moved.items()]
    loss, *new = pytensor.graph.clone_replace([loss, *(z for _, z in updates)], replaced)
    pairs = [(moved[s], z) for (s, _), z in zip(updates, new, strict=True) if s in moved]
    inputs += [s for s, _ in updates if s not in moved]
    mode = get_mode("CUDNN")
    graph = rewritten(inputs, pairs, mode, outputs=[loss])
    (node,) = merged(graph)
    assert node.op.count > 7
    assert_in_place(graph, node)
    # Those that are left are not updates, but for a product that adds to the velocity itself.
    last = [n for n in elementwise(graph) if n is not node and n.outputs[0] in graph.outputs]
    assert len(last) <= 1
    order = graph.toposort()
    found = schedule(graph, order, [None] * len(order))
    assert dict(zip(order, found.roles, strict=True))[node] is Role.DEVICE
    assert found.by_value == ()
    assert found.numbers == {x for x in node.inputs if not isinstance(x.type, GpuArrayType)}


def test_explanation():
    rate = pt.fscalar("rate")
    gradients, updates = step(momentum, [(4, 3), (2,)], rate)
    graph = rewritten([rate, *gradients], updates)
    (node,) = describe_graph(graph)
    assert (node.op, node.reuse, node.device) == ("GpuMultiElemwise{4 Ops}", "in-place", "cuda0")
    assert node.bytes == 0


def test_copies_and_pickles():
    gradients, updates = step(adam, SHAPES, F(0.1))
    graph = rewritten(gradients, updates)
    (node,) = merged(graph)
    for other in (copy.deepcopy(graph), pickle.loads(pickle.dumps(graph)), graph.clone()):
        (own,) = merged(other)
        assert own.op == node.op
        assert own.op.destroy_map == node.op.destroy_map


# -- on a GPU ------------------------------------------------------------------------------


def zeros_like(variable):
    return np.zeros_like(np.asarray(variable.get_value()))


def trained(optimizer, make, dtype, mode, convert, shapes=((), *SHAPES), **flags):
    """Return the function, and the values after eight steps, with variables from `make`."""
    rng = np.random.default_rng(0)
    values = [rng.standard_normal(shape).astype(dtype) for shape in shapes]
    rate = pt.scalar("rate", dtype=dtype)
    parameters = [make(value) for value in values]
    # One array for all gradients, so that the function also has other nodes.
    flat = pt.vector("flat", dtype=dtype)
    ends = np.cumsum([value.size for value in values])
    updates = []
    for p, value, end in zip(parameters, values, ends, strict=True):
        g = flat[end - value.size : end].reshape(value.shape) * 2
        updates += optimizer(p, g, rate, lambda p: make(zeros_like(p)))
    with pytensor.config.change_flags(**flags):
        pairs = [(s, convert(new)) for s, new in updates]
        f = pytensor.function([flat, rate], updates=pairs, mode=mode)
    for number in range(8):
        f(rng.standard_normal(ends[-1]).astype(dtype), np.asarray(0.1 / (1 + number), dtype))
    return f, [np.asarray(s.get_value()) for s, _ in updates]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda f: f.__name__)
def test_updates_on_a_gpu(optimizer, dtype):
    """Captured or not, and as without the pass; the rate changes in each step."""
    _, wanted = trained(optimizer, pytensor.shared, dtype, "FAST_COMPILE", lambda z: z)
    cudnn = get_mode("CUDNN")
    for mode, is_merged in ((cudnn, True), (cudnn.excluding(NAME), False)):
        for graph in ("False", "True"):
            f, found = trained(
                optimizer, shared, dtype, mode, as_gpuarray_variable, dnn__cuda_graph=graph
            )
            assert bool(merged(f.maker.fgraph)) is is_merged
            if graph == "True":
                assert f.vm.replays
            for got, want in zip(found, wanted, strict=True):
                bound = 2e-5 if dtype == "float32" else 1e-12
                np.testing.assert_allclose(got, want, rtol=bound, atol=bound)


@pytest.mark.gpu
def test_a_graph_with_large_parameters():
    """The addresses of 250 items take more than 4 KB.

    The other 50 gradients have a known length of 1, along which they may be broadcast.
    """
    results = []
    for graph in ("False", "True"):
        f, found = trained(
            momentum,
            shared,
            "float32",
            get_mode("CUDNN"),
            as_gpuarray_variable,
            SHAPES * 10,
            dnn__cuda_graph=graph,
        )
        results.append(found)
        (node,) = merged(f.maker.fgraph)
        assert node.op.count == 250
    assert f.vm.replays
    for got, want in zip(*results, strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.gpu
@pytest.mark.parametrize("graph", ["False", "True"])
def test_parameters_in_16_bits_on_a_gpu(graph):
    """They are converted in one kernel, and updated in another one that follows."""
    rng = np.random.default_rng(0)
    values = [rng.standard_normal((40, 40), dtype="float32") / 8 for _ in range(4)]
    x, found = rng.standard_normal((16, 40), dtype="float32"), []
    for mode in (get_mode("CUDNN"), get_mode("CUDNN").excluding(NAME)):
        parameters = [shared(value) for value in values]
        y = pt.constant(x.astype("float16"))
        for p in parameters:
            y = pt.tanh(y @ p.astype("float16"))
        loss = (y.astype("float32") ** 2).mean()
        updates = []
        for p, g in zip(parameters, pytensor.grad(loss, parameters), strict=True):
            updates += momentum(p, g, F(0.1), lambda p: shared(zeros_like(p)))
        with pytensor.config.change_flags(dnn__cuda_graph=graph):
            pairs = [(s, as_gpuarray_variable(new)) for s, new in updates]
            f = pytensor.function([], loss, updates=pairs, mode=mode)
        losses = [float(f()) for _ in range(8)]
        found.append((len(merged(f.maker.fgraph)), losses))
        assert bool(getattr(f.vm, "replays", 0)) is (graph == "True")
    assert [count for count, _ in found] == [2, 0]
    assert losses[-1] < losses[0]
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=2e-3)


@pytest.mark.gpu
def test_memory_on_a_gpu():
    """New values don't lie beside the old ones."""
    import cupy

    rng = np.random.default_rng(0)
    values = [rng.standard_normal((1 << 20) - i, dtype="float32") for i in range(20)]
    parameters = [shared(value) for value in values]
    g = shared(rng.standard_normal(1 << 20, dtype="float32"))
    updates = []
    for p, value in zip(parameters, values, strict=True):
        updates += momentum(p, g[: value.size], F(0.1), lambda p: shared(zeros_like(p)))
    pairs = [(s, as_gpuarray_variable(new)) for s, new in updates]
    f = pytensor.function([], updates=pairs, mode="CUDNN")
    assert merged(f.maker.fgraph)
    f()
    pool = cupy.get_default_memory_pool()
    pool.free_all_blocks()
    before = pool.total_bytes()
    f()
    assert pool.total_bytes() - before < 4 << 20

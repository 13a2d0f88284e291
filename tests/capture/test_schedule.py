"""Which nodes of a function a CUDA graph contains; needs no device."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.basic import Apply
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.traversal import graph_inputs
from pytensor.ifelse import ifelse
from pytensor.scalar.basic import add as scalar_add
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.random.utils import RandomStream
from pytensor.tensor.shape import Shape_i
from pytensor.tensor.type_other import make_slice

from benchmarks import model_zoo
from benchmarks.peers.models.dnnops_cpu import training_step
from dnnops import dnn, nnet
from dnnops.capture.schedule import Role, schedule
from dnnops.capture.vm import why_not_captured
from dnnops.errors import DnnNotSupportedError
from dnnops.gpuarray import GpuArrayType
from dnnops.gpuarray.basic import GpuContiguous
from dnnops.gpuarray.op import GpuOp
from dnnops.gpuarray.transfer import as_gpuarray_variable, host_from_gpu
from tests.gpuarray.graphs import rewritten


@pytest.fixture(autouse=True)
def without_a_device():
    with pytensor.config.change_flags(dnn__enabled="no_check"):
        yield


def scheduled(inputs, outputs):
    """Return the roles of the nodes of a rewritten graph by node, and its schedule."""
    graph = rewritten(inputs, outputs, pytensor.compile.get_mode("CUDNN"))
    order = graph.toposort()
    found = schedule(graph, order, [None] * len(order))
    return dict(zip(order, found.roles, strict=True)), found


def names(roles, role):
    return [type(node.op).__name__ for node, own in roles.items() if own is role]


def device(*shape, dtype="float32"):
    return GpuArrayType(dtype, shape)()


def test_inputs_are_uploaded_and_results_read_afterwards():
    x, w = pt.fmatrix(), device(4, 5)
    roles, found = scheduled([x, w], [nnet.relu(x @ host_from_gpu(w)).sum(axis=0)])
    assert names(roles, Role.UPLOAD) == ["GpuFromHost"]
    assert names(roles, Role.AFTER) == ["HostFromGpu"]
    assert "GpuDense" in names(roles, Role.DEVICE)
    assert found.by_value == ()
    assert found.device == 0


def test_shapes_are_fixed():
    x = device(None, None)
    roles, found = scheduled([x], [(x * 2).mean(axis=0).transfer("cuda")])
    assert "Shape_i" in names(roles, Role.FIXED)
    assert not found.by_value
    assert not found.numbers


def test_numbers_of_elementwise_nodes():
    x, rate = device(None), pt.fscalar()
    _, found = scheduled([x, rate], [(x * (rate + 1)).transfer("cuda")])
    assert len(found.numbers) == 1
    assert not found.by_value


def test_bounds_of_slices():
    x, n = device(None), pt.lscalar()
    _, found = scheduled([x, n], [(x[:n] * 2).transfer("cuda")])
    assert len(found.by_value) >= 1
    assert not found.numbers


def test_starts_of_slices():
    """As of a minibatch: only its length is part of the graph."""
    x, i = device(None, 3), pt.lscalar()
    _, found = scheduled([x, i], [(x[i * 10 : (i + 1) * 10] * 2).transfer("cuda")])
    assert len(found.by_value) == len(found.numbers) == 1


def between(inputs, outputs):
    """Return the names of the nodes that run between graphs."""
    roles, found = scheduled(inputs, outputs)
    assert found.by_value == ()
    return names(roles, Role.BETWEEN)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_lengths_and_seeds_of_recurrent_networks(dropout):
    """Of a constant length and seed, cuDNN's calls can be repeated."""
    block = nnet.RNNBlock("float32", 8, 2, "gru", dropout=dropout)
    arrays = [device(None), device(None, None, None), device(2, None, 8)]
    w, x, state = map(host_from_gpu, arrays)
    lengths, seed = pt.lvector(), pt.lscalar()
    for more in ({"lengths": lengths}, {"seed": seed}, {"lengths": lengths, "seed": seed}, {}):
        own = {"seed": 3} | more if dropout else more
        y = block.apply(w, x, state, **own)[0]
        outputs = [z.transfer("cuda") for z in (y, pt.grad((y**2).sum(), w))]
        inputs = [*arrays, *(z for z in more.values() if dropout or z is lengths)]
        is_between = "lengths" in more or (dropout and "seed" in more)
        wanted = ["GpuDnnRNNForward", "GpuDnnRNNBackward"] if is_between else []
        assert between(inputs, outputs) == wanted


def test_lengths_on_the_device():
    """The host has to know them, so they are copied there before the first graph."""
    block = nnet.RNNBlock("float32", 8, 1, "gru")
    arrays = [device(None), device(None, None, None), device(1, None, 8)]
    lengths = device(None, dtype="int64")
    y = block.apply(*map(host_from_gpu, arrays), lengths=host_from_gpu(lengths))[0]
    roles, found = scheduled([*arrays, lengths], [y.transfer("cuda"), lengths.sum()])
    assert names(roles, Role.BEFORE) == ["HostFromGpu"]
    assert names(roles, Role.BETWEEN) == ["GpuDnnRNNForward"]
    assert found.by_value == ()


def test_a_position_on_the_device():
    x, at = device(None, 3), device(dtype="int64")
    roles, found = scheduled([x, at], [(host_from_gpu(x)[host_from_gpu(at)] * 2).transfer("cuda")])
    assert names(roles, Role.BEFORE)[0] == "HostFromGpu"
    assert (found.by_value, len(found.numbers)) == ((), 1)


def test_a_changing_epsilon_of_batch_normalization():
    x, gamma, beta, epsilon = device(None, 8, None, None), device(8), device(8), pt.dscalar()
    h, *parameters = map(host_from_gpu, (x, gamma, beta))
    out = nnet.batch_normalization_train(h, *parameters, "spatial", epsilon)[0]
    outputs = [z.transfer("cuda") for z in (nnet.relu(out), pt.grad(out.sum(), h))]
    found = between([x, gamma, beta, epsilon], outputs)
    assert found == ["GpuDnnBatchNormActivation"]


def test_labels_on_the_host_for_cudnns_ctc():
    x, labels, lengths = device(None, None, None), pt.lmatrix(), pt.lvector()
    cost = dnn.dnn_ctc(host_from_gpu(x), labels, lengths)
    assert between([x, labels, lengths], [cost]) == ["GpuDnnCTC"]


def test_labels_on_the_device_for_cudnns_ctc():
    """cuDNN would need them on the host."""
    x = device(None, None, None)
    given = device(None, None, dtype="int64"), device(None, dtype="int64")
    for labels, lengths in (given, map(host_from_gpu, given)):
        cost = dnn.dnn_ctc(host_from_gpu(x), labels, lengths)
        roles, _ = scheduled([x, *given], [cost])
        assert names(roles, Role.DEVICE) == ["GpuCTC"]
        assert set(roles.values()) <= {Role.DEVICE, Role.FIXED}


def test_a_slice_as_an_operand():
    """Its value could not be compared with that of another call."""

    class Sliced(GpuOp):
        __props__ = ()

        def make_node(self, x, index):
            return Apply(self, [x, index], [x.type()])

    x, n = device(None), pt.lscalar()
    graph = FunctionGraph([x, n], [Sliced()(x, make_slice(n))], clone=True)
    with pytest.raises(DnnNotSupportedError, match="of type slice"):
        schedule(graph, graph.toposort(), [None] * len(graph.apply_nodes))


def overwritten_length(x, read):
    """Return the graph of a device node, and of a host node that overwrites a length."""
    new = Elemwise(scalar_add, {0: 0})(Shape_i(0)(x), read)
    inputs = [x, *graph_inputs([read])]
    graph = FunctionGraph(inputs, [new, GpuContiguous()(x)], clone=True)
    return graph, graph.toposort()


def test_a_length_that_is_overwritten_after_the_graph():
    """It is computed once, during the capture, so that the next call would read another value."""
    count = GpuContiguous()(device(dtype="int64"))
    graph, order = overwritten_length(device(None), host_from_gpu(count))
    with pytest.raises(DnnNotSupportedError, match="overwrites a result that does not change"):
        schedule(graph, order, [None] * len(order))


def test_a_length_that_is_overwritten_before_the_graph():
    """It is computed in each call, as what overwrites it."""
    graph, order = overwritten_length(device(None), pt.lscalar())
    found = schedule(graph, order, [None] * len(order))
    roles = {type(node.op): role for node, role in zip(order, found.roles, strict=True)}
    assert roles == {
        Shape_i: Role.BEFORE,
        Elemwise: Role.BEFORE,
        GpuContiguous: Role.DEVICE,
    }


def test_random_numbers_of_the_host_come_first():
    x = device(None, None)
    stream = RandomStream(seed=1)
    # Their size depends on shapes.
    kept = stream.bernoulli(0.5, size=x.shape)
    roles, _ = scheduled([x, *stream.state_updates[0][:1]], [(x * kept).transfer("cuda")])
    before = names(roles, Role.BEFORE)
    assert "BernoulliRV" in before
    assert "Shape_i" in before
    assert names(roles, Role.UPLOAD) == ["GpuFromHost"]


def test_a_result_that_comes_back_from_the_host():
    x, w = device(None), device(None)
    chosen = pt.nonzero(host_from_gpu(x) > 0)[0]
    with pytest.raises(DnnNotSupportedError, match="was on the host in between"):
        scheduled([x, w], [(w[chosen] * 2).transfer("cuda")])


def test_the_reason_is_given_only_if_captures_are_wanted():
    x, w = device(None), device(None)
    chosen = pt.nonzero(host_from_gpu(x) > 0)[0]
    outputs = [(w[chosen] * 2).transfer("cuda")]
    graph = rewritten([x, w], outputs, pytensor.compile.get_mode("CUDNN"))
    order = graph.toposort()
    vm = SimpleNamespace(nodes=order, thunks=[None] * len(order))
    assert "was on the host in between" in why_not_captured(vm, graph)
    with pytensor.config.change_flags(dnn__cuda_graph="False"):
        assert why_not_captured(vm, graph) == ""


def test_two_devices():
    x, y = GpuArrayType("float32", (None,), 0)(), GpuArrayType("float32", (None,), 1)()
    with pytest.raises(DnnNotSupportedError, match=r"GpuToGpu.* cannot be captured"):
        scheduled([x, y], [(x + y.transfer("cuda0")).transfer("cuda0")])


def test_two_devices_without_a_copy():
    x, y = GpuArrayType("float32", (None,), 0)(), GpuArrayType("float32", (None,), 1)()
    with pytest.raises(DnnNotSupportedError, match="on several devices: cuda0, cuda1"):
        scheduled([x, y], [(x * 2).transfer("cuda0"), (y * 2).transfer("cuda1")])


def test_another_device_than_the_first():
    x = GpuArrayType("float32", (None,), 1)()
    assert scheduled([x], [(x * 2).transfer("cuda1")])[1].device == 1


def test_no_device():
    x = pt.fmatrix()
    graph = rewritten([x], [x.T], pytensor.compile.get_mode("ONEDNN"))
    with pytest.raises(DnnNotSupportedError, match="no node on a device"):
        schedule(graph, graph.toposort(), [None] * len(graph.apply_nodes))


def test_lazy_nodes():
    x = device(None)
    graph = rewritten([x], [(x + 1).transfer("cuda")], pytensor.compile.get_mode("CUDNN"))
    order = graph.toposort()
    thunks = [lambda: None for _ in order]
    for thunk in thunks:
        thunk.lazy = True
    with pytest.raises(DnnNotSupportedError, match="decides which nodes run"):
        schedule(graph, order, thunks)


def test_functions_of_the_host_are_not_wrapped():
    x = pt.fmatrix()
    f = pytensor.function([x], ifelse(x.sum() > 0, x, -x), mode="ONEDNN")
    assert why_not_captured(f.vm, f.maker.fgraph) == ""
    assert not hasattr(f.vm, "replays")
    np.testing.assert_array_equal(f(-np.ones((2, 2), "float32")), np.ones((2, 2)))


@pytest.mark.parametrize("data", ["on the host", "on the device"])
@pytest.mark.parametrize("name", sorted(model_zoo.MODELS))
def test_training_steps_of_whole_networks(name, data):
    inputs, loss, updates = training_step(name, model_zoo.MODELS[name].sizes)
    moved = {
        s: device(*s.type.shape) for s, _ in updates if s.type.ndim and s.type.dtype == "float32"
    }
    replaced = [(s, host_from_gpu(x)) for s, x in moved.items()]
    if data == "on the device":
        arrays = [device(*(None,) * x.type.ndim, dtype=x.type.dtype) for x in inputs]
        replaced += [
            (x, x.type.filter_variable(host_from_gpu(array)))
            for x, array in zip(inputs, arrays, strict=True)
        ]
        inputs = arrays
    outputs = pytensor.graph.clone_replace(
        [loss, *(new for s, new in updates if s in moved)], replaced
    )
    rest = [s for s, _ in updates if s not in moved]
    outputs[1:] = [as_gpuarray_variable(new) for new in outputs[1:]]
    roles, found = scheduled([*inputs, *rest, *moved.values()], outputs)
    assert len(names(roles, Role.AFTER)) == 1  # the loss
    assert found.by_value == ()
    if name == "transformer":  # each layer's attention is one node forward and one backward
        layers = model_zoo.MODELS[name].sizes["layers"]
        used = Counter(names(roles, Role.DEVICE))
        assert used["GpuTiledAttention"] == used["GpuTiledAttentionGrad"] == layers

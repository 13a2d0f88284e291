"""Descriptions of graphs that do not run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

import dnnops
from dnnops import nnet
from dnnops.errors import DnnNotSupportedError, DnnTypeError, DnnValueError, DnnWarning
from dnnops.explanation.graph import describe_graph
from dnnops.gpuarray import GpuArrayType
from dnnops.modes import CudnnMode
from dnnops.rewriting.move import lifters
from dnnops.rewriting.reasons import why_on_host
from dnnops.runtime.implementations import implementations
from tests.gpuarray.graphs import rewritten

IMAGE = (4, 3, 16, 16)


def network(x):
    w = pytensor.shared(np.ones((8, 3, 3, 3), "float32"), "w", shape=(8, 3, 3, 3))
    y = nnet.pool_2d(nnet.conv2d(x, w, border_mode="half"), (2, 2), True)
    return pt.special.softmax(y.reshape((x.type.shape[0] or -1, 8 * 8 * 8)), axis=1)


def compiled(shape=IMAGE, mode="DNN"):
    x = pt.tensor("x", dtype="float32", shape=shape)
    with pytensor.config.change_flags(device="cpu"):
        return pytensor.function([x], network(x), mode=mode, name="network")


def only(explanation, op):
    (node,) = [node for node in explanation.nodes if node.op == op]
    return node


def test_network_on_the_cpu():
    e = dnnops.explain(compiled(mode="ONEDNN"))
    assert (e.name, e.linker, e.calls, e.note) == ("network", "CapturingLinker", 0, "")
    assert [node.index for node in e.nodes] == list(range(len(e.nodes)))
    assert not e.transfers
    assert not e.between
    assert e.time_ms is None
    conv, pool, softmax = (only(e, f"OneDnn{name}") for name in ("Conv", "Pool", "Softmax"))
    assert conv.call == "dnnops_onednn_conv"
    assert {x.library for x in (conv, pool, softmax)} == {"oneDNN"}
    assert {x.device for x in e.nodes} == {"cpu"}
    assert conv.outputs[0].shape == (4, 8, 16, 16)
    assert conv.outputs[0].dtype == "float32"
    assert conv.bytes == 4 * 8 * 16 * 16 * 4
    assert [x.name for x in conv.inputs] == ["x", "w"]
    assert [x.source for x in conv.inputs] == [None, None]
    assert pool.inputs[0].source == conv.index
    reshape = only(e, "Reshape")
    assert (reshape.reuse, reshape.bytes, reshape.library) == ("view", 0, "C")
    assert conv.reuse == ""


def test_memory_of_static_shapes():
    """The image of the pooling and its result are alive at once."""
    e = dnnops.explain(compiled(mode="ONEDNN"))
    conv, pool = only(e, "OneDnnConv"), only(e, "OneDnnPool")
    small = sum(node.bytes for node in e.nodes if node.library == "C")
    assert small < 200
    assert conv.bytes + pool.bytes <= e.peak_bytes <= conv.bytes + pool.bytes + small
    # Only the result is left.
    assert e.nodes[-1].live_bytes == 4 * 8 * 8 * 8 * 4


def test_unknown_shapes():
    e = dnnops.explain(compiled(shape=(None, None, 16, 16), mode="ONEDNN"))
    assert only(e, "OneDnnConv").bytes is None
    assert e.peak_bytes is None
    assert {node.live_bytes for node in e.nodes} == {None}


def test_in_place():
    x = pt.tensor("x", dtype="float64", shape=(10,))
    f = pytensor.function([x], pt.exp(x.cumsum()), mode="DNN")
    node = only(dnnops.explain(f), "Elemwise{exp}")
    assert (node.reuse, node.bytes, node.fused) == ("in-place", 0, 1)
    assert dnnops.explain(f).peak_bytes == 80


def test_fused_operations_are_counted():
    x = pt.vector("x")
    f = pytensor.function([x], pt.exp(pt.sin(x) + 1), mode="DNN")
    (node,) = dnnops.explain(f).nodes
    assert (node.op, node.fused) == ("Elemwise{3 Ops}", 3)


def test_python_and_c():
    x = pt.vector("x")
    mode = pytensor.compile.mode.Mode("vm", optimizer=None)
    nodes = dnnops.explain(pytensor.function([x], pt.exp(HostOnly()(x)), mode=mode)).nodes
    assert [(node.op, node.library) for node in nodes] == [
        ("HostOnly", "Python"),
        ("Elemwise{exp}", "C"),
    ]


def test_numba_has_no_thunks():
    f = compiled(mode="NUMBA")
    e = dnnops.explain(f)
    assert {node.library for node in e.nodes} == {"Numba"}
    assert "one piece" in e.note
    with pytest.raises(DnnNotSupportedError, match=r"NumbaLinker.*mode='DNN'"):
        dnnops.explain(f, np.zeros(IMAGE, "float32"))


@pytest.mark.parametrize("f", [None, pt.vector("x"), lambda x: x, np.zeros(3)])
def test_not_a_function(f):
    with pytest.raises(DnnTypeError, match=r"explain takes a function compiled by"):
        dnnops.explain(f)


@pytest.mark.parametrize("calls", [-1, 1.5, "2", True])
def test_invalid_number_of_calls(calls):
    with pytest.raises(DnnValueError, match=r"calls must be a number from 0 on, got"):
        dnnops.explain(compiled(), calls=calls)


def test_arguments_without_calls():
    with pytest.raises(DnnValueError, match="at least 1 if there are arguments"):
        dnnops.explain(compiled(), np.zeros(IMAGE, "float32"), calls=0)


# -- graphs for a GPU, which only are rewritten --------------------------------------------


class HostOnly(Op):
    """An Op that has no version for the GPU."""

    __props__ = ()

    def make_node(self, x):
        return Apply(self, [x], [x.type()])

    def perform(self, node, inputs, output_storage):
        output_storage[0][0] = inputs[0].copy()


class Failing(HostOnly):
    """An Op whose lifter raises."""


def fail(node, inputs, context):
    raise ZeroDivisionError("a mistake")


def on_device(*shape, name="x"):
    x = GpuArrayType("float32", shape)(name)
    return x, pt.as_tensor_variable(x)


def test_nothing_leaves_the_device():
    x, host = on_device(4, 5)
    nodes = describe_graph(rewritten([x], [pt.exp(host).transfer("cuda")]))
    assert [node.op for node in nodes] == ["GpuElemwise{exp}"]
    (node,) = nodes
    assert (node.device, node.library, node.transfer, node.reason) == ("cuda0", "dnnops", "", "")
    assert node.outputs[0].device == "cuda0"
    assert node.bytes == 80


def test_what_python_launches_is_not_run_by_dnnops():
    x, host = on_device(4, 5)
    i = pt.lscalar("i")
    fgraph = rewritten([x, i], [z.transfer("cuda") for z in (pt.exp(host), host[i:])])

    def libraries(**options):
        nodes = describe_graph(fgraph, **options)
        return {node.op: node.library for node in nodes if node.device != "cpu"}

    assert libraries() == {"GpuElemwise{exp}": "dnnops", "GpuWindow": "CuPy"}
    with pytensor.config.change_flags(dnn__prepared_calls=False):
        assert set(libraries().values()) == {"CuPy"}
    assert set(libraries(compiled=()).values()) == {"CuPy"}


def test_training_step_without_transfers():
    """The graph of a step whose parameters, data and loss are on the device."""
    (x, image), (w, filters), (t, target) = (
        on_device(*shape, name=name)
        for name, shape in (("x", (8, 3, 12, 12)), ("w", (4, 3, 3, 3)), ("t", (8, 100)))
    )
    y = nnet.pool_2d(nnet.relu(nnet.conv2d(image, filters)), (2, 2), True)
    loss = pt.sqr(pt.special.softmax(y.reshape((8, 100)), axis=1) - target).mean()
    update = filters - np.float32(0.1) * pytensor.grad(loss, filters)
    outputs = [loss.transfer("cuda"), update.transfer("cuda")]
    with pytensor.config.change_flags(dnn__enabled="no_check"):
        nodes = describe_graph(rewritten([x, w, t], outputs, CudnnMode()))
    assert [node for node in nodes if node.transfer] == []
    assert not any(node.between and node.outputs[0].shape != () for node in nodes)
    libraries = {node.op: node.library for node in nodes}
    assert libraries["GpuDnnConv"] == libraries["GpuDnnPool"] == "cuDNN"
    (conv,) = [node for node in nodes if node.op == "GpuDnnConv"]
    assert conv.call == "dnnops_cudnn_conv"


def test_dense_layer_shows_its_epilogue():
    x, w, b = (GpuArrayType("float32", s)() for s in ((None, 4), (4, 6), (6,)))
    with pytensor.config.change_flags(dnn__enabled="no_check", floatX="float32"):
        nodes = describe_graph(rewritten([x, w, b], [nnet.relu(x @ w + b)], CudnnMode()))
    (layer,) = [node for node in nodes if node.op == "GpuDense{RELU_BIAS}"]
    assert (layer.library, layer.call) == ("cuBLASLt", "dnnops_cudnn_dense")
    assert layer.plan == "RELU_BIAS"


def test_kernels_of_dnnops_are_not_cudnn():
    x, host = on_device(4, 5)
    loss = nnet.cross_entropy(host, pt.zeros(4, dtype="int64")).transfer("cuda")
    with pytensor.config.change_flags(dnn__enabled="no_check"):
        nodes = describe_graph(rewritten([x], [loss], CudnnMode()))
    (node,) = [node for node in nodes if node.op == "GpuCrossEntropy"]
    assert (node.library, node.device) == ("dnnops", "cuda0")


def test_epilogues_are_named():
    x = GpuArrayType("float32", (2, 3, 8, 8))()
    w, b, *norm = (pt.tensor(dtype="float32", shape=s) for s in ((4, 3, 3, 3), *((4,),) * 5))
    with pytensor.config.change_flags(
        dnn__enabled="no_check", dnn__allow_tf32=True, floatX="float32"
    ):
        y = nnet.conv2d(pt.as_tensor_variable(x), w)
        biased = nnet.relu(y + b.dimshuffle("x", 0, "x", "x"))
        y = nnet.conv2d(pt.as_tensor_variable(x), w + 1)
        normalized = nnet.batch_normalization_test(y, *norm[:3], norm[3], axes="spatial")
        outputs = [z.transfer("cuda") for z in (biased, normalized)]
        nodes = describe_graph(rewritten([x, w, b, *norm], outputs, CudnnMode()))
    found = {node.op: node.library for node in nodes}
    assert found["GpuDnnConvActivation{bias, relu}"] == "cuDNN"
    assert found["GpuDnnConvActivation{bias}"] == "cuDNN"
    assert found["GpuFoldBatchNorm"] == "dnnops"


def test_unsupported_operands_are_the_reason(monkeypatch):
    """The message names the declared Op that refuses the node."""
    entry = next(e for e in implementations("gpu") if e.op_class.__name__ == "GpuPool")
    refusing = replace(entry, when=lambda node: False)
    monkeypatch.setattr("dnnops.rewriting.reasons.implementations", lambda device: [refusing])
    node = nnet.pool_2d(pt.tensor4(dtype="float32"), (2, 2), True).owner
    assert why_on_host(node, 0) == "GpuPool does not support its operands or parameters"
    unusable = replace(entry, backend=replace(entry.backend, is_usable=lambda device: False))
    monkeypatch.setattr("dnnops.rewriting.reasons.implementations", lambda device: [unusable])
    assert why_on_host(node, 1) == "GpuPool cannot be used on cuda1"


def test_host_between_device_nodes():
    x, host = on_device(4, 5)
    y = pt.exp(HostOnly()(pt.exp(host)))
    nodes = describe_graph(rewritten([x], [y.transfer("cuda")]))
    assert [(node.op, node.device, node.transfer, node.between) for node in nodes] == [
        ("GpuElemwise{exp}", "cuda0", "", False),
        ("HostFromGpu", "cuda0", "to host", False),
        ("HostOnly", "cpu", "", True),
        ("GpuFromHost", "cuda0", "to device", False),
        ("GpuElemwise{exp}", "cuda0", "", False),
    ]
    assert [node.moved_bytes for node in nodes] == [0, 80, 0, 80, 0]
    assert nodes[2].reason == "no GPU version"


def test_host_at_the_ends_is_not_between():
    x, host = on_device(4, 5)
    v = pt.vector("v", dtype="float32", shape=(5,))
    y = HostOnly()(pt.exp(host + HostOnly()(v)))
    nodes = describe_graph(rewritten([x, v], [y]))
    assert [node.op for node in nodes].count("HostOnly") == 2
    assert not any(node.between for node in nodes)
    assert len([node for node in nodes if node.transfer]) == 2


def test_sizes_need_no_reason():
    """The size of a mean is a number on the host."""
    x, host = on_device(None, None)
    nodes = describe_graph(rewritten([x], [host.mean().transfer("cuda")]))
    assert "Shape_i" in {node.op for node in nodes}
    assert {node.reason for node in nodes} == {""}
    assert not any(node.transfer for node in nodes)


def test_a_failed_lifter_is_the_reason(monkeypatch):
    monkeypatch.setitem(lifters.registry, Failing, [lifters.Lifter(fail)])
    x, host = on_device(4, 5)
    with (
        pytensor.config.change_flags(on_opt_error="warn"),
        pytest.warns(DnnWarning, match="a mistake"),
    ):
        graph = rewritten([x], [pt.exp(Failing()(pt.exp(host))).transfer("cuda")])
    (node,) = [node for node in describe_graph(graph) if node.op == "Failing"]
    assert node.reason == "its GPU version failed: ZeroDivisionError: a mistake"
    assert node.between


def test_result_without_a_device_type():
    x, host = on_device(4, 5)
    rng = pytensor.shared(np.random.default_rng(1))
    _, noise = pt.random.normal(size=(4, 5), rng=rng, return_next_rng=True)
    y = noise.astype("float32") + host
    nodes = describe_graph(rewritten([x, rng], [y.transfer("cuda")]))
    (node,) = [node for node in nodes if "normal" in node.op.lower() or "RV" in node.op]
    assert "RandomGenerator" in node.reason
    assert node.device == "cpu"


@pytest.mark.parametrize(
    ("function", "op"), [(lambda v: pt.special.softmax(v, axis=1), "Softmax"), (pt.exp, "Elemwise")]
)
def test_not_worth_a_transfer(function, op):
    x, host = on_device(4, 5)
    v = pt.matrix("v", dtype="float32")
    nodes = describe_graph(rewritten([x, v], [pt.exp(host), function(v)]))
    (node,) = [node for node in nodes if node.device == "cpu"]
    assert node.op.startswith(op)
    assert node.reason == "its operands are on the host, and it is not worth a transfer"


def test_abstract_op_that_no_library_runs():
    x = pt.tensor4("x", dtype="float32")
    mode = pytensor.compile.mode.get_mode("CVM").excluding("onednn")
    nodes = dnnops.explain(pytensor.function([x], nnet.pool_2d(x, (2, 2), True), mode=mode)).nodes
    (node,) = [node for node in nodes if node.op == "Pool"]
    assert (node.library, node.reason) == ("Python", "the mode does not include oneDNN")

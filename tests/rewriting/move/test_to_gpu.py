"""The rewrite to the GPU: which Ops move, which stay, and which transfers remain."""

from __future__ import annotations

import warnings
from collections import Counter

import numpy as np
import pytensor
import pytensor.scalar as ps
import pytensor.tensor as pt
import pytest
from pytensor import config
from pytensor.compile.mode import get_mode
from pytensor.graph.basic import Apply
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import Op
from pytensor.graph.replace import clone_replace
from pytensor.raise_op import Assert
from pytensor.scalar.basic import Composite
from pytensor.tensor.elemwise import DimShuffle, Elemwise

from dnnops.errors import DnnRequiredError, DnnUnavailableError, DnnWarning
from dnnops.gpuarray import GpuArrayType, GpuFromHost, GpuToGpu, HostFromGpu, shared
from dnnops.gpuarray.elemwise import GpuElemwise
from dnnops.gpuarray.op import MirrorOp
from dnnops.nnet import Activation, conv2d, divisive_normalization, pool_2d
from dnnops.nnet.activation.op import ACTIVATION_MODES
from dnnops.nnet.conv.op import Conv, ConvGradInputs, ConvGradWeights
from dnnops.nnet.pool.op import MaxPoolGrad, Pool
from dnnops.rewriting.move import lifters, lifting
from dnnops.rewriting.move.forecast import Forecast
from dnnops.rewriting.move.host_scalars import SeparateHostScalars
from dnnops.rewriting.move.lifting import EVERYTHING, register_lifter
from dnnops.rewriting.move.to_gpu import gpu_transfers
from tests.gpuarray.cuda_source import elementwise_log
from tests.gpuarray.graphs import GPU_MODE, HOST_MODE, ops, rewritten


def on_gpu(*shape, dtype="float32", name=None):
    return GpuArrayType(dtype, shape)(name)


def transfers(graph):
    return [type(node.op).__name__ for node in gpu_transfers(graph)]


@pytest.fixture
def registry():
    """Let a test register its own lifters."""
    before = {op_class: list(entries) for op_class, entries in lifters.registry.items()}
    yield
    lifters.registry.clear()
    lifters.registry.update(before)


class Stand(MirrorOp):
    """A substitute in graphs for the cuDNN Op of an abstract one; never runs."""


@pytest.fixture
def heavy_ops(registry):
    """Move convolutions and pooling without cuDNN."""

    def lift(node, inputs, context):
        return Stand(node.op).make_node(*inputs).outputs

    for op_class, operands in [
        (Conv, (0, 1)),
        (ConvGradInputs, (0, 1)),
        (ConvGradWeights, (0, 1)),
        (Pool, (0,)),
        (MaxPoolGrad, (0, 1, 2)),
    ]:
        register_lifter(op_class, operands=operands, heavy=True)(lift)


# Rules


def test_nothing_happens_without_a_reason():
    x = pt.fmatrix()
    graph = rewritten([x], [pt.exp(x).sum()])
    assert not any(op.startswith("Gpu") for op in ops(graph))


def test_pytensor_s_modes_do_not_move():
    w = on_gpu(None, None)
    assert "GpuElemwise" not in ops(rewritten([w], [pt.exp(w)], HOST_MODE))


def test_the_tag_gpu_moves():
    w = on_gpu(None, None)
    assert ops(rewritten([w], [pt.exp(w)])) == ["GpuElemwise", "HostFromGpu"]


def test_a_result_that_stays_is_not_transferred():
    w = on_gpu(None, None)
    graph = rewritten([w], [pt.exp(w).transfer("cuda")])
    assert ops(graph) == ["GpuElemwise"]


def test_one_transfer_per_variable():
    w, v, x = on_gpu(None, None), on_gpu(None, None), pt.fmatrix()
    graph = rewritten([w, v, x], [(w @ x).sum(), (v @ x).sum(), x + 1])
    assert Counter(transfers(graph)) == {"GpuFromHost": 1, "HostFromGpu": 2}
    # An Op that needs only the host's operand stays there.
    assert sum(isinstance(node.op, Elemwise) for node in graph.apply_nodes) == 1


def test_a_host_and_a_device_use():
    w = on_gpu(None, None)
    order = pt.argsort(pt.exp(w), axis=0)  # no lifter
    graph = rewritten([w], [order, (pt.exp(w) * 2).transfer("cuda")])
    assert transfers(graph) == ["HostFromGpu"]


def test_transfers_there_and_back_vanish():
    x, w = pt.fmatrix(), on_gpu(None, None)
    back = pt.as_tensor_variable(x.transfer("cuda"))
    assert not transfers(rewritten([x], [back + 1]))
    there = pt.as_tensor_variable(w).transfer("cuda")
    assert not transfers(rewritten([w], [there]))
    # This happens early, so that the host's rewrites see one expression.
    assert not transfers(rewritten([x], [back + 1], HOST_MODE))


@pytest.mark.parametrize("mode", ["relu", "tanh", "swish"])
def test_activations_are_written_out(mode):
    w, g = on_gpu(None, None), on_gpu(None, None)
    y = Activation(mode, float(mode == "swish"))(w)
    grad = pytensor.grad(None, w, known_grads={y: pt.as_tensor_variable(g)})
    graph = rewritten([w, g], [y.transfer("cuda"), grad.transfer("cuda")])
    assert not transfers(graph)
    assert set(ops(graph)) == {"GpuElemwise"}


def fused_activation(mode, dtype):
    """Rewrite an activation between products and sums: alone, and with its gradient."""
    w, g = on_gpu(None, None, dtype=dtype), on_gpu(None, None, dtype=dtype)
    factor, coef = np.asarray(3, dtype), 1.5 if ACTIVATION_MODES[mode] else 0.0
    y = Activation(mode, coef)(w * factor) + factor
    gradient = pytensor.grad(None, w, known_grads={y: pt.as_tensor_variable(g)})
    return [
        rewritten([w, g], [z.transfer("cuda") for z in outputs]) for outputs in ([y], [y, gradient])
    ]


ACTIVATIONS = pytest.mark.parametrize(
    ("mode", "dtype"),
    [(mode, dtype) for mode in ACTIVATION_MODES for dtype in ("float16", "float32", "float64")],
)


@ACTIVATIONS
def test_activations_are_fused_with_their_neighbors(mode, dtype):
    """There is one kernel forward, and one more for the gradient."""
    for most, graph in enumerate(fused_activation(mode, dtype), 1):
        assert ops(graph) == ["GpuElemwise"] * len(graph.apply_nodes)
        assert len(graph.apply_nodes) <= most


@pytest.mark.needs("nvrtc")
@ACTIVATIONS
def test_fused_activations_compile(mode, dtype):
    for graph in fused_activation(mode, dtype):
        for node in graph.apply_nodes:
            types = ([x.type.dtype for x in group] for group in (node.inputs, node.outputs))
            assert not elementwise_log(node.op.scalar_op, *types)


def test_window_normalizations_are_fused():
    w = on_gpu(None, None, None, None)
    y = divisive_normalization(w * np.float32(2), 5, 0.5, 0.75, 2.0) * np.float32(3)
    graph = rewritten([w], [y.transfer("cuda")])
    assert ops(graph) == ["GpuElemwise", "GpuWindowSum", "GpuElemwise"]


def test_activations_of_the_host_are_not_written_out():
    x = pt.fmatrix()
    graph = rewritten([x], [Activation("tanh")(x)], get_mode("CVM").including("gpu"))
    assert ops(graph) == ["OneDnnActivation"]


def test_scalars_of_the_host_become_arguments():
    w, rate = on_gpu(None, None), pt.fscalar()
    graph = rewritten([w, rate], [(w * rate + pt.sqrt(rate)).transfer("cuda")])
    assert not transfers(graph)


@pytest.mark.parametrize("tags", [(), (EVERYTHING,)])
def test_integers_fused_with_a_mean_stay(tags):
    """Fusion merges the division by the number of elements with arithmetic on this number."""
    w, n = on_gpu(None, None), pt.lscalar()
    mean = w.sum() / n.astype("float32")
    outputs = [mean, pt.sqrt(mean), n * 2 + 1, pt.maximum(n, 3), w[: n // 2].transfer("cuda")]
    graph = rewritten([w, n], outputs, GPU_MODE.including(*tags))
    assert [node.inputs[0].type.dtype for node in gpu_transfers(graph)] == ["float32"] * 2
    on_host = [node.op.scalar_op for node in graph.apply_nodes if isinstance(node.op, Elemwise)]
    counts, length = sorted(
        (op for op in on_host if isinstance(op, Composite)), key=lambda op: -len(op.fgraph.outputs)
    )
    assert [z.type.dtype for z in counts.fgraph.outputs] == ["int64"] * 3
    assert [z.type.dtype for z in length.fgraph.outputs] == ["int64"]  # of the slice


@pytest.mark.parametrize("tags", [(), (EVERYTHING,)])
def test_integers_computed_from_shapes_stay(tags):
    """Also where they pass a check, such as that of the sizes of a broadcast sum."""
    w, v = on_gpu(None, None), on_gpu(None, None)
    checked = Assert("the sizes differ")(w.shape[0], pt.eq(w.shape[0], v.shape[0]))
    total = w.sum() / (checked * 2).astype("float32")
    outputs = [total, pt.sqrt(total), pt.zeros(checked * 2 + 1, dtype="float32").transfer("cuda")]
    graph = rewritten([w, v], outputs, GPU_MODE.including(*tags))
    assert [node.inputs[0].type.dtype for node in gpu_transfers(graph)] == ["float32"] * 2


def test_separate_host_scalars():
    """Compare with the fused node; a host variable replaces the one on the device."""
    d, x, n = on_gpu(), pt.fscalar(), pt.lscalar()
    fused = Elemwise(Composite(*_scalars(lambda x, k: [x * k, k + 1, ps.sqrt(k), k * k + k])))
    host = HostFromGpu()(d)
    graph = FunctionGraph([d, n], fused.make_node(host, n).outputs, clone=False)
    SeparateHostScalars().apply(graph)
    assert [z.owner.inputs for z in graph.outputs] == [[host, n], [n], [host, n], [n]]
    assert graph.outputs[0].owner is graph.outputs[2].owner
    assert graph.outputs[1].owner is graph.outputs[3].owner
    new = clone_replace(graph.outputs, {host: x})
    values = {x: np.float32(3), n: 5}
    results = [z.eval(values, mode="FAST_COMPILE", on_unused_input="ignore") for z in new]
    assert results == [15, 6, np.sqrt(5), 30]


def _scalars(function):
    operands = [ps.float32(), ps.int64()]
    return operands, function(*operands)


def test_integers_of_shapes_stay():
    w, n = on_gpu(None, None, name="w"), pt.lscalar()
    part = w[n * 10 : (n + 1) * 10]
    graph = rewritten([w, n], [part.transfer("cuda"), part.shape[0]])
    assert not transfers(graph)
    assert "GpuWindow" in ops(graph)


def test_shapes_are_read_without_a_transfer():
    w = on_gpu(None, None)
    product = w @ w
    graph = rewritten([w], [pt.argsort(product.shape), product.transfer("cuda")])
    assert not transfers(graph)


def test_inputs_of_gpu_ops_are_computed_there():
    """Bytes are converted on the device, but two arrays are not moved just for a sum."""
    image, w = pt.tensor3(dtype="uint8"), on_gpu(None, None, None)
    scaled = image.astype("float32") / np.float32(255)
    graph = rewritten([image, w], [(scaled * w).transfer("cuda")])
    (node,) = gpu_transfers(graph)
    assert node.inputs[0].type.dtype == "uint8"
    x, y = pt.ftensor3s("x", "y")
    graph = rewritten([x, y, w], [pt.concatenate([(x + y), w]).transfer("cuda")])
    assert transfers(graph) == ["GpuFromHost"]


def test_a_large_host_array_is_cut_before_the_transfer():
    data, w, n = pt.fmatrix("data"), on_gpu(None, None), pt.lscalar()
    graph = rewritten([data, w, n], [(data[n : n + 10] @ w).transfer("cuda")])
    (node,) = gpu_transfers(graph)
    assert type(node.inputs[0].owner.op).__name__ == "Subtensor"


def test_zeros_are_made_on_the_device():
    w, i = on_gpu(None, None), pt.lvector()
    gradient = pt.grad(w[i, i].sum(), w)
    graph = rewritten([w, i], [gradient])
    assert transfers(graph) == ["GpuFromHost"]  # of the index
    assert {"GpuAlloc", "GpuAdvancedIncSubtensor"} <= set(ops(graph))


def test_products_of_large_host_matrices_move():
    x = pt.tensor("x", dtype="float32", shape=(1024, 1024))
    small = pt.tensor("x", dtype="float32", shape=(8, 8))
    assert "GpuDot" in ops(rewritten([x], [x @ x]))
    assert "GpuDot" not in ops(rewritten([small], [small @ small]))


def test_integer_products_stay():
    x = on_gpu(None, None, dtype="int64")
    assert "GpuDot" not in ops(rewritten([x], [x @ x]))


def test_ops_without_cuda_code_stay():
    w = on_gpu(None, None)
    graph = rewritten([w], [pt.gammainc(w, w * 2)])
    assert transfers(graph).count("HostFromGpu") >= 1
    assert any(isinstance(node.op, Elemwise) for node in graph.apply_nodes)


def test_bfloat16_is_loaded_by_the_kernel():
    w = on_gpu(None, None, dtype="bfloat16")
    graph = rewritten([w], [(pt.exp(w) * 2).transfer("cuda"), w.sum()])
    assert "GpuCast" not in ops(graph)
    # A product has no such kernel.
    assert "GpuCast" in ops(rewritten([w], [w @ w]))


def test_an_op_without_a_lifter_is_opened():
    w = on_gpu(None, None)
    graph = rewritten([w], [pt.special.log_softmax(w, axis=1).transfer("cuda")])
    assert not transfers(graph)
    gradient = pt.grad(pt.special.log_softmax(w, axis=1)[:, 0].sum(), w)
    assert not transfers(rewritten([w], [gradient]))


def test_equal_operands_are_made_once():
    """Without PyTensor's last merge, which checks the whole graph for each pair of nodes."""
    w, s = on_gpu(None, None), pt.tensor("s", dtype="float32", shape=(1, 1))
    outputs = [(pt.exp(w) * s).transfer("cuda"), (w.sum(axis=0) + s).transfer("cuda")]
    for mode, count in ((GPU_MODE, 1), (GPU_MODE.excluding("gpu_merge"), 2)):
        graph = rewritten([w, s], outputs, mode.excluding("merge3"))
        assert sum(isinstance(node.op, DimShuffle) for node in graph.apply_nodes) == count


def test_other_devices():
    v, w = GpuArrayType("float32", (None,), device=1)(), on_gpu(None)
    graph = rewritten([v, w], [(v * 2).transfer("cuda1"), (w * 2).transfer("cuda")])
    assert not transfers(graph)
    assert {node.outputs[0].type.device for node in graph.apply_nodes} == {0, 1}
    mixed = rewritten([v, w], [v + w])
    assert Counter(transfers(mixed)) == {"GpuToGpu": 1, "HostFromGpu": 1}


def test_stack_traces_and_names_are_kept():
    w = on_gpu(None, None)
    with pytensor.config.change_flags(traceback__limit=8):
        y = pt.exp(w)
    y.name = "y"
    graph = rewritten([w], [y])
    node = next(n for n in graph.apply_nodes if isinstance(n.op, GpuElemwise))
    assert node.outputs[0].tag.trace
    assert node.outputs[0].name == "y"


def test_composites_stay_one_kernel():
    w = on_gpu(None, None)
    graph = rewritten([w], [pt.tanh(w * 2 + 1).transfer("cuda"), (w * 2 + 1).transfer("cuda")])
    assert ops(graph) == ["GpuElemwise"]


# The registry


class Twice(Op):
    __props__ = ()

    def make_node(self, x):
        x = pt.as_tensor_variable(x)
        return Apply(self, [x], [x.type()])

    def perform(self, node, inputs, output_storage):
        output_storage[0][0] = inputs[0] * 2


class SubTwice(Twice):
    pass


def test_heavy_priority_tags_and_subclasses(registry):
    asked = []

    @register_lifter(Twice, heavy=True)
    def fallback(node, inputs, context):
        asked.append("fallback")
        return Stand(node.op).make_node(*inputs).outputs

    @register_lifter(Twice, heavy=True, tags=("special",), priority=5)
    def refuses(node, inputs, context):
        asked.append("refuses")

    x = pt.fmatrix()
    graph = rewritten([x], [SubTwice()(x)])
    assert ops(graph) == ["GpuFromHost", "Stand", "HostFromGpu"]
    assert asked == ["refuses", "fallback"]
    rewritten([x], [Twice()(x)], GPU_MODE.excluding("special"))
    assert asked == ["refuses", "fallback", "fallback"]


def test_a_lifter_must_keep_the_type(registry):
    @register_lifter(Twice, heavy=True)
    def wrong(node, inputs, context):
        return [inputs[0].astype("bfloat16")]

    x = pt.fmatrix()
    context = lifting.LiftContext(0)
    forecast = Forecast(FunctionGraph([x], [Twice()(x)], clone=False), [], frozenset())
    walk = lifting._Lifting(lifting.GraphToGpu(), context, forecast)
    raises = pytest.raises(TypeError, match="lifter of Twice")
    with config.change_flags(on_opt_error="raise"), raises:
        walk.visit(Twice()(x).owner)


@pytest.fixture
def broken_lifter(registry):
    """Let the lifter of ``Twice`` fail, between nodes that move."""

    @register_lifter(Twice)
    def broken(node, inputs, context):
        raise ZeroDivisionError("a mistake in a lifter")


def around_twice():
    x = on_gpu(None, None)
    return [x], [pt.exp(Twice()(pt.tanh(pt.as_tensor_variable(x)))) * 2]


def test_an_error_keeps_only_its_node_on_the_host(broken_lifter):
    inputs, outputs = around_twice()
    words = r"Twice.* stays on the host.*ZeroDivisionError: a mistake in a lifter .*line \d+"
    with config.change_flags(on_opt_error="warn"), pytest.warns(DnnWarning, match=words) as caught:
        graph = rewritten(inputs, outputs)
    assert ops(graph) == [
        "GpuElemwise",
        "HostFromGpu",
        "Twice",
        "GpuFromHost",
        "GpuElemwise",
        "HostFromGpu",
    ]
    assert len(caught) == 1


@pytest.mark.filterwarnings("error")
def test_an_error_is_raised_or_ignored_if_the_flag_says_so(broken_lifter):
    with config.change_flags(on_opt_error="raise"), pytest.raises(ZeroDivisionError):
        rewritten(*around_twice())
    with config.change_flags(on_opt_error="ignore"):
        assert "Twice" in ops(rewritten(*around_twice()))


@pytest.mark.parametrize(
    ("attribute", "moves"), [("operands", False), ("heavy", True), ("pulled", True)]
)
def test_errors_in_what_a_lifter_declares(registry, attribute, moves):
    def broken(node):
        raise KeyError(attribute)

    @register_lifter(Twice, **{attribute: broken})
    def lift(node, inputs, context):
        return Stand(node.op).make_node(*inputs).outputs

    with config.change_flags(on_opt_error="warn"), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        graph = rewritten(*around_twice())
    assert Counter(ops(graph))["GpuElemwise"] == 2
    assert ("Stand" in ops(graph)) is moves
    # What is asked only in advance, to predict what moves, is not worth a warning.
    assert [w.category for w in caught] == ([] if moves else [DnnWarning])


def test_the_result_of_a_node_that_stays_is_not_transferred_twice(broken_lifter):
    x = on_gpu(None, None)
    with config.change_flags(on_opt_error="ignore"):
        graph = rewritten([x], [Twice()(pt.tanh(pt.as_tensor_variable(x)))])
    assert ops(graph) == ["GpuElemwise", "HostFromGpu", "Twice"]


def test_an_error_in_an_expansion(registry, monkeypatch):
    def broken(node, inputs):
        raise IndexError("a mistake in an expansion")

    monkeypatch.setitem(lifters.expansions, Twice, broken)
    with config.change_flags(on_opt_error="warn"), pytest.warns(DnnWarning, match="an expansion"):
        assert "Twice" in ops(rewritten(*around_twice()))


def test_an_unusable_library_that_is_required_is_an_error(registry):
    @register_lifter(Twice)
    def unusable(node, inputs, context):
        raise DnnUnavailableError("cuDNN cannot be used")

    required = pytest.raises(DnnRequiredError, match="cuDNN cannot be used")
    with config.change_flags(on_opt_error="warn", dnn__enabled="True"), required:
        rewritten(*around_twice())


def test_context_memoizes():
    context = lifting.LiftContext(0)
    x, w = pt.fmatrix(), on_gpu(None)
    assert context.to_device(x) is context.to_device(x)
    assert context.to_host(w) is context.to_host(w)
    assert context.to_device(context.to_host(w)) is w
    assert context.to_device(w) is w
    constant = context.to_device(pt.constant(np.ones(3, "float32")))
    assert constant.type == GpuArrayType("float32", (3,))
    assert constant.owner is None


# In place


def test_temporaries_are_overwritten():
    w = on_gpu(None, None)
    product = w @ w
    graph = rewritten([w], [pt.exp(product).transfer("cuda")])
    (node,) = [n for n in graph.apply_nodes if isinstance(n.op, GpuElemwise)]
    assert node.op.destroy_map == {0: [0]}


def test_inputs_and_shared_results_are_not_overwritten():
    w = on_gpu(None, None)
    product = w @ w
    graph = rewritten([w], [pt.exp(w).transfer("cuda"), product.transfer("cuda"), product + 1])
    assert not any(node.op.destroy_map for node in graph.apply_nodes)
    inplace_off = rewritten([w], [pt.exp(product)], GPU_MODE.excluding("inplace"))
    assert not any(node.op.destroy_map for node in inplace_off.apply_nodes)


def test_zeros_are_incremented_in_place():
    w, i = on_gpu(None, None), pt.lvector()
    graph = rewritten([w, i], [pt.grad(w[i, i].sum(), w)])
    (node,) = [n for n in graph.apply_nodes if "IncSubtensor" in type(n.op).__name__]
    assert node.op.destroy_map == {0: [0]}
    assert node.op.host_op.inplace
    assert node.op != type(node.op)(type(node.op.host_op)(node.op.host_op.idx_list))


def test_gradients_of_parts_fill_one_array():
    """PyTensor turns the sum of the parts' gradients into a chain of increments."""
    x = on_gpu(None, 5, 3, None)
    query, key, value = (x[:, :, i] for i in range(3))
    graph = rewritten([x], [pt.grad((pt.exp(query) * key + value).sum(), x)])
    assert ops(graph).count("GpuAlloc") == 1
    increments = [n for n in graph.apply_nodes if type(n.op).__name__ == "GpuIncSubtensor"]
    assert [n.op.destroy_map for n in increments] == [{0: [0]}] * 3


def test_inplace_versions(monkeypatch):
    asked = []

    def inplace_versions(op):
        asked.append(op)
        return []

    monkeypatch.setattr(GpuElemwise, "inplace_versions", inplace_versions, raising=False)
    rewritten([w := on_gpu(None)], [pt.exp(w)])
    assert len(asked) == 1


# The graph of a small network


def network(shared_variable, stable, seed=0):
    """Build loss, accuracy and updates of a convolutional network with momentum."""
    rng = np.random.default_rng(seed)

    def normal(*shape, scale=0.5):
        return (scale * rng.standard_normal(shape)).astype("float32")

    images = shared_variable(normal(40, 3, 8, 8), "images")
    parameters = [
        shared_variable(normal(4, 3, 3, 3), "filters"),
        shared_variable(normal(4), "filters_bias"),
        shared_variable(normal(36, 16), "hidden"),
        shared_variable(normal(16), "hidden_bias"),
        shared_variable(normal(16, 10), "out"),
        shared_variable(normal(10), "out_bias"),
    ]
    momenta = [shared_variable(np.zeros_like(value_of(p)), f"m_{p.name}") for p in parameters]
    batch, labels, rate = pt.lscalar("batch"), pt.ivector("labels"), pt.fscalar("rate")
    filters, filters_bias, hidden, hidden_bias, out, out_bias = parameters
    x = images[batch * 10 : (batch + 1) * 10]
    x = pool_2d(conv2d(x, filters), (2, 2), ignore_border=True)
    x = pt.maximum(x + filters_bias.dimshuffle("x", 0, "x", "x"), 0)
    x = x.reshape((x.shape[0], -1))
    x = x.dot(hidden) + hidden_bias
    x = pt.switch(x > 0, x, 0)
    logits = x.dot(out) + out_bias
    rows = pt.arange(labels.shape[0])
    if stable:
        loss = -pt.special.log_softmax(logits, axis=-1)[rows, labels].mean()
    else:
        loss = -pt.log(pt.special.softmax(logits, axis=-1))[rows, labels].mean()
    accuracy = pt.eq(pt.argmax(logits, axis=1), labels).mean()
    updates = []
    for p, m, gradient in zip(parameters, momenta, pt.grad(loss, parameters), strict=True):
        step = np.float32(0.9) * m - rate * gradient
        updates += [(m, step), (p, p + step)]
    return [images, *parameters, *momenta], [batch, labels, rate], [loss, accuracy], updates


def value_of(variable):
    """Return the value of a shared variable, or of a variable that imitates one."""
    return variable.get_value() if hasattr(variable, "get_value") else variable.tag.value


def pretend_shared(value, name):
    variable = GpuArrayType("float32", (None,) * value.ndim)(name)
    variable.tag.value = value
    return variable


@pytest.mark.parametrize("stable", [True, False])
def test_training_moves_as_a_whole(heavy_ops, stable):
    """Labels go in, loss and accuracy come out, and everything else stays on the device."""
    variables, inputs, outputs, updates = network(pretend_shared, stable)
    updates = [new if new.type == old.type else old.type.filter_variable(new)
               for old, new in updates]  # fmt: skip
    graph = rewritten([*variables, *inputs], [*outputs, *updates])
    moves = [(type(node.op), node.inputs[0].name) for node in gpu_transfers(graph)]
    assert [name for op, name in moves if op is GpuFromHost] == ["labels"]
    assert [op for op, _ in moves].count(HostFromGpu) == 2
    assert not [op for op, _ in moves if op is GpuToGpu]
    # The only float arithmetic on the host is that of the learning rate.
    for node in graph.apply_nodes:
        if isinstance(node.op, Elemwise):
            floats = [x for x in node.inputs if x.type.dtype.startswith("float")]
            assert all(x.type.ndim == 0 for x in floats), node


@pytest.mark.gpu
@pytest.mark.parametrize("stable", [True, False])
@pytest.mark.parametrize("inplace", [True, False])
def test_training_gives_the_host_s_results(stable, inplace):
    mode = GPU_MODE if inplace else GPU_MODE.excluding("inplace")

    def device_shared(value, name):
        return shared(value, name, device=0)

    def host_shared(value, name):
        return pytensor.shared(value, name)

    runs = []
    for make, mode_ in ((host_shared, HOST_MODE), (device_shared, mode)):
        variables, inputs, outputs, updates = network(make, stable)
        step = pytensor.function(inputs, outputs, updates=updates, mode=mode_)
        rng = np.random.default_rng(1)
        losses = [
            step(i % 4, rng.integers(0, 10, 10).astype("int32"), np.float32(0.05))
            for i in range(20)
        ]
        runs.append((np.array(losses, "float64"), [v.get_value() for v in variables]))
    np.testing.assert_allclose(runs[0][0][:, 0], runs[1][0][:, 0], rtol=1e-4)
    np.testing.assert_allclose(runs[0][0][:, 1], runs[1][0][:, 1])
    for wanted, got in zip(runs[0][1], runs[1][1], strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-5)


@pytest.mark.gpu
def test_updates_happen_in_place():
    w = shared(np.ones((4, 4), "float32"))
    f = pytensor.function([], [], updates=[(w, w * np.float32(2))], mode=GPU_MODE)
    address = w.get_value(borrow=True, return_internal_type=True).data.ptr
    f()
    array = w.get_value(borrow=True, return_internal_type=True)
    assert array.data.ptr == address
    np.testing.assert_array_equal(array.get(), np.full((4, 4), 2, "float32"))


@pytest.mark.gpu
def test_memory_stays_flat():
    import cupy

    w = shared(np.ones((64, 64), "float32"))
    x = pt.fmatrix()
    f = pytensor.function([x], (w @ x).sum(), updates=[(w, w * np.float32(0.5))], mode=GPU_MODE)
    value = np.ones((64, 64), "float32")
    for _ in range(100):
        f(value)
    pool = cupy.get_default_memory_pool()
    used, total = pool.used_bytes(), pool.total_bytes()
    for _ in range(2000):
        f(value)
    assert pool.used_bytes() <= used
    assert pool.total_bytes() <= total


def test_the_mode_is_not_changed():
    assert get_mode("CVM") is not GPU_MODE
    assert "gpu" not in get_mode("CVM")._optimizer.include

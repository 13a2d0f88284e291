"""Declared graphs as Ops in graphs of PyTensor."""

from __future__ import annotations

import pickle

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.fg import FunctionGraph

from dnnops import graph as cudnn
from dnnops.cpu.conv import OneDnnConv
from dnnops.dtypes import DTYPE_CODES
from dnnops.errors import DnnNotSupportedError, DnnTypeError, DnnValueError
from dnnops.gpuarray.type import GpuArrayType
from dnnops.graph.op import DeclaredGraph, GpuDeclaredGraph
from dnnops.nnet import conv2d
from tests.gpu.compiled import check_module
from tests.graph.declarations import channels_last
from tests.graph.planning import declared
from tests.oracle import PERFORM_MODE

FLOAT = cudnn.data_type.FLOAT


def convolution(io="float32", last=True):
    """Return the Op of a convolution with bias and relu."""
    graph = cudnn.pygraph(
        io_data_type=io, intermediate_data_type=FLOAT, compute_data_type=FLOAT, name="block"
    )

    def tensor(name, dim):
        return graph.tensor(dim, channels_last(dim) if last else (), name=name)

    x, w, b = tensor("x", [2, 8, 9, 9]), tensor("w", [4, 8, 3, 3]), tensor("b", [1, 4, 1, 1])
    y = graph.relu(graph.bias(graph.conv_fprop(x, w, padding=[1, 1]), b))
    y.set_output(True)
    return graph.as_op()


def values(dtype="float32"):
    rng = np.random.default_rng(0)
    shapes = (2, 8, 9, 9), (4, 8, 3, 3), (1, 4, 1, 1)
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def variables(dtype="float32"):
    shapes = {"x": (None,) * 4, "w": (None,) * 4, "b": (1, None, 1, 1)}
    return [pt.tensor(name, dtype=dtype, shape=shape) for name, shape in shapes.items()]


def test_gradient_of_a_result_that_an_operand_does_not_affect():
    """Layer normalization also returns its means, on which scale and bias have no influence."""
    op = declared("layernorm")[0].as_op()
    inputs = [
        pt.tensor(dtype=dtype, shape=x.dim)
        for x, dtype in zip(op.operands[:3], ("float16", "float32", "float32"), strict=True)
    ]
    mean = op(*inputs, 1e-5)[1]
    found = pytensor.function(inputs, pytensor.grad(mean.sum(), inputs), mode=PERFORM_MODE)(
        *(np.ones(x.type.shape, x.type.dtype) for x in inputs)
    )
    np.testing.assert_allclose(found[0], np.full(inputs[0].type.shape, 1 / 64), rtol=1e-3)
    for gradient, x in zip(found[1:], inputs[1:], strict=True):
        np.testing.assert_array_equal(gradient, np.zeros(x.type.shape, "float32"))


@pytest.mark.parametrize("mode", ["FAST_COMPILE", "ONEDNN"])
def test_values_and_gradients(mode):
    x, w, b = inputs = variables()
    y = convolution()(*inputs)
    assert y.type.shape == (2, 4, 9, 9)
    found = pytensor.function(inputs, [y, *pytensor.grad((y**2).sum(), inputs)], mode=mode)
    same = pt.maximum(conv2d(x, w, border_mode=(1, 1), filter_flip=False) + b, 0)
    expected = pytensor.function(inputs, [same, *pytensor.grad((same**2).sum(), inputs)], mode=mode)
    for one, other in zip(found(*values()), expected(*values()), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=1e-4)


def test_runs_with_onednn():
    inputs = variables()
    function = pytensor.function(inputs, convolution()(*inputs), mode="ONEDNN")
    ops = [node.op for node in function.maker.fgraph.toposort()]
    assert any(isinstance(op, OneDnnConv) for op in ops)
    assert not any(isinstance(op, DeclaredGraph) for op in ops)


def test_equality_and_pickling():
    op = convolution()
    assert op == convolution()
    assert hash(op) == hash(convolution())
    assert op != convolution(last=False)
    again = pickle.loads(pickle.dumps(op))
    assert again == op
    assert str(again) == "DeclaredGraph{CONV_FPROP, POINTWISE, POINTWISE}"
    gpu = pickle.loads(pickle.dumps(GpuDeclaredGraph(op.data)))
    assert gpu == GpuDeclaredGraph(op.data)


def test_operands_are_checked():
    op = convolution()
    x, w, b = variables()
    with pytest.raises(DnnTypeError, match=r"takes 3 operands \(x, w, b\), got 2"):
        op(x, w)
    with pytest.raises(DnnValueError, match=r"'block': operand x has shape \(1, 2, 3, 4\)"):
        op(np.zeros((1, 2, 3, 4), "float32"), w, b)
    with pytest.raises(DnnTypeError, match="operand x has dtype float64; expected float32"):
        op(pt.dtensor4(), w, b)
    assert op(pt.cast(x, "float16"), w, b).type.dtype == "float32"


@pytest.mark.parametrize("mode", ["FAST_COMPILE", "ONEDNN"])
def test_shapes_are_checked_when_it_runs(mode):
    inputs = variables()
    function = pytensor.function(inputs, convolution()(*inputs), mode=mode)
    x, w, b = values()
    with pytest.raises((ValueError, AssertionError), match=r"shape|dim"):
        function(x[:1], w, b)


def test_infer_shape():
    x, w, b = variables()
    y = convolution()(x, w, b)
    function = pytensor.function([x, w, b], y.shape, on_unused_input="ignore")
    assert not any(isinstance(n.op, DeclaredGraph) for n in function.maker.fgraph.apply_nodes)
    assert function(*values()).tolist() == [2, 4, 9, 9]


def test_connection_pattern():
    op = declared("sdpa_with_lengths", io="FLOAT")[0].as_op()
    names = [t.name for t in op.operands]
    node = op.make_node(*(op._host_variable(t) for t in op.operands))
    pattern = dict(zip(names, op.connection_pattern(node), strict=True))
    assert pattern["a"] == pattern["b"] == [False, False]
    assert pattern["q"] == pattern["bias"] == pattern["v"] == [True, True]


def test_numbers_are_scalars():
    op = declared("layernorm", io="FLOAT")[0].as_op()
    x, s, b, epsilon = (op._host_variable(t) for t in op.operands)
    assert epsilon.type.ndim == 0
    function = pytensor.function([x, s, b], op(x, s, b, 1e-5)[0], mode="FAST_COMPILE")
    rng = np.random.default_rng(0)
    given = [rng.standard_normal(v.type.shape).astype("float32") for v in (x, s, b)]
    y = given[0] - given[0].mean(1, keepdims=True)
    y = y / np.sqrt((y**2).mean(1, keepdims=True) + 1e-5) * given[1] + given[2]
    np.testing.assert_allclose(function(*given), y, rtol=1e-4, atol=1e-5)


def test_bfloat16_is_float32_on_the_host():
    op = convolution("bfloat16")
    assert {v.type.dtype for v in op.make_node(*variables()).inputs} == {"float32"}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("max_pool_with_index", "RESAMPLE.*expression"),
        ("max_pool_backward", "RESAMPLE_BPROP.*no expression"),
    ],
)
def test_without_an_expression(name, words):
    with pytest.raises(DnnNotSupportedError, match=words):
        declared(name)[0].as_op()


@pytest.mark.parametrize("compute", ["int32", "int64"])
def test_integers_do_not_wrap(compute):
    graph = cudnn.pygraph(
        io_data_type="int8", intermediate_data_type=compute, compute_data_type=compute
    )
    a, b = graph.tensor([1, 2, 4]), graph.tensor([1, 4, 3])
    graph.matmul(a, b).set_output(True).set_data_type(compute)
    x, y = np.full((1, 2, 4), 100, "int8"), np.full((1, 4, 3), 100, "int8")
    result = pytensor.function([], graph.as_op()(x, y), mode="FAST_COMPILE")()
    assert result.dtype == compute
    assert (result == 40_000).all()


@pytest.mark.parametrize(
    ("declare", "words"),
    [
        (lambda g: g.relu(g.tensor([4], data_type="bool", name="mask")), "'mask'.*BOOLEAN"),
        (lambda g: g.relu(g.tensor([4], data_type=cudnn.data_type.FP8_E4M3)), "FP8_E4M3"),
        (
            lambda g: g.add(
                g.tensor([4]),
                g.tensor([1], data_type="bfloat16", is_pass_by_value=True, name="number"),
            ),
            "'number': numbers on the host .*BFLOAT16",
        ),
        pytest.param(
            lambda g: g.add(
                g.tensor([4] * 4), g.tensor_scalar(2.5, name="own", data_type="bfloat16")
            ),
            "'own': numbers on the host .*BFLOAT16",
            marks=pytest.mark.needs("ml_dtypes"),
        ),
        (
            lambda g: g.relu(g.tensor([4], ragged_offset=g.tensor([2], data_type="int32"))),
            "ragged_offset",
        ),
    ],
)
def test_tensors_without_an_equivalent(declare, words):
    graph = cudnn.pygraph(io_data_type=FLOAT, compute_data_type=FLOAT)
    declare(graph).set_output(True)
    with pytest.raises(DnnNotSupportedError, match=words):
        graph.as_op()


def test_dropout_and_strides():
    graph = cudnn.pygraph(io_data_type=FLOAT, compute_data_type=FLOAT)
    q, k, v = (graph.tensor([1, 1, 4, 4]) for _ in range(3))
    seed, offset = (graph.tensor([1, 1, 1, 1], data_type="int64") for _ in range(2))
    graph.sdpa(q, k, v, generate_stats=False, dropout=(0.5, seed, offset))[0].set_output(True)
    with pytest.raises(DnnNotSupportedError, match="dropout"):
        graph.as_op()
    graph = cudnn.pygraph(io_data_type=FLOAT, compute_data_type=FLOAT)
    graph.relu(graph.tensor([4, 4], [8, 1], name="rows")).set_output(True)
    with pytest.raises(DnnNotSupportedError, match=r"'rows' .* neither contiguous nor"):
        graph.as_op()


# -- on a GPU, without one -----------------------------------------------------------------


@pytest.mark.needs("cudnn", "cupy")
@pytest.mark.parametrize("name", ["conv_bias_relu", "layernorm", "sdpa_with_lengths", "scaled"])
def test_c_module(name):
    op = GpuDeclaredGraph(declared(name)[0].as_op().data)
    inputs = [
        pt.scalar(dtype="float32")
        if t.is_pass_by_value
        else GpuArrayType(_dtype(t), (None,) * len(t.dim))()
        for t in op.operands
    ]
    node = op.make_node(*inputs)
    assert [x.type.dtype for x in node.outputs] == [_dtype(t) for t in op.results]
    assert [op.c_output_format(i) for i in range(len(op.results))] == [
        "DNNOPS_CONTIGUOUS" if "sdpa" in name else x for i, x in enumerate(_formats(op))
    ]
    check_module(node.outputs[0])


def _dtype(tensor):
    from dnnops.graph.names import dtype_of

    return dtype_of(tensor.data_type)


def _formats(op):
    for t in op.results:
        last = t.stride[1] == 1 and t.dim[1] > 1 and max(t.dim[2:]) > 1
        yield "DNNOPS_CHANNELS_LAST" if last else "DNNOPS_CONTIGUOUS"


@pytest.mark.needs("cudnn", "cupy")
@pytest.mark.parametrize("io", ["float32", "float16", "bfloat16"])
def test_rewrites_use_the_plan(io):
    inputs = variables("float32" if io == "bfloat16" else io)
    y = convolution(io)(*inputs)
    fgraph = FunctionGraph(inputs, [y], clone=True)
    with pytensor.config.change_flags(dnn__enabled="no_check"):
        pytensor.compile.mode.get_mode("CUDNN").optimizer.rewrite(fgraph)
    nodes = [n for n in fgraph.apply_nodes if isinstance(n.op, GpuDeclaredGraph)]
    assert len(nodes) == 1
    assert {v.type.dtype for v in nodes[0].inputs} == {io}
    assert fgraph.outputs[0].type.dtype == y.type.dtype


@pytest.mark.needs("cudnn", "cupy")
def test_shapes_are_checked_in_c():
    from tests.gpu.calls import call
    from tests.gpu.calls import channels_last as operand

    op = GpuDeclaredGraph(convolution("float16").data)
    shapes = [(2, 8, 9, 9), (4, 8, 3, 3), (1, 4, 1, 1)]
    inputs = [operand(shape, "float16") for shape in shapes]
    unknown = operand((1,) * 4)
    unknown.dtype = -1
    (out,) = call("dnnops_cudnn_declared_graph_shape", op, inputs, [unknown])
    assert tuple(out.shape[: out.ndim]) == (2, 4, 9, 9)
    assert out.dtype == DTYPE_CODES["float16"]
    given = [operand(shapes[0], "float32"), *inputs[1:]]
    with pytest.raises(DnnTypeError, match=r"operand 0 has dtype float32; .* for float16"):
        call("dnnops_cudnn_declared_graph_shape", op, given, [unknown])
    inputs[1] = operand((4, 8, 5, 3), "float16")
    with pytest.raises(DnnValueError, match=r"operand 1 has the shape \(4, 8, 5, 3\)"):
        call("dnnops_cudnn_declared_graph_shape", op, inputs, [operand((1,) * 4)])
    inputs[1] = operand((4, 8, 3, 3), "float16")
    with pytest.raises(DnnNotSupportedError, match="compiled without a GPU"):
        call("dnnops_cudnn_declared_graph", op, inputs, [operand((2, 4, 9, 9))])

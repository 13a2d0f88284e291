"""cuDNN's attention Ops without a GPU: types, shapes, C modules, graphs of derivatives."""

from __future__ import annotations

import pickle

import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.gradient import pushforward
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.traversal import ancestors

from dnnops.errors import DnnTypeError
from dnnops.gpu.attention import GpuDnnAttention, GpuDnnAttentionGrad
from dnnops.gpuarray.type import GpuArrayType
from tests.gpu.calls import call, device_tensor, shape_of
from tests.gpu.compiled import check_module


def arrays(dtype: str = "float16", *more: GpuArrayType) -> list:
    """Return query, key and value; the query has its own length and the value its own depth."""
    shapes = (2, 4, 5, 8), (2, 2, 6, 8), (2, 2, 6, 16)
    return [GpuArrayType(dtype, shape)() for shape in shapes] + [type_() for type_ in more]


MASK = GpuArrayType("float16", (1, 4, 5, 6))
LENGTHS = GpuArrayType("int64", (2,))


@pytest.mark.needs("cudnn")
@pytest.mark.parametrize("with_stats", [False, True])
def test_results(with_stats):
    op = GpuDnnAttention(with_stats=with_stats)
    node = op.make_node(*arrays("bfloat16"))
    types = [GpuArrayType("bfloat16", (2, 4, 5, 16)), GpuArrayType("float32", (2, 4, 5))]
    assert [x.type for x in node.outputs] == types[: 1 + with_stats]
    assert op.connection_pattern(node) == [[True] * (1 + with_stats)] * 3
    unknown = [GpuArrayType("float16", (None,) * 4)() for _ in range(3)]
    node = op.make_node(*unknown)
    fgraph = FunctionGraph(unknown, [x.shape[2] for x in node.outputs], clone=True)
    pytensor.compile.get_mode("CVM").excluding("inplace").optimizer.rewrite(fgraph)
    assert not any(isinstance(n.op, GpuDnnAttention) for n in fgraph.apply_nodes)
    x = device_tensor((2, 4, 5, 8), "float16")
    key, value = device_tensor((2, 2, 6, 8), "float16"), device_tensor((2, 2, 6, 16), "float16")
    given = [device_tensor((7,)) for _ in range(1 + with_stats)]
    found = call("dnnops_cudnn_attention_shape", op, [x, key, value], given)
    assert [shape_of(t) for t in found] == [(2, 4, 5, 16), (2, 4, 5)][: 1 + with_stats]


def test_equal_ops_and_pickling():
    without = GpuDnnAttention(None, True, with_stats=False)
    assert GpuDnnAttention(None, True) == GpuDnnAttention(None, True, with_stats=True) != without
    assert GpuDnnAttention(None, True).with_optional_result(False) == without
    copy = pickle.loads(pickle.dumps(without))
    assert copy == without
    assert copy.results == ("out",)
    assert (copy.words != GpuDnnAttention(None, True).words).sum() == 1
    with pytest.raises(DnnTypeError, match="with_stats"):
        GpuDnnAttention(with_stats="no")


@pytest.mark.needs("cudnn")
@pytest.mark.parametrize("with_stats", [False, True])
def test_modules_compile(with_stats):
    op = GpuDnnAttention(0.5, True, ("mask", "key_lengths"), with_stats=with_stats)
    check_module(op.make_node(*arrays("float16", MASK, LENGTHS)).outputs[0])


@pytest.mark.needs("cudnn")
def test_gradient_module_compiles():
    operands = arrays()
    out, stats = GpuDnnAttention().make_node(*operands).outputs
    plain = [out.type(), stats.type(), out.type()]
    check_module(GpuDnnAttentionGrad().make_node(*operands, *plain).outputs[0])


def test_gradient_without_stats():
    """The gradient Op receives the output and the statistics of an Op that returns both."""
    for dropout, optional, more in ((0.0, (), []), (0.5, ("state",), [pt.lvector("state")])):
        op = GpuDnnAttention(0.5, True, optional, dropout, with_stats=False)
        operands = [*arrays(), *more]
        (out,) = op.make_node(*operands).outputs
        grads = pytensor.grad((pt.as_tensor_variable(out) ** 2).sum(), operands[:3])
        made = [x.owner for x in ancestors(grads) if x.owner is not None]
        (grad,) = {n for n in made if isinstance(n.op, GpuDnnAttentionGrad)}
        assert grad.op == GpuDnnAttentionGrad(0.5, True, optional, dropout)
        node = grad.inputs[-2].owner
        assert grad.inputs[-3:-1] == node.outputs
        assert node.op == GpuDnnAttention(0.5, True, optional, dropout)
        assert node.inputs[:3] == grad.inputs[:3] == operands[:3]
        assert [g.type.dtype for g in grads] == ["float16"] * 3


def test_other_derivatives_without_stats():
    """With a mask, as second derivatives, and in forward mode: expressions of the same types."""
    operands = arrays("float16", MASK)
    op = GpuDnnAttention(0.5, False, ("mask",), with_stats=False)
    (out,) = op.make_node(*operands).outputs
    grads = pytensor.grad((pt.as_tensor_variable(out) ** 2).sum(), operands)
    again = pytensor.grad((pt.as_tensor_variable(grads[3]) ** 2).sum(), operands)
    for variable, first, second in zip(operands, grads, again, strict=True):
        assert first.type.ndim == second.type.ndim == variable.type.ndim
    hosts = [pt.tensor(dtype="float16", shape=x.type.shape) for x in operands]
    (out,) = op.make_node(*hosts).outputs
    tangents = [x.type() for x in hosts]
    moved = pushforward(pt.as_tensor_variable(out), hosts, tangents, use_op_pushforward=True)
    assert (moved.type.dtype, moved.type.ndim) == ("float16", 4)

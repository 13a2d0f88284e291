"""Expressions that replace Ops on a GPU are simplified, and compute the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor.tensor as pt
import pytest
from pytensor.graph.basic import Apply, Constant
from pytensor.graph.fg import FunctionGraph
from pytensor.tensor.basic import ARange
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.shape import Reshape

from dnnops.gpuarray.type import GpuArrayType
from dnnops.nnet import scaled_dot_product_attention
from dnnops.nnet.attention.op import Attention, AttentionGrad
from dnnops.rewriting.move.expressions import Expressions
from dnnops.rewriting.move.lifters import expansion_of
from tests.gpuarray.graphs import ops, rewritten
from tests.nnet.attention.attention_cases import Case, cases
from tests.oracle import evaluate, fuzz


def expressions_of(node: Apply, maker: Expressions | None = None) -> list[Any]:
    return (maker or Expressions()).of(node, expansion_of(node.op), list(node.inputs))


def graph_of(node: Apply, outputs: list[Any]) -> FunctionGraph:
    inputs = [x for x in node.inputs if not isinstance(x, Constant)]
    return FunctionGraph(inputs, outputs, clone=True)


def node_of(op: Any, arrays: list[np.ndarray], is_static: bool) -> Apply:
    """Apply an Op to variables of static shapes, or with unknown lengths other than 1."""
    shapes = [x.shape if is_static else [1 if n == 1 else None for n in x.shape] for x in arrays]
    pairs = zip(arrays, shapes, strict=True)
    return op.make_node(*(pt.tensor(dtype=x.dtype.name, shape=shape) for x, shape in pairs))


def performed(op: Any, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Return the results of the NumPy reference."""
    node = node_of(op, arrays, False)
    storage: list[list[Any]] = [[None] for _ in node.outputs]
    op.perform(node, arrays, storage)
    return [z for (z,) in storage]


@fuzz(max_examples=6, case=cases())
@pytest.mark.parametrize("is_static", [True, False])
def test_attention_is_the_same(case: Case, is_static: bool):
    """Compare with the reference in float64."""
    arrays, gout = case.arrays()
    op, grad = Attention(**case.parameters), AttentionGrad(**case.parameters)
    for each, given in ((op, arrays), (grad, [*arrays, *performed(op, arrays), gout])):
        node = node_of(each, given, is_static)
        found = expressions_of(node)
        results = evaluate(found, dict(zip(node.inputs, given, strict=True)))
        for got, wanted in zip(results, performed(each, given), strict=True):
            assert got.dtype == "float64"
            np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-12)


def causal(cls: type, *operands: Any) -> Apply:
    return cls(None, True, ()).make_node(*operands)


def qkv(rows: int | None = 5) -> list[Any]:
    return [pt.tensor(name, dtype="float32", shape=(None, 3, rows, 8)) for name in "qkv"]


def test_known_sizes_are_folded():
    node = causal(Attention, *qkv())
    graph = graph_of(node, expressions_of(node))
    assert not {"Shape", "Shape_i", "MakeVector", "ARange", "Reshape"} & set(ops(graph))
    # The expression as it is written reads sizes, and has no fused nodes.
    raw = graph_of(node, list(expansion_of(node.op)(node, node.inputs)))
    assert len(graph.apply_nodes) < len(raw.apply_nodes) / 2


def test_unknown_sizes_are_read_once():
    node = causal(Attention, *qkv(None))
    graph = graph_of(node, expressions_of(node))
    assert ops(graph).count("Shape_i") == len({"queries", "keys"})
    assert any(isinstance(n.op, ARange) for n in graph.apply_nodes)


def test_equal_nodes_share_an_expression():
    maker = Expressions()
    calls = []

    def expand(node, inputs):
        calls.append(node)
        return expansion_of(node.op)(node, inputs)

    masks = []
    for _ in range(2):
        node = causal(Attention, *qkv())
        outputs = maker.of(node, expand, list(node.inputs))
        graph = FunctionGraph(node.inputs, outputs, clone=False)
        masks += {x for x in graph.variables if isinstance(x, Constant) and x.type.dtype == "bool"}
    assert len(calls) == 1
    assert masks[0] is masks[1]
    maker.of(node := causal(Attention, *qkv(6)), expand, list(node.inputs))
    maker.of(node := Attention(None, False, ()).make_node(*qkv()), expand, list(node.inputs))
    assert len(calls) == 3


def test_constants_are_kept():
    q, _, v = qkv()
    zeros = pt.constant(np.zeros((2, 3, 5, 8), "float32"))
    maker = Expressions()
    values = []
    for keys in (zeros, pt.constant(np.ones((2, 3, 5, 8), "float32"))):
        node = causal(Attention, q, keys, v)
        out = expressions_of(node, maker)[1]
        values.append(evaluate(out, {q: np.ones((2, 3, 5, 8), "float32")}))
    np.testing.assert_allclose(values[0][0, 0], np.log(np.arange(1, 6)), rtol=1e-6)
    assert (values[1] > values[0] + 2).all()


def test_tags_exclude_rewrites():
    node = causal(Attention, *qkv())
    plain = expressions_of(node, Expressions(frozenset({"fusion"})))
    fused = expressions_of(node)
    counts = [
        sum(isinstance(n.op, Elemwise) for n in graph_of(node, outputs).apply_nodes)
        for outputs in (fused, plain)
    ]
    assert counts[0] < counts[1]


def test_attention_on_a_gpu():
    """The graph of two layers holds one mask, and the host computes no sizes."""
    q, k, v = (GpuArrayType("float32", (4, 3, 5, 8))(name) for name in "qkv")
    x = q
    for _ in range(2):
        x = scaled_dot_product_attention(x, k, v, is_causal=True)
    gradients = pt.grad((x**2).sum(), [q, k, v])
    graph = rewritten([q, k, v], [z.transfer("cuda") for z in (x, *gradients)])
    assert {op for op in ops(graph) if not op.startswith("Gpu")} <= {"DeepCopyOp"}
    masks = {x for x in graph.variables if isinstance(x, Constant) and x.type.dtype == "bool"}
    assert len(masks) == 1
    assert not any(isinstance(getattr(n.op, "host_op", None), Reshape) for n in graph.apply_nodes)

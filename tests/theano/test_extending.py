"""Ops, types, rewrites and callbacks that are written for Theano, as its documentation shows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_array_equal
from pytensor.graph.op import Op
from pytensor.graph.utils import MethodNotDefined

X = np.arange(6.0).reshape(2, 3)


def test_an_op(theano: Any):
    calls = []

    class Double(theano.Op):
        __props__ = ()

        def __init__(self) -> None:
            theano.gof.Op.__init__(self)

        def make_node(self, x: Any) -> Any:
            x = theano.tensor.as_tensor_variable(x)
            return theano.Apply(self, [x], [x.type()])

        def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
            output_storage[0][0] = inputs[0] * 2

        def infer_shape(self, node: Any, shapes: Any) -> Any:
            calls.append(node)
            return shapes

        def do_constant_folding(self, node: Any) -> bool:
            return False

        def grad(self, inputs: Any, output_grads: Any) -> Any:
            return [output_grads[0] * 2]

    x = theano.tensor.dmatrix()
    double = Double()
    assert double == Double()
    assert isinstance(theano.tensor.exp, theano.Op)
    assert not isinstance(theano.tensor.exp, Double)
    assert not isinstance(x, theano.Op)
    assert not issubclass(int, Op)
    assert isinstance(double, theano.gof.Op)
    assert issubclass(Double, theano.gof.PureOp)
    f = theano.function([x], [double(x), double(x).shape, theano.grad(double(x).sum(), x)])
    doubled, shape, gradient = f(X)
    assert_array_equal(doubled, 2 * X)
    assert tuple(shape) == X.shape
    assert_array_equal(gradient, np.full(X.shape, 2.0))
    assert calls
    assert_array_equal(theano.function([], double(X))(), 2 * X)


def test_an_op_of_functions_and_of_types(theano: Any):
    tt = theano.tensor

    class Triple(theano.Op):
        __props__ = ()
        itypes = (tt.dmatrix,)
        otypes = (tt.dmatrix,)

        def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
            output_storage[0][0] = inputs[0] * 3

        def L_op(self, inputs: Any, outputs: Any, grads: Any) -> Any:  # noqa: N802
            return [grads[0] * 3]

    @theano.compile.ops.as_op(itypes=[tt.dmatrix, tt.dmatrix], otypes=[tt.dmatrix])
    def add(a: Any, b: Any) -> Any:
        return a + b

    x = tt.dmatrix()
    f = theano.function([x], [add(Triple()(x), x), theano.grad(Triple()(x).sum(), x)])
    total, gradient = f(X)
    assert_array_equal(total, 4 * X)
    assert_array_equal(gradient, np.full(X.shape, 3.0))


def test_a_type_and_an_op_made_of_objects(theano: Any):
    double = theano.gof.Type()
    double.filter = lambda x, strict=False, allow_downcast=None: float(x)
    mul = theano.gof.Op()
    mul.make_node = lambda x, y: theano.gof.Apply(mul, [x, y], [double()])

    def perform(node: Any, inputs: Any, output_storage: Any) -> None:
        output_storage[0][0] = inputs[0] * inputs[1]

    mul.perform = perform
    x, y = double("x"), double("y")
    assert theano.function([x, y], mul(x, y))(5, 6) == 30.0
    assert isinstance(double, theano.Type)
    assert isinstance(theano.tensor.dvector, theano.gof.Type)
    with pytest.raises(MethodNotDefined, match="filter"):
        theano.gof.Type().filter(1)


def test_c_code_of_an_op(theano: Any):
    class WithCode(theano.Op):
        __props__ = ()

        def c_headers(self) -> list[str]:
            return ["<cmath>"]

        def c_code(self, node: Any, name: str, inputs: Any, outputs: Any, sub: Any) -> str:
            return ""

    class Without(theano.Op):
        pass

    assert WithCode().c_headers(c_compiler=None) == ["<cmath>"]
    with pytest.raises(MethodNotDefined):
        Without().c_code(None, "", [], [], {})
    with pytest.raises(MethodNotDefined):
        Without().perform(None, [], [])


def test_rewrites(theano: Any):
    tt = theano.tensor

    @theano.gof.local_optimizer([tt.exp])
    def of_node(node: Any) -> Any:
        return [tt.sqrt(node.inputs[0])] if node.op == tt.exp else False

    @theano.gof.local_optimizer([tt.sqrt])
    def of_graph(fgraph: Any, node: Any) -> Any:
        return [tt.sqr(node.inputs[0])]

    class Negate(theano.gof.LocalOptimizer):
        def tracks(self) -> Any:
            return [tt.sqr]

        def transform(self, node: Any) -> Any:
            return [tt.neg(node.inputs[0])] if node.op == tt.sqr else False

    x = tt.dvector()
    graph = theano.gof.FunctionGraph([x], [tt.exp(x)], clone=False)
    for rewrite, wanted in ((of_node, pt.sqrt), (of_graph, pt.sqr), (Negate(), pt.neg)):
        theano.gof.TopoOptimizer(rewrite).optimize(graph)
        assert graph.outputs[0].owner.op == wanted
    assert isinstance(of_node, theano.gof.LocalOptimizer)
    with pytest.raises(MethodNotDefined, match="transform"):
        theano.gof.LocalOptimizer().transform(graph, None)


def test_positions_in_the_database(theano: Any):
    optdb = theano.compile.optdb
    assert optdb is theano.compile.mode.optdb
    name = "test_positions_in_the_database"
    if name not in optdb:
        optdb.register(name, theano.gof.MergeOptimizer(), 49.5, "never_included")
    assert optdb.__position__[name] == 49.5
    assert isinstance(optdb["canonicalize"], theano.gof.EquilibriumDB)


def test_monitors(theano: Any, capsys: Any):
    seen = []

    def inspect(i: int, node: Any, fn: Any) -> None:
        seen.append((i, str(node.op), [output[0] for output in fn.outputs]))

    from theano.compile.monitormode import detect_nan

    x = theano.tensor.dscalar("x")
    mode = theano.compile.MonitorMode(pre_func=inspect, post_func=inspect, optimizer="None")
    f = theano.function([x], theano.tensor.neg(x), mode=mode)
    assert f(3.0) == -3
    assert len(seen) == 2
    assert seen[1][2][0] == -3

    class Fn:
        inputs = ([0.0],)
        outputs = ([np.array(np.nan)],)

    detect_nan(0, theano.tensor.log(x).owner, Fn())
    assert "NaN detected" in capsys.readouterr().out

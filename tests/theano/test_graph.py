"""Functions and classes of ``theano.gof``, and other utilities."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dnnops.errors import DnnValueError


def test_searches_return_lists(theano: Any):
    graph = theano.gof.graph
    x, y = theano.tensor.dscalars("x", "y")
    product = x * y
    total = product + 1
    assert graph.inputs([total])[:2] == [x, y]
    assert graph.inputs([total], blockers=[product]) == total.owner.inputs[1:]
    assert graph.ancestors([product]) == [product, x, y]
    assert set(graph.variables([x], [product])) == {x, y, product}
    assert graph.orphans([x], [product]) == [y]
    assert graph.variables_and_orphans([x], [product])[1] == [y]
    assert graph.ops([x, y], [total]) == {product.owner, total.owner}
    assert graph.ops([product], [total]) == {total.owner}
    assert graph.list_of_nodes([x], [total]) == [total.owner, product.owner]
    assert graph.list_of_nodes([product], [total]) == [total.owner]
    assert graph.io_toposort([x, y], [total]) == [product.owner, total.owner]
    assert graph.view_roots(product) == [product]
    assert graph.is_in_ancestors(total.owner, product.owner)
    assert graph.is_in_ancestors(total.owner, total.owner)
    assert not graph.is_in_ancestors(product.owner, total.owner)
    assert graph.is_same_graph_with_merge(x + y, x + y)


def test_stack_search(theano: Any):
    edges = {"a": ["b", "c"], "b": ["d"], "c": ["d"], "d": None}
    search = theano.gof.graph.stack_search
    assert search(["a"], edges.get) == ["a", "b", "c", "d"]
    assert search(["a"], edges.get, "dfs") == ["a", "c", "d", "b"]
    found, inverse = search(["a"], edges.get, build_inv=True)
    assert found == ["a", "b", "c", "d"]
    assert inverse == {"b": ["a"], "c": ["a"], "d": ["b", "c"]}
    with pytest.raises(DnnValueError, match="'bfs' or 'dfs'"):
        search(["a"], edges.get, "other")


def test_a_rewrite_that_removes_an_op(theano: Any):
    x = theano.tensor.dscalar()
    graph = theano.gof.FunctionGraph([x], [theano.tensor.exp(theano.tensor.neg(x))], clone=False)
    remove = theano.gof.OpRemove(theano.tensor.neg)
    assert "-> x" in str(remove)
    theano.gof.TopoOptimizer(remove).apply(graph)
    assert graph.outputs[0].owner.inputs == [x]


def test_names_are_preserved(theano: Any):
    x = theano.tensor.dscalar("x")
    total = x + x
    total.name = "total"
    graph = theano.gof.FunctionGraph([x], [total * 2], clone=False)
    graph.attach_feature(theano.gof.toolbox.PreserveNames())
    twice = x * 2
    graph.replace(total, twice)
    assert twice.name == "total"


def test_test_values(theano: Any):
    x, value = theano.tensor.vector("x"), np.ones(2)
    get = theano.gof.op.get_test_value
    assert get(3.0) == 3
    assert get(theano.tensor.constant(2.0)) == 2
    assert get(theano.shared(value)).tolist() == [1, 1]
    with pytest.raises(AttributeError, match="x has no test value"):
        get(x)
    x.tag.test_value = value
    assert get(x).tolist() == [1, 1]
    assert theano.gof.op.get_debug_values(x) == []


def test_utilities(theano: Any, tmp_path: Any):
    utils = theano.gof.utils
    calls = []

    @utils.memoize
    def square(x: int) -> int:
        calls.append(x)
        return x * x

    assert [square(2), square(2), square(3)] == [4, 4, 9]
    assert calls == [2, 3]

    @utils.deprecated("file", "Use g")
    def f() -> int:
        return 1

    with pytest.warns(DeprecationWarning, match=r"file\.f is deprecated\. Use g"):
        assert f() == 1
    assert f() == 1
    assert utils.hist([1, 2, 1]) == {1: 2, 2: 1}
    assert utils.uniq([1, 2, 1]) == [1, 2]
    assert utils.unique([1, 2])
    assert not utils.unique([1, 1])
    assert utils.difference([1, 2, 3], [2]) == [1, 3]
    assert utils.remove(lambda x: x > 1, [1, 2]) == [1]
    assert utils.to_return_values([1]) == 1
    assert theano.gof.hashtype(1) == theano.gof.hashtype(2) != theano.gof.hashtype("1")
    (tmp_path / "file").write_text("text")
    assert utils.hash_from_file(str(tmp_path / "file")) == utils.hash_from_code("text")
    x, y = theano.tensor.dscalars("x", "x")
    z = theano.tensor.dscalar()
    assert [v.name for v in utils.give_variables_names([x, y, z])] == ["x_0", "x_1", "_2"]
    x.name = y.name = "x_0"
    z.name = "x_0_0"
    with pytest.raises(DnnValueError, match="not unique"):
        utils.give_variables_names([x, y, z])
    assert issubclass(utils.object2, object)
    assert utils.scratchpad() is not None


def test_arrays(theano: Any):
    from theano.misc.safe_asarray import _asarray

    assert _asarray is theano._asarray
    assert theano._asarray([1, 2], dtype="float32").dtype == np.float32
    with theano.config.change_flags(floatX="float32"):
        assert theano._asarray(1, dtype="floatX").dtype == np.float32
    assert theano._asarray(np.ones((2, 3)), "int8", order="F").flags.f_contiguous


def test_gradients(theano: Any):
    tt = theano.tensor
    x = tt.dscalar()
    rng = np.random.default_rng(0)
    theano.gradient.verify_grad(lambda x: x**2, [np.float64(2)], rng=rng, mode="FAST_COMPILE")
    wrong = theano.OpFromGraph([x], [x**2], lop_overrides=lambda inputs, outputs, grads: [grads[0]])
    with pytest.raises(tt.verify_grad.E_grad):
        tt.verify_grad(wrong, [np.float64(2)], rng=rng, mode="FAST_COMPILE")
    form = theano.gradient.format_as
    assert form(True, False, x) == [x]
    assert form(False, True, [x, x]) == (x, x)
    assert form(False, False, (x,)) is x
    assert form(False, False, x) is x
    with pytest.raises(DnnValueError, match="both"):
        form(True, True, x)
    with pytest.raises(DnnValueError, match="one output, got 2"):
        form(False, False, [x, x])


def test_stack_traces_of_classes(theano: Any):
    from theano.gof.opt import check_stack_trace
    from theano.tensor.nnet.corr import CorrMM, CorrMM_gradInputs

    x, w = theano.tensor.ftensor4s("x", "w")
    with theano.config.change_flags(traceback__limit=8):
        f = theano.function([x, w], theano.tensor.nnet.conv2d(x, w))
    for classes in (CorrMM, [CorrMM], (CorrMM_gradInputs, CorrMM)):
        assert check_stack_trace(f, ops_to_check=classes)
    (node,) = (node for node in f.maker.fgraph.toposort() if isinstance(node.op, CorrMM))
    node.outputs[0].tag.trace = []
    assert not check_stack_trace(f, CorrMM)
    assert not check_stack_trace(f, lambda node: isinstance(node.op, CorrMM))
    with pytest.raises(Exception, match="not in the graph"):
        check_stack_trace(f, CorrMM_gradInputs)


def test_functions_for_two_pythons(theano: Any):
    compat = theano.compat
    assert (compat.cmp(1, 2), compat.cmp(2, 2), compat.cmp(3, 2)) == (-1, 0, 1)
    assert compat.b("a") == b"a"
    assert list(compat.decode_iter([b"a"])) == [compat.decode(b"a")] == ["a"]
    assert compat.decode_with(b"\xe9", "latin-1") == "\xe9"
    assert compat.exc_message(ValueError(KeyError("inner"))) == "inner"
    assert list(compat.izip([1], [2])) == [(1, 2)]
    assert compat.operator_div(1, 2) == 0.5
    assert compat.PY3


def test_modules_that_pytensor_has_as_functions(theano: Any):
    import theano.ifelse
    import theano.tensor.nnet.ctc as loss

    x = theano.tensor.dscalar()
    f = theano.function([x], theano.ifelse.ifelse(theano.tensor.gt(x, 0), x, -x))
    assert f(-2.0) == 2
    assert callable(loss.ctc)
    assert theano.opt is theano.gof.opt
    assert theano.utils is theano.gof.utils


def test_printing(theano: Any, capsys: Any):
    x = theano.tensor.dscalar("x")
    total = theano.tensor.exp(x) + 1
    assert theano.printing.debugprint(total, -1, True) is None
    printed = capsys.readouterr().out
    assert "float64" in printed
    assert theano.printing.debugprint(total, 1, False, "str", ids="").split("\n")[0] == "Add"
    assert "x [id " in theano.printing.debugprint(total, file="str", print_clients=True)
    assert theano.printing.pp(x * 2) == "(x * 2)"

"""Memory of results, compared with counts that do not use the package's code."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode, get_mode
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.link.vm import VMLinker

import dnnops
from dnnops.errors import DnnValueError
from dnnops.explanation.memory import count_memory
from dnnops.runtime.lifetimes import declared_origins, releases

SIZE = 256
NBYTES = SIZE * SIZE * 8


class Making(Op):
    """An Op with two results, which each are new, a view of an operand or made in place."""

    def __init__(self, kinds):
        self.view_map = {i: [0] for i, kind in enumerate(kinds) if kind == "view"}
        self.destroy_map = {i: [0] for i, kind in enumerate(kinds) if kind == "in place"}

    def make_node(self, *inputs):
        return Apply(self, list(inputs), [pt.vector() for _ in range(2)])

    def perform(self, node, inputs, output_storage):
        raise NotImplementedError


class Buffer:
    """An array that is counted while something refers to it."""

    def __init__(self, size):
        self.size = size


def random_graph(rng):
    """Return the nodes of a random graph, the variables to keep, and the sizes of results."""
    variables, nodes, sizes = [pt.vector() for _ in range(2)], [], {}
    for _ in range(rng.integers(1, 12)):
        kinds = rng.choice(["new", "view", "in place"], 2)
        if list(kinds).count("in place") == 2:
            kinds[1] = "new"
        operands = [variables[i] for i in rng.integers(0, len(variables), rng.integers(1, 4))]
        node = Making(kinds).make_node(*operands)
        nodes.append(node)
        sizes |= {z: int(rng.integers(0, 100)) for z in node.outputs}
        variables += node.outputs
    computed = variables[2:]
    kept = [z for z in computed if rng.random() < 0.15] or computed[-1:]
    return nodes, kept, sizes


def simulated(nodes, kept, sizes):
    """Peak and live memory around each node, from cells that refer to buffers."""
    cells = {x: Buffer(0) for node in nodes for x in node.inputs if x.owner is None}
    found = []

    def total():
        return sum(buffer.size for buffer in set(cells.values()))

    for i, node in enumerate(nodes):
        for j, z in enumerate(node.outputs):
            reused = j in node.op.view_map or j in node.op.destroy_map
            cells[z] = cells[node.inputs[0]] if reused else Buffer(sizes[z])
        peak = total()
        for x in set(node.inputs):
            used_later = any(x in later.inputs for later in nodes[i + 1 :])
            if x.owner is not None and x not in kept and not used_later:
                del cells[x]
        found.append((peak, total()))
    return found


@pytest.mark.parametrize("seed", range(100))
def test_random_graphs(seed):
    nodes, kept, sizes = random_graph(np.random.default_rng(seed))
    origins = {z: x for node in nodes for z, x in declared_origins(node).items()}
    counted = count_memory(nodes, releases(nodes, kept, True), sizes, origins)
    assert [(m.peak, m.live) for m in counted] == simulated(nodes, kept, sizes)


def test_nothing_is_freed_without_gc():
    nodes, kept, sizes = random_graph(np.random.default_rng(3))
    origins = {z: x for node in nodes for z, x in declared_origins(node).items()}
    counted = count_memory(nodes, releases(nodes, kept, False), sizes, origins)
    new = sum(size for z, size in sizes.items() if z not in origins)
    assert counted[-1].live == counted[-1].peak == new
    assert sum(m.allocated for m in counted) == new


def random_expression(rng, x):
    """Return results of elementwise Ops, products, views and sums of square matrices."""
    variables = [x]
    for _ in range(8):
        a, b = (variables[i] for i in rng.integers(max(0, len(variables) - 3), len(variables), 2))
        kind = rng.integers(4)
        variables.append((pt.exp(a), a + b, a.T, a * b.T)[kind])
    return [variables[-1], *(z for z in variables[1:-1] if rng.random() < 0.2)]


def traced_peak(f, *arguments):
    """The memory that a call of PyTensor's virtual machine allocates, as Python's tracer says."""
    f(*arguments)
    tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        result = f(*arguments)
        peak = tracemalloc.get_traced_memory()[1] - before
        del result
    finally:
        tracemalloc.stop()
    return peak


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_peak_is_that_of_a_real_call(seed, inplace):
    x = pt.matrix("x", dtype="float64")
    outputs = random_expression(np.random.default_rng(seed), x)
    mode = get_mode("CVM").excluding("fusion", "canonicalize", "specialize", "onednn", "BlasOpt")
    if not inplace:
        mode = mode.excluding("inplace")
    f = pytensor.function([x], outputs, mode=mode)
    value = np.full((SIZE, SIZE), 1e-3)
    e = dnnops.explain(f, value, calls=1)
    assert e.peak_bytes == pytest.approx(traced_peak(f, value), abs=NBYTES / 8)
    assert e.peak_bytes >= NBYTES


def test_a_reshape_that_copies_counts():
    """Declared as a view, which it is of a contiguous array only."""
    x = pt.matrix("x", dtype="float64")
    mode = Mode("cvm", optimizer=None)
    plain = pytensor.function([x], x.reshape((-1,)), mode=mode)
    turned = pytensor.function([x], x.T.reshape((-1,)), mode=mode)
    value = np.zeros((SIZE, SIZE))
    for f, new in ((plain, 0), (turned, NBYTES)):
        (node,) = [n for n in dnnops.explain(f, value, calls=1).nodes if n.op == "Reshape"]
        assert (node.reuse, node.bytes) == ("view", new)


def test_results_are_kept_without_gc():
    x = pt.matrix("x", dtype="float64")
    y = pt.exp(pt.exp(pt.exp(x)))
    for allow_gc, kept in ((True, 1), (False, 3)):
        mode = Mode(VMLinker(allow_gc=allow_gc, use_cloop=True), optimizer=None)
        e = dnnops.explain(pytensor.function([x], y, mode=mode), np.zeros((SIZE, SIZE)))
        assert e.allow_gc == allow_gc
        assert e.nodes[-1].live_bytes == kept * NBYTES
        assert e.peak_bytes == max(2, kept) * NBYTES
        assert e.input_bytes == NBYTES


def layers():
    """Return a function of unknown sizes with a shared variable, views, and sizes in its graph."""
    x, y = pt.matrix("x", dtype="float64"), pt.vector("y", dtype="float64")
    w = pytensor.shared(np.full((SIZE, 2 * SIZE), 1e-3))
    z = pt.exp(x @ w).reshape((x.shape[0] * 2, SIZE))
    z = pt.concatenate([z, z * y, pt.alloc(y[0], x.shape[0], SIZE)])
    return pytensor.function([x, y], z[::2].sum(axis=0), mode=Mode("cvm", optimizer="fast_compile"))


def test_memory_follows_from_shapes():
    """The function is not run."""
    f = layers()
    shapes = (3 * SIZE, SIZE), (SIZE,)
    found = dnnops.explain(f, shapes=shapes)
    run = dnnops.explain(f, *(np.ones(shape) for shape in shapes), calls=1)
    assert dnnops.explain(f).peak_bytes is None
    assert found.peak_bytes == run.peak_bytes > 6 * NBYTES
    assert [n.live_bytes for n in found.nodes] == [n.live_bytes for n in run.nodes]
    assert found.peak_node.index == run.peak_node.index
    assert found.peak_node.peak_bytes == found.peak_bytes
    assert f"at node {found.peak_node.index} {found.peak_node.op}" in str(found).splitlines()[0]
    assert found.to_dict()["peak_node"] == found.peak_node.index


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shapes": [(1, 2)]}, "one shape for each of the 2 arguments"),
        ({"shapes": [(1, 2), (3, 4)]}, r"of ranks \[2, 1\]"),
        ({"shapes": [(1, 2), (3,)], "calls": 1}, "not measured"),
    ],
)
def test_wrong_shapes(options, message):
    with pytest.raises(DnnValueError, match=message):
        dnnops.explain(layers(), **options)


def test_a_shape_that_is_not_the_static_one():
    x = pt.tensor("x", dtype="float64", shape=(3, None))
    f = pytensor.function([x], pt.exp(x), mode=Mode("cvm", optimizer=None))
    assert dnnops.explain(f, shapes=[(3, 5)]).peak_bytes == 3 * 5 * 8
    with pytest.raises(DnnValueError, match="static shape"):
        dnnops.explain(f, shapes=[(4, 5)])

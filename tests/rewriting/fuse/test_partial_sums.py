"""Sums that contain other sums are computed from them; needs no GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import get_mode
from pytensor.graph.fg import FunctionGraph
from pytensor.scalar.basic import Add
from pytensor.tensor.elemwise import Elemwise

from dnnops.rewriting.fuse.partial_sums import PartialSums
from tests.oracle import PERFORM_MODE, assert_close

#: Sums stay apart, so that they can be counted.
UNFUSED = get_mode("ONEDNN").excluding("fusion", "inplace")


def sums(fgraph: FunctionGraph) -> list[int]:
    """Return the number of terms of each sum, sorted."""
    nodes = fgraph.apply_nodes
    return sorted(
        len(n.inputs)
        for n in nodes
        if isinstance(n.op, Elemwise) and isinstance(n.op.scalar_op, Add)
    )


def rewritten(inputs: list[Any], outputs: list[Any]) -> FunctionGraph:
    fgraph = FunctionGraph(inputs, outputs, clone=True)
    PartialSums().apply(fgraph)
    fgraph.check_integrity()
    return fgraph


def test_residual_network():
    """A sum has the terms that its layer adds, not those of all layers before."""
    x, *biases = pt.fmatrix("x"), *(pt.fvector() for _ in range(4))
    result = x
    for bias in biases:
        result = result + pt.sort(result, axis=1) + bias
    inputs = [x, *biases]
    outputs = [result, *pytensor.grad((result**2).sum(), inputs)]
    f = pytensor.function(inputs, outputs, mode=UNFUSED)
    plain = pytensor.function(inputs, outputs, mode=UNFUSED.excluding("partial_sums"))
    assert max(sums(plain.maker.fgraph)) > 4
    assert max(sums(f.maker.fgraph)) <= 3
    rng = np.random.default_rng(0)
    values = [rng.standard_normal((5, 6), "float32")]
    values += [rng.standard_normal(6, "float32") for _ in biases]
    oracle = pytensor.function(inputs, outputs, mode=PERFORM_MODE)
    for found, expected in zip(f(*values), oracle(*values), strict=True):
        assert_close(found, expected, "float32")


@pytest.mark.parametrize("seed", range(5))
def test_random_sums(seed):
    """Terms may be repeated, and in any order."""
    rng = np.random.default_rng(seed)
    terms = [pt.dmatrix() for _ in range(5)]
    outputs: list[Any] = []
    for _ in range(8):
        chosen = [terms[i] for i in rng.integers(0, 5, rng.integers(2, 8))]
        outputs.append(pt.add(*chosen))
    fgraph = rewritten(terms, outputs)
    assert sum(sums(fgraph)) <= sum(len(z.owner.inputs) for z in outputs)
    values = [rng.standard_normal((2, 3)) for _ in terms]
    f = pytensor.function(
        fgraph.inputs, fgraph.outputs, mode=PERFORM_MODE, on_unused_input="ignore"
    )
    for found, z in zip(f(*values), outputs, strict=True):
        expected = sum(values[terms.index(x)] for x in z.owner.inputs)
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_the_longest_part_is_taken():
    a, b, c, d, e = (pt.fmatrix() for _ in range(5))
    fgraph = rewritten([a, b, c, d, e], [a + b, pt.add(a, b, c, d), pt.add(c, d, a, e, b)])
    assert sums(fgraph) == [2, 2, 3]


def test_what_stays():
    x, y = pt.fmatrix("x"), pt.fmatrix("y")
    bias, wide = pt.frow("bias"), pt.dmatrix("wide")
    whole = pt.add(x, bias, y)
    # Storing the sum of an array and a bias costs as much as it saves.
    assert sums(rewritten([x, y, bias], [pt.tanh(x + bias), whole])) == [2, 3]
    # The sum of float32 numbers would be rounded.
    assert sums(rewritten([x, y, wide], [x + y, pt.add(x, y, wide)])) == [2, 3]
    # Repeated terms count.
    assert sums(rewritten([x, y], [pt.add(x, x, y), pt.add(x, y, y, y)])) == [3, 4]

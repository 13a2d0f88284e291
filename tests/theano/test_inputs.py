"""Inputs with default values and updates, as in Theano's documentation of ``In``."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from dnnops.errors import DnnTypeError


def test_values_and_updates(theano: Any):
    from theano.compile.io import In

    u, x, s = theano.tensor.dscalars("u", "x", "s")
    f = theano.function([u, In(x, value=3), In(s, update=s + x * u, value=10.0)], [])
    assert f(5) == []
    assert f[s] == 25
    f(3, 4)
    assert f[s] == 37
    assert f[x] == 3
    f(3, 4, 7)
    assert f[s] == f["s"] == f[2] == f.value[s] == f.container[s].value == 19
    f[s] = 10
    assert isinstance(f[s], np.ndarray)
    f(u=1)
    assert f["s"] == 13
    f.value["s"] = 99.0
    f(0)
    assert f[s] == 99
    assert s in f
    assert theano.tensor.scalar() not in f
    assert len(f.maker.fgraph.inputs) == 3
    with pytest.raises(TypeError):
        f()


def test_values_are_pickled(theano: Any):
    x, s = theano.tensor.dscalars("x", "s")
    f = theano.function([x, theano.In(s, update=s + x, value=10.0)], s * 2)
    f(1)
    again = pickle.loads(pickle.dumps(f))
    assert (again["s"], again(1), again["s"], f["s"]) == (11, 22, 12, 11)


def test_shortcuts_for_inputs(theano: Any):
    x, y, z, w = theano.tensor.dscalars("x", "y", "z", "w")
    f = theano.function([x, y, theano.In(z, value=42), ((w, w + x), 0)], x + y + z)
    assert [f(1, 2), f(1, y=2), f(1, 2, 3), f(1, z=3, y=2)] == [45, 45, 6, 6]
    assert f[w] == 4
    assert f(1, 2, w=400) == 45
    assert f["w"] == 401
    named = theano.function([("first", x), (y, 2.0), ["last", (z, z + 1), 1.0]], {"sum": x + y + z})
    assert named(1.0) == {"sum": 4.0}
    assert named(first=1.0, y=3.0) == {"sum": 6.0}
    assert named["last"] == 3
    for wrong in ((), ((x, y, z), 1.0), (x, 1.0, 2.0), ("name",), (1.0, x)):
        with pytest.raises(DnnTypeError, match="must be a variable, an In"):
            theano.function([wrong], [])
    with pytest.raises(DnnTypeError, match="constant"):
        theano.function([theano.tensor.constant(1.0)], [])

"""Elementwise Ops on all cores compute what PyTensor's do, and more exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor
import pytensor.scalar as ps
import pytensor.tensor as pt
import pytest
from hypothesis import strategies as st
from pytensor.graph.basic import Apply
from pytensor.scalar.basic import Composite
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.special import softmax

from dnnops.cpu.elemwise import MIN_PARALLEL, CpuElemwise, is_supported
from tests.oracle import assert_close, fuzz

#: For each operand, the axes that it has; the others are broadcast.
PATTERNS = {
    "same": ("0123", "0123", "0123"),
    "scalar": ("0123", "", "0123"),
    "channels": ("0123", "1", "0123"),
    "rows": ("0123", "012", "3"),
    "crossed": ("02", "13", "0123"),
    "first": ("0", "123", "0"),
    "outer": ("01", "23", ""),
}


def compiled(axes: tuple[str, ...], dtype: str, inplace: dict[int, int] | None = None) -> Any:
    """Return a function of two results, compiled with the Op that is tested."""
    inputs = [
        pt.tensor(dtype=dtype, shape=tuple(None if str(i) in own else 1 for i in range(4)))
        for own in axes
    ]
    x, y, z = (ps.get_scalar_type(dtype)() for _ in range(3))
    third = ps.constant(np.asarray(0.1, dtype))
    formula = Composite([x, y, z], [x * y + third * z, ps.sqrt(ps.abs(x)) - y / (z * z + third)])
    outputs = CpuElemwise(formula, inplace or {})(*inputs)
    mode = pytensor.compile.get_mode("CVM").excluding("fusion", "inplace")
    accept = pytensor.compile.io.In
    given = [accept(v, mutable=i in (inplace or {}).values()) for i, v in enumerate(inputs)]
    function = pytensor.function(given, outputs, mode=mode, accept_inplace=bool(inplace))
    (node,) = (n for n in function.maker.fgraph.apply_nodes if isinstance(n.op, CpuElemwise))
    assert node.op.inplace_pattern == (inplace or {})
    return function


def expected(x: Any, y: Any, z: Any) -> tuple[Any, Any]:
    third = x.dtype.type(0.1).astype("float64")
    x, y, z = (a.astype("float64") for a in (x, y, z))
    return x * y + third * z, np.sqrt(np.abs(x)) - y / (z * z + third)


def operands(
    rng: np.random.Generator, axes: tuple[str, ...], sizes: list[int], dtype: str, strided: bool
) -> list[np.ndarray]:
    arrays = []
    for own in axes:
        shape = tuple(size if str(i) in own else 1 for i, size in enumerate(sizes))
        array = rng.standard_normal(shape).astype(dtype)
        if strided and rng.random() < 0.5:
            wider = np.zeros((*shape[:3], 2 * shape[3]), dtype)
            wider[..., ::2] = array
            array = wider[..., ::2]
        elif strided and rng.random() < 0.5:
            array = np.ascontiguousarray(array.transpose(3, 1, 0, 2)).transpose(2, 1, 3, 0)
        arrays.append(array)
    return arrays


@pytest.mark.parametrize(
    ("pattern", "dtype"),
    [
        *((name, "float32") for name in PATTERNS),
        ("crossed", "float64"),
        *(pytest.param(p, "float64", marks=pytest.mark.slow) for p in PATTERNS if p != "crossed"),
    ],
)
def test_random(pattern, dtype):
    axes = PATTERNS[pattern]
    function = compiled(axes, dtype)

    @fuzz(
        max_examples=60,
        sizes=st.lists(st.integers(0, 9), min_size=4, max_size=4),
        seed=st.integers(0, 2**32 - 1),
        strided=st.booleans(),
    )
    def compare(sizes: list[int], seed: int, strided: bool) -> None:
        given = operands(np.random.default_rng(seed), axes, sizes, dtype, strided)
        results = expected(*given)
        for found, wanted in zip(function(*given), results, strict=True):
            assert found.dtype == dtype
            assert found.shape == wanted.shape
            assert_close(found, wanted, dtype, allow_zero=True)

    compare()
    # Enough elements for several threads, in rows that do not end at a whole vector.
    given = operands(np.random.default_rng(0), axes, [7, 41, 13, 17], dtype, False)
    assert np.prod(expected(*given)[0].shape) > MIN_PARALLEL
    for _ in range(2):
        for found, wanted in zip(function(*given), expected(*given), strict=True):
            assert_close(found, wanted, dtype)


def test_in_place():
    """Results overwrite operands, contiguous or not; others keep their values."""
    axes = PATTERNS["channels"]
    function = compiled(axes, "float32", {0: 2, 1: 0})
    for strided in (False, True):
        for sizes in ([2, 3, 4, 5], [9, 20, 15, 19], [0, 3, 4, 5]):
            given = operands(np.random.default_rng(1), axes, sizes, "float32", strided)
            wanted, middle = expected(*given), given[1].copy()
            found = function(*given)
            for array, result, of_float64 in zip((given[2], given[0]), found, wanted, strict=True):
                assert_close(array, of_float64, "float32", allow_zero=True)
                np.testing.assert_array_equal(array, result)
            np.testing.assert_array_equal(given[1], middle)


@pytest.mark.parametrize("index", range(3))
def test_wrong_shapes_raise_pytensors_error(index):
    function = compiled(PATTERNS["rows"], "float32")
    given = operands(np.random.default_rng(1), PATTERNS["rows"], [2, 3, 4, 5], "float32", False)
    function(*given)
    given[index] = np.repeat(given[index], 2, axis=3 if index != 1 else 2)
    with pytest.raises(ValueError, match="Input dimension mismatch"):
        function(*given)


def test_results_are_reused_only_if_they_fit():
    """An output that the function returned before is not overwritten."""
    function = compiled(PATTERNS["same"], "float32")
    rng = np.random.default_rng(1)
    first = operands(rng, PATTERNS["same"], [2, 3, 4, 5], "float32", False)
    kept = function(*first)
    copies = [a.copy() for a in kept]
    for sizes in ([2, 3, 4, 5], [5, 4, 3, 2], [1, 1, 1, 1]):
        function(*operands(rng, PATTERNS["same"], sizes, "float32", False))
    for array, copy in zip(kept, copies, strict=True):
        np.testing.assert_array_equal(array, copy)


def test_special_values():
    """NaN, infinities and signed zeros stay what they are in comparisons and selections."""
    x = pt.fvector("x")
    y = pt.switch(x > 0, x, np.float32(-0.0)) + pt.where(pt.isnan(x), np.float32(np.inf), x * 0)
    outputs = [y, pt.maximum(x, 0), softmax(x.reshape((1, -1)), axis=1)]
    values = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, 3e38, -2.0], "float32")
    given = np.resize(values, 1003)
    with np.errstate(invalid="ignore"):
        found = pytensor.function([x], outputs, mode="DNN")(given)
        wanted = pytensor.function(
            [x], outputs, mode=pytensor.compile.get_mode("CVM").excluding("onednn")
        )(given)
    for a, b in zip(found[:2], wanted[:2], strict=True):
        np.testing.assert_array_equal(a, b)


def replaced(x: Any, y: Any, mode: str = "DNN") -> list[type]:
    """Return the types of elementwise Ops of a graph that also has a softmax."""
    z = pt.fmatrix("z")
    inputs = [v for v in (x, y, z) if v.owner is None and not hasattr(v, "data")]
    function = pytensor.function(inputs, [x * y, softmax(z, axis=1)], mode=mode)
    nodes = function.maker.fgraph.apply_nodes
    return [type(node.op) for node in nodes if isinstance(node.op, Elemwise)]


def test_where_it_runs():
    large, small = pt.fmatrix(), pt.tensor(dtype="float32", shape=(4, 4))
    assert replaced(large, pt.fmatrix()) == [CpuElemwise]
    assert replaced(large, pt.fmatrix(), mode="CVM") == [Elemwise]
    assert replaced(small, pt.tensor(dtype="float32", shape=(4, 4))) == [Elemwise]
    assert replaced(pt.lmatrix(), pt.lmatrix()) == [Elemwise]
    function = pytensor.function([large], pt.exp(large), mode="DNN")
    assert [type(n.op) for n in function.maker.fgraph.apply_nodes] == [Elemwise]


def node_of(*dtypes: str) -> Apply:
    return (pt.add(*(pt.matrix(dtype=dtype) for dtype in dtypes))).owner


def test_supported():
    assert is_supported(node_of("float32", "float64"))
    assert is_supported(node_of("int8", "float32"))
    assert not is_supported(node_of("float16", "float32"))
    assert not is_supported(node_of("complex64", "float32"))
    assert not is_supported(pt.add(pt.scalar(), pt.scalar()).owner)
    assert not is_supported(pt.psi(pt.fmatrix()).owner)


def test_integer_division_by_zero_is_still_an_error():
    x, y, z = pt.ivector("x"), pt.ivector("y"), pt.fmatrix("z")
    quotient = (x // y).astype("float32") * 2
    function = pytensor.function([x, y, z], [quotient, softmax(z, axis=1)], mode="DNN")
    numbers, matrix = np.arange(400, dtype="int32"), np.ones((2, 2), "float32")
    np.testing.assert_array_equal(function(numbers, numbers + 1, matrix)[0], 0)
    with pytest.raises(ZeroDivisionError):
        function(numbers, numbers, matrix)

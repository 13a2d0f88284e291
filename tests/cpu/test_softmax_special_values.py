"""Softmax of NaN, infinities and many dimensions, compared with SciPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode
from scipy.special import log_softmax, softmax

from dnnops.nnet import conv2d
from dnnops.runtime.op import MAX_NDIM
from tests.linkers import LINKERS

FUNCTIONS = {
    "softmax": (pt.special.softmax, softmax),
    "log_softmax": (pt.special.log_softmax, log_softmax),
}
NAN, INF = np.nan, np.inf
ROWS = (
    [NAN, 1, 2],
    [1, NAN],
    [*range(40), NAN],
    [NAN, *range(40)],
    [NAN] * 20,
    [INF, 1],
    [-INF, 3],
    [-INF, -INF],
    [1e38, -1e38, 3e38],
    [0, -104, -88, -87.4],
)


@LINKERS
@pytest.mark.parametrize("name", FUNCTIONS)
def test_special_values_along_the_last_axis(name, mode):
    symbolic, reference = FUNCTIONS[name]
    v = pt.fvector("v")
    function = pytensor.function([v], symbolic(v), mode=mode)
    for row in ROWS:
        values = np.array(row, dtype="float32")
        with np.errstate(all="ignore"):
            expected = reference(values)
        # SciPy's log_softmax handles infinity separately, PyTensor's does not.
        if np.isposinf(values).any():
            expected = np.full_like(expected, np.nan)
        result = function(values)
        # A NaN must not become a probability.
        np.testing.assert_array_equal(np.isnan(result), np.isnan(expected), err_msg=str(row))
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-30, err_msg=str(row))


@pytest.mark.parametrize("axis", [0, 1, 2, (0, 1)])
def test_a_nan_spoils_its_own_row_only(axis):
    x = pt.tensor3("x", dtype="float32")
    function = pytensor.function([x], pt.special.softmax(x, axis=axis), mode="CVM")
    values = np.random.default_rng(0).standard_normal((3, 17, 4)).astype("float32")
    values[1, 5, 2] = np.nan
    np.testing.assert_allclose(function(values), softmax(values, axis=axis), rtol=1e-5)


@LINKERS
@pytest.mark.parametrize("ndim", [8, 9])
def test_softmax_of_many_dimensions(ndim, mode):
    check_softmax_of(ndim, mode)


def test_softmax_of_very_many_dimensions():
    """Not compiled: PyTensor's C code for 12 nested loops takes most of a minute to compile."""
    check_softmax_of(12, Mode(linker="py", optimizer="fast_run"))


def check_softmax_of(ndim: int, mode: Any) -> None:
    """oneDNN handles up to 8 dimensions; results must be right with more, too."""
    x = pt.tensor("x", dtype="float32", shape=(None,) * ndim)
    function = pytensor.function([x], pt.special.softmax(x, axis=-1), mode=mode)
    names = {type(node.op).__name__ for node in function.maker.fgraph.apply_nodes}
    assert ("OneDnnSoftmax" in names) == (ndim <= MAX_NDIM)
    values = np.random.default_rng(1).standard_normal((2,) * ndim).astype("float32")
    # PyTensor's own Op compiles its graph in this mode when it runs.
    with pytensor.config.change_flags(mode="FAST_COMPILE"):
        found = function(values)
    np.testing.assert_allclose(found, softmax(values, axis=-1), rtol=1e-5)


@LINKERS
def test_sum_of_many_dimensions_beside_a_convolution(mode):
    x = pt.tensor("x", dtype="float32", shape=(None,) * 9)
    image = pt.tensor4("image", dtype="float32")
    axes = (0, *range(2, 9))
    function = pytensor.function([x, image], [x.sum(axis=axes), conv2d(image, image)], mode=mode)
    values = np.random.default_rng(2).standard_normal((2,) * 9).astype("float32")
    total, _ = function(values, np.ones((1, 1, 2, 2), "float32"))
    np.testing.assert_allclose(total, values.sum(axis=axes), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("mode", ["CVM", None], ids=["CVM", "default"])
def test_gradients_are_nan_where_the_output_is(mode, dtype):
    x = pt.matrix(dtype=dtype)
    outputs = [symbolic(x, axis=1) for symbolic, _ in FUNCTIONS.values()]
    gradients = [pytensor.grad((y * y).sum(), x) for y in outputs]
    function = pytensor.function([x], [*outputs, *gradients], mode=mode)
    rows = [[NAN, 1, 2], [INF, 1, 2], [-INF] * 3, [3, 1, 2]]
    results = function(np.array(rows, dtype))
    for result in results:
        assert np.isnan(result[:3]).all()
        assert np.isfinite(result[3]).all()

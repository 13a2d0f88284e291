"""Tests of ``pt.maximum(x, 0)`` as relu: the same numbers, without Ops that are slow in C."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import get_default_mode, get_mode
from pytensor.graph.basic import Apply
from pytensor.scalar.basic import EQ, Composite, Maximum, Minimum, get_scalar_type
from pytensor.tensor.elemwise import Elemwise

from dnnops import nnet
from dnnops.gpuarray.elemwise import GpuElemwise
from tests.gpuarray.graphs import rewritten
from tests.oracle import PERFORM_MODE

#: Special operands of a maximum: ties, both zeros, infinities, NaN.
SPECIAL = np.array(
    [[0.0, -0.0, 1.5, -1.5, np.inf, -np.inf], [np.nan, 1e-45, -1e-45, 3e38, -3e38, -np.nan]],
    dtype="float32",
)
SLOPES = np.arange(1, 13, dtype="float32").reshape(2, 6)

FORMS: dict[str, Callable] = {
    "maximum(x, 0)": lambda x: pt.maximum(x, 0),
    "maximum(0, x)": lambda x: pt.maximum(0, x),
    "maximum(x, 0.0)": lambda x: pt.maximum(x, np.float32(0)),
    "minimum(x, 0)": lambda x: pt.minimum(x, 0),
    "maximum(x, x / 8)": lambda x: pt.maximum(x, np.float32(0.125) * x),
    "switch(x > 0, x, 0)": lambda x: pt.switch(x > 0, x, np.float32(0)),
    "x * (x > 0)": lambda x: x * (x > 0),
    "(x + abs(x)) / 2": lambda x: (x + abs(x)) / 2,
}


def scalar_ops(nodes: Iterable[Apply]) -> set[type]:
    """Return the kinds of scalar Ops in elementwise nodes, including fused ones."""
    found: set[type] = set()
    for node in nodes:
        scalar_op = getattr(node.op, "scalar_op", None)
        if isinstance(scalar_op, Composite):
            found |= {type(inner.op) for inner in scalar_op.fgraph.apply_nodes}
        elif scalar_op is not None:
            found.add(type(scalar_op))
    return found


def outputs_and_gradients(inputs: list[Any]) -> list[Any]:
    x, slope = inputs
    outputs = []
    for write in FORMS.values():
        y = write(x)
        outputs += [y, pytensor.grad(None, x, known_grads={y: slope})]
    return outputs


@pytest.mark.parametrize("mode", ["DNN", "NUMBA", pytest.param("CUDNN", marks=pytest.mark.gpu)])
def test_every_form_gives_what_it_gives_as_written(mode: str):
    """Results are NaN where PyTensor's are, with its slopes at ties. Zeros may differ in sign."""
    inputs = [pt.fmatrix("x"), pt.fmatrix("slope")]
    outputs = outputs_and_gradients(inputs)
    special = SPECIAL
    if mode == "CUDNN":
        # CuPy compiles kernels that treat subnormal numbers as zero.
        special = np.where(abs(SPECIAL) < np.finfo("float32").tiny, np.float32(0), SPECIAL)
    written = pytensor.function(inputs, outputs, mode=PERFORM_MODE)(special, SLOPES)
    # Other modes than DNN recognize relu beside Ops of dnnops.
    beside = nnet.conv2d(*[inputs[0][None, None]] * 2)
    *got, _ = pytensor.function(inputs, [*outputs, beside], mode=mode)(special, SLOPES)
    names = [f"{name}{what}" for name in FORMS for what in ("", ", gradient")]
    for name, expected, out in zip(names, written, got, strict=True):
        np.testing.assert_array_equal(out, expected, err_msg=name)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_maximum_with_zero_is_relu(dtype: str):
    """The maximum and its comparison, whose loops are not vectorized, do not remain."""
    x = pt.matrix("x", dtype=dtype)
    y = pt.maximum(x, 0)
    f = pytensor.function([x], [y, pytensor.grad(y.sum(), x)], mode="DNN")
    assert not scalar_ops(f.maker.fgraph.apply_nodes) & {Maximum, EQ}


def test_comparisons_with_an_extremum_are_of_its_operands():
    x, y = pt.fmatrices("x", "y")
    both = [pt.maximum(x, y), pt.minimum(x, y)]
    f = pytensor.function(
        [x, y], [*both, *(g for out in both for g in pytensor.grad(out.sum(), [x, y]))], mode="DNN"
    )
    assert {Maximum, Minimum} <= scalar_ops(f.maker.fgraph.apply_nodes)
    assert EQ not in scalar_ops(f.maker.fgraph.apply_nodes)


def test_graphs_for_the_gpu_have_relu_too():
    x, filters = pt.ftensor4s("x", "filters")
    y = pt.maximum(nnet.conv2d(x, filters), 0)
    outputs = [y, *pytensor.grad(y.sum(), [x, filters])]
    with pytensor.config.change_flags(dnn__enabled="no_check"):  # also without a GPU
        fgraph = rewritten([x, filters], outputs, get_mode("CVM").including("gpu"))
    elementwise = [node for node in fgraph.apply_nodes if isinstance(node.op, GpuElemwise)]
    assert elementwise
    assert not scalar_ops(elementwise) & {Maximum, EQ}


def test_modes_of_pytensor_recognize_it_beside_ops_of_dnnops_only():
    x, filters = pt.ftensor4s("x", "filters")
    for mode in (get_default_mode(), get_mode("CVM")):
        alone = pytensor.function([x], pt.maximum(x, 0), mode=mode)
        beside = pytensor.function([x, filters], pt.maximum(nnet.conv2d(x, filters), 0), mode=mode)
        assert Maximum in scalar_ops(alone.maker.fgraph.apply_nodes)
        assert Maximum not in scalar_ops(beside.maker.fgraph.apply_nodes)


@pytest.mark.parametrize("x", [pt.imatrix("x"), pt.fmatrix("x")])
def test_other_maxima_stay(x: Any):
    """A maximum of integers, with another number, or of three operands."""
    other = 0 if x.type.dtype == "int32" else 1
    f = pytensor.function([x], [pt.maximum(x, other)], mode="DNN")
    assert Maximum in scalar_ops(f.maker.fgraph.apply_nodes)


def test_ops_with_several_results_are_left_alone():
    x, y = pt.fmatrices("x", "y")
    a, b = get_scalar_type("float32")(), get_scalar_type("float32")()
    both = Elemwise(Composite([a, b], [a + b, a * b]))(x, y)
    with pytensor.config.change_flags(on_opt_error="raise"):
        f = pytensor.function([x, y], both, mode="DNN")
    found = f(SLOPES, SLOPES[::-1])
    np.testing.assert_array_equal(found, [SLOPES + SLOPES[::-1], SLOPES * SLOPES[::-1]])

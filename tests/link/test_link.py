"""Graphs with Ops of dnnops in PyTensor's modes JAX and PYTORCH."""

from __future__ import annotations

import inspect
import os
import pkgutil
import subprocess
import sys
from importlib import import_module

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import JAX
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import Op

import dnnops.nnet
from dnnops import nnet
from dnnops.errors import DnnNotSupportedError, DnnValueError
from dnnops.link.sizes import StaticSizes, sizes_by_shapes
from tests.link.conversions import both_libraries
from tests.needs import require
from tests.oracle import PERFORM_MODE, assert_close

MODES = {"jax": "JAX", "torch": "PYTORCH"}


def dispatcher(library):
    if library == "jax":
        from pytensor.link.jax.dispatch import jax_funcify

        return jax_funcify
    from pytensor.link.pytorch.dispatch import pytorch_funcify

    return pytorch_funcify


def abstract_ops():
    """All classes of Ops that `dnnops.nnet` makes nodes of."""
    found = {}
    for module_info in pkgutil.iter_modules(dnnops.nnet.__path__):
        module = import_module(f"dnnops.nnet.{module_info.name}")
        for name, value in vars(module).items():
            if (
                inspect.isclass(value)
                and issubclass(value, Op)
                and value.__module__ == module.__name__
            ):
                found[name] = value
    bases = {"ExpressionOp", "OptionalResultOp"}
    return {
        name: value
        for name, value in found.items()
        if name not in bases and not name.endswith("Base") and not name.startswith("_")
    }


@both_libraries
def test_every_op_has_a_conversion(library):
    funcify = dispatcher(library)
    ops = abstract_ops()
    assert {"Conv", "Pool", "WindowSum", "RNNBackward", "CTC", "SpatialTransformerGrid"} <= set(ops)
    without = funcify.dispatch(object)
    assert not [name for name, op in ops.items() if funcify.dispatch(op) is without]


def small_network(x, labels, weights):
    """A loss with a convolution, poolings, normalizations and dropout in it."""
    filters, gamma, beta, dense = weights
    y = nnet.conv2d(x, filters, border_mode="half", subsample=(2, 1))
    y, *_ = nnet.batch_normalization_train(y, gamma, beta, "spatial")
    y = nnet.pool_2d(nnet.swish(y), (2, 2), ignore_border=False)
    y = nnet.local_response_normalization(y)
    y = nnet.dropout(y, 0.3, state=pt.constant(np.array([1, 2])))[0]
    y = nnet.pool_2d(y, (2, 2), ignore_border=True, mode="average_inc_pad")
    return nnet.cross_entropy(y.mean(axis=(2, 3)) @ dense, labels).mean()


@both_libraries
@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_training_step(library):
    rng = np.random.default_rng(0)
    values = {
        "x": rng.standard_normal((3, 2, 13, 11)),
        "filters": 0.3 * rng.standard_normal((4, 2, 3, 2)),
        "gamma": rng.random((1, 4, 1, 1)),
        "beta": rng.random((1, 4, 1, 1)),
        "dense": rng.standard_normal((4, 5)),
    }
    x, *weights = (pt.tensor(n, dtype="float64", shape=(None,) * v.ndim) for n, v in values.items())
    # Of batch normalization the sizes 1 have to be known.
    weights[1:3] = (pt.specify_shape(w, (1, None, 1, 1)) for w in weights[1:3])
    labels = pt.ivector("labels")
    loss = small_network(x, labels, weights)
    inputs = [x, weights[0], weights[1].owner.inputs[0], weights[2].owner.inputs[0], weights[3]]
    outputs = [loss, *pytensor.grad(loss, inputs)]
    arguments = [*values.values(), np.array([0, 4, 2], "int32")]
    step = pytensor.function([*inputs, labels], outputs, mode=MODES[library])
    expected = pytensor.function([*inputs, labels], outputs, mode=PERFORM_MODE)(*arguments)
    for found, wanted in zip(step(*arguments), expected, strict=True):
        assert_close(np.asarray(found), wanted, bound=1e-10)


@pytest.mark.needs("jax")
def test_sizes_that_follow_from_shapes_are_known_to_jax():
    x, filters = pt.dtensor4("x"), pt.dtensor4("filters")
    # The middle image's sizes are an expression of those of x and of the filters.
    y = nnet.conv2d(nnet.conv2d(x, filters, subsample=(2, 3)), filters, subsample=(2, 2))
    y = nnet.pool_2d(y, (y.shape[2] // 2, 1), ignore_border=True)
    gradients = pytensor.grad((y**2).sum(), [x, filters])
    rng = np.random.default_rng(0)
    arguments = rng.standard_normal((2, 3, 31, 40)), rng.standard_normal((3, 3, 3, 2))
    function = pytensor.function([x, filters], gradients, mode="JAX")
    expected = pytensor.function([x, filters], gradients, mode=PERFORM_MODE)(*arguments)
    for found, wanted in zip(function(*arguments), expected, strict=True):
        assert_close(np.asarray(found), wanted, bound=1e-12)


@pytest.mark.needs("jax")
def test_sizes_that_are_values_are_an_error_in_jax():
    x, window = pt.dtensor4("x"), pt.iscalar("window")
    function = pytensor.function(
        [x, window], nnet.pool_2d(x, (window, 2), ignore_border=True), mode="JAX"
    )
    with pytest.raises(DnnNotSupportedError, match=r"Pool.*constants or to follow from the shapes"):
        function(np.ones((1, 1, 4, 4)), 2)


def test_static_sizes_perform_what_they_stand_for():
    x = pt.dmatrix("x")
    sizes = pt.stack([x.shape[1] * 2, x.shape[0] - 1])
    own = sizes_by_shapes(sizes)
    assert isinstance(own.owner.op, StaticSizes)
    value = pytensor.function([x], own, mode=PERFORM_MODE)(np.ones((3, 5)))
    assert value.tolist() == [10, 2]
    assert sizes_by_shapes(pt.stack([x.shape[0], x[0, 0].astype("int64")])) is None


@both_libraries
def test_shapes_are_checked(library):
    x, grid = np.ones((3, 1, 4, 4)), np.ones((1, 2, 2, 2))
    for op, arrays in (
        (nnet.Conv(), (x, np.ones((2, 2, 1, 1)))),
        (nnet.SpatialTransformerSampler(), (x, grid)),
        (nnet.BatchNormInference((0, 2, 3)), (x, *[np.ones((1, 2, 1, 1))] * 4, 1e-3)),
        (nnet.LRNGrad(3, 1, 1, 1), (x, x[:1])),
        (nnet.ActivationGrad("relu"), (x, x, x[:1])),
    ):
        variables = [pt.tensor(dtype="float64", shape=(None,) * np.ndim(a)) for a in arrays]
        function = dispatcher(library)(op, node=op.make_node(*variables))
        if library == "torch":
            import torch

            arrays = [torch.tensor(a) for a in arrays]
        with pytest.raises(DnnValueError):
            function(*arrays)


@pytest.mark.needs("jax")
def test_graph_converted_by_hand():
    """As PyMC does it, which calls no linker."""
    x = pt.dtensor4("x")
    y = nnet.conv2d(x, np.ones((2, 3, 2, 2)), subsample=(2, 2))
    graph = FunctionGraph([x], [y, pytensor.grad((y**2).sum(), x)], clone=True)
    JAX.optimizer.rewrite(graph)
    from pytensor.link.jax.dispatch import jax_funcify

    value = np.random.default_rng(0).standard_normal((1, 3, 6, 5))
    expected = pytensor.function([x], [y, pytensor.grad((y**2).sum(), x)], mode=PERFORM_MODE)
    for found, wanted in zip(jax_funcify(graph)(value), expected(value), strict=True):
        assert_close(np.asarray(found), wanted, bound=1e-12)


def run_python(code, flags=""):
    """Run a program in a process of its own."""
    given = f"base_compiledir={pytensor.config.base_compiledir},{flags}"
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTENSOR_FLAGS": given},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "package", ["pytensor.link.jax.dispatch", "pytensor.link.pytorch.dispatch"]
)
@pytest.mark.parametrize("first", ["dnnops", "dispatch"])
def test_either_import_may_be_the_first(package, first):
    library = "jax" if "jax" in package else "torch"
    require(library)
    order = ["import dnnops", f"import {package} as dispatch"]
    code = "\n".join(
        [
            "import sys",
            order[first == "dispatch"],
            f"assert '{library}' not in sys.modules or {first == 'dispatch'}",
            order[first != "dispatch"],
            "from dnnops.nnet import Conv",
            f"name = '{'jax' if library == 'jax' else 'pytorch'}_funcify'",
            "funcify = getattr(dispatch, name)",
            "assert funcify.dispatch(Conv) is not funcify.dispatch(object)",
        ]
    )
    done = run_python(code)
    assert done.returncode == 0, done.stderr


def test_importing_dnnops_needs_neither_library():
    blocked = "import sys; sys.modules['jax'] = sys.modules['torch'] = None; import dnnops.link"
    done = run_python(f"{blocked}; dnnops.link.register_conversions()")
    assert done.returncode == 0, done.stderr


@pytest.mark.needs("jax")
def test_jax_of_32_bits():
    """Under floatX=float32 JAX knows no integers and numbers of 64 bits."""
    code = """
import warnings
warnings.simplefilter("error", UserWarning)
import numpy as np, pytensor, pytensor.tensor as pt
from dnnops import nnet
rng = np.random.default_rng(0)
x = pt.ftensor4("x")
theta = np.array([[[0.9, 0.1, 0], [0, 1.1, 0.2]]] * 2, "float32")
block = nnet.RNNForward("gru", 3, 2, dropout=0.4)
w = rng.standard_normal(block.layout.param_size(4)).astype("float32")
states = np.zeros((2, 2, 3), "float32")
outputs = [
    nnet.dropout(x, 0.3, state=pt.constant(np.array([7, 9])))[0],
    nnet.grid_sample(x, nnet.affine_grid(theta, (4, 3))),
    block.make_node(w, x[0], states, 12345).outputs[0],
    nnet.batch_normalization_train(x, *np.ones((2, 1, 3, 1, 1), "float32"), "spatial")[0],
]
outputs += [pytensor.grad(outputs[1].sum(), x)]
value = rng.standard_normal((2, 3, 2, 4)).astype("float32")
found = pytensor.function([x], outputs, mode="JAX")(value)
reference = pytensor.compile.mode.Mode(linker="py", optimizer=None)
for a, b in zip(found, pytensor.function([x], outputs, mode=reference)(value)):
    np.testing.assert_allclose(a, b, atol=1e-5)
"""
    done = run_python(code, "floatX=float32")
    assert done.returncode == 0, done.stderr

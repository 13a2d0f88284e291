"""Graphs with Ops of dnnops in PyTensor's modes JAX and PYTORCH."""

from __future__ import annotations

import functools
import inspect
import os
import pickle
import pkgutil
import subprocess
import sys
from importlib import import_module

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import JAX, PYTORCH, Mode
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import Op
from pytensor.graph.traversal import graph_inputs

import dnnops.nnet
from dnnops import nnet
from dnnops.errors import DnnNotSupportedError, DnnValueError
from dnnops.link.sizes import StaticSizes, sizes_by_shapes
from tests.link.conversions import both_libraries
from tests.needs import require
from tests.oracle import PERFORM_MODE, assert_close


def dispatcher(library):
    if library == "jax":
        from pytensor.link.jax.dispatch import jax_funcify

        return jax_funcify
    from pytensor.link.pytorch.dispatch import pytorch_funcify

    return pytorch_funcify


def abstract_ops():
    """Return all Op classes that appear in graphs of `dnnops.nnet`."""
    found = {}
    for module_info in pkgutil.walk_packages(dnnops.nnet.__path__, "dnnops.nnet."):
        module = import_module(module_info.name)
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
    """Return a loss with a convolution, poolings, normalizations and dropout."""
    filters, gamma, beta, dense = weights
    y = nnet.conv2d(x, filters, border_mode="half", subsample=(2, 1))
    y, *_ = nnet.batch_normalization_train(y, gamma, beta, "spatial")
    y = nnet.pool_2d(nnet.swish(y), (2, 2), ignore_border=False)
    y = nnet.local_response_normalization(y)
    y = nnet.dropout(y, 0.3, state=pt.constant(np.array([1, 2])))[0]
    y = nnet.pool_2d(y, (2, 2), ignore_border=True, mode="average_inc_pad")
    return nnet.cross_entropy(y.mean(axis=(2, 3)) @ dense, labels).mean()


def compiled(inputs, outputs, mode):
    """Compile a function with PyTensor, or convert it as PyMC does; PyTorch takes half a minute."""
    if isinstance(mode, str):
        return pytensor.function(inputs, outputs, mode=mode)
    graph = FunctionGraph(inputs, outputs, clone=True)
    mode.optimizer.rewrite(graph)
    if mode is JAX:
        return dispatcher("jax")(graph)
    import torch

    function = dispatcher("torch")(graph)
    return lambda *arrays: function(*(torch.from_numpy(array) for array in arrays))


MODES = [
    pytest.param("JAX", marks=pytest.mark.needs("jax")),
    pytest.param(JAX, marks=pytest.mark.needs("jax"), id="converted to JAX"),
    pytest.param("PYTORCH", marks=[pytest.mark.needs("torch"), pytest.mark.slow]),
    pytest.param(PYTORCH, marks=pytest.mark.needs("torch"), id="converted to PyTorch"),
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_training_step(mode):
    rng = np.random.default_rng(0)
    values = {
        "x": rng.standard_normal((3, 2, 13, 11)),
        "filters": 0.3 * rng.standard_normal((4, 2, 3, 2)),
        "gamma": rng.random((1, 4, 1, 1)),
        "beta": rng.random((1, 4, 1, 1)),
        "dense": rng.standard_normal((4, 5)),
    }
    shapes = {"gamma": (1, None, 1, 1), "beta": (1, None, 1, 1), "dense": (None, None)}
    x, *weights = (
        pt.tensor(name, dtype="float64", shape=shapes.get(name, (None,) * 4)) for name in values
    )
    labels = pt.ivector("labels")
    loss = small_network(x, labels, weights)
    inputs, outputs = [x, *weights, labels], [loss, *pytensor.grad(loss, [x, *weights])]
    arguments = [*values.values(), np.array([0, 4, 2], "int32")]
    step = compiled(inputs, outputs, mode)
    expected = pytensor.function(inputs, outputs, mode=PERFORM_MODE)(*arguments)
    for found, wanted in zip(step(*arguments), expected, strict=True):
        assert_close(np.asarray(found), wanted, bound=1e-10)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_sizes_that_follow_from_shapes(mode):
    x, filters = pt.dtensor4("x"), pt.dtensor4("filters")
    # The middle image's sizes depend on those of x and of the filters.
    y = nnet.conv2d(nnet.conv2d(x, filters, subsample=(2, 3)), filters, subsample=(2, 2))
    y = nnet.pool_2d(y, (y.shape[2] // 2, 1), ignore_border=True)
    y = y.reshape((y.shape[0], y.shape[1] * y.shape[2] * y.shape[3]))
    gradients = pytensor.grad((y**2).sum(), [x, filters])
    function = compiled([x, filters], gradients, mode)
    reference = pytensor.function([x, filters], gradients, mode=PERFORM_MODE)
    rng = np.random.default_rng(0)
    for batch, rows in ((2, 31), (3, 34), (4, 41)):
        arguments = rng.standard_normal((batch, 3, rows, 40)), rng.standard_normal((3, 3, 3, 2))
        for found, wanted in zip(function(*arguments), reference(*arguments), strict=True):
            assert_close(np.asarray(found), wanted, bound=1e-12)


@pytest.mark.needs("torch")
def test_pytorch_compiles_one_graph_for_all_shapes():
    """Graph breaks, such as sizes read from tensors, make calls slow."""
    import torch

    x, filters = pt.dtensor4("x"), pt.dtensor4("filters")
    y = nnet.pool_2d(nnet.conv2d(x, filters, subsample=(2, 3)), (2, 2), ignore_border=False)
    y = nnet.batch_normalization_train(y, *[np.ones((1, 3, 1, 1))] * 2, "spatial")[0]
    y = nnet.dropout(nnet.local_response_normalization(y), 0.3, seed=1)
    gradients = pytensor.grad((y**2).sum(), [x, filters])
    states = [v for v in graph_inputs(gradients) if isinstance(v, SharedVariable)]
    graph = FunctionGraph([x, filters, *states], gradients, clone=False)
    PYTORCH.optimizer.rewrite(graph)
    function = torch.compile(dispatcher("torch")(graph), backend="eager", fullgraph=True)
    for shape in ((2, 3, 12, 13), (4, 3, 15, 16), (5, 3, 18, 19)):
        operands = [torch.ones(shape, dtype=torch.float64), torch.ones(3, 3, 2, 2).double()]
        operands += [torch.tensor(state.get_value()) for state in states]
        assert function(*operands)[0].shape == shape


@pytest.mark.needs("jax")
def test_sizes_that_are_values_are_an_error_in_jax():
    x, window = pt.dtensor4("x"), pt.iscalar("window")
    function = pytensor.function(
        [x, window], nnet.pool_2d(x, (window, 2), ignore_border=True), mode="JAX"
    )
    with pytest.raises(DnnNotSupportedError, match=r"Pool.*constants or depend only on the shapes"):
        function(np.ones((1, 1, 4, 4)), 2)


def test_static_sizes_are_what_they_stand_for():
    x, y = pt.dmatrix("x"), pt.dtensor3("y")
    n, m = x.shape[0], y.shape[2]
    for sizes in (
        pt.stack([n * 2 + m, -n % 7, pt.maximum(n, m) // 2, pt.minimum(n - m, 3)]),
        pt.concatenate([y.shape[1:], x.shape[::-1] * 2, [abs(n - m)]]),
        pt.switch(pt.ge(n, 4) & pt.neq(m, 2), x.shape, y.shape[:2] - 1),
        pt.switch(pt.eq(n, 3) | pt.lt(m, n), n, m),
        pt.stack([pt.ceil(n * 0.7), pt.floor(n / m), -n / 4, pt.trunc(m - 1.5)]).astype("int64"),
        nnet.conv_output_shape((m, 3, n), (2, 3, 2), "half", (2,))[2] + n * 0,
    ):
        for rewritten in (sizes, fused(sizes)):
            own = sizes_by_shapes(rewritten)
            assert isinstance(own.owner.op, StaticSizes)
            own.owner.op = pickle.loads(pickle.dumps(own.owner.op))
            function = pytensor.function(
                [x, y], [own, sizes], mode=PERFORM_MODE, on_unused_input="ignore"
            )
            for shapes in ((3, 5), (4, 2, 6)), ((6, 2), (1, 1, 2)):
                found, wanted = function(*map(np.ones, shapes))
                np.testing.assert_array_equal(found, wanted)


def fused(sizes):
    """Test the same graph after PyTensor's rewrites, which fuse arithmetic into larger Ops."""
    inputs = [v for v in graph_inputs([sizes]) if not isinstance(v, Constant)]
    graph = FunctionGraph(inputs, [sizes], clone=False, copy_inputs=False)
    Mode(linker="vm", optimizer="fast_run").excluding("inplace").optimizer.rewrite(graph)
    return graph.outputs[0]


def test_sizes_that_depend_on_values_stay():
    x = pt.dmatrix("x")
    assert sizes_by_shapes(pt.stack([x.shape[0], x[0, 0].astype("int64")])) is None
    assert sizes_by_shapes(pt.lvector()) is None
    assert sizes_by_shapes((x.shape[0].astype("float32") / 3).astype("int64")) is None


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


def run_python(code, flags=""):
    """Run a program in a new process."""
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
    """With floatX=float32, JAX has no 64-bit integers or floats."""
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


@pytest.mark.needs("torch")
@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_sizes_of_windows_may_be_values_in_pytorch(monkeypatch):
    import torch

    # The default backend compiles C++.
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    x, ws = pt.ftensor4("x"), pt.lvector("ws")
    pooled = pytensor.function([x, ws], nnet.pool_2d(x, ws, True), mode="PYTORCH")
    image = np.arange(36, dtype="float32").reshape(1, 1, 6, 6)
    np.testing.assert_array_equal(pooled(image, [3, 2])[0, 0], image[0, 0, 2::3, 1::2])
    with pytest.raises(DnnValueError, match="ws must be a vector of 2 integers"):
        pooled(image, [2, 2, 2])

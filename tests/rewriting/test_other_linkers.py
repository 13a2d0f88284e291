"""Importing dnnops leaves PyTensor's backends that can't run its Ops as they were."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.compile.mode as modes
import pytensor.tensor as pt
import pytest
from pytensor.link.jax.linker import JAXLinker
from pytensor.link.pytorch.linker import PytorchLinker
from scipy.special import softmax

from dnnops import nnet
from dnnops.cpu.softmax import OneDnnSoftmax
from dnnops.nnet.activation.softmax import WholeSoftmax

NAMES = ("PYTORCH", "JAX", "MLX")
MODES = {
    **{f"mode='{name}'": modes.predefined_modes[name] for name in NAMES},
    **{f"imported {name}": getattr(modes, name) for name in NAMES},
    "linker='jax'": modes.Mode(linker="jax"),
    "linker='pytorch'": modes.Mode(linker="pytorch", optimizer="fast_run"),
    "a linker object": modes.Mode(JAXLinker()),
    "onednn included": modes.Mode(PytorchLinker()).including("onednn"),
}


def rewritten(mode):
    x = pt.fmatrix("x")
    graph = pytensor.graph.FunctionGraph([x], [pt.special.softmax(x, axis=1)], clone=True)
    mode.excluding("inplace").optimizer.rewrite(graph)
    return {type(node.op) for node in graph.apply_nodes}


@pytest.mark.parametrize("name", MODES)
def test_softmax_stays(name):
    assert not rewritten(MODES[name]) & {WholeSoftmax, OneDnnSoftmax}


@pytest.mark.parametrize("mode", [modes.CVM, modes.NUMBA], ids=["CVM", "NUMBA"])
def test_softmax_does_not_where_it_can_run(mode):
    assert OneDnnSoftmax in rewritten(mode)


def test_other_rewrites_of_the_modes_stay():
    query = modes.PYTORCH._optimizer
    assert "fast_run" in query.include
    assert {"cxx_only", "inplace", "onednn"} <= set(query.exclude)


@pytest.mark.parametrize("name", MODES)
def test_activations_are_written_out(name):
    x = pt.fmatrix("x")
    y = nnet.relu(nnet.tanh(x))
    graph = pytensor.graph.FunctionGraph([x], [y, pytensor.grad(y.sum(), x)], clone=True)
    MODES[name].excluding("inplace").optimizer.rewrite(graph)
    ops = {type(node.op).__name__ for node in graph.apply_nodes}
    assert not [op for op in ops if "Activation" in op]


@pytest.mark.needs("torch")
def test_softmax_runs_in_pytorch():
    x = pt.fmatrix("x")
    function = pytensor.function([x], pt.special.softmax(x, axis=1), mode="PYTORCH")
    values = np.random.default_rng(0).standard_normal((3, 4)).astype("float32")
    np.testing.assert_allclose(np.asarray(function(values)), softmax(values, axis=1), rtol=1e-5)

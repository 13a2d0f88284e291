"""Functions of PyTensor's PyTorch linker can be pickled before and after calls."""

from __future__ import annotations

import copy
import functools
import pickle

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.link.pytorch.linker import PytorchLinker

from dnnops import nnet


def test_copies_of_a_linker_share_no_nodes():
    """PyTensor copies the linker of a mode for each function."""
    linker = PytorchLinker()
    copied = copy.copy(linker)
    copied.gen_functors.append(("local", lambda x: x))
    assert linker.gen_functors == []
    assert pickle.loads(pickle.dumps(copied)).gen_functors == []
    assert len(copied.gen_functors) == 1


@pytest.mark.slow
@pytest.mark.needs("torch")
def test_pickled_functions(monkeypatch: pytest.MonkeyPatch):
    """The mode of every function would have the local functions of all functions before."""
    import torch

    # The default backend compiles C++.
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    weights = pt.tensor(shape=(3, 4, 2, 5), dtype="float64")
    x = pt.tensor(shape=(2, 2, 2), dtype="float64")
    blocks, bias = np.array([[0, 2], [1, 2]]), np.zeros((4, 5))
    y = nnet.sparse_block_dot(weights, x, blocks, bias, np.array([[1, 3], [0, 1]]))
    gradients = pytensor.grad((y**2).sum(), [weights, x])
    function = pytensor.function([weights, x], [y, *gradients], mode="PYTORCH")
    rng = np.random.default_rng(0)
    arguments = rng.standard_normal((3, 4, 2, 5)), rng.standard_normal((2, 2, 2))
    before = pickle.loads(pickle.dumps(function))
    found = function(*arguments)
    after = pickle.loads(pickle.dumps(function))
    for other in (before, after):
        for value, same in zip(found, other(*arguments), strict=True):
            np.testing.assert_array_equal(value, same)

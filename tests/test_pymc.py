"""A Bayesian convolutional classifier in PyMC, sampled by NUTS in PyTensor's default mode.

PyMC changes PyTensor's compiler flags when it is imported, so the model runs in a separate process,
in which every warning is an error.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

pytestmark = [pytest.mark.needs("pymc"), pytest.mark.slow]

PROGRAM = """
    import warnings
    warnings.simplefilter("error")
    import numpy as np
    import pymc as pm
    import pytensor.tensor as pt
    from dnnops.nnet import conv2d, pool_2d, relu

    # Bars that lie or stand, with noise.
    rng = np.random.default_rng(0)
    classes = rng.integers(2, size=24)
    images = 0.3 * rng.standard_normal((24, 1, 6, 6))
    for image, upright in zip(images[:, 0], classes):
        place = rng.integers(1, 5)
        image[(slice(None), place) if upright else place] += 1

    with pm.Model() as model:
        filters = pm.Normal("filters", 0, 1, shape=(2, 1, 3, 3))
        bias = pm.Normal("bias", 0, 1, shape=(2,))
        weights = pm.Normal("weights", 0, 1, shape=(8, 2))
        hidden = relu(conv2d(pt.as_tensor(images), filters) + bias[None, :, None, None])
        features = pool_2d(hidden, ws=(2, 2), ignore_border=True).reshape((24, 8))
        scores = pm.Deterministic("scores", features @ weights)
        pm.Categorical("classes", logit_p=scores, observed=classes)
        density = model.logp_dlogp_function(ravel_inputs=True)
        trace = pm.sample(
            draws=20, tune=20, chains=1, cores=1, random_seed=1, progressbar=False,
            step=pm.NUTS(max_treedepth=5), compute_convergence_checks=False,
        )

    nodes = density._pytensor_function.maker.fgraph.apply_nodes
    ops = {type(node.op).__name__ for node in nodes}
    expected = {"OneDnnConv", "OneDnnConvGradWeights", "OneDnnPool", "OneDnnMaxPoolGrad"}
    assert expected <= ops, ops
    draws = trace.posterior["filters"].values
    assert draws.shape == (1, 20, 2, 1, 3, 3)
    assert np.isfinite(draws).all()
    # The chain moves, and what it finds tells the classes apart.
    assert len(np.unique(draws[0, :, 0, 0, 0, 0])) > 10
    guesses = trace.posterior["scores"].values.mean(axis=(0, 1)).argmax(axis=1)
    assert (guesses == classes).mean() > 0.7, guesses
"""


def test_nuts_runs_in_onednn():
    finished = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    assert "object mode" not in finished.stderr

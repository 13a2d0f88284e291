"""Infer which inputs matter in a Bayesian regression by attention, with Hamiltonian Monte Carlo."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt

from dnnops.nnet import scaled_dot_product_attention

# Data: two angles for each point, of which only the first one has an effect.
rng = np.random.default_rng(0)
n = 60
angles = rng.uniform(0, 2 * np.pi, size=(n, 2))
observed = np.sin(angles[:, 0]) + 0.1 * rng.normal(size=n)
features = np.stack([np.cos(angles), np.sin(angles)], axis=2)  # (point, angle, 2)

# Model. Each point predicts its value from the others: it attends to those with similar angles.
# The relevance of an angle scales its part of the queries and keys. Priors are normal.
theta = pt.dvector("theta")  # log relevance of both angles, log noise
relevance, noise = pt.exp(theta[:2]), pt.exp(theta[2])
points = (relevance[None, :, None] * features).reshape((1, 1, n, 4))
others = ~np.eye(n, dtype=bool)[None, None]  # no point sees itself
values = observed.reshape((1, 1, n, 1))
predicted = scaled_dot_product_attention(points, points, values, mask=others, scale=1.0)

residuals = (observed - predicted.flatten()) / noise
log_likelihood = -0.5 * (residuals**2).sum() - n * theta[2]
log_prior = -0.5 * (theta**2).sum()
logp = log_likelihood + log_prior
logp_and_gradient = pytensor.function([theta], [logp, pytensor.grad(logp, theta)], mode="ONEDNN")


def hmc_step(position, step_size=0.03, n_steps=15):
    """Take one step of Hamiltonian Monte Carlo."""
    momentum = rng.normal(size=position.shape)
    value, gradient = logp_and_gradient(position)
    before = value - 0.5 * momentum @ momentum
    new = position
    for _ in range(n_steps):
        momentum = momentum + 0.5 * step_size * gradient
        new = new + step_size * momentum
        value, gradient = logp_and_gradient(new)
        momentum = momentum + 0.5 * step_size * gradient
    after = value - 0.5 * momentum @ momentum
    return new if np.log(rng.uniform()) < after - before else position


position, samples = np.zeros(3), []
for _ in range(600):
    position = hmc_step(position)
    samples.append(position)
relevance_1, relevance_2, sigma = np.exp(np.mean(samples[200:], axis=0))
print(f"relevance of the first angle: {relevance_1:.2f}, of the second: {relevance_2:.2f}")
print(f"noise: {sigma:.2f}")

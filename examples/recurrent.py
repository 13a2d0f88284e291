"""Train a GRU network with code written for Theano; only the imports differ."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt

from dnnops.nnet import RNNBlock

steps, batch_size, input_dim, hidden_dim, depth = 5, 2, 6, 4, 2
rng = np.random.default_rng(1)

rnnb = RNNBlock("float32", hidden_dim, depth, "gru")
psize = rnnb.get_param_size([batch_size, input_dim])
params = pytensor.shared(np.zeros(psize, dtype="float32"), "params")
for layer in range(depth):
    for p in rnnb.split_params(params, layer, [batch_size, input_dim]):
        p[:] = rng.normal(scale=0.5, size=p.shape)

X, h0, target = pt.ftensor3("X"), pt.ftensor3("h0"), pt.ftensor3("target")
y, hy = rnnb.apply(params, X, h0)
cost = pt.mean((y - target) ** 2)
train = pytensor.function(
    [X, h0, target], cost, updates={params: params - 0.5 * pytensor.grad(cost, params)}
)

x = rng.normal(size=(steps, batch_size, input_dim)).astype("float32")
start = np.zeros((depth, batch_size, hidden_dim), "float32")
wanted = rng.uniform(-0.5, 0.5, (steps, batch_size, hidden_dim)).astype("float32")
for call in range(201):
    value = train(x, start, wanted)
    if call % 100 == 0:
        print(f"cost after {call} steps: {value:.3f}")

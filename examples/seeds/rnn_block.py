"""The RNN of Theano's page on cuDNN, trained for a few steps.

With a GPU, the parameters are in its memory, as there; without one, oneDNN computes the same.
"""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt

from dnnops.dnn import dnn_available
from dnnops.gpuarray import shared as gpuarray_shared_constructor
from dnnops.nnet import RNNBlock

dtype = "float32"
input_dim = 32
hidden_dim = 16
batch_size = 2
depth = 3
timesteps = 5
on_gpu = dnn_available()

X = pt.tensor3("X", dtype=dtype)
Y = pt.tensor3("Y", dtype=dtype)
h0 = pt.tensor3("h0", dtype=dtype)

rnnb = RNNBlock(dtype, hidden_dim, depth, "gru")
psize = rnnb.get_param_size([batch_size, input_dim])

rng = np.random.default_rng(0)
values = rng.uniform(-0.25, 0.25, psize).astype(dtype)
params_cudnn = gpuarray_shared_constructor(values) if on_gpu else pytensor.shared(values)

# Views of the parameters of the first layer: matrices and vectors of the gates.
layer_params = rnnb.split_params(params_cudnn, 0, [batch_size, input_dim])
print("parameters of a layer:", [p.shape for p in layer_params])

y, hy = rnnb.apply(params_cudnn, X, h0)
cost = ((Y - y) ** 2).mean()
gradient = pytensor.grad(cost, params_cudnn)
step = pytensor.function(
    [X, Y, h0],
    [cost, hy],
    updates=[(params_cudnn, params_cudnn - 0.5 * gradient)],
    mode="CUDNN" if on_gpu else "ONEDNN",
)

x = rng.standard_normal((timesteps, batch_size, input_dim)).astype(dtype)
target = np.tanh(rng.standard_normal((timesteps, batch_size, hidden_dim))).astype(dtype)
start = np.zeros((depth, batch_size, hidden_dim), dtype)
costs = [float(step(x, target, start)[0]) for _ in range(40)]
print(f"cost {costs[0]:.3f} -> {costs[-1]:.3f}")
assert costs[-1] < 0.8 * costs[0]

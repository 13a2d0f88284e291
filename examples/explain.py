"""Explain what a training step of a small network runs, node by node."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt

import dnnops
from dnnops.nnet import conv2d, pool_2d, relu

rng = np.random.default_rng(0)
images = pt.tensor("images", dtype="float32", shape=(None, 3, 32, 32))
filters = pytensor.shared(
    rng.normal(size=(16, 3, 5, 5)).astype("float32"), name="filters", shape=(16, 3, 5, 5)
)

features = pool_2d(relu(conv2d(images, filters)), ws=(2, 2), ignore_border=True)
loss = (features**2).mean()
step = np.float32(0.1) * pytensor.grad(loss, filters)
train = pytensor.function(
    [images], loss, updates=[(filters, filters - step)], mode="DNN", name="train"
)

explanation = dnnops.explain(train, rng.normal(size=(8, 3, 32, 32)).astype("float32"))
print(explanation)

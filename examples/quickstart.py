"""Tell horizontal stripes from vertical ones with a small convolutional network."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.tensor.special import log_softmax

from dnnops.nnet import conv2d, pool_2d, relu

# Data: noisy 12x12 images with stripes one way (class 0) or the other (class 1).
rng = np.random.default_rng(0)
classes = rng.integers(2, size=64)
stripes = np.tile([1.0, -1.0], (12, 6))
images = np.array([stripes.T if c == 0 else stripes for c in classes])[:, None]
images = (images + rng.normal(size=images.shape)).astype("float32")

# Parameters.
filters = pytensor.shared(rng.normal(size=(8, 1, 3, 3)).astype("float32") / 3, name="filters")
weights = pytensor.shared(np.zeros((8, 2), dtype="float32"), name="weights")

# Graph: convolution, ReLU, pooling over the whole image, dense layer, log-softmax.
x = pt.tensor("x", dtype="float32", shape=(None, 1, 12, 12))
targets = pt.tensor("targets", dtype="float32", shape=(None, 2))
features = relu(conv2d(x, filters))
means = pool_2d(features, ws=(10, 10), ignore_border=True, mode="average_inc_pad").flatten(2)
loss = -(targets * log_softmax(means @ weights, axis=1)).sum(axis=1).mean()

# Training: every library call in the gradient is found and replaced as in the forward graph.
updates = [(p, p - np.float32(0.5) * pytensor.grad(loss, p)) for p in (filters, weights)]
train = pytensor.function([x, targets], loss, updates=updates, mode="DNN")

one_hot = np.eye(2, dtype="float32")[classes]
losses = [float(train(images, one_hot)) for _ in range(100)]
print(f"loss {losses[0]:.3f} at first, {losses[-1]:.3f} after {len(losses)} steps")

"""Train a small convolutional network that is made of layers."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt

from dnnops import layers, optim

# Data: noise. Half of the images have a brighter upper half, which
# the network learns to find.
rng = np.random.default_rng(0)
images = rng.standard_normal((512, 1, 12, 12)).astype("float32")
labels = rng.integers(0, 2, 512)
images[labels == 1, :, :6] += 0.5

# Network
layers.seed(0)
net = layers.Sequential(
    layers.SpatialConvolution(1, 8, 3, 3, dtype="float32"),
    layers.SpatialBatchNormalization(8, dtype="float32"),
    layers.ReLU(),
    layers.SpatialMaxPooling(2, 2),
    layers.View(-1),
    layers.Linear(8 * 5 * 5, 2, dtype="float32"),
)
x, y = pt.tensor4("x", dtype="float32"), pt.lvector("y")
loss = layers.CrossEntropyCriterion()(net(x), y)
updates = optim.adam(loss, net, optim.cosine(0.01, steps=100)) | net.updates()
train = pytensor.function([x, y], loss, updates=updates, mode="DNN")
predict = pytensor.function([x], net.eval()(x).argmax(axis=1), mode="DNN")
# Results

for step in range(100):
    chosen = np.arange(64 * step, 64 * (step + 1)) % 512
    found = train(images[chosen], labels[chosen])
    if step % 20 == 0:
        print(f"step {step:3d}  loss {found:.3f}")
print(f"accuracy {(predict(images) == labels).mean():.0%}")

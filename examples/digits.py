"""Train a convolutional network on scikit-learn's handwritten digits."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
from sklearn.datasets import load_digits

from dnnops.nnet import conv2d, cross_entropy, pool_2d, relu

# Data: 1797 images of 8x8 pixels. A quarter of them is for testing.
rng = np.random.default_rng(0)
digits = load_digits()
order = rng.permutation(len(digits.images))
images = (digits.images[order, None] / 16).astype("float32")
labels = digits.target[order]
train_images, test_images = images[450:], images[:450]
train_labels, test_labels = labels[450:], labels[:450]

# Parameters, scaled by the number of inputs of a unit.
parameters = []


def parameter(*shape, fan_in):
    value = rng.normal(scale=np.sqrt(2 / fan_in), size=shape).astype("float32")
    parameters.append(pytensor.shared(value))
    return parameters[-1]


filters1 = parameter(16, 1, 3, 3, fan_in=9)
filters2 = parameter(32, 16, 3, 3, fan_in=16 * 9)
weights = parameter(32 * 2 * 2, 10, fan_in=32 * 2 * 2)

# Graph: two blocks of convolution, ReLU and pooling, then a dense layer.
x = pt.tensor("x", dtype="float32", shape=(None, 1, 8, 8))
y = pt.lvector("y")
h = pool_2d(relu(conv2d(x, filters1, border_mode="half")), ws=(2, 2), ignore_border=True)
h = pool_2d(relu(conv2d(h, filters2, border_mode="half")), ws=(2, 2), ignore_border=True)
scores = h.flatten(2) @ weights
loss = cross_entropy(scores, y).mean()

# Training: stochastic gradient descent with momentum.
updates = []
for p, gradient in zip(parameters, pytensor.grad(loss, parameters), strict=True):
    velocity = pytensor.shared(np.zeros_like(p.get_value()))
    new_velocity = np.float32(0.9) * velocity - np.float32(0.05) * gradient
    updates += [(velocity, new_velocity), (p, p + new_velocity)]
train = pytensor.function([x, y], loss, updates=updates, mode="DNN")
predict = pytensor.function([x], scores.argmax(axis=1), mode="DNN")

for epoch in range(1, 11):
    order = rng.permutation(len(train_images))
    batches = np.array_split(order, len(order) // 32)
    losses = [train(train_images[batch], train_labels[batch]) for batch in batches]
    if epoch in (1, 2, 5, 10):
        accuracy = (predict(test_images) == test_labels).mean()
        print(f"epoch {epoch}: loss {np.mean(losses):.3f}, test accuracy {accuracy:.3f}")

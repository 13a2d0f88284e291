"""Train a ResNet-50 on scikit-learn's handwritten digits, enlarged to 32x32 pixels."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import training
from sklearn.datasets import load_digits

from dnnops.nnet import (
    batch_normalization_test,
    batch_normalization_train,
    conv2d,
    cross_entropy,
    pool_2d,
    relu,
)

options = training.options(__doc__, steps=250, batch=32, output="resnet50.png")
options.add_argument(
    "--width",
    type=training.positive,
    default=8,
    help="first channels, 64 in the paper",
)
args = training.parse(options)

# Data: 1797 images of 8x8 pixels, each of which becomes 4x4 pixels. A quarter is for testing.
rng = np.random.default_rng(args.seed)
digits = load_digits()
order = rng.permutation(len(digits.images))
images = (digits.images[order, None] / 16).astype("float32").repeat(4, axis=2).repeat(4, axis=3)
labels = digits.target[order]
train_images, test_images = images[450:], images[:450]
train_labels, test_labels = labels[450:], labels[:450]

# Network: the layers of the paper. Batch normalization uses the statistics of the batch in
# training, and running averages in evaluation.
weights = training.Parameters(args.seed)
averages = training.Parameters(args.seed)
average_updates = []


def normalization(name, x, scale):
    """Return the parameters and the running averages of a batch normalization."""
    channels = x.type.shape[1]
    gamma = weights.constant(f"{name}_gamma", channels, value=scale)
    beta = weights.constant(f"{name}_beta", channels)
    mean = averages.constant(f"{name}_mean", channels)
    return gamma, beta, mean, averages.constant(f"{name}_var", channels, value=1)


def normalize_batch(name, x, scale):
    """Normalize for training."""
    gamma, beta, mean, var = normalization(name, x, scale)
    x, _, _, new_mean, new_var = batch_normalization_train(
        x, gamma, beta, axes="spatial", running_mean=mean, running_var=var
    )
    average_updates.extend([(mean, new_mean), (var, new_var)])
    return x


def normalize_with_averages(name, x, scale):
    """Normalize for evaluation."""
    return batch_normalization_test(x, *normalization(name, x, scale), axes="spatial")


def resnet50(x, normalize):
    """Return the scores of the classes."""

    def convolution(name, x, channels, size, stride=1, scale=1.0):
        inputs = x.type.shape[1]
        deviation = np.sqrt(2 / (inputs * size**2))
        filters = weights.normal(name, channels, inputs, size, size, scale=deviation)
        x = conv2d(x, filters, border_mode=size // 2, subsample=(stride, stride))
        return normalize(name, x, scale)

    def bottleneck(name, x, channels, stride):
        h = relu(convolution(f"{name}_1", x, channels, 1))
        h = relu(convolution(f"{name}_2", h, channels, 3, stride))
        # With a scale of zero, the block starts as the identity, which helps deep networks learn.
        h = convolution(f"{name}_3", h, 4 * channels, 1, scale=0.0)
        if x.type.shape[1] != 4 * channels or stride > 1:
            x = convolution(f"{name}_shortcut", x, 4 * channels, 1, stride)
        return relu(x + h)

    x = relu(convolution("stem", x, args.width, 7, 2))
    x = pool_2d(x, ws=(3, 3), stride=(2, 2), pad=(1, 1), ignore_border=True)
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            x = bottleneck(f"{stage}_{block}", x, args.width * 2**stage, stride)
    inputs = 32 * args.width
    dense = weights.normal("dense", inputs, 10, scale=inputs**-0.5)
    return x.mean(axis=(2, 3)) @ dense + weights.constant("bias", 10)


x = pt.tensor("x", dtype="float32", shape=(None, 1, 32, 32))
y = pt.lvector("y")
loss = cross_entropy(resnet50(x, normalize_batch), y).mean()
updates = training.momentum(loss, weights.values(), rate=0.02, steps=args.steps)
train = pytensor.function([x, y], loss, updates=updates + average_updates, mode=args.mode)
classes = resnet50(x, normalize_with_averages).argmax(axis=1)
predict = pytensor.function([x], classes, mode=args.mode)


def step():
    """Train with random images."""
    batch = rng.integers(len(train_images), size=args.batch)
    return train(train_images[batch], train_labels[batch])


def accuracy():
    """Return the fraction of the test images that are classified correctly."""
    return (predict(test_images) == test_labels).mean()


curve = training.run(args.steps, step, "test accuracy", accuracy)
training.draw(args.output, curve)
print(f"test accuracy {accuracy():.3f}")

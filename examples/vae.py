"""Train a variational autoencoder on scikit-learn's handwritten digits."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import training
from sklearn.datasets import load_digits

from dnnops.nnet import conv2d, conv2d_transpose, relu, sigmoid, sigmoid_binary_crossentropy

options = training.options(__doc__, steps=1000, batch=64, output="vae.png")
options.add_argument("--width", type=training.positive, default=16, help="channels of a layer")
options.add_argument("--latent", type=training.positive, default=8, help="size of the code")
args = training.parse(options)

# Data: 1797 images of 8x8 pixels between 0 and 1. A quarter of them is for testing.
rng = np.random.default_rng(args.seed)
images = (load_digits().images[:, None] / 16).astype("float32")
images = images[rng.permutation(len(images))]
train_images, test_images = images[450:], images[:450]

# Network. The encoder returns mean and log variance of the code of each image; the decoder
# returns logits of pixels.
weights = training.Parameters(args.seed)
width, latent = args.width, args.latent
features = 2 * width * 2 * 2


def bias(name, channels):
    """Return a bias for images."""
    return weights.constant(f"{name}_bias", channels)[None, :, None, None]


def dense(name, x, inputs, outputs):
    """Multiply by a matrix and add a bias."""
    matrix = weights.normal(name, inputs, outputs, scale=inputs**-0.5)
    return x @ matrix + weights.constant(f"{name}_bias", outputs)


def down(name, x, inputs, outputs):
    """Halve the images with a convolution."""
    w = weights.normal(name, outputs, inputs, 4, 4, scale=np.sqrt(2 / (16 * inputs)))
    return conv2d(x, w, border_mode=1, subsample=(2, 2)) + bias(name, outputs)


def up(name, x, inputs, outputs, size):
    """Double the images with a transposed convolution, to a given size."""
    w = weights.normal(name, inputs, outputs, 4, 4, scale=np.sqrt(2 / (4 * inputs)))
    shape = (None, outputs, size, size)
    return conv2d_transpose(x, w, shape, border_mode=1, input_dilation=(2, 2)) + bias(name, outputs)


def encode(x):
    """Return mean and log variance of the code."""
    h = relu(down("down1", x, 1, width))
    h = relu(down("down2", h, width, 2 * width)).flatten(2)
    return dense("mean", h, features, latent), dense("log_var", h, features, latent)


def decode(code):
    """Return logits of the pixels."""
    h = relu(dense("code", code, latent, features)).reshape((-1, 2 * width, 2, 2))
    h = relu(up("up1", h, 2 * width, width, 4))
    return up("up2", h, width, 1, 8)


# Loss: the negative evidence lower bound of an image, in nats. Noise times the standard deviation
# plus the mean is a sample of the code, through which gradients flow.
x = pt.tensor("x", dtype="float32", shape=(None, 1, 8, 8))
mean, log_var = encode(x)
random = pt.random.shared_rng(seed=args.seed)
new_random, noise = random.normal(size=mean.shape, dtype="float32")
logits = decode(mean + pt.exp(np.float32(0.5) * log_var) * noise)
reconstruction = sigmoid_binary_crossentropy(logits, x).sum(axis=(1, 2, 3))
divergence = np.float32(0.5) * (pt.exp(log_var) + mean**2 - 1 - log_var).sum(axis=1)
loss = (reconstruction + divergence).mean()
updates = training.adam(loss, weights.values(), rate=0.003, steps=args.steps)
train = pytensor.function([x], loss, updates=[*updates, (random, new_random)], mode=args.mode)
test = pytensor.function([x], loss, updates=[(random, new_random)], mode=args.mode)
reconstruct = pytensor.function([x], sigmoid(decode(mean)), mode=args.mode)
code = pt.fmatrix("code")
generate = pytensor.function([code], sigmoid(decode(code)), mode=args.mode)


def step():
    """Train with random images."""
    return train(train_images[rng.integers(len(train_images), size=args.batch)])


def show(figure):
    """Draw test images above their reconstructions, and images of random codes below."""
    codes = rng.standard_normal((16, latent)).astype("float32")
    shown = test_images[:8], reconstruct(test_images[:8]), generate(codes)
    titles = {0: "test images", 1: "reconstructions", 2: "samples"}
    for i, axes in enumerate(figure.subplots(4, 8).flat):
        axes.imshow(np.concatenate(shown)[i, 0], cmap="gray_r", vmin=0, vmax=1)
        axes.set_axis_off()
        if i % 8 == 0 and i // 8 in titles:
            axes.set_title(titles[i // 8], loc="left", fontsize=9)


curve = training.run(args.steps, step, "test loss", lambda: test(test_images))
training.draw(args.output, curve, show)
print(f"negative evidence lower bound of the test images: {test(test_images):.2f} nats")

"""Train a decoder-only transformer to sort numbers."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import training

from dnnops.nnet import cross_entropy, relu, scaled_dot_product_attention

options = training.options(__doc__, steps=500, batch=64, output="transformer.png")
options.add_argument("--width", type=training.positive, default=64, help="size of a token's vector")
options.add_argument("--heads", type=training.positive, default=4, help="heads of the attention")
options.add_argument("--layers", type=training.positive, default=2, help="number of layers")
options.add_argument("--length", type=training.positive, default=8, help="how many numbers to sort")
args = training.parse(options)
if args.width % args.heads:
    options.error(f"argument --width: must be a multiple of {args.heads}, the number of heads")

# Data: numbers from 0 to 19, a separator, and the same numbers in order.
rng = np.random.default_rng(args.seed)
separator, length = 20, args.length


def draw(n):
    """Draw n sequences."""
    numbers = rng.integers(20, size=(n, length))
    middle = np.full((n, 1), separator)
    return np.concatenate([numbers, middle, np.sort(numbers, axis=1)], axis=1)


# Network. The inputs of a block are normalized; the sum that runs past all blocks is not.
weights = training.Parameters(args.seed)


def layer_norm(name, x):
    """Normalize the vector of each token."""
    scale = weights.constant(f"{name}_scale", args.width, value=1)
    bias = weights.constant(f"{name}_bias", args.width)
    x = x - x.mean(axis=-1, keepdims=True)
    var = (x**2).mean(axis=-1, keepdims=True)
    return x / pt.sqrt(var + np.float32(1e-5)) * scale + bias


def dense(name, x, inputs, outputs):
    """Multiply the vector of each token by a matrix, and add a bias."""
    matrix = weights.normal(name, inputs, outputs, scale=inputs**-0.5)
    return x @ matrix + weights.constant(f"{name}_bias", outputs)


def attention(name, x):
    """Let each token look at those before it."""
    batch, time, width = x.shape[0], x.shape[1], args.width
    qkv = dense(f"{name}_qkv", x, width, 3 * width)
    qkv = qkv.reshape((batch, time, 3, args.heads, width // args.heads))
    q, k, v = (qkv[:, :, i].transpose(0, 2, 1, 3) for i in range(3))
    x = scaled_dot_product_attention(q, k, v, is_causal=True)
    x = x.transpose(0, 2, 1, 3).reshape((batch, time, width))
    return dense(f"{name}_out", x, width, width)


def transformer(tokens):
    """Return scores of the token that follows each token, of shape (batch, time, 21)."""
    embedding = weights.normal("embedding", 21, args.width, scale=0.5)
    positions = weights.normal("positions", 2 * length, args.width, scale=0.5)
    x = embedding[tokens] + positions[: tokens.shape[1]]
    for i in range(args.layers):
        x = x + attention(f"attention{i}", layer_norm(f"norm{i}_1", x))
        h = relu(dense(f"hidden{i}", layer_norm(f"norm{i}_2", x), args.width, 4 * args.width))
        x = x + dense(f"mlp{i}", h, 4 * args.width, args.width)
    return dense("scores", layer_norm("norm", x), args.width, 21)


# The loss counts only the sorted numbers, which follow the separator.
sequences = pt.lmatrix("sequences")
scores = transformer(sequences[:, :-1])[:, length:]
targets = sequences[:, length + 1 :]
loss = cross_entropy(scores.reshape((-1, 21)), targets.flatten()).mean()
updates = training.adam(loss, weights.values(), rate=0.003, steps=args.steps)
train = pytensor.function([sequences], loss, updates=updates, mode=args.mode)
tokens = pt.lmatrix("tokens")
following = pytensor.function([tokens], transformer(tokens)[:, -1].argmax(axis=1), mode=args.mode)


def sort(numbers):
    """Let the network write the sorted numbers, one after the other."""
    written = np.concatenate([numbers, np.full((len(numbers), 1), separator)], axis=1)
    for _ in range(length):
        written = np.concatenate([written, following(written)[:, None]], axis=1)
    return written[:, length + 1 :]


def accuracy():
    """Return the fraction of new sequences that are sorted without a mistake."""
    numbers = test_sequences[:, :length]
    return (sort(numbers) == np.sort(numbers, axis=1)).all(axis=1).mean()


test_sequences = draw(200)
curve = training.run(args.steps, lambda: train(draw(args.batch)), "accuracy", accuracy)
training.draw(args.output, curve)
print(f"accuracy {accuracy():.3f}")
numbers = test_sequences[:1, :length]
print(*numbers[0], "->", *sort(numbers)[0])

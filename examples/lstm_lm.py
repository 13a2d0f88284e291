"""Train a two-layer LSTM to predict the next character of Python's help texts."""

from __future__ import annotations

from pydoc_data.topics import topics

import numpy as np
import pytensor
import pytensor.tensor as pt
import training

from dnnops.nnet import RNNBlock, cross_entropy, softmax

options = training.options(__doc__, steps=1000, batch=32, output="lstm_lm.png")
options.add_argument("--width", type=training.positive, default=128, help="units of a layer")
options.add_argument("--length", type=training.positive, default=32, help="characters in a step")
args = training.parse(options)

# Data: the texts behind Python's help("topics"). The end is for testing.
text = "\n".join(topics[name] for name in sorted(topics))
characters = sorted(set(text))
number = {character: i for i, character in enumerate(characters)}
tokens = np.array([number[character] for character in text])
train_tokens, test_tokens = tokens[:-20_000], tokens[-20_000:]

if len(train_tokens) // args.batch <= args.length:
    options.error("the text is too short for --batch and --length")

# Parameters. Those of the LSTM form one vector.
layers = 2
lstm = RNNBlock("float32", args.width, num_layers=layers, rnn_mode="lstm")
size = lstm.get_param_size(args.width)
weights = training.Parameters(args.seed)
embedding = weights.normal("embedding", len(characters), args.width, scale=0.5)
w = weights.normal("lstm", size, scale=args.width**-0.5)
dense = weights.normal("dense", args.width, len(characters), scale=args.width**-0.5)
bias = weights.constant("bias", len(characters))


def network(tokens, hidden, cell):
    """Return a row of scores for each character, and the states after the last one."""
    outputs, hidden, cell = lstm.apply(w, embedding[tokens], hidden, cell)
    return outputs.reshape((-1, args.width)) @ dense + bias, hidden, cell


# Training continues each text where the step before ended: the states are shared variables.
x, y = pt.lmatrix("x"), pt.lmatrix("y")
start = np.zeros((layers, args.batch, args.width), dtype="float32")
hidden, cell = pytensor.shared(start, name="hidden"), pytensor.shared(start, name="cell")
scores, new_hidden, new_cell = network(x, hidden, cell)
loss = cross_entropy(scores, y.flatten()).mean()
updates = training.adam(loss, weights.values(), rate=0.004, steps=args.steps)
updates += [(hidden, new_hidden), (cell, new_cell)]
train = pytensor.function([x, y], loss, updates=updates, mode=args.mode)

# Evaluation, for any number of texts.
states = pt.ftensor3("hidden"), pt.ftensor3("cell")
scores, *new_states = network(x, *states)
test_loss = pytensor.function(
    [x, y, *states], cross_entropy(scores, y.flatten()).mean(), mode=args.mode
)
predict = pytensor.function([x, *states], [softmax(scores, axis=1), *new_states], mode=args.mode)


def batches():
    """Yield a window of characters and the characters that follow them, forever."""
    columns = np.array_split(train_tokens, args.batch)
    length = min(len(column) for column in columns)
    texts = np.stack([column[:length] for column in columns], axis=1)  # (time, batch)
    while True:
        for i in range(0, length - args.length, args.length):
            yield texts[i : i + args.length], texts[i + 1 : i + args.length + 1]


def perplexity():
    """Return the perplexity of the test text, the exponential of the mean loss."""
    texts = test_tokens.reshape(20, -1).T
    zeros = np.zeros((layers, 20, args.width), dtype="float32")
    return np.exp(test_loss(texts[:-1], texts[1:], zeros, zeros))


def sample(beginning, length):
    """Continue a text."""
    rng = np.random.default_rng(args.seed)
    hidden = cell = np.zeros((layers, 1, args.width), dtype="float32")
    written, last = beginning, beginning
    for _ in range(length):
        window = np.array([[number[character]] for character in last])
        probabilities, hidden, cell = predict(window, hidden, cell)
        p = probabilities[-1].astype("float64") ** 1.5  # prefer likely characters
        last = characters[rng.choice(len(characters), p=p / p.sum())]
        written += last
    return written


data = batches()
curve = training.run(args.steps, lambda: train(*next(data)), "test perplexity", perplexity)
training.draw(args.output, curve)
print(f"test perplexity {perplexity():.2f}")
print(sample("The ", 300))

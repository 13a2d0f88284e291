"""Train an LSTM to remember the sign of the first element of a sequence."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt

from dnnops.nnet import RNNBlock, sigmoid, sigmoid_binary_crossentropy

steps, batch_size, hidden = 20, 64, 16
rng = np.random.default_rng(1)

# Parameters: one vector for the LSTM, one for the dense layer on top of it.
lstm = RNNBlock("float32", hidden, num_layers=1, rnn_mode="lstm")
size = lstm.get_param_size([batch_size, 1])
w = pytensor.shared(rng.uniform(-0.25, 0.25, size).astype("float32"), name="w")
# Positive biases open the forget gates, so that the network starts by remembering.
# 3: the bias of the forget gate.
lstm.split_params(w, 0, [batch_size, 1])[3][:] = 2
v = pytensor.shared(rng.uniform(-0.25, 0.25, hidden).astype("float32"), name="v")

# Graph: the sequences have different lengths. The LSTM returns its outputs at all steps, and its
# hidden and cell states after the last step of each sequence.
x = pt.tensor("x", dtype="float32", shape=(None, None, 1))
lengths = pt.lvector("lengths")
targets = pt.fvector("targets")
start = pt.zeros((1, x.shape[1], hidden), dtype="float32")
outputs, hidden_state, cell_state = lstm.apply(w, x, start, start, lengths=lengths)
scores = hidden_state[0] @ v
loss = sigmoid_binary_crossentropy(scores, targets).mean()

# Training: Adam.
updates = []
count = pytensor.shared(np.float32(0), name="count")
rate = np.float32(0.02) * pt.sqrt(1 - 0.999 ** (count + 1)) / (1 - 0.9 ** (count + 1))
for p, gradient in zip((w, v), pytensor.grad(loss, [w, v]), strict=True):
    mean, square = (pytensor.shared(np.zeros_like(p.get_value())) for _ in range(2))
    new_mean = np.float32(0.9) * mean + np.float32(0.1) * gradient
    new_square = np.float32(0.999) * square + np.float32(0.001) * gradient**2
    step = rate.astype("float32") * new_mean / (pt.sqrt(new_square) + np.float32(1e-6))
    updates += [(mean, new_mean), (square, new_square), (p, p - step)]
updates.append((count, count + np.float32(1)))
train = pytensor.function([x, lengths, targets], loss, updates=updates, mode="DNN")
predict = pytensor.function([x, lengths], sigmoid(scores), mode="DNN")


def sample():
    """Draw a batch: noise, the number of steps that count, and the sign of the first element."""
    x = rng.normal(size=(steps, batch_size, 1)).astype("float32")
    lengths = rng.integers(5, steps + 1, size=batch_size)
    return x, lengths, (x[0, :, 0] > 0).astype("float32")


for call in range(1, 501):
    value = train(*sample())
    if call in (1, 100, 500):
        x_test, lengths_test, targets_test = sample()
        accuracy = ((predict(x_test, lengths_test) > 0.5) == targets_test).mean()
        print(f"step {call}: loss {value:.3f}, accuracy {accuracy:.2f}")

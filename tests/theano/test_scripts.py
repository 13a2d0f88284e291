"""Programs in the style of Theano's users, run unchanged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest

LOGISTIC_REGRESSION = """
import numpy
import theano
import theano.tensor as T

rng = numpy.random
feats = train_x.shape[1]
D = (train_x, (train_y > 4).astype('int64'))
x = T.dmatrix("x")
y = T.dvector("y")
w = theano.shared(rng.randn(feats) * 0.1, name="w")
b = theano.shared(0., name="b")
p_1 = 1 / (1 + T.exp(-T.dot(x, w) - b))
prediction = p_1 > 0.5
xent = -y * T.log(p_1) - (1 - y) * T.log(1 - p_1)
cost = xent.mean() + 0.01 * (w ** 2).sum()
gw, gb = T.grad(cost, [w, b])
train = theano.function(
    inputs=[x, y], outputs=[prediction, xent],
    updates=((w, w - 0.5 * gw), (b, b - 0.5 * gb)), allow_input_downcast=True)
predict = theano.function(inputs=[x], outputs=prediction)
for i in range(60):
    pred, err = train(D[0], D[1])
accuracy = (predict(D[0]) == D[1]).mean()
"""

# The classes of the deep learning tutorials.
MLP = """
from __future__ import print_function
from collections import OrderedDict
import numpy
import theano
import theano.tensor as T

theano.config.floatX = 'float32'


class LogisticRegression(object):
    def __init__(self, input, n_in, n_out):
        self.W = theano.shared(
            value=numpy.zeros((n_in, n_out), dtype=theano.config.floatX), name='W', borrow=True)
        self.b = theano.shared(
            value=numpy.zeros((n_out,), dtype=theano.config.floatX), name='b', borrow=True)
        self.p_y_given_x = T.nnet.softmax(T.dot(input, self.W) + self.b)
        self.y_pred = T.argmax(self.p_y_given_x, axis=1)
        self.params = [self.W, self.b]

    def negative_log_likelihood(self, y):
        return -T.mean(T.log(self.p_y_given_x)[T.arange(y.shape[0]), y])

    def errors(self, y):
        if y.ndim != self.y_pred.ndim:
            raise TypeError('y should have the same shape as self.y_pred')
        if y.dtype.startswith('int'):
            return T.mean(T.neq(self.y_pred, y))
        else:
            raise NotImplementedError()


class HiddenLayer(object):
    def __init__(self, rng, input, n_in, n_out, activation=T.tanh):
        W_values = numpy.asarray(
            rng.uniform(low=-numpy.sqrt(6. / (n_in + n_out)),
                        high=numpy.sqrt(6. / (n_in + n_out)), size=(n_in, n_out)),
            dtype=theano.config.floatX)
        if activation == theano.tensor.nnet.sigmoid:
            W_values *= 4
        self.W = theano.shared(value=W_values, name='W', borrow=True)
        self.b = theano.shared(value=numpy.zeros((n_out,), dtype=theano.config.floatX), name='b')
        lin_output = T.dot(input, self.W) + self.b
        self.output = lin_output if activation is None else activation(lin_output)
        self.params = [self.W, self.b]


def shared_dataset(data_x, data_y, borrow=True):
    shared_x = theano.shared(numpy.asarray(data_x, dtype=theano.config.floatX), borrow=borrow)
    shared_y = theano.shared(numpy.asarray(data_y, dtype=theano.config.floatX), borrow=borrow)
    return shared_x, T.cast(shared_y, 'int32')


train_set_x, train_set_y = shared_dataset(train_x, train_y)
batch_size = 100
index = T.lscalar()
x = T.matrix('x')
y = T.ivector('y')
rng = numpy.random.RandomState(1234)
hidden = HiddenLayer(rng, x, 64, 40)
output = LogisticRegression(hidden.output, 40, 10)
params = hidden.params + output.params
L1 = abs(hidden.W).sum() + abs(output.W).sum()
L2_sqr = (hidden.W ** 2).sum() + (output.W ** 2).sum()
cost = output.negative_log_likelihood(y) + 0.00 * L1 + 0.0001 * L2_sqr
gparams = [T.grad(cost, param) for param in params]
updates = OrderedDict(
    (param, param - numpy.float32(0.5) * gparam) for param, gparam in zip(params, gparams))
train_model = theano.function(
    inputs=[index], outputs=cost, updates=updates,
    givens={x: train_set_x[index * batch_size: (index + 1) * batch_size],
            y: train_set_y[index * batch_size: (index + 1) * batch_size]})
test_model = theano.function(
    [], output.errors(y), givens={x: train_set_x, y: train_set_y}, on_unused_input='ignore')
for epoch in range(20):
    costs = [train_model(i) for i in range(train_set_x.get_value(borrow=True).shape[0] // 100)]
accuracy = 1 - test_model()
"""

LENET = """
import numpy
import theano
import theano.tensor as T
from theano.tensor.nnet import conv
from theano.tensor.signal import downsample
from theano.tensor.signal import pool

theano.config.floatX = 'float32'


class LeNetConvPoolLayer(object):
    def __init__(self, rng, input, filter_shape, image_shape, poolsize=(2, 2)):
        assert image_shape[1] == filter_shape[1]
        fan_in = numpy.prod(filter_shape[1:])
        fan_out = filter_shape[0] * numpy.prod(filter_shape[2:]) // numpy.prod(poolsize)
        W_bound = numpy.sqrt(6. / (fan_in + fan_out))
        self.W = theano.shared(
            numpy.asarray(rng.uniform(low=-W_bound, high=W_bound, size=filter_shape),
                          dtype=theano.config.floatX), borrow=True)
        self.b = theano.shared(
            value=numpy.zeros((filter_shape[0],), dtype=theano.config.floatX), borrow=True)
        conv_out = conv.conv2d(
            input=input, filters=self.W, filter_shape=filter_shape, image_shape=image_shape)
        again = T.nnet.conv2d(
            input=input, filters=self.W, filter_shape=filter_shape, input_shape=image_shape)
        pooled_out = downsample.max_pool_2d(input=conv_out, ds=poolsize, ignore_border=True)
        self.difference = abs(
            pooled_out - pool.pool_2d(input=again, ws=poolsize, ignore_border=True)).max()
        self.output = T.tanh(pooled_out + self.b.dimshuffle('x', 0, 'x', 'x'))
        self.params = [self.W, self.b]


batch_size = 100
rng = numpy.random.RandomState(23455)
x = T.matrix('x')
y = T.ivector('y')
layer0_input = x.reshape((batch_size, 1, 8, 8))
layer0 = LeNetConvPoolLayer(rng, layer0_input, (6, 1, 3, 3), (batch_size, 1, 8, 8))
layer1_input = layer0.output.flatten(2)
W = theano.shared(numpy.zeros((6 * 3 * 3, 10), dtype='float32'))
b = theano.shared(numpy.zeros((10,), dtype='float32'))
p_y_given_x = T.nnet.softmax(T.dot(layer1_input, W) + b)
cost = T.nnet.categorical_crossentropy(p_y_given_x, y).mean()
params = [W, b] + layer0.params
grads = T.grad(cost, params)
updates = [(p, p - 0.5 * g) for p, g in zip(params, grads)]
train = theano.function([x, y], [cost, layer0.difference], updates=updates,
                        allow_input_downcast=True)
errors = theano.function([x, y], T.mean(T.neq(T.argmax(p_y_given_x, axis=1), y)),
                         allow_input_downcast=True)
batches = [slice(i, i + 100) for i in range(0, 1000, 100)]
for epoch in range(4):
    for batch in batches:
        c, difference = train(train_x[batch], train_y[batch])
        assert difference == 0
accuracy = 1 - numpy.mean([errors(train_x[batch], train_y[batch]) for batch in batches])
"""

# Learns to say whether the sum of a sequence is above 0.
RNN = """
import numpy as np
import theano
from theano import tensor as T
from theano.compat import OrderedDict
from theano.updates import OrderedUpdates

rng = np.random.RandomState(42)
n, nin = 10, 2
u = T.tensor3('u')
t = T.vector('t')
h0 = theano.shared(np.zeros((1, n)), name='h0')
W = theano.shared(rng.uniform(-.3, .3, (n, n)), name='W')
W_in = theano.shared(rng.uniform(-.3, .3, (nin, n)), name='W_in')
W_out = theano.shared(rng.uniform(-.3, .3, (n, 1)), name='W_out')


def step(u_t, h_tm1, W, W_in, W_out):
    h_t = T.tanh(T.dot(u_t, W_in) + T.dot(h_tm1, W))
    return h_t, T.dot(h_t, W_out)


[h, y], scan_updates = theano.scan(
    step, sequences=u,
    outputs_info=[dict(initial=T.dot(T.ones((u.shape[1], 1)), h0)), None],
    non_sequences=[W, W_in, W_out], truncate_gradient=-1, name='rnn')
p = T.nnet.sigmoid(T.flatten(y[-1]))
cost = T.nnet.binary_crossentropy(T.clip(p, 1e-7, 1 - 1e-7), t).mean()
updates = OrderedUpdates(scan_updates)
params = [W, W_in, W_out, h0]
for param, grad in zip(params, theano.grad(cost, wrt=params)):
    grad = theano.gradient.grad_clip(grad, -1, 1)
    updates[param] = param - 0.5 * grad
train = theano.function([u, t], cost, updates=updates)
predict = theano.function([u], p > 0.5)
U = rng.randn(7, 200, nin)
target = (U.sum((0, 2)) > 0).astype('float64')
for i in range(80):
    train(U, target)
accuracy = (predict(U) == target).mean()
"""

DROPOUT = """
import numpy as np
import theano
from theano import tensor as T
from theano.ifelse import ifelse
from theano.printing import Print
from theano.sandbox.rng_mrg import MRG_RandomStreams as RandomStreams

srng = RandomStreams(seed=np.random.RandomState(1).randint(999999))


def floatX(X):
    return np.asarray(X, dtype=theano.config.floatX)


def init_weights(shape):
    return theano.shared(floatX(np.random.RandomState(0).randn(*shape) * 0.1))


def dropout(X, p=0.):
    if p > 0:
        retain_prob = 1 - p
        X *= srng.binomial(X.shape, p=retain_prob, dtype=theano.config.floatX)
        X /= retain_prob
    return X


def RMSprop(cost, params, lr=0.003, rho=0.9, epsilon=1e-6):
    grads = T.grad(cost=cost, wrt=params)
    updates = []
    for p, g in zip(params, grads):
        acc = theano.shared(p.get_value() * 0.)
        acc_new = rho * acc + (1 - rho) * g ** 2
        gradient_scaling = T.sqrt(acc_new + epsilon)
        g = g / gradient_scaling
        updates.append((acc, acc_new))
        updates.append((p, p - lr * g))
    return updates


def model(X, w_h, w_o, p_drop):
    h = T.nnet.relu(T.dot(X, w_h))
    return h, T.nnet.softmax(T.dot(dropout(h, p_drop), w_o))


X = T.fmatrix()
Y = T.fmatrix()
w_h, w_o = init_weights((64, 30)), init_weights((30, 10))
hidden, noise_py_x = model(X, w_h, w_o, 0.5)
hidden, py_x = model(X, w_h, w_o, 0.)
cost = T.mean(T.nnet.categorical_crossentropy(noise_py_x, Y))
train = theano.function(inputs=[X, Y], outputs=cost, updates=RMSprop(cost, [w_h, w_o]),
                        allow_input_downcast=True)
noisy = theano.function([X], noise_py_x, allow_input_downcast=True)
predict = theano.function(inputs=[X], outputs=T.argmax(py_x, axis=1), allow_input_downcast=True)
one_hot = np.eye(10)[train_y]
for i in range(6):
    for start in range(0, 1000, 100):
        train(train_x[start:start + 100], one_hot[start:start + 100])
assert abs(noisy(train_x[:9]) - noisy(train_x[:9])).max() > 1e-3
n = T.iscalar()
assert theano.function([n], ifelse(T.lt(n, 3), n * 2, n))(2) == 4
accuracy = (predict(train_x) == train_y).mean()
"""

BATCH_NORMALIZATION = """
import numpy
import theano
import theano.tensor as T
from theano.tensor.nnet.bn import batch_normalization_test, batch_normalization_train

x = T.TensorType('float64', (False,) * 4)('x')
gamma = theano.shared(numpy.ones((1, 3, 1, 1)), broadcastable=(True, False, True, True))
beta = theano.shared(numpy.zeros((1, 3, 1, 1)), broadcastable=(True, False, True, True))
running_mean = theano.shared(numpy.zeros((1, 3, 1, 1)), broadcastable=gamma.broadcastable)
running_var = theano.shared(numpy.ones((1, 3, 1, 1)), broadcastable=gamma.broadcastable)
out, mean, invstd, new_mean, new_var = batch_normalization_train(
    x, gamma, beta, axes='spatial', running_average_factor=1.0,
    running_mean=running_mean, running_var=running_var)
train = theano.function([x], out, updates=[(running_mean, new_mean), (running_var, new_var)])
test = theano.function([x], batch_normalization_test(x, gamma, beta, running_mean, running_var,
                                                     axes='spatial'))
value = numpy.random.RandomState(0).randn(50, 3, 4, 4) * 3 + 1
first = train(value)
assert abs(first.mean((0, 2, 3))).max() < 1e-7
accuracy = 1 - abs(test(value) - first).max()
"""


pytestmark = pytest.mark.needs("sklearn")


@pytest.fixture(scope="module")
def data() -> dict[str, Any]:
    from sklearn.datasets import load_digits

    digits = load_digits()
    return {"train_x": digits.data[:1000] / 16, "train_y": digits.target[:1000]}


@pytest.fixture
def run(data: dict[str, Any], theano: Any) -> Callable[[str], dict[str, Any]]:
    def run_script(script: str) -> dict[str, Any]:
        numpy.random.seed(0)
        names = dict(data, __name__="__main__")
        exec(compile(script, "script.py", "exec"), names)
        return names

    return run_script


@pytest.mark.parametrize(
    ("script", "accuracy"),
    [
        pytest.param(LOGISTIC_REGRESSION, 0.85, id="logistic_regression"),
        pytest.param(MLP, 0.9, id="mlp"),
        pytest.param(LENET, 0.8, id="lenet"),
        pytest.param(RNN, 0.9, id="rnn"),
        pytest.param(DROPOUT, 0.8, id="dropout"),
        pytest.param(BATCH_NORMALIZATION, 0.99, id="batch_normalization"),
    ],
)
def test_script(run: Callable[[str], dict[str, Any]], script: str, accuracy: float):
    """The program learns without a warning, although it was not changed."""
    assert run(script)["accuracy"] > accuracy


def test_modes_of_dnnops(theano: Any):
    """A script may name them, and its convolutions run in the library."""
    names: dict[str, Any] = {}
    exec(
        "import theano\nimport theano.tensor as T\n"
        "x, w = T.ftensor4s('xw')\n"
        "f = theano.function([x, w], T.nnet.relu(T.nnet.conv2d(x, w)), mode='ONEDNN')\n",
        names,
    )
    assert "OneDnnConv" in [type(node.op).__name__ for node in names["f"].maker.fgraph.toposort()]

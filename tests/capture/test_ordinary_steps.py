"""Ordinary programs with numbers and indices that change depend on no value when captured.

Each is rewritten for a GPU, and only scheduled; needs no device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytensor
import pytensor.tensor as pt
import pytest

from dnnops import nnet
from dnnops.capture.schedule import schedule
from dnnops.gpuarray import GpuArrayType
from dnnops.gpuarray.op import is_on_device
from dnnops.gpuarray.transfer import host_from_gpu
from tests.gpuarray.graphs import rewritten

#: Programs that changing values do not enter a graph of, and the variables that they take:
#: ``x`` and ``y`` are matrices, ``image`` has four axes, ``labels`` are integers, all on the
#: device; ``a`` and ``b`` are numbers, ``n`` and ``m`` integers, ``rows`` a vector of them.
STEPS: dict[str, Callable[..., Any]] = {
    "clip": lambda x, a, b: pt.clip(x, a, b),
    "temperature": lambda x, a: nnet.softmax(x / a),
    "temperature of a loss": lambda x, labels, a: nnet.cross_entropy(x / a, labels).mean(),
    "label smoothing": lambda x, labels, a: (
        nnet.cross_entropy(x, labels) * (1 - a) - a * nnet.log_softmax(x).mean(axis=1)
    ).mean(),
    "leaky relu": lambda x, a: nnet.relu(x, a),
    "clipped relu": lambda x, a: pt.minimum(nnet.relu(x), a),
    "softplus with a slope": lambda x, a: nnet.softplus(x * a) / a,
    "power": lambda x, a: x**a,
    "weight decay": lambda x, a: a * (x**2).sum(),
    "condition": lambda x, n: pt.where(n > 0, x, 0),
    "scaled product": lambda x, y, a: a * (x @ y),
    "sum with a scaled product": lambda x, y, a, b: b * x + a * (x @ y),
    "product with a vector": lambda x, y, a, b: b * x[0] + a * (x @ y[0]),
    "outer product": lambda x, y, a: x + a * pt.outer(x[0], y[0]),
    "scaled convolution": lambda image, a: a * nnet.conv2d(image, pt.ones((4, 3, 3, 3), "float32")),
    "filled array": lambda x, a: pt.full_like(x, a) @ x.T,
    "one-hot labels": lambda x, labels: pt.eq(labels[:, None], pt.arange(10)) * x[:, :1],
    "index": lambda x, n: x[n] * 2,
    "negative index of a result": lambda x, n: nnet.relu(x * 2)[n - 1],
    "element": lambda x, n, m: x[n, m] * 2,
    "rows": lambda x, rows: x[rows] * 2,
    "rows and a column": lambda x, rows, n: x[rows, n] * 2,
    "rows and some columns": lambda x, rows, n: x[rows, n : n + 3] * 2,
    "some columns of rows": lambda image, rows, n: image[:, :, n : n + 2, rows] * 2,
    "take": lambda x, n: pt.take(x, n, axis=1) * 2,
    "embedding": lambda x, rows: (x[rows] ** 2).sum(),
    "scattered rows": lambda x, y, rows: pt.set_subtensor(x[rows], y),
    "row that is set": lambda x, y, n: pt.set_subtensor(x[n], y[0]),
    "row that is incremented": lambda x, n, a: pt.inc_subtensor(x[n], a),
    "cleared rest": lambda x, n: pt.set_subtensor(x[:, n:], 0),
    "start": lambda x, n, a: pt.inc_subtensor(x[:n], a),
    "roll": lambda x, n: pt.roll(x, n, axis=0),
    "roll of a result": lambda x, n: pt.roll(x * 2, n, axis=1),
    "roll of all elements": lambda x, n: pt.roll(x, n),
    "reversed rows": lambda x, a: x[::-1] * a,
    "triangle": lambda x, n: pt.tril(pt.ones((5, 5), "float32"), n) * x[:5, :5],
    "diagonal": lambda x, n: pt.eye(5, k=n, dtype="float32") * x[:5, :5],
    "pooling": lambda image, a: nnet.pool_2d(image, (2, 2)) * a,
    "padding with a number": lambda x, a: pt.pad(x, 1, constant_values=a),
    "normalization with an epsilon": lambda image, a: nnet.batch_normalization_train(
        image, pt.ones(3, "float32"), pt.zeros(3, "float32"), "spatial", a
    )[0],
    "inference with an epsilon": lambda image, a: nnet.batch_normalization_test(
        image, *(pt.full(3, i, "float32") for i in (1.0, 0.0, 0.0, 1.0)), "spatial", a
    ),
    "layer normalization": lambda x, a: nnet.layer_norm(x, pt.ones(10, "float32") * a, None),
    "attention with lengths": lambda image, labels: nnet.scaled_dot_product_attention(
        image, image, image, key_lengths=labels
    ),
    "sequences with lengths": lambda x, rows: _recurrent(x, lengths=rows),
}

#: Programs with a length that changes: the graph depends on it, and on nothing else.
GROWING: dict[str, Callable[..., Any]] = {
    "slice that grows": lambda x, n: x[:, : n + 1] * 2,
    "last rows": lambda x, n: x[-n:] * 2,
    "rows up to one, backwards": lambda x, n: x[n::-1] * 2,
    "every so many rows": lambda x, n: x[::n] * 2,
    "range": lambda x, n: pt.arange(n) * x.sum(),
}


def _recurrent(x, **options):
    block = nnet.RNNBlock("float32", 4, 1, "gru")
    sequences = x.dimshuffle(0, "x", 1)[:, [0, 0, 0]]
    w = pt.ones(block.get_param_size((3, 10)), "float32")
    return block.apply(w, sequences, pt.zeros((1, 3, 4), "float32"), **options)[0]


def variables():
    def device(dtype, *shape):
        return GpuArrayType(dtype, shape)()

    return {
        "x": device("float32", None, 10),
        "y": device("float32", None, 10),
        "image": device("float32", None, 3, None, None),
        "labels": device("int64", None),
        "a": pt.fscalar("a"),
        "b": pt.fscalar("b"),
        "n": pt.lscalar("n"),
        "m": pt.lscalar("m"),
        "rows": pt.lvector("rows"),
    }


def scheduled(step, with_gradient):
    """Return the schedule of a step and, if wanted, its gradient."""
    names = step.__code__.co_varnames[: step.__code__.co_argcount]
    given = {name: x for name, x in variables().items() if name in names}
    moved = {name: host_from_gpu(x) if is_on_device(x) else x for name, x in given.items()}
    outputs = [pt.as_tensor(step(**moved))]
    if with_gradient:
        outputs += pt.grad(
            (outputs[0] ** 2).sum(), [moved[n] for n in ("x", "image") if n in moved]
        )
    with pytensor.config.change_flags(dnn__enabled="no_check", floatX="float32"):
        mode = pytensor.compile.get_mode("CUDNN")
        graph = rewritten(list(given.values()), [z.transfer("cuda") for z in outputs], mode)
    order = graph.toposort()
    return schedule(graph, order, [None] * len(order))


@pytest.mark.parametrize("with_gradient", [False, True])
@pytest.mark.parametrize("name", STEPS)
def test_no_value_is_part_of_a_graph(name, with_gradient):
    by_value = scheduled(STEPS[name], with_gradient).by_value
    # A length may be computed from numbers that mostly cancel, as that of a slice from n to n + 5.
    assert all(x.owner is not None for x in by_value)


@pytest.mark.parametrize("name", GROWING)
def test_a_length_is_part_of_a_graph(name):
    assert len(scheduled(GROWING[name], False).by_value) == 1

"""Training steps whose learning rate changes are captured once."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.aliasing import Supervisor
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.fg import FunctionGraph

from dnnops import nnet, optim
from dnnops.capture.schedule import schedule
from dnnops.capture.vm import ORDINARY_CALLS
from dnnops.gpuarray import GpuArrayType, shared

OPTIMIZERS = {
    "sgd": optim.sgd,
    "sgd with decay": partial(optim.sgd, weight_decay=0.01),
    "momentum": partial(optim.sgd, momentum=0.9),
    "nesterov": partial(optim.sgd, momentum=0.9, nesterov=True),
    "adam": optim.adam,
    "adamw": optim.adamw,
    "rmsprop": optim.rmsprop,
    "centered": partial(optim.rmsprop, momentum=0.5, centered=True),
}
#: Learning rates of 30 steps, none of which have the same value for long.
SCHEDULES = {
    "linear": optim.linear(0.02, 40, warmup=3),
    "cosine": optim.cosine(0.02, 40),
    "exponential": optim.exponential(0.02, 0.97),
    "piecewise": optim.piecewise([0.02 / n for n in range(1, 20)], list(range(1, 19))),
}
ARGUMENT, SHARED, ON_DEVICE = "an argument", "a shared variable", "a shared variable on the device"
RATES = (ARGUMENT, SHARED, ON_DEVICE)
STEPS = 14


def parameters(make):
    rng = np.random.default_rng(0)
    shapes = (4, 2, 3, 3), (4,), (16, 5), (5,)
    return [make(0.3 * rng.standard_normal(shape, dtype="float32")) for shape in shapes]


def loss_of(x, y, w, b, v, c):
    """Filters, matrices and vectors: products with cuDNN and cuBLAS, and sums."""
    z = nnet.relu(nnet.conv2d(x, w) + b.dimshuffle("x", 0, "x", "x"))
    z = nnet.pool_2d(z, (2, 2), ignore_border=True)
    return pt.sqr(z.flatten(2) @ v + c - y).mean()


def batch():
    rng = np.random.default_rng(1)
    return [rng.standard_normal(s, dtype="float32") for s in ((3, 2, 6, 6), (3, 5))]


def rate_of(kind):
    """Return a learning rate, and the input that it comes from."""
    if kind in SCHEDULES:
        return SCHEDULES[kind], None
    if kind == ARGUMENT:
        rate = pt.fscalar("rate")
    elif kind == SHARED:
        rate = pytensor.shared(np.float32(0.01), name="rate")
    else:
        rate = shared(np.float32(0.01), name="rate")
    return rate, rate


def step_graph(optimizer, kind):
    """Return the rewritten graph of a training step whose data and parameters are on the device."""
    x, y = pt.tensor4(dtype="float32"), pt.fmatrix()
    given = parameters(pytensor.shared)
    rate = GpuArrayType("float32", ())() if kind == ON_DEVICE else rate_of(kind)[0]
    loss = loss_of(x, y, *given)
    updates = OPTIMIZERS[optimizer](loss, given, rate)
    moved = {
        s: GpuArrayType(s.type.dtype, s.type.shape)()
        for s in (x, y, *updates)
        if s.type.ndim and s.type.dtype == "float32"
    }
    outputs = [loss, *updates.values()]
    outputs = pytensor.graph.clone_replace(
        outputs, [(s, s.type.filter_variable(v.transfer("cpu"))) for s, v in moved.items()]
    )
    states = [moved.get(s, s) for s in updates]
    outputs = [z.transfer("cuda") if z.type.ndim or z is outputs[0] else z for z in outputs]
    inputs = [moved[x], moved[y], *states]
    if kind in RATES:
        inputs.append(rate)
    mapping = {1 + i: 2 + i for i in range(len(states))}
    graph = FunctionGraph(inputs, outputs, clone=True, update_mapping=mapping)
    graph.attach_feature(Supervisor([graph.inputs[i] for i in (0, 1)]))
    pytensor.compile.get_mode("CUDNN").optimizer.rewrite(graph)
    return graph


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_no_number_of_a_step_is_part_of_its_graph(optimizer):
    """A captured graph is valid for one value of each operand `by_value`."""
    with pytensor.config.change_flags(dnn__enabled="no_check"):
        for kind in (*RATES, "cosine") if optimizer == "sgd" else (ARGUMENT,):
            graph = step_graph(optimizer, kind)
            order = graph.toposort()
            found = schedule(graph, order, [None] * len(order))
            assert found.by_value == (), kind
            assert found.numbers or kind == ON_DEVICE, kind


def trained(optimizer, kind, mode):
    """Return the parameters after some steps, and the function of a step."""
    on_device = mode == "CUDNN"
    given = parameters(shared if on_device else pytensor.shared)
    x, y = pt.tensor4(dtype="float32"), pt.fmatrix()
    rate, source = rate_of(kind if on_device or kind != ON_DEVICE else SHARED)
    loss = loss_of(x, y, *given)
    updates = OPTIMIZERS[optimizer](loss, given, rate)
    updates = {s: new.transfer("cuda") if on_device and new.type.ndim else new
               for s, new in updates.items()}  # fmt: skip
    arguments = [source] if kind == ARGUMENT else []
    step = pytensor.function([x, y, *arguments], loss, updates=updates, mode=mode)
    for i in range(STEPS):
        value = np.float32(0.02 / (1 + i))
        if isinstance(source, SharedVariable):
            # On the device, the value is written to the array that the graph reads.
            if kind == ON_DEVICE and on_device:
                source.get_value(borrow=True, return_internal_type=True)[...] = value
            else:
                source.set_value(value)
        step(*batch(), *[value for _ in arguments])
    return [np.asarray(p.get_value()) for p in given], step


@pytest.mark.gpu
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_step_is_captured_once(optimizer):
    expected = {}
    for kind in (*RATES, *SCHEDULES):
        found, step = trained(optimizer, kind, "CUDNN")
        assert step.vm.reason == "", kind
        assert (step.vm.captures, step.vm.replays) == (1, STEPS - ORDINARY_CALLS), kind
        # The three kinds of numbers have the same values.
        key = kind if kind in SCHEDULES else ARGUMENT
        if key not in expected:
            expected[key] = trained(optimizer, key, "ONEDNN")[0]
        for got, wanted in zip(found, expected[key], strict=True):
            np.testing.assert_allclose(got, wanted, rtol=2e-3, atol=2e-4, err_msg=kind)

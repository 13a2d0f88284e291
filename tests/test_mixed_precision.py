"""Loss scaling; ``tests/rewriting/test_mixed_precision.py`` tests the graphs in 16 bits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode, get_mode
from pytensor.tensor.random.utils import RandomStream

import dnnops
from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.gpuarray import GpuArrayType
from dnnops.gpuarray.transfer import as_gpuarray_variable, host_from_gpu
from dnnops.mixed_precision import MAX_SCALE, MIN_SCALE, GradScaler
from tests.emulation.host_graphs import on_host
from tests.gpuarray.graphs import rewritten

HOST = Mode("py", "fast_compile")


def shared(value: Any) -> Any:
    return pytensor.shared(np.asarray(value, "float32"))


class Step:
    """A training step whose gradient is its input."""

    def __init__(self, scaler: GradScaler, as_dict: bool = False, mode: Any = HOST):
        self.scaler = scaler
        self.w, self.count = shared([1.0, 2.0]), pytensor.shared(np.int64(0))
        x = pt.fvector()
        (gradient,) = scaler.grad((x * self.w).sum(), [self.w])
        pairs = [(self.w, self.w - gradient), (self.count, self.count + 1)]
        self.updates = scaler.updates(dict(pairs) if as_dict else pairs)
        self.f = pytensor.function([x], gradient, updates=self.updates, mode=mode)

    def __call__(self, *values: float) -> tuple[list[float], int, float]:
        """Return the parameter, the number of steps and the scale after a step."""
        self.f(np.array(values, "float32"))
        return self.w.get_value().tolist(), int(self.count.get_value()), self.scaler.scale


@pytest.mark.parametrize("as_dict", [False, True])
def test_a_finite_step(as_dict):
    step = Step(GradScaler(8.0, enabled=True), as_dict)
    assert isinstance(step.updates, dict if as_dict else list)
    assert step(0.5, 0.25) == ([0.5, 1.75], 1, 8.0)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_a_step_that_is_skipped(bad):
    step = Step(GradScaler(8.0, enabled=True))
    step(0.5, 0.25)
    assert step(bad, 0.5) == ([0.5, 1.75], 1, 4.0)
    # It goes on with the smaller scale.
    assert step(0.5, 0.25) == ([0.0, 1.5], 2, 4.0)


def test_the_scale_grows_after_finite_steps_in_a_row():
    step = Step(GradScaler(8.0, 4.0, growth_interval=2, enabled=True))
    values = [1.0, 1.0, np.inf, 1.0, 1.0, 1.0]
    assert [step(value, 0.0)[2] for value in values] == [8, 32, 16, 16, 64, 64]


def test_bounds_of_the_scale():
    step = Step(GradScaler(MIN_SCALE, enabled=True))
    assert step(np.nan, 0.0)[2] == MIN_SCALE
    step = Step(GradScaler(MAX_SCALE, growth_interval=1, enabled=True))
    assert step(0.0, 0.0)[2] == MAX_SCALE


def test_every_gradient_is_checked():
    scaler = GradScaler(8.0, enabled=True)
    a, b = shared([1.0]), shared([1.0])
    x, y = pt.fvector(), pt.fvector()
    by_a = scaler.grad((x * a).sum(), a)
    assert isinstance(by_a, pt.TensorVariable)
    (by_b,) = scaler.grad((y * b).sum(), [b])
    updates = scaler.updates({a: a - by_a, b: b - by_b})
    f = pytensor.function([x, y], updates=updates, mode=HOST)
    f([0.5], [np.inf])
    assert (a.get_value(), b.get_value(), scaler.scale) == (1, 1, 4)


def test_random_states_move_on():
    scaler = GradScaler(enabled=True)
    stream = RandomStream(seed=1)
    noise = stream.normal(size=(2,))
    w = shared([1.0, 2.0])
    (gradient,) = scaler.grad((w * w).sum(), [w])
    pairs = [(w, w - gradient), *stream.updates()]
    assert scaler.updates(pairs)[1] == pairs[1]
    f = pytensor.function([], noise, updates=scaler.updates(pairs), mode=HOST)
    assert not np.array_equal(f(), f())


@pytest.mark.parametrize("flag", ["off", "bfloat16", "float16"])
def test_the_flag_enables_it(flag):
    with pytensor.config.change_flags(dnn__mixed_precision=flag):
        scaler = GradScaler(8.0)
    assert scaler.enabled == (flag == "float16")
    assert scaler.scale == (8.0 if scaler.enabled else 1.0)
    step = Step(scaler)
    assert len(step.updates) == (5 if scaler.enabled else 2)
    assert step(0.5, 0.25)[0] == [0.5, 1.75]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"init_scale": "8"}, DnnTypeError, "init_scale must be a number"),
        ({"init_scale": 0.5}, DnnValueError, "init_scale must be finite and at least 1"),
        ({"growth_factor": 0.5}, DnnValueError, "growth_factor must be finite and at least 1"),
        ({"backoff_factor": 2}, DnnValueError, "backoff_factor must be finite and at least 0"),
        ({"growth_interval": 0}, DnnValueError, "growth_interval must be a positive int, got 0"),
        ({"growth_interval": 1.5}, DnnValueError, "growth_interval must be a positive int"),
        ({"enabled": "yes"}, DnnTypeError, "enabled"),
    ],
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=f"GradScaler: {message}"):
        GradScaler(**arguments)


def test_bad_calls():
    scaler = GradScaler(enabled=True)
    w = shared([1.0])
    with pytest.raises(DnnValueError, match="call grad first"):
        scaler.updates([(w, w + 1)])
    with pytest.raises(DnnValueError, match="known_grads"):
        scaler.grad(w.sum(), [w], known_grads={w: w})
    scaler.grad(w.sum(), [w])
    with pytest.raises(DnnTypeError, match="expected pairs of variables, got 'w'"):
        scaler.updates([("w", w)])


def test_the_module_is_imported_when_it_is_used():
    assert dnnops.mixed_precision.GradScaler is GradScaler


# -- with arrays in float16 ------------------------------------------------------------------

#: A factor of the loss. Without a scale, the gradients of the first layer are zero in float16.
TINY = np.float32(1e-6)


def two_layers(scaler: GradScaler, x: Any, w: Any, v: Any) -> list[Any]:
    return scaler.grad((pt.tanh(x @ w) @ v).mean() * TINY, [w, v])


@pytest.mark.parametrize("enabled", [False, True])
def test_small_gradients(enabled):
    rng = np.random.default_rng(0)
    values = [rng.standard_normal(shape) for shape in ((32, 16), (16, 16), (16, 8))]
    x, w, v = (pt.tensor(dtype="float64", shape=value.shape) for value in values)
    outputs = two_layers(GradScaler(enabled=False), x, w, v)
    expected = pytensor.function([x, w, v], outputs, mode=HOST)(*values)

    narrow = [value.astype("float32") for value in values]
    x, w, v = (pt.tensor(dtype="float32", shape=value.shape) for value in values)
    flags = {"dnn__enabled": "no_check", "dnn__mixed_precision": "float16"}
    with pytensor.config.change_flags(**flags):
        scaler = GradScaler(enabled=enabled)
        states = {s: s.type() for s in (scaler._scale, scaler._inverse)}
        outputs = pytensor.graph.clone_replace(two_layers(scaler, x, w, v), list(states.items()))
        inputs = [x, w, v, *states.values()]
        graph = rewritten(inputs, outputs, get_mode("CUDNN").excluding("inplace"))
    hosted = on_host(graph.outputs, rounding=True)
    f = pytensor.function(graph.inputs, hosted, mode=Mode("py", None), on_unused_input="ignore")
    got = f(*narrow, *(state.get_value() for state in states))
    for a, b in zip(got, expected, strict=True):
        error = np.linalg.norm(a - b) / np.linalg.norm(b)
        assert error < 2e-3 if enabled else error > 0.1


def test_nothing_more_goes_to_the_host():
    """The scale, and whether a step is skipped, stay on the device."""
    x, w = (GpuArrayType("float32", shape)() for shape in ((None, 16), (16, 8)))
    flags = {"dnn__enabled": "no_check", "dnn__mixed_precision": "float16"}
    with pytensor.config.change_flags(**flags):
        scaler = GradScaler()
        loss = pt.tanh(x @ w).mean()
        (gradient,) = scaler.grad(loss, [w])
        new = [new for _, new in scaler.updates([(w, w - np.float32(0.1) * gradient)])]
        states = [scaler._scale, scaler._inverse, scaler._finite_steps]
        arrays = [GpuArrayType("float32", (1,))() for _ in states]
        replaced = [(s, host_from_gpu(a)) for s, a in zip(states, arrays, strict=True)]
        outputs = [as_gpuarray_variable(z) for z in pytensor.graph.clone_replace(new, replaced)]
        graph = rewritten([x, w, *arrays], outputs, get_mode("CUDNN"))
    names = [type(node.op).__name__ for node in graph.apply_nodes]
    assert not {"HostFromGpu", "GpuFromHost"} & {*names}
    # The check reads what the product has stored.
    (check,) = (node for node in graph.apply_nodes if getattr(node.op, "premap", None) == "abs")
    assert check.inputs[0].type.dtype == "float16"


@pytest.fixture(params=[False, True], ids=["on the host", "on the device"])
def states(request: pytest.FixtureRequest) -> Iterator[None]:
    """Create the scaler's variables on either device."""
    dnnops.gpuarray.put_shared_on_gpu(request.param)
    yield
    dnnops.gpuarray.put_shared_on_gpu(False)


@pytest.mark.gpu
def test_a_step_with_an_infinite_gradient(states):
    rng = np.random.default_rng(0)
    with pytensor.config.change_flags(dnn__mixed_precision="float16"):
        scaler = GradScaler()
        w = dnnops.gpuarray.shared(rng.standard_normal((16, 8)).astype("float32"))
        x = pt.fmatrix()
        loss = (x @ w).mean()
        (gradient,) = scaler.grad(loss, [w])
        updates = scaler.updates([(w, w - np.float32(0.1) * gradient)])
        f = pytensor.function([x], loss, updates=updates, mode="CUDNN")
    before, value = w.get_value(), rng.standard_normal((32, 16)).astype("float32")
    f(value * 1e6)  # infinite in float16
    np.testing.assert_array_equal(w.get_value(), before)
    assert scaler.scale == 2.0**15
    f(value)
    expected = before - 0.1 * value.sum(axis=0)[:, None] / (32 * 8)
    np.testing.assert_allclose(w.get_value(), expected, rtol=2e-3, atol=1e-5)
    assert scaler.scale == 2.0**15

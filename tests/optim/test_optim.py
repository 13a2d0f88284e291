"""Optimizers, schedules and clipping against NumPy and PyTorch."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from dnnops import layers, optim
from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.mixed_precision import GradScaler
from tests.oracle import PERFORM_MODE

STEPS = 4

#: Options of each optimizer here, and the class and options of PyTorch.
OPTIMIZERS = {
    "sgd": (optim.sgd, {"learning_rate": 0.1}, "SGD", {"lr": 0.1}),
    "sgd with momentum": (
        optim.sgd,
        {"learning_rate": 0.1, "momentum": 0.8, "weight_decay": 0.1},
        "SGD",
        {"lr": 0.1, "momentum": 0.8, "weight_decay": 0.1},
    ),
    "nesterov": (
        optim.sgd,
        {"learning_rate": 0.1, "momentum": 0.8, "nesterov": True},
        "SGD",
        {"lr": 0.1, "momentum": 0.8, "nesterov": True},
    ),
    "adam": (
        optim.adam,
        {"betas": (0.8, 0.9), "eps": 1e-3, "weight_decay": 0.1},
        "Adam",
        {"betas": (0.8, 0.9), "eps": 1e-3, "weight_decay": 0.1},
    ),
    "adamw": (optim.adamw, {"learning_rate": 0.1}, "AdamW", {"lr": 0.1}),
    "rmsprop": (
        optim.rmsprop,
        {"alpha": 0.9, "momentum": 0.5, "centered": True, "weight_decay": 0.1},
        "RMSprop",
        {"alpha": 0.9, "momentum": 0.5, "centered": True, "weight_decay": 0.1},
    ),
}


def values() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal((3, 4)), rng.standard_normal(5)]


def parameters(dtype: str = "float64") -> list:
    return [pytensor.shared(v.astype(dtype), shape=v.shape) for v in values()]


def loss_of(given):
    """A function whose gradients change in each step."""
    first, second = given
    return (first**4).sum() + (first[0, 0] * second**2).sum() + second.sum()


def compiled(updates, outputs=()):
    return pytensor.function([], list(outputs), updates=updates, mode=PERFORM_MODE)


def trained(optimizer, options, dtype="float64", steps=STEPS):
    given = parameters(dtype)
    step = compiled(optimizer(loss_of(given), given, **options))
    for _ in range(steps):
        step()
    assert [p.type.dtype for p in given] == [dtype] * 2
    return [p.get_value() for p in given]


@pytest.mark.needs("torch")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_of_torch(name):
    import torch

    optimizer, options, theirs, their_options = OPTIMIZERS[name]
    given = [torch.tensor(v, requires_grad=True) for v in values()]
    step = getattr(torch.optim, theirs)(given, **their_options)
    for _ in range(STEPS):
        step.zero_grad()
        loss_of(given).backward()
        step.step()
    for found, wanted in zip(trained(optimizer, options), given, strict=True):
        np.testing.assert_allclose(found, wanted.detach().numpy(), rtol=1e-10)


def numpy_gradients(first, second):
    gradient = 4 * first**3
    gradient[0, 0] += (second**2).sum()
    return [gradient, 2 * first[0, 0] * second + 1]


def test_adamw_by_hand():
    given, means, squares = values(), [0.0, 0.0], [0.0, 0.0]
    for t in range(1, STEPS + 1):
        for i, g in enumerate(numpy_gradients(*given)):
            means[i] = 0.9 * means[i] + 0.1 * g
            squares[i] = 0.999 * squares[i] + 0.001 * g**2
            root = np.sqrt(squares[i] / (1 - 0.999**t)) + 1e-8
            step = 0.1 * means[i] / (1 - 0.9**t) / root
            given[i] = given[i] * (1 - 0.1 * 0.05) - step
    options = {"learning_rate": 0.1, "weight_decay": 0.05}
    for found, wanted in zip(trained(optim.adamw, options), given, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-10)


def test_nesterov_by_hand():
    given, speeds = values(), [0.0, 0.0]
    for _ in range(STEPS):
        for i, g in enumerate(numpy_gradients(*given)):
            speeds[i] = 0.8 * speeds[i] + g
            given[i] = given[i] - 0.1 * (g + 0.8 * speeds[i])
    options = {"learning_rate": 0.1, "momentum": 0.8, "nesterov": True}
    for found, wanted in zip(trained(optim.sgd, options), given, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-10)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_float32_stays_float32(name):
    optimizer, options, *_ = OPTIMIZERS[name]
    pairs = zip(trained(optimizer, options, "float32"), trained(optimizer, options), strict=True)
    for found, wanted in pairs:
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_goes_on_from_a_stored_state(name):
    optimizer, options, *_ = OPTIMIZERS[name]
    whole = trained(optimizer, options)
    given = parameters()
    updates = optimizer(loss_of(given), given, **options)
    step = compiled(updates)
    step()
    state, stored = updates.state_dict(), [p.get_value() for p in given]

    later = parameters()
    updates = optimizer(loss_of(later), later, **options)
    updates.load_state_dict(state)
    for p, value in zip(later, stored, strict=True):
        p.set_value(value)
    step = compiled(updates)
    for _ in range(STEPS - 1):
        step()
    for p, wanted in zip(later, whole, strict=True):
        np.testing.assert_array_equal(p.get_value(), wanted)


def test_a_state_that_does_not_fit():
    given = parameters()
    updates = optim.adam(loss_of(given), {"w": given[0], "b": given[1]})
    assert list(updates.state) == ["step", "mean.w", "square.w", "mean.b", "square.b"]
    state = updates.state_dict()
    del state["mean.w"]
    state |= {"mean.b": np.ones(3), "mean.c": np.ones(3)}
    with pytest.raises(DnnValueError) as error:
        updates.load_state_dict(state)
    assert str(error.value).splitlines()[1:] == [
        "  mean.w is missing",
        "  mean.c is unknown",
        "  mean.b has shape (3,), expected (5,)",
    ]
    assert not updates.state["mean.b"].get_value().any()
    with pytest.raises(DnnTypeError, match="must be a mapping"):
        updates.load_state_dict([1])


def test_names_of_a_layer():
    net = layers.Sequential(layers.Linear(3, 4))
    loss = net(pt.dmatrix("x")).sum()
    updates = optim.sgd(loss, net, 0.1, momentum=0.5)
    assert list(updates.state) == ["momentum.0.weight", "momentum.0.bias"]
    joined = updates | {pytensor.shared(1.0): pt.constant(2.0)}
    assert (len(joined), joined.state) == (5, updates.state)


def test_joined_optimizers():
    """As for parameters with and without weight decay."""
    given = parameters()
    gradients = pytensor.grad(loss_of(given), given)
    first = optim.adam(gradients[:1], given[:1], 0.1, name="first")
    second = optim.adam(gradients[1:], given[1:], 0.1, name="second")
    joined = first | second
    assert list(joined.state) == [
        "first.step",
        "first.mean.0",
        "first.square.0",
        "second.step",
        "second.mean.0",
        "second.square.0",
    ]
    step = compiled(joined)
    step()
    step()
    assert {int(v) for k, v in joined.state_dict().items() if k.endswith("step")} == {2}
    wanted = trained(optim.adam, {"learning_rate": 0.1}, steps=2)
    for p, value in zip(given, wanted, strict=True):
        np.testing.assert_allclose(p.get_value(), value, rtol=1e-12)
    assert ({given[0]: given[0]} | second).state == second.state
    with pytest.raises(DnnValueError, match="have states named"):
        optim.adam(gradients[:1], given[:1]) | optim.adam(gradients[1:], given[1:])
    with pytest.raises(DnnValueError, match="update the same variables"):
        first | optim.sgd(gradients[:1], given[:1], 0.1)
    other = first
    other |= second
    assert list(other.state) == list(joined.state)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_float16_is_updated_in_float32(name):
    optimizer, options, *_ = OPTIMIZERS[name]
    start = np.array([1.0, -2.0, 0.5])
    found = {}
    for dtype in ("float16", "float32"):
        p = pytensor.shared(start.astype(dtype), shape=(3,))
        gradient = pt.constant(np.array([0.0, 1e-4, 2.0], dtype))
        updates = optimizer([gradient], [p], **options)
        step = compiled(updates)
        for _ in range(STEPS):
            step()
        assert p.get_value().dtype == dtype
        found[dtype] = p.get_value()
        assert {v.type.dtype for k, v in updates.state.items() if k != "step"} <= {"float32"}
    np.testing.assert_allclose(found["float16"], found["float32"], rtol=4e-3)


def test_centered_rmsprop_with_a_constant_gradient():
    p = pytensor.shared(np.ones(1, "float32"))
    step = compiled(
        optim.rmsprop([pt.constant(np.full(1, 0.1, "float32"))], [p], 1e-9, centered=True)
    )
    for _ in range(2000):
        step()
    assert np.isfinite(p.get_value()).all()


def test_a_number_of_steps_is_an_integer():
    given = parameters()
    updates = optim.adam(loss_of(given), given)
    state = updates.state_dict()
    for wrong in (2.5, np.nan):
        with (
            np.errstate(invalid="ignore"),
            pytest.raises(DnnValueError, match="step must be an integer"),
        ):
            updates.load_state_dict({**state, "step": np.array(wrong), "mean.1": np.ones(5)})
    with pytest.raises(DnnTypeError, match="must be an array of numbers"):
        updates.load_state_dict({**state, "square.1": list("abcde")})
    assert not any(value.any() for value in updates.state_dict().values())


SCHEDULES = {
    "linear": (optim.linear(2.0, 5, end=1.0), [2, 1.8, 1.6, 1.4, 1.2, 1, 1]),
    "warm": (optim.linear(2.0, 5, warmup=1), [1, 2, 1.5, 1, 0.5, 0, 0]),
    "cosine": (
        optim.cosine(2.0, 4, end=1.0),
        [1.5 + 0.5 * np.cos(np.pi * min(i, 4) / 4) for i in range(7)],
    ),
    "exponential": (optim.exponential(2.0, 0.5, every=2), [2, 2, 1, 1, 0.5, 0.5, 0.25]),
    "piecewise": (optim.piecewise([3.0, 2.0, 1.0], [2, 3]), [3, 3, 2, 1, 1, 1, 1]),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules(name):
    schedule, wanted = SCHEDULES[name]
    p = pytensor.shared(np.zeros(1, "float32"))
    step = compiled(optim.sgd([pt.ones(1, dtype="float32")], [p], schedule))
    found = []
    for _ in wanted:
        before = p.get_value()
        step()
        found.append((before - p.get_value()).item())
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_a_symbolic_learning_rate():
    rate, p = pt.dscalar("rate"), pytensor.shared(np.ones(2))
    updates = optim.sgd([pt.ones(2)], [p], rate)
    pytensor.function([rate], [], updates=updates, mode=PERFORM_MODE)(0.25)
    np.testing.assert_array_equal(p.get_value(), 0.75)


@pytest.mark.parametrize(("limit", "scale"), [(10.0, 1.0), (2.5, 0.5), (0.0, 0.0)])
def test_clip_by_norm(limit, scale):
    gradients = [np.array([3.0, 0.0], "float32"), np.array([[4.0]], "float64")]
    clipped = optim.clip_by_norm([pt.constant(g) for g in gradients], limit)
    for found, g in zip(
        pytensor.function([], clipped, mode=PERFORM_MODE)(), gradients, strict=True
    ):
        assert found.dtype == g.dtype
        np.testing.assert_allclose(found, scale * g, rtol=1e-6)


def test_clip_zeros_and_nothing():
    (found,) = optim.clip_by_norm([pt.zeros(3)], 0.0)
    np.testing.assert_array_equal(found.eval(mode=PERFORM_MODE), 0)
    assert optim.clip_by_norm([], 1.0) == []


def test_clip_infinite_gradients():
    gradients = [pt.constant(np.array(v)) for v in ([np.nan, 1.0], [100.0])]
    for found in pytensor.function([], optim.clip_by_norm(gradients, 1.0), mode=PERFORM_MODE)():
        assert np.isnan(found).all()


def test_with_a_loss_scale():
    given = parameters("float32")
    scaler = GradScaler(enabled=True, init_scale=8.0)
    gradients = optim.clip_by_norm(scaler.grad(loss_of(given), given), 1.0)
    updates = optim.adam(gradients, given, 0.1)
    step = compiled(scaler.updates(updates))
    step()
    assert updates.state["step"].get_value() == 1
    given[0].set_value(np.full((3, 4), np.inf, "float32"))
    before = given[1].get_value()
    step()
    assert updates.state["step"].get_value() == 1
    np.testing.assert_array_equal(given[1].get_value(), before)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda p: optim.sgd(p[0], p, 0.1), DnnTypeError, "the loss must be a scalar"),
        (lambda p: optim.sgd(1.0, p, 0.1), DnnTypeError, "a loss or a sequence of gradients"),
        (lambda p: optim.sgd([p[0]], p, 0.1), DnnValueError, "1 gradients for 2 parameters"),
        (lambda p: optim.sgd(loss_of(p), p[0], 0.1), DnnTypeError, "must be a layer, a mapping"),
        (lambda p: optim.sgd(loss_of(p), [1], 0.1), DnnTypeError, "must be a shared variable"),
        (lambda p: optim.sgd(loss_of(p), [*p, p[0]], 0.1), DnnValueError, "given twice"),
        (lambda p: optim.sgd(loss_of(p), p, -0.1), DnnValueError, "learning_rate"),
        (lambda p: optim.sgd(loss_of(p), p, p[0]), DnnTypeError, "must be a scalar"),
        (lambda p: optim.sgd(loss_of(p), p, 0.1, nesterov=True), DnnValueError, "needs a momentum"),
        (lambda p: optim.adam(loss_of(p), p, betas=(0.9, 1)), DnnValueError, "less than 1"),
        (lambda p: optim.adam(loss_of(p), p, betas=0.9), DnnValueError, "two numbers"),
        (lambda p: optim.rmsprop(loss_of(p), p, alpha=1.0), DnnValueError, "less than 1"),
        (lambda p: optim.clip_by_norm(p[0], 1.0), DnnTypeError, "must be a list"),
        (lambda p: optim.clip_by_norm([1.0], 1.0), DnnTypeError, "must be a list of variables"),
        (lambda p: optim.clip_by_norm(p, pt.dvector()), DnnTypeError, "max_norm must be a scalar"),
        (lambda p: optim.sgd([p[0], p[0]], p, 0.1), DnnTypeError, "gradient of parameter 1 must"),
        (lambda p: optim.sgd(p, p, lambda step: -1), DnnValueError, "learning_rate"),
        (lambda p: optim.sgd(p, p, lambda step: p[0]), DnnTypeError, "must be a scalar"),
        (lambda p: optim.sgd(p, p, "fast"), DnnTypeError, "learning_rate must be a number"),
        (lambda p: optim.sgd(loss_of(p), [], 0.1), DnnValueError, "there are no parameters"),
        (
            lambda p: optim.sgd(p[:1], [pytensor.shared(np.zeros((3, 4), "int64"))], 0.1),
            DnnTypeError,
            "shared variable of floats",
        ),
        (lambda p: optim.clip_by_norm(p, -1.0), DnnValueError, "max_norm"),
        (lambda p: optim.linear(0.1, 5, warmup=5), DnnValueError, "less than steps"),
        (lambda p: optim.cosine(0.1, 5.0), DnnTypeError, "steps must be an int"),
        (lambda p: optim.piecewise([1.0], [2]), DnnValueError, "one rate more"),
    ],
)
def test_errors(call, error, message):
    with pytest.raises(error, match=message):
        call(parameters())

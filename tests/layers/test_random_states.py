"""The random streams of layers are part of a saved state."""

from __future__ import annotations

import copy
import json
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.tensor.random.utils import RandomStream

from dnnops import layers, nnet, optim
from dnnops.errors import DnnValueError, DnnWarning
from dnnops.theano.random import MRG_RandomStreams
from tests.oracle import PERFORM_MODE

STEPS = 3

pytestmark = pytest.mark.filterwarnings(
    "ignore:RandomStream is", "ignore:RandomVariable Ops will", "ignore:Setting default_update"
)


class Noisy(layers.Layer):
    """A layer of a user's, with streams of PyTensor's and of Theano's kind."""

    def __init__(self, streams: Callable[..., Any]):
        super().__init__(dtype="float64")
        self.streams = streams(seed=int(self.rng.integers(100)))

    def forward(self, x: Any) -> Any:
        noise = self.streams.normal(size=x.shape) + self.streams.uniform(size=x.shape)
        return nnet.dropout(x + noise, 0.3, seed=self.draw_seed())


class Twice(layers.Layer):
    """A layer whose child draws twice in a call."""

    def __init__(self) -> None:
        super().__init__(dtype="float64")
        self.dropout = layers.Dropout(0.4)

    def forward(self, x: Any) -> Any:
        return self.dropout(x) + self.dropout(2 * x)


class Listed(layers.Layer):
    """A layer with a list of generators, and with a state that it advances itself."""

    def __init__(self) -> None:
        super().__init__(dtype="float64")
        self.generators = [pt.random.shared_rng(seed=self.draw_seed()) for _ in range(2)]
        self.state = nnet.dropout_state(self.draw_seed())

    def forward(self, x: Any) -> Any:
        for generator in self.generators:
            generator.default_update, draw = generator.normal(size=x.shape)
            x = x + draw
        y, self.state.default_update = nnet.dropout(x, 0.3, state=self.state)
        return y


class Local(layers.Layer):
    """A layer whose calls make generators, and call layers that are not its children."""

    def forward(self, x: Any) -> Any:
        generator = pt.random.shared_rng(seed=self.draw_seed())
        generator.default_update, draw = generator.normal(size=x.shape)
        x = layers.Dropout(0.4, rng=self.draw_seed())(x + draw)
        return x + RandomStream(self.draw_seed()).uniform(size=x.shape)


NETWORKS: dict[str, Callable[[], Any]] = {
    "dropout": lambda: layers.Dropout(0.5),
    "twice": Twice,
    "attention": lambda: layers.TransformerEncoderLayer(4, 2, 6, dropout=0.2, dtype="float64"),
    "recurrent": lambda: layers.LSTM(4, 4, 2, batch_first=True, dropout=0.4, dtype="float64"),
    "listed": Listed,
    "local": lambda: Local(dtype="float64"),
    "PyTensor": lambda: Noisy(RandomStream),
    "Theano": lambda: Noisy(MRG_RandomStreams),
}


def network(name: str, seed: int) -> Any:
    layers.seed(seed)
    first = layers.Linear(4, 4, dtype="float64")
    norm = layers.SpatialBatchNormalization(5, dtype="float64")
    to_images, from_images = lambda x: x[..., None], lambda x: x[..., 0]
    return layers.Sequential(first, to_images, norm, from_images, NETWORKS[name]())


def training(net: Any, rate: Any, mode: Any = PERFORM_MODE) -> tuple[Any, Any]:
    """Return a training step with a schedule and momentum, and its updates."""
    x = pt.dtensor3("x")
    loss = (net(x) ** 2).mean()
    updates = optim.adamw(loss, net, rate) | net.updates()
    return pytensor.function([x], loss, updates=updates, mode=mode), updates


def batches(start: int, stop: int) -> list[np.ndarray]:
    return list(np.random.default_rng(3).standard_normal((2 * STEPS, 2, 5, 4)))[start:stop]


def rate() -> Any:
    return optim.cosine(0.05, steps=20, warmup=2)


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_run_resumes_with_the_same_numbers(tmp_path: Path, name: str, early: bool):
    """Bitwise, whether the state is loaded before or after the graph is made."""
    net = network(name, 0)
    step, updates = training(net, rate())
    losses = [step(x) for x in batches(0, STEPS)]
    net.save(tmp_path / "net")
    optimizer = updates.state_dict()
    losses += [step(x) for x in batches(STEPS, 2 * STEPS)]

    other = network(name, 1)
    if early:
        other.load(tmp_path / "net")
    step, updates = training(other, rate())
    if not early:
        step(batches(0, 1)[0])
        other.load(tmp_path / "net")
    updates.load_state_dict(optimizer)
    resumed = [step(x) for x in batches(STEPS, 2 * STEPS)]
    np.testing.assert_array_equal(resumed, losses[STEPS:])
    for key, value in net.state_dict().items():
        np.testing.assert_array_equal(other.state_dict()[key], value, err_msg=key)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["dropout", "twice", "attention"])
def test_a_run_on_a_gpu_resumes(tmp_path: Path, name: str):
    """Also in captured functions, whose streams are in device memory during a call."""
    net = network(name, 0)
    step, updates = training(net, rate(), "CUDNN")
    losses = [step(x) for x in batches(0, STEPS)]
    net.save(tmp_path / "net")
    optimizer = updates.state_dict()
    losses += [step(x) for x in batches(STEPS, 2 * STEPS)]
    other = network(name, 1)
    step, updates = training(other, rate(), "CUDNN")
    for x in batches(0, STEPS):
        step(x)
    other.load(tmp_path / "net")
    updates.load_state_dict(optimizer)
    resumed = [step(x) for x in batches(STEPS, 2 * STEPS)]
    np.testing.assert_allclose(resumed, losses[STEPS:], rtol=1e-10)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_state_without_streams_is_loaded_with_a_warning(name: str):
    """Such as one of PyTorch, or of a network that was saved before its first call."""
    net = network(name, 0)
    training(net, 0.1)
    state = net.state_dict()
    drawn = [key for key in state if "random_state" in key]
    assert drawn
    old = {key: value for key, value in state.items() if key not in drawn}
    with pytest.warns(DnnWarning, match="no states of the random streams of layers 4"):
        net.load_state_dict(old)
    np.testing.assert_array_equal(net.state_dict()[drawn[0]], state[drawn[0]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        net.eval().load_state_dict(old)
        net.train().load_state_dict(old, strict=False)
        layers.from_torch(net, old)
        net.load_state_dict(state)
    assert layers.to_torch(net).keys() >= old.keys()
    assert not [key for key in layers.to_torch(net) if "random_state" in key]


def test_waiting_states_are_saved_and_copied():
    state = {"random_state.0": np.array([1, 64]), "random_state.2": np.array([2, 128])}
    net = layers.Dropout(0.5)
    net.load_state_dict(state)
    for copied in (net, copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        found = copied.state_dict()
        assert list(found) == list(state)
        for key, value in state.items():
            np.testing.assert_array_equal(found[key], value)
    x = pt.dvector("x")
    for _ in range(3):
        net(x)
    found = net.state_dict()
    assert sorted(found) == [f"random_state.{i}" for i in range(3)]
    np.testing.assert_array_equal(found["random_state.2"], [2, 128])


def test_a_copy_continues_where_the_layer_was():
    layers.seed(0)
    net, x = layers.Dropout(0.5), pt.dvector("x")
    step = pytensor.function([x], net(x), mode=PERFORM_MODE)
    step(np.ones(100))
    other = pickle.loads(pickle.dumps(net))
    again = pytensor.function([x], other(x), mode=PERFORM_MODE)
    np.testing.assert_array_equal(step(np.ones(100)), again(np.ones(100)))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (np.zeros(3, "int64"), r"has shape \(3,\), expected \(2,\)"),
        (np.zeros(2), "must be integers, got float64"),
    ],
)
def test_states_that_do_not_fit(value, words):
    net = layers.Dropout(0.5)
    net(pt.dvector("x"))
    before = net.state_dict()
    with pytest.raises(DnnValueError, match=f"random_state.0 {words}"):
        net.load_state_dict({"random_state.0": value})
    np.testing.assert_array_equal(net.state_dict()["random_state.0"], before["random_state.0"])
    other = layers.Dropout(0.5)
    if value.dtype.kind == "i":
        other.load_state_dict({"random_state.0": value})
        with pytest.raises(DnnValueError, match=f"random_state.0 {words}"):
            other(pt.dvector("x"))
    else:
        with pytest.raises(DnnValueError, match=f"random_state.0 {words}"):
            other.load_state_dict({"random_state.0": value})
    with pytest.raises(DnnValueError, match=r"a\.random_state\.0 is unknown"):
        net.load_state_dict({"a.random_state.0": np.zeros(2, "int64")}, strict=True)


class Derived(layers.Linear):
    """What its forward draws is not known."""

    def forward(self, x):
        return nnet.dropout(super().forward(x), 0.5, seed=self.draw_seed())


@pytest.mark.parametrize(
    ("net", "known", "unknown"),
    [
        (layers.Linear(3, 4), [], [""]),
        (layers.Dropout(0.5), [""], []),
        (layers.Dropout(0.0), [], [""]),
        (layers.Sequential(layers.Linear(3, 4), layers.Dropout(0.5)), ["1."], ["", "0.", "2."]),
        (layers.Sequential(layers.Linear(3, 4), nnet.tanh), [""], ["0.", "1."]),
        (layers.Residual(layers.ReLU(), Derived(4, 4)), ["1."], ["", "0."]),
        (layers.LSTM(3, 4, num_layers=2, dropout=0.5), [""], []),
        (layers.LSTM(3, 4, dropout=0.5), [], [""]),
        (layers.MultiHeadAttention(4, 2, dropout=0.1), [""], ["out_proj."]),
        (layers.SpatialBatchNormalization(3), [], [""]),
    ],
)
def test_states_of_layers_that_draw_nothing(net, known, unknown):
    """They are unknown, and never wait."""
    values = net.state_dict()
    stream = np.array([1, 64])
    net.load_state_dict({**values, **{f"{prefix}random_state.0": stream for prefix in known}})
    assert len(net.state_dict()) == len(values) + len(known)
    values = net.state_dict()
    for prefix in unknown:
        state = {**values, f"{prefix}random_state.0": stream}
        with pytest.raises(DnnValueError, match=rf"{prefix}random_state\.0 is unknown"):
            net.load_state_dict(state)
        net.load_state_dict(state, strict=False)
        assert net.state_dict().keys() == values.keys()


@pytest.mark.parametrize("text", [b"{", b"[]", b'{"bit_generator": "os"}', b"\xff"])
def test_generators_that_do_not_fit(text):
    net = Noisy(RandomStream)
    net(pt.dvector("x"))
    names = [key for key, value in net.state_dict().items() if value.dtype == "uint8"]
    with pytest.raises(DnnValueError, match="is not the state of one of NumPy's generators"):
        net.load_state_dict({names[0]: np.frombuffer(text, "uint8")}, strict=False)


PCG64: dict[str, Any] = dict(np.random.PCG64(3).state)
MT19937: dict[str, Any] = np.random.MT19937(3).state
PHILOX: dict[str, Any] = np.random.Philox(3).state


@pytest.mark.parametrize(
    "malformed",
    [
        {**PCG64, "state": {"state": -1, "inc": 1}},
        {**PCG64, "state": {"state": 2**200, "inc": 1}},
        {**PCG64, "state": "x"},
        {**PCG64, "uinteger": 2**40},
        {**MT19937, "state": {**MT19937["state"], "pos": 10**6}},
        {**MT19937, "state": {**MT19937["state"], "pos": -1}},
        {**PHILOX, "buffer_pos": -(10**6)},
    ],
)
def test_generators_that_numpy_would_not_survive(malformed):
    """NumPy reads memory beyond its own at positions that it does not check."""
    net = layers.Sequential()
    net.noise = pt.random.shared_rng(seed=1)
    net(pt.dvector("x") + net.noise.normal()[1])
    (state,) = net.state_dict().values()
    text = json.dumps(malformed, default=np.ndarray.tolist)
    with pytest.raises(DnnValueError, match="is not the state of one of NumPy's generators"):
        net.load_state_dict({"random_state.0": np.frombuffer(text.encode(), "uint8")})
    np.testing.assert_array_equal(net.state_dict()["random_state.0"], state)


def test_nested_text_is_no_generator():
    net = layers.Sequential()
    net.noise = pt.random.shared_rng(seed=1)
    net(pt.dvector("x") + net.noise.normal()[1])
    with pytest.raises(DnnValueError, match="is not the state of one of NumPy's generators"):
        net.load_state_dict({"random_state.0": np.full(10**5, ord("["), "uint8")})


@pytest.mark.parametrize("number", ["00", "-1", "\N{SUPERSCRIPT TWO}", "9" * 5000])
def test_numbers_of_streams_are_plain(number):
    with pytest.raises(DnnValueError, match="is unknown"):
        layers.Dropout(0.5).load_state_dict({f"random_state.{number}": np.zeros(2, "int64")})


@pytest.mark.parametrize("kind", ["MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64"])
def test_every_generator_of_numpy(kind):
    stream = pytensor.shared(np.random.Generator(getattr(np.random, kind)(3)))
    from dnnops.layers.streams import Streams

    made, other = Streams(), Streams()
    made.add("", [stream])
    states = made.states()
    wanted = stream.get_value(borrow=True).standard_normal(5)
    same = pytensor.shared(np.random.default_rng(0))
    other.set(states)
    other.add("", [same])
    np.testing.assert_array_equal(same.get_value(borrow=True).standard_normal(5), wanted)


def test_generators_of_a_layer():
    """What PyTensor recommends in the place of its streams."""
    net = layers.Sequential()
    net.noise = pt.random.shared_rng(seed=1)
    x = pt.dvector("x")
    _, draw = net.noise.normal(size=x.shape)
    net(x + draw)
    (state,) = net.state_dict().values()
    wanted = net.noise.get_value().standard_normal(3)
    net.noise.set_value(np.random.default_rng(5))
    net.load_state_dict({"random_state.0": state})
    np.testing.assert_array_equal(net.noise.get_value().standard_normal(3), wanted)


def test_inference_makes_no_stream():
    net = layers.Sequential(layers.Dropout(0.5), layers.Dropout(0.0)).eval()
    net(pt.dvector("x"))
    assert net.state_dict() == {}
    net.train()(pt.dvector("x"))
    assert list(net.state_dict()) == ["0.random_state.0"]

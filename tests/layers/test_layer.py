"""Parameters, modes, text and stored states of layers."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.sharedvalue import SharedVariable

from dnnops import layers, nnet, optim
from dnnops.errors import DnnNotSupportedError, DnnTypeError, DnnValueError
from dnnops.runtime import files
from tests.oracle import PERFORM_MODE


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape)


def network() -> layers.Sequential:
    return layers.Sequential(
        layers.SpatialConvolution(3, 4, 3, 3, rng=0),
        layers.SpatialBatchNormalization(4),
        layers.ReLU(),
        layers.Residual(layers.SpatialConvolution(4, 4, 1, 1, rng=1), nnet.tanh),
        layers.View(-1),
        layers.Dropout(0.5, rng=2),
        layers.Linear(4 * 4 * 4, 5, rng=3),
    )


NAMES = ["0.weight", "0.bias", "1.weight", "1.bias", "3.0.weight", "3.0.bias", "6.weight", "6.bias"]


def run(net, x, **options):
    variable = pt.tensor(dtype=x.dtype.name, shape=x.shape)
    return pytensor.function([variable], net(variable), mode=PERFORM_MODE, **options)(x)


def test_the_text_of_cudnn_torch():
    net = layers.Sequential()
    net.add(layers.SpatialConvolution(3, 96, 11, 11, 3, 3)).add(layers.ReLU())
    assert repr(net) == (
        "nn.Sequential {\n"
        "  [input -> (1) -> (2) -> output]\n"
        "  (1): nn.SpatialConvolution(3 -> 96, 11x11, 3,3)\n"
        "  (2): nn.ReLU\n"
        "}"
    )


@pytest.mark.parametrize(
    ("layer", "text"),
    [
        (layers.SpatialConvolution(3, 8, 5, 3), "SpatialConvolution(3 -> 8, 5x3)"),
        (
            layers.SpatialConvolution(3, 8, 5, 3, 1, 1, 2, 1, bias=False),
            "SpatialConvolution(3 -> 8, 5x3, 1,1, 2,1) without bias",
        ),
        (
            layers.VolumetricConvolution(3, 8, 2, 5, 3, 1, 2, 1),
            "VolumetricConvolution(3 -> 8, 2x5x3, 1,2,1)",
        ),
        (layers.TemporalConvolution(3, 8, 5, 2), "TemporalConvolution(3, 8, 5, 2)"),
        (layers.SpatialMaxPooling(3, 2, 2, 1, 1, 0), "SpatialMaxPooling(3x2, 2,1, 1,0)"),
        (layers.LSTM(3, 5, 2, True), "LSTM(3 -> 5, 2, batch first)"),
        (layers.GRU(3, 5, bidirectional=True), "GRU(3 -> 5, 1, bidirectional)"),
        (layers.Linear(3, 5, False), "Linear(3 -> 5) without bias"),
        (layers.Dropout(), "Dropout(0.5)"),
        (layers.LayerNorm((3, 4)), "LayerNorm(3x4)"),
        (
            layers.Residual(nnet.relu, shortcut=layers.Tanh()),
            "Residual {\n  [input -> (1) -> output]\n  (1): relu\n  (shortcut): nn.Tanh\n}",
        ),
        (
            layers.Concat(1, layers.Tanh()),
            "Concat(1) {\n  [input -> each -> joined]\n  (1): nn.Tanh\n}",
        ),
    ],
    ids=str,
)
def test_text(layer, text):
    assert repr(layer) == f"nn.{text}"


def test_parameters():
    net = network()
    assert list(net.named_parameters()) == NAMES
    assert all(isinstance(p, SharedVariable) for p in net.parameters())
    assert [p.type.dtype for p in net.parameters()] == [pytensor.config.floatX] * 8
    assert len(net[:2]) == 2
    assert net[:2].parameters() == net.parameters()[:4]
    shared = layers.Sequential(net[0], net[0])  # one layer twice
    assert shared.parameters() == net[0].parameters()


def test_a_layer_of_layers():
    class Block(layers.Layer):
        def __init__(self):
            super().__init__()
            self.first = layers.Linear(3, 4)
            self.others = [layers.Linear(4, 4), layers.Tanh(), layers.Linear(4, 3)]
            self.parameter("scale", (3,), layers.constant(2))

        def forward(self, x):
            x = self.first(x)
            for layer in self.others:
                x = layer(x)
            return x * self.scale

    block = Block().eval()
    assert list(block.named_parameters()) == [
        "scale",
        "first.weight",
        "first.bias",
        "others.0.weight",
        "others.0.bias",
        "others.2.weight",
        "others.2.bias",
    ]
    assert not block.others[1].training
    w, v, u = (layer.weight.get_value() for layer in (block.first, *block.others[::2]))
    a, b, c = (layer.bias.get_value() for layer in (block.first, *block.others[::2]))
    x = normal(2, 3)
    wanted = 2 * (np.tanh((x @ w.T + a) @ v.T + b) @ u.T + c)
    np.testing.assert_allclose(run(block, x), wanted, rtol=1e-10)


def test_training_and_evaluation():
    net, x = network(), normal(2, 3, 6, 6)
    assert net.updates() == {}
    variable = pt.tensor4("x", dtype="float64")
    with pytensor.config.change_flags(floatX="float64"):
        net = network()
    train = pytensor.function([variable], net(variable), updates=net.updates(), mode=PERFORM_MODE)
    assert set(net.updates()) == {net[1].running_mean, net[1].running_var}
    before = net[1].running_mean.get_value()
    first, second = train(x), train(x)
    assert (first != second).any()  # dropout
    assert (net[1].running_mean.get_value() != before).any()
    assert net.eval() is net
    test = pytensor.function([variable], net(variable), mode=PERFORM_MODE)
    np.testing.assert_array_equal(test(x), test(x))
    assert net.train().training
    assert net[3][0].training
    with pytest.raises(DnnTypeError, match="mode must be True or False"):
        net.train("yes")


def test_a_seed_repeats_initial_values():
    found = []
    for _ in range(2):
        layers.seed(5)
        found.append(layers.Sequential(layers.Linear(3, 4), layers.LSTM(2, 3)).state_dict())
    for name, value in found[0].items():
        np.testing.assert_array_equal(value, found[1][name])
    with pytest.raises(DnnTypeError, match="seed: value must be an int"):
        layers.seed("5")
    with pytest.raises(DnnValueError, match="must not be negative"):
        layers.seed(-1)
    with pytest.raises(DnnTypeError, match="Generator or a seed"):
        layers.Linear(3, 4, rng="5")


@pytest.mark.parametrize(
    ("initializer", "std"),
    [
        (layers.normal(0.3), 0.3),
        (layers.he_normal(), np.sqrt(2 / 450)),
        (layers.glorot_normal(2.0), 2 * np.sqrt(2 / (450 + 360))),
    ],
    ids=["normal", "he", "glorot"],
)
def test_normal_initializers(initializer, std):
    values = initializer(np.random.default_rng(0), (40, 50, 3, 3))
    assert values.shape == (40, 50, 3, 3)
    assert values.std() == pytest.approx(std, rel=0.02)
    assert abs(values).max() > 3 * std


@pytest.mark.parametrize(
    ("initializer", "bound"),
    [
        (layers.uniform(0.5), 0.5),
        (layers.he_uniform(0.5), np.sqrt(6 / 1.25 / 450)),
        (layers.glorot_uniform(), np.sqrt(6 / (450 + 360))),
    ],
    ids=["uniform", "he", "glorot"],
)
def test_uniform_initializers(initializer, bound):
    values = initializer(np.random.default_rng(0), (40, 50, 3, 3))
    assert 0.99 * bound < abs(values).max() <= bound
    assert values.std() == pytest.approx(bound / np.sqrt(3), rel=0.02)


def test_orthogonal():
    for shape in ((8, 3), (3, 8), (4, 2, 3, 3)):
        values = layers.orthogonal(3.0)(np.random.default_rng(0), shape).reshape(shape[0], -1)
        small = values @ values.T if len(values) < values.shape[1] else values.T @ values
        np.testing.assert_allclose(small, 9 * np.eye(len(small)), atol=1e-12)
    with pytest.raises(DnnValueError, match="two or more dimensions"):
        layers.orthogonal()(np.random.default_rng(0), (3,))


# -- states ----------------------------------------------------------------------------------


def test_states_are_copies():
    net = layers.Linear(2, 3)
    state = net.state_dict()
    state["weight"][...] = 7
    assert (net.weight.get_value() != 7).all()
    net.load_state_dict(state)
    assert (net.weight.get_value() == 7).all()


def test_a_state_that_does_not_fit_changes_nothing():
    net = layers.Sequential(layers.Linear(2, 3), layers.LSTM(3, 2))
    before = net.state_dict()
    state = {**before, "0.weight": np.zeros((2, 3)), "2.bias": np.zeros(3)}
    del state["1.bias_hh_l0"]
    with pytest.raises(DnnValueError) as error:
        net.load_state_dict(state)
    assert str(error.value).splitlines() == [
        "Sequential.load_state_dict: the state does not fit:",
        "  0.weight has shape (2, 3), expected (3, 2)",
        "  1.bias_hh_l0 is missing",
        "  2.bias is unknown",
    ]
    with pytest.raises(DnnValueError, match=r"0.weight has shape \(2, 3\)"):
        net.load_state_dict(state, strict=False)
    with pytest.raises(DnnTypeError, match="must be an array of numbers"):
        net.load_state_dict({"0.weight": "text"})
    with pytest.raises(DnnTypeError, match="must be a mapping"):
        net.load_state_dict([1, 2])
    for name, value in net.state_dict().items():
        np.testing.assert_array_equal(value, before[name])
    net.load_state_dict({"1.bias_hh_l0": np.ones(8)}, strict=False)
    assert (net.state_dict()["1.bias_hh_l0"] == 1).all()
    np.testing.assert_array_equal(net.state_dict()["1.bias_ih_l0"], before["1.bias_ih_l0"])


def test_files(tmp_path: Path):
    from safetensors.numpy import load_file

    net, path = network(), tmp_path / "net.safetensors"
    net.save(path)
    assert set(load_file(path)) == {*NAMES, "1.running_mean", "1.running_var"}
    other = layers.Sequential(*network())
    for p in other.parameters():
        p.set_value(p.get_value() + 1)
    other.load(str(path))
    for name, value in net.state_dict().items():
        np.testing.assert_array_equal(value, other.state_dict()[name])
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize("keep", [0, 5, 100, -1])
def test_a_truncated_file(tmp_path: Path, keep):
    net, path = layers.Linear(20, 30), tmp_path / "net.safetensors"
    net.save(path)
    path.write_bytes(path.read_bytes()[:keep])
    before = net.state_dict()
    with pytest.raises(DnnValueError, match="is not a complete safetensors file"):
        net.load(path)
    np.testing.assert_array_equal(net.weight.get_value(), before["weight"])
    with pytest.raises(FileNotFoundError):
        net.load(tmp_path / "other")


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_an_interrupt_leaves_the_former_file(tmp_path: Path, monkeypatch, error):
    net, path = layers.Linear(2, 3), tmp_path / "net.safetensors"
    net.save(path)
    former = path.read_bytes()
    net.weight.set_value(net.weight.get_value() + 1)

    def fail(*arguments):
        raise error

    monkeypatch.setattr(files.os, "replace", fail)
    with pytest.raises(error):
        net.save(path)
    assert path.read_bytes() == former
    assert os.listdir(tmp_path) == [path.name]


# -- results ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (layers.SpatialConvolution(3, 4, 2, 3, dtype="float64"), (2, 3, 6, 5)),
        (layers.VolumetricConvolution(3, 4, 2, 3, 1, dtype="float64"), (2, 3, 4, 6, 5)),
        (layers.TemporalConvolution(3, 4, 2, dtype="float64"), (2, 6, 3)),
        (layers.SpatialFullConvolution(3, 4, 2, 3, dtype="float64"), (2, 3, 6, 5)),
        (layers.SpatialMaxPooling(2, 3), (2, 3, 6, 5)),
        (layers.VolumetricMaxPooling(2, 3, 2), (2, 3, 4, 6, 5)),
        (layers.TemporalMaxPooling(2, 1), (2, 6, 3)),
        (layers.SpatialSoftMax(), (2, 3, 6, 5)),
        (layers.VolumetricLogSoftMax(), (2, 3, 4, 6, 5)),
        (layers.SpatialDivisiveNormalization(3), (2, 3, 6, 5)),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, layers.Layer) else "",
)
def test_a_single_element_is_a_batch_of_one(layer, shape):
    x = normal(*shape)
    both = run(layer, x)
    assert len(both) == 2
    np.testing.assert_allclose(run(layer, x[1]), both[1], rtol=1e-12)
    with pytest.raises(DnnTypeError, match=f"must have {len(shape)} dimensions"):
        layer(pt.dmatrix() if len(shape) > 3 else pt.dtensor4())


def test_temporal_layers():
    layer = layers.TemporalConvolution(3, 4, 2, 2, 1, dtype="float64", rng=0)
    x, w, b = normal(2, 5, 3), layer.weight.get_value(), layer.bias.get_value()
    padded = np.pad(x, ((0, 0), (1, 1), (0, 0)))
    wanted = [np.einsum("bki,oik->bo", padded[:, t : t + 2], w) + b for t in range(0, 6, 2)]
    np.testing.assert_allclose(run(layer, x), np.stack(wanted, 1), rtol=1e-10)
    pooled = run(layers.TemporalMaxPooling(2, 1), x)
    np.testing.assert_array_equal(pooled, np.maximum(x[:, :-1], x[:, 1:]))


def test_softmax_of_images():
    x = normal(2, 3, 4)
    found = run(layers.SoftMax(), x)
    np.testing.assert_allclose(found.sum(axis=(1, 2)), 1)
    np.testing.assert_allclose(np.log(found), run(layers.LogSoftMax(), x), rtol=1e-6)
    np.testing.assert_allclose(run(layers.SoftMax(True), x[0, 0]).sum(), 1)


def test_containers():
    first, second = layers.Linear(3, 4, dtype="float64"), layers.Linear(3, 2, dtype="float64")
    x = normal(5, 3)
    joined = run(layers.Concat(1, first, second), x)
    np.testing.assert_array_equal(joined, np.hstack([run(first, x), run(second, x)]))
    residual = layers.Residual(first, shortcut=layers.Linear(3, 4, dtype="float64"))
    wanted = run(first, x) + run(residual.shortcut, x)
    np.testing.assert_allclose(run(residual, x), wanted, rtol=1e-12)
    assert list(residual.named_parameters()) == [
        "0.weight",
        "0.bias",
        "shortcut.weight",
        "shortcut.bias",
    ]
    with pytest.raises(DnnTypeError, match="is not a layer"):
        layers.Sequential(layers.ReLU)
    with pytest.raises(DnnTypeError, match="axis must be an int"):
        layers.Concat(first, second)


def test_spatial_transformer():
    x = normal(2, 3, 5, 6)
    identity = layers.Linear(3 * 5 * 6, 6, initializer=layers.constant(0), dtype="float64")
    identity.bias.set_value(np.array([1.0, 0, 0, 0, 1, 0]))
    net = layers.SpatialTransformer(layers.Sequential(layers.View(-1), identity), 5, 6)
    np.testing.assert_allclose(run(net, x), x, rtol=1e-9, atol=1e-12)
    assert list(net.named_parameters()) == ["localization.1.weight", "localization.1.bias"]


def test_recurrent_options():
    layer = layers.LSTM(3, 4, 2, dropout=0.5, dtype="float64", rng=0)
    x = normal(6, 2, 3)
    assert (run(layer, x) != run(layer, x)).any()
    layer.eval()
    np.testing.assert_array_equal(run(layer, x), run(layer, x))
    lengths = np.array([6, 3])
    out = pytensor.function([], layer(x, lengths=lengths), mode=PERFORM_MODE)()
    assert not out[3:, 1].any()
    assert layer.set_persist() is layer
    with pytest.raises(DnnValueError, match="persist must be one of"):
        layer.set_persist("often")


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: layers.SpatialConvolution(3, 4, 3.0, 3), DnnTypeError, "kernel size must be an"),
        (lambda: layers.SpatialConvolution(3, 4, 3, 0), DnnValueError, "between 1 and"),
        (lambda: layers.SpatialConvolution(3, 4, 3, 3, groups=2), DnnValueError, "must divide"),
        (lambda: layers.SpatialConvolution(3, 4, 3, 3, dtype="int8"), DnnTypeError, "dtype must"),
        (
            lambda: layers.SpatialFullConvolution(3, 4, 3, 3, adj_w=1),
            DnnValueError,
            "smaller than the stride",
        ),
        (lambda: layers.SpatialMaxPooling(3, 3, pad_w=2), DnnValueError, "half of the window"),
        (
            lambda: layers.SpatialMaxPooling(3, 3, pad_w=1).ceil(),
            DnnNotSupportedError,
            "does not support padding",
        ),
        (lambda: layers.View(2, -1, -1), DnnValueError, "one of them -1"),
        (lambda: layers.View("a"), DnnTypeError, "sizes must be ints"),
        (lambda: layers.Dropout(1.0), DnnValueError, "less than 1"),
        (lambda: layers.LayerNorm(3)(pt.dmatrix().reshape((2, 4))), DnnValueError, "must be"),
        (lambda: layers.GroupNorm(2, 5), DnnValueError, "must divide"),
        (lambda: layers.MultiHeadAttention(8, 3), DnnValueError, "must divide"),
        (lambda: layers.ClippedReLU(-1.0), DnnValueError, "ceiling"),
        (lambda: layers.BatchNormalization(3, momentum=2), DnnValueError, "momentum"),
        (lambda: layers.RNN(3, 4, mode="rnn"), DnnValueError, "rnn_mode must be one of"),
        (
            lambda: layers.SpatialCrossEntropyCriterion()(pt.dmatrix(), pt.lvector()),
            DnnTypeError,
            "the scores must have 4 dimensions",
        ),
        (lambda: layers.Layer()(1), NotImplementedError, "Layer defines no forward"),
    ],
)
def test_errors(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_a_network_trains():
    """Layers, an optimizer and a criterion with PyTensor's own functions."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((64, 1, 8, 8)), rng.integers(0, 2, 64)
    x[y == 1, :, :4] += 1.5
    with pytensor.config.change_flags(floatX="float32"):
        layers.seed(0)
        net = layers.Sequential(
            layers.SpatialConvolution(1, 4, 3, 3),
            layers.SpatialBatchNormalization(4),
            layers.ReLU(),
            layers.SpatialMaxPooling(2, 2),
            layers.View(-1),
            layers.Linear(4 * 3 * 3, 2),
        )
    images, labels = pt.tensor4("images", dtype="float32"), pt.lvector("labels")
    loss = layers.CrossEntropyCriterion()(net(images), labels)
    updates = optim.adam(loss, net, 0.01) | net.updates()
    train = pytensor.function([images, labels], loss, updates=updates, mode="ONEDNN")
    losses = [float(train(x.astype("float32"), y)) for _ in range(60)]
    assert losses[-1] < 0.25 * losses[0]
    scores = pytensor.function([images], net.eval()(images), mode="ONEDNN")
    assert (scores(x.astype("float32")).argmax(axis=1) == y).mean() > 0.9
    # 8 parameters have two averages each, and the step is counted once.
    assert len(updates.state) == 2 * 6 + 1

"""Parameters, modes, text and stored states of layers."""

from __future__ import annotations

import copy
import json
import os
import pickle
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
        "  [input -> (0) -> (1) -> output]\n"
        "  (0): nn.SpatialConvolution(3 -> 96, 11x11, 3,3)\n"
        "  (1): nn.ReLU\n"
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
            "Residual {\n  [input -> (0) -> output]\n  (0): relu\n  (shortcut): nn.Tanh\n}",
        ),
        (
            layers.Concat(1, layers.Tanh()),
            "Concat(1) {\n  [input -> each -> joined]\n  (0): nn.Tanh\n}",
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


def test_batches_of_several_calls_update_the_averages():
    layer = layers.BatchNormalization(2, momentum=0.5, dtype="float64")
    x, y = pt.dmatrices("xy")
    f = pytensor.function([x, y], layer(x) + layer(y), updates=layer.updates(), mode=PERFORM_MODE)
    a, b = 10 + normal(4, 2), normal(4, 2) - 10
    f(a, b)
    wanted = 0.5 * (0.5 * a.mean(axis=0)) + 0.5 * b.mean(axis=0)
    np.testing.assert_allclose(layer.running_mean.get_value(), wanted, rtol=1e-12)
    assert layer.eval().updates() == {}
    layer(x)
    assert layer.updates() == {}


def test_float16_normalization_keeps_its_statistics_in_float32():
    layer = layers.BatchNormalization(1, momentum=1.0, dtype="float16")
    x = (400 * normal(500, 1)).astype("float16")
    variable = pt.matrix(dtype="float16")
    train = pytensor.function(
        [variable], layer(variable), updates=layer.updates(), mode=PERFORM_MODE
    )
    assert train(x).dtype == "float16"
    assert layer.running_var.get_value().dtype == "float32"
    np.testing.assert_allclose(layer.running_var.get_value(), x.astype("f8").var(ddof=1), rtol=0.01)
    np.testing.assert_allclose(run(layer.eval(), x).std(), 1, rtol=0.01)


@pytest.mark.parametrize(
    ("layer", "ndim"),
    [
        (layers.SpatialConvolution(2, 3, 1, 1, dtype="float64"), 4),
        (layers.BatchNormalization(2, dtype="float64"), 2),
        (layers.LayerNorm(2, dtype="float64"), 2),
        (layers.Linear(2, 3, dtype="float64"), 2),
        (layers.GRU(2, 3, dtype="float64"), 3),
        (layers.MultiHeadAttention(2, 1, dtype="float64"), 3),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, layers.Layer) else "",
)
def test_inputs_of_another_dtype(layer, ndim):
    layer(pt.tensor(dtype="float64", shape=(None,) * ndim))
    x = pt.tensor(dtype="float32", shape=(None,) * ndim)
    with pytest.raises(DnnTypeError, match="has dtype float32, but the layer has float64; make"):
        layer(x)


def test_layers_in_attributes_of_containers_and_collections():
    class Net(layers.Sequential):
        def __init__(self):
            super().__init__(layers.Linear(3, 4))
            self.head = layers.Dropout()
            self.pair = (layers.Linear(4, 4), [layers.Linear(4, 2)])
            self.named = {"last": layers.Linear(2, 1, False)}

    net = Net().eval()
    assert list(net.named_parameters()) == [
        "0.weight",
        "0.bias",
        "pair.0.weight",
        "pair.0.bias",
        "pair.1.0.weight",
        "pair.1.0.bias",
        "named.last.weight",
    ]
    assert not net.head.training


def test_shared_weights():
    embedding = layers.Embedding(7, 3, dtype="float64")
    out = layers.Linear(3, 7, False, dtype="float64")
    out.weight = embedding.weight
    net = layers.Sequential(embedding, out)
    assert list(net.named_parameters()) == ["0.weight"]
    assert list(net.state_dict()) == ["0.weight", "1.weight"]
    tokens = pt.lvector()
    updates = optim.sgd(net(tokens).sum(), net, 0.1)
    pytensor.function([tokens], [], updates=updates, mode=PERFORM_MODE)(np.array([1, 2]))
    state = net.state_dict()
    np.testing.assert_array_equal(state["0.weight"], state["1.weight"])
    biased = layers.Linear(3, 7)
    biased.bias = None
    assert list(biased.state_dict()) == ["weight"]
    assert repr(biased).endswith("without bias")
    with pytest.raises(DnnValueError, match="weight must be None or a shared variable of shape"):
        out.weight = pytensor.shared(np.zeros((2, 2)), shape=(2, 2))


@pytest.mark.parametrize("name", ["updates", "rng", "training", "forward", "a.b", "weight"])
def test_names_that_are_taken(name):
    layer = layers.Linear(2, 3)
    with pytest.raises(DnnValueError, match="cannot be the name of a parameter"):
        layer.parameter(name, (2,), layers.constant(0))


def test_copies():
    net = layers.Sequential(layers.BatchNormalization(2), layers.Linear(2, 3), layers.LSTM(3, 2))
    net[:2](pt.matrix("x", dtype=net[0].dtype))
    size = len(pickle.dumps(layers.Sequential(*net).eval().train()))
    net[:2](pt.matrix("x", dtype=net[0].dtype))
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert other.updates() == {}
        assert not set(other.parameters()) & set(net.parameters())
        for name, value in net.state_dict().items():
            np.testing.assert_array_equal(other.state_dict()[name], value)
    # The graph of the call is not stored.
    assert len(pickle.dumps(net)) < 1.1 * size


def test_a_seed_repeats_initial_values():
    found = []
    for _ in range(2):
        layers.seed(5)
        found.append(layers.Sequential(layers.Linear(3, 4), layers.LSTM(2, 3)).state_dict())
    for name, value in found[0].items():
        np.testing.assert_array_equal(value, found[1][name])
    layer = layers.Dropout()
    layers.seed(3)
    drawn = layer.draw_seed()
    layers.seed(3)
    assert layer.draw_seed() == drawn
    with pytest.raises(DnnTypeError, match="seed: value must be an int"):
        layers.seed("5")
    with pytest.raises(DnnValueError, match="must not be negative"):
        layers.seed(-1)
    with pytest.raises(DnnTypeError, match="Generator or a non-negative seed"):
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


def write(path: Path, **entries: tuple[str, np.ndarray]) -> None:
    """Write a safetensors file: the length of the header, the header, and the arrays."""
    header, data = {}, b""
    for name, (dtype, array) in entries.items():
        places = [len(data), len(data) + array.nbytes]
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": places}
        data += array.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def test_other_files(tmp_path: Path):
    """bfloat16 is the upper half of float32."""
    net, path = layers.Linear(2, 1, dtype="float32"), tmp_path / "net.safetensors"
    halves = (np.array([[1.5, -2]], "<f4").view("<u4") >> 16).astype("<u2")
    write(path, weight=("BF16", halves), bias=("I64", np.array([3])))
    net.load(path)
    np.testing.assert_array_equal(net.weight.get_value(), [[1.5, -2]])
    np.testing.assert_array_equal(net.bias.get_value(), [3])
    write(path, weight=("F8_E5M2", np.array([3], "u1")))
    with pytest.raises(DnnValueError, match="weight has the dtype F8_E5M2, which NumPy"):
        net.load(path)


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


def test_saving_keeps_the_mode_and_links(tmp_path: Path):
    net, file, link = layers.Linear(2, 3), tmp_path / "net.safetensors", tmp_path / "latest"
    net.save(file)
    file.chmod(0o600)
    link.symlink_to(file.name)
    net.weight.set_value(net.weight.get_value() + 1)
    net.save(link)
    assert link.is_symlink()
    assert file.stat().st_mode & 0o777 == 0o600
    other = layers.Linear(2, 3)
    other.load(file)
    np.testing.assert_array_equal(other.weight.get_value(), net.weight.get_value())


@pytest.mark.parametrize("path", ["/dev/full", "/dev"])
def test_devices_and_folders_are_not_replaced(path):
    before = os.stat(path)
    with pytest.raises(DnnValueError, match="is not a regular file but a"):
        layers.Linear(2, 3).save(path)
    assert (os.stat(path).st_ino, os.stat(path).st_rdev) == (before.st_ino, before.st_rdev)


def test_a_device_without_an_end_is_not_read():
    with pytest.raises(DnnValueError, match="is a device"):
        layers.Linear(2, 3).load("/dev/zero")


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
    x = normal(2, 3, 4, 5)
    found = run(layers.SoftMax(), x)
    np.testing.assert_allclose(found.sum(axis=(1, 2, 3)), 1)
    np.testing.assert_allclose(np.log(found), run(layers.LogSoftMax(), x), rtol=1e-6)
    # One image, a batch of vectors, one vector.
    np.testing.assert_allclose(run(layers.SoftMax(), x[0]), found[0], rtol=1e-12)
    np.testing.assert_allclose(run(layers.SoftMax(True), x[0, 0]).sum(axis=1), 1)
    np.testing.assert_allclose(run(layers.SoftMax(), x[0, 0, 0]).sum(), 1)


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
    with pytest.raises(DnnValueError, match="algo must be"):
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
            lambda: layers.SpatialAveragePooling(3, 3, pad_w=1).ceil(),
            DnnNotSupportedError,
            "does not support averages with padding",
        ),
        (lambda: layers.View(2, -1, -1), DnnValueError, "one of them -1"),
        (lambda: layers.View("a"), DnnTypeError, "sizes must be ints"),
        (lambda: layers.Dropout(1.5), DnnValueError, "at most 1"),
        (
            lambda: layers.SpatialAveragePooling(64, 64)(pt.zeros((2, 3, 8, 8))),
            DnnValueError,
            r"windows of \(64, 64\) with a padding of \(0, 0\) are larger than the input",
        ),
        (lambda: layers.LayerNorm(3)(pt.dmatrix().reshape((2, 4))), DnnValueError, "must be"),
        (lambda: layers.GroupNorm(2, 5), DnnValueError, "must divide"),
        (lambda: layers.MultiHeadAttention(8, 3), DnnValueError, "must divide"),
        (lambda: layers.ClippedReLU(-1.0), DnnValueError, "ceiling"),
        (lambda: layers.LSTM(3, 4, mode="gru"), DnnValueError, "the mode is lstm"),
        (lambda: layers.BGRU(3, 4, bidirectional=False), DnnValueError, "must be True"),
        (lambda: layers.Linear(3, 4, initializer=1), DnnTypeError, "must be callable"),
        (lambda: layers.CrossEntropyCriterion(np.ones((2, 2))), DnnValueError, "a vector"),
        (lambda: layers.SoftMax()(pt.dscalar()), DnnTypeError, "1 to 5 dimensions"),
        (lambda: layers.BatchNormalization(3)(pt.dvector()), DnnTypeError, "needs a batch"),
        (lambda: layers.BatchNormalization(3, momentum=2), DnnValueError, "momentum"),
        (lambda: layers.RNN(3, 4, mode="rnn"), DnnValueError, "rnn_mode must be one of"),
        (
            lambda: layers.SpatialCrossEntropyCriterion()(pt.dmatrix(), pt.lvector()),
            DnnTypeError,
            "scores must have 4 dimensions",
        ),
        (lambda: layers.Layer()(1), NotImplementedError, "Layer defines no forward"),
    ],
)
def test_errors(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_labels_of_another_shape():
    criterion = layers.SpatialCrossEntropyCriterion()
    scores = pt.tensor("s", dtype="float64", shape=(2, 3, 4, 5))
    with pytest.raises(DnnValueError, match="scores"):
        criterion(scores, pt.tensor("y", dtype="int64", shape=(2, 5, 4)))
    scores, labels = pt.dtensor4(), pt.ltensor3()
    f = pytensor.function([scores, labels], criterion(scores, labels), mode=PERFORM_MODE)
    rng = np.random.default_rng(0)
    x, y = normal(2, 3, 4, 5), rng.integers(0, 3, (2, 4, 5))
    assert f(x, y) > 0
    with pytest.raises(DnnValueError, match="must have the same batch and spatial sizes"):
        f(x, y.reshape(2, 5, 4))


def test_weights_of_classes():
    x, y = normal(5, 3), np.array([0, 2, 1, 2, 0])
    weights = np.array([1.0, 0.5, 2.0])
    logs = x - np.log(np.exp(x).sum(axis=1, keepdims=True))
    losses = -logs[np.arange(5), y] * weights[y]
    for average, divisor in ((True, weights[y].sum()), (False, 1)):
        loss = layers.CrossEntropyCriterion(weights, average)(pt.constant(x), pt.constant(y))
        np.testing.assert_allclose(loss.eval(mode=PERFORM_MODE), losses.sum() / divisor, rtol=1e-9)


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
    # 6 parameters have two averages each, and the step is counted once.
    assert len(updates.state) == 2 * 6 + 1

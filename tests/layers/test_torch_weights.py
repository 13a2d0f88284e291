"""Layers with the weights of PyTorch's modules give the same results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from dnnops import layers
from dnnops.errors import DnnTypeError, DnnValueError
from tests.layers.networks import ResNet, torch_resnet
from tests.oracle import PERFORM_MODE

pytestmark = pytest.mark.needs("torch")


@pytest.fixture(autouse=True)
def float32():
    with pytensor.config.change_flags(floatX="float32"):
        yield


def normal(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


def shaken(module: Any) -> Any:
    """Give every parameter and buffer of a module random values, so that each matters."""
    import torch

    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, value in module.state_dict().items():
            if value.is_floating_point():
                noise = torch.randn(value.shape, generator=generator)
                # Deviations may be small, but not negative.
                value += 0.1 * (noise.abs() if name.endswith("var") else noise)
    return module.eval()


def outputs(net: Callable[..., Any], *arrays: np.ndarray, mode: Any = PERFORM_MODE) -> Any:
    """Return the result of a network that is built for the arrays' types."""
    inputs = [pt.tensor(dtype=a.dtype.name, shape=a.shape) for a in arrays]
    return pytensor.function(inputs, net(*inputs), mode=mode)(*arrays)


def expected(module: Any, *arrays: np.ndarray) -> np.ndarray:
    """Return the result of a module."""
    import torch

    with torch.no_grad():
        found = module(*map(torch.from_numpy, arrays))
    return (found[0] if isinstance(found, tuple) else found).numpy()


CASES: dict[str, tuple[Callable[[], layers.Layer], Callable[[Any], Any], np.ndarray]] = {
    "conv": (
        lambda: layers.SpatialConvolution(4, 6, 3, 2, 2, 1, 1, 0, 2, dilation_h=2),
        lambda nn: nn.Conv2d(4, 6, (2, 3), (1, 2), (0, 1), (2, 1), 2),
        normal(2, 4, 7, 6),
    ),
    "conv3d": (
        lambda: layers.VolumetricConvolution(4, 6, 1, 3, 2, 1, 2, 1, 0, 1, 1),
        lambda nn: nn.Conv3d(4, 6, (1, 2, 3), (1, 1, 2), (0, 1, 1)),
        normal(2, 4, 3, 6, 5),
    ),
    "full": (
        lambda: layers.SpatialFullConvolution(4, 6, 3, 2, 2, 3, 1, 0, 1, 2, 2),
        lambda nn: nn.ConvTranspose2d(4, 6, (2, 3), (3, 2), (0, 1), (2, 1), 2),
        normal(2, 4, 5, 6),
    ),
    "full3d": (
        lambda: layers.VolumetricFullConvolution(4, 3, 2, 3, 2, 2, 1, 3, 0, 1, 0, 1, 0, 2),
        lambda nn: nn.ConvTranspose3d(4, 3, (2, 2, 3), (2, 3, 1), (0, 0, 1), (1, 2, 0)),
        normal(2, 4, 2, 3, 4),
    ),
    "max pool": (
        lambda: layers.SpatialMaxPooling(3, 2, 2, 1, 1, 0),
        lambda nn: nn.MaxPool2d((2, 3), (1, 2), (0, 1)),
        normal(2, 4, 7, 6),
    ),
    "max pool ceil with padding": (
        lambda: layers.SpatialMaxPooling(3, 2, 2, 2, 1, 1).ceil(),
        lambda nn: nn.MaxPool2d((2, 3), 2, (1, 1), ceil_mode=True),
        normal(2, 3, 9, 10),
    ),
    "max pool ceil": (
        lambda: layers.SpatialMaxPooling(3, 2, 2, 2).ceil(),
        lambda nn: nn.MaxPool2d((2, 3), 2, ceil_mode=True),
        normal(2, 4, 7, 6),
    ),
    "average pool": (
        lambda: layers.SpatialAveragePooling(3, 2, 2, 1, 1, 1),
        lambda nn: nn.AvgPool2d((2, 3), (1, 2), (1, 1)),
        normal(2, 4, 7, 6),
    ),
    "average pool 3d": (
        lambda: layers.VolumetricAveragePooling(2, 3, 2),
        lambda nn: nn.AvgPool3d((2, 2, 3)),
        normal(2, 4, 4, 6, 7),
    ),
    "batch norm": (
        lambda: layers.SpatialBatchNormalization(4),
        lambda nn: nn.BatchNorm2d(4),
        normal(2, 4, 7, 6),
    ),
    "batch norm 1d": (
        lambda: layers.BatchNormalization(4, 1e-3, affine=False),
        lambda nn: nn.BatchNorm1d(4, 1e-3, affine=False),
        normal(5, 4),
    ),
    "layer norm": (
        lambda: layers.LayerNorm((7, 6)),
        lambda nn: nn.LayerNorm((7, 6)),
        normal(2, 4, 7, 6),
    ),
    "rms norm": (lambda: layers.RMSNorm(6, 1e-3), lambda nn: nn.RMSNorm(6, 1e-3), normal(2, 4, 6)),
    "group norm": (
        lambda: layers.GroupNorm(2, 4),
        lambda nn: nn.GroupNorm(2, 4),
        normal(2, 4, 7, 6),
    ),
    "lrn": (
        lambda: layers.SpatialCrossMapLRN(3, 0.5, 0.6, 1.5),
        lambda nn: nn.LocalResponseNorm(3, 0.5, 0.6, 1.5),
        normal(2, 4, 7, 6),
    ),
    "linear": (lambda: layers.Linear(6, 3), lambda nn: nn.Linear(6, 3), normal(2, 4, 6)),
    "gelu": (lambda: layers.GELU(), lambda nn: nn.GELU(), 4 * normal(50)),
    "gelu tanh": (lambda: layers.GELU(True), lambda nn: nn.GELU("tanh"), 4 * normal(50)),
    "softmax": (
        lambda: layers.SpatialSoftMax(),
        lambda nn: nn.Softmax(dim=1),
        normal(2, 4, 7, 6),
    ),
    "log softmax": (lambda: layers.LogSoftMax(), lambda nn: nn.LogSoftmax(dim=1), normal(2, 4)),
    "lstm": (
        lambda: layers.LSTM(5, 3, 2, proj_size=2),
        lambda nn: nn.LSTM(5, 3, 2, proj_size=2),
        normal(4, 2, 5),
    ),
    "blstm": (
        lambda: layers.BLSTM(5, 3, 2, batch_first=True),
        lambda nn: nn.LSTM(5, 3, 2, batch_first=True, bidirectional=True),
        normal(2, 4, 5),
    ),
    "gru": (lambda: layers.GRU(5, 3, 2), lambda nn: nn.GRU(5, 3, 2), normal(4, 2, 5)),
    "rnn": (
        lambda: layers.RNN(5, 3),
        lambda nn: nn.RNN(5, 3, nonlinearity="relu"),
        normal(4, 2, 5),
    ),
    "encoder": (
        lambda: layers.TransformerEncoderLayer(8, 2, 16),
        lambda nn: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
        normal(2, 4, 8),
    ),
    "encoder gelu": (
        lambda: layers.TransformerEncoderLayer(8, 4, 16, 0.0, "gelu", 1e-4, True, False),
        lambda nn: nn.TransformerEncoderLayer(
            8, 4, 16, 0.0, "gelu", 1e-4, batch_first=True, norm_first=True, bias=False
        ),
        normal(2, 4, 8),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_equal_outputs(name):
    from torch import nn

    make, make_torch, x = CASES[name]
    module = shaken(make_torch(nn))
    net = layers.from_torch(make(), module).eval()
    np.testing.assert_allclose(outputs(net, x), expected(module, x), rtol=2e-5, atol=2e-6)


def test_equal_outputs_of_attention():
    import torch

    module = shaken(torch.nn.MultiheadAttention(8, 2, batch_first=True))
    net = layers.from_torch(layers.MultiHeadAttention(8, 2), module).eval()
    query, key, value = normal(2, 4, 8), normal(2, 5, 8), 2 * normal(2, 5, 8)
    for arrays in ((query, key, value), (query, query, query)):
        wanted = expected(module, *arrays)
        np.testing.assert_allclose(outputs(net, *arrays), wanted, rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(outputs(net, query), wanted, rtol=2e-5, atol=2e-6)


def test_states_after_the_last_step():
    import torch

    module = shaken(torch.nn.LSTM(5, 3, 2))
    net = layers.from_torch(layers.LSTM(5, 3, 2), module).eval()
    x, h, c = normal(4, 2, 5), normal(2, 2, 3), normal(2, 2, 3)
    found = outputs(lambda *a: list(net(*a, states=True)), x, h, c)
    with torch.no_grad():
        y, (hy, cy) = module(torch.from_numpy(x), tuple(map(torch.from_numpy, (h, c))))
    for got, wanted in zip(found, (y, hy, cy), strict=True):
        np.testing.assert_allclose(got, wanted.numpy(), rtol=2e-5, atol=2e-6)


def test_criterion():
    import torch

    x, y = normal(2, 3, 4, 5), np.random.default_rng(1).integers(0, 3, (2, 4, 5))
    for average, word in ((True, "mean"), (False, "sum")):
        found = outputs(layers.SpatialCrossEntropyCriterion(None, average), x, y)
        wanted = expected(torch.nn.CrossEntropyLoss(reduction=word), x, y)
        np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_training_statistics():
    import torch

    module = shaken(torch.nn.BatchNorm2d(4, momentum=0.2)).train()
    net = layers.from_torch(layers.SpatialBatchNormalization(4, momentum=0.2), module)
    x = normal(3, 4, 5, 6)
    variable = pt.tensor4("x", dtype="float32")
    out = net(variable)
    f = pytensor.function([variable], out, updates=net.updates(), mode=PERFORM_MODE)
    np.testing.assert_allclose(f(x), expected(module, x), rtol=1e-5, atol=1e-6)
    for name in ("running_mean", "running_var"):
        wanted = getattr(module, name).numpy()
        np.testing.assert_allclose(getattr(net, name).get_value(), wanted, rtol=1e-5, atol=1e-6)


def test_resnet_50():
    module = shaken(torch_resnet())
    net = layers.from_torch(ResNet(), module).eval()
    x = normal(1, 3, 48, 40)
    wanted = expected(module, x)
    found = outputs(net, x, mode="ONEDNN")
    assert np.linalg.norm(found - wanted) <= 1e-4 * np.linalg.norm(wanted)


def test_back_to_torch():
    import torch

    module = shaken(torch_resnet(8, 10, (1, 2)))
    state = layers.to_torch(layers.from_torch(ResNet(8, 10, (1, 2)), module))
    other = torch_resnet(8, 10, (1, 2)).eval()
    other.load_state_dict({name: torch.from_numpy(value) for name, value in state.items()})
    x = normal(1, 3, 32, 32)
    np.testing.assert_array_equal(expected(other, x), expected(module, x))
    lstm = shaken(torch.nn.LSTM(5, 3, 2, bidirectional=True))
    state = layers.to_torch(layers.from_torch(layers.BLSTM(5, 3, 2), lstm))
    assert list(state) == list(lstm.state_dict())


def test_wrong_weights():
    import torch

    net = layers.Linear(3, 2)
    before = net.state_dict()
    with pytest.raises(DnnValueError, match=r"weight has shape \(2, 4\), expected \(2, 3\)"):
        layers.from_torch(net, torch.nn.Linear(4, 2))
    with pytest.raises(DnnTypeError, match="a module or its state"):
        layers.from_torch(net, [1])
    with pytest.raises(DnnTypeError, match="a module or its state"):
        layers.from_torch(net, torch.nn.Linear)
    checkpoint = {"epoch": 3, "model": torch.nn.Linear(3, 2).state_dict(), "optimizer": {}}
    with pytest.raises(DnnTypeError, match="under 'model', 'optimizer': pass the one of the mod"):
        layers.from_torch(net, checkpoint)
    with pytest.raises(DnnTypeError, match="must be a layer"):
        layers.from_torch(torch.nn.Linear(3, 2), net)
    with pytest.raises(DnnTypeError, match="must be a layer"):
        layers.to_torch(torch.nn.Linear(3, 2))
    for name, value in net.state_dict().items():
        np.testing.assert_array_equal(value, before[name])


def tensors_without_numbers():
    """Return tensors that NumPy can't read, and what to do about them."""
    import torch

    weight = torch.ones(2, 3)
    yield torch.empty(2, 3, device="meta"), "a meta tensor without values; load the values"
    yield torch.nn.LazyLinear(2).weight, "lazy tensor without values; call its module"
    yield weight.to_sparse(), r"layout torch.sparse_coo; convert it with to_dense\(\)"
    yield weight.to_sparse_csr(), r"layout torch.sparse_csr; convert it with to_dense\(\)"
    quantized = torch.quantize_per_tensor(weight, 0.1, 0, torch.qint8)
    yield quantized, r"quantized tensor; convert it with dequantize\(\)"
    yield weight.to(torch.complex64).conj(), r"complex tensor; convert it with view_as_real\(\)"
    yield torch.nested.nested_tensor([torch.ones(3)] * 2), "nested tensor; convert it with"


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_tensors_that_have_no_array():
    net = layers.Linear(3, 2, bias=False)
    for tensor, message in tensors_without_numbers():
        with pytest.raises(
            DnnTypeError, match=f"weight must be an array of numbers, got .*{message}"
        ):
            layers.from_torch(net, {"weight": tensor})


def wrapped_modules():
    """Return modules whose weights have other names, and what to do about them."""
    import torch
    from torch.nn import utils
    from torch.nn.utils import prune

    def linear():
        return torch.nn.Linear(3, 2)

    yield utils.weight_norm(linear()), r"remove_weight_norm\(module, 'weight'\)"
    yield utils.spectral_norm(linear()), r"remove_spectral_norm\(module, 'weight'\)"
    for norm in ("weight_norm", "spectral_norm", "orthogonal"):
        module = getattr(utils.parametrizations, norm)(linear())
        yield module, r"parametrize.remove_parametrizations\(module, 'weight'\)"
    yield prune.random_unstructured(linear(), "weight", 0.5), "prune.remove"
    yield torch.nn.DataParallel(linear()), "pass its attribute `module`"
    yield torch.compile(linear()), "pass its attribute `_orig_mod`"


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_reparametrized_and_wrapped_modules():
    import torch

    net = layers.Linear(3, 2)
    for module, message in wrapped_modules():
        with pytest.raises(DnnValueError, match=rf"weight is missing(.|\n)*{message}"):
            layers.from_torch(net, module)
    module = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(3, 2))
    plain = torch.nn.utils.parametrize.remove_parametrizations(module, "weight")
    layers.from_torch(net, plain)
    np.testing.assert_array_equal(net.state_dict()["weight"], plain.weight.detach())


@pytest.mark.parametrize("kind", ["linear", "conv", "conv3d", "full", "lstm", "encoder"])
def test_initial_values_have_the_distribution_of_torch(kind):
    """Compares bounds and standard deviations of large layers."""
    from torch import nn

    make, make_torch = {
        "linear": (lambda: layers.Linear(200, 300), lambda: nn.Linear(200, 300)),
        "conv": (
            lambda: layers.SpatialConvolution(40, 60, 5, 3, groups=2),
            lambda: nn.Conv2d(40, 60, (3, 5), groups=2),
        ),
        "conv3d": (
            lambda: layers.VolumetricConvolution(20, 30, 3, 3, 3),
            lambda: nn.Conv3d(20, 30, 3),
        ),
        "full": (
            lambda: layers.SpatialFullConvolution(40, 60, 3, 3),
            lambda: nn.ConvTranspose2d(40, 60, 3),
        ),
        "lstm": (lambda: layers.LSTM(50, 60), lambda: nn.LSTM(50, 60)),
        "encoder": (
            lambda: layers.TransformerEncoderLayer(64, 4, 256),
            lambda: nn.TransformerEncoderLayer(64, 4, 256),
        ),
    }[kind]
    found = make().state_dict()
    for name, wanted in make_torch().state_dict().items():
        got, values = found[name], wanted.numpy()
        if values.size < 1000:
            assert abs(got).max() <= 1.2 * abs(values).max() + 1e-9
            assert abs(values).max() <= 1.2 * abs(got).max() + 1e-9
        else:
            assert abs(got).max() == pytest.approx(abs(values).max(), rel=0.05), name
            assert got.std() == pytest.approx(values.std(), rel=0.05), name

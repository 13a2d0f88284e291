"""Networks of layers on a GPU train as on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from dnnops import layers, optim
from dnnops.gpuarray import put_shared_on_gpu
from dnnops.gpuarray.op import is_on_device

pytestmark = pytest.mark.gpu

STEPS = 5


@contextmanager
def shared_on_gpu(enabled: bool) -> Iterator[None]:
    put_shared_on_gpu(enabled)
    try:
        yield
    finally:
        put_shared_on_gpu(False)


def convolutional() -> layers.Layer:
    return layers.Sequential(
        # A bias before batch normalization has no gradient but rounding, which Adam scales up.
        layers.SpatialConvolution(3, 8, 3, 3, pad_w=1, pad_h=1, bias=False),
        layers.SpatialBatchNormalization(8),
        layers.ReLU(),
        layers.Residual(layers.SpatialConvolution(8, 8, 1, 1), layers.GELU()),
        layers.SpatialMaxPooling(2, 2),
        layers.GroupNorm(2, 8),
        layers.View(-1),
        layers.Linear(8 * 4 * 4, 5),
    )


def recurrent() -> layers.Layer:
    return layers.Sequential(
        layers.Embedding(50, 16),
        layers.BLSTM(16, 8, batch_first=True),
        layers.TransformerEncoderLayer(16, 2, 32, dropout=0.0),
        layers.RMSNorm(16),
        lambda x: x.mean(axis=1),
        layers.Linear(16, 5),
    )


def data(name: str) -> np.ndarray:
    rng = np.random.default_rng(0)
    if name == "recurrent":
        return rng.integers(0, 50, (6, 7))
    return rng.standard_normal((6, 3, 8, 8)).astype("float32")


NETWORKS: dict[str, Callable[[], layers.Layer]] = {
    "convolutional": convolutional,
    "recurrent": recurrent,
}


@pytest.mark.parametrize("optimizer", [optim.adamw, optim.rmsprop], ids=["adamw", "rmsprop"])
@pytest.mark.parametrize("name", NETWORKS)
def test_training(name, optimizer, tmp_path):
    found = {}
    for mode in ("ONEDNN", "CUDNN"):
        with (
            pytensor.config.change_flags(floatX="float32"),
            shared_on_gpu(mode == "CUDNN"),
        ):
            layers.seed(0)
            net = NETWORKS[name]()
            values = data(name)
            x = pt.tensor(dtype=values.dtype.name, shape=(None, *values.shape[1:]))
            y = pt.lvector()
            loss = layers.CrossEntropyCriterion()(net(x), y)
            gradients = optim.clip_by_norm(pytensor.grad(loss, net.parameters()), 1.0)
            updates = optimizer(gradients, net, optim.cosine(0.01, 20)) | net.updates()
            f = pytensor.function([x, y], loss, updates=updates, mode=mode)
        on_gpu = any(map(is_on_device, f.maker.fgraph.variables))
        assert on_gpu == (mode == "CUDNN")
        losses = [float(f(values, np.arange(6) % 5)) for _ in range(STEPS)]
        found[mode] = losses, net.state_dict(), updates.state_dict()
        net.save(tmp_path / mode)
        net.load(tmp_path / "ONEDNN")
    (cpu, cpu_state, cpu_optimizer), (gpu, gpu_state, gpu_optimizer) = found.values()
    np.testing.assert_allclose(gpu, cpu, rtol=2e-4)
    assert list(gpu_state) == list(cpu_state)
    assert list(gpu_optimizer) == list(cpu_optimizer)
    for key, value in cpu_state.items():
        # Adam and RMSprop scale up small gradients, with their errors.
        np.testing.assert_allclose(gpu_state[key], value, rtol=0.05, atol=5e-3, err_msg=key)

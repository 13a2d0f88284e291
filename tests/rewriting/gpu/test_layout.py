"""Which images of a graph on the GPU are channels-last; needs a device only to run graphs."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from benchmarks import model_zoo
from benchmarks.peers.models.dnnops_cpu import training_step
from dnnops import nnet
from dnnops.gpu.conv import GpuDnnConvBase, GpuDnnConvGradW
from dnnops.gpu.pool import GpuDnnPoolBase
from dnnops.gpuarray import GpuArrayType
from dnnops.gpuarray.transfer import host_from_gpu
from dnnops.modes import CudnnMode
from tests.gpuarray.graphs import rewritten, to_device, to_host
from tests.oracle import SEED, assert_close

MODE = CudnnMode()
FORMATTED = (GpuDnnConvBase, GpuDnnPoolBase)


@pytest.fixture(autouse=True)
def without_probing():
    """Rewrite as if cuDNN worked, even on machines without a GPU."""
    with pytensor.config.change_flags(dnn__enabled="no_check"):
        yield


def device(*shape, dtype="float32"):
    return GpuArrayType(dtype, shape)()


def formats(inputs, outputs, mode=MODE):
    """Return the memory formats of the results of convolutions and pooling."""
    nodes = rewritten(inputs, outputs, mode).toposort()
    return [node.op.memory_format for node in nodes if isinstance(node.op, FORMATTED)]


def block(dtype, **options):
    """Return the operands and the result of a convolution, relu, pooling and a convolution."""
    x, v, w = (device(None, *shape, dtype=dtype) for shape in ((4, 8, 8), (4, 3, 3), (6, 3, 3)))
    z = nnet.relu(nnet.conv2d(host_from_gpu(x), host_from_gpu(v), **options))
    z = nnet.pool_2d(z, (2, 2), ignore_border=True)
    return [x, v, w], nnet.conv2d(z, host_from_gpu(w), **options).transfer("cuda")


@pytest.mark.parametrize(
    ("dtype", "allow_tf32", "algo", "expected"),
    [
        ("float16", False, "guess_once", "channels_last"),
        ("float32", True, "guess_once", "channels_last"),
        ("float32", True, "time_on_shape_change", "channels_last"),
        ("float32", False, "guess_once", "contiguous"),
        # An algorithm that supports only contiguous arrays may have been selected.
        ("float32", True, "fft", "contiguous"),
        ("float64", True, "guess_once", "contiguous"),
    ],
)
def test_only_tensor_cores_prefer_channels_last(dtype, allow_tf32, algo, expected):
    with pytensor.config.change_flags(dnn__allow_tf32=allow_tf32, dnn__conv__algo_fwd=algo):
        operands, out = block(dtype)
        assert formats(operands, [out]) == [expected] * 3


def test_parts_that_share_no_image_are_decided_separately():
    operands, half = block("float16")
    others, single = block("float32")
    found = formats([*operands, *others], [half, single])
    assert sorted(found) == ["channels_last"] * 3 + ["contiguous"] * 3


def test_a_part_has_one_format():
    """Most convolutions of connected images decide for all of them."""
    operands, half = block("float16")
    w = device(5, 6, 1, 1)
    wide = nnet.conv2d(pt.cast(host_from_gpu(half), "float32"), host_from_gpu(w))
    assert formats([*operands, w], [wide.transfer("cuda")]) == ["channels_last"] * 4


def test_grouped_convolutions_follow_the_others():
    x, w, v = device(None, 8, 9, 9), device(8, 1, 3, 3), device(6, 8, 1, 1)
    depthwise = nnet.conv2d(host_from_gpu(x), host_from_gpu(w), num_groups=8)
    with pytensor.config.change_flags(dnn__allow_tf32=True):
        assert formats([x, w], [depthwise.transfer("cuda")]) == ["contiguous"]
        both = nnet.conv2d(depthwise, host_from_gpu(v))
        assert formats([x, w, v], [both.transfer("cuda")]) == ["channels_last"] * 2


def test_sequences_stay_contiguous():
    x, w = device(None, 4, 9, dtype="float16"), device(5, 4, 3, dtype="float16")
    out = nnet.conv1d(host_from_gpu(x), host_from_gpu(w)).transfer("cuda")
    assert formats([x, w], [out]) == ["contiguous"]


def test_the_pass_can_be_excluded():
    operands, out = block("float16")
    assert formats(operands, [out], MODE.excluding("channels_last")) == ["contiguous"] * 3


@pytest.mark.parametrize("name", ["resnet", "vgg", "mobilenet", "unet"])
def test_training_steps_keep_images_channels_last(name):
    inputs, loss, updates = training_step(name, model_zoo.MODELS[name].sizes)
    with pytensor.config.change_flags(dnn__allow_tf32=True):
        graph = rewritten(
            [*inputs, *(s for s, _ in updates)], [loss, *(u for _, u in updates)], MODE
        )
    found = {
        node.op.memory_format
        for node in graph.toposort()
        if isinstance(node.op, FORMATTED) and not isinstance(node.op, GpuDnnConvGradW)
    }
    assert found == {"channels_last"}


@pytest.mark.gpu
@pytest.mark.parametrize("pool", ["max", "average_inc_pad"])
def test_gradients_are_the_same_in_both_formats(pool):
    """With strides, padding, concatenation, a slice of channels and broadcast operands."""
    rng = np.random.default_rng(SEED)
    draw = lambda *shape: (0.3 * rng.standard_normal(shape)).astype("float32")  # noqa: E731
    arrays = [draw(3, 5, 13, 11), draw(8, 5, 3, 3), draw(6, 16, 3, 3), draw(6), draw(6, 6, 2, 2)]
    variables = [device(*(None,) * array.ndim) for array in arrays]
    x, v, w, bias, up = map(host_from_gpu, variables)
    z = nnet.conv2d(x, v, border_mode="half")
    z = nnet.relu(pt.concatenate([z, z[:, ::-1] * 2], axis=1))
    z = nnet.conv2d(z, w, subsample=(2, 2))
    mean, scale = z.mean(axis=(0, 2, 3), keepdims=True), z.std(axis=(0, 2, 3), keepdims=True)
    z = (z - mean) / scale + bias.dimshuffle("x", 0, "x", "x")
    z = nnet.pool_2d(z, (2, 2), True, stride=(1, 1), pad=(1, 1), mode=pool)
    shape = (None, None, 2 * z.shape[2], 2 * z.shape[3])
    z = nnet.conv2d_transpose(z, up, shape, input_dilation=(2, 2))
    outputs = [z, *pytensor.grad((z**2).sum() + z[:, 2:4].sum(), [x, v, w, bias, up])]
    outputs = [out.transfer("cuda") for out in outputs]
    results = []
    for mode in (MODE, MODE.excluding("channels_last")):
        with pytensor.config.change_flags(dnn__allow_tf32=True):
            f = pytensor.function(variables, outputs, mode=mode)
        results.append([to_host(out) for out in f(*map(to_device, arrays))])
    for got, wanted in zip(*results, strict=True):
        assert_close(got, wanted, bound=2e-3)

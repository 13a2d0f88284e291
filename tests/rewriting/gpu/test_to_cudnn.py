"""Graphs on cuDNN: their nodes, without a GPU, and their results with one."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.aliasing import add_supervisor_to_fgraph
from pytensor.compile.io import In
from pytensor.compile.mode import get_mode
from pytensor.graph.fg import FunctionGraph

from dnnops import dnn, nnet
from dnnops.errors import DnnUnavailableError
from dnnops.gpu.base import CudnnOp
from dnnops.gpuarray.transfer import GpuFromHost, HostFromGpu, as_gpuarray_variable
from dnnops.gpuarray.type import GpuArrayType
from tests.gpu.device import on_gpu
from tests.oracle import assert_close

GPU_MODE = get_mode("CVM").including("gpu")


@pytest.fixture(autouse=True)
def without_probing():
    """Rewrite as if cuDNN worked, even on machines without a GPU."""
    with pytensor.config.change_flags(dnn__enabled="no_check", floatX="float32"):
        yield


def tensors(count: int, dtype: str = "float32") -> list:
    return [pt.tensor(dtype=dtype, shape=(None,) * 4) for _ in range(count)]


def rewritten(inputs, outputs, mode=GPU_MODE, mutable=()) -> FunctionGraph:
    fgraph = FunctionGraph(inputs, outputs, clone=True)
    specs = [In(copy, mutable=x in mutable) for x, copy in zip(inputs, fgraph.inputs, strict=True)]
    add_supervisor_to_fgraph(fgraph, specs, accept_inplace=True)
    mode.optimizer.rewrite(fgraph)
    return fgraph


def nodes(fgraph: FunctionGraph, name: str) -> list:
    return [n for n in fgraph.toposort() if type(n.op).__name__ == name]


def names(fgraph: FunctionGraph) -> set[str]:
    return {type(n.op).__name__ for n in fgraph.apply_nodes}


def transfers(fgraph: FunctionGraph) -> tuple[int, int]:
    kinds = [type(n.op) for n in fgraph.apply_nodes]
    return kinds.count(GpuFromHost), kinds.count(HostFromGpu)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_convolution_and_gradients(dtype):
    x, w, top = tensors(3, dtype)
    out = nnet.conv2d(x, w, border_mode="half", num_groups=2)
    grads = pytensor.grad(None, [x, w], known_grads={out: top})
    fgraph = rewritten([x, w, top], [out, *grads])
    assert names(fgraph) >= {"GpuDnnConv", "GpuDnnConvGradI", "GpuDnnConvGradW"}
    assert transfers(fgraph) == (3, 3)
    (node,) = nodes(fgraph, "GpuDnnConv")
    assert node.op.border_mode == "half"
    assert node.op.num_groups == 2
    assert [z.type.dtype for z in fgraph.outputs] == [dtype] * 3


def test_a_network_moves_as_a_whole():
    x, w = tensors(2)
    y = nnet.pool_2d(nnet.conv2d(x, w), (2, 2), ignore_border=True)
    p = pt.special.softmax(y.flatten(2), axis=1)
    loss = (p**2).sum()
    grads = pytensor.grad(loss, [x, w])
    fgraph = rewritten([x, w], [loss, *grads])
    assert names(fgraph) >= {
        "GpuDnnConv", "GpuDnnPool", "GpuDnnSoftmax",
        "GpuDnnConvGradI", "GpuDnnConvGradW", "GpuDnnPoolGrad", "GpuDnnSoftmaxGrad",
    }  # fmt: skip
    assert transfers(fgraph) == (2, 3)
    assert not any(isinstance(n.op, nnet.Conv) for n in fgraph.apply_nodes)


def test_excluded():
    x, w = tensors(2)
    out = nnet.pool_2d(nnet.conv2d(x, w) * np.float32(2), (2, 2), ignore_border=True)
    fgraph = rewritten([x, w], [out], GPU_MODE.excluding("cudnn"))
    assert not any(isinstance(n.op, CudnnOp) for n in fgraph.apply_nodes)


def test_disabled():
    x, w = tensors(2)
    with pytensor.config.change_flags(dnn__enabled="False"):
        fgraph = rewritten([x, w], [nnet.conv2d(x, w)])
    assert not any(isinstance(n.op, CudnnOp) for n in fgraph.apply_nodes)


def test_required():
    x, w = tensors(2)
    mode = GPU_MODE.including("cudnn")
    rewritten([x, w], [nnet.conv2d(x, w)], mode)
    with (
        pytensor.config.change_flags(dnn__enabled="False"),
        pytest.raises(DnnUnavailableError, match=r"optimizer_including=cudnn: .*dnn\.enabled"),
    ):
        rewritten([x, w], [nnet.conv2d(x, w)], mode)


@pytest.mark.needs("no gpu")
def test_required_without_a_gpu():
    x, w = tensors(2)
    for enabled in ("auto", "True"):
        with (
            pytensor.config.change_flags(dnn__enabled=enabled),
            pytest.raises(DnnUnavailableError, match="cuDNN cannot be used"),
        ):
            rewritten([x, w], [nnet.conv2d(x, w)], GPU_MODE.including("cudnn"))


def test_asymmetric_padding_is_done_on_the_device():
    x, w, top = tensors(3)
    out = nnet.conv2d(x, w, border_mode=((0, 1), (2, 1)))
    grads = pytensor.grad(None, [x, w], known_grads={out: top})
    fgraph = rewritten([x, w, top], [out, *grads])
    for name in ("GpuDnnConv", "GpuDnnConvGradI", "GpuDnnConvGradW"):
        (node,) = nodes(fgraph, name)
        assert node.op.border_mode == ((0, 0), (1, 1))
    pads = {n.op.pads for n in nodes(fgraph, "GpuPad")}
    assert pads == {((0, 0), (0, 0), (0, 1), (1, 0)), ((0, 0), (0, 0), (0, -1), (-1, 0))}
    assert len(nodes(fgraph, "GpuPad")) == 2  # both uses of the image share one
    assert transfers(fgraph) == (3, 3)
    fgraph = rewritten([x, w], [nnet.conv2d(x, w, border_mode=(1, 2))])
    assert not nodes(fgraph, "GpuPad")


def test_asymmetric_padding_merges_too():
    x, w, v = tensors(3)
    out = nnet.conv2d(x, w, border_mode=((0, 1), (2, 1)))
    fgraph = rewritten([x, w, v], [v - np.float32(2) * out])
    (node,) = nodes(fgraph, "GpuDnnConv")
    assert node.op.accumulate
    assert float(node.inputs[2].data) == -2
    assert not nodes(fgraph, "GpuElemwise")


@pytest.mark.parametrize(
    "mode", ["max", "max_deterministic", "sum", "average_inc_pad", "average_exc_pad"]
)
def test_pooling(mode):
    x = GpuArrayType("float32", (None,) * 4)()
    even = GpuArrayType("float32", (None, None, 6, 4))()
    odd = GpuArrayType("float32", (None, None, 6, 5))()
    for image, ignore_border, kind in (
        (x, True, "GpuDnnPool"),
        (x, False, "GpuPool"),
        (even, False, "GpuDnnPool"),
        (odd, False, "GpuPool"),
    ):
        out = nnet.pool_2d(image, (2, 2), ignore_border=ignore_border, mode=mode)
        grad = pytensor.grad((out**2).sum(), image)
        found = names(rewritten([image], [out, grad]))
        assert {kind, kind + "Grad"} <= found
        other = {"GpuDnnPool": "GpuPool", "GpuPool": "GpuDnnPool"}[kind]
        assert not {other, other + "Grad"} & found


def test_softmax_axes():
    host = pt.tensor3("x", dtype="float32")
    x = GpuArrayType("float32", (None,) * 3)()
    for axis, axes in ((1, (1,)), (-1, (2,)), (None, (0, 1, 2))):
        for fn, algo in ((pt.special.softmax, "accurate"), (pt.special.log_softmax, "log")):
            (node,) = nodes(rewritten([x], [fn(x, axis=axis)]), "GpuDnnSoftmax")
            assert (node.op.axes(3)[0], node.op.axes(3)[-1]) == (axes[0], axes[-1])
            assert node.op.algo == algo
            # Not worth a transfer.
            assert not nodes(rewritten([host], [fn(host, axis=axis)]), "GpuDnnSoftmax")


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("fn", [pt.special.softmax, pt.special.log_softmax])
def test_softmax_axes_that_are_not_neighbors_are_moved_on_the_device(fn, dtype):
    """As on the CPU: two reductions and two elementwise kernels would read the array more often."""
    x, g = (GpuArrayType(dtype, (None,) * 4)() for _ in range(2))
    out = fn(x, axis=(0, 2))
    grad = pytensor.grad((out * g).sum(), x)
    fgraph = rewritten([x, g], [out, grad])
    (forward,) = nodes(fgraph, "GpuDnnSoftmax")
    (backward,) = nodes(fgraph, "GpuDnnSoftmaxGrad")
    assert list(forward.op.axes(4)) == list(backward.op.axes(4)) == [2, 3]
    computing = ("Dim", "Gpu", "HostFromGpu")
    assert all(name.startswith(computing) for name in names(fgraph))
    # Of the gradient, whose type is that of the host; `out` is on the device as it is asked for.
    assert transfers(fgraph) == (0, 1)


@pytest.mark.gpu
@pytest.mark.parametrize("fn", [pt.special.softmax, pt.special.log_softmax])
def test_softmax_axes_that_are_not_neighbors(fn):
    x, g = (GpuArrayType("float32", (None,) * 4)() for _ in range(2))
    hx, hg = (pt.tensor4(dtype="float64") for _ in range(2))
    functions = []
    for array, top, mode in ((x, g, GPU_MODE), (hx, hg, "FAST_COMPILE")):
        pairs = []
        for axes in ((0, 2), (1, 3), (0, 1, 3)):
            out = fn(array, axis=axes)
            pairs += [out, pytensor.grad((out * top).sum(), array)]
        functions.append(pytensor.function([array, top], pairs, mode=mode))
    rng = np.random.default_rng(0)
    for _ in range(20):
        shape = tuple(map(int, rng.integers(1, 9, 4)))
        value, top = rng.standard_normal((2, *shape)).astype("float32")
        found = functions[0](on_gpu(value, "float32"), on_gpu(top, "float32"))
        expected = functions[1](value.astype("float64"), top.astype("float64"))
        for number, (result, reference) in enumerate(zip(found, expected, strict=True)):
            result = np.asarray(result) if isinstance(result, np.ndarray) else result.get()
            distance = np.linalg.norm(result - reference)
            # A gradient may be the difference of equal numbers, of which nothing is left.
            scale = max(np.linalg.norm(reference), 0.1 * np.linalg.norm(top))
            assert distance <= 1e-5 * scale, (fn.__name__, shape, number, distance, scale)


# -- merging -------------------------------------------------------------------------------


def sgd(mu: float, rate):
    x, w, v = tensors(3)
    loss = (nnet.conv2d(x, w) ** 2).sum()
    g = pytensor.grad(loss, w)
    return x, w, v, np.float32(mu) * v - rate * g


def test_momentum_update_is_one_convolution():
    x, w, v, update = sgd(0.9, np.float32(0.1))
    fgraph = rewritten([x, w, v], [update], mutable=(v,))
    (node,) = nodes(fgraph, "GpuDnnConvGradW")
    assert node.op.accumulate
    alpha, beta = node.inputs[3:5]
    assert float(alpha.data) == -np.float32(0.1)
    assert float(beta.data) == np.float32(0.9)
    assert not any(type(n.op).__name__ == "GpuElemwise" and n.op is not node.op for n in
                   (c for c, _ in fgraph.clients[node.outputs[0]]))  # fmt: skip


def test_a_rate_that_changes_is_not_part_of_the_convolution():
    rate = pt.fscalar("rate")
    x, w, v, update = sgd(0.9, rate)
    fgraph = rewritten([x, w, v, rate], [update], mutable=(v,))
    (node,) = nodes(fgraph, "GpuDnnConvGradW")
    assert not node.op.accumulate
    assert float(node.inputs[3].data) == 1
    ((user, _),) = fgraph.clients[node.outputs[0]]
    assert type(user.op).__name__ == "GpuElemwise"
    assert rate in user.inputs or any(x.type.ndim == 0 for x in user.inputs)


def test_an_overwritten_addend_is_in_place():
    x, w, v, update = sgd(1.0, np.float32(0.1))
    fgraph = rewritten([x, w, v], [update])
    (node,) = nodes(fgraph, "GpuDnnConvGradW")
    # The operand is the transfer's result, which nothing else needs.
    assert node.op.inplace
    assert node.op.destroy_map == {0: [5]}


@pytest.mark.parametrize("form", ["product", "quotient", "negation"])
def test_factor(form):
    x, w = tensors(2)
    y = nnet.conv2d(x, w)
    out, alpha = {
        "product": (np.float32(3) * y, 3),
        "quotient": (y / np.float32(4), 0.25),
        "negation": (-y, -1),
    }[form]
    fgraph = rewritten([x, w], [out])
    (node,) = nodes(fgraph, "GpuDnnConv")
    assert float(node.inputs[2].data) == alpha
    assert not nodes(fgraph, "GpuElemwise")


def test_convolutions_that_are_not_merged():
    x, w, v = tensors(3)
    y = nnet.conv2d(x, w)
    vector = pt.vector(dtype="float32")
    for outputs in (
        [pt.tanh(y * np.float32(2))],  # the loop takes the factor
        [y * np.float32(2), y],  # the convolution is needed as it is
        [y + vector.dimshuffle("x", 0, "x", "x")],  # a bias
        [y * v],
        [y + pt.tanh(v)],  # the loop takes the sum
        [y * y.max()],  # a scalar that is computed on the device
    ):
        fgraph = rewritten([x, w, v, vector], outputs)
        (node,) = nodes(fgraph, "GpuDnnConv")
        assert not node.op.accumulate
        assert float(node.inputs[2].data) == 1


@pytest.mark.gpu
@pytest.mark.parametrize("mu", [1.0, 0.9])
def test_merged_updates_compute_the_same(mu):
    rate = pt.fscalar("rate")
    x, w, v, update = sgd(mu, rate)
    factor = -(nnet.conv2d(x, w)) / np.float32(3)
    f = pytensor.function([x, w, v, rate], [update, factor], mode=GPU_MODE)
    g = pytensor.function([x, w, v, rate], [update, factor], mode=get_mode("FAST_COMPILE"))
    rng = np.random.default_rng(0)
    arrays = [
        rng.standard_normal(shape).astype("float32")
        for shape in ((4, 3, 9, 9), (5, 3, 3, 3), (5, 3, 3, 3))
    ]
    for step in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7):
        for result, expected in zip(f(*arrays, step), g(*arrays, step), strict=True):
            assert_close(result, expected, bound=2e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("ignore_border", [False, True])
@pytest.mark.parametrize("mode", ["max", "sum", "average_inc_pad", "average_exc_pad"])
def test_network_computes_the_same(mode, ignore_border):
    x, w = tensors(2)
    y = nnet.conv2d(x, w, border_mode=((1, 0), (0, 2)))
    y = nnet.pool_2d(y, (3, 2), stride=(2, 2), ignore_border=ignore_border, mode=mode)
    p = pt.special.log_softmax(y, axis=1)
    loss = (p**2).mean()
    outputs = [loss, *pytensor.grad(loss, [x, w])]
    f = pytensor.function([x, w], outputs, mode=GPU_MODE)
    g = pytensor.function([x, w], outputs, mode=get_mode("FAST_COMPILE"))
    rng = np.random.default_rng(0)
    for size in (8, 9, 11):
        image = rng.standard_normal((2, 3, size, size)).astype("float32")
        filters = rng.standard_normal((4, 3, 3, 3)).astype("float32")
        for result, expected in zip(f(image, filters), g(image, filters), strict=True):
            assert_close(np.asarray(result), np.asarray(expected), bound=3e-5)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_window_normalizations(dtype):
    x, means = (GpuArrayType(dtype, (None,) * 4)() for _ in range(2))
    host, around = pt.as_tensor_variable(x), pt.as_tensor_variable(means)
    out = nnet.local_response_normalization(host)
    grad = pytensor.grad((out**2).sum(), x)
    fgraph = rewritten([x], [out, grad])
    assert names(fgraph) == {"GpuDnnLRN", "GpuDnnLRNGrad", "GpuElemwise", "HostFromGpu"}
    assert len(nodes(fgraph, "GpuDnnLRN")) == 1
    for out in (
        nnet.divisive_normalization(host),
        nnet.divisive_normalization(host, means=around),
        pt.as_tensor_variable(grad),
    ):
        fgraph = rewritten([x, means], [pytensor.grad((out**2).sum(), x)])
        assert "GpuWindowSum" in names(fgraph)
        assert transfers(fgraph) == (0, 0)


def test_a_normalization_without_cudnn_is_written_out():
    x = GpuArrayType("float32", (None,) * 4)()
    out = nnet.local_response_normalization(pt.as_tensor_variable(x))
    with pytensor.config.change_flags(dnn__enabled="False"):
        fgraph = rewritten([x], [out, pytensor.grad((out**2).sum(), x)])
    assert names(fgraph) == {"GpuElemwise", "GpuWindowSum", "HostFromGpu"}


def test_spatial_transformer():
    x, theta = GpuArrayType("float32", (None,) * 4)(), GpuArrayType("float32", (None, 2, 3))()
    out = nnet.spatial_transformer(pt.as_tensor_variable(x), pt.as_tensor_variable(theta), 2, 0.5)
    fgraph = rewritten([x, theta], [out, *pytensor.grad((out**2).sum(), [x, theta])])
    wanted = {f"GpuTransformer{what}" for what in ("Grid", "Sampler", "GradI", "GradT")}
    assert wanted <= names(fgraph)
    assert not any("SpatialTransformer" in name for name in names(fgraph))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_ctc(dtype):
    x = GpuArrayType(dtype, (None,) * 3)()
    integers = [pt.imatrix(), pt.ivector(), pt.lvector()]
    costs = nnet.ctc(pt.as_tensor_variable(x), *integers)
    fgraph = rewritten([x, *integers], [costs, pytensor.grad(costs.sum(), x)])
    assert names(fgraph) <= {"GpuCTC", "GpuFromHost", "HostFromGpu", "GpuElemwise"}
    fgraph = rewritten([x, *integers], [costs])
    (node,) = nodes(fgraph, "GpuCTC")
    assert not node.op.with_gradients


def test_ops_not_worth_a_transfer():
    """As for pooling, operands on the host stay there, with everything that needs them."""
    (x,), theta = tensors(1), pt.tensor(dtype="float32", shape=(None, 2, 3))
    activations, labels, lengths = pt.ftensor3(), pt.imatrix(), pt.ivector()
    inputs = [x, theta, activations, labels, lengths]
    for out in (
        nnet.local_response_normalization(x),
        nnet.divisive_normalization(x),
        nnet.spatial_transformer(x, theta),
        nnet.ctc(activations, labels, lengths),
    ):
        assert transfers(rewritten(inputs, [out])) == (0, 0)
    w = pt.tensor4(dtype="float32")
    y = nnet.conv2d(x, w)
    for out, wanted in (
        (nnet.local_response_normalization(y), "GpuDnnLRN"),
        (nnet.spatial_transformer(y, theta), "GpuTransformerSampler"),
        (nnet.ctc(y.flatten(3), labels, lengths), "GpuCTC"),
    ):
        assert wanted in names(rewritten([*inputs, w], [out]))


def test_explicit_cudnn_ops_stay():
    x, theta = GpuArrayType("float32", (None,) * 4)(), GpuArrayType("float32", (None, 2, 3))()
    for out, wanted in (
        (dnn.dnn_lrn(x), {"GpuDnnLRN", "GpuDnnLRNGrad"}),
        (
            dnn.dnn_divisive_normalization(x, x),
            {"GpuDnnDivisiveNormalization", "GpuDnnDivisiveNormalizationGrad"},
        ),
        (
            dnn.dnn_spatialtf(x, theta),
            {f"GpuDnnTransformer{what}" for what in ("Grid", "Sampler", "GradI")},
        ),
    ):
        grad = pytensor.grad((pt.as_tensor_variable(out) ** 2).sum(), x)
        found = names(rewritten([x, theta], [out, grad]))
        assert wanted <= found
        assert "GpuWindowSum" not in found
    # cuDNN has no gradient of even windows, and no second derivative.
    for n in (3, 4):
        y = pt.as_tensor_variable(dnn.dnn_divisive_normalization(x, x, n))
        grad = pt.as_tensor_variable(pytensor.grad((y**2).sum(), x))
        for z, written_out in ((grad, n == 4), (pytensor.grad((grad**2).sum(), x), True)):
            fgraph = rewritten([x], [as_gpuarray_variable(z, 0)])
            assert "GpuDnnDivisiveNormalization" in names(fgraph)
            assert ("GpuWindowSum" in names(fgraph)) == written_out
            assert transfers(fgraph) == (0, 0)
    activations, labels, lengths = (
        GpuArrayType("float32", (None,) * 3)(),
        pt.imatrix(),
        pt.ivector(),
    )
    costs = dnn.dnn_ctc(activations, labels, lengths)
    (node,) = nodes(rewritten([activations, labels, lengths], [costs]), "GpuDnnCTC")
    assert node.op.deterministic
    assert not node.op.with_gradients


def test_cross_entropy_is_fused():
    x, labels = pt.fmatrix(), pt.lvector()
    x = GpuArrayType("float32", (None, None))()
    for dtype in ("float16", "float32", "float64"):
        x = GpuArrayType(dtype, (None, None))()
        logs = pt.log(pt.special.softmax(pt.as_tensor_variable(x), axis=1))
        loss = -logs[pt.arange(labels.shape[0]), labels].mean()
        fgraph = rewritten([x, labels], [loss, pytensor.grad(loss, x)])
        assert names(fgraph) >= {"GpuCrossEntropy", "GpuCrossEntropyGrad"}
        assert not any("Softmax" in name or "Subtensor" in name for name in names(fgraph))
        (node,) = nodes(fgraph, "GpuCrossEntropy")
        assert not node.op.every_row
        # The labels go to the device, once, and the loss comes back.
        assert transfers(fgraph) == (1, 1)


def test_cross_entropy_without_the_runtime_library_is_written_out(monkeypatch):
    monkeypatch.setattr("dnnops.gpu.library.kernels_usable", lambda device: False)
    x, labels = GpuArrayType("float32", (None, None))(), pt.lvector()
    costs = nnet.cross_entropy(pt.as_tensor_variable(x), labels)
    outputs = [costs, pytensor.grad(costs.sum(), x)]
    fgraph = rewritten([x, labels], outputs, GPU_MODE.excluding("cudnn"))
    assert "GpuAdvancedSubtensor" in names(fgraph)
    assert not any("CrossEntropy" in name for name in names(fgraph))


def test_dropout_moves_and_overwrites():
    x, w, state = GpuArrayType("float32", (None,) * 4)(), tensors(1)[0], pt.lvector()
    y, _ = nnet.dropout(nnet.conv2d(pt.as_tensor_variable(x), w), 0.5, state=state)
    fgraph = rewritten([x, w, state], [y, pytensor.grad(y.sum(), w)])
    assert names(fgraph) >= {"GpuDnnDropoutOp", "GpuDnnDropoutGrad"}
    assert not names(fgraph) & {"Dropout", "OneDnnDropout"}
    (node,) = nodes(fgraph, "GpuDnnDropoutOp")
    assert node.op.inplace
    # The filters and the state, and the results.
    assert transfers(fgraph) == (2, 2)


def test_activations_by_hand_overwrite():
    from dnnops.gpu.activation import GpuDnnActivation

    x = GpuArrayType("float32", (None,) * 4)()
    moved = pt.as_tensor_variable(x) + np.float32(1)
    fgraph = rewritten([x], [GpuDnnActivation("relu")(moved)])
    (node,) = nodes(fgraph, "GpuDnnActivation")
    assert node.op.inplace
    fgraph = rewritten([x], [GpuDnnActivation("relu")(x)])
    (node,) = nodes(fgraph, "GpuDnnActivation")
    assert not node.op.inplace  # that would be the caller's array
    fgraph = rewritten([x], [nnet.relu(pt.as_tensor_variable(x))])
    assert names(fgraph) >= {"GpuElemwise"}
    assert not nodes(fgraph, "GpuDnnActivation")

"""Tiled attention in float32: types and graphs without a GPU, and results on one."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from benchmarks import model_zoo
from benchmarks.peers.models.dnnops_cpu import training_step
from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.gpu.attention import GpuTiledAttention, GpuTiledAttentionGrad
from dnnops.gpuarray.transfer import host_from_gpu
from dnnops.gpuarray.type import GpuArrayType
from dnnops.modes import CudnnMode
from dnnops.nnet import scaled_dot_product_attention
from tests.gpu.attention.attention_on_gpu import (
    OFFSETS,
    Data,
    Form,
    apply_all,
    errors,
    random_form,
)
from tests.gpu.calls import call, device_tensor, shape_of
from tests.gpu.compiled import check_module
from tests.gpu.device import host, on_gpu, poison
from tests.gpuarray.graphs import ops, rewritten
from tests.oracle import SEED, repeat_command

NAMES = ("GpuTiledAttention", "GpuTiledAttentionGrad")
MASK, LENGTHS = GpuArrayType("float32", (1, 4, 5, 6)), GpuArrayType("int64", (2,))


def arrays(*more: GpuArrayType) -> list:
    """Return query, key and value; the query has its own length and the value its own depth."""
    shapes = (2, 4, 5, 8), (2, 2, 6, 8), (2, 2, 6, 16)
    return [GpuArrayType("float32", shape)() for shape in shapes] + [type_() for type_ in more]


# -- types -----------------------------------------------------------------------------------


@pytest.mark.parametrize("with_stats", [False, True])
def test_results(with_stats):
    op = GpuTiledAttention(with_stats=with_stats)
    node = op.make_node(*arrays())
    shapes = [(2, 4, 5, 16), (2, 4, 5)]
    assert [x.type for x in node.outputs] == [
        GpuArrayType("float32", shape) for shape in shapes[: 1 + with_stats]
    ]
    assert op.connection_pattern(node) == [[True] * (1 + with_stats)] * 3
    unknown = [GpuArrayType("float32", (None,) * 4)() for _ in range(3)]
    graph = rewritten(unknown, [x.shape[2] for x in op.make_node(*unknown).outputs])
    assert "GpuTiledAttention" not in ops(graph)


def test_properties():
    with pytensor.config.change_flags(dnn__allow_tf32=True):
        op = GpuTiledAttention(0.5, True, ("mask",))
    assert op == GpuTiledAttention(0.5, True, ("mask",), True) != GpuTiledAttention(0.5, True)
    assert pickle.loads(pickle.dumps(op)) == op
    assert op.gradient_op() == GpuTiledAttentionGrad(0.5, True, ("mask",), True)
    assert (op.words != GpuTiledAttention(0.5, True, ("mask",), False).words).sum() == 1
    assert op.with_optional_result(False).results == ("out",)


def test_bad_operands():
    query, key, value = arrays()
    half = GpuArrayType("float16", (2, 4, 5, 8))()
    with pytest.raises(DnnTypeError, match="supports float32, got float16"):
        GpuTiledAttention()(half, half, half)
    with pytest.raises(DnnTypeError, match="mask must have 4 dimensions"):
        GpuTiledAttention(optional=("mask",))(query, key, value, GpuArrayType("bool", (5,))())
    with pytest.raises(DnnValueError, match="depth of query and key"):
        GpuTiledAttention()(query, value, value)
    with pytest.raises(DnnTypeError, match="allow_tf32"):
        GpuTiledAttention(allow_tf32="no")


@pytest.mark.needs("cudnn")
def test_shapes_in_the_library():
    name, op = "dnnops_cudnn_attention_tiles_shape", GpuTiledAttention()
    shapes = (2, 4, 5, 8), (2, 2, 6, 8), (2, 2, 6, 16)
    query, key, value = map(device_tensor, shapes)
    found = call(name, op, [query, key, value], [device_tensor(())] * 2)
    assert [shape_of(t) for t in found] == [(2, 4, 5, 16), (2, 4, 5)]
    out, stats = map(device_tensor, ((2, 4, 5, 16), (2, 4, 5)))
    grad = GpuTiledAttentionGrad()
    found = call(name, grad, [query, key, value, out, stats, out], [device_tensor(())] * 3)
    assert [shape_of(t) for t in found] == list(shapes)
    with pytest.raises(DnnValueError, match="differ"):
        call(name, op, [query, value, value], [device_tensor(())] * 2)
    with pytest.raises(DnnValueError, match="do not have the shape"):
        call(name, grad, [query, key, value, out, stats, query], [device_tensor(())] * 3)
    half = [device_tensor(shape, "float16") for shape in shapes]
    with pytest.raises(DnnTypeError, match="takes float32, not float16"):
        call(name, op, half, [device_tensor(())] * 2)


@pytest.mark.needs("cudnn")
def test_modules_compile():
    operands = arrays(MASK, LENGTHS)
    op = GpuTiledAttention(0.5, True, ("mask", "key_lengths"))
    out, stats = op.make_node(*operands).outputs
    check_module(out)
    node = op.gradient_op().make_node(*operands, out.type(), stats.type(), out.type())
    check_module(node.outputs[0])


# -- graphs ----------------------------------------------------------------------------------


@pytest.fixture
def without_probing():
    with pytensor.config.change_flags(dnn__enabled="no_check", floatX="float32"):
        yield


def attention(dtype="float32", heads=(4, 4), depths=(8, 8), **options: Any):
    """Return operands on the device, and attention with its gradients."""
    shapes = [(None, heads[0], None, depths[0])]
    shapes += [(None, heads[1], None, depth) for depth in depths]
    operands = [GpuArrayType(dtype, shape)() for shape in shapes]
    out = scaled_dot_product_attention(*operands, enable_gqa=heads[0] != heads[1], **options)
    gradients = pytensor.grad((out**2).sum(), operands)
    return operands, [z.transfer("cuda") for z in (out, *gradients)]


@pytest.mark.usefixtures("without_probing")
@pytest.mark.parametrize("mode", [CudnnMode(), CudnnMode().excluding("cudnn")], ids=["", "none"])
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, True),
        ({"heads": (4, 2), "is_causal": True}, True),
        ({"heads": (None, None), "scale": 0.5}, True),
        ({"depths": (192, 192)}, True),
        ({"depths": (256, 32)}, True),
        ({"depths": (256, 256)}, False),
        ({"depths": (None, None)}, False),
        ({"dtype": "float64"}, False),
    ],
    ids=str,
)
def test_which_attention_is_tiled(options, expected, mode):
    operands, outputs = attention(**options)
    found = ops(rewritten(operands, outputs, mode))
    assert [name for name in found if "Tiled" in name] == (list(NAMES) if expected else [])
    if expected:
        assert not any("Dot" in name or "FromHost" in name for name in found), found


@pytest.mark.usefixtures("without_probing")
def test_only_gradients_need_statistics():
    operands, outputs = attention()
    (node,) = rewritten(operands, outputs[:1], CudnnMode()).apply_nodes
    assert node.op == GpuTiledAttention(with_stats=False)


@pytest.mark.usefixtures("without_probing")
def test_transposed_heads_are_not_copied():
    """Kernels take heads from between positions and depth."""
    x = [GpuArrayType("float32", (None, None, 4, 8))() for _ in range(3)]
    heads = [pt.as_tensor_variable(v).transpose(0, 2, 1, 3) for v in x]
    out = scaled_dot_product_attention(*heads).transfer("cuda")
    found = ops(rewritten(x, [out], CudnnMode()))
    assert sorted(set(found)) == ["GpuDimShuffle", "GpuTiledAttention"]


@pytest.mark.slow
@pytest.mark.usefixtures("without_probing")
def test_transformer():
    """Each of the six layers is one node forward and one backward."""
    model = model_zoo.MODELS["transformer"]
    inputs, loss, updates = training_step("transformer", model.gpu_sizes)
    moved = {
        s: GpuArrayType("float32", s.type.shape)()
        for s, _ in updates
        if s.type.ndim and s.type.dtype == "float32"
    }
    replaced = [(s, host_from_gpu(x)) for s, x in moved.items()]
    outputs = pytensor.graph.clone_replace(
        [loss, *(new for s, new in updates if s in moved)], replaced
    )
    outputs[1:] = [z.transfer("cuda") for z in outputs[1:]]
    rest = [s for s, _ in updates if s not in moved]
    found = ops(rewritten([*inputs, *rest, *moved.values()], outputs, CudnnMode()))
    assert [found.count(name) for name in NAMES] == [6, 6]
    assert not any("AttentionWeights" in name for name in found)


# -- on a GPU --------------------------------------------------------------------------------


def run_tiled(data: Data, allow_tf32: bool) -> list[Any]:
    """Compute the results of `Data.expected` on the device."""
    form, operands = data.form, data.on_device()
    op = GpuTiledAttention(form.scale, form.is_causal, form.optional, allow_tf32)
    forward = apply_all(op, *operands)
    gout = data.gout_on_device()
    return [*forward, *apply_all(op.gradient_op(), *operands, *forward, gout)]


def assert_right(data: Data, results: list[Any], allow_tf32: bool) -> None:
    found = errors(data, results, "tf32" if allow_tf32 else "float32")
    assert max(found.values()) <= 1, (
        f"{data.form}, seed {data.seed}, TF32 {allow_tf32}: errors in parts of what is allowed"
        f" {found}; {repeat_command()}"
    )


@pytest.mark.gpu
@pytest.mark.parametrize("allow_tf32", [False, True])
@pytest.mark.parametrize("number", range(8))
def test_random(number, allow_tf32):
    rng = np.random.default_rng([SEED, number])
    for _ in range(6):
        data = Data(random_form(rng, ["float32"], OFFSETS), int(rng.integers(2**32)))
        poison()
        assert_right(data, run_tiled(data, allow_tf32), allow_tf32)


@pytest.mark.gpu
@pytest.mark.parametrize("allow_tf32", [False, True])
@pytest.mark.parametrize(
    "form",
    [
        Form("float32", lengths=(512, 512), is_causal=True, layout="heads_inside"),
        Form("float32", lengths=(2048, 2048), batch=1, heads=(2, 2), depths=(128, 128)),
        Form("float32", lengths=(333, 700), heads=(8, 2), depths=(192, 192)),
        Form("float32", lengths=(1, 3000), depths=(64, 16)),
        Form("float32", lengths=(3000, 1), depths=(20, 256), batch=1),
    ],
    ids=str,
)
def test_forms(form, allow_tf32):
    data = Data(form, 0)
    poison()
    assert_right(data, run_tiled(data, allow_tf32), allow_tf32)


@pytest.mark.gpu
def test_deterministic():
    data = Data(Form("float32", lengths=(256, 256), heads=(8, 4), mask="float"), 1)
    first = run_tiled(data, False)
    for a, b in zip(first, run_tiled(data, False), strict=True):
        assert bool((a == b).all())


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(0, 2, 3, 4), (2, 0, 3, 4), (2, 2, 0, 4), (2, 2, 3, 0)])
def test_empty(shape):
    import cupy

    n, heads, queries, keys = shape
    query = cupy.ones((n, heads, queries, 8), "float32")
    key = cupy.ones((n, heads, keys, 8), "float32")
    poison()
    out, stats = apply_all(GpuTiledAttention(), query, key, key)
    assert (out.shape, stats.shape) == (query.shape, query.shape[:3])
    assert not out.any()
    assert bool((stats == -np.inf).all())
    poison()
    grads = apply_all(GpuTiledAttentionGrad(), query, key, key, out, stats, query)
    assert [g.shape for g in grads] == [query.shape, key.shape, key.shape]
    assert not any(bool(g.any()) for g in grads)


@pytest.mark.gpu
def test_depth_of_zero():
    """All scores are zero, so the output is the mean of the values."""
    import cupy

    none, value = cupy.ones((1, 1, 3, 0), "float32"), cupy.arange(12, dtype="float32")
    out, _ = apply_all(GpuTiledAttention(), none, none, value.reshape(1, 1, 3, 4))
    np.testing.assert_allclose(host(out), np.broadcast_to([4, 5, 6, 7], (1, 1, 3, 4)), rtol=1e-6)


@pytest.mark.gpu
def test_capture():
    """Kernels captured as a CUDA graph compute with the current operands."""
    import cupy

    form = Form("float32", query_lengths=True, key_lengths=True, mask="bool", is_causal=True)
    data, other = Data(form, 0), Data(form, 1)
    operands, gout = data.on_device(), data.gout_on_device()
    op = GpuTiledAttention(form.scale, form.is_causal, form.optional, False)

    def run() -> list[Any]:
        forward = apply_all(op, *operands)
        return [*forward, *apply_all(op.gradient_op(), *operands, *forward, gout)]

    run()  # compile the kernels outside of the capture
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        kept = run()  # allocate the workspace
        del kept
        stream.begin_capture()
        results = run()
        graph = stream.end_capture()
        new = [*other.on_device(), other.gout_on_device()]
        for target, source in zip([*operands, gout], new, strict=True):
            target[...] = source
        graph.launch(stream)
    stream.synchronize()
    assert_right(other, results, False)


@pytest.mark.gpu
@pytest.mark.parametrize("allow_tf32", [False, True])
def test_functions(allow_tf32):
    """Compiled functions, also once they are replayed as CUDA graphs, for several shapes."""
    with pytensor.config.change_flags(dnn__allow_tf32=allow_tf32):
        shapes = [(None, None, 4, 16), *[(None, None, 2, 16)] * 2, (None, None, 4, 16)]
        x = [GpuArrayType("float32", shape)() for shape in shapes]
        heads = [pt.as_tensor_variable(v).transpose(0, 2, 1, 3) for v in x]
        out = scaled_dot_product_attention(*heads[:3], is_causal=True, enable_gqa=True)
        gradients = pytensor.grad(None, heads[:3], known_grads={out: heads[3]})
        results = [z.transfer("cuda") for z in (out, *gradients)]
        function = pytensor.function(x, results, mode=CudnnMode())
    names = [type(n.op).__name__ for n in function.maker.fgraph.toposort()]
    assert set(NAMES) <= set(names)
    for lengths in ((64, 64), (200, 70), (64, 64)):
        for seed in range(4):
            form = Form("float32", 2, (4, 2), lengths, (16, 16), is_causal=True)
            data = Data(form, seed)
            given = [*(data.given[o] for o in ("query", "key", "value")), data.gout]
            moved = [on_gpu(a.transpose(0, 2, 1, 3), "float32") for a in given]
            found = function(*moved)
            stats = data.expected()[1]
            assert_right(data, [found[0], stats, *found[1:]], allow_tf32)

"""Recurrent networks on cuDNN without a GPU: graphs, C modules, and rejected arguments."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.aliasing import Supervisor
from pytensor.compile.mode import get_mode
from pytensor.graph.basic import Constant
from pytensor.graph.fg import FunctionGraph
from pytensor.link.c.basic import CLinker

from dnnops import dnn
from dnnops.errors import DnnLibraryError, DnnTypeError, DnnValueError
from dnnops.gpu.rnn import GpuDnnRNNBackward, GpuDnnRNNForward
from dnnops.gpuarray.type import GpuArrayType
from dnnops.nnet import RNNBackward, RNNBlock, RNNForward
from dnnops.nnet.rnn.op import RNN_ALGORITHMS
from tests.gpu.calls import call, device_tensor, shape_of
from tests.nnet.rnn.rnn_cases import RNNCase, rnn_cases
from tests.oracle import fuzz

GPU_MODE = get_mode("CVM").including("gpu")
CASE = RNNCase("lstm", 4, 2, True, False, 0, 0.0, True, 5, 3, 6, seed=2)


@pytest.fixture(autouse=True)
def without_probing():
    """Rewrite as if cuDNN worked."""
    with pytensor.config.change_flags(dnn__enabled="no_check", floatX="float32"):
        yield


def array(ndim: int, dtype: str = "float32", shape: tuple | None = None):
    return GpuArrayType(dtype, shape or (None,) * ndim)()


def rewritten(inputs, outputs, mode=GPU_MODE) -> FunctionGraph:
    fgraph = FunctionGraph(inputs, outputs, clone=True)
    fgraph.attach_feature(Supervisor(fgraph.inputs))
    mode.optimizer.rewrite(fgraph)
    return fgraph


def networks(fgraph: FunctionGraph) -> list:
    return [n.op for n in fgraph.toposort() if isinstance(n.op, RNNForward | RNNBackward)]


# -- graphs --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("rnn_mode", ["lstm", "gru"])
def test_substitution(rnn_mode, dtype):
    block = RNNBlock(dtype, 4, 2, rnn_mode, dropout=0.2, batch_first=True, algo="persist_static")
    inputs = [pt.tensor(dtype=dtype, shape=(None,) * n) for n in (1, 3, 3, 3)]
    inputs = inputs if rnn_mode == "lstm" else inputs[:3]
    lengths, seed = pt.lvector(), pt.lscalar()
    y, *_ = block.apply(*inputs, lengths=lengths, seed=seed)
    grads = pytensor.grad((y**2).sum(), inputs)
    fgraph = rewritten([*inputs, lengths, seed], [y, *grads])
    forward, backward = networks(fgraph)
    assert type(forward) is GpuDnnRNNForward
    assert type(backward) is GpuDnnRNNBackward
    assert forward.network == backward.network
    assert forward.algo == "persist_static"
    assert forward.keeps_reserve
    assert backward.by_x
    assert backward.inplace
    assert [z.type.dtype for z in fgraph.outputs] == [dtype] * len(fgraph.outputs)
    for node in fgraph.apply_nodes:
        if isinstance(node.op, RNNForward):
            kinds = [type(x.type) is GpuArrayType for x in node.inputs]
            assert kinds == [True] * len(inputs) + [False, False]


def test_unused_results_are_not_computed():
    w, x, hx = array(1), array(3), array(3)
    for block, inputs in (
        (RNNBlock("float32", 4, 1, "gru"), [pt.fvector(), pt.ftensor3(), pt.ftensor3()]),
        (dnn.RNNBlock("float32", 4, 1, "gru"), [w, x, hx]),
    ):
        y, _ = block.apply(*inputs)
        (forward,) = networks(rewritten(inputs, [y]))
        assert not forward.keeps_reserve
        grad = pytensor.grad((y**2).sum(), inputs[0])
        forward, backward = networks(rewritten(inputs, [grad]))
        assert type(forward) is GpuDnnRNNForward
        assert forward.keeps_reserve
        assert not backward.by_x
        assert backward.inplace
        (forward,) = networks(rewritten(inputs, [block.apply(*inputs, inference=True)[0]]))
        assert not forward.keeps_reserve


def test_only_the_last_gradient_overwrites_the_reserve():
    block = RNNBlock("float32", 4, 1, "gru")
    inputs = [pt.fvector(), pt.ftensor3(), pt.ftensor3()]
    y, hy = block.apply(*inputs)
    grads = [pytensor.grad((y**2).sum(), inputs[0]), pytensor.grad((hy**3).sum(), inputs[0])]
    _, *backward = networks(rewritten(inputs, grads))
    assert [op.inplace for op in backward] == [False, True]
    # A gradient may not overwrite an operand from outside, either.
    given = [array(ndim) for ndim in (1, 3, 3, 3, 1, 3, 3)]
    outputs = GpuDnnRNNBackward("gru", 4, 1).make_node(*given).outputs
    (backward,) = networks(rewritten(given, outputs))
    assert not backward.inplace


def test_excluded_or_not_taken():
    """Then both Ops stay on the host, because they share the format of the reserve."""
    block = RNNBlock("float32", 4, 1, "gru")
    w, hx = pt.fvector(), pt.ftensor3()
    for x, mode in (
        (pt.ftensor3(), GPU_MODE.excluding("cudnn")),
        (pt.tensor(dtype="float32", shape=(None, None, 0)), GPU_MODE),
    ):
        y, _ = block.apply(w, x, hx)
        fgraph = rewritten([w, x, hx], [pytensor.grad((y**2).sum(), w)], mode)
        assert not any(isinstance(op, GpuDnnRNNForward) for op in networks(fgraph))
        assert not any(isinstance(op, GpuDnnRNNBackward) for op in networks(fgraph))


def test_flags():
    with pytensor.config.change_flags(dnn__allow_tf32=True, dnn__deterministic=True):
        op = GpuDnnRNNForward("gru", 4, 1)
        assert op.allow_tf32
        assert op.deterministic
        assert op.gradient().network == op.network
        assert not GpuDnnRNNForward("gru", 4, 1, allow_tf32=False).allow_tf32
    assert op.gradient().allow_tf32


# -- Theano's names ------------------------------------------------------------------------


def test_block_on_the_device():
    block = dnn.RNNBlock("bfloat16", 4, 2, "lstm", dropout=0.5)
    w, x, hx, cx = array(1, "bfloat16"), *(array(3, "bfloat16") for _ in range(3))
    y, hy, cy = block.apply(w, x, hx, cx)
    for z in (y, hy, cy):
        assert isinstance(z.type, GpuArrayType)
        assert z.type.dtype == "bfloat16"
    grads = pytensor.grad((y.astype("float32") ** 2).sum(), [w, hx])
    assert [g.type.dtype for g in grads] == ["float32"] * 2
    host = dnn.RNNBlock("float32", 4, 1, "gru", context_name="cuda1")
    y, _ = host.apply(pt.fvector(), pt.ftensor3(), pt.ftensor3())
    assert y.type.device == 1
    parts = host.split_params(array(1), 0, 3)
    assert [p.type.ndim for p in parts] == [2, 1] * 6
    with pytest.raises(DnnTypeError, match="hx must have 3 dimensions, got 2"):
        host.apply(array(1), array(3), array(2))
    with pytest.raises(DnnTypeError, match=r"has dtype float64, but the block has dtype float32"):
        host.apply(*(array(n, "float64") for n in (1, 3, 3)))


def test_algo_is_checked():
    for algo in RNN_ALGORITHMS:
        assert RNNBlock("float32", 4, 1, "gru", algo=algo).algo == algo
    words = "algo must be one of standard, persist_static, persist_dynamic"
    with pytest.raises(DnnValueError, match=f"RNNBlock: {words}.* got 'fast'"):
        RNNBlock("float32", 4, 1, "gru", algo="fast")
    with pytest.raises(DnnTypeError, match=f"RNNBlock: {words}.* got 1"):
        RNNBlock("float32", 4, 1, "gru", algo=1)
    with pytest.raises(DnnValueError, match=f"GpuDnnRNNForward: {words}"):
        GpuDnnRNNForward("gru", 4, 1, algo="fast")


# -- C -------------------------------------------------------------------------------------


@pytest.mark.needs("cudnn")
@pytest.mark.parametrize("backward", [False, True])
def test_c_module(backward):
    case = replace(CASE, dropout=0.3)
    floats = [array(1), *(array(3) for _ in range(3)), pt.lvector(), pt.lscalar()]
    node = GpuDnnRNNForward(**case.network).make_node(*floats)
    if backward:
        tops = [array(3) for _ in range(3)]
        node = GpuDnnRNNBackward(**case.network, inplace=True).make_node(
            *floats, node.outputs[0], array(1), *tops
        )
    inputs = [x for x in dict.fromkeys(node.inputs) if not isinstance(x, Constant)]
    graph = FunctionGraph(inputs, node.outputs, clone=True)
    module = CLinker().accept(graph).compile_cmodule()
    assert callable(module.instantiate)


def tensors(case: RNNCase, dtype: str = "float32") -> list:
    return [device_tensor(a.shape, dtype) if a.dtype.kind == "f" else a for a in case.operands()]


@pytest.mark.needs("cudnn")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@fuzz(max_examples=30, case=rnn_cases())
def test_shapes(dtype, case):
    forward = GpuDnnRNNForward(**case.network, keeps_reserve=False)
    given = tensors(case, dtype)
    results = [z.type.shape for z in case.forward.make_node(*case.operands()).outputs][:-1]
    found = call("dnnops_cudnn_rnn_forward_shape", forward, given, [device_tensor(())] * 3)
    assert [shape_of(f) for f in found[: len(results)]] == results
    tops = [device_tensor(s, dtype) for s in results]
    reserve = device_tensor((7,), "float64" if dtype == "float64" else "float32")
    backward = GpuDnnRNNBackward(**case.network)
    found = call(
        "dnnops_cudnn_rnn_backward_shape",
        backward,
        [*given, tops[0], reserve, *tops],
        [device_tensor(())] * 4,
    )
    names = dict(zip(backward.all_operands, [*given, tops[0], reserve, *tops], strict=True))
    expected = [shape_of(names[name]) for name in backward.results]
    assert [shape_of(f) for f in found[: len(expected)]] == expected


@pytest.mark.needs("cudnn")
@pytest.mark.parametrize(
    ("operand", "value", "error", "words"),
    [
        (0, device_tensor((7,)), DnnValueError, r"w has shape \(7\), expected \(\d+\)"),
        (1, device_tensor((5, 3)), DnnTypeError, "x has to have 3 dimensions, got 2"),
        (1, device_tensor((5, 3, 6), "int32"), DnnTypeError, "got int32"),
        (2, device_tensor((4, 2, 4)), DnnValueError, r"hx has shape .* expected \(4, 3, 4\)"),
        (3, device_tensor((4, 3, 4), "float64"), DnnTypeError, "cx is float64, expected float32"),
        (4, np.array([1, 2]), DnnValueError, r"lengths has shape \(2\), expected \(3\)"),
        (4, np.array([1, 6, 2]), DnnValueError, "between 1 and the number of steps, 5, got 6"),
        (4, np.array([1, 0, 2]), DnnValueError, "between 1 and the number of steps, 5, got 0"),
    ],
)
def test_wrong_operands(operand, value, error, words):
    op = GpuDnnRNNForward(**CASE.network, keeps_reserve=False)
    given = tensors(CASE)
    given[operand] = value
    with pytest.raises(error, match=f"(?s)GpuDnnRNNForward: .*{words}.*input 0"):
        call("dnnops_cudnn_rnn_forward_shape", op, given, [device_tensor(())] * 3)


@pytest.mark.needs("cudnn")
@pytest.mark.needs("no gpu")
def test_without_a_gpu():
    """Only cuDNN on a device knows the reserve's size; the error names the call."""
    op = GpuDnnRNNForward(**CASE.network)
    with pytest.raises(DnnLibraryError, match="cuda"):
        call("dnnops_cudnn_rnn_forward_shape", op, tensors(CASE), [device_tensor(())] * 4)

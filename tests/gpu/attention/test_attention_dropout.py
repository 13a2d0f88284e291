"""Attention with dropout, captured: each call of a function draws other random numbers."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from dnnops.capture.schedule import schedule
from dnnops.capture.vm import ORDINARY_CALLS
from dnnops.errors import DnnTypeError
from dnnops.gpu.attention import GpuDnnAttention, GpuDnnAttentionGrad
from dnnops.gpuarray.op import is_on_device
from dnnops.gpuarray.type import GpuArrayType
from dnnops.nnet import dropout_state, scaled_dot_product_attention
from tests.gpu.device import host, on_gpu
from tests.gpuarray.graphs import rewritten

SHAPE = (2, 4, 128, 64)


def two_layers():
    """Return the operands, and two layers of attention that share a state, with gradients."""
    x = [GpuArrayType("float16", SHAPE)() for _ in range(3)]
    state = dropout_state(seed=3)
    operands = [pt.as_tensor_variable(v) for v in x]
    out, middle = scaled_dot_product_attention(*operands, dropout_p=0.3, state=state)
    out, last = scaled_dot_product_attention(out, *operands[1:], dropout_p=0.5, state=middle)
    gradients = pytensor.grad((pt.cast(out, "float32") ** 2).sum(), operands)
    return x, [z.transfer("cuda") for z in (out, *gradients)], state, last


def test_states_are_on_the_device():
    x, outputs, state, last = two_layers()
    for capturing in (True, False):
        flags = {"dnn__enabled": "no_check", "dnn__cuda_graph": "auto" if capturing else "False"}
        with pytensor.config.change_flags(**flags):
            graph = rewritten([*x, state], [*outputs, last], pytensor.compile.get_mode("CUDNN"))
        order = graph.toposort()
        nodes = [n for n in order if isinstance(n.op, GpuDnnAttention | GpuDnnAttentionGrad)]
        assert len(nodes) == 4
        states = [n.inputs[n.op.operands.index("state")] for n in nodes]
        assert [is_on_device(s) for s in states] == [capturing] * 4
        assert len(set(states)) == 2  # attention and its gradient read the same
        if capturing:
            assert schedule(graph, order, [None] * len(order)).by_value == ()


def test_bad_state():
    x = [GpuArrayType("float16", SHAPE)() for _ in range(3)]
    op = GpuDnnAttention(dropout=0.5, from_device=True)
    assert op.gradient_op().from_device
    with pytest.raises(DnnTypeError, match="state must be an int64 vector"):
        op.make_node(*x, GpuArrayType("float32", (2,))())


@pytest.mark.gpu
def test_captured():
    """Results are those of a function that is not captured, and differ from call to call."""
    rng = np.random.default_rng(0)
    given = [on_gpu(rng.standard_normal(SHAPE), "float16") for _ in range(3)]
    found = []
    for capturing in ("auto", "False"):
        x, outputs, state, last = two_layers()
        with pytensor.config.change_flags(dnn__cuda_graph=capturing):
            f = pytensor.function(x, outputs, updates={state: last}, mode="CUDNN")
        found.append([[host(z).copy() for z in f(*given)] for _ in range(8)])
        if capturing == "auto":
            assert (f.vm.captures, f.vm.replays) == (1, 8 - ORDINARY_CALLS), f.vm.reason
        found[-1].append([np.asarray(state.get_value())])
    captured, ordinary = found
    for one, other in zip(captured, ordinary, strict=True):
        for a, b in zip(one, other, strict=True):
            # Gradients with respect to the query are summed in any order.
            assert np.linalg.norm(a - b) <= 2e-3 * np.linalg.norm(b)
    for i in range(7):
        change = np.linalg.norm(captured[i][0] - captured[i + 1][0])
        assert change > 0.1 * np.linalg.norm(captured[i][0])

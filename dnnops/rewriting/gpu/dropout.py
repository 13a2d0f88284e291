"""Let dropout and attention read their states in device memory, so that they can be captured.

On the host, the state would be part of the launch, and each replay would drop the same elements.
The next state is computed twice: a kernel writes it for further dropout in the same call, and the
host computes the one that a shared variable gets, which need not wait for the device.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import GraphRewriter, copy_stack_trace
from pytensor.tensor.shape import Shape_i

from dnnops.config import flag_value
from dnnops.gpu.attention.cudnn import GpuDnnAttentionBase
from dnnops.gpu.dropout import GpuDnnDropoutGrad, GpuDnnDropoutOp
from dnnops.gpuarray.op import depends_on_values
from dnnops.gpuarray.transfer import to_device
from dnnops.gpuarray.type import GpuArrayType
from dnnops.nnet.regularization.dropout import BLOCKS, GROUP

__all__ = ["DropoutFromDevice"]


class DropoutFromDevice(GraphRewriter):
    """Move the states and probabilities of random Ops to the device, unless nothing is captured."""

    def apply(self, fgraph: FunctionGraph) -> None:
        """Rewrite `fgraph`."""
        if flag_value("dnn.cuda_graph") == "False":
            return
        new: dict[Variable, Any] = {}
        states: dict[Variable, Any] = {}
        for node in fgraph.toposort():
            op: Any = node.op
            if isinstance(op, GpuDnnAttentionBase) and op.dropout and not op.from_device:
                results = _attended(node, [new.get(x, x) for x in node.inputs], states)
                copy_stack_trace(node.outputs, results)
                new.update(zip(node.outputs, results, strict=True))
                continue
            if not isinstance(op, GpuDnnDropoutOp | GpuDnnDropoutGrad) or op.from_device:
                continue
            inputs = [new.get(x, x) for x in node.inputs]
            if isinstance(op, GpuDnnDropoutOp):
                results = _drawn(node, inputs, states)
            elif depends_on_values(inputs[1:2]):
                results = _moved(op, inputs[0], inputs[1], inputs[2])
            else:
                continue
            copy_stack_trace(node.outputs, results)
            new.update(zip(node.outputs, results, strict=True))
        pairs = [(old, result) for old, result in new.items() if fgraph.clients[old]]
        fgraph.replace_all_validate(pairs, reason="dropout_from_device")


def _moved(op: Any, x: Any, p: Any, *others: Any) -> list[Any]:
    made = op.replace(from_device=True).make_node(x, _placed(p, x.type.device), *others)
    return list(made.outputs)


def _placed(x: Any, device: int) -> Any:
    if isinstance(x, Constant):
        return GpuArrayType(x.type.dtype, x.type.shape, device).make_constant(np.asarray(x.data))
    return to_device(x, device)


def _attended(node: Apply, inputs: list[Any], states: dict[Variable, Any]) -> list[Any]:
    """Return the results of attention or its gradient, which share a state."""
    op: Any = node.op
    place = op.operands.index("state")
    state = node.inputs[place]
    if state not in states:
        states[state] = _placed(inputs[place], inputs[0].type.device)
    inputs[place] = states[state]
    return list(op.replace(from_device=True).make_node(*inputs).outputs)


def _drawn(node: Apply, inputs: list[Any], states: dict[Variable, Any]) -> list[Any]:
    """Return the results of dropout, the next state on the host, and note that on the device."""
    x, p, state = inputs
    placed = states.get(node.inputs[2])
    if placed is None:
        placed = _placed(state, x.type.device)
    y, reserve, next_placed = _moved(node.op, x, p, placed)
    states[node.outputs[2]] = next_placed
    count: Any = prod(
        Shape_i(axis)(x) if known is None else pt.constant(np.int64(known))
        for axis, known in enumerate(x.type.shape)
    )
    blocks = (count + np.int64(GROUP - 1)) // np.int64(GROUP) * np.int64(BLOCKS)
    next_state = pt.inc_subtensor(state[1], blocks)
    return [y, reserve, node.outputs[2].type.filter_variable(next_state)]

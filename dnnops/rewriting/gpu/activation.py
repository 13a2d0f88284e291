"""Let PyTensor's rewrites see the sigmoid and tanh of cuDNN beside logarithms.

`GpuDnnActivation` is an Op that users apply to run cuDNN's kernel. It stays one, unless a logarithm
of its result, or the gradient of one, might be infinite.
"""

from __future__ import annotations

from typing import Any

from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import GraphRewriter, copy_stack_trace
from pytensor.tensor.basic import cast

from dnnops.gpu.activation import GpuDnnActivation, GpuDnnActivationGrad
from dnnops.gpuarray.transfer import GpuFromHost, HostFromGpu, host_from_gpu, to_device
from dnnops.rewriting.recognize.activation import SPELLINGS, may_cancel

__all__ = ["SpellCudnnActivations"]


class SpellCudnnActivations(GraphRewriter):
    """Replace cuDNN's sigmoid and tanh with PyTensor's where they may cancel with a logarithm."""

    def apply(self, fgraph: FunctionGraph) -> None:
        """Rewrite `fgraph`."""
        if not any(type(node.op) is GpuDnnActivation for node in fgraph.apply_nodes):
            return
        for node in fgraph.toposort():
            if type(node.op) is GpuDnnActivation and node.op.mode in SPELLINGS:
                self._spell(fgraph, node)

    @staticmethod
    def _spell(fgraph: FunctionGraph, node: Apply) -> None:
        (x,), (y,) = node.inputs, node.outputs
        users = [user for user, _ in fgraph.clients[y]]
        copies = [user.outputs[0] for user in users if isinstance(user.op, HostFromGpu)]
        host_x = _on_host(x)
        if not any(may_cancel(fgraph, host_x, copy) for copy in copies):
            return
        spelling = SPELLINGS[node.op.mode]
        new: Any = spelling(host_x)
        replacements: list[tuple[Variable, Any]] = [(copy, new) for copy in copies]
        for user in dict.fromkeys(users):
            if type(user.op) is GpuDnnActivationGrad and user.inputs[:2] == [x, y]:
                (gx,) = spelling.pullback([host_x], [new], [_on_host(user.inputs[2])])
                gx = cast(gx, new.type.dtype)  # the derivative of float16 is float32
                replacements.append((user.outputs[0], to_device(gx, y.type.device)))
        if any(old.type.dtype != z.type.dtype for old, z in replacements):
            return  # bfloat16, which the host has not
        for old, z in replacements:
            copy_stack_trace(old, z)
        fgraph.replace_all_validate(replacements, reason="spell_cudnn_activations")


def _on_host(x: Any) -> Any:
    is_transfer = x.owner is not None and isinstance(x.owner.op, GpuFromHost)
    return x.owner.inputs[0] if is_transfer else host_from_gpu(x)

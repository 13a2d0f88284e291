"""Move the nodes of a graph from a GPU to the host, for `dnnops.layers.convert`."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.type import TensorType

from dnnops.dtypes import host_dtype
from dnnops.errors import DnnNotSupportedError
from dnnops.gpuarray.op import DeviceOp, is_on_device
from dnnops.gpuarray.transfer import GpuFromHost, HostFromGpu, cast, host_from_gpu, to_device

__all__ = ["ToHost"]


class ToHost:
    """Builds the nodes of one graph on the host, operands first.

    Parameters
    ----------
    on_gpu : bool
        Whether nodes of the graph are on a GPU. Otherwise, nodes on the host stay unchanged.
    """

    def __init__(self, on_gpu: bool):
        self.on_gpu = on_gpu
        #: What takes the place of each variable that has changed.
        self.new: dict[Variable, Any] = {}
        self._host_copies: dict[Variable, Any] = {}
        self._device_copies: dict[tuple[Variable, str, int], Any] = {}

    def moved(self, node: Apply) -> Sequence[Any] | None:
        """Return the results of a node on a GPU as variables on the host.

        Parameters
        ----------
        node : Apply
            Node of the former graph.

        Returns
        -------
        sequence of TensorVariable or None
            None if the node is on the host, or if its operand stays on the GPU.

        Raises
        ------
        DnnNotSupportedError
            If no Ops on the host compute the same.
        """
        op: Any = node.op
        if not any(map(is_on_device, (*node.inputs, *node.outputs))):
            return None
        if isinstance(op, HostFromGpu) and is_on_device(found := self.current(node.inputs[0])):
            if found is node.inputs[0]:
                self._host_copies.setdefault(found, node.outputs[0])
            return [self.on_host(found)]
        operands = [self.on_host(x) for x in node.inputs]
        if isinstance(op, DeviceOp):
            self._check_opaque(node, is_moved=True)
            found = op.host_expressions(*operands)
        else:
            found = node.clone_with_new_inputs(operands, strict=False).outputs
        results = [_alike(x, old) for x, old in zip(found, node.outputs, strict=True)]
        if any(map(is_on_device, results)):
            raise DnnNotSupportedError(f"convert: {op} cannot be moved from the GPU to the host")
        return results

    def left(self, node: Apply) -> Apply:
        """Return a node that stays where it is, with operands where it needs them."""
        op: Any = node.op
        if isinstance(op, DeviceOp):
            self._check_opaque(node, is_moved=False)
        operands = [self.in_place_of(x) for x in node.inputs]
        if self.on_gpu and op.destroy_map and not any(map(is_on_device, node.inputs)):
            # An operand that was a transferred copy, or transferred before it was overwritten, may
            # now be a variable that others read.
            op = _not_overwriting(op)
        if op is node.op and all(a is b for a, b in zip(operands, node.inputs, strict=True)):
            return node
        moved = Apply(op, node.inputs, [z.clone() for z in node.outputs])
        return moved.clone_with_new_inputs(operands, strict=False)

    def current(self, x: Any) -> Any:
        """Return what has taken the place of a variable, on the host or on a GPU."""
        return self.new.get(x, x)

    def on_host(self, x: Any) -> Any:
        """Return the host variable for a variable of the former graph, with a transfer if need be.

        It is float32 for a bfloat16 variable.
        """
        found = self.current(x)
        if not is_on_device(found):
            return found
        if found not in self._host_copies:
            constant = _constant(found)
            self._host_copies[found] = host_from_gpu(found) if constant is None else constant
        return self._host_copies[found]

    def in_place_of(self, x: Any) -> Any:
        """Return the new variable where `x` is, of its dtype, with a transfer if need be."""
        found = self.current(x)
        if not is_on_device(x) or is_on_device(found):
            return found
        made = x.owner
        if made and isinstance(made.op, GpuFromHost) and found is made.inputs[0]:
            return x
        key = (found, x.type.dtype, x.type.device)
        if key not in self._device_copies:
            copied = to_device(found, x.type.device)
            self._device_copies[key] = cast(copied, x.type.dtype)
        return self._device_copies[key]

    def _check_opaque(self, node: Apply, is_moved: bool) -> None:
        op: Any = node.op
        for i in op.opaque_operands():
            if is_on_device(self.current(node.inputs[i])) == is_moved:
                raise DnnNotSupportedError(
                    f"convert: {type(op).__name__} reads what another node has written in a format"
                    " of their library. Either convert both or exclude both"
                )


def _not_overwriting(op: Any) -> Any:
    """Return the version of an Op on the host that overwrites no operand."""
    if isinstance(op, Elemwise):
        return Elemwise(op.scalar_op)
    parameter = next((name for name in ("inplace", "destructive") if hasattr(op, name)), None)
    if parameter is None:
        raise DnnNotSupportedError(f"convert: {op} overwrites an operand")
    op = copy(op)
    setattr(op, parameter, False)
    op.destroy_map = {}
    return op


def _constant(x: Any) -> Any:
    """Return the host constant for a constant on a GPU, or None for another variable."""
    if not isinstance(x, Constant):
        return None
    data: Any = x
    return pt.constant(data.host_data.astype(host_dtype(data.type.dtype)), name=x.name)


def _alike(x: Any, old: Any) -> Any:
    """Return a result with the dtype and the broadcast axes of that which it replaces."""
    if not isinstance(x.type, TensorType):
        return x
    x = pt.cast(x, host_dtype(old.type.dtype))
    pairs = zip(x.type.shape, old.type.shape, strict=True)
    ones = [axis for axis, (n, known) in enumerate(pairs) if known == 1 and n != 1]
    return pt.specify_broadcastable(x, *ones) if ones else x

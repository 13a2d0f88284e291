"""What lifters know about the graph that moves to the GPU."""

from __future__ import annotations

import copy
from typing import Any

from pytensor.graph.basic import Constant, Variable
from pytensor.graph.rewriting.basic import copy_stack_trace

from dnnops.gpuarray.op import is_on_device
from dnnops.gpuarray.transfer import cast, host_from_gpu, to_device
from dnnops.gpuarray.type import GpuArrayType
from dnnops.runtime.implementations import BuildContext

__all__ = ["LiftContext"]


class LiftContext(BuildContext):
    """Context that lifters are called with.

    Parameters
    ----------
    device : int
        Device that the node moves to: that of its first operand on a device, of its users if it has
        none there, or else the graph's.
    """

    def __init__(self, device: int):
        super().__init__()
        self.device = device
        self._device_values: dict[tuple[Variable, int], Any] = {}
        self._host_values: dict[Variable, Any] = {}

    def on(self, device: int) -> LiftContext:
        """Return a context for another device that shares all variables with this one."""
        if device == self.device:
            return self
        other = copy.copy(self)
        other.device = device
        return other

    def to_device(self, x: Any, device: int | None = None) -> Any:
        """Return `x` on the device, transferred if necessary; constants are moved only once."""
        device = self.device if device is None else device
        if is_on_device(x) and x.type.device == device:
            return x
        key = (x, device)
        if key not in self._device_values:
            if isinstance(x, Constant) and not is_on_device(x):
                moved = GpuArrayType(x.type.dtype, x.type.shape, device).make_constant(x.data)
            else:
                moved = to_device(x, device)
                copy_stack_trace(x, moved)
                if not is_on_device(x):
                    self._host_values[moved] = x
            self._device_values[key] = moved
        return self._device_values[key]

    def to_host(self, x: Any) -> Any:
        """Return `x` on the host, transferred if necessary."""
        if not is_on_device(x):
            return x
        if x not in self._host_values:
            host = host_from_gpu(x)
            copy_stack_trace(x, host)
            self._host_values[x] = host
            self._device_values[host, x.type.device] = cast(x, host.type.dtype)
        return self._host_values[x]

"""Recurrent networks on cuDNN."""

from __future__ import annotations

from typing import Any, ClassVar

import pytensor.tensor as pt
from pytensor.compile.sharedvalue import SharedVariable

from dnnops.dnn.availability import context_device
from dnnops.dnn.conv import swapped
from dnnops.dtypes import dtype_name
from dnnops.errors import DnnTypeError
from dnnops.gpu.base import device_operands
from dnnops.gpu.rnn import GpuDnnRNNForward
from dnnops.gpuarray.op import infer_device, is_on_device
from dnnops.gpuarray.transfer import as_gpuarray_variable
from dnnops.nnet.rnn.block import RNNBlock as _HostRNNBlock
from dnnops.nnet.rnn.op import RANKS

__all__ = ["RNNBlock"]


class RNNBlock(_HostRNNBlock):
    """A recurrent network on cuDNN with its parameters in one vector.

    It differs from `dnnops.nnet.RNNBlock` in that `apply` transfers host operands to the device,
    returns device variables and supports bfloat16. If no operand is on a device, `context_name`
    gives the device.
    """

    dtypes: ClassVar[tuple[str, ...]] = (*_HostRNNBlock.dtypes, "bfloat16")
    _forward = GpuDnnRNNForward

    def _dtype_name(self, dtype: Any) -> str:
        return dtype_name(dtype)

    def _operands(self, where: str, named: dict[str, Any]) -> list[Any]:
        arrays = [x for x in named.values() if is_on_device(x)]
        device = infer_device(*arrays) if arrays else context_device(self.context_name)
        moved = {name: as_gpuarray_variable(x, device) for name, x in named.items()}
        found = device_operands(where, None, **moved)
        for (name, x), ndim in zip(moved.items(), (RANKS.get(n, 3) for n in moved), strict=True):
            if x.type.ndim != ndim:
                raise DnnTypeError(
                    f"{where}: {name} must have {ndim} dimensions, got {x.type.ndim} ({x.type})"
                )
        return found

    def _swapped(self, x: Any) -> Any:
        return swapped(x)

    def split_params(self, w: Any, layer: int, input_size: Any) -> list[Any]:
        """Split the parameter vector like `dnnops.nnet.RNNBlock.split_params`.

        `w` can also be a device variable.
        """
        if is_on_device(w) and not isinstance(w, SharedVariable):
            w = pt.as_tensor_variable(w)
        return super().split_params(w, layer, input_size)

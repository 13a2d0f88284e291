"""Transfers between host and device and between devices, and casts on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from pytensor.gradient import DisconnectedType, disconnected_type
from pytensor.graph.basic import Apply, Variable
from pytensor.scalar.basic import identity
from pytensor.tensor import as_tensor_variable
from pytensor.tensor.basic import cast as host_cast
from pytensor.tensor.basic import register_transfer
from pytensor.tensor.type import TensorType

from dnnops.arguments import shown
from dnnops.compat import shape_inference
from dnnops.dtypes import FLOAT_DTYPES, dtype_name, host_dtype
from dnnops.errors import DnnTypeError
from dnnops.gpuarray.deferred import raise_deferred
from dnnops.gpuarray.device import check_device, default_device, device_from_target
from dnnops.gpuarray.layout import common_order
from dnnops.gpuarray.op import GpuOp, infer_device, is_on_device
from dnnops.gpuarray.type import GpuArrayType, as_device_array, as_host_array

if TYPE_CHECKING:
    from dnnops.gpuarray.prepared.call import PreparedCall


class _Conversion(GpuOp):
    """Base class of Ops whose output has the shape of their only input and is linear in it."""

    def host_expressions(self, x: Any) -> list[Any]:
        """Return the operand, which is on the host already."""
        return [x]

    @shape_inference
    def infer_shape(self, node: Apply, shapes: Any) -> Any:
        """Return the shape of the input."""
        return shapes

    def back(self, x: Variable, gradient: Any) -> Variable:
        """Convert the gradient of the output to the gradient of `x`."""
        raise NotImplementedError

    def pullback(self, inputs: Any, outputs: Any, output_grads: Any) -> list[Variable]:
        """Convert the gradient back; with a bfloat16 input, it stays float32."""
        (x,), (gradient,) = inputs, output_grads
        if isinstance(gradient.type, DisconnectedType):
            return [disconnected_type()]
        return [self.back(x, gradient)]

    def pushforward(self, inputs: Any, outputs: Any, tangents: Any) -> list[Variable]:
        """Convert the tangent in the same way as the value."""
        (x,), (tangent,) = inputs, tangents
        if isinstance(tangent.type, DisconnectedType):
            return [disconnected_type()]
        if is_on_device(x):  # PyTensor creates zero tangents on the host
            tangent = cast(to_device(tangent, x.type.device), x.type.dtype)
        return [self(tangent)]


class GpuFromHost(_Conversion):
    """Copy a host tensor to a device.

    Parameters
    ----------
    device : int, default 0
        CUDA device number.
    """

    __props__: ClassVar[tuple[str, ...]] = ("device",)

    def __init__(self, device: int = 0):
        self.device = check_device(device)

    def make_node(self, x: Any) -> Apply:
        """Build the node from a host tensor; the output has its dtype and static shape."""
        x = as_tensor_variable(x)
        return Apply(self, [x], [GpuArrayType(x.type.dtype, x.type.shape, self.device)()])

    def back(self, x: Variable, gradient: Any) -> Variable:
        return as_tensor_variable(gradient)

    def compute(self, node: Apply, x: Any) -> Any:
        import cupy

        return cupy.asarray(x)

    def __str__(self) -> str:
        return f"GpuFromHost{{cuda{self.device}}}"


class HostFromGpu(_Conversion):
    """Copy a device array to the host.

    bfloat16 arrays must be cast first, since host tensors can't have that dtype.
    """

    __props__: ClassVar[tuple[str, ...]] = ()

    def make_node(self, x: Any) -> Apply:
        """Build the node from a device variable; the output has its dtype and static shape."""
        if not is_on_device(x):
            raise DnnTypeError(f"HostFromGpu expects a device variable, got {x}")
        if x.type.dtype == "bfloat16":
            raise DnnTypeError(
                "HostFromGpu: a host tensor cannot be bfloat16; cast to float32 first, as"
                " as_tensor_variable does"
            )
        return Apply(self, [x], [TensorType(x.type.dtype, shape=x.type.shape)()])

    def back(self, x: Variable, gradient: Any) -> Variable:
        return to_device(gradient, x.type.device)

    def node_device(self, node: Apply) -> int:
        return node.inputs[0].type.device

    def compute(self, node: Apply, x: Any) -> Any:
        host = as_host_array(x)
        raise_deferred()
        return host


class GpuToGpu(_Conversion):
    """Copy a device array to another device.

    Parameters
    ----------
    device : int
        Number of the target device.
    """

    __props__: ClassVar[tuple[str, ...]] = ("device",)

    def __init__(self, device: int):
        self.device = check_device(device)

    def make_node(self, x: Any) -> Apply:
        """Build the node from a variable on any device."""
        if not is_on_device(x):
            raise DnnTypeError(f"GpuToGpu expects a device variable, got {x}")
        return Apply(self, [x], [x.type.clone(device=self.device)()])

    def back(self, x: Variable, gradient: Any) -> Variable:
        return to_device(gradient, x.type.device)

    def compute(self, node: Apply, x: Any) -> Any:
        if x.device.id == self.device:
            return x.copy(order="K")
        from dnnops.gpuarray.copying import copied_to_device

        return copied_to_device(x, self.device)

    def __str__(self) -> str:
        return f"GpuToGpu{{cuda{self.device}}}"


class GpuCast(_Conversion):
    """Convert the dtype of a device array.

    Parameters
    ----------
    dtype : str
        New dtype: any dtype of device arrays, including bfloat16.
    """

    __props__: ClassVar[tuple[str, ...]] = ("dtype",)

    def __init__(self, dtype: str):
        self.dtype = dtype_name(dtype)

    def make_node(self, x: Any) -> Apply:
        """Build the node from a device variable."""
        infer_device(x)
        return Apply(self, [x], [x.type.clone(dtype=self.dtype)()])

    def host_expressions(self, x: Any) -> list[Any]:
        """Return the operand in the dtype that the host has for this Op's."""
        return [host_cast(x, host_dtype(self.dtype))]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        """Disconnect casts to or from integers, which have no gradient."""
        return [[self.dtype in FLOAT_DTYPES and node.inputs[0].type.dtype in FLOAT_DTYPES]]

    def back(self, x: Any, gradient: Any) -> Variable:
        gradient = to_device(gradient, x.type.device)
        if self.dtype not in FLOAT_DTYPES or x.type.dtype not in FLOAT_DTYPES:
            return disconnected_type()
        # pytensor.grad rejects bfloat16 terms, and a float32 gradient is more accurate anyway.
        return cast(gradient, "float32" if x.type.dtype == "bfloat16" else x.type.dtype)

    def prepare(self, node: Apply, x: Any) -> PreparedCall | None:
        from dnnops.gpuarray.elementwise.step import elementwise_step
        from dnnops.gpuarray.prepared.builder import CallBuilder

        call = CallBuilder((x,))
        order = common_order([x], x.shape)
        result, out = call.new_in_order(x.shape, node.outputs[0].type.numpy_dtype, order)
        if out.size:
            operand = (node.inputs[0].type.dtype, call.operand(0).transpose(order))
            step = elementwise_step(identity, [operand], [(self.dtype, out)])
            if step is None:
                return None
            call.steps.append(step)
        return call.call(result)

    def compute(self, node: Apply, x: Any) -> Any:
        call = self.prepared(node, x)
        if call is None:
            return x.astype(node.outputs[0].type.numpy_dtype, order="K")
        return call.run((x,))

    def __str__(self) -> str:
        return f"GpuCast{{{self.dtype}}}"


def host_from_gpu(x: Any) -> Any:
    """Transfer a device variable to the host.

    Parameters
    ----------
    x : GpuArrayVariable

    Returns
    -------
    TensorVariable
        ``HostFromGpu()(x)``. A bfloat16 variable is cast to float32 first.
    """
    return HostFromGpu()(cast(x, "float32") if x.type.dtype == "bfloat16" else x)


def to_device(x: Any, device: int) -> Any:
    """Transfer a variable or a value to a device.

    Returns
    -------
    GpuArrayVariable
        `x` itself if it is on that device already.
    """
    if is_on_device(x):
        return x if x.type.device == device else GpuToGpu(device)(x)
    return GpuFromHost(device)(as_tensor_variable(x))


def cast(x: Any, dtype: str) -> Any:
    """Cast a device variable; return `x` itself if it already has the dtype."""
    return x if x.type.dtype == dtype else GpuCast(dtype)(x)


def as_gpuarray_variable(x: Any, device: int | None = None) -> Any:
    """Convert a variable or an array to a device variable.

    Parameters
    ----------
    x : Variable or array_like
        Variable, or host or device array. A device variable is moved only if `device` is
        another device. An array becomes a constant.
    device : int, optional
        Device number. Defaults to the device of `x` if it is there already, otherwise to that of
        the flag ``device``, or 0.

    Returns
    -------
    GpuArrayVariable
    """
    if isinstance(x, Variable):
        if is_on_device(x):
            return x if device is None else to_device(x, device)
        return to_device(x, default_device() if device is None else device)
    if not hasattr(x, "dtype"):
        try:
            x = np.asarray(x)
        except Exception as error:  # the value's own methods may raise any exception
            raise DnnTypeError(f"cannot convert to an array: {shown(x)}") from error
        if x.dtype.kind == "f":
            x = x.astype(dtype_name("floatX"))
    if device is None:
        array = as_device_array(x)
        device = default_device() if array is None else array.device.id
    type_ = GpuArrayType(str(x.dtype).rpartition(".")[2], (None,) * len(x.shape), device)
    return type_.make_constant(x)


def _transfer(x: Variable, target: str) -> Any:
    """Implement ``x.transfer("cuda1")``; return None for targets that aren't CUDA devices."""
    device = device_from_target(target)
    return None if device is None else to_device(x, device)


register_transfer(_transfer)

__all__ = [
    "GpuCast",
    "GpuFromHost",
    "GpuToGpu",
    "HostFromGpu",
    "as_gpuarray_variable",
    "cast",
    "host_from_gpu",
    "to_device",
]

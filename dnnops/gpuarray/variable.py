"""Variables and constants in GPU memory, with the operators of a `TensorVariable`."""

from __future__ import annotations

import copy
import hashlib
from typing import Any

import numpy as np
from pytensor.graph.basic import Constant, Variable
from pytensor.tensor import _as_tensor_variable, _get_vector_length, as_tensor_variable
from pytensor.tensor.variable import _tensor_py_operators

from dnnops.dtypes import dtype_name
from dnnops.gpuarray.device import default_device, on_device
from dnnops.gpuarray.type import GpuArrayType, as_device_array


class GpuArrayVariable(Variable):
    """Variable of :class:`~dnnops.gpuarray.type.GpuArrayType`.

    It has the operators and methods of a `TensorVariable`. They build a host expression of the
    transferred value, ``HostFromGpu()(self)``. The rewrites for the GPU then move the whole
    expression to the device and remove the transfer.
    """

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return self.type.ndim

    @property
    def dtype(self) -> str:
        """Name of the dtype."""
        return self.type.dtype

    @property
    def broadcastable(self) -> tuple[bool, ...]:
        """Whether each dimension is known to have length 1."""
        return self.type.broadcastable

    def transfer(self, target: str) -> Any:
        """Transfer to ``"cpu"``, ``"cuda"``, ``"cuda0"``...; see `pytensor.tensor.transfer`."""
        from pytensor.tensor.basic import transfer

        return transfer(self, target)

    def astype(self, dtype: Any) -> Any:
        """Cast to `dtype`; casts to or from bfloat16 give a device variable."""
        from dnnops.gpuarray.transfer import cast

        name = dtype_name(dtype)
        if "bfloat16" in (name, self.dtype):
            return cast(self, name)
        return as_tensor_variable(self).astype(name)

    def __add__(self, other: Any) -> Any:
        """Return ``self + other``.

        The sum of two variables on the same device is a device variable, because
        `pytensor.grad` adds up the terms of a gradient, which must have the variable's type.
        """
        total = as_tensor_variable(self) + other
        if isinstance(other, GpuArrayVariable) and other.type.device == self.type.device:
            from dnnops.gpuarray.transfer import cast, to_device

            dtype = self.dtype if self.dtype == other.dtype else total.dtype
            return cast(to_device(total, self.type.device), dtype)
        return total


def _on_host(name: str) -> Any:
    def method(self: GpuArrayVariable, *args: Any, **kwargs: Any) -> Any:
        return getattr(as_tensor_variable(self), name)(*args, **kwargs)

    method.__name__ = name
    method.__qualname__ = f"GpuArrayVariable.{name}"
    method.__doc__ = getattr(_tensor_py_operators, name).__doc__
    return method


def _property_on_host(name: str) -> property:
    return property(
        lambda self: getattr(as_tensor_variable(self), name),
        doc=getattr(_tensor_py_operators, name).__doc__,
    )


def _borrow_operators() -> None:
    """Add the public names of `TensorVariable` that `GpuArrayVariable` lacks."""
    for name, attribute in vars(_tensor_py_operators).items():
        if name in vars(GpuArrayVariable) or name in ("__dict__", "__weakref__", "__module__"):
            continue
        if isinstance(attribute, property):
            setattr(GpuArrayVariable, name, _property_on_host(name))
        elif callable(attribute):
            setattr(GpuArrayVariable, name, _on_host(name))
        elif name != "__doc__":
            # E.g. __array_priority__, which makes NumPy defer `array + variable` to the variable.
            setattr(GpuArrayVariable, name, attribute)


_borrow_operators()


class GpuArrayConstantSignature(tuple[GpuArrayType, np.ndarray]):
    """Type and value of a device constant, which determine equality."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, GpuArrayConstantSignature):
            return NotImplemented
        # Compare bytes, so that equal NaNs are equal.
        return self[0] == other[0] and self[1].tobytes() == other[1].tobytes()

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((self[0], hashlib.sha256(self[1].tobytes()).hexdigest()))


class GpuArrayConstant(GpuArrayVariable, Constant):
    """Constant on a device.

    The value is stored on the host, for comparing, printing and pickling graphs, and copied to
    the device when it is first needed there. Graphs with constants can thus be built, rewritten
    and pickled on a machine without a GPU.

    Parameters
    ----------
    type : GpuArrayType
        Type of the constant; its static shape is replaced by the shape of the data.
    data : array_like or cupy.ndarray
        Value of the constant.
    name : str, optional
        Name of the variable.

    Raises
    ------
    DnnTypeError
        If `data` doesn't match the type.
    """

    def __init__(self, type: GpuArrayType, data: Any, name: str | None = None):
        host, device_array = _constant_data(type, data)
        # Constant.__init__ would filter the data, and so copy it to the device.
        Variable.__init__(self, type.clone(shape=host.shape), None, None, name)
        self.host_data = host
        self._device_data = device_array

    @property
    def data(self) -> Any:
        """Value as a ``cupy.ndarray``."""
        if self._device_data is None:
            with on_device(self.type.device) as cupy:
                self._device_data = cupy.asarray(self.host_data)
        return self._device_data

    def signature(self) -> GpuArrayConstantSignature:
        """Return the key by which PyTensor compares constants."""
        return GpuArrayConstantSignature((self.type, self.host_data))

    def __str__(self) -> str:
        text = str(self.host_data).replace("\n", "")
        if len(text) > 20:
            text = f"{text[:10].strip()} ... {text[-10:].strip()}"
        return f"GpuArrayConstant{{{text}}}" if self.name is None else f"{self.name}{{{text}}}"

    def __repr__(self) -> str:
        return f"GpuArrayConstant({self.type!r}, data={self.host_data!r})"

    def __copy__(self) -> GpuArrayConstant:
        return type(self)(self.type, self.host_data, self.name)

    def __deepcopy__(self, memo: dict[int, Any]) -> GpuArrayConstant:
        return type(self)(self.type, copy.deepcopy(self.host_data, memo), self.name)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_device_data": None}


def _constant_data(type_: GpuArrayType, data: Any) -> tuple[np.ndarray, Any]:
    """Return the value as a host array, and as a device array if it is on the device already."""
    array = as_device_array(data)
    if array is not None:
        array = type_.filter(array)
        return array.get(), array
    return type_.filter_host(data, allow_downcast=None), None


_host_astype = _tensor_py_operators.astype


def _astype(self: Any, dtype: Any) -> Any:
    """Cast to `dtype`; bfloat16, which `TensorType` lacks, gives a device variable.

    PyTensor would raise a `TypeError` for bfloat16.
    """
    if getattr(dtype, "__name__", str(dtype)) != "bfloat16":
        return _host_astype(self, dtype)
    from dnnops.gpuarray.transfer import cast, to_device

    return cast(to_device(self, default_device()), "bfloat16")


_tensor_py_operators.astype = _astype

GpuArrayType.variable_type = GpuArrayVariable
GpuArrayType.constant_type = GpuArrayConstant


@_as_tensor_variable.register(GpuArrayVariable)
def _as_tensor_gpu_variable(
    x: GpuArrayVariable, name: str | None, ndim: int | None, **kwargs: Any
) -> Any:
    from dnnops.gpuarray.transfer import host_from_gpu

    return as_tensor_variable(host_from_gpu(x), name=name, ndim=ndim, **kwargs)


@_get_vector_length.register(GpuArrayVariable)
def _gpu_vector_length(op_or_var: Any, var: GpuArrayVariable) -> int:
    if var.type.shape[0] is None:
        raise ValueError(f"Length of {var} cannot be determined")
    return var.type.shape[0]

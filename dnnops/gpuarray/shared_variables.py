"""Shared variables whose values are stored in GPU memory."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from pytensor.compile.sharedvalue import SharedVariable, shared_constructor
from pytensor.graph.basic import Variable
from pytensor.graph.utils import add_tag_trace

from dnnops.arguments import switch
from dnnops.dtypes import FLOAT_DTYPES, dtype_name
from dnnops.errors import DnnTypeError
from dnnops.gpuarray.device import check_device, default_device, device_from_target, on_device
from dnnops.gpuarray.type import GpuArrayType, as_device_array
from dnnops.gpuarray.variable import GpuArrayVariable


class GpuArraySharedVariable(SharedVariable, GpuArrayVariable):
    """Shared variable on a device, created by :func:`shared`."""

    def get_value(self, borrow: bool = False, return_internal_type: bool = False) -> Any:
        """Return the value.

        Parameters
        ----------
        borrow : bool, default False
            Whether to return the array itself instead of a copy; requires `return_internal_type`.
        return_internal_type : bool, default False
            Whether to return a ``cupy.ndarray`` instead of a NumPy array.

        Returns
        -------
        numpy.ndarray or cupy.ndarray
            Value of the variable. bfloat16 values have the dtype ``ml_dtypes.bfloat16``.
        """
        value = self.container.value
        if not return_internal_type:
            with on_device(self.type.device):
                return value.get()
        if borrow:
            return value
        with on_device(self.type.device):
            return value.copy(order="K")

    def set_value(self, new_value: Any, borrow: bool = False) -> None:
        """Set the value.

        Parameters
        ----------
        new_value : array_like
            Host array, or device array: a ``cupy.ndarray``, or any array that supports DLPack
            or ``__cuda_array_interface__``.
        borrow : bool, default False
            Whether to store a device array itself instead of a copy. Host arrays are always
            copied.

        Raises
        ------
        DnnTypeError
            If the dtype, the rank, the static shape or the device doesn't match.
        """
        self.container.value = _owned(self.type, new_value, borrow)

    def zero(self, borrow: bool = False) -> None:
        """Set the value to zeros; with `borrow`, overwrite the memory of the current value."""
        with on_device(self.type.device) as cupy:
            if borrow:
                self.container.value[...] = 0
            else:
                self.container.value = cupy.zeros_like(self.container.value)


def _owned(
    type_: GpuArrayType, value: Any, borrow: bool, allow_downcast: bool | None = None
) -> Any:
    """Filter a value, and copy it if it is a device array, unless `borrow` is True."""
    array = type_.filter(value, allow_downcast=allow_downcast)
    if borrow or as_device_array(value) is None:
        return array
    with on_device(type_.device):
        return array.copy(order="K")


def shared(
    value: Any,
    name: str | None = None,
    dtype: Any = None,
    device: int | str | None = None,
    strict: bool = False,
    allow_downcast: bool | None = None,
    borrow: bool = False,
    shape: Iterable[int | None] | None = None,
) -> GpuArraySharedVariable:
    """Create a shared variable on a GPU.

    Parameters
    ----------
    value : array_like
        Host array, or device array: a ``cupy.ndarray``, or any array that supports DLPack or
        ``__cuda_array_interface__``.
    name : str, optional
        Name of the variable.
    dtype : str, optional
        Dtype to cast the value to; ``"bfloat16"`` rounds. Defaults to the dtype of the value.
    device : int or str, optional
        Device number, ``"cuda"``, ``"cuda1"``... Defaults to the device of a device array. For
        host arrays, defaults to the flag ``device`` if it names a CUDA device, otherwise to 0.
    strict : bool, default False
        Whether to reject later values that need a conversion.
    allow_downcast : bool, optional
        Whether later values may lose precision; see `pytensor.shared`.
    borrow : bool, default False
        Whether to store a device array itself instead of a copy.
    shape : iterable of int or None, optional
        Static shape. By default no length is fixed, so later values may have other lengths.

    Returns
    -------
    GpuArraySharedVariable

    Raises
    ------
    DnnTypeError
        If the value can't be a device array, or doesn't match the given shape or device.
    DnnUnavailableError
        If the device doesn't exist.

    Examples
    --------
    >>> w = dnnops.gpuarray.shared(np.zeros((64, 3, 3, 3), "float32"), name="w")
    >>> w.get_value().shape
    (64, 3, 3, 3)
    """
    strict, borrow = switch("shared", "strict", strict), switch("shared", "borrow", borrow)
    if isinstance(value, Variable):
        raise DnnTypeError("the value of a shared variable cannot be symbolic")
    array = as_device_array(value)
    if array is None:
        array = value = np.asarray(value)
    number = _device_number(device, array)
    wanted = dtype_name(array.dtype.name if dtype is None else dtype)
    type_ = GpuArrayType(wanted, (None,) * array.ndim if shape is None else shape, number)
    variable = GpuArraySharedVariable(
        type=type_,
        # `dtype` may ask for a downcast; without it, the value keeps its dtype.
        value=_owned(type_, value, borrow, allow_downcast=True),
        strict=strict,
        allow_downcast=allow_downcast,
        name=name,
    )
    return add_tag_trace(variable)


def _device_number(device: int | str | None, array: Any) -> int:
    if device is None:
        if not isinstance(array, np.ndarray):
            return int(array.device.id)
        return default_device()
    number = device_from_target(device) if isinstance(device, str) else device
    if number is None:
        raise DnnTypeError(f"{device!r} is not a CUDA device; give a number, 'cuda' or 'cuda0'")
    return number


_host_constructor: Callable[..., Any] | None = None


def put_shared_on_gpu(enabled: bool, device: int = 0) -> None:
    """Make `pytensor.shared` create device variables, or restore its original behavior.

    Arrays of float16, float32 and float64 with at least one dimension go to the device, as in
    Theano. Scalars and integers, which are mostly indices and shapes, stay on the host, as does
    every value with ``target="cpu"``.

    Parameters
    ----------
    enabled : bool
        Whether to create device variables; False restores the original behavior.
    device : int, default 0
        Device number.
    """
    global _host_constructor
    enabled = switch("put_shared_on_gpu", "enabled", enabled)
    device = check_device(device)
    if _host_constructor is None:
        _host_constructor = shared_constructor.dispatch(np.ndarray)
    if enabled:
        constructor: Any = functools.partial(_construct, device)
    else:
        constructor = _host_constructor
    shared_constructor.register(np.ndarray, constructor)


def _construct(
    device: int,
    value: np.ndarray,
    name: str | None = None,
    *,
    target: str | None = None,
    **options: Any,
) -> Any:
    assert _host_constructor is not None
    on_gpu = value.ndim > 0 and value.dtype.name in FLOAT_DTYPES and target != "cpu"
    if not on_gpu or isinstance(value, np.ma.MaskedArray):
        return _host_constructor(value, name=name, **options)
    return shared(value, name, device=device if target is None else target, **options)

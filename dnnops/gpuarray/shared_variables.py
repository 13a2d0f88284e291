"""Shared variables whose value lives in a GPU's memory."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from pytensor.compile.sharedvalue import SharedVariable, shared_constructor
from pytensor.configdefaults import config
from pytensor.graph.basic import Variable
from pytensor.graph.utils import add_tag_trace

from dnnops.arguments import switch
from dnnops.errors import DnnTypeError
from dnnops.gpuarray.device import check_device, device_from_target, on_device
from dnnops.gpuarray.dtypes import FLOAT_DTYPES, dtype_name
from dnnops.gpuarray.type import GpuArrayType, as_device_array
from dnnops.gpuarray.variable import GpuArrayVariable


class GpuArraySharedVariable(SharedVariable, GpuArrayVariable):
    """A shared variable on a device; :func:`shared` makes it."""

    def get_value(self, borrow: bool = False, return_internal_type: bool = False) -> Any:
        """Give the value.

        Parameters
        ----------
        borrow : bool, default False
            With `return_internal_type`, give the array itself and no copy.
        return_internal_type : bool, default False
            Give the ``cupy.ndarray``.

        Returns
        -------
        numpy.ndarray or cupy.ndarray
            bfloat16 values come with the dtype ``ml_dtypes.bfloat16``.
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
            An array of the host, or of the device: CuPy's, or any with DLPack or
            ``__cuda_array_interface__``.
        borrow : bool, default False
            Keep a device array itself and no copy. Host arrays are always copied.

        Raises
        ------
        DnnTypeError
            For a wrong dtype, rank, static shape or device.
        """
        self.container.value = _owned(self.type, new_value, borrow)

    def zero(self, borrow: bool = False) -> None:
        """Set the value to zeros, with `borrow` in the same memory."""
        with on_device(self.type.device) as cupy:
            if borrow:
                self.container.value[...] = 0
            else:
                self.container.value = cupy.zeros_like(self.container.value)


def _owned(
    type_: GpuArrayType, value: Any, borrow: bool, allow_downcast: bool | None = None
) -> Any:
    """Filter a value, and copy it if it is somebody else's device array."""
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
    """Make a shared variable on a GPU.

    Parameters
    ----------
    value : array_like
        An array of the host, or of the device: CuPy's, or any with DLPack or
        ``__cuda_array_interface__``.
    name : str, optional
    dtype : str, optional
        Default: the value's. The value is cast to it; ``"bfloat16"`` rounds.
    device : int or str, optional
        A device's number, ``"cuda"``, ``"cuda1"``... Default: where a device array is, else
        the flag ``device``, else 0.
    strict : bool, default False
        Refuse later values that need a conversion.
    allow_downcast : bool, optional
        Whether later values may lose precision; see `pytensor.shared`.
    borrow : bool, default False
        Use a device array itself and no copy.
    shape : iterable of int or None, optional
        Static shape. Default: unknown lengths, so that they may change.

    Returns
    -------
    GpuArraySharedVariable

    Raises
    ------
    DnnTypeError
        If the value fits no device array, or not the given shape or device.
    DnnUnavailableError
        If there is no such device.

    Examples
    --------
    >>> w = dnnops.gpuarray.shared(np.zeros((64, 3, 3, 3), "float32"), name="w")
    >>> w.get_value().shape
    (64, 3, 3, 3)
    """
    strict, borrow = switch("shared", "strict", strict), switch("shared", "borrow", borrow)
    if isinstance(value, Variable):
        raise DnnTypeError("the value of a shared variable can't be symbolic")
    array = as_device_array(value)
    if array is None:
        array = value = np.asarray(value)
    number = _device_number(device, array)
    wanted = dtype_name(array.dtype.name if dtype is None else dtype)
    type_ = GpuArrayType(wanted, (None,) * array.ndim if shape is None else shape, number)
    variable = GpuArraySharedVariable(
        type=type_,
        # The cast that `dtype` asks for; nothing is lost where it is the value's.
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
        return device_from_target(str(getattr(config, "device", "cpu"))) or 0
    number = device_from_target(device) if isinstance(device, str) else device
    if number is None:
        raise DnnTypeError(f"{device!r} names no CUDA device; give a number, 'cuda' or 'cuda0'")
    return number


_host_constructor: Callable[..., Any] | None = None


def put_shared_on_gpu(enabled: bool, device: int = 0) -> None:
    """Let `pytensor.shared` make device variables, or stop it.

    Arrays of float16, float32 and float64 with at least one dimension go to the device, as in
    Theano; integers, which are mostly indices and shapes, and scalars stay on the host, as does
    everything with ``target="cpu"``.

    Parameters
    ----------
    enabled : bool
        False restores what was before.
    device : int, default 0
        Number of the device.
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

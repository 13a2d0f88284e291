"""`GpuArrayType`: the PyTensor type of arrays in GPU memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from pytensor.graph.basic import Variable
from pytensor.graph.type import HasDataType, HasShape
from pytensor.link.c.type import CType
from pytensor.tensor.type import TensorType

from dnnops.dtypes import dtype_name, host_dtype, numpy_dtype
from dnnops.errors import DnnTypeError, DnnUnavailableError
from dnnops.gpuarray.c_interface import (
    HEADER_DIRS,
    HEADER_VERSION,
    HEADERS,
    c_cleanup,
    c_declare,
    c_extract,
    c_init,
    c_sync,
)
from dnnops.gpuarray.device import check_device, on_device

if TYPE_CHECKING:
    from collections.abc import Iterable

# DLPack device types of memory that a CUDA device can access (kDLCUDA, kDLCUDAManaged).
_DLPACK_CUDA = (2, 13)


class GpuArrayType(CType[Any], HasDataType, HasShape):
    """Type of variables whose values are ``cupy.ndarray`` on one device.

    Parameters
    ----------
    dtype : str, numpy.dtype or type
        float16, float32, float64, bfloat16 (which `TensorType` doesn't support), an integer
        dtype, or bool.
    shape : iterable of int or None
        Static shape, with None for unknown lengths. True and False stand for 1 and None.
    device : int, default 0
        CUDA device number.
    name : str, optional
        Name to print for the type.

    Raises
    ------
    DnnTypeError
        If device arrays can't have that dtype, or if `shape` isn't a static shape.
    DnnValueError
        If `device` isn't a device number.
    """

    __props__ = ("dtype", "shape", "device")

    def __init__(
        self,
        dtype: Any,
        shape: Iterable[int | bool | None] | None = None,
        device: int = 0,
        name: str | None = None,
    ):
        if shape is None:
            raise DnnTypeError("GpuArrayType needs a shape, e.g. (None, None) for a matrix")
        self.dtype = dtype_name(dtype)
        self.shape = tuple(_static_length(length) for length in shape)
        self.ndim = len(self.shape)
        self.device = check_device(device)
        self.name = name

    @property
    def broadcastable(self) -> tuple[bool, ...]:
        """Whether each dimension is known to have length 1."""
        return tuple(length == 1 for length in self.shape)

    @property
    def numpy_dtype(self) -> np.dtype:
        """NumPy dtype of the values; ``ml_dtypes.bfloat16`` for bfloat16."""
        return numpy_dtype(self.dtype)

    @property
    def host_type(self) -> TensorType:
        """`TensorType` of the values after a transfer to the host; bfloat16 becomes float32."""
        return TensorType(host_dtype(self.dtype), shape=self.shape)

    def clone(  # type: ignore[override]
        self,
        dtype: Any = None,
        shape: Iterable[int | bool | None] | None = None,
        device: int | None = None,
        **kwargs: Any,
    ) -> GpuArrayType:
        """Copy the type, with another dtype, static shape or device."""
        return type(self)(
            self.dtype if dtype is None else dtype,
            self.shape if shape is None else shape,
            self.device if device is None else device,
            name=self.name,
        )

    def __call__(self, name: str | None = None, *, shape: Any = None, **kwargs: Any) -> Any:
        """Create a variable of this type, optionally with a more specific static `shape`."""
        if shape is None:
            return super().__call__(name, **kwargs)
        narrowed = self.clone(shape=shape)
        if not self.is_super(narrowed):
            raise ValueError(f"{shape=} contradicts the static shape of {self}")
        return narrowed(name, **kwargs)

    # Values

    def filter(self, data: Any, strict: bool = False, allow_downcast: bool | None = None) -> Any:
        """Check a value, and convert it to an array of this type if necessary.

        Parameters
        ----------
        data : object
            Value to check. A ``cupy.ndarray`` is returned unchanged if its dtype, shape and device
            match. Any other array on a CUDA device that has ``__dlpack__`` or
            ``__cuda_array_interface__`` (PyTorch, JAX, Numba) is wrapped without a copy. Values
            that NumPy can convert to an array are copied to the device.
        strict : bool, default False
            Whether to reject values that need a dtype conversion or a copy from the host.
        allow_downcast : bool, optional
            Whether to accept a loss of precision, as for `TensorType`. A bfloat16 type always
            rounds host floats, since NumPy has no built-in bfloat16.

        Returns
        -------
        cupy.ndarray

        Raises
        ------
        DnnTypeError
            If the device, dtype, rank or static shape doesn't match. The message gives the
            expected and the actual one.
        DnnUnavailableError
            If the device doesn't exist.
        """
        if isinstance(data, Variable):
            raise DnnTypeError(f"{self} expects an array, got the symbolic variable {data}")
        array = as_device_array(data)
        if array is None:
            if strict:
                raise DnnTypeError(f"{self} expects an array on cuda{self.device}, got {_of(data)}")
            host = self.filter_host(data, allow_downcast)
            with on_device(self.device) as cupy:
                return cupy.asarray(host)
        if array.device.id != self.device:
            raise DnnTypeError(
                f"{self} expects an array on cuda{self.device}, got one on cuda{array.device.id}"
            )
        if array.dtype != self.numpy_dtype:
            array = self._convert_dtype(array, strict, allow_downcast)
        self._check_shape(array.shape)
        return array

    def filter_host(self, data: Any, allow_downcast: bool | None) -> np.ndarray:
        """Check and convert a value to the host array that is copied to the device."""
        if getattr(data, "dtype", None) == self.numpy_dtype:
            host = np.asarray(data)
        elif self.dtype == "bfloat16":
            host = np.asarray(data)
            if host.dtype.kind not in "fiub":
                raise DnnTypeError(f"{self} expects real numbers, got {_of(data)}")
            host = host.astype(self.numpy_dtype)
        else:
            host_type = TensorType(self.dtype, shape=(None,) * np.ndim(data))
            try:
                host = host_type.filter(data, strict=False, allow_downcast=allow_downcast)
            except TypeError as error:
                raise DnnTypeError(
                    f"{self} expects dtype {self.dtype}, got {_of(data)}, which cannot be converted"
                    " without loss; convert it explicitly, or set allow_downcast=True"
                ) from error
        self._check_shape(host.shape)
        return host

    def _convert_dtype(self, array: Any, strict: bool, allow_downcast: bool | None) -> Any:
        lossless = np.result_type(array.dtype, self.numpy_dtype) == self.numpy_dtype
        if strict or not (allow_downcast or lossless):
            raise DnnTypeError(f"{self} expects dtype {self.dtype}, got {array.dtype}")
        with on_device(self.device):
            return array.astype(self.numpy_dtype)

    def _check_shape(self, shape: tuple[int, ...]) -> None:
        if len(shape) != self.ndim:
            raise DnnTypeError(
                f"{self} expects {self.ndim} dimensions, got {len(shape)}: shape {tuple(shape)}"
            )
        if any(s is not None and s != length for s, length in zip(self.shape, shape, strict=True)):
            raise DnnTypeError(f"{self} expects shape {self.shape}, got {tuple(shape)}")

    @classmethod
    def values_eq(cls, a: Any, b: Any, force_same_dtype: bool = True) -> bool:
        """Compare two device arrays on the host; NaN equals NaN."""
        if a.dtype != b.dtype and force_same_dtype:
            return False
        a, b = as_host_array(a), as_host_array(b)
        return bool(np.array_equal(a, b, equal_nan="f" in (a.dtype.kind, b.dtype.kind)))

    @classmethod
    def values_eq_approx(cls, a: Any, b: Any, **tolerances: Any) -> bool:
        """Compare two device arrays with tolerances, like `TensorType.values_eq_approx`.

        For bfloat16 arrays, ``rtol`` and ``atol`` default to ``2**-7``, which is two units in
        the last place.
        """
        if a.dtype != b.dtype:
            return False
        if a.dtype == "bfloat16":
            tolerances = {"rtol": 2.0**-7, "atol": 2.0**-7, **tolerances}
        return bool(TensorType.values_eq_approx(as_host_array(a), as_host_array(b), **tolerances))

    @staticmethod
    def may_share_memory(a: Any, b: Any) -> bool:
        """Return whether the address ranges of two device arrays overlap."""
        cupy = _cupy_or_none()
        if cupy is None or not (isinstance(a, cupy.ndarray) and isinstance(b, cupy.ndarray)):
            return False
        return bool(a.device == b.device and cupy.may_share_memory(a, b))

    def get_shape_info(self, obj: Any) -> tuple[int, ...]:
        """Return the argument of :meth:`get_size`, for PyTensor's memory profile."""
        return tuple(obj.shape)

    def get_size(self, shape_info: tuple[int, ...]) -> int:
        """Return the size in bytes of a value of the given shape."""
        return int(np.prod(shape_info, dtype="int64")) * self.numpy_dtype.itemsize

    # Variables

    def in_same_class(self, otype: Any) -> bool:
        """Return whether `otype` differs from this type only in static lengths other than 1.

        Types with a more specific static shape are also accepted. PyTensor calls this for the
        update of a shared variable; `TensorType`, in contrast, rejects an update of shape
        ``(1, 6, 1, 1)`` if the lengths of the variable are unknown.
        """
        return (
            isinstance(otype, GpuArrayType)
            and otype.dtype == self.dtype
            and otype.device == self.device
            and (otype.broadcastable == self.broadcastable or self.is_super(otype))
        )

    def is_super(self, otype: Any) -> bool:
        """Return whether every value of `otype` is also a value of this type."""
        return (
            isinstance(otype, GpuArrayType)
            and otype.dtype == self.dtype
            and otype.device == self.device
            and otype.ndim == self.ndim
            and all(s is None or s == o for s, o in zip(self.shape, otype.shape, strict=True))
        )

    def filter_variable(self, other: Any, allow_convert: bool = True) -> Any:
        """Convert a variable or a value to a variable of this type.

        A value becomes a constant. A `TensorVariable` or a variable on another device is
        transferred to the device. If the static shape is less specific, a run-time check of the
        shape is added. bfloat16 and float32 are cast to each other, so that a float32
        expression can update a bfloat16 variable.

        Raises
        ------
        DnnTypeError
            If `other` has a different dtype or rank, or an incompatible static shape.
        """
        if not isinstance(other, Variable):
            return self.make_constant(other)
        if other.type == self:
            return other
        converted = self.convert_variable(other) if allow_convert else None
        if converted is None:
            raise DnnTypeError(f"cannot convert {other} of type {other.type} into {self}")
        return converted

    def convert_variable(self, var: Variable) -> Any:
        """Convert `var` to this type or a narrower one; return None if that is impossible."""
        if self.is_super(var.type):
            return var
        from dnnops.gpuarray.basic import specify_gpu_shape
        from dnnops.gpuarray.transfer import cast, to_device

        if not isinstance(var.type, TensorType | GpuArrayType) or var.type.ndim != self.ndim:
            return None
        if host_dtype(var.type.dtype) != host_dtype(self.dtype):
            return None
        known = zip(self.shape, var.type.shape, strict=True)
        if any(None not in (s, v) and s != v for s, v in known):
            return None
        moved = cast(to_device(var, self.device), self.dtype)
        return moved if self.is_super(moved.type) else specify_gpu_shape(moved, self.shape)

    def __str__(self) -> str:
        if self.name:
            return self.name
        shape = str(self.shape).replace("None", "?")
        return f"GpuArray(cuda{self.device}, {self.dtype}, shape={shape})"

    def __repr__(self) -> str:
        return f"GpuArrayType({self.dtype!r}, {self.shape}, device={self.device})"

    # C code: a variable is a ``PyObject *``, either an owned reference to a cupy.ndarray or NULL.

    def c_declare(self, name: str, sub: dict[str, str], check_input: bool = True) -> str:
        return c_declare(name)

    def c_init(self, name: str, sub: dict[str, str]) -> str:
        return c_init(name)

    def c_extract(
        self, name: str, sub: dict[str, str], check_input: bool = True, **kwargs: Any
    ) -> str:
        return c_extract(name, sub["fail"])

    def c_sync(self, name: str, sub: dict[str, str]) -> str:
        return c_sync(name)

    def c_cleanup(self, name: str, sub: dict[str, str]) -> str:
        return c_cleanup(name)

    def c_headers(self, **kwargs: Any) -> list[str]:
        return list(HEADERS)

    def c_header_dirs(self, **kwargs: Any) -> list[str]:
        return list(HEADER_DIRS)

    def c_code_cache_version(self) -> tuple[Any, ...]:
        return (1, HEADER_VERSION)


def _static_length(length: Any) -> int | None:
    if isinstance(length, bool | np.bool_):
        return 1 if length else None
    if length is None:
        return None
    if isinstance(length, int | np.integer) and length >= 0:
        return int(length)
    raise DnnTypeError(
        f"a static length must be a non-negative int, a bool or None; got {length!r}"
    )


def _of(data: Any) -> str:
    """Describe a value for an error message."""
    words = [type(data).__name__]
    for attribute in ("dtype", "shape"):
        if hasattr(data, attribute):
            words.append(f"{attribute} {getattr(data, attribute)}")
    return ", ".join(words)


def _cupy_or_none() -> Any:
    try:
        import cupy
    except ImportError:
        return None
    return cupy


def as_device_array(data: Any) -> Any:
    """Return `data` as a ``cupy.ndarray`` without copying it.

    Parameters
    ----------
    data : object
        ``cupy.ndarray``, or an object with ``__dlpack__`` or ``__cuda_array_interface__``.

    Returns
    -------
    cupy.ndarray or None
        None if `data` isn't in the memory of a CUDA device.

    Raises
    ------
    DnnUnavailableError
        If `data` is in the memory of a CUDA device but CuPy is missing.
    """
    cupy = _cupy_or_none()
    if cupy is not None and isinstance(data, cupy.ndarray):
        return data
    # Try DLPack first: it supports bfloat16 and passes the producer's stream.
    locate = getattr(data, "__dlpack_device__", None)
    dlpack = locate is not None and int(locate()[0]) in _DLPACK_CUDA
    if not dlpack and not hasattr(data, "__cuda_array_interface__"):
        return None
    if cupy is None:
        raise DnnUnavailableError(f"{_of(data)}: arrays on a CUDA device need CuPy")
    return cupy.from_dlpack(data) if dlpack else cupy.asarray(data)


def as_host_array(array: Any) -> np.ndarray:
    """Copy a ``cupy.ndarray`` to the host; bfloat16 becomes float32."""
    if array.dtype == "bfloat16":
        array = array.astype("float32")
    return array.get()

"""The dtypes of arrays, in one table.

``c_code/abi/dnnops_dtypes.h`` is the same table for C; a test compares them. Sizes come from NumPy.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = [
    "DTYPES",
    "DTYPE_CODES",
    "DTYPE_NAMES",
    "FLOAT_DTYPES",
    "HALF_DTYPES",
    "HOST_FLOAT_DTYPES",
    "compute_dtype",
]


class DType(NamedTuple):
    """Codes and C types of a dtype that arrays on the device can have.

    Attributes
    ----------
    code : int or None
        ``dnnops_dtype`` in C, or None if the runtime libraries don't support the dtype.
    c_type : str
        C type in which kernels compute with elements.
    cuda_type : str
        C++ type of an element in device memory.
    """

    code: int | None
    c_type: str
    cuda_type: str


#: Every dtype that a :class:`~dnnops.gpuarray.type.GpuArrayType` can have. The floating-point ones
#: are in the order of their range.
DTYPES: dict[str, DType] = {
    "bool": DType(8, "bool", "bool"),
    "int8": DType(4, "signed char", "signed char"),
    "uint8": DType(5, "unsigned char", "unsigned char"),
    "int16": DType(None, "short", "short"),
    "uint16": DType(None, "unsigned short", "unsigned short"),
    "int32": DType(6, "int", "int"),
    "uint32": DType(None, "unsigned int", "unsigned int"),
    "int64": DType(7, "long long", "long long"),
    "uint64": DType(None, "unsigned long long", "unsigned long long"),
    "float16": DType(2, "float", "__half"),
    "bfloat16": DType(3, "float", "__nv_bfloat16"),
    "float32": DType(0, "float", "float"),
    "float64": DType(1, "double", "double"),
}

#: ``dnnops_dtype`` of each dtype that the runtime libraries support, and the other way round.
DTYPE_CODES: dict[str, int] = {
    name: dtype.code for name, dtype in DTYPES.items() if dtype.code is not None
}
DTYPE_NAMES: dict[int, str] = {code: name for name, code in DTYPE_CODES.items()}

#: Floating-point dtypes. Each holds every value of those before it, except that neither 16-bit one
#: holds those of the other.
FLOAT_DTYPES = tuple(name for name in DTYPES if "float" in name)
#: Floating-point dtypes with 16 bits; kernels compute with them in float32.
HALF_DTYPES = ("float16", "bfloat16")
#: Floating-point dtypes of host tensors.
HOST_FLOAT_DTYPES = tuple(name for name in FLOAT_DTYPES if name != "bfloat16")


def compute_dtype(dtype: str) -> str:
    """Return the dtype in which elements of `dtype` are computed."""
    return "float32" if dtype in HALF_DTYPES else dtype

"""Register C code for PyTensor's type-independent Ops: copies, views and shapes."""

from __future__ import annotations

from pytensor.compile.ops import register_deep_copy_op_c_code, register_view_op_c_code
from pytensor.tensor.shape import register_shape_c_code, register_shape_i_c_code

from dnnops.gpuarray.c_interface import DEEP_COPY, HEADER_VERSION, SHAPE, SHAPE_I, VIEW
from dnnops.gpuarray.type import GpuArrayType

_VERSION = (1, HEADER_VERSION)

register_deep_copy_op_c_code(GpuArrayType, DEEP_COPY, version=_VERSION)
register_view_op_c_code(GpuArrayType, VIEW, version=_VERSION)
register_shape_c_code(GpuArrayType, SHAPE, version=_VERSION)
register_shape_i_c_code(GpuArrayType, SHAPE_I, "", version=_VERSION)

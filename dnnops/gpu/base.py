"""Base class of the Ops on cuDNN, and conversion of their operands."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from pytensor.graph.basic import Apply

import dnnops.gpu.library  # gives the runtime library its allocator
import dnnops.gpuarray.variable  # noqa: F401  gives GpuArrayType its variables
from dnnops.dtypes import DTYPE_CODES, FLOAT_DTYPES, numpy_dtype, widest_dtype
from dnnops.errors import DnnTypeError
from dnnops.gpuarray.device import default_device, on_device
from dnnops.gpuarray.layout import inverse
from dnnops.gpuarray.op import DeviceOp, infer_device, is_on_device
from dnnops.gpuarray.transfer import as_gpuarray_variable, cast
from dnnops.gpuarray.type import GpuArrayType
from dnnops.runtime.build import CUDNN, RuntimeLibrary
from dnnops.runtime.op import OperandAccess, RuntimeOp, operand_access, permuted_empty

__all__ = [
    "ONLY_ALIGNED",
    "TAKES_CHANNELS_LAST",
    "TAKES_CONTIGUOUS",
    "TAKES_GAPS",
    "TAKES_MATRIX",
    "TAKES_PIXELS",
    "TAKES_ROWS",
    "CudnnOp",
    "as_dense",
    "as_gradient",
    "dense_copy",
    "device_operands",
    "gradient_like",
]


# As in dnnops_cudnn_emit.h: the layouts in which an operand is used without a copy.
TAKES_CONTIGUOUS, TAKES_CHANNELS_LAST, TAKES_GAPS, TAKES_ROWS, TAKES_MATRIX = 1, 2, 4, 8, 16
ONLY_ALIGNED, TAKES_PIXELS = 32, 64
_ALIGNMENT = 16


@operand_access.register(GpuArrayType)
def _(type_: GpuArrayType) -> OperandAccess:
    return OperandAccess(
        header="dnnops_cudnn_emit.h",
        read="dnnops_cudnn_read",
        prepare="dnnops_gpuarray_prepare_kept",
        pointer=lambda array: array.data.ptr,
        empty=_empty,
    )


def _empty(shape: tuple[int, ...], dtype: str, memory_format: str) -> Any:
    import cupy

    return permuted_empty(cupy.empty, shape, numpy_dtype(dtype), memory_format)


def as_dense(array: Any, memory_format: str) -> Any:
    """Return a device array in the given memory format, copying it only if necessary.

    Parameters
    ----------
    array : cupy.ndarray
        Array on the current device.
    memory_format : {'contiguous', 'channels_last'}
        Order of the axes in memory.

    Returns
    -------
    cupy.ndarray
        Array without gaps in memory.
    """
    from dnnops.gpuarray.copying import contiguous_copy

    order = (0, *range(2, array.ndim), 1) if memory_format == "channels_last" else None
    memory = array if order is None else array.transpose(order)
    if not memory.flags.c_contiguous:
        memory = contiguous_copy(memory)
    return memory if order is None else memory.transpose(inverse(order))


def dense_copy(array: Any, memory_format: str) -> Any:
    """Return a copy of a device array in the given memory format, which is aligned.

    Parameters
    ----------
    array : cupy.ndarray
        Array on the current device.
    memory_format : {'contiguous', 'channels_last'}
        Order of the axes in memory.

    Returns
    -------
    cupy.ndarray
        Array without gaps in memory.
    """
    copy = _empty(array.shape, array.dtype.name, memory_format)
    copy[...] = array
    return copy


class CudnnOp(DeviceOp, RuntimeOp):
    """Base class of Ops that run on cuDNN, with operands in the memory of one device.

    Subclasses declare the same attributes as for any `RuntimeOp`. Operands of `TensorType`, such as
    sizes and scaling factors, stay on the host.
    """

    library: ClassVar[RuntimeLibrary] = CUDNN
    #: Whether device operands must be contiguous, rather than dense in any memory format.
    contiguous_only: ClassVar[bool] = False
    #: Indices of the operands that must not have gaps in memory, not even along the first axis.
    #: cuDNN requires that of filters.
    packed_operands: ClassVar[tuple[int, ...]] = ()
    #: Indices of the operands that must have the memory format of the first result.
    matched_operands: tuple[int, ...] = ()

    c_stream: ClassVar[str] = "stream"

    def replace(self, **changes: Any) -> Self:
        """Return a copy of the Op with some parameters changed."""
        own = {name: getattr(self, name) for name in self.__props__}
        return type(self)(**{**own, **changes})

    def node_device(self, node: Apply) -> int:
        """Return the number of the device that holds a node's operands."""
        return infer_device(*node.outputs)

    def do_constant_folding(self, fgraph: Any, node: Apply) -> bool:
        """Return False, so that graphs also compile on machines without a GPU."""
        return False

    def context(self, node: Apply, inputs: list[Any]) -> tuple[int, int]:
        import cupy

        return cupy.cuda.get_current_stream().ptr, self.node_device(node)

    def changing_operands(self, node: Apply) -> frozenset[int]:
        """Return the indices of the host operands on which no shape of a result depends.

        The library takes their values when it is called, so that a CUDA graph could only repeat
        them. If only such operands change, the node runs between two graphs.
        """
        return frozenset()

    def evaluated(self, node: Apply, inputs: list[Any], is_dry: bool = False) -> list[Any]:
        with on_device(self.node_device(node)):
            inputs = [
                self._accepted(value, self._layouts(i)) if is_on_device(variable) else value
                for i, (variable, value) in enumerate(zip(node.inputs, inputs, strict=True))
            ]
            memory_format = self.output_format(0, inputs)
            for i in self.matched_operands:
                inputs[i] = as_dense(inputs[i], memory_format)
            return super().evaluated(node, inputs, is_dry)

    def _layouts(self, operand: int) -> int:
        """Return the layouts accepted for an operand, as flags for ``dnnops_cudnn_read``."""
        if self.contiguous_only:
            return TAKES_CONTIGUOUS
        either = TAKES_CONTIGUOUS | TAKES_CHANNELS_LAST
        return either if operand in self.packed_operands else either | TAKES_GAPS

    def _accepted(self, array: Any, layouts: int) -> Any:
        """Return the array, or the copy that ``dnnops_cudnn_read`` would make of it."""
        array = self._in_layout(array, layouts)
        if layouts & ONLY_ALIGNED and array.data.ptr % _ALIGNMENT:
            return dense_copy(array, "contiguous" if array.flags.c_contiguous else "channels_last")
        return array

    def _in_layout(self, array: Any, layouts: int) -> Any:
        if layouts & TAKES_CONTIGUOUS and array.flags.c_contiguous:
            return array
        axes = range(1, array.ndim)
        for layout, order in (
            (TAKES_CONTIGUOUS, [*axes]),
            (TAKES_CHANNELS_LAST, [*axes[1:], *axes[:1]]),
        ):
            # The stride of the first axis is checked separately below.
            if layouts & layout and array[:1].transpose([0, *order]).flags.c_contiguous:
                stride, dense = array.strides[0], array[:1].size * array.itemsize
                if (
                    array.shape[0] == 1
                    or stride == dense
                    or (layouts & TAKES_GAPS and stride > dense)
                ):
                    return array
        if layouts & TAKES_ROWS and _has_rows(array):
            return array
        if layouts & TAKES_PIXELS and _has_pixels(array):
            return array
        if layouts & TAKES_MATRIX:
            from dnnops.gpuarray.products.calls import has_contiguous_side

            if has_contiguous_side(array):
                return array
        last = layouts & TAKES_CHANNELS_LAST and array.ndim > 2
        is_last = last and array.strides[1] == array.itemsize and array.shape[1] > 1
        is_last = is_last or (last and not layouts & TAKES_CONTIGUOUS)
        return as_dense(array, "channels_last" if is_last else "contiguous")

    def c_headers(self, **kwargs: Any) -> list[str]:
        return ['"dnnops_cudnn_emit.h"']

    def c_device(self, node: Apply) -> str:
        return "device"

    def c_support_code_struct(self, node: Apply, name: str) -> str:
        return super().c_support_code_struct(node, name) + (
            f"dnnops_kept kept_{name}[{len(node.outputs)}];\n"
        )

    def c_init_code_struct(self, node: Apply, name: str, sub: dict[str, str]) -> str:
        return super().c_init_code_struct(node, name, sub) + (
            f"memset(kept_{name}, 0, sizeof kept_{name});\n"
        )

    def c_cleanup_code_struct(self, node: Apply, name: str) -> str:
        return super().c_cleanup_code_struct(node, name) + "".join(
            f"dnnops_kept_clear(&kept_{name}[{i}]);\n" for i in range(len(node.outputs))
        )

    def c_read(self, node: Apply, index: int, operand: str) -> str:
        variable = node.inputs[index]
        if not is_on_device(variable):
            return super().c_read(node, index, operand)
        # The function may replace the array by a copy in another layout.
        read, dtype = operand_access(variable.type).read, DTYPE_CODES[variable.type.dtype]
        return f"{read}(&{operand}, {dtype}, {self._layouts(index)}, &in[{index}])"

    def c_match_operands(self, node: Apply, inputs: list[str], fail: str) -> str:
        memory_format = self.c_output_format(0)
        return "".join(
            f"if (dnnops_cudnn_match(&{inputs[i]}, {DTYPE_CODES[node.inputs[i].type.dtype]},"
            f" {memory_format}, &in[{i}]) < 0) {{ {fail} }}\n"
            for i in self.matched_operands
        )

    def c_prepare(self, node: Apply, name: str, index: int, output: str) -> str:
        variable = node.outputs[index]
        if not is_on_device(variable):
            return super().c_prepare(node, name, index, output)
        prepare, memory_format = operand_access(variable.type).prepare, self.c_output_format(index)
        kept = f"&kept_{name}[{index}]"
        return f"{prepare}(&{output}, &out[{index}], {memory_format}, device, stream, {kept})"

    def c_code(
        self, node: Apply, name: str, inputs: list[str], outputs: list[str], sub: dict[str, str]
    ) -> str:
        names = list(inputs)
        arrays: list[str] = []
        for i, x in enumerate(node.inputs):
            if is_on_device(x):
                names[i] = f"taken[{len(arrays)}]"
                arrays.append(inputs[i])
        take = leave = ""
        if arrays:
            # Loops: this code is repeated wherever a call can fail, so statements for each operand
            # would make the size of the source quadratic in their number.
            take = f"PyObject *taken[] = {{{', '.join(arrays)}}};\n"
            take += "for (PyObject *array : taken) Py_XINCREF(array);\n"
            leave = "for (PyObject *array : taken) Py_XDECREF(array);\n"
        leave += "dnnops_gpuarray_leave_device(previous, device);\n"
        fail = f"{leave}{sub['fail']}"
        inner = super().c_code(node, name, names, outputs, {**sub, "fail": fail})
        return f"""
{{
const int64_t device = {self.node_device(node)};
const int64_t previous = dnnops_gpuarray_enter_device(device);
if (previous < 0) {{ {sub["fail"]} }}
{take}
void *const stream = dnnops_gpuarray_stream();
if (stream == NULL && PyErr_Occurred()) {{ {fail} }}
{inner}
{leave}
}}
"""


def _has_rows(array: Any) -> bool:
    """Return whether the last axis is dense and all strides are positive; mirrors a check in C."""
    positive = all(s > 0 for n, s in zip(array.shape, array.strides, strict=True) if n > 1)
    return positive and (array.shape[-1] <= 1 or array.strides[-1] == array.itemsize)


def _has_pixels(array: Any) -> bool:
    """Return whether channels are adjacent, and pixels have one distance; mirrors a check in C."""
    if array.ndim < 3 or (array.shape[1] > 1 and array.strides[1] != array.itemsize):
        return False
    expected = 0
    for axis in (*range(array.ndim - 1, 1, -1), 0):
        length, stride = array.shape[axis], array.strides[axis]
        if length == 1:
            continue
        if stride != expected if expected else stride < array.shape[1] * array.itemsize:
            return False
        expected = stride * length
    return True


def device_operand(where: str, name: str, x: Any, device: int) -> Any:
    """Convert an operand to a device variable; error messages name the operand."""
    try:
        return as_gpuarray_variable(x, device)
    except (TypeError, ValueError, NotImplementedError) as error:
        raise DnnTypeError(f"{where}: {name} cannot be an array on a GPU: {error}") from error


def device_operands(
    where: str, ndim: int | None, *, widen: bool = False, **values: Any
) -> list[Any]:
    """Convert an Op's operands to device variables of one device and one floating-point dtype.

    Parameters
    ----------
    where : str
        Name of the Op, for error messages.
    ndim : int or None
        Required rank of all operands; None allows any rank.
    widen : bool
        Whether to cast operands of different dtypes to the widest one. bfloat16 and float16 have no
        common widest dtype.
    **values
        Variables or array-likes, by name.

    Returns
    -------
    list of GpuArrayVariable

    Raises
    ------
    DnnTypeError
        If a rank or dtype is invalid, the dtypes differ, or the operands are on several devices.
    """
    devices = [x for x in values.values() if is_on_device(x)]
    device = infer_device(*devices) if devices else default_device()
    arrays = {name: device_operand(where, name, x, device) for name, x in values.items()}
    if widen and (dtype := widest_dtype(x.type.dtype for x in arrays.values())):
        arrays = {name: cast(x, dtype) for name, x in arrays.items()}
    for name, x in arrays.items():
        if ndim is not None and x.type.ndim != ndim:
            raise DnnTypeError(
                f"{where}: {name} must have {ndim} dimensions, got {x.type.ndim} ({x.type})"
            )
        if x.type.dtype not in FLOAT_DTYPES:
            raise DnnTypeError(
                f"{where}: {name} has dtype {x.type.dtype}; expected one of "
                f"{', '.join(sorted(FLOAT_DTYPES))} (cast it first)"
            )
    found = {name: x.type.dtype for name, x in arrays.items()}
    if len(set(found.values())) > 1:
        dtypes = ", ".join(f"{name} {dtype}" for name, dtype in found.items())
        raise DnnTypeError(f"{where}: the operands must have the same dtype, got {dtypes}")
    return list(arrays.values())


def gradient_like(gradient: Any, x: Any) -> Any:
    """Move the gradient with respect to a device variable `x` to the device and dtype of `x`."""
    return cast(as_gpuarray_variable(gradient, x.type.device), x.type.dtype)


def as_gradient(x: Any) -> Any:
    """Cast a bfloat16 gradient to float32, because `pytensor.grad` doesn't accept bfloat16."""
    return cast(x, "float32") if x.type.dtype == "bfloat16" else x

"""How the variables of a graph are stored in the new graph."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pytensor.graph.basic import Constant, Variable
from pytensor.graph.rewriting.basic import copy_stack_trace
from pytensor.tensor.type import TensorType

from dnnops.dtypes import HALF_DTYPES, numpy_dtype
from dnnops.gpuarray.basic import GpuAlloc, GpuDimShuffle, GpuReshape, GpuSpecifyShape
from dnnops.gpuarray.op import is_on_device
from dnnops.gpuarray.transfer import GpuCast, cast
from dnnops.gpuarray.type import GpuArrayType

__all__ = ["Storage"]

# Views of all elements. A cast of the operand is shared by all views of it.
_VIEWS = (GpuDimShuffle, GpuReshape, GpuSpecifyShape)


class Storage:
    """Map old variables to new ones, which may have fewer bits, and cast where Ops need it.

    Parameters
    ----------
    dtype : str
        16-bit dtype.
    """

    def __init__(self, dtype: str):
        self.dtype = dtype
        self._new: dict[Variable, Any] = {}
        self._narrow: dict[tuple[Variable, str], Any] = {}
        self._wide: dict[tuple[Variable, str], Any] = {}

    def __getitem__(self, old: Variable) -> Any:
        """Return the new variable for an old one, in the dtype in which it is stored."""
        return self._new.get(old, old)

    def update(self, old: Iterable[Variable], new: Iterable[Variable]) -> None:
        """Set the new variables of some old ones."""
        self._new.update(zip(old, new, strict=True))

    def exact(self, old: Variable) -> Any:
        """Return the new variable in the dtype of the old one."""
        x = self[old]
        if not is_on_device(x) or x.type.dtype == old.type.dtype:
            return x
        key = (x, old.type.dtype)
        if key not in self._wide:
            self._wide[key] = self._cast(x, old.type.dtype)
        return self._wide[key]

    def narrow(self, old: Variable, dtype: str | None = None) -> Any:
        """Return the new variable in 16 bits; arrays of other dtypes stay as they are."""
        x = self[old]
        if not is_on_device(x) or x.type.dtype not in ("float32", *HALF_DTYPES):
            return x
        return self._narrowed(x, dtype or self.dtype)

    def _narrowed(self, x: Any, dtype: str) -> Any:
        if x.type.dtype == dtype:
            return x
        key = (x, dtype)
        if key not in self._narrow:
            self._narrow[key] = self._round(x, dtype)
        return self._narrow[key]

    def _round(self, x: Any, dtype: str) -> Any:
        if isinstance(x, Constant):
            return _constant(x.type, x.host_data, dtype)
        node = x.owner
        if node is None:
            return self._cast(x, dtype)
        if isinstance(node.op, _VIEWS):
            return node.op.make_node(self._narrowed(node.inputs[0], dtype), *node.inputs[1:]).out
        value, *lengths = node.inputs
        if isinstance(node.op, GpuAlloc) and _is_float32_number(value):
            number = _constant(GpuArrayType("float32", (), x.type.device), value.data, dtype)
            return node.op.make_node(number, *lengths).out
        if isinstance(node.op, GpuCast) and value.type.dtype == dtype:
            return value
        return self._cast(x, dtype)

    @staticmethod
    def _cast(x: Any, dtype: str) -> Any:
        new = cast(x, dtype)
        copy_stack_trace(x, new)
        return new


def _is_float32_number(x: Any) -> bool:
    is_number = isinstance(x, Constant) and isinstance(x.type, TensorType) and x.type.ndim == 0
    return is_number and x.type.dtype == "float32"


def _constant(type_: GpuArrayType, value: Any, dtype: str) -> Any:
    return type_.clone(dtype=dtype).make_constant(value.astype(numpy_dtype(dtype)))

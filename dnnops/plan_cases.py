"""Convolutions given by shapes, with operands of random numbers, on either device."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply

from dnnops.config import flag_value
from dnnops.errors import DnnMemoryError, DnnNotSupportedError
from dnnops.gpuarray.device import device_from_target, on_device
from dnnops.gpuarray.dtypes import numpy_dtype
from dnnops.nnet._validate import show_shape
from dnnops.plans import conv_flops
from dnnops.runtime.op import operand_access, permuted_empty

__all__ = ["DIRECTIONS", "CpuCase", "GpuCase", "PlanCase"]

#: The directions, and what cuDNN calls them.
DIRECTIONS = {
    "forward": "forward",
    "grad_inputs": "backward_data",
    "grad_weights": "backward_filter",
}

_SEED = 1
#: Of random numbers, which are repeated on a GPU: many, and in step with no array's rows.
_BLOCK = (1 << 22) + 15


@dataclass(frozen=True)
class PlanCase(ABC):
    """A convolution in one direction, whose arguments have been checked.

    Attributes
    ----------
    op : OneDnnConv, GpuDnnConvBase, ...
        The Op that computes it.
    direction : {'forward', 'grad_inputs', 'grad_weights'}
        What is computed.
    input_shape, filter_shape : tuple of int
        As `op` gets them.
    dtype, memory_format : str
        Of all arrays.
    device : str
        ``cpu``, or ``cuda0``...
    remark : str
        How what is run differs from what was asked for.
    """

    op: Any
    direction: str
    input_shape: tuple[int, ...]
    filter_shape: tuple[int, ...]
    dtype: str
    memory_format: str
    device: str
    remark: str = ""

    @cached_property
    def output_shape(self) -> tuple[int, ...]:
        """The convolution's output, or what the gradients start from."""
        return self.op.output_shape(self.input_shape, self.filter_shape)

    @property
    def flops(self) -> int:
        """Operations of the direct algorithm, whichever is used."""
        return conv_flops(self.filter_shape, self.output_shape)

    @contextmanager
    def listing(self, with_memory: bool = True) -> Iterator[Any]:
        """Allocate operands, and give the list of plans for them.

        Parameters
        ----------
        with_memory : bool
            Whether plans are going to run. If not, the arrays have shapes and strides, but no
            memory: for the list and the library's heuristics that is enough, for any size.

        Raises
        ------
        DnnMemoryError
            If there is no room for them.
        """
        image, filters, top = self.input_shape, self.filter_shape, self.output_shape
        first, second, result, sizes = {
            "forward": (image, filters, top, []),
            "grad_inputs": (filters, top, image, [image[2:]]),
            "grad_weights": (image, top, filters, [filters[2:]]),
        }[self.direction]
        vectors = [np.array(entries, dtype="int64") for entries in sizes]
        node = self.op.make_node(self._variable(first), self._variable(second), *vectors)
        with self._on_device():
            if with_memory:
                self._check_room()
            fill = self._random if with_memory else self._without_memory
            try:
                arrays = [
                    permuted_empty(fill, shape, self.dtype, self.memory_format)
                    for shape in (first, second)
                ]
                if with_memory:
                    empty = operand_access(node.outputs[0].type).empty
                    output = empty(result, self.dtype, self.op.memory_format)
                else:
                    output = permuted_empty(fill, result, self.dtype, self.op.memory_format)
            except (MemoryError, ValueError) as error:
                shapes = ", ".join(map(show_shape, (first, second, result)))
                raise DnnMemoryError(
                    f"no memory on {self.device} for {self.dtype} arrays of {shapes}: {error}"
                ) from error
            scalars = [x.data for x in node.inputs[2 + len(vectors) :]]
            with self._plan_list(node, [*arrays, *vectors, *scalars], output) as plans:
                yield plans

    # -- what a device adds ------------------------------------------------------------------

    @property
    @abstractmethod
    def flag(self) -> str:
        """The flag that says which plan is used."""

    @property
    @abstractmethod
    def flag_values(self) -> tuple[str, ...]:
        """The words that the flag takes."""

    @property
    def timed_values(self) -> tuple[str, ...]:
        """Those of them that mean the fastest plan."""
        return tuple(value for value in self.flag_values if value.startswith("time_"))

    @abstractmethod
    def search(self, listing: Any) -> None:
        """Look for more plans than the library proposes, after those listed have been timed."""

    @abstractmethod
    def energy_meter(self) -> Any:
        """Give what measures energy.

        Raises
        ------
        DnnNotSupportedError
            If the device doesn't tell.
        DnnUnavailableError
            If what asks it is missing.
        """

    @abstractmethod
    def library(self) -> str:
        """The device and the library, in words."""

    @abstractmethod
    def _on_device(self) -> Any: ...

    @abstractmethod
    def _check_room(self) -> None:
        """Raise DnnMemoryError if it is known that operands can't be allocated."""

    @abstractmethod
    def _variable(self, shape: tuple[int, ...]) -> Any: ...

    @abstractmethod
    def _random(self, shape: tuple[int, ...], dtype: str) -> Any: ...

    @abstractmethod
    def _without_memory(self, shape: tuple[int, ...], dtype: str) -> Any:
        """A contiguous array whose elements must be neither read nor written."""

    @abstractmethod
    def _plan_list(self, node: Apply, inputs: list[Any], output: Any) -> Any: ...


class CpuCase(PlanCase):
    """A convolution by oneDNN or BLAS."""

    flag = "onednn.conv.algo"

    @property
    def flag_values(self) -> tuple[str, ...]:
        from dnnops.onednn.conv import ALGORITHMS

        return ALGORITHMS

    def search(self, listing: Any) -> None:
        """Do nothing: oneDNN has no other implementations than those listed."""

    def energy_meter(self) -> Any:
        raise DnnNotSupportedError("only NVIDIA GPUs tell how much energy they take")

    def library(self) -> str:
        from dnnops.runtime.build import ONEDNN
        from dnnops.runtime.find import find_onednn

        threads = ONEDNN.library.omp_get_max_threads()
        plural = "" if threads == 1 else "s"
        return f"{_cpu_name()}, {threads} thread{plural}, oneDNN {find_onednn().version_text}"

    def _on_device(self) -> Any:
        return nullcontext()

    def _check_room(self) -> None:
        shapes = (self.input_shape, self.filter_shape, self.output_shape)
        needed = sum(map(math.prod, shapes)) * np.dtype(self.dtype).itemsize
        # Linux would grant it, and kill the process when it is used.
        if needed > (available := _available_memory()):
            raise DnnMemoryError(
                f"{self.dtype} arrays of {', '.join(map(show_shape, shapes))} take"
                f" {needed / 2**30:.1f} GiB of memory; {available / 2**30:.1f} GiB are free"
            )

    def _variable(self, shape: tuple[int, ...]) -> Any:
        return pt.tensor(dtype=self.dtype, shape=shape)

    def _random(self, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        return np.random.default_rng(_SEED).standard_normal(shape, dtype=np.dtype(dtype).type)

    def _without_memory(self, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        element = np.zeros(1, dtype)
        strides = [element.itemsize * math.prod(shape[i + 1 :]) for i in range(len(shape))]
        return np.lib.stride_tricks.as_strided(element, shape, strides)

    def _plan_list(self, node: Apply, inputs: list[Any], output: Any) -> Any:
        from dnnops.onednn.plan_list import PlanList

        return PlanList(node, inputs, output)


class GpuCase(PlanCase):
    """A convolution by cuDNN."""

    @property
    def flag(self) -> str:
        return f"dnn.conv.algo_{_FLAG_ENDINGS[self.direction]}"

    @property
    def flag_values(self) -> tuple[str, ...]:
        from dnnops.cudnn.algorithms import WISHES

        return WISHES

    def search(self, listing: Any) -> None:
        listing.search(flag_value("dnn.conv.time_limit"))

    def energy_meter(self) -> Any:
        from dnnops.gpuarray.energy import EnergyMeter

        return EnergyMeter(self._number)

    def library(self) -> str:
        from dnnops.cudnn.base import cudnn_version

        with on_device(self._number) as cupy:
            name = cupy.cuda.runtime.getDeviceProperties(self._number)["name"].decode()
        version = cudnn_version()
        return f"{name}, cuDNN {version // 10000}.{version // 100 % 100}.{version % 100}"

    @property
    def _number(self) -> int:
        number = device_from_target(self.device)
        assert number is not None
        return number

    def _on_device(self) -> Any:
        return on_device(self._number)

    def _check_room(self) -> None:
        """Leave it to the allocation, which fails where there is none."""

    def _variable(self, shape: tuple[int, ...]) -> Any:
        from dnnops.gpuarray.type import GpuArrayType

        return GpuArrayType(self.dtype, shape, self._number)()

    def _random(self, shape: tuple[int, ...], dtype: str) -> Any:
        # Not by cupy.random: it needs cuRAND, which nothing else here does.
        import cupy

        size = math.prod(shape)
        host = np.random.default_rng(_SEED).standard_normal(min(size, _BLOCK), dtype="float32")
        block = cupy.asarray(host.astype(numpy_dtype(dtype)))
        array = cupy.empty(size, block.dtype)
        for start in range(0, size, _BLOCK):
            array[start : start + _BLOCK] = block[: size - start]
        return array.reshape(shape)

    def _without_memory(self, shape: tuple[int, ...], dtype: str) -> Any:
        import cupy

        # Of as much memory as has the alignment that arrays have.
        return cupy.ndarray(shape, numpy_dtype(dtype), memptr=cupy.cuda.alloc(512))

    def _plan_list(self, node: Apply, inputs: list[Any], output: Any) -> Any:
        from dnnops.cudnn.plan_list import PlanList

        return PlanList(node, inputs, output)


_FLAG_ENDINGS = {"forward": "fwd", "grad_inputs": "bwd_data", "grad_weights": "bwd_filter"}


def _cpu_name() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else "CPU"


def _available_memory() -> float:
    """Bytes that can be allocated without swapping; infinite if that can't be told."""
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:
        text = ""
    found = re.search(r"^MemAvailable:\s*(\d+) kB$", text, re.MULTILINE)
    return int(found[1]) * 1024.0 if found else math.inf

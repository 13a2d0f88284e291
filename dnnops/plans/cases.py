"""Convolutions defined by shapes, with random operands, on the CPU or a GPU."""

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
from dnnops.dtypes import numpy_dtype
from dnnops.errors import DnnMemoryError, DnnNotSupportedError
from dnnops.flag_values import ALGORITHM_WORDS
from dnnops.gpuarray.device import device_from_target, on_device
from dnnops.nnet.validate import show_shape
from dnnops.plans.plan import conv_flops
from dnnops.runtime.op import operand_access, permuted_empty

__all__ = ["DIRECTIONS", "CpuCase", "GpuCase", "PlanCase"]

#: The directions and their names in cuDNN.
DIRECTIONS = {
    "forward": "forward",
    "grad_inputs": "backward_data",
    "grad_weights": "backward_filter",
}

_SEED = 1
#: Number of random values that are repeated to fill a GPU array. It is large, and odd so that the
#: repetition does not align with the rows of an array.
_BLOCK = (1 << 22) + 15


@dataclass(frozen=True)
class PlanCase(ABC):
    """A convolution in one direction, with checked arguments.

    Attributes
    ----------
    op : OneDnnConv, GpuDnnConvBase, ...
        Op that computes the convolution.
    direction : {'forward', 'grad_inputs', 'grad_weights'}
        Forward convolution or one of its gradients.
    input_shape, filter_shape : tuple of int
        Shapes of the image and the filters that `op` works on.
    dtype, memory_format : str
        Dtype and memory format of all arrays.
    device : str
        ``cpu``, ``cuda0``, ``cuda1``, ...
    remark : str
        Difference between the convolution that is run and the one that was requested.
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
        """Shape of the convolution's output, which the gradient Ops take as an operand."""
        return self.op.output_shape(self.input_shape, self.filter_shape)

    @property
    def flops(self) -> int:
        """Number of operations of the direct algorithm, regardless of the plan."""
        return conv_flops(self.filter_shape, self.output_shape)

    @contextmanager
    def listing(self, with_memory: bool = True) -> Iterator[Any]:
        """Allocate operands and yield the list of plans for them.

        Parameters
        ----------
        with_memory : bool
            Whether plans will run. If not, the arrays have shapes and strides but no memory, which
            is enough for the list and the library's heuristics at any size.

        Raises
        ------
        DnnMemoryError
            If there is not enough memory for the operands.
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

    # -- defined for each device -------------------------------------------------------------

    @property
    @abstractmethod
    def flag(self) -> str:
        """Name of the flag that selects the plan."""

    @property
    @abstractmethod
    def flag_values(self) -> tuple[str, ...]:
        """Words that the flag accepts."""

    @property
    def timed_values(self) -> tuple[str, ...]:
        """Words that select the fastest plan by timing."""
        return tuple(value for value in self.flag_values if value.startswith("time_"))

    @abstractmethod
    def search(self, listing: Any) -> None:
        """Search for further plans, once those that the library proposes have been timed."""

    @abstractmethod
    def energy_meter(self) -> Any:
        """Return the object that measures energy.

        Raises
        ------
        DnnNotSupportedError
            If the device does not report its energy.
        DnnUnavailableError
            If a package needed for the measurement is missing.
        """

    @abstractmethod
    def library(self) -> str:
        """Return a description of the device and the library."""

    @abstractmethod
    def _on_device(self) -> Any: ...

    @abstractmethod
    def _check_room(self) -> None:
        """Raise `DnnMemoryError` if the operands are known not to fit into memory."""

    @abstractmethod
    def _variable(self, shape: tuple[int, ...]) -> Any: ...

    @abstractmethod
    def _random(self, shape: tuple[int, ...], dtype: str) -> Any: ...

    @abstractmethod
    def _without_memory(self, shape: tuple[int, ...], dtype: str) -> Any:
        """Return a contiguous array whose elements must not be read or written."""

    @abstractmethod
    def _plan_list(self, node: Apply, inputs: list[Any], output: Any) -> Any: ...


class CpuCase(PlanCase):
    """A convolution on the CPU, with oneDNN, BLAS or dnnops loops."""

    flag = "onednn.conv.algo"

    @property
    def flag_values(self) -> tuple[str, ...]:
        from dnnops.cpu.conv import ALGORITHMS

        return ALGORITHMS

    def search(self, listing: Any) -> None:
        """Do nothing, since oneDNN has no implementations beyond those listed."""

    def energy_meter(self) -> Any:
        raise DnnNotSupportedError("only NVIDIA GPUs report how much energy they use")

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
        # Linux would grant the memory, and kill the process when it is used.
        if needed > (available := _available_memory()):
            raise DnnMemoryError(
                f"{self.dtype} arrays of {', '.join(map(show_shape, shapes))} need"
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
        from dnnops.plans.cpu import PlanList

        return PlanList(node, inputs, output)


class GpuCase(PlanCase):
    """A convolution on a GPU, with cuDNN."""

    @property
    def flag(self) -> str:
        return f"dnn.conv.algo_{_FLAG_ENDINGS[self.direction]}"

    @property
    def flag_values(self) -> tuple[str, ...]:
        return ALGORITHM_WORDS

    def search(self, listing: Any) -> None:
        listing.search(flag_value("dnn.conv.time_limit"))

    def energy_meter(self) -> Any:
        from dnnops.gpuarray.energy import EnergyMeter

        return EnergyMeter(self._number)

    def library(self) -> str:
        from dnnops.gpu.library import cudnn_version

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
        """Do nothing, since an allocation on the device fails if there is not enough memory."""

    def _variable(self, shape: tuple[int, ...]) -> Any:
        from dnnops.gpuarray.type import GpuArrayType

        return GpuArrayType(self.dtype, shape, self._number)()

    def _random(self, shape: tuple[int, ...], dtype: str) -> Any:
        # Not cupy.random, which needs cuRAND; nothing else here does.
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

        # A small allocation has the alignment of real arrays.
        return cupy.ndarray(shape, numpy_dtype(dtype), memptr=cupy.cuda.alloc(512))

    def _plan_list(self, node: Apply, inputs: list[Any], output: Any) -> Any:
        from dnnops.plans.gpu import PlanList

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
    """Return the bytes that can be allocated without swapping, or infinity if unknown."""
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:
        text = ""
    found = re.search(r"^MemAvailable:\s*(\d+) kB$", text, re.MULTILINE)
    return int(found[1]) * 1024.0 if found else math.inf

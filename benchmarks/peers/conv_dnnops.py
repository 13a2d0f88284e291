"""dnnops in the convolution suite: direct calls of the C functions behind its Ops.

The preparation that a compiled function does for the operands of an Op is done once for each set of
operands. Each call is then a call of the Op's C function, and no row compiles anything. On the CPU,
for a quick check, oneDNN replaces cuDNN.
"""

from __future__ import annotations

import ctypes
import gc
import time
from contextlib import suppress
from math import prod
from typing import Any

import numpy as np

import dnnops
from benchmarks import conv_data
from benchmarks.harness import BenchmarkError
from benchmarks.peers.conv_turns import ITEM_SIZE, KEPT_BYTES, OPERANDS, ConvTask, storage_dtype
from dnnops.cpu.conv import OneDnnConv, OneDnnConvGradInputs, OneDnnConvGradWeights
from dnnops.dtypes import DTYPE_CODES
from dnnops.gpu.algorithms import clear_cache, last_plan
from dnnops.gpu.conv import GpuDnnConv, GpuDnnConvGradI, GpuDnnConvGradW
from dnnops.gpu.library import check_cudnn, free_workspaces
from dnnops.runtime.op import MAX_NDIM, raise_status

_OPS: dict[str, dict[str, type]] = {
    "cuda": {
        "forward": GpuDnnConv,
        "backward_data": GpuDnnConvGradI,
        "backward_filter": GpuDnnConvGradW,
    },
    "cpu": {
        "forward": OneDnnConv,
        "backward_data": OneDnnConvGradInputs,
        "backward_filter": OneDnnConvGradWeights,
    },
}


def versions(device: str) -> dict[str, Any]:
    """Return the name of the device, and the versions of what is measured."""
    if device == "cpu":
        return {"dnnops": dnnops.__version__}
    from benchmarks.peers.dnnops_gpu import versions as on_gpu

    # Load cuDNN and compile CuPy's kernels now, outside the time of the first selection.
    check_cudnn()
    import cupy

    for dtype in ITEM_SIZE:
        conv_data.sketch(cupy, conv_data.values(cupy, 1000, 1, 1.0, dtype))
    return on_gpu()


def make_op(case: dict[str, Any]) -> Any:
    """Return the Op of a row."""
    params: dict[str, Any] = {
        "ndim": len(case["pad"]),
        "border_mode": tuple(case["pad"]),
        "subsample": tuple(case["stride"]),
        "filter_flip": False,
        "filter_dilation": tuple(case["dilation"]),
        "num_groups": case["groups"],
    }
    if case["device"] == "cuda":
        params |= {
            "algo": case["algo"],
            "precision": "as_input_f32",
            "memory_format": case["layout"],
            "allow_tf32": case["precision"] == "tf32",
            "deterministic": False,
            "workspace_limit": "auto",
        }
    elif storage_dtype(case["precision"]) != "float32":
        raise BenchmarkError("NotImplemented: oneDNN's Ops have float32 and float64 only")
    return _OPS[case["device"]][case["direction"]](**params)


def tensor_words(address: int, dtype: str, shape: Any, strides: Any) -> list[int]:
    """Return the words of a ``dnnops_tensor``, as in ``dnnops_runtime.h``."""
    padding = [0] * (MAX_NDIM - len(shape))
    return [address, DTYPE_CODES[dtype], len(shape), *shape, *padding, *strides, *padding]


def operand_words(case: dict[str, Any], operand: str, address: int) -> list[int]:
    """Return the ``dnnops_tensor`` of ``image``, ``filters`` or ``output``."""
    dtype, shape = storage_dtype(case["precision"]), case[f"{operand}_shape"]
    strides = conv_data.strides_of(shape, case["layout"], ITEM_SIZE[dtype])
    return tensor_words(address, dtype, shape, strides)


class Convolution(ConvTask):
    """A convolution Op, called as its C code calls it.

    ``case`` also has ``algo``.
    """

    def __init__(self, case: dict[str, Any]) -> None:
        super().__init__(case)
        self.on_gpu = case["device"] == "cuda"
        self.xp = self._array_module()
        op = make_op(case)
        self.library = op.library
        self.function = getattr(self.library.library, op.function)
        self.words = op.words
        sizes = self.shape(self.written)[2:]
        self.sizes = np.array(sizes, "int64")
        self.alpha = np.ones((), "float64")
        self.arrays: list[dict[str, Any]] = self.operands(self._arrays)
        self.tensors = [self._tensors(arrays) for arrays in self.arrays]
        # The node's slot, and the dnnops_context that points to it.
        self.state = np.zeros(1, "int64")
        self.context = np.array([self.state.ctypes.data, self.stream or 0, 0], "int64")
        self.calls = [
            tuple(
                ctypes.c_void_p(words.ctypes.data)
                for words in (self.context, self.words, *self.tensors[number])
            )
            for number in range(self.sets)
        ]
        self.arrays[0][self.written].view("uint8").fill(0xFF)  # NaN
        if self.on_gpu:
            free_workspaces()
        self.synchronize()
        start = time.perf_counter()
        self.run(0)
        self.synchronize()
        self.prepare_s = time.perf_counter() - start
        self.plan = last_plan() if self.on_gpu else "oneDNN"
        self.run(0)
        self.workspace = self._workspace()
        self.sketch = conv_data.sketch(self.xp, self.arrays[0][self.written])
        self.seconds = self.rough_seconds()
        # Leave the memory to the other libraries while they select plans.
        self.synchronize()
        if self.on_gpu:
            self._free()

    def _array_module(self) -> Any:
        if not self.on_gpu:
            return np
        import cupy

        return cupy

    def _arrays(self, number: int) -> dict[str, Any]:
        arrays = {}
        for name in self.read:
            count = prod(self.shape(name))
            seed = conv_data.operand_seed(name, number)
            arrays[name] = conv_data.values(self.xp, count, seed, self.scales[name], self.dtype)
        storage = arrays[self.read[0]].dtype
        arrays[self.written] = self.xp.empty(prod(self.shape(self.written)), storage)
        return arrays

    def _tensors(self, arrays: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        """Return inputs and output as the C function takes them."""

        def address(name: str) -> int:
            return arrays[name].data.ptr if self.on_gpu else arrays[name].ctypes.data

        inputs = [operand_words(self.case, name, address(name)) for name in self.read]
        if self.case["direction"] != "forward":
            inputs.append(tensor_words(self.sizes.ctypes.data, "int64", self.sizes.shape, [8]))
        if self.on_gpu:
            inputs.append(tensor_words(self.alpha.ctypes.data, "float64", (), ()))
        output = operand_words(self.case, self.written, address(self.written))
        return np.array(inputs, "int64"), np.array(output, "int64")

    def run(self, number: int) -> None:
        if status := self.function(*self.calls[number]):
            raise_status(self.library, status)

    def _workspace(self) -> int:
        """Return the bytes of the plan's workspace: all that the library keeps after a call."""
        return self.library.library.dnnops_cudnn_workspace_bytes(0) if self.on_gpu else 0

    @property
    def stream(self) -> int | None:
        return self.xp.cuda.get_current_stream().ptr if self.on_gpu else None

    def synchronize(self) -> None:
        if self.on_gpu:
            self.xp.cuda.runtime.deviceSynchronize()

    def facts(self) -> dict[str, Any]:
        return {
            "plan": self.plan,
            "workspace": self.workspace,
            "prepare_s": self.prepare_s,
            "seconds": self.seconds,
            "sketch": self.sketch,
            "sets": self.sets,
        }

    def close(self) -> None:
        """Return all memory to the device."""
        self.synchronize()
        if self.state[0]:
            self.library.library.dnnops_state_free(ctypes.c_void_p(int(self.state[0])))
            self.state[0] = 0
        self.arrays = []
        if self.on_gpu:
            clear_cache()
            self._free()

    def _free(self) -> None:
        free_workspaces()
        pool = self.xp.get_default_memory_pool()
        if pool.free_bytes() > KEPT_BYTES:
            pool.free_all_blocks()


def make_task(case: dict[str, Any]) -> ConvTask:
    """Prepare a row of the suite."""
    return Convolution(case)


def clear() -> None:
    """Free the memory of a failed row."""
    OPERANDS.clear()
    gc.collect()
    clear_cache()
    free_workspaces()
    with suppress(ImportError):
        import cupy

        cupy.get_default_memory_pool().free_all_blocks()

"""A device in host memory: CuPy's arrays, the C code that runs prepared calls, and kernels."""

from __future__ import annotations

import ctypes
import itertools
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pytensor import config

from dnnops.gpuarray import column_reduction, reduction_source, row_reduction
from dnnops.gpuarray.elementwise import kernel as elementwise_kernel
from dnnops.gpuarray.prepared import thunk
from dnnops.runtime.build import c_code_dir
from tests.emulation.host_kernels import with_host_cuda
from tests.host_libraries import compile_once

_EMULATION = Path(__file__).parents[1] / "emulation"
_FOLDER = c_code_dir() / "gpu" / "prepared"

_CALL = """
#include <utility>
#define __device__ inline
template <class... A, size_t... I>
void run_kernel(void (*kernel)(A...), void **arguments, unsigned blocks, unsigned threads,
                std::index_sequence<I...>) {
  for (unsigned block = 0; block < blocks; ++block)
    for (unsigned thread = 0; thread < threads; ++thread) {
      blockIdx.x = block;
      threadIdx.x = thread;
      kernel(*static_cast<std::decay_t<A> *>(arguments[I])...);
    }
}
// With barriers.
template <class... A, size_t... I>
void run_together(void (*kernel)(A...), void **arguments, unsigned blocks, unsigned threads,
                  std::index_sequence<I...>) {
  const auto run = [=](void **given) { kernel(*static_cast<std::decay_t<A> *>(given[I])...); };
  run_grid(run, arguments, blocks, threads, 0, 0);
}
template <class... A>
void run_together(void (*kernel)(A...), void **arguments, unsigned blocks, unsigned threads) {
  run_together(kernel, arguments, blocks, threads, std::index_sequence_for<A...>());
}
template <class... A>
void run_kernel(void (*kernel)(A...), void **arguments, unsigned blocks, unsigned threads) {
  run_kernel(kernel, arguments, blocks, threads, std::index_sequence_for<A...>());
}
"""
_ENTRY = """
#undef KERNEL
#define KERNEL static
namespace of_{number} {{
{source}
extern "C" void kernel_{number}(void **arguments, unsigned blocks, unsigned threads) {{
  {run}({name}, arguments, blocks, threads);
}}
}}
#undef IDENTITY
#undef LANES
#undef WIDTH
#undef ENTRY
#undef WITHIN_KERNEL
#undef ga_float
#undef ga_double
"""

#: What the C code calls of the runtime library.
_STUBS = """
#include <cstdint>
#include "gpu/kernels/kernel_launch.hpp"
#include "common/error.hpp"
static int64_t launches = 0;
static int failing = 0;
namespace dnnops {
using HostKernel = void (*)(void **arguments, unsigned blocks, unsigned threads);
void launch_kernel(const Kernel &kernel, unsigned blocks, unsigned threads, unsigned, void *,
                   void **arguments) {
  if (failing) fail(failing, "as the test wanted");
  ++launches;
  reinterpret_cast<HostKernel>(kernel.function)(arguments, blocks, threads);
}
}
extern "C" int dnnops_cudnn_product(const dnnops_context *, int64_t, double alpha, double beta,
                                    const dnnops_tensor *inputs, dnnops_tensor *output) {
  ++launches;
  const auto at = [](const dnnops_tensor &t, int64_t i, int64_t j, int64_t k) {
    char *const first = static_cast<char *>(t.data);
    return reinterpret_cast<double *>(first + i * t.strides[0] + j * t.strides[1] +
                                      k * t.strides[2]);
  };
  const dnnops_tensor &x = inputs[0], &y = inputs[1], &z = *output;
  for (int64_t i = 0; i < z.shape[0]; ++i)
    for (int64_t j = 0; j < z.shape[1]; ++j)
      for (int64_t k = 0; k < z.shape[2]; ++k) {
        double sum = 0;
        for (int64_t m = 0; m < x.shape[2]; ++m) sum += *at(x, i, j, m) * *at(y, i, m, k);
        double *const to = at(z, i, j, k);
        *to = alpha * sum + (beta ? beta * *to : 0);
      }
  return 0;
}
// What a node on cuDNN does with its output, a list with one item: PyTensor's code takes two
// references besides the list's.
static dnnops_kept kept_output;
extern "C" __attribute__((visibility("default"))) PyObject *take_output(PyObject *cell,
                                                                        PyObject *shape) {
  PyObject *const item = PyList_GET_ITEM(cell, 0);
  PyObject *out = item == Py_None ? nullptr : item;
  Py_XINCREF(out);
  const dnnops::Reference other = dnnops::Reference::to(out);
  dnnops_tensor tensor = {};
  tensor.dtype = DNNOPS_FLOAT32;
  tensor.ndim = PyTuple_GET_SIZE(shape);
  for (int64_t axis = 0; axis < tensor.ndim; ++axis)
    tensor.shape[axis] = PyLong_AsLongLong(PyTuple_GET_ITEM(shape, axis));
  if (dnnops_gpuarray_prepare_kept(&out, &tensor, DNNOPS_CONTIGUOUS, 0, nullptr, &kept_output) < 0)
    return nullptr;
  if (PyList_SetItem(cell, 0, out) < 0) return nullptr;
  return PyLong_FromVoidPtr(tensor.data);
}
extern "C" __attribute__((visibility("default"))) int64_t launch_count() { return launches; }
extern "C" __attribute__((visibility("default"))) void fail_with(int status) { failing = status; }
"""


class HostKernel:
    """A kernel that is compiled for the host together with others, when one is first needed."""

    def __init__(self, device: HostDevice, source: str, name: str, has_barriers: bool):
        self.device, self.source, self.name = device, source, name
        self.run = "run_together" if has_barriers else "run_kernel"

    @property
    def kernel(self) -> Any:
        return SimpleNamespace(ptr=self.device.address(self))

    def __call__(self, grid: Any, block: Any, arguments: Any) -> None:
        values = [np.asarray(argument) for argument in arguments]
        pointers = (ctypes.c_void_p * len(values))(*(value.ctypes.data for value in values))
        run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
        run(self.device.address(self))(pointers, grid[0], block[0])


class HostDevice:
    """Kernels and the C code of prepared calls, compiled for the host."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.kernels: dict[str, HostKernel] = {}
        self._addresses: dict[HostKernel, int] = {}
        self._libraries: list[Any] = []
        self._numbers = itertools.count()
        sources = [*sorted(_FOLDER.glob("*.cpp")), c_code_dir() / "common" / "exports.cpp"]
        text = "".join(f'#include "{file}"\n' for file in sources)
        (folder / "prepared.cpp").write_text(f"{text}{_STUBS}")
        command = [config.cxx, "-std=c++17", "-O1", "-fPIC", "-shared", "-w", f"-I{c_code_dir()}"]
        command += [f"-isystem{sysconfig.get_path('include')}", "prepared.cpp", "-o", "prepared.so"]
        compile_once(command, folder)
        self.library = ctypes.CDLL(str(folder / "prepared.so"))

    def take_output(self, cell: list[Any], shape: tuple[int, ...]) -> int:
        """Let C code put an output of float32 into a cell, as an Op on cuDNN does.

        Return its address.
        """
        any_object = ctypes.py_object
        take: Callable[..., Any] = ctypes.PYFUNCTYPE(any_object, any_object, any_object)
        address = ctypes.cast(self.library.take_output, ctypes.c_void_p).value
        return take(address)(cell, shape)

    @property
    def launches(self) -> int:
        """Number of kernels and products that C code has launched."""
        return self.library.launch_count()

    def compiled(self, kernel: Any) -> HostKernel:
        """Return an elementwise kernel; takes the place of a compilation for a GPU."""
        return self.kernel(kernel.source(), elementwise_kernel.KERNEL_NAME)

    def reduction(self, kernels: Any, device: int, value: int, name: str) -> HostKernel:
        """Return a kernel of a reduction, in place of `Kernels.get`."""
        source = reduction_source.reduction_source(kernels.arithmetic, kernels.name)
        return self.kernel(f"#define {kernels.macro} {value}\n{source}", name, True)

    def kernel(self, source: str, name: str, has_barriers: bool = False) -> HostKernel:
        """Return a kernel of a source."""
        key = f"{name}\n{source}"
        if key not in self.kernels:
            self.kernels[key] = HostKernel(self, source, name, has_barriers)
        return self.kernels[key]

    def address(self, kernel: HostKernel) -> int:
        if kernel not in self._addresses:
            self._compile([k for k in self.kernels.values() if k not in self._addresses])
        return self._addresses[kernel]

    def _compile(self, kernels: list[HostKernel]) -> None:
        number = next(self._numbers)
        entries = "".join(
            _ENTRY.format(number=i, source=k.source, name=k.name, run=k.run)
            for i, k in enumerate(kernels)
        )
        (self.folder / f"k{number}.cpp").write_text(f'#include "host_cuda.hpp"\n{_CALL}{entries}')
        command = [
            config.cxx,
            "-std=c++17",
            "-O1",
            "-fno-strict-aliasing",
            "-w",
            "-fPIC",
            "-shared",
        ]
        command += ["-fsanitize=alignment", "-fsanitize-undefined-trap-on-error"]
        command += [f"-I{_EMULATION}", "-o", f"k{number}.so", f"k{number}.cpp"]
        compile_once(with_host_cuda(command), self.folder)
        library = ctypes.CDLL(str(self.folder / f"k{number}.so"))
        self._libraries.append(library)
        for i, kernel in enumerate(kernels):
            function = ctypes.cast(getattr(library, f"kernel_{i}"), ctypes.c_void_p)
            self._addresses[kernel] = function.value or 0


def _allocate(size: int) -> Any:
    from cupy.cuda import memory

    # As on a device, addresses are multiples of 512 bytes. Values are poisoned.
    owner = np.full(size + 1024, 0xA5, np.uint8)
    address = -(-owner.ctypes.data // 512) * 512
    return memory.MemoryPointer(memory.UnownedMemory(address, max(size, 1), owner, 0), 0)


@contextmanager
def on_host(device: HostDevice) -> Iterator[None]:
    """Run GPU Ops on a device in host memory."""
    import cupy
    from cupy_backends.cuda.api import runtime

    integers = (ctypes.c_int64,) * 2
    any_object = ctypes.py_object
    make: Callable[..., Any] = ctypes.PYFUNCTYPE(
        any_object, any_object, ctypes.c_char_p, any_object, any_object, any_object, *integers
    )
    functions = (
        make(ctypes.cast(device.library.dnnops_prepared_thunk, ctypes.c_void_p).value),
        ctypes.PYFUNCTYPE(any_object, any_object)(
            ctypes.cast(device.library.dnnops_prepared_run, ctypes.c_void_p).value
        ),
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(runtime, "getDevice", lambda: 0)
        patched.setattr(cupy.cuda.runtime, "getDevice", lambda: 0)
        # CuPy's C function for the current stream needs a device.
        patched.setattr(cupy.cuda.stream, "__pyx_capi__", {})
        patched.setattr(cupy.cuda, "get_current_stream", lambda: SimpleNamespace(ptr=0))
        patched.setattr(thunk, "_functions", lambda: functions)
        patched.setattr(elementwise_kernel, "_compiled", device.compiled)
        patched.setattr(
            reduction_source.Kernels, "get", lambda *arguments: device.reduction(*arguments)
        )
        # So few that kernels for few and for many rows are used.
        for module in (row_reduction, column_reduction):
            patched.setattr(module, "processors", lambda device: 2)
        cupy.cuda.set_allocator(_allocate)
        try:
            yield
        finally:
            cupy.cuda.set_allocator(cupy.get_default_memory_pool().malloc)


def device_array(value: np.ndarray, offset: int = 0) -> Any:
    """Return a CuPy array in host memory with a value's contents and memory order.

    It starts `offset` elements after a multiple of 512 bytes.
    """
    import cupy

    order = sorted(range(value.ndim), key=lambda axis: -abs(value.strides[axis]))
    dense = np.ascontiguousarray(value.transpose(order))
    memory = cupy.ndarray((dense.size + offset,), dense.dtype)
    ctypes.memmove(memory.data.ptr + offset * dense.itemsize, dense.ctypes.data, dense.nbytes)
    return memory[offset:].reshape(dense.shape).transpose(np.argsort(order).tolist())


def wrapped(array: np.ndarray) -> Any:
    """Return a CuPy array of the memory of a NumPy array, with its strides."""
    import cupy
    from cupy.cuda import memory

    # CuPy does not check bounds, so an array may go on on both sides of its address.
    memory_of_array = memory.UnownedMemory(array.ctypes.data, max(array.nbytes, 1), array, 0)
    pointer = memory.MemoryPointer(memory_of_array, 0)
    return cupy.ndarray(array.shape, array.dtype, pointer, array.strides)


def host_value(array: Any) -> np.ndarray:
    """Return the contents of a CuPy array in host memory."""
    if not array.size:
        return np.empty(array.shape, array.dtype)
    steps = zip(array.shape, array.strides, strict=True)
    low = sum((n - 1) * step for n, step in steps if step < 0)
    steps = zip(array.shape, array.strides, strict=True)
    high = sum((n - 1) * step for n, step in steps if step > 0) + array.itemsize
    memory = np.frombuffer(ctypes.string_at(array.data.ptr + low, high - low), np.uint8)
    return np.ndarray(array.shape, array.dtype, memory, -low, array.strides).copy()

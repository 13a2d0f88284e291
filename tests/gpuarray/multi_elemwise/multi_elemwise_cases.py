"""Cases of the tests of `GpuMultiElemwise`, and a device in host memory that runs its kernels."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytensor.scalar as ps
from pytensor.graph.basic import Apply
from pytensor.scalar.basic import Composite, ScalarOp, get_scalar_type
from pytensor.tensor.type import TensorType

from dnnops.dtypes import DTYPES, HALF_DTYPES, host_dtype, numpy_dtype
from dnnops.gpuarray import GpuArrayType
from dnnops.gpuarray.elementwise.packed import DENSE, SCALAR, STORED
from dnnops.gpuarray.multi_elemwise import op as module
from dnnops.gpuarray.multi_elemwise.kernel import THREADS, MultiKernel
from dnnops.gpuarray.multi_elemwise.op import GpuMultiElemwise
from tests.host_libraries import compile_once

HEADERS = Path(__file__).parents[2] / "emulation"

D, ONE, N = DENSE, STORED, SCALAR


class Case(NamedTuple):
    """An operation on several items, and the same in NumPy, in float64 or integers."""

    build: Callable[..., list[Any]]
    dtypes: tuple[str, ...]
    kinds: tuple[str, ...]
    inplace: tuple[tuple[int, int], ...]
    reference: Callable[..., tuple[Any, ...]]

    @property
    def scalar_op(self) -> ScalarOp:
        inputs = [get_scalar_type(host_dtype(dtype))() for dtype in self.dtypes]
        return Composite(inputs, self.build(*inputs))

    def expected(self, operands: Sequence[Any]) -> list[np.ndarray]:
        """Return the results for the operands of an item."""
        wide = [x.astype("float64") if "float" in str(x.dtype) else x for x in operands]
        return [np.asarray(z) for z in self.reference(*map(np.asarray, wide))]

    def op(self, count: int) -> GpuMultiElemwise:
        return GpuMultiElemwise(self.scalar_op, self.kinds, count, self.inplace)

    def node(self, ranks: Sequence[int]) -> Apply:
        """Return a node with items of these ranks."""
        inputs: list[Any] = []
        for rank in ranks:
            for dtype, kind in zip(self.dtypes, self.kinds, strict=True):
                if kind != SCALAR:
                    shape = (None if kind == DENSE else 1,) * rank
                    inputs.append(GpuArrayType(dtype, shape)())
        for dtype, kind in zip(self.dtypes, self.kinds, strict=True):
            if kind == SCALAR:
                inputs.append(TensorType(dtype, ())())
        return self.op(len(ranks)).make_node(*inputs)


def _momentum(v, g, p, rate):
    new = ps.constant(np.float32(0.75)) * v + g
    return [new, ps.cast(p - rate * new, p.type.dtype)]


def _adam(p, g, m, v, clip, rate, step):
    g = g * clip
    new_m, new_v = 0.75 * m + 0.25 * g, 0.875 * v + 0.125 * g * g
    return [p - rate * new_m / (ps.sqrt(new_v) + step), new_m, new_v]


def _adam_reference(p, g, m, v, clip, rate, step):
    g = g * clip
    new_m, new_v = 0.75 * m + 0.25 * g, 0.875 * v + 0.125 * g * g
    return p - rate * new_m / (np.sqrt(new_v) + step), new_m, new_v


def _momentum_case(*dtypes: str) -> Case:
    return Case(
        _momentum,
        dtypes,
        (D, D, D, N),
        ((0, 0), (1, 2)),
        lambda v, g, p, rate: (0.75 * v + g, p - rate * (0.75 * v + g)),
    )


CASES = {
    "momentum": _momentum_case("float32", "float32", "float32", "float32"),
    "master weights": _momentum_case("float32", "bfloat16", "float32", "float32"),
    "float16": _momentum_case("float32", "float16", "float16", "float16"),
    "Adam": Case(
        _adam,
        ("float64",) * 6 + ("int64",),
        (D, D, D, D, ONE, N, N),
        ((0, 0), (1, 2), (2, 3)),
        _adam_reference,
    ),
    # New results have another order than the scalar Op's.
    "partly in place": Case(
        lambda x, n, y: [x - y, x * n, y + ps.cast(n, "int32")],
        ("int64", "int8", "int32"),
        (D, N, D),
        ((1, 0),),
        lambda x, n, y: (x - y, x * n, y + n),
    ),
    "comparison": Case(
        lambda x, y: [ps.gt(x, y), x // y],
        ("int16", "int16"),
        (D, ONE),
        (),
        lambda x, y: (x > y, x // y),
    ),
}

#: Largest relative error by dtype.
BOUNDS = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 3e-6, "float64": 1e-14}


def values(rng: np.random.Generator, dtype: str, shape: Any) -> np.ndarray:
    """Return random values, none of which is zero."""
    if "float" in dtype:
        return rng.uniform(0.5, 2, shape).astype(numpy_dtype(dtype))
    return rng.integers(1, 50, shape).astype(dtype)


def assert_results(case: Case, before: Sequence[Any], results: Sequence[Any], words: str) -> None:
    """Compare an item's results with the operation on copies of its operands."""
    for got, wanted in zip(results, case.expected(before), strict=True):
        bound = BOUNDS.get(got.dtype.name, 0)
        assert got.shape == wanted.shape, words
        near = np.asarray(got).astype(wanted.dtype)
        np.testing.assert_allclose(near, wanted, rtol=bound, atol=bound, err_msg=words)


# -- a device in host memory ---------------------------------------------------------------


class HostArray(np.ndarray):
    """A NumPy array with the attributes of CuPy's that the launcher reads."""

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self.ctypes.data)


_ENTRY = """
struct Launch {{ const Items *items; const void *const *numbers; int count; }};
static void run(const Launch &l) {{ multi_elemwise(*l.items, l.count{numbers}); }}
extern "C" int run_{number}(const Launch *launch, unsigned blocks, unsigned seed) {{
  static_assert(sizeof(Items) == {size});
  return run_grid(run, *launch, blocks, THREADS, 0, seed);
}}
"""


class _Launch(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("items", "numbers")),
        ("count", ctypes.c_int),
    ]


class HostDevice:
    """Kernels, compiled for the host. A misaligned address ends the process."""

    def __init__(self, folder: Path, kernels: Sequence[MultiKernel]):
        self.kernels = list(dict.fromkeys(kernels))
        self.launches: list[int] = []
        text = '#include "host_cuda.hpp"\n#define __device__ inline\n'
        for number, kernel in enumerate(self.kernels):
            entry = _ENTRY.format(
                number=number, size=kernel.table().nbytes, numbers=_numbers(kernel)
            )
            macros = ("ITEMS", "ARRAYS", "DENSE_ARRAYS", "ENTRY", "THREADS", "ROUNDS", "WIDTH")
            undefine = "".join(f"#undef {name}\n" for name in macros)
            text += f"namespace of_{number} {{\n{kernel.source()}\n{entry}}}\n{undefine}"
        (folder / "multi.cpp").write_text(text)
        command = ["g++", "-std=c++17", "-O1", "-fno-strict-aliasing", "-w", "-fPIC", "-shared"]
        command += ["-fsanitize=alignment,bounds", "-fsanitize-undefined-trap-on-error"]
        compile_once([*command, f"-I{HEADERS}", "-o", "multi.so", "multi.cpp"], folder)
        self.library = ctypes.CDLL(str(folder / "multi.so"))

    def compiled(self, kernel: MultiKernel, device: int) -> Callable[..., None]:
        """Return a function that runs a kernel like a CuPy kernel."""
        run = getattr(self.library, f"run_{self.kernels.index(kernel)}")

        def launch(grid: tuple[int], block: tuple[int], arguments: tuple[Any, ...]) -> None:
            table, count, *numbers = arguments
            assert block == (THREADS,)
            assert table.shape == ()
            self.launches.append(int(count))
            addresses = (ctypes.c_void_p * len(numbers))(*(x.ctypes.data for x in numbers))
            packed = _Launch(table.ctypes.data, ctypes.addressof(addresses), count)
            assert run(ctypes.byref(packed), grid[0], len(self.launches)) == 0

        return launch

    def install(self, monkeypatch: Any, limit: int) -> None:
        """Let `GpuMultiElemwise` run on this device."""
        monkeypatch.setattr(module, "_compiled", self.compiled)
        monkeypatch.setattr(module, "parameter_limit", lambda device: limit)
        monkeypatch.setattr(module, "empty_in_order", _empty)


def _empty(shape: Any, dtype: Any, order: Any) -> tuple[Any, Any]:
    if order is None:
        array = np.full(shape, 77, dtype).view(HostArray)
        return array, array
    memory = np.full([shape[axis] for axis in order], 77, dtype).view(HostArray)
    return memory.transpose(np.argsort(order)), memory


def _numbers(kernel: MultiKernel) -> str:
    dtypes = [t for t, kind in zip(kernel.in_dtypes, kernel.kinds, strict=True) if kind == SCALAR]
    text = ""
    for i, (dtype, on_device) in enumerate(zip(dtypes, kernel.on_device, strict=True)):
        stored = "unsigned short" if dtype in HALF_DTYPES else DTYPES[dtype].c_type
        text += f", {'' if on_device else '*'}static_cast<const {stored} *>(l.numbers[{i}])"
    return text

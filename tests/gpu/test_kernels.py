"""Kernels that the runtime library requests, and what it gets if one does not compile."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from contextlib import nullcontext

import pytest

from dnnops.gpu import kernels
from dnnops.runtime.headers import GPU, callback
from tests.gpuarray.broken_kernels import LOG, Failing

#: Size of the buffer in ``kernel_loader.cpp``.
CAPACITY = 4096


@pytest.fixture
def reason(monkeypatch):
    """A function that requests a kernel as C code does, and returns the reason for its failure."""
    import cupy

    monkeypatch.setattr(cupy.cuda, "Device", nullcontext)
    get = callback("dnnops_get_kernel", GPU, kernels._get_kernel)

    def request(module, source, capacity=CAPACITY):
        monkeypatch.setattr(cupy, "RawModule", module)
        monkeypatch.setattr(kernels, "kernel_source", lambda program: source)
        # What is behind the buffer must not change.
        buffer = ctypes.create_string_buffer(b"\xa5" * (capacity + 8), capacity + 8)
        options = b"-DDTYPE=1 -DWIDTH=4"
        assert (
            get(b"program", b"some_kernel", options, 0, ctypes.addressof(buffer), capacity) is None
        )
        assert buffer.raw[capacity:] == b"\xa5" * 8
        return buffer.value.decode()

    return request


@pytest.mark.needs("cupy")
def test_reason(reason):
    text = reason(Failing, "//\n" * 500)
    assert text.startswith(
        'kernel some_kernel does not compile:\nline 3: error: identifier "missing" is undefined\n'
    )
    assert "options: -DDTYPE=1 -DWIDTH=4 -arch=sm_90\nsource, 500 lines:\n" in text
    assert text.endswith(" 10  //\n...")


@pytest.mark.needs("cupy")
def test_much_to_say(reason):
    """The end of the source is cut, between two characters."""

    class Module(Failing):
        log = "".join(f"{{}}({40 * n}): error: wrong {n}\n\n" for n in range(1, 101))

    text = reason(Module, f"//{'é' * 90}\n" * 4000)
    assert CAPACITY - 3 < len(text.encode()) < CAPACITY
    assert "\nline 400: error: wrong 10\nand 90 more errors\noptions: -DDTYPE=1 -DW" in text
    assert "\n  40  //éé" in text
    assert LOG.partition("\n")[0].partition(":")[2][:30] in reason(Failing, "//é", 90)


@pytest.mark.needs("cupy")
def test_other_failures_have_their_type(reason):
    class Module(Failing):
        def get_function(self, name):
            raise MemoryError("no memory")

    assert reason(Module, "//") == "MemoryError: no memory"


#: In a process of its own, because the library keeps the kernels that it has.
PROGRAM = """
import numpy as np
import pytensor
import dnnops
from dnnops.errors import DnnNotSupportedError
from dnnops.gpu import kernels
from dnnops.gpu.cross_entropy import GpuCrossEntropy
from dnnops.gpuarray import GpuArrayType

x, labels = GpuArrayType("float32", (None, None))(), pytensor.tensor.lvector()
mode = pytensor.compile.get_mode("CVM").including("gpu")
costs = GpuCrossEntropy()(x, labels)[0].transfer("cpu")
f = pytensor.function([x, labels], costs, mode=mode)
right = kernels.kernel_source
kernels.kernel_source = lambda program: right(program) + "__device__ int f() { return missing; }"
import cupy

given = cupy.ones((2, 3), "float32"), np.array([0, 2])
try:
    f(*given)
except DnnNotSupportedError as error:
    print(error)
kernels.kernel_source = right
print([round(cost, 4) for cost in f(*given).tolist()])
"""


@pytest.mark.gpu
def test_on_a_gpu():
    """The Op's exception has the reason; a kernel that compiles later is used."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first, *others = done.stdout.splitlines()
    assert first.startswith("GpuCrossEntropy: its kernel cannot be compiled: kernel cross_entropy")
    assert others[0].endswith('error: identifier "missing" is undefined')
    assert any("__device__ int f() { return missing; }" in line for line in others[3:])
    assert others[-1] == "[1.0986, 1.0986]"

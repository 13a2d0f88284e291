"""Kernels that do not compile: the exception, without a GPU and on one."""

from __future__ import annotations

import pickle

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from dnnops.errors import DnnCompileError, DnnLibraryError
from dnnops.gpuarray import GpuArrayType
from dnnops.gpuarray.compiling import compiled_kernel
from dnnops.gpuarray.elementwise.kernel import ElementwiseKernel
from dnnops.gpuarray.elemwise import GpuElemwise
from tests.gpuarray.broken_kernels import LOG, Failing, HostModule, broken
from tests.gpuarray.graphs import GPU_MODE, to_device, to_host

SOURCE = """\
// The first line.
extern "C" __global__ void k(float *z) {
  z[0] = missing;
  int error = 3;
  f(z[0], 1);
}
"""


def message(source, name="k", options=("-std=c++17",)):
    with pytest.raises(DnnCompileError) as raised:
        compiled_kernel(source, name, options)
    assert isinstance(raised.value, DnnLibraryError)
    return str(raised.value)


@pytest.fixture
def failing(monkeypatch):
    """A class that fails as CuPy does; tests may set its log and file."""
    import cupy

    class Module(Failing):
        pass

    monkeypatch.setattr(cupy, "RawModule", Module)
    return Module


@pytest.mark.needs("cupy")
@pytest.mark.parametrize("file", [Failing.file, ""])
def test_message(failing, file):
    """Errors come first, then the options, and the source with numbers."""
    failing.file = file
    assert message(SOURCE, options=("-std=c++17", "-DWIDTH=4")) == (
        "kernel k does not compile:\n"
        'line 3: error: identifier "missing" is undefined\n'
        "    z[0] = missing;\n"
        "           ^\n"
        'line 5: error: no instance of overloaded function "f" matches the argument list\n'
        "            argument types are: (float, int)\n"
        "    f(z[0], 1);\n"
        "    ^\n"
        "options: -std=c++17 -DWIDTH=4 -arch=sm_90\n"
        "source, 6 lines:\n"
        "1  // The first line.\n"
        '2  extern "C" __global__ void k(float *z) {\n'
        "3    z[0] = missing;\n"
        "4    int error = 3;\n"
        "5    f(z[0], 1);\n"
        "6  }"
    )


@pytest.mark.needs("cupy")
def test_long_source(failing):
    """Only the lines around those with errors are shown."""
    failing.log = LOG.replace("(5)", "(300)")
    text = message("".join(f"// {number}\n" for number in range(1, 401)))
    _, source = text.split("source, 400 lines:\n")
    near = [*range(1, 9), *range(295, 306)]
    shown = [f"{number:3}  // {number}" for number in near]
    assert source.splitlines() == [*shown[:8], "...", *shown[8:], "..."]
    failing.log = LOG.replace("(5)", "(400)")
    assert message("//\n" * 400).splitlines()[-1] == "400  //"
    # An error in a header, which has other lines.
    failing.log = 'header.h(7): error: expected a ";"\n'
    assert message("//\n" * 400).splitlines()[1] == 'header.h(7): error: expected a ";"'
    assert message("//\n" * 400).splitlines()[-2:] == ["source, 400 lines:", "..."]


@pytest.mark.needs("cupy")
def test_many_errors(failing):
    failing.log = "".join(f"{{}}({n}): error: wrong {n}\n\n" for n in range(1, 101))
    lines = message("//\n" * 100).splitlines()
    assert lines[1:12] == [*(f"line {n}: error: wrong {n}" for n in range(1, 11)), lines[11]]
    assert lines[11] == "and 90 more errors"


@pytest.mark.needs("cupy")
def test_other_logs(failing):
    """NVRTC refuses options before it reads the source; other text is shown as it is."""
    for log in ("nvrtc: error: unrecognized option -foo found\n", "something new\n\nhappened"):
        failing.log = log
        assert message(SOURCE).startswith(f"kernel k does not compile:\n{log.strip()}\noptions:")


@pytest.mark.needs("cupy")
def test_other_failures_are_not_changed(monkeypatch):
    """A module may not be loaded, for want of memory for example."""
    import cupy

    class Module(Failing):
        def get_function(self, name):
            raise MemoryError(name)

    monkeypatch.setattr(cupy, "RawModule", Module)
    with pytest.raises(MemoryError, match="k"):
        compiled_kernel(SOURCE, "k")


def test_exception_of_a_node():
    x = GpuArrayType("float32", (None,))("x")
    node = GpuElemwise(broken)(x).owner
    error = DnnCompileError("kernel k does not compile:\nline 1: error")
    error.name_node(node)
    wanted = "GpuElemwise{broken}: kernel k does not compile:\nline 1: error"
    assert str(error) == str(pickle.loads(pickle.dumps(error))) == wanted
    # PyTensor makes exceptions with longer messages if asked for.
    assert str(type(error)(f"{error}\nApply node")) == f"{wanted}\nApply node"
    assert error.__notes__ == [f"Apply node that needs the kernel: {node}"]


@pytest.mark.needs("nvrtc")
def test_compilers_log(monkeypatch):
    """NVRTC's own log is understood, also that of instances of templates."""
    import cupy

    monkeypatch.setattr(cupy, "RawModule", HostModule)
    dense = ("dense",)
    kernel = ElementwiseKernel(broken, ("float32",), ("float32",), dense, dense, 1)
    source = kernel.source()
    assert len(source.splitlines()) > 200
    at = 1 + next(i for i, line in enumerate(source.splitlines()) if "missing_function" in line)
    lines = message(source, "elementwise").splitlines()
    assert lines[1] == f'line {at}: error: identifier "missing_function" is undefined'
    assert any(line.startswith(f"{at}  ") and "missing_function" in line for line in lines)
    assert len(lines) < 40
    template = "template <class T> __global__ void k(T *z) { z[0] = T::missing; }\n"
    assert "line 1: error: " in message(template, "k<float>")
    works = template.replace("T::missing", "1")
    assert compiled_kernel(works, "k<float>").name == "k<float>"


@pytest.mark.gpu
@pytest.mark.parametrize("prepared", [True, False])
def test_on_a_gpu(prepared):
    """The exception names the node and its line; other functions, and other Ops, still run."""
    x = GpuArrayType("float32", (None,))("x")
    with pytensor.config.change_flags(dnn__prepared_calls=prepared):
        f = pytensor.function([x], GpuElemwise(broken)(x), mode=GPU_MODE)
        g = pytensor.function([x], (pt.exp(x) + 3).transfer("cuda"), mode=GPU_MODE)
    value = to_device(np.ones(1000, "float32"))
    for _ in range(2):
        with pytest.raises(DnnCompileError) as raised:
            f(value)
        lines = str(raised.value).splitlines()
        assert lines[0] == "GpuElemwise{broken}: kernel elementwise does not compile:"
        assert lines[1].endswith(': error: identifier "missing_function" is undefined')
        number = lines[1].removeprefix("line ").partition(":")[0]
        (line,) = (line for line in lines if line.startswith(f"{number}  "))
        assert "missing_function(" in line
        assert any("GpuElemwise{broken}(x)" in note for note in raised.value.__notes__)
        assert str(f.vm.nodes[f.vm.position_of_error].op) == "GpuElemwise{broken}"
        np.testing.assert_allclose(to_host(g(value)), np.full(1000, np.e + 3), rtol=1e-6)

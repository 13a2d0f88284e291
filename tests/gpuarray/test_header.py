"""dnnops_gpuarray.h: generated C code that reads, allocates and copies device arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor
import pytest
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Apply
from pytensor.link.c.op import COp
from pytensor.link.vm import VMLinker
from pytensor.tensor.type import lvector

from dnnops.dtypes import DTYPE_CODES
from dnnops.gpuarray import GpuArrayType
from tests.gpuarray.graphs import to_device

CODE = """
{{
  dnnops_tensor in, out;
  npy_intp length = 9;
  if (dnnops_gpuarray_read({x}, {dtype}, &in) < 0) {{ {fail} }}
  out = in;
  PyObject *before = {z};
  int64_t previous = dnnops_gpuarray_enter_device(0);
  if (previous < 0) {{ {fail} }}
  int failed = dnnops_gpuarray_prepare(&{z}, &out, {format}, 0);
  if (dnnops_gpuarray_leave_device(previous, 0) < 0 || failed) {{ {fail} }}
  Py_XDECREF({report});
  {report} = (PyArrayObject *)PyArray_SimpleNew(1, &length, NPY_INT64);
  if ({report} == NULL) {{ {fail} }}
  npy_int64 *words = (npy_int64 *)PyArray_DATA({report});
  memset(words, 0, 9 * sizeof(npy_int64));
  words[0] = before != NULL && before == {z};
  words[1] = out.dtype;
  words[2] = out.ndim;
  words[3] = (npy_int64)dnnops_gpuarray_stream();
  words[4] = (npy_int64)out.data;
  for (int axis = 0; axis < out.ndim; ++axis) words[5 + axis] = out.strides[axis];
  if (PyErr_Occurred()) {{ {fail} }}
}}
"""


class Prepare(COp):
    """Allocate an output like the input, and report the results of the header's functions."""

    __props__ = ("memory_format",)
    _f16_ok = True

    def __init__(self, memory_format: str):
        self.memory_format = memory_format

    def make_node(self, x: Any) -> Apply:
        return Apply(self, [x], [x.type(), lvector()])

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        raise NotImplementedError("only C")

    def c_code_cache_version(self) -> tuple[int, ...]:
        return (2,)

    def c_code(self, node: Apply, name: str, inputs: Any, outputs: Any, sub: Any) -> str:
        return CODE.format(
            x=inputs[0],
            z=outputs[0],
            report=outputs[1],
            dtype=DTYPE_CODES[node.inputs[0].type.dtype],
            format=f"DNNOPS_{self.memory_format}",
            fail=sub["fail"],
        )


def function(dtype, memory_format, allow_gc=True, ndim=4):
    x = GpuArrayType(dtype, (None,) * ndim)()
    outputs = Prepare(memory_format)(x)
    mode = Mode(VMLinker(allow_gc=allow_gc, use_cloop=True), "fast_run")
    return pytensor.function([x], outputs, mode=mode)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_compiles_and_links(dtype):
    f = function(dtype, "CHANNELS_LAST")
    assert all(getattr(thunk, "cthunk", None) is not None for thunk in f.vm.thunks)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", sorted(DTYPE_CODES))
@pytest.mark.parametrize("memory_format", ["CONTIGUOUS", "CHANNELS_LAST"])
def test_prepare(dtype, memory_format):
    import cupy

    f = function(dtype, memory_format)
    shape = (2, 3, 4, 5)
    value = GpuArrayType(dtype, (None,) * 4).filter(np.zeros(shape), allow_downcast=True)
    out, report = f(value)
    assert (out.dtype, out.shape) == (value.dtype, shape)
    item = value.dtype.itemsize
    wanted = (60, 1, 15, 3) if memory_format == "CHANNELS_LAST" else (60, 20, 5, 1)
    assert out.strides == tuple(item * step for step in wanted)
    assert list(report[:3]) == [0, DTYPE_CODES[dtype], 4]
    assert report[3] == cupy.cuda.get_current_stream().ptr
    assert report[4] == out.data.ptr
    assert tuple(report[5:]) == out.strides


@pytest.mark.gpu
def test_prepare_on_another_stream():
    import cupy

    f = function("float32", "CONTIGUOUS")
    value = to_device(np.zeros((1, 1, 1, 1), "float32"))
    with cupy.cuda.Stream() as stream:
        assert f(value)[1][3] == stream.ptr
    assert f(value)[1][3] == cupy.cuda.Stream.null.ptr


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(0, 3, 4, 5), (2, 0, 4, 5), (1, 1, 1, 1), (2, 1, 4, 1)])
def test_prepare_degenerate_shapes(shape):
    out, _ = function("float32", "CHANNELS_LAST")(to_device(np.zeros(shape, "float32")))
    assert out.shape == shape


@pytest.mark.gpu
def test_an_intermediate_result_keeps_its_memory():
    x = GpuArrayType("float32", (None,) * 4)()
    middle, report = Prepare("CONTIGUOUS")(x)
    final, _ = Prepare("CONTIGUOUS")(middle)
    mode = Mode(VMLinker(allow_gc=False, use_cloop=True), "fast_run")
    f = pytensor.function([x], [final, report], mode=mode)
    value = to_device(np.zeros((2, 3, 4, 5), "float32"))
    reused = [int(f(value)[1][0]) for _ in range(4)]
    assert reused[-1] == 1
    # An output of another shape is not reused.
    assert f(value[:1])[1][0] == 0


@pytest.mark.gpu
def test_no_leaks():
    import sys

    import cupy

    f = function("float32", "CHANNELS_LAST")
    value = to_device(np.zeros((2, 3, 4, 5), "float32"))
    f(value)
    references, used = sys.getrefcount(value), cupy.get_default_memory_pool().used_bytes()
    for _ in range(1000):
        f(value)
    assert sys.getrefcount(value) == references
    assert cupy.get_default_memory_pool().used_bytes() <= used

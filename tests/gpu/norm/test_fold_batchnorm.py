"""Batch normalization folded into filters: the kernel on the host, checks, and the Op on a GPU."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from pytensor.graph.basic import Apply

from dnnops.dtypes import DTYPE_CODES, numpy_dtype
from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.gpu.fused.folded_filters import GpuFoldBatchNorm
from dnnops.gpuarray.type import GpuArrayType
from tests.emulation.host_kernels import compile_for_gpu, compile_for_host
from tests.gpu.calls import call, device_tensor, shape_of
from tests.gpu.device import apply_all, check, on_gpu, poison
from tests.oracle import RELATIVE_ERROR, assert_close

EPSILON = 1e-3
SHAPES = ((5, 3, 3, 2), (70, 6, 1, 1), (2, 300, 4, 4))
NAMES = ("filters", "gamma", "beta", "mean", "var")
#: Dtypes of filters, statistics and results, and whether results are channels last.
CASES = [
    ("float32", "float32", "bfloat16", True),
    ("float32", "float32", "float32", False),
    ("bfloat16", "float32", "bfloat16", True),
    ("float16", "float16", "float16", True),
    ("float64", "float64", "float64", True),
]
ITEMS = 4
every_case = pytest.mark.parametrize("case", CASES)


def draw(shape: tuple[int, ...], dtype: str, vector_dtype: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(shape[1])
    found = {"filters": rng.standard_normal(shape).astype(numpy_dtype(dtype))}
    for name in NAMES[1:]:
        vector = rng.standard_normal((1, shape[0], *(1,) * (len(shape) - 2)))
        vector = np.abs(vector) if name == "var" else vector
        found[name] = vector.astype(numpy_dtype(vector_dtype))
    return found


def expected(arrays: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    filters, gamma, beta, mean, var = (arrays[name].astype("float64") for name in NAMES)
    scale = gamma / np.sqrt(var + EPSILON)
    return filters * scale.swapaxes(0, 1), beta - mean * scale


def macros(case: tuple[str, str, str, bool]) -> dict[str, Any]:
    names = ("FILTER_DTYPE", "VECTOR_DTYPE", "OUT_DTYPE")
    return {"ITEMS": ITEMS} | {n: DTYPE_CODES[d] for n, d in zip(names, case[:3], strict=True)}


class Item(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in (*NAMES, "scaled", "bias")]
    _fields_ += [
        (name, ctypes.c_uint)
        for name in ("outputs", "channels", "positions", "per_block", "first_block", "transposes")
    ]


class Launch(ctypes.Structure):
    _fields_ = [
        ("epsilon", ctypes.c_double),
        ("count", ctypes.c_ulonglong),
        ("items", Item * ITEMS),
    ]


def run_on_host(folder, case, groups):
    """Fold several convolutions on the host; return their scaled filters and biases."""
    _, _, out_dtype, last = case
    kernels = {"fold_batchnorm": "FoldLaunch"}
    library = compile_for_host(folder, "fold_batchnorm", kernels, macros(case))
    launch, blocks, kept = Launch(EPSILON, len(groups)), 0, []
    for item, arrays in zip(launch.items, groups, strict=False):
        shape = arrays["filters"].shape
        results = [np.zeros(s, numpy_dtype(out_dtype)) for s in (shape, shape[0])]
        for name, array in (*arrays.items(), *zip(("scaled", "bias"), results, strict=True)):
            setattr(item, name, array.ctypes.data)
        item.outputs, item.channels, item.positions = shape[0], shape[1], shape[2] * shape[3]
        item.per_block, item.first_block, item.transposes = 3, blocks, last
        blocks += -(-shape[0] // 3)
        if last:
            n, c, *sizes = shape
            results[0] = results[0].reshape(n, *sizes, c).transpose(0, 3, 1, 2)
        kept.append(results)
    assert library.run_fold_batchnorm(ctypes.byref(launch), blocks, 64, 0) == 0
    return kept


@pytest.mark.needs("ml_dtypes")
@pytest.mark.parametrize("case", CASES[:2])
def test_kernel(case, tmp_path):
    groups = [draw(shape, *case[:2]) for shape in SHAPES]
    for arrays, results in zip(groups, run_on_host(tmp_path, case, groups), strict=True):
        for got, wanted in zip(results, expected(arrays), strict=True):
            wanted = wanted.reshape(got.shape)
            assert_close(got.astype("float64"), wanted, bound=RELATIVE_ERROR[case[2]])


def test_filters_stay_finite_in_float16(tmp_path):
    """A filter that float16 cannot hold would be infinite, and its product with 0 NaN."""
    arrays = draw((4, 1, 1, 1), "float16", "float32")
    arrays["filters"][:, 0, 0, 0] = [6e4, -6e4, np.inf, np.nan]
    arrays["gamma"][:], arrays["var"][:], arrays["mean"][:] = 100, 1, 1e4
    ((scaled, bias),) = run_on_host(tmp_path, ("float16", "float32", "float16", False), [arrays])
    np.testing.assert_array_equal(scaled.ravel(), [65504, -65504, np.inf, np.nan])
    np.testing.assert_array_equal(bias, [-65504] * 4)


@pytest.mark.needs("nvrtc")
@pytest.mark.parametrize("case", [CASES[0], CASES[3]])
def test_compiles_for_a_gpu(case):
    assert "fold_batchnorm" in compile_for_gpu("fold_batchnorm", macros(case))


def operands(shape: tuple[int | None, ...] = (5, 3, 3, 3), dtype: str = "float32") -> list[Any]:
    vector = (1, shape[0], *(1,) * (len(shape) - 2))
    return [GpuArrayType(dtype, s)() for s in (shape, *(vector,) * 4)]


def test_types():
    node: Apply = GpuFoldBatchNorm(0.1, "bfloat16", 2).make_node(
        *operands(), *operands((None, 4, 1))
    )
    shapes = [z.type.shape for z in node.outputs]
    assert shapes == [(5, 3, 3, 3), (1, 5, 1, 1), (None, 4, 1), (1, None, 1)]
    assert {z.type.dtype for z in node.outputs} == {"bfloat16"}
    # Scaled filters depend on filters, gamma and var; biases on all but the filters.
    pattern = node.op.connection_pattern(node)
    assert [row[:2] for row in pattern[:5]] == [
        [True, False],
        [True, True],
        [False, True],
        [False, True],
        [True, True],
    ]
    assert [row[2:] for row in pattern[:5]] == [[False, False]] * 5


def test_bad_arguments():
    op = GpuFoldBatchNorm(0.1, "float32")
    with pytest.raises(DnnTypeError, match="number of operands given is 4"):
        op.make_node(*operands()[:4])
    with pytest.raises(DnnTypeError, match="statistics must have one"):
        op.make_node(*operands()[:4], *operands(dtype="float64")[4:])
    with pytest.raises(DnnTypeError, match="at least 3 dimensions"):
        op.make_node(*operands((5, 3)))
    with pytest.raises(DnnValueError, match="var"):
        op.make_node(*operands()[:4], *operands((6, 3, 3, 3))[4:])
    with pytest.raises(DnnValueError, match="memory_format"):
        GpuFoldBatchNorm(0.1, "float32", memory_format="other")


@pytest.mark.needs("cudnn")
def test_shapes_in_the_library():
    op = GpuFoldBatchNorm(0.1, "bfloat16", 1, "channels_last")
    vector = device_tensor((1, 5, 1, 1))
    given = [device_tensor((5, 3, 2, 2)), *(vector,) * 4]
    scaled, bias = call("dnnops_cudnn_fold_batchnorm_shape", op, given, [device_tensor((1,))] * 2)
    assert (shape_of(scaled), shape_of(bias)) == ((5, 3, 2, 2), (1, 5, 1, 1))
    assert list(scaled.strides[:4]) == [24, 2, 12, 6]
    with pytest.raises(DnnValueError, match="5 filters need as many statistics"):
        call(
            "dnnops_cudnn_fold_batchnorm_shape",
            op,
            [given[0], *(device_tensor((1, 4, 1, 1)),) * 4],
            [device_tensor((1,))] * 2,
        )


@pytest.mark.gpu
@every_case
def test_on_a_gpu(case):
    dtype, vector_dtype, out_dtype, last = case
    memory_format = "channels_last" if last else "contiguous"
    many = [SHAPES[i % 3] for i in range(50)]  # more than one launch
    op = GpuFoldBatchNorm(EPSILON, out_dtype, len(many), memory_format)
    arrays = [draw(shape, dtype, vector_dtype) for shape in many]
    given = [
        on_gpu(a[name], dtype if name == "filters" else vector_dtype)
        for a in arrays
        for name in NAMES
    ]
    poison()
    results = apply_all(op, *given)
    for i, a in enumerate(arrays):
        for out, wanted in zip(results[2 * i : 2 * i + 2], expected(a), strict=True):
            check(out, wanted, out_dtype)
        strides = results[2 * i].strides
        assert last == (strides[1] == results[2 * i].itemsize) or many[i][2] == 1

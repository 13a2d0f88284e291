"""Pooling on a GPU with windows known only at the call, and the mode max_deterministic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import get_mode

from dnnops import dnn, nnet
from dnnops.errors import DnnValueError
from dnnops.gpu.pool import GpuDnnPool, GpuDnnPoolGrad
from dnnops.gpu.pool_kernels import GpuMaxPoolGradGrad, GpuPool, GpuPoolGrad
from dnnops.gpuarray.type import GpuArrayType
from dnnops.nnet.pool.op import AveragePoolGrad, MaxPoolGrad, Pool
from tests.gpu.calls import call, device_tensor, shape_of
from tests.gpu.device import DTYPES, apply_op, check, host, on_gpu, rounded
from tests.oracle import SEED, PoolCase, run_op

MODE = get_mode("CVM").including("gpu")
MODES = ("max", "max_deterministic", "sum", "average_inc_pad", "average_exc_pad")
VECTORS = ("ws", "stride", "pad")
#: Windows that do not fit an image of 6, 6, and parts of the error messages.
WRONG = [
    (((2, 0), (1, 1), (0, 0)), "ws"),
    (((2, -3), (1, 1), (0, 0)), "ws"),
    (((2, 2), (0, 1), (0, 0)), "stride"),
    (((2, 2), (1, -1), (0, 0)), "stride"),
    (((2, 2), (1, 1), (2, 0)), "smaller than ws"),
    (((2, 2), (1, 1), (0, -1)), "pad"),
]


# -- without a GPU -----------------------------------------------------------------------


@pytest.mark.needs("cudnn")
def test_the_library_reads_windows_at_each_call():
    op = GpuDnnPool("max_deterministic", 3)
    image = device_tensor((2, 3, 9, 8, 7))
    for ws, stride, pad in (((3, 2, 1), (1, 2, 3), (0, 1, 0)), ((9, 1, 7), (4, 4, 4), (0, 0, 0))):
        (out,) = call("dnnops_cudnn_pool_shape", op, [image, *map(np.array, (ws, stride, pad))])
        vectors = tuple(map(np.array, (ws, stride, pad)))
        assert shape_of(out) == Pool(3, "max", True).check_shapes([(2, 3, 9, 8, 7)], *vectors)[1]


@pytest.mark.needs("cudnn")
@pytest.mark.parametrize(("windows", "message"), WRONG)
def test_wrong_windows_at_the_call(windows, message):
    """Test the errors of the library on a GPU, and the results of dnnops' kernels."""
    vectors = [np.array(v) for v in windows]
    with pytest.raises(DnnValueError, match=f"GpuDnnPool: .*{message}"):
        call("dnnops_cudnn_pool_shape", GpuDnnPool(ndim=2), [device_tensor((1, 1, 6, 6)), *vectors])
    x = GpuArrayType("float32", (None,) * 4)()
    image = np.ones((1, 1, 6, 6), "float32")  # only its shape is read
    for op, operands in ((GpuPool, 1), (GpuPoolGrad, 3), (GpuMaxPoolGradGrad, 3)):
        op = op(2, "max", True)
        node = op.make_node(*[x] * operands, *(pt.lvector() for _ in VECTORS))
        with pytest.raises(DnnValueError, match=f"{type(op).__name__}2d: .*{message}"):
            op.compute(node, *[image] * operands, *vectors)


def test_modes_of_theano():
    (img,) = [GpuArrayType("float32", (None,) * 5)()]
    op = dnn.dnn_pool(img, (2, 2, 2), mode="max_deterministic").owner.op
    assert (op.ndim, op.mode, op.deterministic) == (3, "max", True)
    assert op == GpuDnnPool("max", 3, deterministic=True) != GpuDnnPool("max", 3)
    assert dnn.dnn_pool(img, (2, 2, 2), mode="average").owner.op == GpuDnnPool("average_inc_pad", 3)
    with pytensor.config.change_flags(dnn__deterministic=True):
        assert dnn.dnn_pool(img, (2, 2, 2)).owner.op == op
    # As in Theano, the image determines the number of axes.
    out = GpuDnnPool("average")(img, [2, 2, 2], [1, 1, 1], [0, 0, 0])
    assert out.owner.op == GpuDnnPool("average_inc_pad", 3)
    grad = GpuDnnPoolGrad(mode="max")(img, img, img, [2, 2, 2], [1, 1, 1], [0, 0, 0])
    assert grad.owner.op == GpuDnnPoolGrad("max", 3)
    vectors = [pt.ivector(name) for name in VECTORS]
    out = dnn.dnn_pool(img, vectors[0], vectors[1], "sum", vectors[2])
    assert out.type.shape == (None,) * 5
    with pytest.raises(DnnValueError, match="smaller than ws"):
        dnn.dnn_pool(img, (2, 2, 2), pad=(0, 2, 0))
    with pytest.raises(DnnValueError, match="stride must be between 1"):
        dnn.dnn_pool(img, (2, 2, 2), (1, 0, 1))


def test_derivatives_stay_deterministic():
    x = GpuArrayType("float32", (None,) * 4)()
    out = GpuDnnPool("max_deterministic", 2)(x, [2, 2], [1, 1], [0, 0])
    node = out.owner
    grad = node.op.pullback(node.inputs, node.outputs, node.outputs)[0]
    found = [n.op for n in pytensor.graph.traversal.io_toposort([x], [grad])]
    assert GpuDnnPoolGrad("max", 2, deterministic=True) in found
    assert GpuPool(2, "max_deterministic", True) == GpuPool(2, "max", True)


# -- with one ----------------------------------------------------------------------------


def graph(entry: str, ndim: int, dtype: str) -> tuple[list, dict[tuple, list]]:
    """Return the inputs, and by mode and ignore_border the pooled image and the gradient."""
    ws, stride, pad = vectors = [pt.ivector(name) for name in VECTORS]
    shape = (None,) * (ndim + 2)
    x, gz, gz_part = (GpuArrayType(dtype, shape)(name) for name in ("x", "gz", "gz_part"))
    pooled: dict[tuple, Any] = {}
    for mode in MODES:
        if entry == "dnn":
            pooled[mode, True] = dnn.dnn_pool(x, ws, stride, mode, pad)
            continue
        pool = nnet.pool_2d if ndim == 2 else nnet.pool_3d
        pooled[mode, True] = pool(x, ws, True, stride, pad, mode)
        pooled[mode, False] = pool(x, ws, False, stride, (0,) * ndim, mode)
    results = {}
    for key, out in pooled.items():
        top = gz if key[1] else gz_part
        cost = (pt.as_tensor_variable(out) * pt.as_tensor_variable(top)).sum()
        results[key] = [out, pytensor.grad(cost, x)]
    return [x, gz, gz_part, *vectors], results


def compiled(entry: str, ndim: int, dtype: str) -> tuple[Any, list[tuple]]:
    inputs, results = graph(entry, ndim, dtype)
    outputs = [output for pair in results.values() for output in pair]
    return pytensor.function(inputs, outputs, mode=MODE, on_unused_input="ignore"), list(results)


ENTRIES = [
    ("nnet", 2, "float32"),
    ("nnet", 3, "float64"),
    ("dnn", 2, "float16"),
    ("dnn", 3, "float32"),
]


@pytest.mark.needs("cudnn")
@pytest.mark.parametrize(("entry", "ndim", "dtype"), ENTRIES)
def test_graphs(entry, ndim, dtype):
    """Everything runs on the device, except that windows are read on the host."""
    with pytensor.config.change_flags(dnn__enabled="no_check"):
        f, keys = compiled(entry, ndim, dtype)
    ops = [node.op for node in f.maker.fgraph.apply_nodes]
    kinds = {type(op) for op in ops}
    assert {GpuDnnPool, GpuDnnPoolGrad} <= kinds
    assert not {k for k in kinds if k.__module__.startswith(("dnnops.nnet", "dnnops.cpu"))}
    assert ({GpuPool, GpuPoolGrad} <= kinds) == (entry == "nnet")
    assert GpuDnnPoolGrad("max", ndim, deterministic=True) in ops
    assert GpuDnnPoolGrad("max", ndim, deterministic=False) in ops
    assert len(keys) == (2 if entry == "nnet" else 1) * len(MODES)


def expected(case: PoolCase, x: np.ndarray, gz: np.ndarray) -> list[np.ndarray]:
    mode = "max" if case.mode == "max_deterministic" else case.mode
    out = run_op(Pool(case.ndim, mode, case.ignore_border), x, *case.vectors)
    if mode == "max":
        op = MaxPoolGrad(case.ndim, case.ignore_border)
        return [out, run_op(op, x, out, gz, *case.vectors)]
    op = AveragePoolGrad(case.ndim, mode, case.ignore_border)
    return [out, run_op(op, x, gz, *case.vectors)]


@pytest.mark.gpu
@pytest.mark.parametrize(("entry", "ndim", "dtype"), ENTRIES)
def test_one_function_for_many_windows(entry, ndim, dtype):
    f, keys = compiled(entry, ndim, dtype)

    def run(x, gz, gz_part, vectors):
        given = (on_gpu(a, dtype) for a in (x, gz, gz_part))
        return f(*given, *(np.array(v, "int32") for v in vectors))

    rng = np.random.default_rng([SEED, ndim])
    for number in range(60):
        window = rng.integers(1, 5, ndim)
        sizes = {
            "img_shape": (
                *map(int, rng.integers(1, 4, 2)),
                *map(int, window + rng.integers(0, 6, ndim)),
            ),
            "ws": tuple(map(int, window)),
            "stride": tuple(map(int, rng.integers(1, 5, ndim))),
        }
        pad = tuple(map(int, rng.integers(0, window)))
        whole = PoolCase(**sizes, pad=pad, mode="max", ignore_border=True, seed=number)
        part = PoolCase(**sizes, pad=(0,) * ndim, mode="max", ignore_border=False, seed=number)
        x, gz, _ = (rounded(a, dtype) for a in whole.arrays("float64"))
        gz_part = rounded(part.arrays("float64")[1], dtype)
        found = iter(run(x, gz, gz_part, (whole.ws, whole.stride, whole.pad)))
        for mode, ignore_border in keys:
            same, top = (whole, gz) if ignore_border else (part, gz_part)
            case = PoolCase(
                **sizes, pad=same.pad, mode=mode, ignore_border=ignore_border, seed=number
            )
            for what, reference in zip(("pooled", "gradient"), expected(case, x, top), strict=True):
                result = next(found)
                assert tuple(result.shape) == reference.shape, (what, case)
                result = on_gpu(result, dtype) if isinstance(result, np.ndarray) else result
                try:
                    check(result, reference, dtype)
                except AssertionError as error:
                    raise AssertionError(
                        f"{entry}, {what}, {dtype}, configuration {number} of seed {SEED}: {case}: "
                        f"{error}"
                    ) from error
    ones = np.ones((1, 1, *(6,) * ndim))
    for windows, message in WRONG:
        padded = [(*v, *fill) for v, fill in zip(windows, ((2,), (1,), (0,)), strict=True)]
        vectors = padded if ndim == 3 else windows
        with pytest.raises(DnnValueError, match=f"{message}|windows don't fit"):
            run(ones, ones, ones, vectors)
    # A failed call does not change the function.
    run(x, gz, gz_part, (whole.ws, whole.stride, whole.pad))


def deterministic_gradient(ndim: int, dtype: str, x: np.ndarray, gz: np.ndarray) -> Any:
    """Return a function that computes the gradient of maxima over windows that overlap much."""
    vectors = [np.array([n] * ndim) for n in (5, 1, 2)]
    given, top = on_gpu(x, dtype), on_gpu(gz, dtype)
    pooled = apply_op(GpuDnnPool("max_deterministic", ndim), given, *vectors)
    op = GpuDnnPoolGrad("max_deterministic", ndim)
    return lambda: host(apply_op(op, given, pooled, top, *vectors))


overlapping = pytest.mark.parametrize("ndim", [1, 2, 3])
every_dtype = pytest.mark.parametrize("dtype", DTYPES)


@pytest.mark.gpu
@overlapping
@every_dtype
def test_max_deterministic_repeats_its_bits(dtype, ndim):
    """Sums in another order would have other bits."""
    rng = np.random.default_rng(ndim)
    shape = (4, 8, *(18,) * ndim)
    x, gz = rng.standard_normal(shape), rng.standard_normal(shape)
    gradient = deterministic_gradient(ndim, dtype, x, gz)
    first = gradient()
    assert first.any()
    for _ in range(5):
        np.testing.assert_array_equal(gradient(), first, f"{ndim} spatial axes, {dtype}")


@pytest.mark.gpu
@overlapping
@every_dtype
def test_max_deterministic_with_ties(dtype, ndim):
    """Sums of small integers are exact in every dtype, so only the choice of the pixel matters."""
    rng = np.random.default_rng(ndim)
    shape = (2, 3, *(11,) * ndim)
    x = rng.integers(-4, 5, shape).astype("float64")
    gz = rng.integers(-1, 2, shape).astype("float64")
    vectors = [np.array([n] * ndim) for n in (5, 1, 2)]
    out = run_op(Pool(ndim, "max", True), x, *vectors)
    reference = run_op(MaxPoolGrad(ndim, True), x, out, gz, *vectors)
    found = deterministic_gradient(ndim, dtype, x, gz)()
    np.testing.assert_array_equal(found, reference, f"{ndim} spatial axes, {dtype}")

"""Spatial transformers on a GPU: against the float64 oracle."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.gradient import disconnected_type
from pytensor.graph.traversal import io_toposort

from dnnops import dnn, nnet
from dnnops.dtypes import DTYPE_CODES, numpy_dtype
from dnnops.errors import DnnNotSupportedError, DnnTypeError, DnnValueError
from dnnops.gpu.kernels import kernel_source
from dnnops.gpu.spatial_transformer import (
    GpuDnnTransformerGradI,
    GpuDnnTransformerGradT,
    GpuDnnTransformerGrid,
    GpuDnnTransformerSampler,
    GpuTransformerGradI,
    GpuTransformerGradT,
    GpuTransformerGrid,
    GpuTransformerSampler,
)
from dnnops.gpuarray.type import GpuArrayType
from dnnops.nnet.resample.spatial_transformer import (
    SpatialTransformerGrid,
    SpatialTransformerGridGrad,
    SpatialTransformerSampler,
    SpatialTransformerSamplerGrad,
)
from tests.emulation.host_ops import HostOp
from tests.emulation.nvrtc import compile_cuda
from tests.gpu.calls import call, device_tensor, shape_of
from tests.gpu.compiled import check_module
from tests.gpu.device import DTYPES, apply_all, host, on_gpu, poison, restrided, rounded
from tests.nnet.loss.test_ctc import run
from tests.nnet.resample.spatial_transformer_cases import Case, cases
from tests.oracle import RELATIVE_ERROR, fuzz

CUDNN_OPS = (
    GpuDnnTransformerGrid,
    GpuDnnTransformerGradT,
    GpuDnnTransformerSampler,
    GpuDnnTransformerGradI,
)
KERNEL_OPS = (
    GpuTransformerGrid,
    GpuTransformerGradT,
    GpuTransformerSampler,
    GpuTransformerGradI,
)


def compare(out, expected, dtype, what, scale=None):
    """Compare a result with the oracle's; NaNs must be at the same places."""
    out, expected = (np.asarray(a).astype("float64") for a in (out, expected))
    assert out.shape == expected.shape, what
    np.testing.assert_array_equal(np.isnan(out), np.isnan(expected), err_msg=what)
    finite = np.isfinite(expected)
    scale = np.linalg.norm(expected[finite]) if scale is None else scale
    difference = out[finite] - expected[finite]
    error, worst = np.linalg.norm(difference), np.max(np.abs(difference), initial=0)
    assert error <= RELATIVE_ERROR[dtype] * scale, (
        f"{what}: error {error:.3g}, norm {scale:.3g}, largest difference {worst:.3g}\n"
        f"out {out.ravel()[:40]}\nexpected {expected.ravel()[:40]}"
    )
    np.testing.assert_array_equal(out[~finite], expected[~finite], err_msg=what)


def oracle(dtype, theta, out_shape, img, grid, gout):
    """Return operands that the dtype can represent, and the results of the four Ops."""
    theta, img, grid, gout = (rounded(a, dtype) for a in (theta, img, grid, gout))
    sizes = np.array(out_shape)
    return [
        ((theta, sizes), run(SpatialTransformerGrid(), theta, sizes)),
        ((grid,), run(SpatialTransformerGridGrad(), grid)),
        ((img, grid), run(SpatialTransformerSampler(), img, grid)),
        ((img, grid, gout), run(SpatialTransformerSamplerGrad(), img, grid, gout)),
    ]


def of_case(case: Case, dtype: str):
    return oracle(dtype, case.theta(), case.out_shape, *case.arrays())


# -- without a GPU -------------------------------------------------------------------------


KERNELS = (
    *("make_grid", "grid_gradient", "take_samples", "image_gradient", "image_gradient_in_order"),
    *("round_gradient", "points_gradient"),
)


@pytest.fixture(scope="module")
def on_host(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sampler")
    return HostOp(folder, "spatial_transformer", "sampler", "SamplerParams", KERNELS, DTYPES)


def check_op(run_op, op, dtype, arrays, expected, what):
    """Run an Op with ``run_op(op, arrays)``."""
    found = run_op(op, arrays)
    for index, (out, ref) in enumerate(zip(found, expected, strict=True)):
        # Sums of the gradient with respect to the grid cancel.
        scale = 2 * np.linalg.norm(arrays[0]) if type(op) in (KERNEL_OPS[1], CUDNN_OPS[1]) else None
        compare(out, ref, dtype, f"{op} output {index} {dtype} {what}", scale)


def check_host(on_host, dtype, results, what, ops=KERNEL_OPS):
    def run_op(op, arrays):
        return on_host.run(
            op, *(a if a.dtype == "int64" else a.astype(numpy_dtype(dtype)) for a in arrays)
        )

    for cls, (arrays, expected) in zip(ops, results, strict=True):
        for op in (cls(True), cls(False)) if cls is GpuTransformerGradI else (cls(),):
            check_op(run_op, op, dtype, arrays, expected, what)


@pytest.mark.needs("cudnn")
@pytest.mark.parametrize("dtype", DTYPES)
@fuzz(max_examples=30, case=cases(max_channels=9, empty=True))
def test_kernels_on_the_host(on_host, dtype, case):
    check_host(on_host, dtype, of_case(case, dtype), str(case))


def special_case():
    """Pixels and points that are infinite or NaN, and points at pixel centers."""
    rng = np.random.default_rng(0)
    img, gout = rng.standard_normal((2, 2, 4, 5)), rng.standard_normal((2, 2, 4, 5))
    img[0, 0, 1, 2], img[0, 1, 2, 2], img[1, 0, 0, 0] = np.inf, np.nan, -np.inf
    theta = np.array([[[1.0, 0, 0], [0, 1, 0]], [[1.25, 0, 0.5], [0, 0.75, 0]]])
    grid = run(SpatialTransformerGrid(), theta, np.array([4, 5]))[0]
    grid[0, 3, 0, 0], grid[0, 3, 1, 1], grid[1, 3, 2, 0] = np.nan, np.inf, -1e30
    return theta, (4, 5), img, grid, gout


def special_results(dtype):
    """Test the sampler and its gradients; for gradients, only points are infinite or NaN."""
    theta, sizes, img, grid, gout = special_case()
    finite = np.where(np.isfinite(img), img, 1)
    return [
        oracle(dtype, theta, sizes, img, grid, gout)[2],
        oracle(dtype, theta, sizes, finite, grid, gout)[3],
    ]


@pytest.mark.needs("cudnn")
@pytest.mark.filterwarnings("ignore:invalid value")
def test_special_values_on_the_host(on_host):
    check_host(on_host, "float64", special_results("float64"), "special", KERNEL_OPS[2:])


@pytest.mark.needs("nvrtc")
@pytest.mark.parametrize("dtype", DTYPES)
def test_kernels_compile(dtype):
    compile_cuda(kernel_source("sampler"), f"-DDTYPE={DTYPE_CODES[dtype]}")


def device_arrays(count, dtype="float32", ndim=4):
    return [GpuArrayType(dtype, (None,) * ndim)() for _ in range(count)]


@pytest.mark.needs("cudnn")
@pytest.mark.parametrize("kind", range(4))
def test_c_module(kind):
    (theta,) = device_arrays(1, ndim=3)
    inputs = ((theta, pt.lvector()), device_arrays(1), device_arrays(2), device_arrays(3))[kind]
    check_module(CUDNN_OPS[kind]().make_node(*inputs).outputs[0])
    if kind == 3:
        check_module(GpuTransformerGradI(True).make_node(*inputs).outputs[1])


@pytest.mark.needs("cudnn")
@pytest.mark.parametrize("ops", [CUDNN_OPS, KERNEL_OPS], ids=["cudnn", "kernels"])
@fuzz(max_examples=20, case=cases(empty=True))
def test_shapes(ops, case):
    for op, (arrays, expected) in zip(ops, of_case(case, "float64"), strict=True):
        inputs = [a if a.dtype == "int64" else device_tensor(a.shape) for a in arrays]
        found = call(
            "dnnops_cudnn_spatial_transformer_shape",
            op(),
            inputs,
            [device_tensor(()) for _ in expected],
        )
        assert [shape_of(z) for z in found] == [z.shape for z in expected]


@pytest.mark.parametrize("dims", [(5, 3, 4, 2), [4, 2], np.array([5, 3, 4, 2])])
def test_dimensions_as_in_theano(dims):
    (theta,) = device_arrays(1, ndim=3)
    assert GpuDnnTransformerGrid()(theta, dims).type.shape == (None, 4, 2, 2)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda x, t: dnn.dnn_spatialtf(x, x), DnnTypeError, "theta must have 3 dimensions"),
        (lambda x, t: dnn.dnn_spatialtf(t, t), DnnTypeError, "img must have 4 dimensions"),
        (
            lambda x, t: dnn.dnn_spatialtf(x, t, scale_width=0),
            DnnValueError,
            "dnn_spatialtf: scale_width must be more than 0, got 0",
        ),
        (
            lambda x, t: dnn.dnn_spatialtf(x, device_arrays(1, "float16", 3)[0]),
            DnnTypeError,
            "must have one dtype, got img float32, theta float16",
        ),
        (
            lambda x, t: GpuDnnTransformerGrid()(t, [0, 3]),
            DnnValueError,
            "the output's sizes must be between 1 and",
        ),
        (
            lambda x, t: GpuDnnTransformerGrid()(GpuArrayType("float32", (2, 3, 3))(), [4, 3]),
            DnnValueError,
            r"theta must have shape \(batch, 2, 3\), got \(2, 3, 3\)",
        ),
        (
            lambda x, t: GpuDnnTransformerSampler()(x, GpuArrayType("float32", (2, 3, 3, 3))()),
            DnnValueError,
            r"grid must have shape \(batch, rows, columns, 2\)",
        ),
        (
            lambda x, t: GpuDnnTransformerGradI()(*device_arrays(3, "float16")),
            DnnTypeError,
            "GpuDnnTransformerGradI: expected float32 or float64, got float16",
        ),
    ],
)
def test_bad_arguments(make, error, words):
    (x,), (theta,) = device_arrays(1), device_arrays(1, ndim=3)
    with pytest.raises(error, match=words):
        make(x, theta)


@pytest.mark.needs("cudnn")
@pytest.mark.parametrize(
    ("op", "shapes", "words"),
    [
        (GpuDnnTransformerSampler, [(2, 3, 4, 5), (3, 4, 4, 2)], "don't fit together"),
        (GpuDnnTransformerSampler, [(2, 3, 0, 5), (2, 4, 4, 2)], "at least one pixel"),
        (GpuDnnTransformerSampler, [(2, 3, 4, 5), (2, 4, 4, 3)], r"\(batch, rows, columns, 2\)"),
        (
            GpuDnnTransformerGradI,
            [(2, 3, 4, 5), (2, 4, 4, 2), (2, 3, 4, 5)],
            "don't fit together",
        ),
    ],
)
def test_bad_shapes(op, shapes, words):
    with pytest.raises(DnnValueError, match=f"{op.__name__}: .*{words}"):
        call("dnnops_cudnn_spatial_transformer_shape", op(), [device_tensor(s) for s in shapes])


@pytest.mark.needs("cudnn")
def test_more_channels_than_cudnn_takes():
    shapes = [(2, 1025, 4, 5), (2, 4, 4, 2), (2, 1025, 4, 4)]
    words = "GpuDnnTransformerGradI: .*at most 1024 channels, got 1025; dnnops.nnet.spatial"
    outputs = [device_tensor(()), device_tensor(())]
    arrays = [device_tensor(s) for s in shapes]
    with pytest.raises(DnnNotSupportedError, match=words):
        call("dnnops_cudnn_spatial_transformer_shape", GpuDnnTransformerGradI(), arrays, outputs)
    call("dnnops_cudnn_spatial_transformer_shape", GpuTransformerGradI(), arrays, outputs)
    img, theta = GpuArrayType("float32", (None, 1025, None, None))(), device_arrays(1, ndim=3)[0]
    out = pt.as_tensor_variable(dnn.dnn_spatialtf(img, theta))
    with pytest.raises(DnnNotSupportedError, match=words):
        pytensor.grad(out.sum(), theta)
    GpuTransformerGradI()(*(GpuArrayType("float32", s)() for s in shapes))


@pytest.mark.parametrize("ops", [CUDNN_OPS, KERNEL_OPS], ids=["cudnn", "kernels"])
def test_derivatives_of_the_grid_are_on_its_points(ops):
    """The points of cuDNN's Ops are cuDNN's, which place a single row elsewhere."""
    grid, gradient = ops[:2]
    (theta, direction), (dgrid,) = device_arrays(2, ndim=3), device_arrays(1)
    node = grid().make_node(theta, [1, 3])
    tangents = [direction, disconnected_type()]
    (along,) = node.op.pushforward(node.inputs, node.outputs, tangents)
    node = gradient().make_node(dgrid)
    (along_gradient,) = node.op.pushforward(node.inputs, node.outputs, [dgrid])
    back = pytensor.grad((pt.as_tensor_variable(node.outputs[0]) ** 2).sum(), dgrid)
    assert [type(z.owner.op) for z in (along, along_gradient)] == [grid, gradient]
    found = {type(n.op) for n in io_toposort([dgrid], [back])}
    assert {grid, gradient} <= found
    assert not {SpatialTransformerGrid, SpatialTransformerGridGrad} & found


# -- on a GPU ------------------------------------------------------------------------------


def check_gpu(ops, dtype, results, what, seed=0):
    rng = np.random.default_rng(seed)

    def operand(a):
        if a.dtype == "int64":
            return a
        return restrided(rng, on_gpu(a, dtype)) if a.size else on_gpu(a, dtype)

    def run_op(op, arrays):
        operands = [operand(a) for a in arrays]
        poison()
        return [host(out) for out in apply_all(op, *operands)]

    for cls, (arrays, expected) in zip(ops, results, strict=True):
        op = cls(bool(seed % 2)) if cls is GpuTransformerGradI else cls()
        check_op(run_op, op, dtype, arrays, expected, what)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@fuzz(max_examples=90, case=cases(max_batch=6, max_channels=9, max_size=20, empty=True))
def test_kernels(dtype, case):
    check_gpu(KERNEL_OPS, dtype, of_case(case, dtype), str(case), case.seed)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("kind", range(3), ids=["grid", "theta", "samples"])
@fuzz(max_examples=170, case=cases(max_batch=9, max_channels=9, max_size=24))
def test_cudnn(kind, dtype, case):
    case = without_single_rows(case)
    check_gpu(CUDNN_OPS[kind : kind + 1], dtype, of_case(case, dtype)[kind:][:1], str(case))


def without_single_rows(case: Case) -> Case:
    batch, channels, *sizes = case.img_shape
    img_shape = (batch, channels, *(max(2, n) for n in sizes))
    return Case(img_shape, tuple(max(2, n) for n in case.out_shape), case.seed)


@cache
def sampler_gradients(dtype: str):
    """Return a function that computes the gradients of cuDNN's sampler."""
    img, grid, dy = device_arrays(3, dtype)
    out = GpuDnnTransformerSampler()(img, grid)
    gradients = pytensor.grad(None, [img, grid], known_grads={out: dy})
    return pytensor.function([img, grid, dy], gradients, mode="CVM")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@fuzz(max_examples=170, case=cases(max_batch=9, max_channels=9, max_size=24))
def test_cudnn_gradients(dtype, case):
    (arrays, expected) = of_case(without_single_rows(case), dtype)[3]
    rng = np.random.default_rng(case.seed)
    poison()
    found = sampler_gradients(dtype)(*(restrided(rng, on_gpu(a, dtype)) for a in arrays))
    for name, out, reference in zip(("img", "grid"), found, expected, strict=True):
        assert out.dtype == dtype
        compare(host(out), reference, dtype, f"gradient with respect to {name}, {dtype} {case}")


def single_row_results(case: Case):
    """cuDNN places a single row or column at -1, and the oracle places it at 0."""
    rows, columns = case.out_shape
    single = [axis for axis, n in enumerate((columns, rows)) if n == 1]
    theta = rounded(case.theta(), "float32")
    grid, by_theta, *rest = oracle("float32", theta, case.out_shape, *case.arrays())
    moved = theta.copy()
    moved[..., 2] -= theta[..., single].sum(-1)
    grid = ((theta, grid[0][1]), run(SpatialTransformerGrid(), moved, grid[0][1]))
    by_theta[1][0][..., single] = -by_theta[1][0][..., 2:]
    return [grid, by_theta, *rest]


@pytest.mark.gpu
@pytest.mark.parametrize("img", [(4, 5), (1, 5), (4, 1)])
@pytest.mark.parametrize("top", [(1, 3), (3, 1), (1, 1), (3, 4)])
def test_cudnn_single_rows(img, top):
    case = Case((2, 3, *img), top, 1)
    check_gpu(CUDNN_OPS, "float32", single_row_results(case), str(case))


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("ops", "channels"),
    [(CUDNN_OPS, 1024), (CUDNN_OPS[:3], 1025), (KERNEL_OPS, 3), (KERNEL_OPS, 1025)],
)
def test_sizes(ops, channels):
    case = Case((2, channels, 40, 50), (64, 33), 5)
    check_gpu(ops, "float32", of_case(case, "float32")[: len(ops)], str(case))


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_special_values(dtype):
    for seed in range(2):  # with atomics, and in order
        check_gpu(KERNEL_OPS[2:], dtype, special_results(dtype), "special", seed)


@pytest.mark.gpu
def test_the_same_bits():
    case = Case((2, 3, 30, 30), (300, 300), 7)
    img, grid, gout = (on_gpu(a, "float32") for a in case.arrays())
    op = GpuTransformerGradI(deterministic=True)
    first, second = (apply_all(op, img, grid, gout) for _ in range(2))
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a.get(), b.get())


@pytest.mark.gpu
def test_compiled_functions():
    """Run the abstract Ops in a GPU mode, and ``dnn_spatialtf``, with gradients."""
    x, theta = GpuArrayType("float32", (None,) * 4)(), GpuArrayType("float32", (None, 2, 3))()
    outputs = []
    for transform, a, b in (
        (nnet.spatial_transformer, pt.as_tensor_variable(x), pt.as_tensor_variable(theta)),
        (dnn.dnn_spatialtf, x, theta),
    ):
        out = pt.as_tensor_variable(transform(a, b, 1.5, 0.75))
        outputs += [out, *pytensor.grad((out**2).sum(), [x, theta])]
    f = pytensor.function(
        [x, theta], outputs, mode=pytensor.compile.get_mode("CVM").including("gpu")
    )
    names = {type(node.op).__name__ for node in f.maker.fgraph.apply_nodes}
    assert {op.__name__ for op in (*CUDNN_OPS, *KERNEL_OPS)} <= names, names
    assert not any("OneDnn" in name for name in names), names
    wide_x, wide_theta = pt.dtensor4(), pt.dtensor3()
    out = nnet.spatial_transformer(wide_x, wide_theta, 1.5, 0.75)
    reference = pytensor.function(
        [wide_x, wide_theta],
        [out, *pytensor.grad((out**2).sum(), [wide_x, wide_theta])],
        mode="FAST_COMPILE",
    )
    for seed, shape in enumerate([(2, 3, 8, 9), (1, 1, 12, 7), (2, 3, 8, 9)]):
        case = Case(shape, (1, 1), seed)
        img, transformation = case.arrays("float32")[0], case.theta("float32")
        expected = reference(img, transformation)
        arrays = on_gpu(img, "float32"), on_gpu(transformation, "float32")
        for i, result in enumerate(f(*arrays)):
            value = result.get() if hasattr(result, "get") else result
            ref = expected[i % 3]
            error = np.linalg.norm(value - ref) / np.linalg.norm(ref)
            # float32 rounding may move points to the other side of a pixel's center.
            assert error < (1e-5 if i % 3 == 0 else 1e-3), f"output {i} of {case}: {error:.3g}"

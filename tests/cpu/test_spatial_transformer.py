"""The spatial transformer on the CPU against the abstract Ops' NumPy in float64."""

from __future__ import annotations

import warnings
from typing import Any
from unittest import mock

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode

from dnnops.cpu.spatial_transformer import (
    OneDnnSpatialTransformerGrid,
    OneDnnSpatialTransformerGridGrad,
    OneDnnSpatialTransformerSampler,
    OneDnnSpatialTransformerSamplerGradGrid,
    OneDnnSpatialTransformerSamplerGradImage,
)
from dnnops.errors import DnnValueError
from dnnops.nnet import (
    SpatialTransformerGrid,
    SpatialTransformerGridGrad,
    SpatialTransformerSampler,
    SpatialTransformerSamplerGrad,
    affine_grid,
    grid_sample,
    spatial_transformer,
)
from dnnops.runtime.build import ONEDNN
from tests.cpu.conv.test_conv import in_double, restrided
from tests.linkers import LINKERS
from tests.nnet.resample.spatial_transformer_cases import Case, cases
from tests.oracle import PERFORM_MODE, assert_close, fuzz, run_op

DTYPES = ("float32", "float64")


def poisoned(shape: Any, dtype: Any = float) -> np.ndarray:
    return np.full(shape, np.nan, dtype)


def run_poisoned(op: Any, *arrays: np.ndarray) -> np.ndarray:
    """Run an Op whose output array is filled with NaN."""
    with mock.patch.object(np, "empty", poisoned):
        return run_op(op, *arrays)


def run_grad(*arrays: np.ndarray) -> list[np.ndarray]:
    """Run the abstract gradient of the sampler."""
    op = SpatialTransformerSamplerGrad()
    storage: list[list] = [[None], [None]]
    op.perform(op.make_node(*arrays), list(arrays), storage)
    return [out for (out,) in storage]


def run_all(img: np.ndarray, grid: np.ndarray, gout: np.ndarray) -> list[np.ndarray]:
    """Sample, and run both gradients."""
    return [
        run_poisoned(OneDnnSpatialTransformerSampler(), img, grid),
        run_poisoned(OneDnnSpatialTransformerSamplerGradImage(), img, grid, gout),
        run_poisoned(OneDnnSpatialTransformerSamplerGradGrid(), img, grid, gout),
    ]


def expected_of(*arrays: np.ndarray) -> list[np.ndarray]:
    wide = in_double(arrays)
    return [run_op(SpatialTransformerSampler(), *wide[:2]), *run_grad(*wide)]


def channels_last(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)


def check(arrays: list[np.ndarray], laid: list[np.ndarray]) -> None:
    for result, reference in zip(run_all(*laid), expected_of(*arrays), strict=True):
        assert result.flags.c_contiguous
        assert_close(result, reference, allow_zero=True)


# -- values ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@fuzz(150, case=cases(max_batch=5, max_channels=20, max_size=9, empty=True))
def test_sampler(dtype, case):
    arrays = case.arrays(dtype)
    rng = np.random.default_rng(case.seed)
    check(arrays, [restrided(rng, a) for a in arrays])


@pytest.mark.parametrize("dtype", DTYPES)
@fuzz(80, case=cases(max_batch=5, max_size=9, empty=True))
def test_grid(dtype, case):
    theta, shape = case.theta(dtype), np.array(case.out_shape)
    rng = np.random.default_rng(case.seed)
    grid = run_poisoned(OneDnnSpatialTransformerGrid(), restrided(rng, theta), shape)
    expected = run_op(SpatialTransformerGrid(), *in_double((theta,)), shape)
    assert_close(grid, expected, allow_zero=True)
    top = case.grid(dtype)
    result = run_poisoned(OneDnnSpatialTransformerGridGrad(), restrided(rng, top))
    expected = run_op(SpatialTransformerGridGrad(), *in_double((top,)))
    # Sums of few terms can be near zero.
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5 * np.abs(top).sum())


@pytest.mark.parametrize("layout", [np.ascontiguousarray, channels_last])
@pytest.mark.parametrize("channels", [1, 3, 4, 7, 8, 33])
def test_sizes_for_several_threads(channels, layout):
    for batch, size in [(1, 60), (3, 41), (8, 30)]:
        case = Case((batch, channels, size, size + 3), (size + 1, size - 2), seed=batch)
        img, grid, gout = case.arrays("float32")
        check([img, grid, gout], [layout(img), grid, layout(gout)])


def test_wide_grids():
    theta = np.random.default_rng(1).standard_normal((3, 2, 3)).astype("float32")
    shape = np.array([150, 200])
    grid = run_poisoned(OneDnnSpatialTransformerGrid(), theta, shape)
    assert_close(grid, run_op(SpatialTransformerGrid(), *in_double((theta,)), shape))
    result = run_poisoned(OneDnnSpatialTransformerGridGrad(), grid)
    assert_close(result, run_op(SpatialTransformerGridGrad(), *in_double((grid,))))


def test_large_images_keep_the_digits_of_their_points():
    """In float32, four digits of a point's distance from its pixel would be left."""
    img = np.random.default_rng(2).standard_normal((1, 1, 3, 20000)).astype("float32")
    grid = np.random.default_rng(3).uniform(-1, 1, (1, 40, 50, 2)).astype("float32")
    gout = np.random.default_rng(4).standard_normal((1, 1, 40, 50)).astype("float32")
    for result, reference in zip(
        run_all(img, grid, gout), expected_of(img, grid, gout), strict=True
    ):
        assert_close(result, reference, bound=1e-6, allow_zero=True)


@pytest.mark.parametrize("channels", [1, 5, 12])
def test_exact(channels):
    """Points at and halfway between pixels, and small integers, so that nothing is rounded."""
    rng = np.random.default_rng(channels)
    img = rng.integers(-8, 9, (3, channels, 9, 17)).astype("float32")
    gout = rng.integers(-8, 9, (3, channels, 20, 30)).astype("float32")
    position = [rng.integers(-4, 2 * n + 4, (3, 20, 30)) / 2 for n in (17, 9)]
    grid = np.stack([position[0] / 8 - 1, position[1] / 4 - 1], axis=-1).astype("float32")
    for laid in (img, channels_last(img)):
        results = run_all(laid, grid, gout)
        for result, reference in zip(results, expected_of(img, grid, gout), strict=True):
            np.testing.assert_array_equal(result, reference)


@pytest.mark.parametrize("channels", [7, 11])
def test_threads_do_not_change_a_bit(channels):
    before = ONEDNN.library.omp_get_max_threads()
    results = []
    case = Case((3, channels, 40, 50), (45, 37), seed=5)
    try:
        for threads in (1, 2, 3, 5):
            ONEDNN.library.omp_set_num_threads(threads)
            for layout in (np.ascontiguousarray, channels_last):
                img, grid, gout = case.arrays("float32")
                found = run_all(layout(img), grid, gout)
                grid_grad = run_poisoned(OneDnnSpatialTransformerGridGrad(), grid)
                results.append((layout, [*found, grid_grad]))
    finally:
        ONEDNN.library.omp_set_num_threads(before)
    for layout, found in results:
        for result, same in zip(found, dict(results)[layout], strict=True):
            np.testing.assert_array_equal(result, same)


# -- special values ----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("channels", [2, 9])
@pytest.mark.parametrize("size", [(1, 1), (1, 6), (5, 6)])
def test_points_that_are_no_numbers_or_far_away(dtype, channels, size):
    rng = np.random.default_rng(6)
    huge = [np.nan, np.inf, -np.inf, 1e38, -1e38, 2.0**31, -(2.0**31), 2.0**63, 4e9, 0.0, -1.0, 1]
    if dtype == "float64":
        huge += [1e300, -1e308]
    grid = rng.choice(huge, (2, 40, 50, 2)).astype(dtype)
    img = rng.standard_normal((2, channels, *size)).astype(dtype)
    gout = rng.standard_normal((2, channels, 40, 50)).astype(dtype)
    bound = {"float32": 1e-4, "float64": 1e-12}[dtype]
    for layout in (np.ascontiguousarray, channels_last):
        results = run_all(layout(img), grid, layout(gout))
        expected = expected_of(img, grid, gout)
        assert np.isnan(expected[0]).any()
        assert np.isfinite(expected[1]).all()
        for result, reference in zip(results, expected, strict=True):
            np.testing.assert_allclose(result, reference, rtol=bound, atol=bound)


@pytest.mark.parametrize("channels", [2, 9])
def test_pixels_that_are_no_numbers(channels):
    case = Case((2, channels, 5, 6), (8, 9), seed=7)
    img, grid, gout = case.arrays("float32")
    img[0, 1, 2, 3], img[1, 0, 0, 0], img[1, 1, 4, 5] = np.nan, np.inf, np.nan
    gout[0, 0, 4, 3] = np.inf
    grid[:, 4:6] = np.array([[-1, -1], [1, 1]], "float32")[:, None]  # the corners
    with np.errstate(invalid="ignore"):
        expected = expected_of(img, grid, gout)
        for layout in (np.ascontiguousarray, channels_last):
            for result, reference in zip(run_all(layout(img), grid, gout), expected, strict=True):
                assert not np.isfinite(reference).all()
                np.testing.assert_allclose(result, reference, rtol=1e-4, atol=1e-4)


def test_planes_past_32_bits():
    """Rows are far apart in memory, of which only a few pages are used."""
    try:
        memory = np.empty((2, 2**30), "float32")
    except MemoryError:
        pytest.skip("no 8 GiB of address space")
    rows = np.lib.stride_tricks.as_strided(memory, (1, 1, 3, 1), (8, 8, 2**32 - 64, 4))
    values = np.array([1.0, 2.0, 4.0], "float32")
    rows[0, 0, :2, 0] = values[:2]
    grid = np.array([[[[0, -1], [0, 0], [0, 1], [0, 0.5]]]], "float32")
    img, gout = rows[:, :, :2], np.ones((1, 1, 1, 4), "float32")
    for result, reference in zip(
        run_all(img, grid, gout), expected_of(img.copy(), grid, gout), strict=True
    ):
        np.testing.assert_array_equal(result, reference)


# -- in graphs ---------------------------------------------------------------------------


def ops_of(fn) -> list[str]:
    return sorted(type(node.op).__name__ for node in fn.maker.fgraph.apply_nodes)


def compile_quietly(inputs: Any, outputs: Any, mode: Any) -> Any:
    """Make PyTensor's warnings about object mode errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        return pytensor.function(inputs, outputs, mode=mode)


ALL = [
    "OneDnnSpatialTransformerGrid",
    "OneDnnSpatialTransformerGridGrad",
    "OneDnnSpatialTransformerSampler",
    "OneDnnSpatialTransformerSamplerGradGrid",
    "OneDnnSpatialTransformerSamplerGradImage",
]


@LINKERS
def test_transformer_and_gradients(mode):
    img, theta, gout = pt.ftensor4(), pt.ftensor3(), pt.ftensor4()
    out = spatial_transformer(img, theta, 0.7, 1.5)
    grads = pytensor.grad(None, [img, theta], known_grads={out: gout})
    fn = compile_quietly([img, theta, gout], [out, *grads], mode)
    assert [name for name in ops_of(fn) if "SpatialTransformer" in name] == ALL
    plain = pytensor.function([img, theta, gout], [out, *grads], mode=PERFORM_MODE)
    for seed in range(4):
        rng = np.random.default_rng(seed)
        shape = (2, 3, *rng.integers(2, 9, 2))
        scaled = (*shape[:2], int(np.ceil(shape[2] * 1.5)), int(np.ceil(shape[3] * 0.7)))
        case = Case(shape, scaled[2:], seed)
        x, _, top = case.arrays("float32")
        arrays = (restrided(rng, x), case.theta("float32"), restrided(rng, top))
        for result, reference in zip(fn(*arrays), plain(*arrays), strict=True):
            assert_close(result, reference, bound=2e-5, allow_zero=True)


@LINKERS
def test_a_gradient_that_nobody_uses_is_left_out(mode):
    img, theta = pt.ftensor4(), pt.ftensor3()
    loss = (spatial_transformer(img, theta) ** 2).sum()
    for wrt, absent in ((theta, "GradImage"), (img, "GradGrid")):
        fn = compile_quietly([img, theta], pytensor.grad(loss, wrt), mode)
        names = ops_of(fn)
        assert not any(name.endswith(absent) for name in names)
        assert any("SamplerGrad" in name for name in names)


def test_second_derivatives():
    img, grid = pt.dtensor4(), pt.dtensor4()
    loss = (grid_sample(img, grid) ** 3).sum()
    grads = pytensor.grad(loss, [img, grid])
    second = pytensor.grad(sum((g**2).sum() for g in grads), [img, grid])
    # Rewrite everything, but compile nothing, which would take long.
    fn = pytensor.function([img, grid], second, mode=Mode(linker="py", optimizer="fast_run"))
    assert any("OneDnnSpatialTransformerSamplerGrad" in name for name in ops_of(fn))
    plain = pytensor.function([img, grid], second, mode=PERFORM_MODE)
    arrays = Case((2, 3, 5, 6), (4, 7), seed=8).arrays()[:2]
    for result, reference in zip(fn(*arrays), plain(*arrays), strict=True):
        assert_close(result, reference, allow_zero=True, bound=1e-10)


def test_gradient_of_the_backend_ops():
    """A graph that contains the CPU Ops can be differentiated twice."""
    img, theta = pt.dtensor4(), pt.dtensor3()
    case = Case((2, 3, 5, 6), (4, 7), seed=9)
    results = []
    for grid_op, sampler in (
        (SpatialTransformerGrid(), SpatialTransformerSampler()),
        (OneDnnSpatialTransformerGrid(), OneDnnSpatialTransformerSampler()),
    ):
        grid = grid_op(theta, case.out_shape)
        grads = pytensor.grad((sampler(img, grid) ** 2).sum(), [img, theta])
        results += grads
    top = pt.dtensor4()
    for op, index in (
        (OneDnnSpatialTransformerSamplerGradImage(), 0),
        (OneDnnSpatialTransformerSamplerGradGrid(), 1),
    ):
        both = SpatialTransformerSamplerGrad().make_node(img, grid, top).outputs
        for out in (both[index], op(img, grid, top)):
            results.append(pytensor.grad((out**2).sum(), theta))
    fn = pytensor.function([img, theta, top], results, mode=PERFORM_MODE)
    x, _, gout = case.arrays()
    found = fn(x, case.theta(), gout)
    pairs = [(0, 2), (1, 3), (4, 5), (6, 7)]
    for one, other in pairs:
        assert_close(found[one], found[other], bound=1e-10)


def test_float16_is_computed_in_float32():
    img, theta = pt.tensor4(dtype="float16"), pt.tensor3(dtype="float16")
    out = spatial_transformer(img, theta)
    grads = pytensor.grad(out.sum(), [img, theta])
    fn = pytensor.function([img, theta], [out, *grads], mode="CVM")
    assert set(ALL) <= set(ops_of(fn))
    case = Case((2, 3, 9, 9), (9, 9), seed=10)
    arrays = case.arrays("float16")[0], case.theta("float16")
    results = fn(*arrays)
    assert {r.dtype.name for r in results} == {"float16"}
    wide = pytensor.function([img, theta], out, mode=PERFORM_MODE)(*arrays)
    assert_close(results[0], wide, bound=2e-2)


@pytest.mark.parametrize("mode", ["DNN", "ONEDNN"])
def test_other_modes(mode):
    img, theta = pt.ftensor4(), pt.ftensor3()
    fn = pytensor.function([img, theta], spatial_transformer(img, theta), mode=mode)
    assert "OneDnnSpatialTransformerSampler" in ops_of(fn)


def test_excluded():
    img, theta = pt.ftensor4(), pt.ftensor3()
    out = spatial_transformer(img, theta)
    mode = pytensor.compile.get_mode("CVM").excluding("onednn")
    fn = pytensor.function([img, theta], [out, pytensor.grad(out.sum(), img)], mode=mode)
    names = ops_of(fn)
    assert {"SpatialTransformerSampler", "SpatialTransformerSamplerGrad"} <= set(names)
    assert not any("OneDnn" in name for name in names)


# -- what cannot be computed -------------------------------------------------------------


@LINKERS
def test_operands_that_do_not_fit(mode):
    img, theta, shape, grid = pt.ftensor4(), pt.ftensor3(), pt.lvector(), pt.ftensor4()
    fn = pytensor.function(
        [img, theta, shape, grid], [affine_grid(theta, shape), grid_sample(img, grid)], mode=mode
    )
    x, t, g = (np.zeros(s, "float32") for s in ((2, 3, 4, 5), (2, 2, 3), (2, 6, 7, 2)))
    good = np.array([6, 7])
    assert [r.shape for r in fn(x, t, good, g)] == [(2, 6, 7, 2), (2, 3, 6, 7)]
    for bad, message in (
        ((x, t, np.array([6, 0]), g), r"sizes must be between 1 and \d+, got \(6, 0\)"),
        ((x, t, np.array([-1, 6]), g), r"got \(-1, 6\)"),
        ((x, t[:, :, :2], good, g), r"theta has to be float32\(\?, 2, 3\), got .*\(2, 2, 2\)"),
        ((x, t, good, g[..., :1]), r"the grid has to be float32\(2, \?, \?, 2\), got"),
        ((x, t, good, g[:1]), "the grid has to be"),
        ((x[:, :, :0], t, good, g), "the image has no pixels"),
    ):
        with pytest.raises(DnnValueError, match=message):
            fn(*bad)


def test_gradients_of_another_shape():
    img, grid, gout = pt.ftensor4(), pt.ftensor4(), pt.ftensor4()
    outputs = SpatialTransformerSamplerGrad().make_node(img, grid, gout).outputs
    x, g = np.zeros((2, 3, 4, 5), "float32"), np.zeros((2, 6, 7, 2), "float32")
    for output in outputs:
        fn = pytensor.function([img, grid, gout], output, mode="CVM", on_unused_input="ignore")
        with pytest.raises(DnnValueError, match="the output's gradient has to be"):
            fn(x, g, np.zeros((2, 3, 7, 6), "float32"))
    top = pt.ftensor4()
    out = SpatialTransformerGridGrad()(top)
    fn = pytensor.function([top], out, mode="CVM")
    with pytest.raises(DnnValueError, match="the grid's gradient has to be"):
        fn(x)

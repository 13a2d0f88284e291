"""Batch normalization on a GPU: against the abstract Ops in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import assume
from hypothesis import strategies as st

from dnnops import dnn
from dnnops.gpu.batchnorm import (
    GpuDnnBatchNorm,
    GpuDnnBatchNormGrad,
    GpuDnnBatchNormInference,
    parameter_dtype,
)
from dnnops.gpuarray.shared_variables import shared
from dnnops.gpuarray.transfer import as_gpuarray_variable
from dnnops.gpuarray.type import GpuArrayType
from dnnops.nnet import (
    BatchNormInference,
    BatchNormTrain,
    BatchNormTrainGrad,
    batch_normalization_test,
    batch_normalization_train,
)
from tests.gpu.device import (
    DTYPES,
    check,
    host,
    make_node,
    on_gpu,
    poison,
    restrided,
    rounded,
)
from tests.oracle import RELATIVE_ERROR, fuzz, repeat_command

pytestmark = pytest.mark.gpu


def reference_of(op: Any, *arrays: np.ndarray) -> list[np.ndarray]:
    """Return all results of an abstract Op's `perform`, in float64."""
    node = op.make_node(*arrays)
    storage: list[list[Any]] = [[None] for _ in node.outputs]
    op.perform(node, [np.asarray(a) for a in arrays], storage)
    return [cell[0] for cell in storage]


def results_of(op: Any, *operands: Any) -> list[Any]:
    """Return all results of an Op for device arrays and host scalars."""
    node, values = make_node(op, *operands)
    storage: list[list[Any]] = [[None] for _ in node.outputs]
    node.op.perform(node, values, storage)
    return [cell[0] for cell in storage]


def gpu_arrays(
    arrays: list[np.ndarray], dtype: str, count: int, memory_format: str = "contiguous"
) -> list[Any]:
    """Copy arrays to the device: the first ones in a dtype, the others in the parameters' dtype."""
    return [on_gpu(a, dtype, memory_format) for a in arrays[:count]] + [
        on_gpu(a, parameter_dtype(dtype)) for a in arrays[count:]
    ]


def compare(results: list[Any], expected: list[np.ndarray], dtype: str, words: str) -> None:
    for i, (result, reference) in enumerate(zip(results, expected, strict=True)):
        bound = RELATIVE_ERROR[dtype if i == 0 else parameter_dtype(dtype)]
        # A sum of numbers of both signs, such as a gradient, may be near zero.
        size = max(np.linalg.norm(reference), np.sqrt(reference.size))
        error = np.linalg.norm(host(result) - reference)
        assert error <= bound * size, (
            f"result {i} of {words}, strides {result.strides}: {error / size:.2g};"
            f" {repeat_command()}"
        )


def conditioning(terms: np.ndarray, axes: tuple[int, ...]) -> float:
    """Return how many times larger the terms are than their sums, by the norms of `compare`."""
    sums = terms.sum(axes)
    size = max(np.linalg.norm(sums), np.sqrt(sums.size))
    return float(np.linalg.norm(np.abs(terms).sum(axes)) / size)


#: A gradient with respect to a parameter is a sum of noise, which may be too close to zero for
#: float32. Sums of N such numbers have errors of 0.7e-7 to 1.6e-7 sqrt(N), and their absolute
#: values add up to N / 1.6: once, the sum of 72,000 numbers was 2.
MOST_CONDITIONING = 1000


@st.composite
def gpu_cases(draw):
    """Shape, axes, whether there are running averages, memory layout, and seed."""
    shape = draw(st.lists(st.integers(1, 9), min_size=1, max_size=5))
    first = draw(st.integers(0, len(shape)))
    last = draw(st.integers(first, len(shape)))
    if last - first == len(shape):
        last = first  # statistics over everything
    axes = tuple(i for i in range(len(shape)) if not first <= i < last)
    if len(shape) > 2 and draw(st.booleans()):
        axes = (0, *range(2, len(shape)))
    if len(shape) < 4:
        for i in range(min(2, len(shape))):
            shape[i] *= draw(st.sampled_from([1, 1, 8, 60]))
    layouts = [draw(st.sampled_from(["contiguous", "channels_last", "any"])) for _ in range(2)]
    return tuple(shape), axes, draw(st.booleans()), layouts, draw(st.integers(0, 2**32 - 1))


@pytest.mark.parametrize("dtype", DTYPES)
@fuzz(max_examples=85, case=gpu_cases())
def test_ops(dtype, case):
    """Training, gradient and inference, in place or not, for arrays in any layout."""
    shape, axes, running, layouts, seed = case
    rng = np.random.default_rng(seed)
    of = parameter_dtype(dtype)
    small = tuple(1 if i in axes else n for i, n in enumerate(shape))
    x, g = (rounded(rng.standard_normal(shape), dtype) for _ in range(2))
    scale, bias, mean = (rounded(rng.standard_normal(small), of) for _ in range(3))
    var = rounded(rng.uniform(0.5, 2, small), of)
    epsilon, factor = np.array(0.01), np.array(0.3)
    inplace = bool(rng.integers(2))

    def image(array: np.ndarray, layout: str) -> Any:
        if layout == "any" and array.ndim > 1:
            return restrided(rng, on_gpu(array, dtype))
        return on_gpu(array, dtype, layout)

    words = f"{dtype}, {shape}, axes {axes}, layouts {layouts}, in place: {inplace}"
    poison()
    averages = [factor, mean, var] if running else []
    reference = reference_of(BatchNormTrain(axes, running), x, scale, bias, epsilon, *averages)
    given = [image(x, layouts[0]), *gpu_arrays([scale, bias], dtype, 0), epsilon]
    if running:
        given += [factor, *gpu_arrays([mean, var], of, 2)]
    op = GpuDnnBatchNorm("spatial", running, inplace, inplace, inplace, axes=axes)
    results = results_of(op, *given)
    compare(results, reference, dtype, f"training, {words}")
    if inplace and running:
        assert results[3].data.ptr == given[5].data.ptr
        assert results[4].data.ptr == given[6].data.ptr

    saved_mean, saved_invstd = (host(r) for r in results[1:3])
    for terms in (g, g * (x - saved_mean) * saved_invstd):
        assume(conditioning(terms, axes) <= MOST_CONDITIONING)
    reference = reference_of(BatchNormTrainGrad(axes), x, g, scale, saved_mean, saved_invstd)
    given = [image(x, layouts[0]), image(g, layouts[1])]
    given += gpu_arrays([scale, saved_mean, saved_invstd], dtype, 0)
    found = results_of(GpuDnnBatchNormGrad("spatial", inplace, axes), *given)
    compare(found, reference, dtype, f"gradient, {words}")

    reference = reference_of(BatchNormInference(axes), x, scale, bias, mean, var, epsilon)
    given = [image(x, layouts[0]), *gpu_arrays([scale, bias, mean, var], dtype, 0), epsilon]
    found = results_of(GpuDnnBatchNormInference("spatial", inplace, axes), *given)
    compare(found, reference, dtype, f"inference, {words}")


LARGE = [
    # shape, mode, memory format: kept by warps that share channels, in pieces of images or several
    # of them, the last ones shorter, or by blocks, and too large for that; rows that are kept, or
    # swept, of few channels or of several groups; of sizes that no vector fits
    ((16, 70, 112, 112), "spatial", "contiguous"),
    ((65, 256, 56, 56), "spatial", "contiguous"),
    ((301, 97, 24, 24), "spatial", "contiguous"),
    ((1001, 201, 8, 16), "spatial", "contiguous"),
    ((2, 3, 200, 204), "spatial", "contiguous"),
    ((3, 1, 1000, 1000), "spatial", "contiguous"),
    ((16, 72, 112, 112), "spatial", "channels_last"),
    ((24, 64, 160, 160), "spatial", "channels_last"),
    ((64, 33, 57, 57), "spatial", "contiguous"),
    ((8, 3, 1024, 1024), "spatial", "contiguous"),
    ((8, 4, 1024, 1024), "spatial", "channels_last"),
    ((70000, 40), "spatial", "contiguous"),
    ((100000, 9), "per-activation", "contiguous"),
    ((300, 2000), "per-activation", "contiguous"),
    ((20000, 1100), "per-activation", "contiguous"),
]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("shape", "mode", "memory_format"), LARGE)
def test_many_blocks(shape, mode, memory_format, dtype):
    """Blocks that share a channel wait for each other; every run gives the same bits."""
    import cupy

    axes = (0,) if mode == "per-activation" else (0, *range(2, len(shape)))
    small = tuple(1 if i in axes else n for i, n in enumerate(shape))
    rng = cupy.random.default_rng(1)
    x, g = (rng.standard_normal(shape, dtype="float32").astype(dtype) for _ in range(2))
    x += cupy.asarray(3, dtype)
    wide = x.astype("float64")
    # A gradient's sums are of what is no noise alone.
    g = (g.astype("float32") + 0.5 * x.astype("float32") - 1).astype(dtype)
    scale, bias = (rng.standard_normal(small, dtype="float32") for _ in range(2))
    epsilon = np.array(1e-4)

    def laid_out(array: Any) -> Any:
        if memory_format == "contiguous":
            return array
        order = (0, *range(2, array.ndim), 1)
        back = [order.index(axis) for axis in range(array.ndim)]
        return cupy.ascontiguousarray(array.transpose(order)).transpose(back)

    def same_bits(op: Any, *given: Any) -> list[Any]:
        first, *others = [results_of(op, *given) for _ in range(4)]
        copies = [a.copy(order="K") if hasattr(a, "copy") else a for a in given]
        others.append(results_of(op.inplace_versions()[-1], *copies))
        for results in others:
            assert all(bool((a == b).all()) for a, b in zip(first, results, strict=True)), (
                f"{op}: two runs differ; NaN: {[bool(cupy.isnan(a).any()) for a in first]}"
            )
        assert first[0].strides == given[0].strides
        return first

    def close(result: Any, expected: Any, bound: float, what: str) -> None:
        difference = float(cupy.linalg.norm(result.astype("float64").ravel() - expected.ravel()))
        size = float(cupy.linalg.norm(expected.ravel()))
        assert difference <= bound * size, f"{what}: relative error {difference / size:.3g}"

    given = [laid_out(x), scale, bias]
    out, mean, invstd = same_bits(GpuDnnBatchNorm(mode), *given, epsilon)
    true_mean = wide.mean(axis=axes, keepdims=True)
    centered = wide - true_mean
    true_invstd = 1 / cupy.sqrt((centered**2).mean(axis=axes, keepdims=True) + 1e-4)
    normalized = centered * true_invstd
    bound = RELATIVE_ERROR[dtype]
    close(mean, true_mean, 1e-6, "mean")
    close(invstd, true_invstd, 1e-6, "invstd")
    close(out, normalized * scale + bias, bound, "out")

    given = [laid_out(x), laid_out(g), scale, mean, invstd]
    dx, dscale, dbias = same_bits(GpuDnnBatchNormGrad(mode), *given)
    g64 = g.astype("float64")
    sums = [(g64 * normalized).sum(axis=axes, keepdims=True), g64.sum(axis=axes, keepdims=True)]
    count = x.size // mean.size
    expected = (g64 - sums[1] / count - normalized * (sums[0] / count)) * (scale * true_invstd)
    close(dscale, sums[0], 1e-5, "dscale")
    close(dbias, sums[1], 1e-5, "dbias")
    close(dx, expected, 3 * bound, "dx")


@pytest.mark.parametrize("magnitude", [1e20, 1e30, 1e37])
@pytest.mark.parametrize(("shape", "mode", "memory_format"), [*LARGE, ((613, 512), "layer", "")])
def test_numbers_with_infinite_squares(shape, mode, memory_format, magnitude):
    import cupy

    axes = {"per-activation": (0,), "layer": (1,)}.get(mode, (0, *range(2, len(shape))))
    small = tuple(1 if i in axes else n for i, n in enumerate(shape))
    rng = cupy.random.default_rng(2)
    x, g = (rng.standard_normal(shape, dtype="float32") for _ in range(2))
    x *= cupy.float32(magnitude)
    if memory_format == "channels_last":
        x = cupy.moveaxis(cupy.ascontiguousarray(cupy.moveaxis(x, 1, -1)), -1, 1)
    scale, bias = (rng.standard_normal(small, dtype="float32") for _ in range(2))
    op = GpuDnnBatchNorm("spatial", axes=axes)
    out, mean, invstd = results_of(op, x, scale, bias, np.array(1e-4))
    wide, g64 = x.astype("float64"), g.astype("float64")
    true_invstd = 1 / wide.std(axis=axes, keepdims=True)
    normalized = (wide - wide.mean(axis=axes, keepdims=True)) * true_invstd
    pairs = [(out, normalized * scale + bias), (invstd, true_invstd)]
    if magnitude < 1e35:  # its products with g fit in float32
        of_g, of_product = (a.mean(axis=axes, keepdims=True) for a in (g64, g64 * normalized))
        of_x = (g64 - of_g - normalized * of_product) * (scale * true_invstd)
        op = GpuDnnBatchNormGrad("spatial", axes=axes)
        pairs.append((results_of(op, x, g, scale, mean, invstd)[0], of_x))
    for result, expected in pairs:
        error = cupy.linalg.norm((result.astype("float64") - expected).ravel())
        assert error <= 1e-5 * cupy.linalg.norm(expected.ravel())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [2, 7, 64, 257, 512, 1000, 1023, 2048, 3000])
def test_layer_normalization(length, dtype):
    """Statistics of many short rows, at any address and in place."""
    rng = np.random.default_rng(length)
    rows, axes, epsilon = (613, 3), (2,), np.array(1e-3)
    x, g = (rounded(1 + rng.standard_normal((*rows, length)), dtype) for _ in range(2))
    # Parameters that the operands' dtype does not round, as for the abstract Ops.
    scale, bias = (rounded(rng.uniform(0.5, 2, (*rows, 1)), dtype) for _ in range(2))
    # A row of equal elements, and one of a mean that is many times the deviation.
    x[5, 0] = 0.5
    x[7, 1] = rounded(x[7, 1] + 100, dtype)
    reference = reference_of(BatchNormTrain(axes), x, scale, bias, epsilon)
    gradients = reference_of(BatchNormTrainGrad(axes), x, g, scale, *reference[1:])

    def placed(array: np.ndarray, aligned: bool) -> Any:
        if aligned:
            return on_gpu(array, dtype)
        ravelled = on_gpu(np.concatenate([np.zeros(1), array.ravel()]), dtype)
        return ravelled[1:].reshape(array.shape)

    poison()
    for aligned, inplace in ((True, False), (True, True), (False, False)):
        words = f"{dtype}, rows of {length}, aligned: {aligned}, in place: {inplace}"
        parameters = gpu_arrays([scale, bias], dtype, 0)
        op = GpuDnnBatchNorm("spatial", inplace_output=inplace, axes=axes)
        found = results_of(op, placed(x, aligned), *parameters, epsilon)
        compare(found, reference, dtype, f"training, {words}")
        np.testing.assert_array_equal(host(found[0])[5, 0], host(on_gpu(bias[5, 0], dtype))[0])
        given = [placed(x, aligned), placed(g, aligned), parameters[0], *found[1:]]
        found = results_of(GpuDnnBatchNormGrad("spatial", inplace, axes), *given)
        compare(found, gradients, dtype, f"gradient, {words}")


def test_a_rounded_mean():
    """Rounding of a mean much larger than the deviation does not affect the gradient."""
    rng = np.random.default_rng(0)
    shape = (32, 8, 40, 40)
    x = rounded(1000 + rng.standard_normal(shape), "float32")
    g = rounded(rng.standard_normal(shape), "float32")
    scale, bias = np.ones((1, 8, 1, 1)), np.zeros((1, 8, 1, 1))
    given = gpu_arrays([x, scale, bias], "float32", 1)
    results = results_of(GpuDnnBatchNorm("spatial"), *given, np.array(1e-4))
    exact = reference_of(BatchNormTrain((0, 2, 3)), x, scale, bias, np.array(1e-4))
    for result, reference in zip(results, exact, strict=True):
        check(result, reference, "float32")
    reference = reference_of(BatchNormTrainGrad((0, 2, 3)), x, g, scale, *exact[1:])
    given = [*gpu_arrays([x, g, scale], "float32", 2), *results[1:]]
    for result, expected in zip(
        results_of(GpuDnnBatchNormGrad("spatial"), *given), reference, strict=True
    ):
        check(result, expected, "float32", bound=1e-5)


def test_more_than_31_bits_of_elements():
    import cupy

    shape = (70000, 32, 31, 31)  # 2.15e9 elements of two bytes
    x = cupy.empty(shape, "float16")
    pattern = cupy.random.default_rng(0).standard_normal((70, *shape[1:]), dtype="float32")
    x.reshape(1000, -1)[...] = pattern.astype("float16").reshape(1, -1)
    parameter = cupy.ones((1, 32, 1, 1), "float32")
    op = GpuDnnBatchNorm("spatial", inplace_output=True)
    out, mean, invstd = results_of(op, x, parameter, parameter, np.array(1e-4))
    wide = pattern.astype("float16").astype("float64")
    true_mean = wide.mean(axis=(0, 2, 3), keepdims=True)
    true_invstd = 1 / cupy.sqrt(wide.var(axis=(0, 2, 3), keepdims=True) + 1e-4)
    np.testing.assert_allclose(host(mean), true_mean.get(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(host(invstd), true_invstd.get(), rtol=1e-5)
    expected = ((wide - true_mean) * true_invstd + 1).get()
    for part in (out[:70], out[-70:]):
        check(part, expected, "float16")


@pytest.mark.parametrize("shape", [(0, 3, 4), (5, 0, 4), (0, 3)])
def test_empty_arrays(shape):
    import cupy

    x = cupy.empty(shape, "float32")
    one = cupy.ones((1, shape[1], *[1] * (len(shape) - 2)), "float32")
    (out,) = results_of(GpuDnnBatchNormInference("spatial"), x, *[one] * 4, np.array(0.1))
    assert out.shape == shape
    dx, dscale, dbias = results_of(GpuDnnBatchNormGrad("spatial"), x, x, *[one] * 3)
    assert dx.shape == shape
    assert not host(dscale).any()
    assert not host(dbias).any()
    if shape[1]:
        with pytest.raises(ValueError, match="mean and variance over no elements"):
            results_of(GpuDnnBatchNorm("spatial"), x, one, one, np.array(0.1))


def test_streams_and_graphs():
    """Launches on two streams do not deadlock, and a CUDA graph can repeat them."""
    import cupy

    shape, axes = (32, 64, 56, 56), (0, 2, 3)
    x = cupy.random.default_rng(0).standard_normal(shape, dtype="float32")
    parameters = [cupy.ones((1, 64, 1, 1), "float32") for _ in range(2)]
    operands = [GpuArrayType("float32", (None,) * 4)() for _ in range(3)]
    out = GpuDnnBatchNorm("spatial", axes=axes)(*operands, 0.1)[0]
    f = pytensor.function(operands, out, mode="CVM")
    expected = f(x, *parameters).copy()
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(3)]
    cupy.cuda.Device().synchronize()
    found = []
    for _ in range(20):
        for stream in streams:
            with stream:
                found.append(f(x, *parameters))
    cupy.cuda.Device().synchronize()
    assert all(bool((result == expected).all()) for result in found)
    with streams[0] as stream:
        f(x, *parameters)
        stream.synchronize()
        stream.begin_capture()
        try:
            result = f(x, *parameters)
        finally:
            graph = stream.end_capture()
        for _ in range(3):
            result.data.memset_async(0xFF, result.nbytes)
            graph.launch(stream=stream)
            stream.synchronize()
            assert bool((result == expected).all())


def test_compiled_function():
    """A graph of `dnnops.nnet` runs on the device, with gradients and running averages."""
    x = pt.tensor("x", dtype="float32", shape=(None, 6, None, None))
    gamma, beta = pt.fvector("gamma"), pt.fvector("beta")
    mean, var = (shared(np.full((1, 6, 1, 1), value, "float32")) for value in (0.5, 2))
    start = [pt.as_tensor_variable(v) for v in (mean, var)]
    outputs = batch_normalization_train(
        x, gamma, beta, "spatial", running_mean=start[0], running_var=start[1]
    )
    test = batch_normalization_test(x, gamma, beta, *start, "spatial")
    loss = (outputs[0] ** 3).sum() + (test**2).sum() + outputs[1].sum()
    results = [loss, outputs[0], *outputs[1:3], test, *pytensor.grad(loss, [x, gamma, beta])]
    inputs = [x, gamma, beta]
    mode = pytensor.compile.get_mode("CVM").including("gpu")
    transfer = [as_gpuarray_variable(v) for v in results]
    updates = [(mean, as_gpuarray_variable(outputs[3])), (var, as_gpuarray_variable(outputs[4]))]
    f = pytensor.function(inputs, transfer, updates=updates, mode=mode)
    ops = {type(node.op): node.op for node in f.maker.fgraph.toposort()}
    assert {GpuDnnBatchNorm, GpuDnnBatchNormGrad, GpuDnnBatchNormInference} <= set(ops)
    assert ops[GpuDnnBatchNorm].inplace_running_var
    host_averages = [pt.tensor4(dtype="float32") for _ in range(2)]
    known = [pt.specify_shape(v, (1, 6, 1, 1)) for v in host_averages]
    outputs = batch_normalization_train(
        x, gamma, beta, "spatial", running_mean=known[0], running_var=known[1]
    )
    test = batch_normalization_test(x, gamma, beta, *known, "spatial")
    loss = (outputs[0] ** 3).sum() + (test**2).sum() + outputs[1].sum()
    results = [loss, outputs[0], *outputs[1:3], test, *pytensor.grad(loss, [x, gamma, beta])]
    oracle = pytensor.function(
        [*inputs, *host_averages], [*results, *outputs[3:]], mode="FAST_COMPILE"
    )
    rng = np.random.default_rng(0)
    averages = [np.full((1, 6, 1, 1), value, "float32") for value in (0.5, 2)]
    for shape in ((4, 6, 5, 7), (2, 6, 20, 20), (4, 6, 5, 7)):
        given = [rng.standard_normal(shape), *(rng.uniform(0.5, 2, 6) for _ in range(2))]
        given = [a.astype("float32") for a in given]
        *expected, new_mean, new_var = oracle(*given, *averages)
        for i, (result, reference) in enumerate(zip(f(*given), expected, strict=True)):
            np.testing.assert_allclose(
                host(result), reference, rtol=2e-3, atol=2e-3, err_msg=f"result {i}, {shape}"
            )
        averages = [new_mean, new_var]
        for average, reference in zip((mean, var), averages, strict=True):
            np.testing.assert_allclose(average.get_value(), reference, rtol=1e-5, atol=1e-6)


def test_explicit_calls():
    """`dnnops.dnn` accepts parameters of both ranks."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4, 3, 5)).astype("float32")
    for mode, small, full in (("spatial", (3,), (1, 3, 1)), ("per-activation", (3, 5), (1, 3, 5))):
        axes = (0, 2) if mode == "spatial" else (0,)
        scale, bias, mean = rng.standard_normal((3, *small)).astype("float32")
        var = rng.uniform(0.5, 2, small).astype("float32")
        wide = [a.reshape(full) for a in (scale, bias, mean, var)]
        symbolic = dnn.dnn_batch_normalization_train(
            on_gpu(x, "float32"), scale, bias.reshape(full), mode, 0.1, 0.3, mean, var
        )
        test = dnn.dnn_batch_normalization_test(x, scale, bias, mean, var, mode, 0.1)
        f = pytensor.function([], [*symbolic, test], mode="CVM")
        scalars = np.array(0.1), np.array(0.3)
        x64, *wide = (a.astype("float64") for a in (x, *wide))
        wanted = reference_of(BatchNormTrain(axes, True), x64, *wide[:2], *scalars, *wide[2:])
        wanted += reference_of(BatchNormInference(axes), x64, *wide, scalars[0])
        # Statistics have the shape of the scale; running averages keep their own.
        wanted[1:5] = [a.reshape(small) for a in wanted[1:5]]
        for result, reference in zip(f(), wanted, strict=True):
            check(result, reference, "float32")

"""Convolution on cuDNN, on a GPU: against the float64 oracle."""

from __future__ import annotations

import threading

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import strategies as st

from dnnops.errors import DnnMemoryError, DnnNotSupportedError, DnnValueError
from dnnops.gpu import algorithms
from dnnops.gpu.conv import GpuDnnConv
from dnnops.gpu.conv_padding import is_asymmetric
from dnnops.gpu.library import free_workspaces
from dnnops.gpuarray.type import GpuArrayType
from dnnops.nnet.conv.op import Conv, ConvGradInputs, ConvGradWeights
from dnnops.runtime.build import CUDNN
from tests.gpu.conv.convolutions import (
    NAMES,
    PAIRS,
    every_op,
    in_dtype,
    large_case,
    moved,
    operands,
    reference,
)
from tests.gpu.device import DTYPES, apply_op, check, host, on_gpu, poison, restrided, rounded
from tests.oracle import TRANSFORM_RELATIVE_ERROR, conv_cases, fuzz, run_op

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("no_stored_plans")]

every_dtype = pytest.mark.parametrize("dtype", DTYPES)


@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
@pytest.mark.parametrize("algo", [None, "guess_on_shape_change"])
@every_dtype
@every_op
@fuzz(max_examples=40, case=conv_cases(max_channels=9, max_size=9, max_kernel=4))
def test_random(index, dtype, algo, memory_format, case):
    arrays = in_dtype(operands(case, index), dtype)
    op = PAIRS[index][0](**case.params, algo=algo, memory_format=memory_format)
    given = moved(arrays, dtype, memory_format)
    poison()
    check(apply_op(op, *given), reference(case, index, arrays), dtype)


@pytest.mark.parametrize("algo", [None, "guess_on_shape_change"])
@every_dtype
@every_op
@fuzz(max_examples=20, case=conv_cases())
def test_small_integers_are_exact(index, dtype, algo, case):
    arrays = in_dtype(operands(case, index, integers=True), dtype)
    out = apply_op(PAIRS[index][0](**case.params, algo=algo), *moved(arrays, dtype))
    exact = rounded(reference(case, index, arrays), dtype)
    np.testing.assert_array_equal(host(out), exact)


@every_op
@pytest.mark.parametrize("compiled", [False, True])
def test_gaps_between_filters(index, compiled):
    """cuDNN only takes filters without gaps; others are copied, also as the output to add to."""
    case = large_case()
    arrays = in_dtype(operands(case, index), "float32")
    given = moved(arrays, "float32")
    plain = reference(case, index, arrays)
    old = np.random.default_rng(0).standard_normal(plain.shape)
    given.append(on_gpu(old, "float32"))
    given = [a if not hasattr(a, "get") else with_gaps(a) for a in given]
    op = PAIRS[index][0](**case.params, accumulate=True)
    factors = np.float64(2), np.float64(3)
    if compiled:
        variables = [
            GpuArrayType("float32", (None,) * 4)() if hasattr(a, "get") else pt.lvector()
            for a in given
        ]
        alpha, beta = pt.dscalar(), pt.dscalar()
        out = op(*variables[:-1], alpha, beta, variables[-1])
        f = pytensor.function([*variables, alpha, beta], out, mode="CVM")
        result = f(*given, *factors)
    else:
        result = apply_op(op, *given[:-1], *factors, given[-1])
    check(result, 2 * plain + 3 * rounded(old, "float32"), "float32", bound=2e-5)


def with_gaps(array):
    """Return a device array with a larger stride along its first axis."""
    import cupy

    wide = cupy.full((array.shape[0], array.shape[1] + 1, *array.shape[2:]), np.nan, array.dtype)
    view = wide[:, : array.shape[1]]
    view[...] = array
    return view


@every_op
@fuzz(max_examples=40, case=conv_cases(), seed=st.integers(0, 2**32 - 1))
def test_strides(index, case, seed):
    rng = np.random.default_rng(seed)
    arrays = in_dtype(operands(case, index), "float32")
    given = [restrided(rng, a) if hasattr(a, "get") else a for a in moved(arrays, "float32")]
    check(
        apply_op(PAIRS[index][0](**case.params), *given), reference(case, index, arrays), "float32"
    )


@every_dtype
@every_op
@fuzz(max_examples=25, case=conv_cases(empty=True))
def test_empty(index, dtype, case):
    arrays = in_dtype(operands(case, index), dtype)
    poison()
    out = apply_op(PAIRS[index][0](**case.params), *moved(arrays, dtype))
    check(out, reference(case, index, arrays), dtype)


@pytest.mark.parametrize("algo", [None, "guess_on_shape_change"])
@pytest.mark.parametrize("inplace", [False, True])
@every_op
@fuzz(
    max_examples=20,
    case=conv_cases(empty=True),
    factors=st.sampled_from([(1.0, 1.0), (2.0, 0.0), (-0.5, 1.5), (0.0, 1.0), (1.0, 0.0)]),
)
def test_alpha_beta(index, inplace, algo, case, factors):
    alpha, beta = factors
    arrays = in_dtype(operands(case, index), "float32")
    plain = reference(case, index, arrays)
    old = np.random.default_rng(case.seed).standard_normal(plain.shape).astype("float32")
    op = PAIRS[index][0](**case.params, algo=algo, accumulate=True, inplace=inplace)
    out = on_gpu(old, "float32")
    result = apply_op(op, *moved(arrays, "float32"), alpha, beta, out)
    check(result, alpha * plain + beta * old, "float32", bound=2e-5)
    # The gradient of a padded image cannot be written into an array of the image's shape.
    overwritten = inplace and not (index == 1 and is_asymmetric(op))
    assert (result is out) == overwritten
    if not overwritten:
        np.testing.assert_array_equal(out.get(), old)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
@every_op
def test_out_in_another_format(index, memory_format, compiled):
    """Unless it is overwritten, `out` is copied to the format of the result."""
    case = large_case()
    arrays = in_dtype(operands(case, index), "float32")
    plain = reference(case, index, arrays)
    old = np.random.default_rng(1).standard_normal(plain.shape).astype("float32")
    other = "contiguous" if memory_format == "channels_last" else "channels_last"
    (out,) = moved([old], "float32", other)
    op = PAIRS[index][0](**case.params, accumulate=True, memory_format=memory_format)
    given = [*moved(arrays, "float32"), np.float64(2), np.float64(3), out]
    if compiled:
        types = {0: pt.dscalar, 1: pt.lvector, 4: GpuArrayType("float32", (None,) * 4)}
        variables = [types[np.ndim(x)]() for x in given]
        f = pytensor.function(variables, op(*variables), mode="CVM")
        results = [f(*given) for _ in range(2)]
    else:
        results = [apply_op(op, *given)]
    for result in results:
        check(result, 2 * plain + 3 * old, "float32", bound=2e-5)
        is_last = result.transpose(0, 2, 3, 1).flags.c_contiguous
        assert is_last == (memory_format == "channels_last")
    np.testing.assert_array_equal(out.get(), old)


def test_scaling_factors_that_keep_changing():
    """One node with many alphas: results stay right, and plans do not accumulate."""
    x, w, o = (GpuArrayType("float32", (None,) * 4)() for _ in range(3))
    alpha, beta = pt.dscalar(), pt.dscalar()
    case = large_case()
    op = GpuDnnConv(**case.params, algo="guess_on_shape_change", accumulate=True)
    f = pytensor.function([x, w, alpha, beta, o], op(x, w, alpha, beta, o), mode="CVM")
    img, kern, _ = case.arrays("float32")
    plain = reference(case, 0, [img.astype("float64"), kern.astype("float64")])
    given = moved([img, kern], "float32")
    old = on_gpu(np.ones(plain.shape), "float32")
    algorithms.clear_cache()
    for i in range(30):
        out = f(*given, 1 + i / 8, -i / 4, old)
        check(out, (1 + i / 8) * plain - i / 4, "float32", bound=2e-5)
    assert algorithms.cache_statistics()["size"] <= 8


def test_compiled_function_and_gradients():
    """Generated C code, many shapes with one function, first and second derivatives."""
    x, w = (GpuArrayType("float32", (None,) * 4)() for _ in range(2))
    params = {"border_mode": (1, 2), "subsample": (2, 1), "num_groups": 2}
    out = GpuDnnConv(**params)(x, w)
    grads = pytensor.grad((pt.as_tensor_variable(out) ** 2).sum(), [x, w])
    second = pytensor.grad(sum((pt.as_tensor_variable(g) ** 2).sum() for g in grads), [x, w])
    mode = pytensor.compile.get_mode("CVM").including("gpu")
    f = pytensor.function([x, w], [out, *grads, *second], mode=mode)
    kinds = {type(node.op).__name__ for node in f.maker.fgraph.apply_nodes}
    assert set(NAMES) <= kinds
    xd, wd = pt.dtensor4(), pt.dtensor4()
    dense = Conv(2, **params)(xd, wd)
    dense_grads = pytensor.grad((dense**2).sum(), [xd, wd])
    dense_second = pytensor.grad(sum((g**2).sum() for g in dense_grads), [xd, wd])
    oracle = pytensor.function([xd, wd], [dense, *dense_grads, *dense_second], mode="FAST_COMPILE")
    rng = np.random.default_rng(3)
    for batch, height, width in ((1, 5, 5), (3, 8, 6), (2, 5, 9), (3, 8, 6)):
        img = rng.standard_normal((batch, 4, height, width)).astype("float32")
        kern = rng.standard_normal((6, 2, 3, 3)).astype("float32")
        results = f(*(restrided(rng, on_gpu(a, "float32")) for a in (img, kern)))
        expected = oracle(img.astype("float64"), kern.astype("float64"))
        for result, ref in zip(results, expected, strict=True):
            check(result, ref, "float32", bound=3e-5)
    with pytest.raises(
        DnnValueError, match=r"(?s)GpuDnnConv: .*channels.*operands: .*float32\(3, 4"
    ):
        f(results[1], on_gpu(np.zeros((6, 3, 3, 3)), "float32"))
    f(on_gpu(img, "float32"), on_gpu(kern, "float32"))


WORDS = {
    "forward": ("none", "small", "large", "fft", "fft_tiling", "winograd", "winograd_non_fused"),
    "grad_inputs": ("none", "deterministic", "fft", "fft_tiling", "winograd", "winograd_non_fused"),
    "grad_weights": ("none", "small", "deterministic", "fft", "fft_tiling", "winograd_non_fused"),
}


@every_op
def test_words(index):
    """Each name gives a right result or an error that lists what can run; most of them run."""
    cls = PAIRS[index][0]
    case = large_case(kern_shape=(16, 32, 3, 3), border_mode=((1, 1), (1, 1)))
    arrays = in_dtype(operands(case, index), "float32")
    ref = reference(case, index, arrays)
    ran, refused = [], {}
    for word in WORDS[cls.direction]:
        try:
            out = apply_op(cls(**case.params, algo=word), *moved(arrays, "float32"))
        except DnnNotSupportedError as error:
            refused[word] = str(error)
            continue
        check(out, ref, "float32", bound=TRANSFORM_RELATIVE_ERROR["float32"])
        ran.append((word, algorithms.last_plan()))
    assert len(ran) >= 4, refused
    assert all("These can, fastest first: " in words for words in refused.values())
    assert set(refused) <= {"fft", "fft_tiling", "winograd", "winograd_non_fused"}
    names = dict(ran)
    first = {"forward": "IMPLICIT_GEMM"}.get(cls.direction, "ALGO_0")
    assert names["none"] == first, ran


@pytest.mark.parametrize(
    "word", ["time_once", *dict.fromkeys(word for words in WORDS.values() for word in words)]
)
@fuzz(
    max_examples=40,
    case=conv_cases(max_channels=9, max_size=9, max_kernel=4),
    index=st.integers(0, 2),
    dtype=st.sampled_from(["float16", "float32"]),
    memory_format=st.sampled_from(["contiguous", "channels_last"]),
)
def test_words_on_random_cases(word, case, index, dtype, memory_format):
    """The result is right, however the plan is selected; a named algorithm may be rejected."""
    cls = PAIRS[index][0]
    arrays = in_dtype(operands(case, index), dtype)
    op = cls(**case.params, algo=word, memory_format=memory_format)
    poison()
    try:
        # A rejection also times plans, to say which are fast.
        with pytensor.config.change_flags(dnn__conv__time_limit=0.05):
            out = apply_op(op, *moved(arrays, dtype, memory_format))
    except DnnNotSupportedError:
        assert word.startswith(("fft", "winograd"))
        return
    check(out, reference(case, index, arrays), dtype, bound=TRANSFORM_RELATIVE_ERROR[dtype])


@every_op
def test_legacy_numbers_and_names(index):
    cls = PAIRS[index][0]
    case = large_case()
    arrays = in_dtype(operands(case, index), "float32")
    ref = reference(case, index, arrays)
    for number in (0, 1):
        out = apply_op(cls(**case.params, algo=number), *moved(arrays, "float32"))
        check(out, ref, "float32")
        name = algorithms.last_plan()
        assert name == algorithms.LEGACY_ALGORITHMS[cls.direction][number]
        check(apply_op(cls(**case.params, algo=name), *moved(arrays, "float32")), ref, "float32")


@every_dtype
@every_op
def test_timing(index, dtype):
    cls = PAIRS[index][0]
    case = large_case()
    arrays = in_dtype(operands(case, index), dtype)
    algorithms.clear_cache()
    out = apply_op(cls(**case.params, algo="time_on_shape_change"), *moved(arrays, dtype))
    bound = TRANSFORM_RELATIVE_ERROR[dtype]
    check(out, reference(case, index, arrays), dtype, bound=bound)
    # The selected plan can be requested by name.
    name = algorithms.last_plan()
    again = apply_op(cls(**case.params, algo=name), *moved(arrays, dtype))
    assert algorithms.last_plan() == name
    check(again, reference(case, index, arrays), dtype, bound=bound)


def test_timing_leaves_the_operand_alone():
    """The result is added only once, however many plans were timed."""
    case = large_case()
    img, kern, top = case.arrays("float32")
    op = GpuDnnConv(**case.params, algo="time_once", accumulate=True, inplace=True)
    out = on_gpu(top, "float32")
    apply_op(op, *moved([img, kern], "float32"), 1.0, 1.0, out)
    plain = reference(case, 0, [img.astype("float64"), kern.astype("float64")])
    check(out, plain + top, "float32", bound=1e-4)


def test_tf32_only_when_allowed():
    case = large_case(img_shape=(8, 64, 30, 30), kern_shape=(64, 64, 3, 3))
    arrays = in_dtype(operands(case, 0), "float32")
    ref = reference(case, 0, arrays)
    given = moved(arrays, "float32", "channels_last")
    for algo in ("none", "small", "guess_on_shape_change"):
        op = GpuDnnConv(**case.params, algo=algo, memory_format="channels_last")
        check(apply_op(op, *given), ref, "float32")
        check(apply_op(op.replace(allow_tf32=True), *given), ref, "tf32", bound=1e-3)


@pytest.mark.parametrize("index", [1, 2], ids=NAMES[1:])
@pytest.mark.parametrize("algo", ["none", "deterministic", "guess_on_shape_change"])
def test_deterministic(index, algo):
    cls = PAIRS[index][0]
    case = large_case(img_shape=(32, 64, 30, 30), kern_shape=(64, 64, 3, 3))
    arrays = moved(in_dtype(operands(case, index), "float32"), "float32")
    op = cls(**case.params, algo=algo, deterministic=True)
    first = apply_op(op, *arrays).get()
    for _ in range(20):
        np.testing.assert_array_equal(apply_op(op, *arrays).get(), first)


@every_op
def test_workspace_limit(index):
    cls = PAIRS[index][0]
    case = large_case()
    arrays = in_dtype(operands(case, index), "float32")
    ref = reference(case, index, arrays)
    free_workspaces()
    for algo in ("small", "large", "guess_on_shape_change", "time_on_shape_change"):
        op = cls(**case.params, algo=algo, workspace_limit=0)
        check(apply_op(op, *moved(arrays, "float32")), ref, "float32", bound=1e-4)
        assert CUDNN.library.dnnops_cudnn_workspace_bytes(0) == 0
    with pytest.raises(DnnNotSupportedError, match="over the limit of 0"):
        apply_op(cls(**case.params, algo="fft", workspace_limit=0), *moved(arrays, "float32"))


@every_op
def test_out_of_memory(index):
    """Without memory for its workspace, a plan is replaced by a smaller one, unless forced."""
    import cupy

    cls = PAIRS[index][0]
    case = large_case(img_shape=(64, 32, 30, 30))
    arrays = in_dtype(operands(case, index), "float32")
    ref = reference(case, index, arrays)
    # In a pool of its own, nothing below the limit is memory that other tests have left. The first
    # call's workspace is freed before the limit is set, since the forced plan might fit into it.
    pool = cupy.cuda.MemoryPool()
    free_workspaces()
    with cupy.cuda.using_allocator(pool.malloc):
        given = moved(arrays, "float32")
        algorithms.clear_cache()
        apply_op(cls(**case.params), *given)
        free_workspaces()
        pool.free_all_blocks()
        pool.set_limit(size=pool.total_bytes() + ref.size * 4 + (1 << 20))
        algorithms.clear_cache()
        for algo in (None, "large", "guess_on_shape_change"):
            check(apply_op(cls(**case.params, algo=algo), *given), ref, "float32", bound=1e-4)
        with pytest.raises(DnnMemoryError):
            apply_op(cls(**case.params, algo="fft"), *given)
        free_workspaces()
    check(apply_op(cls(**case.params), *given), ref, "float32")


def test_once_keeps_the_plan():
    x, w = (GpuArrayType("float32", (None,) * 4)() for _ in range(2))
    mode = pytensor.compile.get_mode("CVM")
    f = pytensor.function([x, w], GpuDnnConv(algo="guess_once")(x, w), mode=mode)
    rng = np.random.default_rng(0)
    names = []
    for size in (12, 30, 17):
        img, kern = rng.standard_normal((2, 8, size, size)), rng.standard_normal((4, 8, 3, 3))
        algorithms.clear_cache()
        out = f(on_gpu(img, "float32"), on_gpu(kern, "float32"))
        arrays = [rounded(img, "float32"), rounded(kern, "float32")]
        check(out, run_op(Conv(2), *arrays), "float32")
        names.append(algorithms.last_plan())
    assert len(set(names)) == 1


@every_dtype
def test_depthwise(dtype):
    for index in range(3):
        case = large_case(img_shape=(4, 32, 14, 14), kern_shape=(32, 1, 3, 3), num_groups=32)
        arrays = in_dtype(operands(case, index), dtype)
        for memory_format in ("contiguous", "channels_last"):
            for algo in (None, "guess_on_shape_change"):
                op = PAIRS[index][0](**case.params, algo=algo, memory_format=memory_format)
                out = apply_op(op, *moved(arrays, dtype, memory_format))
                check(out, reference(case, index, arrays), dtype)


@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
@pytest.mark.parametrize("filter_flip", [False, True])
@every_dtype
@every_op
def test_asymmetric_padding(index, dtype, filter_flip, memory_format):
    case = large_case(border_mode=((0, 2), (3, 1)), subsample=(2, 1), filter_flip=filter_flip)
    arrays = in_dtype(operands(case, index), dtype)
    for algo in (None, "guess_on_shape_change"):
        op = PAIRS[index][0](**case.params, algo=algo, memory_format=memory_format)
        out = apply_op(op, *moved(arrays, dtype, memory_format))
        check(out, reference(case, index, arrays), dtype)


def test_asymmetric_padding_in_compiled_functions():
    x, w = (GpuArrayType("float32", (None,) * 4)() for _ in range(2))
    params = {"border_mode": ((0, 2), (3, 1)), "subsample": (2, 1)}
    out = GpuDnnConv(**params)(x, w)
    grads = pytensor.grad((pt.as_tensor_variable(out) ** 2).sum(), [x, w])
    mode = pytensor.compile.get_mode("CVM").including("gpu")
    f = pytensor.function([x, w], [out, *grads], mode=mode)
    case = large_case(**params)
    img, kern = in_dtype(operands(case, 0), "float32")
    top = reference(case, 0, [img, kern])
    expected = [
        top,
        run_op(ConvGradInputs(2, **params), kern, 2 * top, np.array(img.shape[2:])),
        run_op(ConvGradWeights(2, **params), img, 2 * top, np.array(kern.shape[2:])),
    ]
    for _ in range(2):
        results = f(*moved([img, kern], "float32"))
        for result, ref in zip(results, expected, strict=True):
            check(result, ref, "float32", bound=2e-5)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_more_than_two_to_the_31_elements(dtype):
    """The result is right or rejected: a 1x1 convolution whose outputs are all known."""
    import cupy

    count = (1 << 31) + (1 << 22)
    img = cupy.zeros((1 << 11, 1, count >> 22, 1 << 11), dtype)
    img[-1, 0, -1, -1] = 3
    kern = cupy.full((1, 1, 1, 1), 2, dtype)
    try:
        out = apply_op(GpuDnnConv(algo="guess_on_shape_change"), img, kern)
    except DnnNotSupportedError as error:
        pytest.skip(f"refused: {error}")
    assert float(out[-1, 0, -1, -1]) == 6
    assert float(out.astype("float32").sum()) == 6


def test_large_batch():
    img = np.random.default_rng(0).standard_normal(((1 << 16) + 3, 2, 3, 3))
    kern = np.random.default_rng(1).standard_normal((2, 2, 3, 3))
    for algo in (None, "guess_on_shape_change"):
        out = apply_op(GpuDnnConv(algo=algo), on_gpu(img, "float32"), on_gpu(kern, "float32"))
        arrays = [rounded(img, "float32"), rounded(kern, "float32")]
        check(out, run_op(Conv(2), *arrays), "float32")


def test_threads():
    case = large_case()
    arrays = in_dtype(operands(case, 0), "float32")
    ref = reference(case, 0, arrays)
    failures = []

    def work() -> None:
        try:
            for _ in range(20):
                check(
                    apply_op(GpuDnnConv(**case.params), *moved(arrays, "float32")), ref, "float32"
                )
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def test_streams():
    import cupy

    case = large_case()
    arrays = in_dtype(operands(case, 0), "float32")
    given = moved(arrays, "float32")
    cupy.cuda.Device().synchronize()
    with cupy.cuda.Stream(non_blocking=True) as stream:
        out = apply_op(GpuDnnConv(**case.params), *given)
        stream.synchronize()
        check(out, reference(case, 0, arrays), "float32")


def test_memory_stays_flat():
    import cupy

    x, w = (GpuArrayType("float32", (None,) * 4)() for _ in range(2))
    f = pytensor.function([x, w], GpuDnnConv()(x, w), mode="CVM")
    img = on_gpu(np.ones((2, 3, 8, 8)), "float32")
    kern = on_gpu(np.ones((4, 3, 3, 3)), "float32")
    pool = cupy.get_default_memory_pool()
    for i in range(3000):
        f(img, kern)
        if i == 100:
            used = pool.used_bytes(), pool.total_bytes()
    assert (pool.used_bytes(), pool.total_bytes()) == used

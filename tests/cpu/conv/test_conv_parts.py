"""Convolutions whose images pass through oneDNN in parts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from dnnops.cpu.conv import OneDnnConv
from dnnops.runtime.build import ONEDNN
from tests.cpu.conv.test_conv import PAIRS, assert_sums_close, in_double, operands, restrided
from tests.cpu.own_ways import DIRECTIONS, GRAD_WEIGHTS, run_into
from tests.cpu.test_scratch import kept, limit  # noqa: F401
from tests.oracle import ConvCase, conv_cases, fuzz, run_op
from tests.plans.test_cpu import listing

#: Bytes of a thread's images in a part: BYTES_PER_THREAD in ``conv_parts.cpp``.
PART = 4 << 20


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Run with one thread, so that few images are several parts."""
    before = ONEDNN.library.omp_get_max_threads()
    ONEDNN.library.omp_set_num_threads(1)
    yield
    ONEDNN.library.omp_set_num_threads(before)


@st.composite
def cases_of_parts(draw: st.DrawFn) -> ConvCase:
    """Return a strategy for convolutions of two to five parts, of sizes that may differ."""
    case = draw(conv_cases(max_channels=24, max_size=20, max_kernel=3))
    image, top = case.img_shape, case.top_shape
    per_image = 4 * (np.prod(image[1:], dtype=int) + np.prod(top[1:], dtype=int))
    least = int(PART // per_image) + 1
    batch = draw(st.integers(least, 4 * least))
    return replace(case, img_shape=(batch, *image[1:]))


@DIRECTIONS
@fuzz(max_examples=12, case=cases_of_parts(), seed=st.integers(0, 2**32 - 1))
def test_random(index, case, seed):
    backend, abstract = (cls(**case.params) for cls in PAIRS[index])
    arrays = operands(case, index, "float32")
    rng = np.random.default_rng(seed)
    strided = [restrided(rng, a) if a.dtype.kind == "f" else a for a in arrays]
    out = run_op(backend, *strided)
    assert_sums_close(out, abstract, arrays)
    into = restrided(rng, np.full(out.shape, np.nan, "float32"))
    run_into(backend, into, *strided)
    assert_sums_close(into, abstract, arrays)
    assert run_op(backend, *strided).tobytes() == out.tobytes()


def batch_of(size: int, kernel: int = 5) -> ConvCase:
    """Return a convolution of images of 0.5 MB each, and as many of the output."""
    return ConvCase(
        img_shape=(size, 8, 128, 128),
        kern_shape=(8, 8, kernel, kernel),
        border_mode=((kernel // 2,) * 2,) * 2,
        subsample=(1, 1),
        filter_flip=True,
        filter_dilation=(1, 1),
        num_groups=1,
        seed=5,
    )


@DIRECTIONS
def test_every_plan_runs_in_parts(index):
    """Eleven images are two parts of four and one of three."""
    case = batch_of(11, kernel=3)
    arrays = operands(case, index, "float32")
    plans, output = listing(case, index, arrays)
    with plans:
        runnable = [i for i, plan in enumerate(plans.plans) if not plan.reason]
        assert len(runnable) > 1
        for number in runnable:
            output.fill(np.nan)
            plans.run(number)
            assert_sums_close(output, PAIRS[index][1](**case.params), arrays)
        names = [plans.plans[i].name for i in runnable]
    expected = run_op(PAIRS[index][0](**case.params), *arrays)
    for name in names:
        named = run_op(PAIRS[index][0](**case.params, algo=name), *arrays)
        np.testing.assert_allclose(named, expected, atol=2e-4 * np.abs(expected).max())


@DIRECTIONS
@pytest.mark.parametrize("threads", [(1, 4), (4, 1), (1, 2)], ids=str)
def test_a_list_runs_with_another_number_of_threads(index, threads):
    """Its plans are for parts of the size that they had when it was opened."""
    case = batch_of(11, kernel=3)
    arrays = operands(case, index, "float32")
    expected = run_op(PAIRS[index][0](**case.params), *arrays)
    ONEDNN.library.omp_set_num_threads(threads[0])
    plans, output = listing(case, index, arrays)
    ONEDNN.library.omp_set_num_threads(threads[1])
    with plans:
        names = [plan.name for plan in plans.plans if plan.api == "onednn" and not plan.reason]
        output.fill(np.nan)
        plans.run([plan.name for plan in plans.plans].index(names[0]))
    np.testing.assert_allclose(output, expected, atol=2e-4 * np.abs(expected).max())


@DIRECTIONS
def test_scratch_memory_does_not_grow_with_the_batch(index, limit):  # noqa: F811
    limit(2**40)
    taken = []
    for size in (4, 16):
        limit(0)
        run_op(OneDnnConv(2), np.ones((1, 1, 3, 3), "float32"), np.ones((1, 1, 3, 3), "float32"))
        limit(2**40)
        case = batch_of(size)
        run_op(PAIRS[index][0](**case.params), *operands(case, index, "float32"))
        taken.append(kept())
    assert 0 < taken[0] == taken[1] < 3 * PART


def test_images_do_not_mix():
    """An image of NaN changes its own result, and the whole gradient of the filters."""
    case = batch_of(11)
    for index, (backend, _) in enumerate(PAIRS):
        op: Any = backend(**case.params)
        arrays = operands(case, index, "float32")
        clean = run_op(op, *arrays)
        spoilt = [a.copy() for a in arrays]
        spoilt[1 if index == 1 else 0][9] = np.nan
        found = run_op(op, *spoilt)
        if index == GRAD_WEIGHTS:
            assert np.isnan(found).all()
            continue
        assert np.isnan(found[9]).any()
        others = np.arange(11) != 9
        np.testing.assert_array_equal(found[others], clean[others])


def test_sums_of_parts_are_accurate():
    """The gradient of the filters of many parts is as accurate as that of one."""
    case = batch_of(41)
    arrays = operands(case, GRAD_WEIGHTS, "float32")
    backend, abstract = (cls(**case.params) for cls in PAIRS[GRAD_WEIGHTS])
    expected = run_op(abstract, *in_double(arrays))
    error = np.abs(run_op(backend, *arrays) - expected).max() / np.abs(expected).max()
    assert error < 1e-5

"""Winograd convolution: when it is used, accuracy; test_own_ways.py has further tests."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytensor
import pytest
from hypothesis import strategies as st

from dnnops.cpu.conv import OneDnnConv
from dnnops.errors import DnnValueError
from dnnops.runtime.build import ONEDNN
from tests.cpu.conv.test_conv import PAIRS, in_double, operands
from tests.cpu.own_ways import (  # noqa: F401
    DIRECTIONS,
    GRAD_INPUTS,
    GRAD_WEIGHTS,
    THREADS,
    Way,
    tensors,
    two_threads,
)
from tests.oracle import ConvCase, assert_close, fuzz, run_op

#: Smallest number of 4 x 4 output tiles per thread.
TILES = 24 * THREADS

needs_avx512 = pytest.mark.needs("avx512")


def uses_winograd(op: Any, *arrays: np.ndarray) -> bool:
    words = op.words
    answer = ONEDNN.library.dnnops_onednn_conv_uses_winograd(
        ctypes.c_void_p(words.ctypes.data), tensors(op.make_node(*arrays), arrays)
    )
    assert answer in (0, 1)
    return bool(answer)


def make_case(
    index: int,
    batch: int,
    channels: tuple[int, int],
    size: tuple[int, ...],
    pads: Any = ((1, 1), (1, 1)),
    flip: bool = True,
    seed: int = 0,
) -> ConvCase:
    """Return a case in which the array that is cut into tiles has the spatial shape `size`."""
    img = size
    if index != GRAD_INPUTS:
        img = tuple(n + 2 - sum(pad) for n, pad in zip(size, pads, strict=True))
    return ConvCase(
        img_shape=(batch, channels[0], *img),
        kern_shape=(channels[1], channels[0], 3, 3),
        border_mode=tuple(pads),
        subsample=(1, 1),
        filter_flip=flip,
        filter_dilation=(1, 1),
        num_groups=1,
        seed=seed,
    )


#: Sizes that use at least 0.6 of the tiles' area, whichever is drawn.
_WHOLE, _ANY = st.sampled_from([4, 8, 12, 16]), st.integers(3, 18)
_PARTIAL = st.sampled_from([7, 10, 11, 13, 14, 15, 17, 18])
SIZES = st.one_of(st.tuples(_WHOLE, _ANY), st.tuples(_ANY, _WHOLE), st.tuples(_PARTIAL, _PARTIAL))


@st.composite
def winograd_cases(draw: st.DrawFn, index: int) -> ConvCase:
    """Return a strategy for cases above the thresholds, with whole and partial tiles."""
    pad, channel = st.integers(0, 2), st.integers(16, 40)
    rows, columns = draw(SIZES)
    tiles = -(-rows // 4) * -(-columns // 4)
    return make_case(
        index,
        batch=-(-TILES // tiles) + draw(st.integers(0, 2)),
        channels=(draw(channel), draw(channel)),
        size=(rows, columns),
        pads=tuple((draw(pad), draw(pad)) for _ in range(2)),
        flip=draw(st.booleans()),
        seed=draw(st.integers(0, 2**32 - 1)),
    )


def unspoilt(index: int, finite: np.ndarray) -> np.ndarray:
    """Return where no tile of 6 x 6 inputs, or no filter's sums, contain a spoilt pixel."""
    far = np.ones(finite.shape, bool)
    if index == GRAD_WEIGHTS:
        far[:, 3] = False
    else:
        far[2, :, 0:12, 0:12] = False
    return far


WAY = Way(
    "winograd",
    winograd_cases,
    repeated=lambda index: [
        (make_case(index, 9, (40, 33), (18, 15)), make_case(index, 8, (64, 48), (16, 20)))
    ],
    spoilt=lambda index: make_case(index, 6, (20, 24), (15, 16)),
    unspoilt=unspoilt,
    cancels=False,
)


def check(case: ConvCase, index: int, used: bool = True) -> None:
    backend, abstract = (cls(**case.params) for cls in PAIRS[index])
    arrays = operands(case, index, "float32")
    assert uses_winograd(backend, *arrays) == used
    assert_close(run_op(backend, *arrays), run_op(abstract, *in_double(arrays)), allow_zero=True)


@needs_avx512
@DIRECTIONS
@pytest.mark.parametrize(
    ("batch", "channels", "size"),
    [
        (1, (16, 17), (7, 500)),  # rows of more tiles than a chunk takes, cut into segments
        (1, (100, 130), (7, 500)),
        (40, (16, 16), (13, 3)),  # a single column of tiles
        (3, (96, 128), (33, 34)),  # larger chunks, three panels of filters
        (48, (176, 64), (4, 4)),  # several images a chunk
    ],
)
def test_shapes(index, batch, channels, size):
    pads = ((1, 1), (2, 1))
    check(make_case(index, batch, channels, size, pads), index)


@needs_avx512
@DIRECTIONS
def test_many_channels_are_accurate(index):
    check(make_case(index, 4, (512, 64), (14, 14)), index)
    check(make_case(index, 4, (64, 512), (14, 14)), index)


@needs_avx512
@DIRECTIONS
def test_many_tiles_are_accurate(index):
    check(make_case(index, 4, (16, 16), (128, 128)), index)


@needs_avx512
@DIRECTIONS
@fuzz(max_examples=60, data=st.data())
def test_used_above_the_thresholds(index, data):
    case = data.draw(winograd_cases(index))
    assert uses_winograd(PAIRS[index][0](**case.params), *operands(case, index, "float32"))


@needs_avx512
@DIRECTIONS
@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_used_with_enough_tiles_per_thread(index, threads):
    ONEDNN.library.omp_set_num_threads(threads)
    for batch in (2 * threads - 1, 2 * threads):  # of 12 tiles each
        case = make_case(index, batch, (40, 33), (12, 16))
        used = uses_winograd(PAIRS[index][0](**case.params), *operands(case, index, "float32"))
        assert used == (batch == 2 * threads)


@needs_avx512
@DIRECTIONS
def test_unsuitable_cases_run_in_onednn(index):
    """Any change of a suitable case makes oneDNN compute it."""
    suiting = {"batch": 8, "channels": (32, 32), "size": (16, 16)}
    check(make_case(index, **suiting), index)
    for change in ({"batch": 2}, {"channels": (15, 64)}, {"channels": (64, 15)}, {"size": (5, 5)}):
        check(make_case(index, **{**suiting, **change}), index, used=False)
    arrays = operands(make_case(index, **suiting), index, "float32")
    op = PAIRS[index][0](2, border_mode=1)
    assert uses_winograd(op, *arrays)
    assert not uses_winograd(op, *in_double(arrays))


@needs_avx512
def test_other_geometries_do_not_suit():
    def used(*kernel: int, img: tuple[int, ...] = (8, 32, 16, 16), **params: Any) -> bool:
        kern = np.zeros((32, 32 // params.get("num_groups", 1), *kernel), "float32")
        return uses_winograd(OneDnnConv(len(kernel), **params), np.zeros(img, "float32"), kern)

    assert used(3, 3)
    assert used(3, 3, border_mode="half")
    assert used(3, 3, border_mode="full")
    assert not used(3, 3, border_mode=3)
    assert not used(3, 3, subsample=(1, 2))
    assert not used(3, 3, filter_dilation=(2, 1))
    assert not used(3, 3, num_groups=2)
    assert not used(3, 5)
    assert not used(1, 3)
    assert not used(3, 3, 3, img=(8, 32, 8, 8, 8))


@needs_avx512
@DIRECTIONS
def test_direct(index):
    """If it is disabled, oneDNN computes the result, which differs in the last bit."""
    case = make_case(index, 8, (32, 32), (16, 16))
    backend = PAIRS[index][0](**case.params)
    arrays = operands(case, index, "float32")
    out = run_op(backend, *arrays)
    with pytensor.config.change_flags(onednn__conv__algo="direct"):
        by_flag = PAIRS[index][0](**case.params)
    assert by_flag == PAIRS[index][0](**case.params, algo="direct") != backend
    assert uses_winograd(backend, *arrays)
    assert not uses_winograd(by_flag, *arrays)
    direct = run_op(by_flag, *arrays)
    assert_close(direct, out)
    assert (direct != out).any()


def test_unknown_algorithm():
    with pytest.raises(DnnValueError, match=r"algo must be one of auto, direct, or .*, got 'fast'"):
        OneDnnConv(2, algo="fast")


def test_errors_are_the_same():
    img, kern = np.zeros((8, 32, 16, 16), "float32"), np.zeros((32, 32, 3, 3), "float32")
    op = OneDnnConv(2)
    words = op.words
    described = tensors(op.make_node(img, kern), (img, kern))
    described[1].shape[1] = 31
    query = ONEDNN.library.dnnops_onednn_conv_uses_winograd
    assert query(ctypes.c_void_p(words.ctypes.data), described) == -1
    with pytest.raises(DnnValueError):
        run_op(op, img, kern[:, :31])


@needs_avx512
def test_a_nan_stays_in_its_tile_and_direct_keeps_it_to_its_pixels():
    """NaNs spread as the documentation says."""
    x = np.ones((1, 64, 24, 24), "float32")
    w = np.ones((64, 64, 3, 3), "float32")
    x[0, 0, 10, 11] = np.nan
    found = {}
    for algorithm in ("winograd", "direct"):
        with pytensor.config.change_flags(onednn__conv__algo=algorithm):
            found[algorithm] = np.isnan(run_op(OneDnnConv(2, "half"), x, w)[0, 0])
    expected = np.zeros((24, 24), bool)
    expected[9:12, 10:13] = True
    np.testing.assert_array_equal(found["direct"], expected)
    assert found["winograd"][expected].all()
    assert found["winograd"].sum() > 9
    rows, columns = np.nonzero(found["winograd"])
    assert rows.min() >= 8
    assert rows.max() < 12
    assert columns.min() >= 8
    assert columns.max() < 16

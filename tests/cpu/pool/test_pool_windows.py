"""Call one compiled function of an image and its windows with many of them."""

from __future__ import annotations

import warnings

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from dnnops.errors import DnnValueError
from dnnops.nnet import AveragePoolGrad, MaxPoolGrad, Pool, pool_2d, pool_3d
from tests.cpu.conv.test_conv import in_double
from tests.oracle import PoolCase, assert_close, run_op


def random_case(rng: np.random.Generator, ndim: int, mode: str, ignore_border: bool) -> PoolCase:
    window = rng.integers(1, 4, ndim)
    return PoolCase(
        img_shape=(*rng.integers(1, 4, 2), *(window + rng.integers(0, 5, ndim))),
        ws=tuple(window),
        stride=tuple(rng.integers(1, 5, ndim)),
        pad=tuple(rng.integers(0, window)) if ignore_border else (0,) * ndim,
        mode=mode,
        ignore_border=ignore_border,
        seed=int(rng.integers(2**32)),
    )


@pytest.mark.parametrize(
    "linker", ["CVM", "DNN", pytest.param(None, id="default", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    ("ndim", "pool_mode", "ignore_border"),
    [
        (2, "max_deterministic", True),
        (2, "sum", False),
        (3, "max", False),
        (3, "average_inc_pad", True),
    ],
)
def test_windows_of_each_call(linker, ndim, pool_mode, ignore_border):
    function = pool_2d if ndim == 2 else pool_3d
    x = pt.tensor("x", shape=(None,) * (ndim + 2), dtype="float32")
    gz = x.type("gz")
    vectors = [pt.ivector(name) for name in ("ws", "stride", "pad")]
    out = function(x, vectors[0], ignore_border, *vectors[1:], mode=pool_mode)
    grad = pytensor.grad((out * gz).sum(), x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # Numba warns when it uses object mode
        f = pytensor.function([x, gz, *vectors], [out, grad], mode=linker)
    rng = np.random.default_rng(ndim)
    for _ in range(40):
        case = random_case(rng, ndim, pool_mode, ignore_border)
        image, top, _ = case.arrays("float32")
        given = [v.astype("int32") for v in case.vectors]
        found = f(image, top, *given)
        wide, wide_top = in_double((image, top))
        pooled = run_op(Pool(ndim, pool_mode, ignore_border), wide, *case.vectors)
        if pool_mode.startswith("max"):
            op = MaxPoolGrad(ndim, ignore_border)
            expected = run_op(op, wide, pooled, wide_top, *case.vectors)
        else:
            op = AveragePoolGrad(ndim, pool_mode, ignore_border)
            expected = run_op(op, wide, wide_top, *case.vectors)
        assert_close(found[0], pooled, allow_zero=True)
        assert_close(found[1], expected, allow_zero=True)
    image = np.ones((1, 1, *(6,) * ndim), "float32")

    def last(value: int, others: int) -> np.ndarray:
        return np.array([others] * (ndim - 1) + [value], "int32")

    wrong = [
        ((last(0, 2), last(2, 2), last(0, 0)), r"ws has to be positive .* got \(.*0\)"),
        ((last(2, 2), last(0, 2), last(0, 0)), r"stride has to be positive .* got \(.*0\)"),
        ((last(2, 2), last(-1, 2), last(0, 0)), r"stride has to be positive .* got \(.*-1\)"),
        ((last(2, 2), last(2, 2), last(-1, 0)), r"pad has to be at least 0 .* got \(.*-1\)"),
        ((last(2, 2), last(2, 2), last(2, 0)), "pad 2 has to be smaller than ws 2 on spatial axis"),
    ]
    if not ignore_border:
        wrong.append(((last(2, 2), last(2, 2), last(1, 0)), "padding needs ignore_border=True"))
    for given, message in wrong:
        with pytest.raises(DnnValueError, match=message):
            f(image, image, *given)

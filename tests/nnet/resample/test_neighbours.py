"""Neighborhoods of images: against loops, gradients, errors, and the way back."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.gradient import verify_grad

from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.nnet import images2neibs, neibs2images
from tests.oracle import PERFORM_MODE


def differentiate(fun, x: np.ndarray) -> None:
    """Compare the gradient with finite differences."""
    verify_grad(fun, [x], rng=np.random.default_rng(1), mode=PERFORM_MODE)


def looped(x: np.ndarray, shape, step, mode: str) -> np.ndarray:
    """Loop over neighborhoods and their pixels."""
    (r, c), (down, across) = shape, step
    if mode in ("half", "full"):
        first = [n // 2 if mode == "half" else n - 1 for n in shape]
        x = np.pad(x, ((0, 0), (0, 0), *((n, n) for n in first)))
    height, width = x.shape[2:]
    if mode == "wrap_centered":
        tops = range(-(r // 2), height - r // 2, down)
        lefts = range(-(c // 2), width - c // 2, across)
    else:
        tops, lefts = range(0, height - r + 1, down), range(0, width - c + 1, across)
    rows = [
        [image[(i + a) % height, (j + b) % width] for a in range(r) for b in range(c)]
        for images in x
        for image in images
        for i in tops
        for j in lefts
    ]
    return np.array(rows, dtype=x.dtype).reshape(-1, r * c)


# mode, image, neighborhood, step
CASES = [
    ("valid", (6, 4), (3, 2), None),
    ("valid", (6, 5), (2, 3), (2, 2)),
    ("valid", (4, 4), (4, 4), (1, 3)),
    ("ignore_borders", (7, 5), (2, 3), None),
    ("ignore_borders", (7, 6), (3, 2), (2, 3)),
    ("ignore_borders", (2, 2), (3, 1), None),
    ("half", (5, 6), (3, 2), (2, 3)),
    ("half", (6, 4), (2, 2), None),
    ("full", (5, 4), (3, 2), (1, 1)),
    ("wrap_centered", (5, 6), (3, 5), None),
    ("wrap_centered", (5, 7), (3, 1), (2, 3)),
]


@pytest.mark.parametrize(("mode", "size", "shape", "step"), CASES)
@pytest.mark.parametrize("symbolic", [False, True])
def test_against_loops(mode, size, shape, step, symbolic):
    value = np.random.default_rng(5).integers(0, 99, (2, 3, *size))
    x = pt.ltensor4()
    if symbolic:
        sizes = [pt.lvector(), *([] if step is None else [pt.lvector()])]
        given = [np.array(shape), *([] if step is None else [np.array(step)])]
        fn = pytensor.function([x, *sizes], images2neibs(x, *sizes, mode=mode), mode=PERFORM_MODE)
        found = fn(value, *given)
    else:
        fn = pytensor.function([x], images2neibs(x, shape, step, mode), mode=PERFORM_MODE)
        found = fn(value)
    expected = looped(value, shape, step or shape, mode)
    assert found.shape == expected.shape
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("mode", "size", "shape", "step"), CASES)
def test_gradients(mode, size, shape, step):
    x = np.random.default_rng(6).standard_normal((1, 2, *size))
    if looped(x, shape, step or shape, mode).size:
        differentiate(lambda v: images2neibs(v, shape, step, mode), x)


@pytest.mark.parametrize("static", [False, True])
def test_inverse(static):
    value = np.random.default_rng(7).standard_normal((2, 3, 7, 8))
    x = pt.tensor(dtype="float64", shape=value.shape if static else (None,) * 4)
    whole = neibs2images(images2neibs(x[:, :, :6], (3, 2)), (3, 2), x[:, :, :6].shape)
    cut = neibs2images(
        images2neibs(x, (3, 3), mode="ignore_borders"), (3, 3), x.shape, "ignore_borders"
    )
    found = pytensor.function([x], [whole, cut], mode=PERFORM_MODE)(value)
    np.testing.assert_array_equal(found[0], value[:, :, :6])
    value[:, :, 6:] = value[:, :, :, 6:] = 0
    np.testing.assert_array_equal(found[1], value)


def test_gradient_of_the_way_back():
    matrix = np.random.default_rng(8).standard_normal((12, 6))
    differentiate(lambda v: neibs2images(v, (3, 2), (2, 1, 6, 6)), matrix)


def test_disjoint_neighbourhoods_use_no_indices():
    x = pt.ftensor4()
    out = images2neibs(x, (2, 2), (2, 2))
    fn = pytensor.function([x], pytensor.grad(out.sum(), x))
    assert not [n for n in fn.maker.fgraph.apply_nodes if "Advanced" in str(n.op)]


def test_errors():
    x = pt.tensor(dtype="float32", shape=(1, 1, 5, 6))
    with pytest.raises(DnnValueError, match="mode must be one of valid, half, full"):
        images2neibs(x, (1, 1), mode="same")
    with pytest.raises(DnnTypeError, match="images2neibs: ten4 must have 4 dimensions, got 3"):
        images2neibs(pt.ftensor3(), (1, 1))
    with pytest.raises(DnnValueError, match="must fill the images of ten4 exactly"):
        images2neibs(x, (2, 2))
    late = pytensor.function([y := pt.ftensor4()], images2neibs(y, (2, 2)), mode="FAST_COMPILE")
    # Theano raised a TypeError.
    with pytest.raises(TypeError, match="must fill the images of ten4 exactly"):
        late(np.zeros((1, 1, 5, 6), "float32"))
    with pytest.raises(DnnValueError, match="neib_step must be between 1 and"):
        images2neibs(x, (2, 2), (0, 1))
    with pytest.raises(DnnValueError, match="neib_shape must be odd"):
        images2neibs(x, (2, 3), mode="wrap_centered")
    with pytest.raises(DnnTypeError, match="neib_shape must be a vector of 2 integers"):
        images2neibs(x, (2.0, 2.0))
    with pytest.raises(
        DnnValueError, match="mode must be one of valid, ignore_borders, got 'half'"
    ):
        neibs2images(pt.fmatrix(), (2, 2), (1, 1, 4, 4), mode="half")
    with pytest.raises(DnnValueError, match="neib_shape must divide the images' sizes"):
        neibs2images(pt.fmatrix(), (2, 2), (1, 1, 5, 4))
    x, shape = pt.ftensor4(), pt.lvector()
    fn = pytensor.function([x, shape], images2neibs(x, shape), mode=PERFORM_MODE)
    for wrong in ((2, 2), (0, 1), (7, 1)):
        with pytest.raises(DnnValueError, match="images2neibs: "):
            fn(np.zeros((1, 1, 5, 6), "float32"), np.array(wrong))

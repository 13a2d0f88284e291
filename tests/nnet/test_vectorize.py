"""vectorize_graph over convolutions and pooling: one Op with the results of a loop."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.replace import vectorize_graph
from pytensor.graph.traversal import ancestors
from pytensor.scan.op import Scan
from pytensor.tensor.blockwise import Blockwise

from dnnops.errors import DnnValueError
from dnnops.nnet import (
    AveragePoolGrad,
    BatchNormInference,
    BatchNormTrain,
    BatchNormTrainGrad,
    Conv,
    ConvGradInputs,
    ConvGradWeights,
    MaxPoolGrad,
    MaxPoolGradGrad,
    Pool,
)
from tests.oracle import PERFORM_MODE

PARAMETERS = {"border_mode": ((1, 0), (2, 1)), "subsample": (2, 1), "num_groups": 2}
IMG, KERN, TOP = (3, 4, 6, 5), (6, 2, 2, 3), (3, 6, 3, 6)
POOLED = (3, 4, 3, 2)
POOL = ([2, 2], [2, 2], [0, 0])

CONV: dict = {
    "conv": (Conv(2, **PARAMETERS), (IMG, KERN), ()),
    "grad inputs": (ConvGradInputs(2, **PARAMETERS), (KERN, TOP), (IMG[2:],)),
    "grad weights": (ConvGradWeights(2, **PARAMETERS), (IMG, TOP), (KERN[2:],)),
}
POOLING = {
    "max": (Pool(2, "max", True), (IMG,), POOL),
    "average": (Pool(2, "average_inc_pad", True), (IMG,), POOL),
    "max grad": (MaxPoolGrad(2, True), (IMG, POOLED, POOLED), POOL),
    "average grad": (AveragePoolGrad(2, "average_inc_pad", True), (IMG, POOLED), POOL),
    "max grad grad": (MaxPoolGradGrad(2, True), (IMG, POOLED, IMG), POOL),
}
CASES = {**CONV, **POOLING}


def check(op, shapes, rest, lead, static=True):
    """Compare with a loop over the extra axes; `lead[i]` are those of operand i."""
    rng = np.random.default_rng(0)
    data = [
        rng.standard_normal((*extra, *shape)) for extra, shape in zip(lead, shapes, strict=True)
    ]
    inner = [pt.tensor(shape=(None,) * 4) for _ in data]
    outer = [pt.tensor(shape=x.shape if static else (None,) * x.ndim) for x in data]
    vectors = [np.array(v) for v in rest]
    out = op(*inner, *vectors)
    vectorized = vectorize_graph(out, dict(zip(inner, outer, strict=True)))
    function = pytensor.function(outer, vectorized, mode="FAST_COMPILE")
    kinds = [type(node.op) for node in function.maker.fgraph.apply_nodes]
    assert Blockwise not in kinds
    assert kinds.count(type(op)) == 1

    one = pytensor.function(inner, out, mode="FAST_COMPILE")
    batch = np.broadcast_shapes(*lead)
    spread = [np.broadcast_to(x, (*batch, *x.shape[-4:])) for x in data]
    expected = np.array([one(*(x[i] for x in spread)) for i in np.ndindex(batch)])
    result = function(*data)
    np.testing.assert_allclose(result, expected.reshape(*batch, *expected.shape[1:]), atol=1e-12)
    assert vectorized.type.ndim == result.ndim


@pytest.mark.parametrize("name", CASES)
def test_all_operands(name):
    op, shapes, rest = CASES[name]
    check(op, shapes, rest, [(2, 3)] * len(shapes))


@pytest.mark.parametrize("name", CASES)
def test_one_operand(name):
    op, shapes, rest = CASES[name]
    for i in range(len(shapes)):
        check(op, shapes, rest, [(2,) if i == j else () for j in range(len(shapes))])


@pytest.mark.parametrize("name", ["conv", "grad inputs", *POOLING])
def test_images_whose_shapes_are_unknown(name):
    op, shapes, rest = CASES[name]
    check(op, shapes, rest, [() if s == KERN else (2, 2) for s in shapes], static=False)


@pytest.mark.parametrize("name", ["conv", "grad weights", "max grad"])
def test_broadcast_axes(name):
    op, shapes, rest = CASES[name]
    check(op, shapes, rest, [(1, 3), (2, 1), (3,)][: len(shapes)])


PERFORM = {"mode": PERFORM_MODE, "on_unused_input": "ignore"}


def numpy_loops(outputs):
    """Return the Ops of dnnops that PyTensor loops over in Python."""
    return [
        x.owner.op.core_op
        for x in ancestors(outputs)
        if x.owner is not None
        and isinstance(x.owner.op, Blockwise)
        and type(x.owner.op.core_op).__module__.startswith("dnnops")
    ]


@pytest.mark.parametrize(
    ("border", "flip"), [("half", True), ("full", False), (((1, 0), (2, 1)), True)]
)
def test_filters_whose_number_is_unknown(border, flip):
    """Each image and each filter has its own extra axes; gradients of both, too."""
    rng = np.random.default_rng(0)
    op = Conv(2, border, (2, 1), flip, (1, 2), 2)
    img, kern = (pt.tensor(shape=(None,) * 4) for _ in range(2))
    out = op(img, kern)
    outputs = [out, *pytensor.grad((out**3).sum(), [img, kern])]
    one = pytensor.function([img, kern], outputs, **PERFORM)
    images, filters = rng.standard_normal((3, 2, *IMG)), rng.standard_normal((3, 2, *KERN))
    for of_images, of_filters in [((3, 2), (3, 2)), ((), (2,)), ((2,), ())]:
        lead = (*of_images, *IMG), (*of_filters, *KERN)
        xs, ks = (pt.tensor(shape=(None,) * len(shape)) for shape in lead)
        vectorized = vectorize_graph(outputs, {img: xs, kern: ks})
        assert not numpy_loops(vectorized)
        many = pytensor.function([xs, ks], vectorized, **PERFORM)
        batch = np.broadcast_shapes(of_images, of_filters)
        x, k = images[(0,) * (2 - len(of_images))], filters[(0,) * (2 - len(of_filters))]
        x, k = x[tuple(map(slice, of_images))], k[tuple(map(slice, of_filters))]
        found = many(x, k)
        wide = [np.broadcast_to(a, (*batch, *a.shape[-4:])) for a in (x, k)]
        for i in np.ndindex(batch):
            for result, expected in zip(found, one(*(a[i] for a in wide)), strict=True):
                np.testing.assert_allclose(result[i], expected, rtol=1e-10, atol=1e-10)
        empty = (0, *batch[1:])
        found = many(*(a[:0] if a.ndim > 4 else a for a in (x, k)))
        shapes = [a.shape for a in one(images[0, 0], filters[0, 0])]
        assert [a.shape for a in found] == [(*empty, *shape) for shape in shapes]


def test_sizes_that_entries_share():
    """Sizes may depend on the sizes of images; others must be the same for all entries."""
    x, xs = pt.tensor(shape=(None,) * 4), pt.tensor(shape=(None,) * 5)
    sizes, several = pt.lvector(), pt.lmatrix()
    whole = Pool(2, "max", True)(x, x.shape[2:], x.shape[2:], [0, 0])
    part = Pool(2, "max", True)(x, sizes, sizes, [0, 0])
    vectorized = vectorize_graph([whole, part], {x: xs, sizes: several})
    assert not numpy_loops(vectorized)
    function = pytensor.function([xs, several], vectorized, **PERFORM)
    one = pytensor.function([x, sizes], [whole, part], **PERFORM)
    values = np.random.default_rng(0).standard_normal((3, *IMG))
    found = function(values, [[2, 3]] * 3)
    for i in range(3):
        for result, expected in zip(found, one(values[i], [2, 3]), strict=True):
            np.testing.assert_array_equal(result[i], expected)
    with pytest.raises(DnnValueError, match="must be the same for all entries"):
        function(values, [[2, 3], [2, 3], [1, 3]])
    function = pytensor.function([xs], vectorized[0], **PERFORM)
    assert function(values[:0]).shape == (0, 3, 4, 1, 1)


def test_other_sizes_are_refused():
    # 2 * 3 images against 3 * 2: as many, but not the same.
    x, gz = (pt.tensor(shape=(None,) * 4) for _ in range(2))
    grad = AveragePoolGrad(2, "sum", True)(x, gz, *map(np.array, POOL))
    outer = [pt.tensor(shape=(None,) * 5) for _ in range(2)]
    vectorized = vectorize_graph(grad, {x: outer[0], gz: outer[1]})
    function = pytensor.function(outer, vectorized, mode="FAST_COMPILE")
    with pytest.raises(ValueError, match=r"reshape|size"):
        function(np.ones((2, 3, 1, 2, 2)), np.ones((3, 2, 1, 1, 1)))


# -- batch normalization ---------------------------------------------------------------------

NORMALIZATIONS = {
    "train": BatchNormTrain,
    "running": lambda axes: BatchNormTrain(axes, True),
    "grad": BatchNormTrainGrad,
    "inference": BatchNormInference,
}


def check_batchnorm(op, lead, shape=(4, 3, 5, 2), static=False, loops=False):
    """Compare with a loop over the extra axes; `lead[name]` are those of an operand."""
    rng = np.random.default_rng(0)
    parameter_shape = tuple(1 if i in op.axes else n for i, n in enumerate(shape))
    data, inner, outer = {}, {}, {}
    for name in op.operands:
        core = () if name in op.scalars else shape if name in op.data else parameter_shape
        high = min(2, op.scalars.get(name, (0, 2))[1])
        data[name] = rng.uniform(0.5, high, (*lead.get(name, ()), *core))
        inner[name] = pt.tensor(shape=(None,) * len(core))
        lead_shape = lead.get(name, ())
        outer[name] = pt.tensor(
            shape=(
                data[name].shape
                if static
                else [1 if n == 1 else None for n in lead_shape] + [None] * len(core)
            )
        )
    out = op.make_node(*inner.values()).outputs
    vectorized = vectorize_graph(out, {inner[name]: outer[name] for name in op.operands})
    function = pytensor.function(
        list(outer.values()), vectorized, mode=PERFORM_MODE if loops else "FAST_COMPILE"
    )
    kinds = [type(node.op) for node in function.maker.fgraph.apply_nodes]
    assert Blockwise not in kinds
    assert kinds.count(Scan) == loops
    assert kinds.count(type(op)) == (not loops)

    one = pytensor.function(list(inner.values()), out, mode="FAST_COMPILE")
    batch = np.broadcast_shapes(*lead.values())
    spread = {
        name: np.broadcast_to(x, (*batch, *x.shape[len(lead.get(name, ())) :]))
        for name, x in data.items()
    }
    expected = [one(*(x[i] for x in spread.values())) for i in np.ndindex(batch)]
    for result, variable, parts in zip(
        function(*data.values()), vectorized, zip(*expected, strict=True), strict=True
    ):
        assert variable.type.ndim == result.ndim
        reference = np.array(parts).reshape(*batch, *parts[0].shape)
        np.testing.assert_allclose(result, reference, atol=1e-12)


@pytest.mark.parametrize("axes", [(0, 2, 3), (0,), (0, 1, 2, 3), (1, 3)])
@pytest.mark.parametrize("name", NORMALIZATIONS)
def test_batch_normalization(name, axes):
    op = NORMALIZATIONS[name](axes)
    operands = [o for o in op.operands if o not in op.scalars]
    check_batchnorm(op, dict.fromkeys(operands, (2, 3)))
    check_batchnorm(op, dict.fromkeys(operands, (2, 3)), static=True)


@pytest.mark.parametrize("name", NORMALIZATIONS)
def test_batch_normalization_of_one_operand(name):
    op = NORMALIZATIONS[name]((0, 2, 3))
    for operand in op.operands:
        # A number cannot have axes of its own, so the Op is in a loop.
        check_batchnorm(op, {operand: (2,)}, loops=operand in op.scalars)


def test_batch_normalization_with_broadcast_axes():
    check_batchnorm(BatchNormTrain((0, 2, 3)), {"x": (1, 3), "scale": (2, 1), "bias": (3,)})


def test_axes_of_a_vectorized_batch_normalization_are_neighbors():
    x, scale = (pt.tensor(shape=(None,) * 4) for _ in range(2))
    out = BatchNormTrain((0, 2, 3))(x, scale, scale, 1e-4)[0]
    many = pt.tensor(shape=(None,) * 6)
    (node,) = [
        v.owner
        for v in pytensor.graph.ancestors([vectorize_graph(out, {x: many})])
        if v.owner is not None and isinstance(v.owner.op, BatchNormTrain)
    ][:1]
    assert node.op.axes == (0, 4, 5)

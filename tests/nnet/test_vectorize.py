"""vectorize_graph over convolutions and pooling: one Op with the results of a loop."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.replace import vectorize_graph
from pytensor.tensor.blockwise import Blockwise

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


def check(op, shapes, rest, lead, static=True, loops=False):
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
    assert (Blockwise in kinds) == loops
    assert kinds.count(type(op)) == (not loops)

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


def test_filters_whose_number_is_unknown_are_left_to_pytensor():
    op, shapes, rest = CONV["conv"]
    check(op, shapes, rest, [(2,), (2,)], static=False, loops=True)


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
    function = pytensor.function(list(outer.values()), vectorized, mode="FAST_COMPILE")
    kinds = [type(node.op) for node in function.maker.fgraph.apply_nodes]
    assert (Blockwise in kinds) == loops
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
        # A number cannot have axes of its own.
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

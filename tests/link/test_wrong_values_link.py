"""Arguments that the Ops reject, under JAX and PyTorch: an error, or NaN if none is possible."""

from __future__ import annotations

import numpy as np
import pytensor.tensor as pt
import pytest
from pytensor.graph.basic import Apply

from dnnops.errors import DnnError, DnnIndexError, DnnValueError
from dnnops.nnet import (
    Attention,
    AttentionGrad,
    AveragePoolGrad,
    BatchNormInference,
    BatchNormTrain,
    CrossEntropy,
    CrossEntropyGrad,
    Dropout,
    DropoutGrad,
    Pool,
    RNNForward,
    SpatialTransformerGrid,
    SpatialTransformerSamplerGrad,
)
from tests.link.conversions import both_libraries, converted, perform

_IMAGE = np.arange(24.0).reshape(2, 3, 2, 2) + 1
_VECTOR = np.ones((1, 3, 1, 1))
_NETWORK = RNNForward("gru", 2, 1, has_lengths=True)
_SEQUENCES = (
    np.ones(_NETWORK.layout.param_size(3)),
    np.ones((4, 2, 3)),
    np.ones((1, 2, 2)),
)
_QUERY = np.ones((2, 1, 3, 4))
_ATTENTION = (_QUERY, _QUERY, _QUERY)
_RESULTS = perform(Attention(), *_ATTENTION)


def train(epsilon, factor):
    """Return the operands of batch normalization."""
    return _IMAGE, _VECTOR, _VECTOR, epsilon, factor, _VECTOR, _VECTOR


#: An Op, operands that it rejects, the index of the wrong one, and a part of the message.
WRONG_VALUES = {
    **{
        f"dropout p={p}": (Dropout(), (_IMAGE, np.array(p), np.array([1, 2])), 1, "p must be")
        for p in (1.5, 1.01, -0.1, np.nan)
    },
    "dropout gradient": (
        DropoutGrad(),
        (_IMAGE, np.array(3.0), np.full(3, 255, "uint8")),
        1,
        "p must be",
    ),
    "factor 3": (BatchNormTrain((0, 2, 3), True), train(0.1, np.array(3.0)), 4, "factor"),
    "factor -1": (BatchNormTrain((0, 2, 3), True), train(0.1, np.array(-1.0)), 4, "factor"),
    "epsilon": (BatchNormTrain((0, 2, 3), True), train(np.array(-1e-9), 0.5), 3, "epsilon"),
    "infinite epsilon": (
        BatchNormInference((0, 2, 3)),
        (_IMAGE, *(_VECTOR,) * 4, np.array(np.inf)),
        5,
        "epsilon",
    ),
    "key lengths": (
        Attention(optional=("key_lengths",)),
        (*_ATTENTION, np.array([3, 4])),
        3,
        "key_lengths",
    ),
    "query lengths": (
        Attention(optional=("query_lengths",)),
        (*_ATTENTION, np.array([-1, 2])),
        3,
        "query_lengths",
    ),
    "key lengths of a gradient": (
        AttentionGrad(optional=("key_lengths",)),
        (*_ATTENTION, np.array([3, 4]), *_RESULTS, _QUERY),
        3,
        "key_lengths",
    ),
    "no steps": (_NETWORK, (*_SEQUENCES, np.array([0, 4])), 3, "lengths"),
    "too many steps": (_NETWORK, (*_SEQUENCES, np.array([5, 4])), 3, "lengths"),
    "labels": (CrossEntropy(), (np.ones((2, 3)), np.array([3, 3])), 1, "labels"),
    "labels of a gradient": (
        CrossEntropyGrad(),
        (np.ones(2), np.ones((2, 3)), np.array([-4, 9]), np.ones((2, 2))),
        2,
        "labels",
    ),
}
wrong_values = pytest.mark.parametrize("name", WRONG_VALUES)


@both_libraries
@wrong_values
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_variable(library, name):
    op, arrays, place, named = WRONG_VALUES[name]
    with pytest.raises((DnnValueError, DnnIndexError)) as refused:
        perform(op, *arrays)
    run = converted(library, op, *arrays, symbolic=[place])
    if library == "torch":
        with pytest.raises(type(refused.value), match=named):
            run(*arrays)
        return
    results = [x for x in run(*arrays) if x.dtype.kind == "f" and x.size]
    assert results
    # Statistics of cross-entropy do not depend on the labels.
    for x in results[:1] if isinstance(op, CrossEntropy) else results:
        assert np.isnan(x).all()


@both_libraries
@wrong_values
def test_a_constant_that_was_computed_after_the_node_was_made(library, name):
    """Rewrites insert constants into nodes without asking the Op."""
    op, arrays, place, named = WRONG_VALUES[name]
    inputs = [pt.tensor(dtype=np.asarray(a).dtype, shape=np.shape(a)) for a in arrays]
    node = op.make_node(*inputs)
    inputs[place] = pt.constant(np.asarray(arrays[place], node.inputs[place].type.dtype))
    if library == "jax":
        from pytensor.link.jax.dispatch import jax_funcify as funcify
    else:
        from pytensor.link.pytorch.dispatch import pytorch_funcify as funcify
    with pytest.raises((DnnValueError, DnnIndexError), match=named):
        funcify(op, node=Apply(op, inputs, [x.clone() for x in node.outputs]))


@both_libraries
def test_values_that_are_allowed(library):
    for op, arrays, symbolic in (
        (Dropout(), (_IMAGE, np.array(0.0), np.array([1, 2])), [1]),
        (BatchNormTrain((0, 2, 3), True), train(np.array(0.0), np.array(1.0)), [3, 4]),
        (Attention(optional=("key_lengths",)), (*_ATTENTION, np.array([0, 3])), [3]),
        (_NETWORK, (*_SEQUENCES, np.array([1, 4])), [3]),
        (CrossEntropy(), (np.ones((2, 3)), np.array([-3, 2])), [1]),
    ):
        found = converted(library, op, *arrays, symbolic=symbolic)(*arrays)
        for x, expected in list(zip(found, perform(op, *arrays), strict=True))[:2]:
            np.testing.assert_allclose(x, expected, atol=1e-12)


#: Operands with inconsistent shapes, which a library would broadcast or truncate.
WRONG_SHAPES = {
    "bytes of a reserve": (DropoutGrad(), (_IMAGE, 0.5, np.full(2, 255, "uint8"))),
    "no elements": (BatchNormTrain((0, 2, 3)), (_IMAGE[:0], _VECTOR, _VECTOR, 0.1)),
    "gradients of costs": (
        CrossEntropyGrad(),
        (np.ones(3), np.ones((2, 3)), np.array([0, 1]), np.ones((2, 2))),
    ),
    "statistics of costs": (
        CrossEntropyGrad(),
        (np.ones(2), np.ones((2, 3)), np.array([0, 1]), np.ones((1, 2))),
    ),
    "batch of attention": (Attention(), (_QUERY, _QUERY[:1], _QUERY[:1])),
    "values of attention": (Attention(), (_QUERY, _QUERY, _QUERY[:, :, :2])),
    "mask": (Attention(optional=("mask",)), (*_ATTENTION, np.ones((2, 1, 2, 3), bool))),
    "output's gradient": (AttentionGrad(), (*_ATTENTION, *_RESULTS, _QUERY[:1])),
    "theta": (SpatialTransformerGrid(), (np.ones((2, 2, 4)), np.array([2, 2]))),
    "samples' gradient": (
        SpatialTransformerSamplerGrad(),
        (_IMAGE, np.zeros((2, 4, 4, 2)), np.ones((2, 3, 1, 4))),
    ),
    "pooled image": (
        AveragePoolGrad(2, "sum", True),
        (_IMAGE, _IMAGE, *(np.array(v) for v in ([2, 2], [2, 2], [0, 0]))),
    ),
}


@both_libraries
@pytest.mark.parametrize("name", WRONG_SHAPES)
def test_shapes(library, name):
    op, arrays = WRONG_SHAPES[name]
    with pytest.raises(DnnError):
        perform(op, *arrays)
    variables = [pt.tensor(dtype=a.dtype, shape=(None,) * a.ndim) for a in map(np.asarray, arrays)]
    operands = [
        pt.constant(a) if v.type.dtype == "int64" and not isinstance(op, CrossEntropyGrad) else v
        for a, v in zip(arrays, variables, strict=True)
    ]
    if library == "jax":
        from pytensor.link.jax.dispatch import jax_funcify

        run, given = jax_funcify(op, node=op.make_node(*operands)), arrays
    else:
        import torch
        from pytensor.link.pytorch.dispatch import pytorch_funcify

        run = pytorch_funcify(op, node=op.make_node(*operands))
        given = [torch.tensor(a) for a in arrays]
    with pytest.raises(DnnError):
        run(*given)


@pytest.mark.needs("torch")
@pytest.mark.parametrize(
    ("ws", "stride", "pad", "ignore_border"),
    [
        ([0, 2], [1, 1], [0, 0], True),
        ([2, 2], [1, 0], [0, 0], True),
        ([2, 2], [1, 1], [2, 0], True),
        ([2, 2], [1, 1], [-1, 0], True),
        ([2, 2], [1, 1], [1, 0], False),
    ],
)
def test_sizes_of_windows_that_are_values_in_pytorch(ws, stride, pad, ignore_border):
    op, vectors = Pool(2, "max", ignore_border), [np.array(v) for v in (ws, stride, pad)]
    with pytest.raises(DnnValueError):
        perform(op, _IMAGE, *vectors)
    run = converted("torch", op, _IMAGE, *vectors, symbolic=[1, 2, 3])
    with pytest.raises(DnnValueError):
        run(_IMAGE, *vectors)


@pytest.mark.needs("torch")
def test_sizes_of_a_grid_that_are_values_in_pytorch():
    arrays = np.ones((1, 2, 3)), np.array([0, 2])
    run = converted("torch", SpatialTransformerGrid(), *arrays, symbolic=[1])
    with pytest.raises(DnnValueError, match="out_shape"):
        run(*arrays)


@pytest.mark.needs("torch")
def test_pytorch_compiles_one_graph_with_the_checks():
    import torch
    from pytensor.link.pytorch.dispatch import pytorch_funcify

    for op, arrays, place in (
        (CrossEntropy(), (np.ones((2, 3)), np.array([0, 2])), 1),
        (Dropout(), (_IMAGE, np.array(0.5), np.array([1, 2])), 1),
    ):
        variables = [pt.tensor(dtype=a.dtype, shape=(None,) * a.ndim) for a in arrays]
        run = pytorch_funcify(op, node=op.make_node(*variables))
        function = torch.compile(run, backend="eager", fullgraph=True, dynamic=True)
        given = [torch.tensor(a) for a in arrays]
        assert torch.isfinite(function(*given)[0]).all()
        given[place] = given[place] + 5
        with pytest.raises(DnnError):
            function(*given)

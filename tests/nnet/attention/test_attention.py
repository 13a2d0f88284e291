"""Scaled dot-product attention: against PyTorch, derivatives, errors."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.gradient import verify_grad

from dnnops.errors import DnnNotSupportedError, DnnTypeError, DnnValueError
from dnnops.nnet import Attention, AttentionGrad, Dropout, scaled_dot_product_attention
from tests.cpu.test_batchnorm import run_all
from tests.nnet.attention.attention_cases import Case, cases
from tests.oracle import (
    PERFORM_MODE,
    assert_close,
    check_gradient,
    check_second_derivatives,
    evaluate,
    fuzz,
)

DIFFERENCES = {"eps": 1e-5, "bound": 1e-6, "allow_zero": True}


@pytest.mark.needs("torch")
@fuzz(60, case=cases())
def test_against_torch(case):
    import torch

    arrays, gout = case.arrays()
    tensors = [torch.tensor(a, requires_grad=True) for a in arrays[:3]]
    bias = torch.zeros(())
    if case.mask == "float":
        bias = torch.tensor(np.where(np.isinf(arrays[3]), 0, arrays[3]))
    seen = torch.tensor(case.seen(arrays[3:]))
    theirs = torch.nn.functional.scaled_dot_product_attention(
        *tensors,
        attn_mask=torch.where(seen, bias, -torch.inf),
        scale=case.scale,
        enable_gqa=True,
    )
    if theirs.requires_grad:  # it isn't a function of anything where no query sees a key
        theirs.backward(torch.tensor(gout))
    out, stats = run_all(Attention(**case.parameters), *arrays)
    assert_close(out, theirs.detach().numpy(), allow_zero=True)
    np.testing.assert_array_equal(np.isinf(stats), ~seen.numpy().any(axis=3))
    grads = run_all(AttentionGrad(**case.parameters), *arrays, out, stats, gout)
    for grad, tensor in zip(grads, tensors, strict=True):
        expected = np.zeros(grad.shape) if tensor.grad is None else tensor.grad.numpy()
        assert np.linalg.norm(grad - expected) <= 1e-11 * (1 + np.linalg.norm(expected))


def attention_of(case: Case, vectors: list[np.ndarray]) -> Any:
    """Return the function of a case's float operands; the others are constants."""

    def fun(query, key, value, mask=None):
        operands = dict(zip(case.optional, vectors, strict=True))
        if mask is not None:
            # The static shape says where the operand is broadcast.
            ones = [axis for axis, size in enumerate(operands["mask"].shape) if size == 1]
            operands["mask"] = pt.specify_broadcastable(mask, *ones)
        return scaled_dot_product_attention(
            query,
            key,
            value,
            is_causal=case.is_causal,
            scale=case.scale,
            enable_gqa=True,
            **operands,
        )

    return fun


@fuzz(3, case=cases(max_length=4, masks=(None, "float")))
def test_derivatives(case):
    arrays, _ = case.arrays()
    vectors = [np.where(np.isinf(a), 0, a) if a.dtype.kind == "f" else a for a in arrays[3:]]
    points = [*arrays[:3], *(v for v in vectors if v.dtype.kind == "f")]
    check_gradient(attention_of(case, vectors), points, **DIFFERENCES)


# Not by an additive mask: its gradient is written with PyTensor's products, which can't be pushed
# forward through.
@pytest.mark.parametrize("mask", [None, "bool"])
def test_second_derivatives(mask):
    case = Case(2, 1, 2, 3, 4, 2, 3, True, None, mask, (1,), False, True, seed=0)
    arrays, _ = case.arrays()
    vectors = [np.where(np.isinf(a), 0, a) if a.dtype.kind == "f" else a for a in arrays[3:]]
    points = [*arrays[:3], *(v for v in vectors if v.dtype.kind == "f")]
    check_second_derivatives(attention_of(case, vectors), points, **DIFFERENCES)


def test_gradient_of_the_statistics():
    case = Case(2, 1, 2, 3, 4, 2, 3, False, None, None, (), False, True, seed=1)
    arrays, _ = case.arrays()

    def fun(query, key, value):
        node = Attention(**case.parameters).make_node(query, key, value, arrays[3] * 0 + 2)
        out, stats = node.outputs
        return out.sum(axis=3) * stats

    check_gradient(fun, arrays[:3], **DIFFERENCES)


def test_infinite_masks_leave_no_nan():
    """Also in gradients, for queries that see nothing."""
    case = Case(1, 2, 1, 4, 3, 2, 2, False, None, "float", (), False, False, seed=2)
    arrays, _ = case.arrays()
    arrays[3][:, :, 1] = -np.inf
    inputs = [pt.dtensor4() for _ in range(4)]
    out = scaled_dot_product_attention(*inputs)
    grads = pytensor.grad((out**2).sum(), inputs)
    results = evaluate([out, *grads], dict(zip(inputs, arrays, strict=True)))
    for result in results:
        assert np.isfinite(result).all()
    for result in (results[0], results[1], results[4]):
        assert not result[:, :, 1].any()
        assert result[:, :, 2].any()


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_dtypes_and_inferred_shapes(dtype):
    case = Case(2, 2, 2, 3, 5, 4, 3, True, None, "float", (0, 1), True, True, seed=3)
    arrays, gout = case.arrays(dtype)
    inputs = [pt.tensor(dtype=a.dtype, shape=(None,) * a.ndim) for a in arrays]
    # The mask is broadcast where its type says so.
    inputs[3] = pt.tensor(dtype=dtype, shape=(1, 1, None, None))
    node = Attention(**case.parameters).make_node(*inputs)
    values = dict(zip(inputs, arrays, strict=True))
    out, stats = evaluate(node.outputs, values)
    wide = [a.astype("float64") if a.dtype.kind == "f" else a for a in arrays]
    expected, _ = run_all(Attention(**case.parameters), *wide)
    assert (out.dtype, stats.dtype) == (dtype, "float32")
    assert_close(out, expected, allow_zero=True)
    last = [pt.tensor(dtype=a.dtype, shape=(None,) * a.ndim) for a in (out, stats, gout)]
    grad_node = AttentionGrad(**case.parameters).make_node(*inputs, *last)
    values |= dict(zip(last, (out, stats, gout), strict=True))
    for any_node in (node, grad_node):
        shapes = any_node.op.infer_shape(any_node, [tuple(v.shape) for v in any_node.inputs])
        for result, shape in zip(any_node.outputs, shapes, strict=True):
            assert tuple(evaluate(list(shape), values)) == evaluate(result, values).shape


def test_equality_and_pickling():
    op = Attention(0.5, True, ["key_lengths", "mask"])
    assert op == Attention(np.float64(0.5), True, ("mask", "key_lengths"))
    assert op != Attention(None, True, ("mask", "key_lengths"))
    assert pickle.loads(pickle.dumps(op)) == op


def make(**shapes: Any) -> list[Any]:
    sizes = {"query": (2, 4, 5, 3), "key": (2, 4, 6, 3), "value": (2, 4, 6, 7)} | shapes
    return [pt.tensor(name, dtype="float32", shape=shape) for name, shape in sizes.items()]


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"key": (3, 4, 6, 3)}, "the batch size must be the same in all operands, got query"),
        ({"key": (2, 4, 6, 2)}, "the depth of query and key must be the same"),
        ({"value": (2, 4, 5, 7)}, "the number of keys and values must be the same"),
        ({"value": (2, 2, 6, 7)}, "the number of heads of key and value must be the same"),
        (
            {"key": (2, 3, 6, 3), "value": (2, 3, 6, 7)},
            "the heads of query must be a multiple of those of key and value",
        ),
        (
            {"key": (2, 2, 6, 3), "value": (2, 2, 6, 7)},
            "query has 4 heads, but key and value have 2; pass enable_gqa=True",
        ),
    ],
    ids=str,
)
def test_shapes_that_do_not_fit(shapes, message):
    with pytest.raises(DnnValueError, match=message):
        scaled_dot_product_attention(*make(**shapes))


@pytest.mark.parametrize(
    ("keywords", "error", "message"),
    [
        (
            {"mask": np.ones((2, 4, 5, 5), bool)},
            DnnValueError,
            r"mask must have shape \(2, 4, 5, 6",
        ),
        ({"mask": np.ones((5, 6), bool)}, DnnTypeError, r"mask must have 4 dimensions .* got 2"),
        ({"mask": np.ones((1, 1, 5, 6))}, DnnTypeError, r"one dtype, got query float32, .*float64"),
        ({"mask": np.ones((1, 1, 5, 6), int)}, DnnTypeError, "mask has dtype int64"),
        ({"key_lengths": [3, 4, 5]}, DnnValueError, "the batch size must be the same"),
        ({"key_lengths": [3.0, 4.0]}, DnnTypeError, "key_lengths must be a vector of ints"),
        ({"key_lengths": [6, 7]}, DnnValueError, "key_lengths must be between 0 and 6, got 7"),
        ({"query_lengths": [0, -1]}, DnnValueError, "query_lengths must be .* 5, got -1"),
        ({"query_lengths": 3}, DnnTypeError, "query_lengths must be a vector of ints"),
        ({"scale": "root"}, DnnTypeError, "scale must be a number, got 'root'"),
        ({"scale": np.inf}, DnnValueError, "scale must be finite, got inf"),
        ({"is_causal": "yes"}, DnnTypeError, "is_causal must be True or False, got 'yes'"),
        ({"enable_gqa": None}, DnnTypeError, "enable_gqa must be True or False, got None"),
    ],
    ids=str,
)
def test_bad_arguments(keywords, error, message):
    with pytest.raises(error, match=message):
        scaled_dot_product_attention(*make(), **keywords)


def test_bad_operands():
    query, key, value = make()
    with pytest.raises(DnnTypeError, match="key must have 4 dimensions, got 3"):
        scaled_dot_product_attention(query, key[0], value)
    with pytest.raises(DnnTypeError, match="must have one dtype"):
        scaled_dot_product_attention(query, key, pt.dtensor4("value"))
    with pytest.raises(DnnTypeError, match="expected the operands query, key, value, got 2"):
        Attention().make_node(query, key)
    last = [pt.tensor4("out", dtype="float16"), pt.tensor3("stats", dtype="float16")]
    halves = [x.astype("float16") for x in (query, key, value)]
    words = "stats must have dtype float32 if the other operands have dtype float16"
    with pytest.raises(DnnTypeError, match=words):
        AttentionGrad().make_node(*halves, *last, last[0])
    with pytest.raises(DnnValueError, match="optional must be a subset of"):
        Attention(optional=("bias",))


def test_shapes_that_do_not_fit_when_run():
    inputs = [pt.ftensor4(name) for name in ("query", "key", "value")]
    fn = pytensor.function(inputs, scaled_dot_product_attention(*inputs), mode=PERFORM_MODE)
    ones = np.ones((1, 2, 3, 4), "float32")
    with pytest.raises(DnnValueError, match="the number of keys and values must be the same"):
        fn(ones, ones, ones[:, :, :2])


# -- dropout -------------------------------------------------------------------------------


def kept_weights(case: Case, p: float, state: np.ndarray) -> np.ndarray:
    """Return the factors of all weights, from dropout of ones."""
    sizes = (case.batch, case.heads * case.group, case.queries, case.keys)
    node = Dropout().make_node(np.ones(sizes), p, state)
    return evaluate(node.outputs[:1], {})[0]


@fuzz(20, case=cases(max_length=8))
def test_dropout(case):
    """Weights are dropped by dropout's random numbers; statistics cover all weights."""
    p, state = 0.4, np.array([case.seed, 64 * case.batch])
    arrays, gout = case.arrays()
    _, stats = run_all(Attention(**case.parameters), *arrays)
    op = Attention(dropout=p, **case.parameters)
    out, found_stats = run_all(op, *arrays, state)
    np.testing.assert_array_equal(found_stats, stats)
    unit = np.zeros((*arrays[2].shape[:3], case.keys)) + np.eye(case.keys)
    weights, _ = run_all(Attention(**case.parameters), *arrays[:2], unit, *arrays[3:])
    dropped = weights * kept_weights(case, p, state)
    value = np.repeat(arrays[2], case.group, axis=1)
    np.testing.assert_allclose(out, dropped @ value, atol=1e-12)
    # The gradient with respect to the values is a product with the weights that are kept.
    grads = run_all(AttentionGrad(dropout=p, **case.parameters), *arrays, state, out, stats, gout)
    by_value = (dropped.swapaxes(2, 3) @ gout).reshape(
        (case.batch, case.heads, case.group, case.keys, case.value_depth)
    )
    np.testing.assert_allclose(grads[2], by_value.sum(axis=2), atol=1e-12)


def test_derivatives_with_dropout():
    case = Case(2, 2, 2, 5, 4, 3, 2, True, None, "float", (0, 1), False, True, seed=5)
    arrays, _ = case.arrays()
    vectors = [np.where(np.isinf(a), 0, a) if a.dtype.kind == "f" else a for a in arrays[3:]]
    points = [*arrays[:3], vectors[0]]

    def fun(query, key, value, mask):
        mask = pt.specify_broadcastable(mask, 0, 1)
        operands = {"mask": mask, "key_lengths": vectors[1], "is_causal": True, "enable_gqa": True}
        return scaled_dot_product_attention(
            query, key, value, dropout_p=0.3, state=np.array([7, 0]), **operands
        )[0]

    verify_grad(fun, points, rng=np.random.default_rng(0), mode=PERFORM_MODE)


def test_seed_and_state():
    inputs = [pt.dtensor4() for _ in range(3)]
    case = Case(2, 2, 1, 5, 4, 3, 2, False, None, None, (), False, False, seed=6)
    arrays, _ = case.arrays()
    out = scaled_dot_product_attention(*inputs, dropout_p=0.5, seed=3)
    fn = pytensor.function(inputs, out, mode=PERFORM_MODE)
    first, second = fn(*arrays), fn(*arrays)
    assert (first != second).any()
    state = pt.lvector()
    out, following = scaled_dot_product_attention(*inputs, dropout_p=0.5, state=state)
    fn = pytensor.function([*inputs, state], [out, following], mode=PERFORM_MODE)
    again, following = fn(*arrays, np.array([3, 0]))
    np.testing.assert_array_equal(again, first)
    # 80 scores take two groups of 16 blocks.
    np.testing.assert_array_equal(following, [3, 32])
    np.testing.assert_array_equal(fn(*arrays, following)[0], second)


@pytest.mark.parametrize(
    ("keywords", "error", "message"),
    [
        ({"dropout_p": 0.5}, DnnValueError, "give either a seed or a state"),
        ({"dropout_p": 0.5, "seed": 1, "state": [1, 0]}, DnnValueError, "give either a seed or"),
        ({"seed": 1}, DnnValueError, "no seed or state without dropout"),
        (
            {"dropout_p": 1.0, "seed": 1},
            DnnValueError,
            "dropout_p must be at least 0 and less than",
        ),
        ({"dropout_p": np.nan, "seed": 1}, DnnValueError, "dropout_p must be at least 0"),
        ({"dropout_p": "half", "seed": 1}, DnnTypeError, "dropout_p must be a number, got 'half'"),
        ({"dropout_p": 0.5, "seed": 1.5}, DnnTypeError, "seed must be an int"),
        ({"dropout_p": 0.5, "state": [1.0, 0.0]}, DnnTypeError, "state must be"),
    ],
    ids=str,
)
def test_bad_dropout(keywords, error, message):
    with pytest.raises(error, match=message):
        scaled_dot_product_attention(*make(), **keywords)


def test_second_derivatives_with_dropout_are_refused():
    inputs = [pt.dtensor4() for _ in range(3)]
    out = scaled_dot_product_attention(*inputs, dropout_p=0.5, seed=3)
    grad = pytensor.grad(out.sum(), inputs[0])
    with pytest.raises(DnnNotSupportedError, match="no second derivatives"):
        pytensor.grad((grad**2).sum(), inputs[1])

"""What operations of graphs compute: their Ops against formulas in NumPy, in float64.

A gradient that is an operation of its own is compared with PyTensor's gradient of the operation.
"""

from __future__ import annotations

import math

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import strategies as st
from scipy.special import erf

from dnnops import graph as cudnn
from dnnops.graph.nodes.pointwise import POINTWISE
from tests.oracle import PERFORM_MODE, assert_close, check_gradient, fuzz

DOUBLE = cudnn.data_type.DOUBLE
SEEDS = st.integers(0, 2**32 - 1)


def new():
    return cudnn.pygraph(
        io_data_type=DOUBLE, intermediate_data_type=DOUBLE, compute_data_type=DOUBLE
    )


def op_of(declare, **inputs):
    """Return the Op of a graph; `declare` gets the graph and a tensor for each array or number."""
    graph = new()
    tensors = {}
    for name, value in inputs.items():
        if np.ndim(value) == 0 and isinstance(value, float):
            one = [1] * 4
            tensors[name] = graph.tensor(one, one, name=name, is_pass_by_value=True)
        else:
            tensors[name] = graph.tensor(np.shape(value), name=name, data_type=value.dtype)
    results = declare(graph, **tensors)
    for result in results if isinstance(results, list | tuple) else [results]:
        if result is not None:
            result.set_output(True)
    return graph.as_op()


def run(declare, **inputs):
    """Return the results of a graph."""
    op = op_of(declare, **inputs)
    outputs = op(*inputs.values())
    outputs = outputs if isinstance(outputs, list) else [outputs]
    values = pytensor.function([], outputs, mode=PERFORM_MODE)()
    for value, tensor in zip(values, op.results, strict=True):
        assert value.shape == tuple(tensor.dim)
    return values if len(values) > 1 else values[0]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


FORMULAS = {
    "abs": np.abs,
    "ceil": np.ceil,
    "cos": np.cos,
    "erf": erf,
    "exp": np.exp,
    "floor": np.floor,
    "gelu": lambda x: x * 0.5 * (1 + erf(x / math.sqrt(2))),
    "gelu_approx_tanh": gelu_tanh,
    "identity": lambda x: x,
    "neg": np.negative,
    "reciprocal": lambda x: 1 / x,
    "sigmoid": sigmoid,
    "sin": np.sin,
    "tan": np.tan,
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
    "elu": lambda x: np.where(x > 0, x, np.expm1(x)),
    "softplus": lambda x: np.log1p(np.exp(x)),
    "swish": lambda x: x * sigmoid(x),
    "logical_not": lambda x: x == 0,
    "add": np.add,
    "add_square": lambda a, b: a + b**2,
    "atan2": np.arctan2,
    "div": np.divide,
    "mul": np.multiply,
    "sub": np.subtract,
    "scale": np.multiply,
    "bias": np.add,
    "max": np.maximum,
    "min": np.minimum,
    "mod": np.fmod,
    "floor_mod": np.mod,
    "cmp_eq": np.equal,
    "cmp_neq": np.not_equal,
    "cmp_gt": np.greater,
    "cmp_ge": np.greater_equal,
    "cmp_lt": np.less,
    "cmp_le": np.less_equal,
    "logical_and": lambda a, b: (a != 0) & (b != 0),
    "logical_or": lambda a, b: (a != 0) | (b != 0),
    "binary_select": lambda a, b, mask: np.where(mask != 0, a, b),
}
OF_POSITIVE = {
    "log": np.log,
    "rsqrt": lambda x: x**-0.5,
    "sqrt": np.sqrt,
    "pow": np.power,
}


def operands(rng, count, positive=False):
    """Return arrays that broadcast, some of whose elements are equal or zero."""
    shape = tuple(rng.integers(1, 4, 3))
    arrays = []
    for _ in range(count):
        own = tuple(n if rng.random() < 0.7 else 1 for n in shape)
        x = np.round(2 * rng.standard_normal(own), 1)
        arrays.append(np.abs(x) + 0.1 if positive else x)
    return arrays


@pytest.mark.parametrize("name", [*FORMULAS, *OF_POSITIVE])
@fuzz(6, seed=SEEDS)
def test_elementwise_against_numpy(name, seed):
    rng = np.random.default_rng(seed)
    formula = {**FORMULAS, **OF_POSITIVE}[name]
    given = operands(rng, len(POINTWISE[name].operands), name in OF_POSITIVE)
    if name in ("div", "mod", "floor_mod", "reciprocal"):
        given[-1] = np.where(given[-1] == 0, 0.5, given[-1])
    found = run(
        lambda graph, **x: getattr(graph, name)(*x.values()),
        **{f"x{i}": x for i, x in enumerate(given)},
    )
    expected = np.asarray(formula(*given), "float64")
    # An element may be at a step of the function, such as that of a remainder.
    near = np.isclose(found, expected, rtol=1e-12, atol=1e-12)
    if name in ("mod", "floor_mod"):
        quotient = given[0] / given[1]
        is_step = np.isclose(quotient, np.round(quotient), rtol=0, atol=1e-9)
        near |= is_step & np.isclose(np.abs(found - expected), np.abs(given[1]), rtol=1e-9)
    assert near.all(), (found, expected)


@pytest.mark.parametrize(
    ("name", "expected"), [("mod", [2.5, -2.5, 2.5, -2.5]), ("floor_mod", [2.5, 0.5, -0.5, -2.5])]
)
def test_signs_of_remainders(name, expected):
    """That of C has the sign of the dividend, that of Python the sign of the divisor."""
    a, b = np.array([[[5.5, -5.5, 5.5, -5.5]]]), np.array([[[3.0, 3.0, -3.0, -3.0]]])
    found = run(lambda graph, a, b: getattr(graph, name)(a, b), a=a, b=b)
    np.testing.assert_array_equal(found.ravel(), expected)


def test_every_mode_has_a_formula():
    others = {"leaky_relu", "gen_index", *(name for name in POINTWISE if "backward" in name)}
    assert set(POINTWISE) == {*FORMULAS, *OF_POSITIVE, *others}


PARAMETERS = {
    "relu": {"lower_clip": -0.3, "upper_clip": 1.2, "negative_slope": 0.1},
    "leaky_relu": {"negative_slope": 0.2},
    "elu": {"elu_alpha": 0.7},
    "softplus": {"softplus_beta": 1.7},
    "swish": {"swish_beta": 0.6},
}
WITH_PARAMETERS = {
    "relu": lambda x: np.where(x < -0.3, -0.3 + 0.1 * (x + 0.3), np.minimum(x, 1.2)),
    "leaky_relu": lambda x: np.where(x < 0, 0.2 * x, x),
    "elu": lambda x: np.where(x > 0, x, 0.7 * np.expm1(x)),
    "softplus": lambda x: np.log1p(np.exp(1.7 * x)) / 1.7,
    "swish": lambda x: x * sigmoid(0.6 * x),
}


@pytest.mark.parametrize("name", WITH_PARAMETERS)
def test_parameters_of_activations(name):
    x = np.random.default_rng(0).standard_normal((3, 4, 5))
    found = run(lambda graph, x: getattr(graph, name)(x, **PARAMETERS[name]), x=x)
    assert_close(found, WITH_PARAMETERS[name](x))


BACKWARD = [name.removesuffix("_backward") for name in POINTWISE if name.endswith("_backward")]


@pytest.mark.parametrize("with_parameters", [False, True])
@pytest.mark.parametrize("name", BACKWARD)
def test_gradients_of_activations(name, with_parameters):
    more = PARAMETERS.get(name, {}) if with_parameters or name == "leaky_relu" else {}
    rng = np.random.default_rng(0)
    x, g = rng.standard_normal((2, 3, 4, 5))
    found = run(lambda graph, g, x: getattr(graph, f"{name}_backward")(g, x, **more), g=g, x=x)
    forward = op_of(lambda graph, x: getattr(graph, name)(x, **more), x=x)
    v = pt.dtensor3()
    gradient = pytensor.grad(None, v, known_grads={forward(v): pt.constant(g)})
    assert_close(found, pytensor.function([v], gradient, mode=PERFORM_MODE)(x))


def test_index():
    x = np.zeros((2, 3, 4))
    found = run(lambda graph, x: graph.gen_index(x, axis=1), x=x)
    np.testing.assert_array_equal(found, np.broadcast_to(np.arange(3.0)[:, None], x.shape))


# -- convolution and products --------------------------------------------------------------


def convolved(x, w, pad, stride, dilation, flip):
    """Convolve images of 2 axes in the most direct way."""
    groups = x.shape[1] // w.shape[1]
    if flip:
        w = w[:, :, ::-1, ::-1]
    x = np.pad(x, [(0, 0), (0, 0), *pad])
    rows, columns = (
        (n - (k - 1) * d - 1) // s + 1
        for n, k, d, s in zip(x.shape[2:], w.shape[2:], dilation, stride, strict=True)
    )
    y = np.zeros((len(x), len(w), rows, columns))
    per, out = w.shape[1], len(w) // groups
    for k in range(len(w)):
        group = k // out
        for i in range(rows):
            for j in range(columns):
                top, left = i * stride[0], j * stride[1]
                patch = x[
                    :,
                    group * per : (group + 1) * per,
                    top : top + (w.shape[2] - 1) * dilation[0] + 1 : dilation[0],
                    left : left + (w.shape[3] - 1) * dilation[1] + 1 : dilation[1],
                ]
                y[:, k, i, j] = (patch * w[k]).sum((1, 2, 3))
    return y


def random_convolution(rng):
    groups = int(rng.integers(1, 3))
    more = {
        "pre_padding": rng.integers(0, 3, 2).tolist(),
        "post_padding": rng.integers(0, 3, 2).tolist(),
        "stride": rng.integers(1, 3, 2).tolist(),
        "dilation": rng.integers(1, 3, 2).tolist(),
        "convolution_mode": rng.choice(list(cudnn.convolution_mode)),
    }
    w = rng.standard_normal((2 * groups, 3, *rng.integers(1, 4, 2)))
    x = rng.standard_normal((2, 3 * groups, *rng.integers(5, 9, 2)))
    return x, w, more


@fuzz(12, seed=SEEDS)
def test_convolution_and_its_gradients(seed):
    x, w, more = random_convolution(np.random.default_rng(seed))
    y = run(lambda graph, x, w: graph.conv_fprop(x, w, **more), x=x, w=w)
    pad = list(zip(more["pre_padding"], more["post_padding"], strict=True))
    flip = more["convolution_mode"] is cudnn.convolution_mode.CONVOLUTION
    assert_close(y, convolved(x, w, pad, more["stride"], more["dilation"], flip))

    g = np.random.default_rng(seed).standard_normal(y.shape)
    dx = run(lambda graph, g, w: graph.conv_dgrad(g, w, **more).set_dim(x.shape), g=g, w=w)
    dw = run(lambda graph, x, g: graph.conv_wgrad(x, g, **more).set_dim(w.shape), x=x, g=g)
    # Both are adjoints of the convolution, which is linear in each operand.
    assert np.isclose(np.vdot(dx, x), np.vdot(g, y), rtol=1e-9, atol=1e-9)
    assert np.isclose(np.vdot(dw, w), np.vdot(g, y), rtol=1e-9, atol=1e-9)
    other = np.random.default_rng(seed + 1).standard_normal(x.shape)
    moved = convolved(other, w, pad, more["stride"], more["dilation"], flip)
    assert np.isclose(np.vdot(dx, other), np.vdot(g, moved), rtol=1e-9, atol=1e-9)


@fuzz(8, seed=SEEDS)
def test_matmul(seed):
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((rng.choice([1, 3]), 4, 5))
    b = rng.standard_normal((rng.choice([1, 3]), 5, 2))
    assert_close(run(lambda graph, a, b: graph.matmul(a, b), a=a, b=b), a @ b)


REDUCTIONS = {
    "ADD": np.sum,
    "MUL": np.prod,
    "MIN": np.min,
    "MAX": np.max,
    "AVG": np.mean,
    "AMAX": lambda x, axis, keepdims: np.max(np.abs(x), axis=axis, keepdims=keepdims),
    "NORM1": lambda x, axis, keepdims: np.sum(np.abs(x), axis=axis, keepdims=keepdims),
    "NORM2": lambda x, axis, keepdims: np.sqrt(np.sum(x**2, axis=axis, keepdims=keepdims)),
    "MUL_NO_ZEROS": lambda x, axis, keepdims: np.prod(
        np.where(x == 0, 1, x), axis=axis, keepdims=keepdims
    ),
}


@pytest.mark.parametrize("mode", cudnn.reduction_mode, ids=lambda mode: mode.name)
def test_reductions(mode):
    rng = np.random.default_rng(0)
    x = rng.integers(-2, 3, (3, 4, 5)).astype("float64")
    for axes in ((0,), (1, 2), (0, 1, 2)):
        dim = [1 if axis in axes else n for axis, n in enumerate(x.shape)]
        found = run(lambda graph, x, dim=dim: graph.reduction(x, mode).set_dim(dim), x=x)
        assert_close(found, REDUCTIONS[mode.name](x, axis=axes, keepdims=True), allow_zero=True)


def test_concatenate():
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 3, 4)), rng.standard_normal((2, 5, 4))
    found = run(lambda graph, x, y: graph.concatenate([x, y], 1), x=x, y=y)
    np.testing.assert_array_equal(found, np.concatenate([x, y], 1))


# -- normalization -------------------------------------------------------------------------

KINDS = ("batchnorm", "instancenorm", "layernorm", "rmsnorm")
TRAINING = cudnn.norm_forward_phase.TRAINING


def norm_case(kind, rng):
    """Return data, scale, bias, and the axes of the averages."""
    x = rng.standard_normal((3, 4, 2, 5)) + 0.5
    if kind in ("batchnorm", "instancenorm"):
        axes = (0, 2, 3) if kind == "batchnorm" else (2, 3)
        shape = (1, 4, 1, 1)
    else:
        axes, shape = (1, 2, 3), (1, 4, 2, 5)
    return x, rng.standard_normal(shape), rng.standard_normal(shape), axes


def norm(kind, graph, x, s, b, e):
    if kind == "batchnorm":
        return graph.batchnorm(x, s, b, None, None, e, None)
    return getattr(graph, kind)(TRAINING, x, s, b, e)


@pytest.mark.parametrize("kind", KINDS)
def test_normalization(kind):
    x, s, b, axes = norm_case(kind, np.random.default_rng(0))
    y, *stats = run(lambda graph, **t: norm(kind, graph, **t), x=x, s=s, b=b, e=1e-3)
    mean = 0 if kind == "rmsnorm" else x.mean(axes, keepdims=True)
    inv = (((x - mean) ** 2).mean(axes, keepdims=True) + 1e-3) ** -0.5
    assert_close(y, (x - mean) * inv * s + b)
    expected = [inv] if kind == "rmsnorm" else [mean, inv]
    for found, value in zip(stats, expected, strict=True):
        assert_close(found, value)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_normalization(kind):
    rng = np.random.default_rng(1)
    x, s, b, _ = norm_case(kind, rng)
    g = rng.standard_normal(x.shape)
    op = op_of(lambda graph, **t: norm(kind, graph, **t), x=x, s=s, b=b, e=1e-3)
    values = [pt.constant(v) for v in (x, s, b)]
    y, *stats = op(*values, 1e-3)
    expected = pytensor.grad(None, values, known_grads={y: pt.constant(g)})
    expected = pytensor.function([], expected, mode=PERFORM_MODE)()
    stats = pytensor.function([], stats, mode=PERFORM_MODE)()
    names = ["v"] if kind == "rmsnorm" else ["m", "v"]

    def backward(graph, g, x, s, **t):
        more = [True] if kind == "rmsnorm" else []
        return getattr(graph, f"{kind}_backward")(g, x, s, *t.values(), *more)

    found = run(backward, g=g, x=x, s=s, **dict(zip(names, stats, strict=True)))
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other, bound=1e-11)


def test_running_averages_and_inference():
    rng = np.random.default_rng(2)
    x, s, b, axes = norm_case("batchnorm", rng)
    m, v = rng.standard_normal((1, 4, 1, 1)), rng.random((1, 4, 1, 1))

    def declare(graph, x, s, b, m, v, e, f):
        return graph.batchnorm(x, s, b, m, v, e, f)

    *_, new_mean, new_var = run(declare, x=x, s=s, b=b, m=m, v=v, e=1e-3, f=0.3)
    assert_close(new_mean, 0.7 * m + 0.3 * x.mean(axes, keepdims=True))
    assert_close(new_var, 0.7 * v + 0.3 * x.var(axes, ddof=1, keepdims=True))

    y = run(lambda graph, **t: graph.batchnorm_inference(**_named(t)), x=x, m=m, v=v, s=s, b=b)
    assert_close(y, (x - m) * v * s + b)


def _named(tensors):
    names = {"x": "input", "m": "mean", "v": "inv_variance", "s": "scale", "b": "bias"}
    return {names[key]: value for key, value in tensors.items()}


# -- pooling -------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["MAXPOOL", "AVGPOOL_INCLUDE_PADDING", "AVGPOOL_EXCLUDE_PADDING"])
def test_pooling(mode):
    x = np.random.default_rng(0).standard_normal((2, 3, 7, 6))
    (low, fill) = (-np.inf, cudnn.padding_mode.NEG_INF_PAD)
    if mode != "MAXPOOL":
        low, fill = 0.0, cudnn.padding_mode.ZERO_PAD
    more = {"window": [3, 2], "stride": [2, 1], "pre_padding": [1, 0], "post_padding": [1, 0]}
    mode = cudnn.resample_mode[mode]
    found = run(lambda graph, x: graph.resample(x, mode, padding_mode=fill, **more)[0], x=x)
    padded = np.pad(x, [(0, 0), (0, 0), (1, 1), (0, 0)], constant_values=low)
    counted = np.pad(np.ones_like(x), [(0, 0), (0, 0), (1, 1), (0, 0)])
    expected = np.zeros_like(found)
    for i, j in np.ndindex(found.shape[2:]):
        window = padded[:, :, 2 * i : 2 * i + 3, j : j + 2].reshape(2, 3, -1)
        count = counted[:, :, 2 * i : 2 * i + 3, j : j + 2].reshape(2, 3, -1)
        if mode is cudnn.resample_mode.MAXPOOL:
            expected[:, :, i, j] = window.max(-1)
        elif mode is cudnn.resample_mode.AVGPOOL_INCLUDE_PADDING:
            expected[:, :, i, j] = window.mean(-1)
        else:
            expected[:, :, i, j] = window.sum(-1) / count.sum(-1)
    assert_close(found, expected)


# -- attention -----------------------------------------------------------------------------


def attention_case(rng):
    """Return operands by name, and parameters, of a random attention."""
    heads, shared = 4, int(rng.choice([1, 2, 4]))
    queries, keys, depth, value_depth = 5, 6, 3, 4
    given = {
        "q": rng.standard_normal((2, heads, queries, depth)),
        "k": rng.standard_normal((2, shared, keys, depth)),
        "v": rng.standard_normal((2, shared, keys, value_depth)),
    }
    more = {"use_causal_mask": bool(rng.integers(2))}
    if rng.integers(2):
        more["attn_scale"] = 0.3
    if rng.integers(2):
        given["bias"] = rng.standard_normal((1, heads, queries, keys))
    if rng.integers(2):
        more["use_padding_mask"] = True
        given["seq_len_q"] = rng.integers(1, queries + 1, (2, 1, 1, 1)).astype("int32")
        given["seq_len_kv"] = rng.integers(1, keys + 1, (2, 1, 1, 1)).astype("int32")
    return given, more


def attended(q, k, v, bias=0.0, seq_len_q=None, seq_len_kv=None, **more):
    """Return attention, the statistics, and which queries count."""
    heads = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, heads, 1), np.repeat(v, heads, 1)
    scores = q @ k.swapaxes(2, 3) * more.get("attn_scale", q.shape[3] ** -0.5) + bias
    row, column = np.arange(q.shape[2])[:, None], np.arange(k.shape[2])
    seen = np.ones(scores.shape, bool)
    if more["use_causal_mask"]:
        seen &= row >= column
    if seq_len_q is not None:
        seen &= (row < seq_len_q) & (column < seq_len_kv)
    scores = np.where(seen, scores, -np.inf)
    counts = seen.any(3, keepdims=True)
    largest = np.where(counts, scores.max(3, keepdims=True), 0)
    terms = np.exp(scores - largest)
    total = np.where(counts, terms.sum(3, keepdims=True), 1)
    return terms / total @ v, largest + np.log(total), counts


@fuzz(12, seed=SEEDS)
def test_attention(seed):
    given, more = attention_case(np.random.default_rng(seed))
    o, stats = run(lambda graph, **t: graph.sdpa(**t, generate_stats=True, **more), **given)
    expected, logarithms, counts = attended(**given, **more)
    assert_close(o, expected)
    assert_close(stats[counts], logarithms[counts])
    assert (stats[~counts] == -np.inf).all()


@fuzz(12, seed=SEEDS)
def test_gradients_of_attention(seed):
    rng = np.random.default_rng(seed)
    given, more = attention_case(rng)
    op = op_of(lambda graph, **t: graph.sdpa(**t, generate_stats=True, **more), **given)
    variables = [pt.constant(value) for value in given.values()]
    o, stats = op(*variables)
    g = rng.standard_normal(attended(**given, **more)[0].shape)
    expected = pytensor.grad(None, variables[:3], known_grads={o: pt.constant(g)})
    o, stats, *expected = pytensor.function([], [o, stats, *expected], mode=PERFORM_MODE)()
    first = {name: given.pop(name) for name in "qkv"}
    found = run(
        lambda graph, **t: graph.sdpa_backward(**t, **more),
        **first,
        o=o,
        dO=g,
        stats=stats,
        **given,
    )
    for one, other in zip(found, expected, strict=True):
        # With one position to attend to, gradients are zero.
        assert_close(one, other, bound=1e-10, allow_zero=True, rounding=1e-13)


# -- derivatives ---------------------------------------------------------------------------


@fuzz(4, seed=SEEDS)
def test_derivatives_of_a_graph(seed):
    x, w, more = random_convolution(np.random.default_rng(seed))
    b = np.random.default_rng(seed).standard_normal((1, len(w), 1, 1))

    def declare(graph, x, w, b):
        return graph.swish(graph.bias(graph.conv_fprop(x, w, **more), b))

    check_gradient(op_of(declare, x=x, w=w, b=b), [x, w, b], bound=1e-7)

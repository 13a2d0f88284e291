"""PyTensor's rewrites of sigmoid and tanh apply to those of dnnops, also in the tails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode, get_mode
from pytensor.scalar.basic import maximum

from dnnops import dnn, nnet
from dnnops.modes import OneDnnMode
from dnnops.nnet.activation.op import ActivationGrad
from tests.emulation.host_graphs import on_host
from tests.gpuarray.graphs import rewritten
from tests.oracle import PERFORM_MODE

#: The rewrites of each mode, computed with NumPy.
MODES = {
    "DNN": lambda: OneDnnMode(linker="py").excluding("fusion"),
    "CVM": lambda: Mode("py", get_mode("CVM").provided_optimizer.excluding("fusion")),
    "NUMBA": lambda: Mode("py", get_mode("NUMBA").provided_optimizer.excluding("fusion", "numba")),
}
SPELLINGS = {"PyTensor": (pt.sigmoid, pt.tanh), "dnnops": (nnet.sigmoid, nnet.tanh)}
#: On a GPU, cuDNN's as well, if the user has called them.
CUDNN = tuple(
    lambda x, mode=mode: pt.as_tensor_variable(dnn.dnn_activation(x, mode))
    for mode in ("sigmoid", "tanh")
)
X = np.array([-800, -300, -100, -30, -17, -1, 0, 1, 17, 30, 100, 300, 800.0])


def softplus(x: np.ndarray) -> np.ndarray:
    return np.logaddexp(0, x)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return np.exp(-softplus(-x))


def cross_entropy(p: Any, y: float) -> Any:
    return -(y * pt.log(p) + (1 - y) * pt.log(1 - p))


def log_odds(p: Any) -> Any:
    return pt.log(p / (1 - p))


Form = Callable[[Any, Any, Any], Any]
Exact = Callable[[np.ndarray], np.ndarray]


#: Expressions of sigmoid `s` and tanh `t`, with the rewrite of PyTensor that each needs, and their
#: values and derivatives.
FORMS: dict[str, tuple[Form, Exact, Exact]] = {
    "logsigm_to_softplus": (
        lambda s, t, x: pt.log(s(x)), lambda x: -softplus(-x), lambda x: sigmoid(-x)
    ),
    "log1msigm_to_softplus": (
        lambda s, t, x: pt.log(1 - s(x)), lambda x: -softplus(x), lambda x: -sigmoid(x)
    ),
    "log1p_neg_sigmoid": (
        lambda s, t, x: pt.log1p(-s(x)), lambda x: -softplus(x), lambda x: -sigmoid(x)
    ),
    "local_1msigmoid": (
        lambda s, t, x: 1 - s(x), lambda x: sigmoid(-x), lambda x: -sigmoid(x) * sigmoid(-x)
    ),
    "local_logit_sigmoid": (lambda s, t, x: log_odds(s(x)), lambda x: x, np.ones_like),
    "local_sigmoid_logit": (
        lambda s, t, x: s(log_odds(t(x) ** 2)),
        lambda x: np.tanh(x) ** 2,
        lambda x: 2 * np.tanh(x) / np.cosh(np.clip(x, -300, 300)) ** 2,
    ),
    "local_sigm_times_exp": (
        lambda s, t, x: pt.exp(x) * s(-x), sigmoid, lambda x: sigmoid(x) * sigmoid(-x)
    ),
    "useless_arctanh_of_tanh": (lambda s, t, x: pt.arctanh(t(x)), lambda x: x, np.ones_like),
    "broadcast": (
        lambda s, t, x: pt.log(1 - s(x)[None])[0], lambda x: -softplus(x), lambda x: -sigmoid(x)
    ),
    "reshaped": (
        lambda s, t, x: pt.log(1 - s(x).reshape((-1, 1)))[:, 0],
        lambda x: -softplus(x),
        lambda x: -sigmoid(x),
    ),
    "elements": (
        lambda s, t, x: pt.log(1 - s(x)[pt.arange(x.shape[0])]),
        lambda x: -softplus(x),
        lambda x: -sigmoid(x),
    ),
    "slice": (
        lambda s, t, x: pt.log((1 - s(x))[::-1])[::-1],
        lambda x: -softplus(x),
        lambda x: -sigmoid(x),
    ),
    "logistic regression": (
        lambda s, t, x: cross_entropy(s(x), 1.0) + cross_entropy(s(x), 0.0),
        lambda x: softplus(-x) + softplus(x),
        lambda x: sigmoid(x) - sigmoid(-x),
    ),
    "soft labels": (
        lambda s, t, x: nnet.binary_crossentropy(s(x), np.float32(0.25)),
        lambda x: 0.25 * softplus(-x) + 0.75 * softplus(x),
        lambda x: 0.75 * sigmoid(x) - 0.25 * sigmoid(-x),
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def without_a_device() -> Iterator[None]:
    with pytensor.config.change_flags(
        dnn__enabled="no_check", on_opt_error="raise", floatX="float32"
    ):
        yield


def graph(spelling: str, dtype: str) -> tuple[list[Any], list[Any]]:
    x, outputs = pt.tensor(dtype=dtype, shape=(None,)), []
    for form, _, _ in FORMS.values():
        y = form(*{**SPELLINGS, "cuDNN": CUDNN}[spelling], x)
        outputs += [y, pytensor.grad(y.sum(), x)]
    return [x], outputs


def check(f: Any, dtype: str, without: str = "") -> None:
    wanted = [exact(X) for _, *both in FORMS.values() for exact in both]
    names = [f"{of}{name}" for name in FORMS for of in ("", "derivative of ")]
    eps = np.finfo(dtype).eps
    for name, result, exact in zip(names, f(X.astype(dtype)), wanted, strict=True):
        assert result.dtype == dtype
        if name == without:
            continue
        # PyTensor keeps 1 - s where s has other uses.
        np.testing.assert_allclose(result, exact, rtol=100 * eps, atol=eps, err_msg=name)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("mode", MODES)
def test_tails(mode, spelling, dtype):
    check(pytensor.function(*graph(spelling, dtype), mode=MODES[mode]()), dtype)


@pytest.mark.parametrize("spelling", [*SPELLINGS, "cuDNN"])
def test_tails_on_a_gpu(spelling):
    moved = rewritten(*graph(spelling, "float32"), get_mode("CUDNN").excluding("inplace"))
    f = pytensor.function(moved.inputs, on_host(list(moved.outputs)), mode=PERFORM_MODE)
    # Only canonicalization cancels these divisors, and not if a transfer has been in between.
    check(f, "float32", "derivative of local_logit_sigmoid" if spelling == "cuDNN" else "")


@pytest.mark.parametrize("floatX", ["float32", "float64"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_dtypes(dtype, floatX):  # noqa: N803 - PyTensor's name
    """No node is wider than the operand, except that the CPU computes float16 in float32."""
    x = pt.tensor(dtype=dtype, shape=(None,))
    p, t = nnet.sigmoid(x), nnet.tanh(x)
    with pytensor.config.change_flags(floatX=floatX):
        outputs = [cross_entropy(p, 1.0), pt.log(1 - p), p * p, pt.arctanh(t)]
        gradients = [pytensor.grad(None, x, known_grads={z: z}) for z in outputs]
        for mode in MODES.values():
            f = pytensor.function([x], gradients, mode=mode())
            found = {z.type.dtype for node in f.maker.fgraph.apply_nodes for z in node.outputs}
            assert "float64" not in found
            for result in f(np.array([-30, 0, 30], dtype)):
                assert result.dtype == dtype
                assert np.isfinite(result).all()


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("mode", MODES)
def test_digits_of_small_differences(mode, spelling):
    """``1 - sigmoid(x)`` keeps the digits that rounding a sigmoid next to 1 would lose."""
    x = pt.fvector()
    f = pytensor.function([x], 1 - SPELLINGS[spelling][0](x), mode=MODES[mode]())
    np.testing.assert_allclose(f(np.float32([17, 80])), sigmoid(np.array([-17, -80])), rtol=1e-5)


@pytest.mark.parametrize("mode", ["DNN", "CVM"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_is_left_runs_in_a_library(mode, dtype):
    """Also if the user called PyTensor's function beside those of dnnops."""
    x = pt.tensor(dtype=dtype, shape=(None,))
    outputs = [nnet.sigmoid(x), nnet.tanh(x), pt.tanh(2 * x)]
    gradient = pytensor.grad(sum(z.sum() for z in outputs), x)
    f = pytensor.function([x], [*outputs, gradient], mode=MODES[mode]())
    kinds = [type(node.op).__name__ for node in f.maker.fgraph.apply_nodes]
    assert kinds.count("OneDnnActivation") == 3
    assert not any(isinstance(node.op, ActivationGrad) for node in f.maker.fgraph.apply_nodes)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_graphs_with_dnnops_are_networks(spelling):
    """Rewrites that are kept to networks apply, though the activation is PyTensor's meanwhile."""
    x = pt.fvector()
    y = pt.maximum(SPELLINGS[spelling][1](x), 0)
    f = pytensor.function([x], y, mode=MODES["CVM"]())
    scalar_ops = [getattr(node.op, "scalar_op", None) for node in f.maker.fgraph.apply_nodes]
    assert (maximum in scalar_ops) == (spelling == "PyTensor")


def test_graphs_without_dnnops_keep_their_ops():
    x = pt.fvector()
    f = pytensor.function([x], [pt.sigmoid(x), pt.tanh(x)], mode=MODES["CVM"]())
    assert {type(node.op).__name__ for node in f.maker.fgraph.apply_nodes} == {"Elemwise"}


def test_a_gradient_of_something_else():
    """A gradient at an output that is no activation of the input is left alone."""
    x, y, g = pt.dvectors(3)
    result = pt.log(nnet.sigmoid(y)) + ActivationGrad("sigmoid")(x, nnet.sigmoid(y), g)
    f = pytensor.function([x, y, g], result, mode=MODES["DNN"](), on_unused_input="ignore")
    s = sigmoid(np.array([3.0]))
    np.testing.assert_allclose(f([1.0], [3.0], [2.0]), np.log(s) + 2 * s * (1 - s))


def test_logistic_regression_in_the_default_mode():
    """Numba's linker: trained until the probabilities round to 0 and 1, the loss stays finite."""
    rng = np.random.default_rng(0)
    data = rng.integers(0, 255, (64, 5)).astype("float32")
    target = (data[:, 0] > 127).astype("float32")
    x, y = pt.fmatrix(), pt.fvector()
    w = pytensor.shared(np.zeros(5, "float32"))
    p = nnet.sigmoid(x @ w)
    loss = -(y * pt.log(p) + (1 - y) * pt.log(1 - p)).mean()
    update = [(w, w - np.float32(0.1) * pytensor.grad(loss, w))]
    step = pytensor.function([x, y], [loss, p], updates=update)
    losses, last = [], np.empty(0)
    for _ in range(10):
        value, last = step(data, target)
        losses.append(value)
    assert np.isfinite([*losses, *w.get_value()]).all()
    assert {0.0, 1.0} <= set(last.tolist())


def test_cudnn_activations_without_a_logarithm_stay():
    x = pt.fvector()
    y = CUDNN[0](x)
    outputs = [y, pytensor.grad((y**2).sum(), x)]
    moved = rewritten([x], outputs, get_mode("CUDNN"))
    names = {type(node.op).__name__ for node in moved.apply_nodes}
    assert names >= {"GpuDnnActivation", "GpuDnnActivationGrad"}

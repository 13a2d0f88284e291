"""Second derivatives of recurrent networks, and derivatives in forward mode."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from dnnops.errors import DnnNotSupportedError
from dnnops.nnet import RNNForward
from dnnops.nnet.rnn.expressions import rnn_expressions
from tests.nnet.rnn.rnn_cases import RNNCase, run_op
from tests.oracle import assert_close

STEP = 1e-4
#: Mode, hidden size, layers, bidirectional, skip, projection, dropout, lengths; steps, batch, input
#: size, seed.
CASES = {
    "gru": RNNCase("gru", 3, 1, False, False, 0, 0.0, True, 4, 3, 2, 1),
    "lstm": RNNCase("lstm", 3, 1, False, False, 2, 0.0, True, 4, 3, 2, 2),
    "rnn_tanh": RNNCase("rnn_tanh", 2, 1, True, True, 0, 0.0, False, 3, 2, 2, 3),
    "rnn_relu": RNNCase("rnn_relu", 4, 2, False, False, 0, 0.0, False, 3, 2, 3, 4),
}
#: Compiles little; loops run as they are.
MODE = "FAST_COMPILE"


def make(case: RNNCase) -> tuple[list[Any], list[np.ndarray], Any]:
    """Return variables of operands with gradients, values of all, and a loss of all results."""
    arrays = case.operands()
    if case.has_lengths:
        length = arrays[case.float_count()]
        length[0] = case.steps - 1
        arrays[1][length[0] :, 0] = np.nan  # nothing may depend on what is behind an end
    variables = [
        pt.tensor(dtype="float64", shape=(None,) * a.ndim) for a in arrays[: case.float_count()]
    ]
    outputs = case.forward.make_node(*variables, *arrays[case.float_count() :]).outputs[:-1]
    loss = sum((pt.sin(k + out) * out).sum() for k, out in enumerate(outputs))
    return variables, arrays, loss


def directions(arrays: list[np.ndarray]) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(a.shape) for a in arrays]


# The loops of an LSTM and a GRU take half a minute, and their layouts are those of the others.
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=name, marks=[pytest.mark.slow] if name != "rnn_tanh" else [])
        for name, case in CASES.items()
    ],
)
def test_products_with_the_hessian(case):
    variables, arrays, loss = make(case)
    gradients = pytensor.grad(loss, variables)
    along = [v.type() for v in variables]
    inner = sum((g * a).sum() for g, a in zip(gradients, along, strict=True))
    values, steps = arrays[: len(variables)], directions(arrays[: len(variables)])
    product = pytensor.function([*variables, *along], pytensor.grad(inner, variables), mode=MODE)
    gradient = pytensor.function(variables, gradients, mode=MODE)
    ahead, behind = (
        gradient(*(v + sign * STEP * s for v, s in zip(values, steps, strict=True)))
        for sign in (1, -1)
    )
    found = product(*values, *steps)
    for result, plus, minus in zip(found, ahead, behind, strict=True):
        numeric = (plus - minus) / (2 * STEP)
        assert np.isfinite(result).all()
        assert np.count_nonzero(result)
        assert_close(result, numeric, bound=1e-5, allow_zero=True)


def test_forward_mode():
    case = replace(CASES["rnn_tanh"], bidirectional=False)
    variables, arrays, _ = make(case)
    outputs = case.forward.make_node(*variables).outputs[:-1]
    along = [v.type() for v in variables]
    steps = directions(arrays)
    ahead, behind = (
        run_op(case.forward, *(v + sign * STEP * s for v, s in zip(arrays, steps, strict=True)))
        for sign in (1, -1)
    )
    moving = pytensor.gradient.pushforward(outputs, variables, along, use_op_pushforward=True)
    found = pytensor.function([*variables, *along], moving, mode=MODE)(*arrays, *steps)
    for result, plus, minus in zip(found, ahead, behind, strict=False):
        assert_close(result, (plus - minus) / (2 * STEP), bound=1e-6)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_network_as_expressions(case):
    _, arrays, _ = make(case)
    arrays[1] = np.nan_to_num(arrays[1])
    w, x, hx, *others = (pt.as_tensor(a) for a in arrays)
    cx = others.pop(0) if case.forward.layout.has_cell else None
    written = rnn_expressions(case.forward.layout, w, x, hx, cx, *others)
    expected = run_op(case.forward, *arrays)[:-1]
    for result, reference in zip(
        pytensor.function([], written, mode=MODE)(), expected, strict=True
    ):
        assert_close(result, reference, bound=1e-12)


def test_dropout_between_layers_is_refused():
    x, w, hx = pt.dtensor3("x"), pt.dvector("w"), pt.dtensor3("hx")
    y = RNNForward("gru", 3, 2, dropout=0.5).make_node(w, x, hx, 7).outputs[0]
    gradient = pytensor.grad((y**2).sum(), w)
    words = "RNNBackward: second derivatives .* not supported .* dropout.* Use one RNNBlock"
    with pytest.raises(DnnNotSupportedError, match=words):
        pytensor.grad(gradient.sum(), w)
    with pytest.raises(DnnNotSupportedError, match=words):
        pytensor.gradient.pushforward(y, w, w.type(), use_op_pushforward=True)

"""Logarithms of softmaxes and their gradients are finite, however they are read and combined.

The scores are so far apart that a probability is zero in float32. In float64 it is not, so that the
graphs as they are written are the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode, get_mode
from pytensor.tensor.special import xlogy

from dnnops import dnn, nnet
from dnnops.modes import OneDnnMode
from tests.emulation.host_graphs import on_host
from tests.gpuarray.graphs import rewritten
from tests.oracle import PERFORM_MODE

SCORES = np.array([[0.0, 200.0, 0.0], [3.0, 1.0, 2.0]])
LABELS = np.array([0, 1])

#: The rewrites of each mode, computed with NumPy.
MODES = {
    "ONEDNN": lambda: OneDnnMode(linker="py").excluding("fusion"),
    "CVM": lambda: Mode("py", get_mode("CVM").provided_optimizer.excluding("fusion")),
    "NUMBA": lambda: Mode("py", get_mode("NUMBA").provided_optimizer.excluding("fusion", "numba")),
}


def rows(y: Any) -> Any:
    return pt.arange(y.shape[0])


def one_hot(y: Any) -> Any:
    return pt.eye(3)[y]


Loss = Callable[[Any, Any], Any]

#: Losses that read probabilities in many ways.
READ: dict[str, Loss] = {
    "categorical_crossentropy": lambda p, y: nnet.categorical_crossentropy(p, y).sum(),
    "labels": lambda p, y: -pt.log(p[rows(y), y]).sum(),
    "constant rows": lambda p, y: -pt.log(p[np.arange(2), y]).mean() / 3,
    "weighted": lambda p, y: pt.dot(-pt.log(p[rows(y), y]), np.array([2.0, 0.5], "float32")),
    "columns": lambda p, y: -pt.log(pt.take_along_axis(p, y[:, None], axis=1)).sum(),
    "transposed": lambda p, y: -pt.log(p.T[y, rows(y)]).sum(),
    "classes": lambda p, y: -(pt.log(p.T[y]) * pt.eye(2, dtype="float32")).sum(),
    "a row": lambda p, y: -pt.log(p[0, y]).sum(),
    "a column": lambda p, y: -pt.log(p[:, 0]).sum(),
    "a slice": lambda p, y: -pt.log(p[:1, 1:]).sum(),
    "elements of rows": lambda p, y: -pt.log(p[0][y[0]]) - pt.log(p[1][y[1]]),
    "flat": lambda p, y: -pt.log(p.reshape((-1,))[y + 3 * rows(y)]).sum(),
    "in float64": lambda p, y: -pt.log(p.astype("float64")[rows(y), y]).sum(),
    "binary logarithm": lambda p, y: -pt.log2(p[rows(y), y]).sum(),
    "decimal logarithms": lambda p, y: -pt.log10(p).sum(),
    "all": lambda p, y: -pt.log(p).sum(),
    "one-hot": lambda p, y: nnet.categorical_crossentropy(p, one_hot(y)).sum(),
    "focal": lambda p, y: -((1 - p[rows(y), y]) ** 2 * pt.log(p[rows(y), y])).sum(),
}
#: What else depends on the probabilities.
OTHERS: dict[str, Loss] = {
    "squares": lambda p, y: (p**2).sum(),
    "entropy": lambda p, y: (p * pt.log(p)).sum(),
    "xlogy": lambda p, y: xlogy(p, p).sum(),
    "labels": lambda p, y: nnet.categorical_crossentropy(p, (y + 1) % 3).sum(),
    "one-hot": lambda p, y: nnet.categorical_crossentropy(p, one_hot((y + 1) % 3)).sum(),
}
LOSSES: dict[str, Loss] = {
    **READ,
    **{f"{name} + squares": lambda p, y, f=f: f(p, y) + (p**2).sum() for name, f in READ.items()},
    **{
        f"categorical_crossentropy + {name}": lambda p, y, g=g: (
            READ["categorical_crossentropy"](p, y) + g(p, y) / 7
        )
        for name, g in OTHERS.items()
    },
}


def graph(dtype: str, softmax: Any = nnet.softmax) -> tuple[list[Any], list[Any]]:
    """Return the inputs, and all losses with their gradients."""
    x, y = pt.tensor("x", dtype=dtype, shape=(None, None)), pt.lvector("y")
    outputs = []
    for f in LOSSES.values():
        loss = f(softmax(x), y)
        outputs += [loss, pytensor.grad(loss, x)]
    return [x, y], outputs


def check(f: Any) -> None:
    oracle = pytensor.function(*graph("float64"), mode=PERFORM_MODE)
    given = SCORES.astype("float32"), LABELS
    names = [f"{of}{name}" for name in LOSSES for of in ("", "gradient of ")]
    for name, result, reference in zip(names, f(*given), oracle(SCORES, LABELS), strict=True):
        np.testing.assert_allclose(result, reference, rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.fixture
def without_a_device() -> Iterator[None]:
    with pytensor.config.change_flags(
        dnn__enabled="no_check", on_opt_error="raise", floatX="float32"
    ):
        yield


@pytest.mark.parametrize("mode", MODES)
def test_values_and_gradients(mode):
    with pytensor.config.change_flags(floatX="float32"):
        check(pytensor.function(*graph("float32"), mode=MODES[mode]()))


@pytest.mark.usefixtures("without_a_device")
@pytest.mark.parametrize("is_cudnn", [False, True], ids=["PyTensor's", "cuDNN's"])
def test_on_a_gpu(is_cudnn):
    """cuDNN's softmax, too, if the user has called it."""

    def cudnn_softmax(x: Any) -> Any:
        op = dnn.GpuDnnSoftmax("accurate", "channel")
        return pt.as_tensor_variable(op(x[:, :, None, None]))[:, :, 0, 0]

    softmax = cudnn_softmax if is_cudnn else nnet.softmax
    moved = rewritten(*graph("float32", softmax), get_mode("CUDNN").excluding("inplace"))
    check(pytensor.function(moved.inputs, on_host(list(moved.outputs)), mode=PERFORM_MODE))


@pytest.mark.parametrize("mode", MODES)
def test_a_gradient_beside_another_loss(mode):
    """Outputs in any combination have the values of each alone."""
    x, y = pt.dmatrix(), pt.lvector()
    p = nnet.softmax(x)
    first = READ["categorical_crossentropy"](p, y)
    second = first + OTHERS["entropy"](p, y)
    gradients = [pytensor.grad(z, x) for z in (first, second)]
    f = pytensor.function([x, y], [gradients[0], second, gradients[1]], mode=MODES[mode]())
    for result, reference in zip(
        f([[0.0, 2000.0, 0.0]], [0]), ([[-1, 1, 0]], 2000, [[-1, 1, 0]]), strict=True
    ):
        np.testing.assert_allclose(result, reference, atol=1e-9)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("form", ["labels", "constant rows", "a row", "all", "one-hot"])
def test_constant_scores(mode, form):
    """They are folded after the logarithm has been stabilized."""
    scores = pt.constant(np.array([[0, 104, 0], [0, 0, 104]], "float32"))
    loss = READ[form](nnet.softmax(scores), pt.constant(LABELS))
    wanted = {"labels": 208, "constant rows": 208 / 2 / 3, "a row": 104, "all": 416, "one-hot": 208}
    with pytensor.config.change_flags(floatX="float32"):
        found = pytensor.function([], loss, mode=MODES[mode]())()
    np.testing.assert_allclose(found, wanted[form], rtol=1e-6)


def test_the_gradient_with_respect_to_probabilities():
    """It is infinite where a probability is zero, and zero where it is not read."""
    x, y = pt.fmatrix(), pt.lvector()
    p = nnet.softmax(x)
    gradient = pytensor.grad(-pt.log(p[rows(y), y]).sum(), p)
    f = pytensor.function([x, y], gradient, mode=MODES["ONEDNN"]())
    found = f(SCORES.astype("float32")[:1], LABELS[:1])
    np.testing.assert_array_equal(found, [[-np.inf, 0, 0]])

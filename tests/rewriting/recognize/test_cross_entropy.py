"""Cross-entropies of ``log(softmax(x)[...])``, with gradients that are quotients, are fused."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import get_mode
from pytensor.tensor.special import softmax

from dnnops.gpuarray.type import GpuArrayType
from tests.oracle import PERFORM_MODE, assert_close
from tests.rewriting.gpu.test_to_cudnn import names, rewritten

CPU_MODE = get_mode("CVM")
FUSED = {"CrossEntropy", "CrossEntropyGrad"}


def mean_of_negatives(logs, w):
    return pt.mean(-logs)


def weighted(logs, w):
    return (w * -logs).sum()


def weighted_mean(logs, w):
    return -(w * logs).mean() / 3


def quotient(logs, w):
    return -(logs / w).sum() / w.sum()


def positive(logs, w):
    return logs.sum()


FORMS = [mean_of_negatives, weighted, weighted_mean, quotient, positive]


def picked(x, rows, labels, is_column: bool = False):
    """Return the entries of `x` at labels, by indexing or by ``take_along_axis``."""
    if is_column:
        return pt.take_along_axis(x, labels[:, None], axis=1)
    return x[rows, labels]


def left(found: set[str]) -> set[str]:
    """Return the Ops that show an expression was not fused."""
    return {name for name in found if "oftmax" in name or "Advanced" in name}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", [(None, None), (6, 9)], ids=["unknown", "static"])
@pytest.mark.parametrize("rows", ["labels", "scores", "constant", "column"])
def test_on_the_cpu(form, shape, rows):
    def graph(dtype: str):
        x, w = pt.tensor("x", dtype=dtype, shape=shape), pt.tensor("w", dtype=dtype, shape=(None,))
        labels = pt.tensor("labels", dtype="int64", shape=(6,) if rows == "constant" else (None,))
        count = {"labels": pt.arange(labels.shape[0]), "scores": pt.arange(x.shape[0])}
        at = picked(softmax(x, axis=1), count.get(rows, np.arange(6)), labels, rows == "column")
        loss = form(pt.log(at), w[:, None] if rows == "column" else w)
        return [x, labels, w], [loss, pytensor.grad(loss, x)]

    f = pytensor.function(*graph("float32"), mode=CPU_MODE, on_unused_input="ignore")
    found = {type(node.op).__name__ for node in f.maker.fgraph.apply_nodes}
    assert found >= {f"OneDnn{name}" for name in FUSED}
    assert not left(found)
    oracle = pytensor.function(*graph("float64"), mode=PERFORM_MODE, on_unused_input="ignore")
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((6, 9)).astype("float32"), rng.uniform(0.5, 2, 6).astype("float32")
    labels = rng.integers(-9, 9, 6)
    for result, reference in zip(f(x, labels, w), oracle(x, labels, w), strict=True):
        assert_close(result, reference, bound=1e-5)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_on_a_gpu(form, dtype):
    x, w = GpuArrayType(dtype, (None, None))(), GpuArrayType(dtype, (None,))()
    labels = pt.lvector()
    with pytensor.config.change_flags(dnn__enabled="no_check", floatX="float32"):
        scores = pt.as_tensor_variable(x)
        at = picked(softmax(scores, axis=1), pt.arange(labels.shape[0]), labels)
        loss = form(pt.log(at), pt.as_tensor_variable(w))
        found = names(rewritten([x, labels, w], [loss, pytensor.grad(loss, x)]))
    assert found >= {f"Gpu{name}" for name in FUSED}
    assert not left(found)


@pytest.mark.parametrize(
    ("start", "step"), [(1, 1), (0, 2), (-1, 1), (0, -1)], ids=["start", "step", "minus", "back"]
)
@pytest.mark.parametrize("is_constant", [False, True])
def test_rows_that_are_not_all(start, step, is_constant):
    """Every second row, or all but the first, has other labels than every row."""
    x = GpuArrayType("float32", (6, 9) if is_constant else (None, None))()
    constant = np.arange(start, 6 if step > 0 else -6, step)
    labels = pt.tensor(dtype="int64", shape=(len(constant) if is_constant else None,))
    with pytensor.config.change_flags(dnn__enabled="no_check", floatX="float32"):
        scores = pt.as_tensor_variable(x)
        rows = constant if is_constant else pt.arange(start, x.shape[0], step)
        loss = -pt.log(softmax(scores, axis=1)[rows, labels]).sum()
        found = names(rewritten([x, labels], [loss, pytensor.grad(loss, x)]))
    assert not found & {f"Gpu{name}" for name in FUSED}


def test_a_divisor_at_other_labels():
    """A quotient by something else is not a gradient of the logarithm."""
    x, labels, others = pt.fmatrix(), pt.lvector(), pt.lvector()
    probabilities = softmax(x, axis=1)
    rows = pt.arange(labels.shape[0])
    ratio = probabilities[rows, labels] / probabilities[rows, others]
    outputs = [ratio.sum(), pytensor.grad(ratio.sum(), x)]
    f = pytensor.function([x, labels, others], outputs, mode=CPU_MODE)
    assert not {f"OneDnn{n}" for n in FUSED} & {
        type(node.op).__name__ for node in f.maker.fgraph.apply_nodes
    }
    oracle = pytensor.function([x, labels, others], outputs, mode=PERFORM_MODE)
    rng = np.random.default_rng(0)
    given = rng.standard_normal((6, 9)).astype("float32"), *rng.integers(0, 9, (2, 6))
    for result, reference in zip(f(*given), oracle(*given), strict=True):
        assert_close(result, reference, bound=1e-5)

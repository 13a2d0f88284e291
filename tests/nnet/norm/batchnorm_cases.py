"""Cases of batch normalization, and the expected results in plain NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from dnnops.nnet import (
    BatchNormInference,
    BatchNormTrain,
    BatchNormTrainGrad,
    batch_normalization_train,
)
from tests.oracle import (
    normal,
)

#: Dtypes of data and parameters.
DTYPES = [
    ("float64", "float64"),
    ("float32", "float32"),
    ("float16", "float16"),
    ("float16", "float32"),
]
#: Absolute tolerances for values of about 1, because averages may be near zero.
TOLERANCE = {"float64": 1e-11, "float32": 3e-5, "float16": 4e-3}


@dataclass(frozen=True)
class Case:
    """A batch normalization with consistent shapes and axes."""

    shape: tuple[int, ...]
    axes: Any
    full_rank: bool
    epsilon: float
    factor: float
    seed: int

    @property
    def canonical(self) -> tuple[int, ...]:
        """Return the axes as numbers."""
        if self.axes == "per-activation":
            return (0,)
        if self.axes == "spatial":
            return tuple(i for i in range(len(self.shape)) if i != 1)
        return tuple(sorted(axis % len(self.shape) for axis in self.axes))

    @property
    def full_shape(self) -> tuple[int, ...]:
        """Return the shape of statistics in results."""
        return tuple(1 if i in self.canonical else n for i, n in enumerate(self.shape))

    @property
    def parameter_shape(self) -> tuple[int, ...]:
        """Return the shape of the parameters."""
        kept = tuple(n for i, n in enumerate(self.shape) if i not in self.canonical)
        return self.full_shape if self.full_rank else kept

    @property
    def count(self) -> int:
        """Return the number of elements per statistic."""
        return int(np.prod([self.shape[axis] for axis in self.canonical]))

    def arrays(self, dtype: str = "float64", parameter_dtype: str = "float64") -> list[np.ndarray]:
        """Return data, scale, bias, an average and a variance."""
        rng = np.random.default_rng(self.seed)
        x = normal(rng, self.shape, dtype)
        scale, bias, mean = (normal(rng, self.parameter_shape, parameter_dtype) for _ in range(3))
        return [x, scale, bias, mean, rng.uniform(0.1, 2, mean.shape).astype(parameter_dtype)]

    def groups(self, x: np.ndarray) -> np.ndarray:
        """Reshape data or parameters to (groups, elements of a group), in float64."""
        x = np.asarray(x, dtype="float64")
        if x.ndim == len(self.shape):
            kept = [i for i in range(x.ndim) if i not in self.canonical]
            x = x.transpose(*kept, *self.canonical)
        groups = int(np.prod(self.full_shape))
        return x.reshape(groups, x.size // groups)

    def ungroup(self, x: np.ndarray) -> np.ndarray:
        """Reshape (groups, elements of a group) to the shape of the data, or of parameters."""
        kept = [i for i in range(len(self.shape)) if i not in self.canonical]
        order = [*kept, *self.canonical]
        shape = self.shape if x.shape[1] == self.count else self.full_shape
        if self.count == 1:
            return x.reshape(self.shape)
        return x.reshape([shape[i] for i in order]).transpose(np.argsort(order))


@st.composite
def cases(draw, max_ndim: int = 5, max_size: int = 4, min_count: int = 1):
    """Return a strategy for `Case`."""
    shape = tuple(draw(st.lists(st.integers(1, max_size), min_size=1, max_size=max_ndim)))
    ndim = len(shape)
    axes = draw(
        st.one_of(
            st.sampled_from(["per-activation", "spatial"]),
            st.permutations(range(ndim)).flatmap(
                lambda order: st.integers(1, ndim).map(lambda count: tuple(order[:count]))
            ),
        )
    )
    if not isinstance(axes, str):
        axes = tuple(axis - ndim if draw(st.booleans()) else axis for axis in axes)
    case = Case(
        shape,
        axes,
        draw(st.booleans()),
        # Large enough not to amplify the rounding of almost equal elements.
        draw(st.floats(0.01, 1)),
        draw(st.floats(0, 1)),
        draw(st.integers(0, 2**32 - 1)),
    )
    if case.count < min_count:
        sizes = list(shape)
        sizes[case.canonical[0]] = min_count
        case = Case(tuple(sizes), *list(case.__dict__.values())[1:])
    return case


def reference(case: Case, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Return the expected training results, with statistics in the parameters' shape."""
    x, scale, bias, running_mean, running_var = (case.groups(a) for a in arrays)
    mean, deviation = x.mean(axis=1, keepdims=True), x.std(axis=1, keepdims=True)
    unbiased = x.var(axis=1, keepdims=True, ddof=1) if case.count > 1 else np.zeros_like(mean)
    invstd = (deviation**2 + case.epsilon) ** -0.5
    out = [
        scale * (x - mean) * invstd + bias,
        mean,
        invstd,
        running_mean + case.factor * (mean - running_mean),
        running_var + case.factor * (unbiased - running_var),
    ]
    out, *statistics = (case.ungroup(a) for a in out)
    return [out, *(a.reshape(case.parameter_shape) for a in statistics)]


def gradient_by_jacobian(case: Case, x, gout, scale, mean, invstd) -> list[np.ndarray]:
    """Multiply `gout` by the derivatives of all elements with respect to all others in a group."""
    x, gout, scale, mean, invstd = (case.groups(a) for a in (x, gout, scale, mean, invstd))
    normalized = (x - mean) * invstd
    jacobian = np.eye(case.count) - 1 / case.count
    jacobian = jacobian - normalized[:, :, None] * normalized[:, None, :] / case.count
    jacobian *= (scale * invstd)[:, :, None]
    dx = np.einsum("gij,gi->gj", jacobian, gout)
    dscale = np.einsum("gi,gi->g", gout, normalized)[:, None]
    return [case.ungroup(a) for a in (dx, dscale, gout.sum(axis=1, keepdims=True))]


def run(op: Any, *arrays: Any) -> list[np.ndarray]:
    """Run an Op's `perform`, and check the results' static shapes and dtypes."""
    node = op.make_node(*arrays)
    storage: list[list] = [[None] for _ in node.outputs]
    values = [np.asarray(a, dtype=v.type.dtype) for a, v in zip(arrays, node.inputs, strict=True)]
    op.perform(node, values, storage)
    for (out,), variable in zip(storage, node.outputs, strict=True):
        assert isinstance(out, np.ndarray)
        assert (out.shape, out.dtype.name) == (variable.type.shape, variable.type.dtype)
        assert not any(np.shares_memory(out, value) for value in values)
    return [out for (out,) in storage]


def assert_near(results: Any, expected: Any, dtypes: Any, factor: float = 1) -> None:
    for out, ref, dtype in zip(results, expected, dtypes, strict=True):
        assert out.dtype == dtype
        assert out.shape == ref.shape
        tolerance = factor * TOLERANCE[dtype]
        np.testing.assert_allclose(out.astype("float64"), ref, rtol=tolerance, atol=tolerance)


def train(case: Case, arrays: list[Any], running: bool = True) -> tuple:
    x, scale, bias, *averages = arrays
    return batch_normalization_train(
        x, scale, bias, case.axes, case.epsilon, case.factor, *(averages if running else ())
    )


def operands_of(op: Any, case: Case, dtype: str = "float64") -> list[Any]:
    x, *parameters = case.arrays(dtype, dtype)
    values = iter([p.reshape(case.full_shape) for p in (*parameters, *parameters)])
    given: list[Any] = []
    for operand in op.operands:
        if operand in op.data:
            given.append(x)
        else:
            given.append(0.5 if operand in op.scalars else next(values))
    return given


def ops_of(case: Case) -> list[Any]:
    axes = case.canonical
    return [
        BatchNormTrain(axes),
        BatchNormTrain(axes, True),
        BatchNormTrainGrad(axes),
        BatchNormInference(axes),
    ]

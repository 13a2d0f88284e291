"""Shared helpers: random cases, running an Op in NumPy, comparing, differentiating.

Each abstract Op's `perform`, in float64, is the reference for the backends. The tests of
`dnnops.nnet` compare `perform` with independent references.
"""

from __future__ import annotations

import functools
import os
import random
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytensor
import pytensor.tensor as pt
from hypothesis import given, note, seed, settings
from hypothesis import strategies as st
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.mode import Mode
from pytensor.gradient import pushforward
from pytensor.link.basic import PerformLinker
from pytensor.scan.op import Scan

from dnnops.nnet.conv.geometry import resolve_padding
from dnnops.nnet.conv.op import conv_output_shape
from dnnops.nnet.pool.op import POOL_MODES, pool_output_shape


def seed_of_commit() -> int:
    """Return a seed that differs between commits: each tests other cases, always the same ones.

    Returns
    -------
    int
        The first digits of the hash of the commit that is checked out; 0 outside of a checkout.
    """
    root = Path(__file__).parents[1]
    if not (root / ".git").exists():
        return 0  # an unpacked source distribution may lie in another repository
    command = ["git", "-C", str(root), "rev-parse", "--short=8", "HEAD"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return 0
    return int(found.stdout.strip()[:8], 16)


#: Seed of the random cases: DNNOPS_TEST_SEED, which may be "random", or that of the commit.
_GIVEN = os.environ.get("DNNOPS_TEST_SEED")
SEED = (
    random.SystemRandom().randrange(2**32)
    if _GIVEN == "random"
    else int(_GIVEN or seed_of_commit())
)


T = TypeVar("T")


def sampled(values: Iterable[T], most: int = 12) -> list[T]:
    """Return some of many values that take long to test; each commit tests others.

    Parameters
    ----------
    values : iterable
        Different values, which can be sorted.
    most : int
        Number of values to return, if there are so many.

    Returns
    -------
    list
    """
    every = sorted(values)
    return random.Random(SEED).sample(every, min(most, len(every)))


class _Perform(PerformLinker):
    """Run inner graphs of Ops in Python, too, which PyTensor compiles in its default mode."""

    def make_all(self, *args: Any, **kwargs: Any) -> Any:
        for node in self.fgraph.apply_nodes:
            if isinstance(node.op, OpFromGraph):
                node.op.kwargs = {**node.op.kwargs, "mode": PERFORM_MODE}
            elif isinstance(node.op, Scan):
                # A mode without compilation; loops need a linker that keeps their arrays.
                node.op.mode = "FAST_COMPILE"
        return super().make_all(*args, **kwargs)


#: Runs each Op's `perform` without rewrites or compilation.
PERFORM_MODE = Mode(linker=_Perform(), optimizer=None)

#: Largest allowed ||out - ref|| / ||ref||.
RELATIVE_ERROR = {
    "float64": 1e-12,
    "float32": 1e-5,
    "tf32": 1e-3,
    "float16": 2e-3,
    "bfloat16": 1e-2,
}
#: The same for algorithms that transform their operands: FFT and Winograd.
TRANSFORM_RELATIVE_ERROR = {**RELATIVE_ERROR, "float64": 1e-10, "float32": 1e-4}

#: Largest relative rounding error.
UNIT = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


# -- random cases ------------------------------------------------------------------------


def repeat_command() -> str:
    """Return the command line that repeats the running test, including its random cases."""
    test = os.environ.get("PYTEST_CURRENT_TEST", "tests").rsplit(" (", 1)[0]
    return f"DNNOPS_TEST_SEED={SEED} python -m pytest {test!r}"


def fuzz(max_examples: int = 50, **strategies: st.SearchStrategy) -> Callable:
    """Decorate a test to run with random arguments, and to print how to repeat a failure.

    Parameters
    ----------
    max_examples : int
        Number of random cases.
    **strategies
        Strategies for `hypothesis.given`.
    """

    def decorate(test: Callable) -> Callable:
        @functools.wraps(test)
        def run(*args: Any, **kwargs: Any) -> None:
            note(f"repeat with: {repeat_command()}")
            test(*args, **kwargs)

        # No database: DNNOPS_TEST_SEED could not repeat cases that an earlier run stored there.
        options = settings(max_examples=max_examples, deadline=None, print_blob=True, database=None)
        return seed(SEED)(options(given(**strategies)(run)))

    return decorate


@dataclass(frozen=True)
class ConvCase:
    """A convolution with consistent shapes and parameters."""

    img_shape: tuple[int, ...]
    kern_shape: tuple[int, ...]
    border_mode: Any
    subsample: tuple[int, ...]
    filter_flip: bool
    filter_dilation: tuple[int, ...]
    num_groups: int
    seed: int

    @property
    def ndim(self) -> int:
        """The number of spatial axes."""
        return len(self.img_shape) - 2

    @property
    def params(self) -> dict[str, Any]:
        """Keyword arguments of `Conv`, its gradients, and the backends' Ops."""
        names = ("border_mode", "subsample", "filter_flip", "filter_dilation", "num_groups")
        return {"ndim": self.ndim, **{name: getattr(self, name) for name in names}}

    @property
    def padding(self) -> tuple[tuple[int, int], ...]:
        """The padding before and after each spatial axis."""
        return resolve_padding(self.border_mode, self.kern_shape[2:], self.filter_dilation)

    @property
    def top_shape(self) -> tuple[int, ...]:
        """The shape of the output."""
        return conv_output_shape(
            self.img_shape,
            self.kern_shape,
            self.border_mode,
            self.subsample,
            self.filter_dilation,
        )

    def arrays(self, dtype: str = "float64", integers: bool = False) -> tuple[np.ndarray, ...]:
        """Return an image, filters and a gradient with respect to the output."""
        rng = np.random.default_rng(self.seed)
        make = small_integers if integers else normal
        return tuple(
            make(rng, shape, dtype) for shape in (self.img_shape, self.kern_shape, self.top_shape)
        )


@st.composite
def conv_cases(
    draw: st.DrawFn,
    ndim: int | None = None,
    max_channels: int = 3,
    max_size: int = 6,
    max_kernel: int = 3,
    border_modes: Sequence[str] = ("valid", "half", "full", "int", "ints", "pairs"),
    max_stride: int = 3,
    max_dilation: int = 2,
    max_groups: int = 3,
    empty: bool = False,
) -> ConvCase:
    """Return a strategy for valid `ConvCase` objects; it rejects no draws.

    Parameters
    ----------
    ndim : {1, 2, 3}, optional
        Number of spatial axes; random by default.
    max_channels : int
        Most input or output channels of each group.
    max_size : int
        How much larger than necessary the image can be.
    border_modes : sequence of str
        Kinds of padding to choose from.
    max_kernel, max_stride, max_dilation, max_groups : int
        Largest values; the smallest are 1.
    empty : bool
        Whether batch and channels may be 0.
    """
    ndim = draw(st.integers(1, 3)) if ndim is None else ndim
    least = 0 if empty else 1

    def per_axis(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(ndim))

    kernel, dilation = per_axis(1, max_kernel), per_axis(1, max_dilation)
    kind = draw(st.sampled_from(list(border_modes)))
    border_mode: Any = kind
    if kind == "int":
        border_mode = draw(st.integers(0, 2))
    elif kind == "ints":
        border_mode = per_axis(0, 2)
    elif kind == "pairs":
        border_mode = tuple(zip(per_axis(0, 2), per_axis(0, 2), strict=True))
    pads = resolve_padding(border_mode, kernel, dilation)
    smallest = [
        max(1, (k - 1) * d + 1 - sum(pad)) for k, d, pad in zip(kernel, dilation, pads, strict=True)
    ]
    spatial = tuple(n + draw(st.integers(0, max_size - 1)) for n in smallest)
    groups = draw(st.integers(1, max_groups))
    channels_in = draw(st.integers(least, max_channels))
    channels_out = groups * draw(st.integers(least, max_channels))
    return ConvCase(
        img_shape=(draw(st.integers(least, 3)), groups * channels_in, *spatial),
        kern_shape=(channels_out, channels_in, *kernel),
        border_mode=border_mode,
        subsample=per_axis(1, max_stride),
        filter_flip=draw(st.booleans()),
        filter_dilation=dilation,
        num_groups=groups,
        seed=draw(st.integers(0, 2**32 - 1)),
    )


@dataclass(frozen=True)
class PoolCase:
    """A pooling with consistent shapes and parameters."""

    img_shape: tuple[int, ...]
    ws: tuple[int, ...]
    stride: tuple[int, ...]
    pad: tuple[int, ...]
    mode: str
    ignore_border: bool
    seed: int

    @property
    def ndim(self) -> int:
        """The number of spatial axes."""
        return len(self.img_shape) - 2

    @property
    def vectors(self) -> tuple[np.ndarray, ...]:
        """The operands ws, stride and pad."""
        return tuple(np.array(v, dtype="int64") for v in (self.ws, self.stride, self.pad))

    @property
    def out_shape(self) -> tuple[int, ...]:
        """The shape of the output."""
        return pool_output_shape(self.img_shape, self.ws, self.stride, self.pad, self.ignore_border)

    def arrays(self, dtype: str = "float64", ties: bool = False) -> tuple[np.ndarray, ...]:
        """Return an image, and gradients with respect to the output and to the image's gradient.

        Without `ties`, any two pixels differ by at least 1/64.
        """
        rng = np.random.default_rng(self.seed)
        if ties:
            x = small_integers(rng, self.img_shape, dtype)
        else:
            count = int(np.prod(self.img_shape))
            steps = rng.permutation(count).reshape(self.img_shape) - count // 2
            x = (steps / 64).astype(dtype)
        return x, normal(rng, self.out_shape, dtype), normal(rng, self.img_shape, dtype)


@st.composite
def pool_cases(
    draw: st.DrawFn,
    ndim: int | None = None,
    modes: Sequence[str] = POOL_MODES,
    ignore_border: bool | None = None,
    max_channels: int = 2,
    max_size: int = 5,
    max_window: int = 3,
    empty: bool = False,
) -> PoolCase:
    """Return a strategy for valid `PoolCase` objects; it rejects no draws.

    Parameters
    ----------
    ndim : {1, 2, 3}, optional
        Number of spatial axes; random by default.
    modes : sequence of str
        Modes to choose from.
    ignore_border : bool, optional
        Value of the parameter; random by default.
    max_size : int
        How much larger than necessary the image can be.
    max_channels, max_window : int
        Largest values; the smallest are 1.
    empty : bool
        Whether batch and channels may be 0.
    """
    ndim = draw(st.integers(1, 3)) if ndim is None else ndim
    ignore_border = draw(st.booleans()) if ignore_border is None else ignore_border
    least = 0 if empty else 1

    def per_axis(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(ndim))

    ws = per_axis(1, max_window)
    pad = tuple(draw(st.integers(0, w - 1)) if ignore_border else 0 for w in ws)
    smallest = [max(1, w - 2 * p) if ignore_border else 1 for w, p in zip(ws, pad, strict=True)]
    return PoolCase(
        img_shape=(
            draw(st.integers(least, 2)),
            draw(st.integers(least, max_channels)),
            *(n + draw(st.integers(0, max_size - 1)) for n in smallest),
        ),
        ws=ws,
        stride=per_axis(1, max_window + 1),
        pad=pad,
        mode=draw(st.sampled_from(list(modes))),
        ignore_border=ignore_border,
        seed=draw(st.integers(0, 2**32 - 1)),
    )


# -- arrays ------------------------------------------------------------------------------


def normal(rng: np.random.Generator, shape: Sequence[int], dtype: str) -> np.ndarray:
    """Return normally distributed numbers."""
    return rng.standard_normal(tuple(shape)).astype(dtype)


def small_integers(rng: np.random.Generator, shape: Sequence[int], dtype: str) -> np.ndarray:
    """Return integers from -3 to 3, whose sums of products are exact in any float dtype."""
    return rng.integers(-3, 4, size=tuple(shape)).astype(dtype)


def assert_close(
    out: np.ndarray,
    ref: np.ndarray,
    dtype: str | None = None,
    bound: float | None = None,
    allow_zero: bool = False,
    rounding: float = 0.0,
) -> None:
    """Compare a result with its reference by ``||out - ref|| / ||ref||``.

    Parameters
    ----------
    out, ref : ndarray
        Arrays of the same shape.
    dtype : str, optional
        Key of `RELATIVE_ERROR` for the bound; the dtype of `out` by default.
    bound : float, optional
        Bound that replaces the one for `dtype`.
    allow_zero : bool
        Whether most of the reference may be zero. Comparing with zeros checks nothing, so a test
        has to allow it explicitly.
    rounding : float
        Norm of the reference's own rounding error.
    """
    assert out.shape == ref.shape, f"shape {out.shape}, expected {ref.shape}"
    if ref.size == 0:
        return
    if bound is None:
        bound = RELATIVE_ERROR[dtype or out.dtype.name]
    smallest = float(np.finfo(out.dtype).smallest_subnormal) if out.dtype.kind == "f" else 0.0
    ref = ref.astype("float64")
    out = out.astype("float64")
    assert np.isfinite(ref).all(), "the reference is not finite"
    if not allow_zero:
        zeros = np.mean(ref == 0)
        assert zeros <= 0.8, f"{zeros:.0%} of the reference is zero: this compares too little"
    norm = np.linalg.norm(ref.ravel())
    error = np.linalg.norm((out - ref).ravel())
    # Subnormal numbers have fewer digits.
    rounding += np.sqrt(ref.size) * smallest
    # Negated, so that NaN fails.
    assert error <= bound * norm + rounding, (
        f"relative error {error / norm if norm else np.inf:.3g} > {bound:.3g}; "
        f"largest difference {np.max(np.abs(out - ref)):.3g}"
    )


def units_off(
    out: np.ndarray, ref: np.ndarray, scale: np.ndarray | float | None = None
) -> np.ndarray:
    """Return the error of each element in units of the last digit.

    A norm hides errors of small elements; this does not. The smallest unit is that of subnormal
    numbers. NaNs and infinities count as infinitely far from anything but themselves.

    Parameters
    ----------
    out : ndarray
        Array whose dtype determines the digits.
    ref : ndarray
        Reference in a dtype with more digits, such as ``longdouble``.
    scale : ndarray, optional
        Magnitude of terms that cancel in the element. The unit is that of the larger number.
    """
    assert out.shape == ref.shape, f"shape {out.shape}, expected {ref.shape}"
    assert np.finfo(ref.dtype).nmant > np.finfo(out.dtype).nmant
    info = np.finfo(out.dtype)
    with np.errstate(all="ignore"):
        magnitude = np.abs(ref) if scale is None else np.maximum(np.abs(ref), scale)
        exponents = np.maximum(np.frexp(magnitude)[1] - 1, info.minexp)
        units = np.ldexp(ref.dtype.type(1), exponents - info.nmant)
        rounded = ref.astype(out.dtype)
        same = (out == rounded) | (np.isnan(out) & np.isnan(ref))
        distance = np.abs(out.astype(ref.dtype) - ref) / units
    return np.where(same, 0, np.where(np.isnan(distance), np.inf, distance))


def assert_digits(
    out: np.ndarray,
    ref: np.ndarray,
    units: float = 4,
    scale: np.ndarray | float | None = None,
    what: str = "",
) -> None:
    """Compare each element with a bound of `units` units of its last digit.

    Other parameters are those of `units_off`; the message starts with `what`.
    """
    off = units_off(out, ref, scale)
    if out.size == 0 or off.max() <= units:
        return
    worst = np.unravel_index(np.argmax(off), off.shape)
    raise AssertionError(
        f"{what or 'element'} {worst} is {out[worst]!r}, expected {ref[worst]!r}: "
        f"{off[worst]:.3g} units of the last digit, more than {units}"
    )


# -- running and differentiating ---------------------------------------------------------


def run_op(op: Any, *arrays: np.ndarray) -> np.ndarray:
    """Run an Op's `perform`, and check the static shape inferred from constants."""
    node = op.make_node(*arrays)
    storage: list[list] = [[None]]
    op.perform(node, [np.asarray(a) for a in arrays], storage)
    out = storage[0][0]
    assert isinstance(out, np.ndarray)
    assert out.dtype.name == node.outputs[0].type.dtype
    assert out.shape == node.outputs[0].type.shape
    return out


def evaluate(outputs: Any, values: dict) -> Any:
    """Compute variables with the `perform` of each Op."""
    fn = pytensor.function(list(values), outputs, mode=PERFORM_MODE, on_unused_input="ignore")
    return fn(*values.values())


def check_infer_shape(op: Any, *arrays: np.ndarray) -> None:
    """Check an Op's `infer_shape` for operands without static shapes, and its outputs' types.

    Integer vectors are passed first as constants and then as variables.
    """
    for symbolic_vectors in (False, True):
        inputs: list[Any] = []
        values = {}
        for array in arrays:
            if array.dtype.kind == "i" and not symbolic_vectors:
                inputs.append(pt.constant(array))
                continue
            variable = pt.tensor(dtype=array.dtype, shape=(None,) * array.ndim)
            values[variable] = array
            inputs.append(variable)
        node = op.make_node(*inputs)
        shapes = [tuple(v.shape[i] for i in range(v.type.ndim)) for v in node.inputs]
        inferred = op.infer_shape(node, shapes)
        for output, shape in zip(node.outputs, inferred, strict=True):
            sizes = [pt.as_tensor_variable(size, dtype="int64") for size in shape]
            *sizes, out = evaluate([*sizes, output], values)
            assert tuple(int(size) for size in sizes) == out.shape
            static = output.type.shape
            assert all(s is None or s == n for s, n in zip(static, out.shape, strict=True))


def pullback_of(fun: Callable, n_inputs: int) -> Callable:
    """Return a function of `fun`'s inputs and a cotangent that returns all gradients, flat."""

    def gradients(*args: Any) -> Any:
        inputs, cotangent = args[:n_inputs], args[n_inputs]
        grads = pytensor.gradient.grad(
            None, list(inputs), known_grads={fun(*inputs): cotangent}, disconnected_inputs="ignore"
        )
        return pt.concatenate([g.flatten() for g in grads])

    return gradients


def check_gradient(
    fun: Callable,
    points: Sequence[np.ndarray],
    seed: int = 0,
    eps: float = 1e-4,
    bound: float = 1e-8,
    allow_zero: bool = False,
    lower: Callable[[list[Any]], list[Any]] = list,
    by_pushforward: bool = True,
) -> None:
    """Compare `fun`'s pullback and pushforward with central differences, in float64.

    Richardson extrapolation: the truncation error is of fourth order. Second-order differences
    exceed the bound where the terms of a derivative cancel.

    Parameters
    ----------
    fun : callable
        Function from variables to a variable.
    points : sequence of ndarray
        Values of the variables.
    seed : int
        Seed of the random direction and cotangent.
    eps, bound : float
        Step size, and largest relative error.
    allow_zero : bool
        Whether most of the derivative may be zero.
    lower : callable
        Replaces variables that cannot be evaluated here by equivalent ones that can.
    by_pushforward : bool
        Whether to use the Ops' pushforwards; otherwise, pushforwards are two pullbacks.
    """
    rng = np.random.default_rng(seed)
    points = [np.asarray(p, dtype="float64") for p in points]
    inputs = [pt.tensor(dtype="float64", shape=(None,) * p.ndim) for p in points]
    # No step is so small that the rounding of the moved point is a large part of it.
    steps = [rng.uniform(0.5, 1.5, p.shape) * rng.choice([-1, 1], p.shape) for p in points]
    tangents = [pt.tensor(dtype="float64", shape=(None,) * p.ndim) for p in points]
    out = fun(*inputs)
    cotangent = pt.tensor(dtype="float64", shape=(None,) * out.type.ndim)
    values = dict(zip(inputs, points, strict=True))
    value_at = pytensor.function(
        inputs, lower([out])[0], mode=PERFORM_MODE, on_unused_input="ignore"
    )

    def at(step: float) -> np.ndarray:
        moved = [p + step * v for p, v in zip(points, steps, strict=True)]
        return value_at(*moved)

    ahead, behind, half_ahead, half_behind = (at(c * eps) for c in (1, -1, 0.5, -0.5))
    numeric = (8 * (half_ahead - half_behind) - (ahead - behind)) / (6 * eps)
    # 18 / 6 values are added, each wrong by a few units of its last digit, or of the last digit of
    # 1 where terms cancel, as in tanh's derivative 1 - y * y. This is more than `bound` where a
    # function is almost constant.
    magnitude = max(1.0, np.linalg.norm(ahead.ravel()))
    rounding = 3 * 4 * UNIT["float64"] * magnitude / eps

    forward = pushforward(
        out,
        inputs,
        tangents,
        disconnected_outputs="ignore",
        use_op_pushforward=by_pushforward,
    )
    forward = evaluate(lower([forward])[0], {**values, **dict(zip(tangents, steps, strict=True))})
    assert_close(forward, numeric, bound=bound, allow_zero=allow_zero, rounding=rounding)

    u = rng.standard_normal(numeric.shape)
    grads = pytensor.gradient.grad(
        None, inputs, known_grads={out: cotangent}, disconnected_inputs="ignore"
    )
    grads = evaluate(lower(grads), {**values, cotangent: u})
    for grad, point in zip(grads, points, strict=True):
        assert grad.shape == point.shape
    backward = sum(np.vdot(g, v) for g, v in zip(grads, steps, strict=True))
    largest = np.linalg.norm(u.ravel()) * (bound * np.linalg.norm(numeric.ravel()) + rounding)
    assert abs(backward - np.vdot(u, numeric)) <= largest, (
        f"<cotangent, J tangent>: by pullback {backward}, by differences {np.vdot(u, numeric)}"
    )


def check_second_derivatives(
    fun: Callable,
    points: Sequence[np.ndarray],
    seed: int = 0,
    lower: Callable[[list[Any]], list[Any]] = list,
    **kwargs: Any,
) -> None:
    """Compare the derivatives of `fun`'s pullback with central differences.

    Parameters are those of `check_gradient`.
    """
    points = list(points)
    inputs = [pt.tensor(dtype="float64", shape=(None,) * np.ndim(p)) for p in points]
    out = evaluate(lower([fun(*inputs)])[0], dict(zip(inputs, points, strict=True)))
    cotangent = np.random.default_rng(seed + 1).standard_normal(out.shape)
    gradients = pullback_of(fun, len(points))
    check_gradient(gradients, [*points, cotangent], seed, lower=lower, **kwargs)

"""Compare cuDNN's attention engines with NumPy, for shapes and scores where faults were found.

``python -m dnnops doctor --check-engines`` runs this on a GPU, for example with a new version of
cuDNN. Known faults are avoided by the table in ``c_code/gpu/attention/attention_faults.cpp``.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dnnops.dtypes import numpy_dtype
from dnnops.errors import DnnError, DnnUnavailableError

__all__ = ["Case", "cases", "check_engines", "compare", "wrong_results"]

#: Added to all scores of a case. The weights don't depend on them, but engines that hide keys by
#: numbers overflow: 11 is the logarithm of float16's largest number, 88 that of float32's.
OFFSETS = (0, 50, 1000, -16, -125, -1000)
RESULTS = ("out", "dquery", "dkey", "dvalue")
UNIT = {"float16": 2.0**-10, "bfloat16": 2.0**-7}


@dataclass(frozen=True)
class Case:
    """A problem that an engine computes.

    Attributes
    ----------
    dtype : {'float16', 'bfloat16'}
    queries, keys, depth : int
    is_causal : bool
    mask : bool
        Whether a random boolean mask is given.
    is_deterministic : bool
        Whether gradients must be deterministic.
    scale : float or None
        Factor by which the scores are multiplied. None means ``depth**-0.5``.
    offset : int
        Approximate size of all scores.
    is_exact : bool
        Whether scores are multiples of 2**20, which nothing rounds.
    """

    dtype: str
    queries: int
    keys: int
    depth: int = 64
    is_causal: bool = False
    mask: bool = False
    is_deterministic: bool = False
    scale: float | None = None
    offset: int = 0
    is_exact: bool = False

    @property
    def factor(self) -> float:
        """The factor by which the scores are multiplied."""
        return self.depth**-0.5 if self.scale is None else self.scale


def cases() -> Iterator[Case]:
    """Yield the cases without offsets, for each of which engines are prepared."""
    for dtype in UNIT:
        for keys in (64, 128):
            base = Case(dtype, keys, keys)
            yield from (base, replace(base, queries=1), replace(base, mask=True))
            yield replace(base, scale=-0.25)
    for keys in (1, 2, 100, 192, 256):
        yield Case("float16", keys, keys)
    for keys in (64, 128):
        base = Case("float16", keys, keys)
        yield from (replace(base, depth=depth) for depth in (16, 128, 256))
        yield replace(base, queries=200)
        yield replace(base, is_causal=True)
        yield replace(base, is_deterministic=True)


def _operands(case: Case) -> dict[str, np.ndarray]:
    """Return operands, rounded to the dtype, in float64."""
    rng = np.random.default_rng(0)
    given = {
        "query": 0.5 * rng.standard_normal((1, 2, case.queries, case.depth)),
        "key": 0.5 * rng.standard_normal((1, 2, case.keys, case.depth)),
        "value": rng.standard_normal((1, 2, case.keys, case.depth)),
        "gout": rng.standard_normal((1, 2, case.queries, case.depth)),
    }
    if case.offset:
        feature = (abs(case.offset / case.factor)) ** 0.5
        given["query"][..., 0] = feature
        given["key"][..., 0] = np.copysign(feature, case.offset * case.factor)
    if case.is_exact:
        for name in ("query", "key"):
            given[name][...] = 0
            given[name][..., :3] = 2.0**12 * rng.integers(-2, 3, given[name][..., :3].shape)
        given["gout"] *= 2.0**-9  # or gradients in float16 would overflow
    rounded = {o: x.astype(numpy_dtype(case.dtype)).astype("float64") for o, x in given.items()}
    if case.mask:
        mask = rng.random((1, 2, case.queries, case.keys)) < 0.6
        mask[..., 0] = True
        rounded["mask"] = mask
    return rounded


def _applied(op: Any, operands: list[Any]) -> list[Any]:
    """Run the `perform` of an Op on arrays of the host or a device."""
    from dnnops.gpuarray.type import GpuArrayType

    variables = [
        x if isinstance(x, np.ndarray) else GpuArrayType(str(x.dtype), (None,) * x.ndim)()
        for x in operands
    ]
    node = op.make_node(*variables)
    storage: list[list[Any]] = [[None] for _ in node.outputs]
    node.op.perform(node, operands, storage)
    return [value for (value,) in storage]


def _results(forward: Any, gradient: Any, operands: list[Any], gout: Any) -> dict[str, Any]:
    results = _applied(forward, operands)
    gradients = _applied(gradient, [*operands, *results, gout])
    return dict(zip(RESULTS, [results[0], *gradients], strict=True))


def compare(case: Case, compute: Callable[[Case, dict[str, np.ndarray]], dict[str, Any]]) -> str:
    """Compare results with those of NumPy in float64.

    Parameters
    ----------
    case : Case
        Case to compute.
    compute : callable
        Function of the case and its operands that returns float64 arrays by name.

    Returns
    -------
    str
        What is wrong; empty if nothing is.
    """
    from dnnops.nnet.attention.op import Attention, AttentionGrad

    given = _operands(case)
    operands = [given[o] for o in ("query", "key", "value", "mask") if o in given]
    parameters: Any = (case.scale, case.is_causal, ("mask",) if case.mask else ())
    wanted = _results(Attention(*parameters), AttentionGrad(*parameters), operands, given["gout"])
    try:
        found = compute(case, given)
    except DnnError as error:
        return f"refused: {str(error).splitlines()[0]}"
    unit, wrong = UNIT[case.dtype], []
    # What rounding leaves of differences that cancel.
    rest = unit * np.linalg.norm(given["gout"]) * np.abs(given["value"]).max() * abs(case.factor)
    factors = {"dquery": "key", "dkey": "query"}
    for name, expected in wanted.items():
        allowed = 8 * unit * np.linalg.norm(expected) + 1e-9
        if name in factors:
            allowed += rest * np.linalg.norm(given[factors[name]], axis=3).max()
        if not np.isfinite(found[name]).all():
            wrong.append(f"{name} is not finite")
        elif np.linalg.norm(found[name] - expected) > allowed:
            wrong.append(f"{name} is wrong")
    return ", ".join(wrong)


def on_cudnn(path: int) -> Callable[[Case, dict[str, np.ndarray]], dict[str, Any]]:
    """Return a function that computes a case with cuDNN.

    Parameters
    ----------
    path : {2, 3}
        Whether to avoid known faults (2) or not (3).
    """

    def compute(case: Case, given: dict[str, np.ndarray]) -> dict[str, Any]:
        import cupy

        from dnnops.gpu.attention import GpuDnnAttention, GpuDnnAttentionGrad

        class Forward(GpuDnnAttention):
            pass

        class Gradient(GpuDnnAttentionGrad):
            pass

        Forward.path = Gradient.path = path
        dtype = numpy_dtype(case.dtype)
        moved = {o: cupy.asarray(x if o == "mask" else x.astype(dtype)) for o, x in given.items()}
        operands = [moved[o] for o in ("query", "key", "value", "mask") if o in moved]
        parameters: Any = (case.scale, case.is_causal, ("mask",) if case.mask else ())
        gradient: Any = Gradient(*parameters, is_deterministic=case.is_deterministic)  # type: ignore[misc]
        forward: Any = Forward(*parameters)  # type: ignore[misc]
        found = _results(forward, gradient, operands, moved["gout"])
        return {name: x.get().astype("float64") for name, x in found.items()}

    return compute


def wrong_results(
    compute: Callable[[Case, dict[str, np.ndarray]], dict[str, Any]], all_cases: list[Case]
) -> dict[Case, str]:
    """Return what is wrong in each case, with the scores that show it first."""
    wrong = {}
    for case in all_cases:
        shown = [replace(case, offset=offset) for offset in OFFSETS]
        for shifted in (*shown, replace(case, is_exact=True)):
            if problem := compare(shifted, compute):
                wrong[shifted] = problem
                break
    return wrong


def _without_scores(case: Case) -> Case:
    return replace(case, offset=0, is_exact=False)


def check_engines() -> int:
    """Check the engines of the first GPU, and print which of them are wrong.

    Returns
    -------
    int
        0 if all results are right, known faults being avoided; else 1.

    Raises
    ------
    DnnUnavailableError
        If there is no GPU, or cuDNN cannot be used.
    """
    from dnnops.gpu.library import cudnn_usable, cudnn_version

    usable, reason = cudnn_usable(0)
    if not usable:
        raise DnnUnavailableError(f"the engines cannot be checked: {reason}")
    has_bfloat16 = importlib.util.find_spec("ml_dtypes") is not None
    checked = [case for case in cases() if has_bfloat16 or case.dtype != "bfloat16"]
    print(
        f"cuDNN {cudnn_version()}: {len(checked)} cases of attention and its gradient", flush=True
    )
    wrong = wrong_results(on_cudnn(2), checked)
    known = wrong_results(on_cudnn(3), checked)
    still = set(map(_without_scores, wrong))
    avoided = [case for case in known if _without_scores(case) not in still]
    for case in avoided:
        print(f"avoided: {case}: {known[case]}")
    for case, problem in wrong.items():
        print(f"WRONG: {case}: {problem}")
    print(f"{len(wrong)} are wrong, and {len(avoided)} would be if known faults were not avoided")
    return 1 if wrong else 0

"""The algorithms of a convolution: the names that users give them, and what they stand for.

A *plan* is one way in which cuDNN can run a convolution: an algorithm of its legacy API, or an
engine of its graph API with values of its knobs. The words of the flags ``dnn.conv.algo_*`` say
which plan is wanted; ``c_code/runtime/cudnn/conv_choose.cpp`` looks for it when the shapes are
known.
"""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass, replace
from typing import Any

from dnnops.arguments import is_int, shown
from dnnops.config import ALGORITHM_WORDS, flag_value, parse_flag
from dnnops.errors import DnnNotSupportedError, DnnTypeError, DnnValueError
from dnnops.runtime.build import CUDNN

__all__ = [
    "DIRECTIONS",
    "LEGACY_ALGORITHMS",
    "PRECISIONS",
    "WISHES",
    "AlgorithmChoice",
    "cache_statistics",
    "choice_statistics",
    "clear_cache",
    "last_plan",
    "parse_algorithm",
    "precision_word",
    "read_workspace_limit",
]

#: What a convolution computes, in the order of ``ConvDirection``.
DIRECTIONS = ("forward", "grad_inputs", "grad_weights")

#: Words that say which plan is wanted, in the order of ``Wish``.
WISHES = ALGORITHM_WORDS
_WISH_PLAN = len(WISHES)

#: Names of the legacy API's algorithms, by number.
LEGACY_ALGORITHMS: dict[str, tuple[str, ...]] = {
    "forward": (
        "IMPLICIT_GEMM",
        "IMPLICIT_PRECOMP_GEMM",
        "GEMM",
        "DIRECT",
        "FFT",
        "FFT_TILING",
        "WINOGRAD",
        "WINOGRAD_NONFUSED",
    ),
    "grad_inputs": ("ALGO_0", "ALGO_1", "FFT", "FFT_TILING", "WINOGRAD", "WINOGRAD_NONFUSED"),
    "grad_weights": (
        "ALGO_0",
        "ALGO_1",
        "FFT",
        "ALGO_3",
        "WINOGRAD",
        "WINOGRAD_NONFUSED",
        "FFT_TILING",
    ),
}

_FLAGS = {
    "forward": "dnn.conv.algo_fwd",
    "grad_inputs": "dnn.conv.algo_bwd_data",
    "grad_weights": "dnn.conv.algo_bwd_filter",
}
_MAX_KNOBS = 16

#: Whose a plan is, in the order of ``Api``.
APIS = ("legacy", "graph", "dnnops", "cublaslt")
_LEGACY = 0
# How names of plans that are numbered begin, with the API that they are of.
_PREFIXES = {"engine": 1, "depthwise": 2, "gemm": 3}
_KNOB = r"_k(\d{1,9})=(-?\d{1,9})"
_NUMBERED = re.compile(rf"({'|'.join(_PREFIXES)})(\d{{1,9}})((?:{_KNOB})*)")

#: Names of ``cudnnMathType_t``, by number.
MATH_TYPES = ("DEFAULT_MATH", "TENSOR_OP_MATH", "TENSOR_OP_MATH_ALLOW_CONVERSION", "FMA_MATH")
_USUAL_MATH = -1

#: What names of plans on copies of the arrays end in, by the number of ``PlanSpec``'s format: the
#: memory format of the copies, or that a gradient is computed as a forward convolution.
FORMATS = {1: "contiguous", 2: "channels_last", 4: "as_forward"}


@dataclass(frozen=True)
class AlgorithmChoice:
    """What a user asked for, as the runtime library takes it.

    Attributes
    ----------
    wish : int
        An index of `WISHES`, or one past them for a given plan.
    api : int
        An index of `APIS`; of a given plan.
    number : int
        Of the legacy algorithm, engine, kernel or algorithm of cuBLASLt.
    format : int
        Of `FORMATS`; 0 if arrays are taken as they are.
    math : int
        An index of `MATH_TYPES`, or -1 for the one that goes with dtype and flags; of a legacy
        algorithm.
    knobs : tuple of (int, int)
        Types and values of its knobs.
    """

    wish: int
    api: int = 0
    number: int = 0
    format: int = 0
    math: int = _USUAL_MATH
    knobs: tuple[tuple[int, int], ...] = ()

    def spec(self) -> list[int]:
        """The words of ``PlanSpec``."""
        knobs = [word for knob in self.knobs for word in knob]
        knobs += [0] * (2 * _MAX_KNOBS - len(knobs))
        return [self.api, self.number, self.format, self.math, len(self.knobs), *knobs]

    def words(self) -> list[int]:
        """The members ``wish`` and ``plan`` of ``ConvParams``."""
        return [self.wish, *self.spec()]


def algorithm_flag(direction: str) -> str:
    """The value of the flag that holds for a direction."""
    return flag_value(_FLAGS[direction])


def parse_algorithm(algo: Any, direction: str) -> AlgorithmChoice:
    """Turn a flag's value or an argument ``algo=`` into a choice.

    Parameters
    ----------
    algo : str or int
        One of `WISHES`, the number or the name of a legacy algorithm, to which a name of
        `MATH_TYPES` may be added (``FFT_FMA_MATH``), or the name of an engine with its knobs
        (``engine7_k2=4``), of an algorithm of cuBLASLt (``gemm20_k1=17``) or of a kernel of our own
        (``depthwise1_k0=8``). To each of these ``_channels_last`` or ``_contiguous`` may be added:
        arrays are transposed to that format first. To an engine of the gradient with respect to
        the inputs ``_as_forward`` may be added: it is an engine of forward convolutions, run on
        turned filters, all in channels-last format.
    direction : str
        One of `DIRECTIONS`.

    Returns
    -------
    AlgorithmChoice

    Raises
    ------
    DnnValueError
        If it is none of these, or a name of another direction; the message lists what there is.
    DnnNotSupportedError
        If the engine has more knobs than the runtime library takes.
    """
    text = algo if isinstance(algo, str) else shown(int(algo) if is_int(algo) else algo)
    if text in WISHES:
        return AlgorithmChoice(WISHES.index(text))
    for number, suffix in FORMATS.items():
        name = text.removesuffix(f"_{suffix}")
        if name != text and name not in WISHES and not name.isdecimal():
            choice = parse_algorithm(name, direction)
            if not choice.format:
                return replace(choice, format=number)
    names = LEGACY_ALGORITHMS[direction]
    if text.isdecimal() and int(text) < len(names):
        return AlgorithmChoice(_WISH_PLAN, _LEGACY, int(text))
    if text in names:
        return AlgorithmChoice(_WISH_PLAN, _LEGACY, names.index(text))
    for math, suffix in enumerate(MATH_TYPES):
        name = text.removesuffix(f"_{suffix}")
        if name != text and name in names:
            return AlgorithmChoice(_WISH_PLAN, _LEGACY, names.index(name), math=math)
    numbered = _NUMBERED.fullmatch(text)
    if numbered is None:
        raise DnnValueError(
            f"{shown(text)} is no algorithm of direction {direction} (argument algo, or flag"
            f" {_FLAGS[direction]}). Give one of {', '.join(WISHES)}; a"
            f" number from 0 to {len(names) - 1} or its name, one of {', '.join(names)}, with or"
            f" without a math type, as {names[0]}_FMA_MATH; or the name of another plan, as"
            " engine7_k2=4. A plan's name may end in _channels_last or _contiguous, the format that"
            " arrays are transposed to first, or in _as_forward"
        )
    knobs = tuple((int(kind), int(value)) for kind, value in re.findall(_KNOB, numbered[3]))
    if len(knobs) > _MAX_KNOBS:
        raise DnnNotSupportedError(f"{text}: at most {_MAX_KNOBS} knobs are supported")
    return AlgorithmChoice(_WISH_PLAN, _PREFIXES[numbered[1]], int(numbered[2]), knobs=knobs)


#: Types that a convolution may compute in, by the arrays' dtype.
_COMPUTE_DTYPES = {
    "float16": ("float32", "float16"),
    "bfloat16": ("float32",),
    "float32": ("float32",),
    "float64": ("float64",),
}
_PRECISION_WORDS = {
    "as_input_f32": -1,
    "as_input": -2,
    "float32": 0,
    "float64": 1,
    "float16": 2,
}


#: What the argument `precision` of a convolution may be.
PRECISIONS = tuple(_PRECISION_WORDS)


def precision_word(precision: str) -> int:
    """The member ``precision`` of ``ConvParams``, for one of `PRECISIONS`."""
    return _PRECISION_WORDS[precision]


def check_precision(where: str, precision: str, dtype: str) -> None:
    """Raise DnnValueError unless arrays of `dtype` can be computed with in `precision`."""
    allowed = _COMPUTE_DTYPES[dtype]
    if not precision.startswith("as_input") and precision not in allowed:
        raise DnnValueError(
            f"{where}: cuDNN 9 has no convolution of {dtype} arrays that computes in {precision}, "
            f"only in {' or '.join(allowed)}: give that (argument precision or flag "
            "dnn.conv.precision), or cast the arrays"
        )


def last_plan() -> str:
    """The name of the plan that this thread chose last; empty if it has chosen none."""
    return CUDNN.library.dnnops_cudnn_last_plan().decode()


def cache_statistics() -> dict[str, int]:
    """Size, capacity, hits, misses and evictions of the process's table of plans."""
    return _statistics("dnnops_cudnn_plan_cache")


def choice_statistics() -> dict[str, int]:
    """As `cache_statistics`, of the table of what was chosen by timing, which all threads share."""
    return _statistics("dnnops_cudnn_choice_cache")


def _statistics(function: str) -> dict[str, int]:
    names = ("size", "capacity", "hits", "misses", "evictions")
    numbers = (ctypes.c_int64 * len(names))()
    getattr(CUDNN.library, function)(numbers)
    return dict(zip(names, numbers, strict=True))


def clear_cache() -> None:
    """Forget all plans, and what was chosen by timing; Ops keep the plans that they are using."""
    CUDNN.library.dnnops_cudnn_clear_plan_cache()


def read_workspace_limit(where: str, given: Any) -> int:
    """What an argument gives in bytes, checked as the flag is, or else the flag's; -1 for auto."""
    flag = "dnn.conv.workspace_limit"
    if given is None:
        limit = flag_value(flag)
    elif is_int(given) and given == -1:
        limit = "auto"
    elif is_int(given) or isinstance(given, str):
        limit = parse_flag(flag, given)
    else:
        raise DnnTypeError(
            f"{where}: workspace_limit must be a number of bytes or what the flag {flag} takes, got"
            f" {shown(given)}"
        )
    return -1 if limit == "auto" else int(limit)

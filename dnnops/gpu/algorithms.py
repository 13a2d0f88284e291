"""Parse the names that users give to convolution algorithms.

A *plan* is one way to run a convolution: an algorithm of cuDNN's legacy API, an engine of its graph
API with values for its knobs, a cuBLASLt product or a dnnops kernel. The flags ``dnn.conv.algo_*``
say which plan to use; ``c_code/gpu/conv/conv_choose.cpp`` selects it once the shapes are
known.
"""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass, replace
from typing import Any

from dnnops.arguments import is_int, shown
from dnnops.config import flag_value, parse_flag
from dnnops.dtypes import DTYPE_CODES
from dnnops.errors import DnnNotSupportedError, DnnTypeError, DnnValueError
from dnnops.flag_values import ALGORITHM_WORDS
from dnnops.runtime.build import CUDNN

__all__ = [
    "DIRECTIONS",
    "LEGACY_ALGORITHMS",
    "PRECISIONS",
    "AlgorithmChoice",
    "cache_statistics",
    "choice_statistics",
    "clear_cache",
    "last_plan",
    "parse_algorithm",
    "precision_word",
    "read_workspace_limit",
]

#: The results that a convolution can compute, in the order of ``ConvDirection``.
DIRECTIONS = ("forward", "grad_inputs", "grad_weights")

#: The selection policy for a plan given by name or number, in the C enumeration after the words.
_NAMED_PLAN = len(ALGORITHM_WORDS)

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

#: The APIs that plans come from, in the order of ``Api``.
APIS = ("legacy", "graph", "dnnops", "cublaslt")
_LEGACY = 0
# Prefixes of the names of numbered plans, with the index of their API.
_PREFIXES = {"engine": 1, "depthwise": 2, "gemm": 3}
_KNOB = r"_k(\d{1,9})=(-?\d{1,9})"
_NUMBERED = re.compile(rf"({'|'.join(_PREFIXES)})(\d{{1,9}})((?:{_KNOB})*)")

#: Names of ``cudnnMathType_t``, by number.
MATH_TYPES = ("DEFAULT_MATH", "TENSOR_OP_MATH", "TENSOR_OP_MATH_ALLOW_CONVERSION", "FMA_MATH")
_USUAL_MATH = -1

#: Suffixes of plan names, by the number of ``PlanSpec``'s format. A suffix gives the memory format
#: that arrays are copied to, or says that a gradient is computed as a forward convolution, or that
#: the epilogue of `GpuDnnConvActivation` is computed by a kernel of its own.
FORMATS = {1: "contiguous", 2: "channels_last", 4: "as_forward", 8: "unfused"}
_UNFUSED = 8


@dataclass(frozen=True)
class AlgorithmChoice:
    """A parsed ``algo``, in the form that the runtime library expects.

    All attributes but `policy` describe a plan that was given by name or number.

    Attributes
    ----------
    policy : int
        Selection policy: index into `ALGORITHM_WORDS`, or their number if a plan is given.
    api : int
        Index into `APIS`.
    number : int
        Number of the legacy algorithm, engine, dnnops kernel or cuBLASLt algorithm.
    format : int
        Key of `FORMATS`, or 0 if arrays aren't copied to another format. 8, for an epilogue with a
        kernel of its own, may be added to the others.
    math : int
        Index into `MATH_TYPES` for a legacy algorithm, or -1 to derive the math type from dtype and
        flags.
    knobs : tuple of (int, int)
        Types and values of the plan's knobs.
    """

    policy: int
    api: int = 0
    number: int = 0
    format: int = 0
    math: int = _USUAL_MATH
    knobs: tuple[tuple[int, int], ...] = ()

    def spec(self) -> list[int]:
        """Return the members of the C struct ``PlanSpec`` as a list of integers."""
        knobs = [word for knob in self.knobs for word in knob]
        knobs += [0] * (2 * _MAX_KNOBS - len(knobs))
        return [self.api, self.number, self.format, self.math, len(self.knobs), *knobs]

    def words(self) -> list[int]:
        """Return the members ``policy`` and ``plan`` of ``ConvParams`` as a list of integers."""
        return [self.policy, *self.spec()]


def algorithm_flag(direction: str) -> str:
    """Return the value of the algorithm flag for a direction."""
    return flag_value(_FLAGS[direction])


def parse_algorithm(algo: Any, direction: str) -> AlgorithmChoice:
    """Parse the value of an algorithm flag or of an argument ``algo``.

    Parameters
    ----------
    algo : str or int
        One of `ALGORITHM_WORDS`; the number or name of a legacy algorithm, where the name may be
        followed by one of `MATH_TYPES` (``FFT_FMA_MATH``); or the name of an engine with its knobs
        (``engine7_k2=4``), of a cuBLASLt algorithm (``gemm20_k1=17``) or of a dnnops kernel
        (``depthwise1_k0=8``). Any plan name may end in ``_channels_last`` or ``_contiguous``, which
        transposes arrays to that format first. The name of an engine for the gradient with respect
        to the inputs may end in ``_as_forward``, which runs a forward engine on flipped filters,
        with all arrays in channels-last format. ``_unfused``, for a convolution with an epilogue,
        comes last.
    direction : str
        One of `DIRECTIONS`.

    Returns
    -------
    AlgorithmChoice

    Raises
    ------
    DnnValueError
        If `algo` is invalid, or names a plan of another direction. The message lists the valid
        values.
    DnnNotSupportedError
        If the engine has more knobs than the runtime library supports.
    """
    text = algo if isinstance(algo, str) else shown(int(algo) if is_int(algo) else algo)
    if text in ALGORITHM_WORDS:
        return AlgorithmChoice(ALGORITHM_WORDS.index(text))
    for number, suffix in FORMATS.items():
        name = text.removesuffix(f"_{suffix}")
        if name != text and name not in ALGORITHM_WORDS and not name.isdecimal():
            choice = parse_algorithm(name, direction)
            if not choice.format or (number == _UNFUSED and choice.format < _UNFUSED):
                return replace(choice, format=choice.format + number)
    names = LEGACY_ALGORITHMS[direction]
    if text.isdecimal() and int(text) < len(names):
        return AlgorithmChoice(_NAMED_PLAN, _LEGACY, int(text))
    if text in names:
        return AlgorithmChoice(_NAMED_PLAN, _LEGACY, names.index(text))
    for math, suffix in enumerate(MATH_TYPES):
        name = text.removesuffix(f"_{suffix}")
        if name != text and name in names:
            return AlgorithmChoice(_NAMED_PLAN, _LEGACY, names.index(name), math=math)
    numbered = _NUMBERED.fullmatch(text)
    if numbered is None:
        raise DnnValueError(
            f"{shown(text)} is not an algorithm for direction {direction} (argument algo, or flag"
            f" {_FLAGS[direction]}). Give one of {', '.join(ALGORITHM_WORDS)}; a"
            f" number from 0 to {len(names) - 1} or its name, one of {', '.join(names)}, with or"
            f" without a math type, such as {names[0]}_FMA_MATH; or the name of another plan, such"
            " as engine7_k2=4. A plan's name may end in _channels_last or _contiguous, the format"
            " that arrays are transposed to first, or in _as_forward"
        )
    knobs = tuple((int(kind), int(value)) for kind, value in re.findall(_KNOB, numbered[3]))
    if len(knobs) > _MAX_KNOBS:
        raise DnnNotSupportedError(f"{text}: at most {_MAX_KNOBS} knobs are supported")
    return AlgorithmChoice(_NAMED_PLAN, _PREFIXES[numbered[1]], int(numbered[2]), knobs=knobs)


#: Types that a convolution can compute in, by the dtype of its arrays.
_COMPUTE_DTYPES = {
    "float16": ("float32", "float16"),
    "bfloat16": ("float32",),
    "float32": ("float32",),
    "float64": ("float64",),
}
#: Negative words are ``Precision`` in C, the others a ``dnnops_dtype``.
_PRECISION_WORDS = {
    "as_input_f32": -1,
    "as_input": -2,
    **{name: DTYPE_CODES[name] for name in ("float32", "float64", "float16")},
}


#: Valid values of a convolution's argument `precision`.
PRECISIONS = tuple(_PRECISION_WORDS)


def precision_word(precision: str) -> int:
    """Return the member ``precision`` of ``ConvParams`` for one of `PRECISIONS`."""
    return _PRECISION_WORDS[precision]


def check_precision(where: str, precision: str, dtype: str) -> None:
    """Raise DnnValueError if cuDNN can't convolve arrays of `dtype` in `precision`."""
    allowed = _COMPUTE_DTYPES[dtype]
    if not precision.startswith("as_input") and precision not in allowed:
        raise DnnValueError(
            f"{where}: cuDNN 9 has no convolution of {dtype} arrays that computes in {precision}, "
            f"only in {' or '.join(allowed)}. Set that with the argument precision or the flag "
            "dnn.conv.precision, or cast the arrays"
        )


def last_plan() -> str:
    """Return the name of the plan that this thread selected last, or an empty string."""
    return CUDNN.library.dnnops_cudnn_last_plan().decode()


def cache_statistics() -> dict[str, int]:
    """Return the size, capacity, hits, misses and evictions of the process's plan cache."""
    return _statistics("dnnops_cudnn_plan_cache")


def choice_statistics() -> dict[str, int]:
    """Return the same statistics as `cache_statistics` for the cache of timed selections.

    All threads share that cache.
    """
    return _statistics("dnnops_cudnn_choice_cache")


def _statistics(function: str) -> dict[str, int]:
    names = ("size", "capacity", "hits", "misses", "evictions")
    numbers = (ctypes.c_int64 * len(names))()
    getattr(CUDNN.library, function)(numbers)
    return dict(zip(names, numbers, strict=True))


def clear_cache() -> None:
    """Clear the caches of plans and timed selections; Ops keep the plans that they are using."""
    CUDNN.library.dnnops_cudnn_clear_plan_cache()


def read_workspace_limit(where: str, given: Any) -> int:
    """Return a workspace limit in bytes, from an argument or else from the flag; -1 for auto.

    The argument is checked in the same way as the flag.
    """
    flag = "dnn.conv.workspace_limit"
    if given is None:
        limit = flag_value(flag)
    elif is_int(given) and given == -1:
        limit = "auto"
    elif is_int(given) or isinstance(given, str):
        limit = parse_flag(flag, given)
    else:
        raise DnnTypeError(
            f"{where}: workspace_limit must be a number of bytes or a value of the flag {flag}, got"
            f" {shown(given)}"
        )
    return -1 if limit == "auto" else int(limit)

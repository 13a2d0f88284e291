"""The algorithms of a convolution: the names that users give them, and what they stand for.

A *plan* is one way in which cuDNN can run a convolution: an algorithm of its legacy API, or an
engine of its graph API with values of its knobs. The words of the flags ``dnn.conv.algo_*`` say
which plan is wanted; ``c_code/runtime/cudnn/conv_choose.cpp`` looks for it when the shapes are
known.
"""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from typing import Any

from dnnops.config import ALGORITHM_WORDS, flag_value
from dnnops.errors import DnnNotSupportedError, DnnValueError
from dnnops.runtime.build import CUDNN

__all__ = [
    "DIRECTIONS",
    "LEGACY_ALGORITHMS",
    "WISHES",
    "AlgorithmChoice",
    "cache_statistics",
    "clear_cache",
    "last_plan",
    "parse_algorithm",
    "precision_word",
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
_LEGACY, _GRAPH = 0, 1


@dataclass(frozen=True)
class AlgorithmChoice:
    """What a user asked for, as the runtime library takes it.

    Attributes
    ----------
    wish : int
        An index of `WISHES`, or one past them for a given plan.
    api : int
        0 for the legacy API, 1 for the graph API; of a given plan.
    number : int
        Of the legacy algorithm, or of the engine.
    knobs : tuple of (int, int)
        Types and values of the engine's knobs.
    """

    wish: int
    api: int = 0
    number: int = 0
    knobs: tuple[tuple[int, int], ...] = ()

    def words(self) -> list[int]:
        """The members ``wish`` and ``plan`` of ``ConvParams``."""
        knobs = [word for knob in self.knobs for word in knob]
        knobs += [0] * (2 * _MAX_KNOBS - len(knobs))
        return [self.wish, self.api, self.number, len(self.knobs), *knobs]


def algorithm_flag(direction: str) -> str:
    """The value of the flag that holds for a direction."""
    return flag_value(_FLAGS[direction])


def parse_algorithm(algo: Any, direction: str) -> AlgorithmChoice:
    """Turn a flag's value or an argument ``algo=`` into a choice.

    Parameters
    ----------
    algo : str or int
        One of `WISHES`, the number or the name of a legacy algorithm, or the name of an engine with
        its knobs (``engine7_k2=4``).
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
    text = str(algo)
    if text in WISHES:
        return AlgorithmChoice(WISHES.index(text))
    names = LEGACY_ALGORITHMS[direction]
    if text.isdecimal() and int(text) < len(names):
        return AlgorithmChoice(_WISH_PLAN, _LEGACY, int(text))
    if text in names:
        return AlgorithmChoice(_WISH_PLAN, _LEGACY, names.index(text))
    engine = re.fullmatch(r"engine(\d+)((?:_k\d+=-?\d+)*)", text)
    if engine is None:
        raise DnnValueError(
            f"{text!r} is no algorithm of direction {direction}. Give one of {', '.join(WISHES)}; a"
            f" number from 0 to {len(names) - 1} or its name, one of {', '.join(names)}; or an"
            " engine with its knobs, as engine7_k2=4"
        )
    knobs = tuple(
        (int(kind), int(value)) for kind, value in re.findall(r"_k(\d+)=(-?\d+)", engine[2])
    )
    if len(knobs) > _MAX_KNOBS:
        raise DnnNotSupportedError(f"{text}: at most {_MAX_KNOBS} knobs are supported")
    return AlgorithmChoice(_WISH_PLAN, _GRAPH, int(engine[1]), knobs)


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


def precision_word(precision: str) -> int:
    """The member ``precision`` of ``ConvParams``.

    Raises
    ------
    DnnValueError
        If it is none that there is.
    """
    if precision not in _PRECISION_WORDS:
        raise DnnValueError(f"precision {precision!r}: give one of {', '.join(_PRECISION_WORDS)}")
    return _PRECISION_WORDS[precision]


def check_precision(where: str, precision: str, dtype: str) -> None:
    """Raise DnnValueError unless arrays of `dtype` can be computed with in `precision`."""
    allowed = _COMPUTE_DTYPES[dtype]
    if not precision.startswith("as_input") and precision not in allowed:
        raise DnnValueError(
            f"{where}: precision {precision} does not go with {dtype} arrays; give "
            f"{' or '.join(allowed)} (argument precision or flag dnn.conv.precision)"
        )


def last_plan() -> str:
    """The name of the plan that this thread chose last; empty if it has chosen none."""
    return CUDNN.library.dnnops_cudnn_last_plan().decode()


def cache_statistics() -> dict[str, int]:
    """Size, capacity, hits, misses and evictions of the process's table of plans."""
    names = ("size", "capacity", "hits", "misses", "evictions")
    numbers = (ctypes.c_int64 * len(names))()
    CUDNN.library.dnnops_cudnn_plan_cache(numbers)
    return dict(zip(names, numbers, strict=True))


def clear_cache() -> None:
    """Forget all plans; Ops keep the ones that they are using."""
    CUDNN.library.dnnops_cudnn_clear_plan_cache()

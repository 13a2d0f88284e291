"""The switches of cudnn.torch, as attributes of the package `dnnops.layers` that set flags."""

from __future__ import annotations

from types import ModuleType

from pytensor import config

from dnnops.arguments import switch
from dnnops.config import flag_value

__all__ = ["WithSwitches"]

_ALGORITHMS = ("dnn.conv.algo_fwd", "dnn.conv.algo_bwd_data", "dnn.conv.algo_bwd_filter")
TIMED, FASTEST, SMALL = "time_on_shape_change", "guess_once", "small"


def _set(flag: str, value: str | bool) -> None:
    setattr(config, flag.replace(".", "__"), value)


def _algorithm_is(word: str) -> bool:
    return all(flag_value(flag) == word for flag in _ALGORITHMS)


def _select(word: str) -> None:
    for flag in _ALGORITHMS:
        _set(flag, word)


class WithSwitches(ModuleType):
    """A module with the switches ``benchmark``, ``fastest`` and ``verbose``.

    Flags are read when an Op is made, so a switch affects the functions that are compiled later.
    """

    @property
    def benchmark(self) -> bool:
        """Whether convolutions time all algorithms for each shape (``time_on_shape_change``)."""
        return _algorithm_is(TIMED)

    @benchmark.setter
    def benchmark(self, value: bool) -> None:
        _select(TIMED if switch("layers", "benchmark", value) else FASTEST)

    @property
    def fastest(self) -> bool:
        """Whether convolutions use the fastest algorithm, however much memory it takes.

        True by default, unlike in cudnn.torch (``guess_once``). False selects algorithms that need
        little memory (``small``). Without effect while `benchmark` is true.
        """
        return not _algorithm_is(SMALL)

    @fastest.setter
    def fastest(self, value: bool) -> None:
        word = FASTEST if switch("layers", "fastest", value) else SMALL
        if not self.benchmark:
            _select(word)

    @property
    def verbose(self) -> bool:
        """Whether dnnops prints what it selects (``dnn.verbose``)."""
        return bool(flag_value("dnn.verbose"))

    @verbose.setter
    def verbose(self, value: bool) -> None:
        _set("dnn.verbose", switch("layers", "verbose", value))

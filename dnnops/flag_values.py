"""Values that flags accept, and what a row of the table of flags has."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from dnnops.errors import DnnValueError

__all__ = [
    "ALGORITHM_WORDS",
    "BOOLEAN",
    "CPU_PLAN_NAME",
    "PATH",
    "Flag",
    "Values",
    "algorithm",
    "as_cache_path",
    "as_seconds",
    "as_size",
    "matching",
]


@dataclass(frozen=True)
class Values:
    """The values that a flag accepts.

    Attributes
    ----------
    words : tuple of str
        Values accepted literally.
    others : str
        Description of other accepted values, for messages and the documentation.
    convert : callable, optional
        Function that converts text to the flag's value. If it raises `ValueError`, only `words` are
        accepted.
    """

    words: tuple[str, ...] = ()
    others: str = ""
    convert: Callable[[str], object] | None = None

    def describe(self) -> str:
        """Return the accepted values as one phrase."""
        return ", ".join([*self.words, *([self.others] if self.others else [])])

    def parse(self, name: str, value: object) -> object:
        """Check and normalize a value.

        Parameters
        ----------
        name : str
            Dotted name of the flag, for the message.
        value : object
            Value from the user, which is converted with `str`.

        Returns
        -------
        object
            Normalized value.

        Raises
        ------
        DnnValueError
            If the value is not accepted. The message names the flag and lists accepted values.
        """
        text = str(value).strip()
        if self.convert is not None:
            with suppress(ValueError):
                return self.convert(text)
        if text in self.words:
            return text
        raise DnnValueError(
            f"flag {name}: {text!r} is not accepted. Give one of: {self.describe()}"
        ) from None


_BOOLEANS = {"0": False, "false": False, "1": True, "true": True}

_SIZE_UNITS = {"": 1, "b": 1} | {
    prefix + suffix: base**power
    for power, prefix in enumerate("kmgt", start=1)
    for suffix, base in (("b", 1000), ("", 1000), ("ib", 1024))
}


def _boolean(text: str) -> bool:
    if text.lower() not in _BOOLEANS:
        raise ValueError(text)
    return _BOOLEANS[text.lower()]


def as_size(text: str) -> int:
    """Return the bytes of a size such as 512MB, 2GiB or a number.

    Parameters
    ----------
    text : str

    Returns
    -------
    int
        Less than 2**63.

    Raises
    ------
    ValueError
        If the text is anything else.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.lower())
    if match is None or match[2] not in _SIZE_UNITS:
        raise ValueError(text)
    size = float(match[1]) * _SIZE_UNITS[match[2]]
    if size >= 2**63:  # or infinite
        raise ValueError(text)
    return int(size)


def as_cache_path(text: str) -> str:
    """Return a path; the words that mean no cache are no paths.

    Parameters
    ----------
    text : str

    Returns
    -------
    str
        With the home directory in the place of ``~``.

    Raises
    ------
    ValueError
        If the text is anything else.
    """
    if not text or text.lower() in ("off", "false", "none"):
        raise ValueError(text)
    return os.path.expanduser(text)


def as_seconds(text: str) -> float:
    """Return a positive number of seconds below a million.

    Parameters
    ----------
    text : str

    Returns
    -------
    float

    Raises
    ------
    ValueError
        If the text is anything else.
    """
    seconds = float(text)
    if not 0 < seconds < 1e6:
        raise ValueError(text)
    return seconds


def matching(pattern: str) -> Callable[[str], str]:
    """Return a converter that accepts strings matching `pattern` unchanged."""

    def convert(text: str) -> str:
        if re.fullmatch(pattern, text) is None:
            raise ValueError(text)
        return text

    return convert


BOOLEAN = Values(("False", "True"), convert=_boolean)
PATH = Values(others="a path (empty: search)", convert=os.path.expanduser)
#: In the order of ``Policy`` in c_code/gpu/conv/conv_case.hpp.
ALGORITHM_WORDS = (
    "none",
    "small",
    "large",
    "fft",
    "fft_tiling",
    "winograd",
    "winograd_non_fused",
    "deterministic",
    "guess_once",
    "guess_on_shape_change",
    "time_once",
    "time_on_shape_change",
)
# A plan's name is an engine with its knobs, or an algorithm of the legacy API in upper case.
_PLAN_NAME = (
    r"(?:(?:engine|depthwise|gemm)\d{1,9}(?:_k\d{1,9}=-?\d{1,9})*|[A-Z][A-Z0-9_]+)"
    r"(?:_channels_last|_contiguous|_as_forward)?"
)


def algorithm(last: int) -> Values:
    """Return the values of an algorithm flag with cuDNN legacy algorithms 0 to `last`."""
    numbers = "|".join(map(str, range(last + 1)))
    return Values(
        ALGORITHM_WORDS,
        others=f"a number from 0 to {last}, a plan's name (engine7_k2=4, WINOGRAD)",
        convert=matching(rf"{numbers}|{_PLAN_NAME}"),
    )


# Names of oneDNN's implementations, numbered if several share a name, and those of dnnops. Which of
# them support a convolution is known only when it is called.
CPU_PLAN_NAME = (
    r"winograd|product|depthwise|gemm \(BLAS\)|(?=.{1,127}\Z)[\w.+-]+(?::[\w.+-]+)+(?:#\d+)?"
)


@dataclass(frozen=True)
class Flag:
    """A row of the table of flags.

    Attributes
    ----------
    name : str
        Dotted name, as in the documentation.
    default : str or callable
        Default as a user would write it, or a function that is called at the first read.
    values : Values
        Accepted values.
    doc : str
        Description for the documentation.
    in_c_key : bool
        Whether the flag changes generated C code, so that a new value causes recompilation.
    follows : str
        Dotted name of the flag that provides the value while this flag is not set.
    default_doc : str
        Description of a default that is not a plain value, for the documentation.
    """

    name: str
    default: str | Callable[[], str]
    values: Values
    doc: str
    in_c_key: bool = False
    follows: str = ""
    default_doc: str = ""

    @property
    def key(self) -> str:
        """Name in ``pytensor.config``, with double underscores for dots."""
        return self.name.replace(".", "__")

    def parse(self, value: object) -> object:
        """Check and normalize a value; see `Values.parse`."""
        return self.values.parse(self.name, value)

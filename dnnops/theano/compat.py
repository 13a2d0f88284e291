"""``theano.compat``: functions that hid differences between Python 2 and 3."""

from __future__ import annotations

import configparser
from collections.abc import Iterable, Iterator
from typing import Any

__all__ = ["PY3", "b", "cmp", "configparser", "decode", "decode_iter", "decode_with", "exc_message"]

PY3 = True


def b(s: str) -> bytes:
    """Return the bytes of a string in Latin-1.

    Parameters
    ----------
    s : str
        Text without characters beyond Latin-1.

    Returns
    -------
    bytes

    Raises
    ------
    UnicodeEncodeError
        If a character is not in Latin-1.
    """
    return s.encode("latin-1")


def cmp(x: Any, y: Any) -> int:
    """Return -1, 0 or 1 if x is less than, equal to or greater than y.

    Parameters
    ----------
    x, y : object
        Values that can be compared.

    Returns
    -------
    int
    """
    return (x > y) - (x < y)


def decode(x: bytes) -> str:
    """Return the string of bytes in UTF-8.

    Parameters
    ----------
    x : bytes

    Returns
    -------
    str

    Raises
    ------
    UnicodeDecodeError
        If the bytes are not UTF-8.
    """
    return x.decode()


def decode_iter(itr: Iterable[bytes]) -> Iterator[str]:
    """Yield the strings of bytes in UTF-8.

    Parameters
    ----------
    itr : iterable of bytes

    Returns
    -------
    iterator of str

    Raises
    ------
    UnicodeDecodeError
        At an element that is not UTF-8.
    """
    return (x.decode() for x in itr)


def decode_with(x: bytes, encoding: str) -> str:
    """Return the string of bytes in an encoding.

    Parameters
    ----------
    x : bytes
    encoding : str
        Name of an encoding of Python.

    Returns
    -------
    str

    Raises
    ------
    UnicodeDecodeError
        If the bytes are not in that encoding.
    """
    return x.decode(encoding)


def exc_message(e: BaseException) -> Any:
    """Return the first argument of an exception, or of the one that it wraps.

    Parameters
    ----------
    e : BaseException

    Returns
    -------
    object

    Raises
    ------
    IndexError
        If the exception has no arguments.
    """
    message = e.args[0]
    return exc_message(message) if isinstance(message, Exception) else message

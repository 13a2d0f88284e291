"""Types of options that several commands have."""

from __future__ import annotations

import argparse
from collections.abc import Callable

__all__ = ["integer"]


def integer(minimum: int) -> Callable[[str], int]:
    """Return a type for ``argparse``: an integer in decimal digits, not less than a minimum.

    Parameters
    ----------
    minimum : int

    Returns
    -------
    callable
        Function of the text that raises `argparse.ArgumentTypeError`.
    """

    def parse(text: str) -> int:
        # Python refuses to convert more than 4300 digits.
        number = int(text) if text.isdecimal() and len(text) < 1000 else -1
        if number < minimum:
            raise argparse.ArgumentTypeError(
                f"must be an integer of at least {minimum}, got {text!r}"
            )
        return number

    return parse

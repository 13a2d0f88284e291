"""Read JSON from a file one value at a time, with bounded memory."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from typing import IO, Any

from dnnops.plans.entry import DECODER, DamageError

__all__ = ["JsonReader"]

_CHUNK = 64 * 1024
_SPACE = re.compile(r"[ \t\n\r]*")


class JsonReader:
    """Reader that returns the values in a JSON text one at a time.

    Parameters
    ----------
    stream : binary file
        File that holds the text in UTF-8.
    limit : int
        Maximum number of bytes to read.

    Attributes
    ----------
    text : str
        The text of the last value.

    Raises
    ------
    DamageError
        From any method, if the text is not valid JSON or is longer than the limit.
    """

    def __init__(self, stream: IO[bytes], limit: int) -> None:
        self._stream = stream
        self._limit = limit
        self._read = 0
        self._decode = codecs.getincrementaldecoder("utf-8")().decode
        self._buffer = ""
        self._at = 0
        self._ended = False
        self.text = ""

    def peek(self) -> str:
        """Return the next character that is not a space, or an empty string at the end."""
        while True:
            space = _SPACE.match(self._buffer, self._at)
            self._at = space.end() if space else self._at
            if self._at < len(self._buffer):
                return self._buffer[self._at]
            if not self._more():
                return ""

    def take(self, character: str) -> None:
        """Consume the next character, which must be `character`."""
        found = self.peek()
        if found != character:
            at = f"{found!a}" if found else "its end"
            raise DamageError(f"it is not valid JSON: expected {character!a} at {at}")
        self._at += 1

    def items(self, begin: str, end: str) -> Iterator[int]:
        """Yield 1, 2, ... for the items of a list or an object; the caller reads each item."""
        self.take(begin)
        number = 0
        while self.peek() != end:
            if number:
                self.take(",")
            number += 1
            yield number
        self.take(end)

    def value(self, limit: int) -> Any:
        """Read and return a whole value.

        Parameters
        ----------
        limit : int
            Maximum number of characters.
        """
        self.peek()
        while True:
            try:
                found, end = DECODER.raw_decode(self._buffer, self._at)
            except RecursionError:
                raise DamageError("it is nested too deeply") from None
            except ValueError as error:
                # The value may continue in the next chunk.
                if len(self._buffer) - self._at > limit or not self._more():
                    raise DamageError(f"it is not valid JSON: {error}") from None
                continue
            if end == len(self._buffer) and self._more():
                continue  # a number may continue
            self.text = self._buffer[self._at : end]
            self._at = end
            if len(self.text) > limit:
                raise DamageError(f"it holds a value over the limit of {limit} characters")
            return found

    def _more(self) -> bool:
        """Read another chunk of text; return False at the end of the stream."""
        if self._ended:
            return False
        chunk = self._stream.read(_CHUNK)
        self._read += len(chunk)
        if self._read > self._limit:
            raise DamageError(f"it is over the limit of {self._limit} bytes")
        self._ended = not chunk
        try:
            text = self._decode(chunk, final=self._ended)
        except UnicodeDecodeError as error:
            raise DamageError(f"it is not valid JSON: {error}") from None
        self._buffer = self._buffer[self._at :] + text
        self._at = 0
        return not self._ended or bool(text)

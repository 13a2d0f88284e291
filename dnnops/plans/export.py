"""Export entries of the plan cache to one file, and import them, for use on another machine."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, NamedTuple

from dnnops.errors import DnnCacheError, DnnValueError
from dnnops.plans.entry import (
    CLOCK_TOLERANCE,
    MAX_ENTRY_BYTES,
    DamageError,
    Entry,
    canonical_json,
    check_header,
    parse_json,
    read_entry,
    write_entry,
)
from dnnops.plans.json_reader import JsonReader
from dnnops.runtime.private_files import open_directory, write_file

__all__ = ["MAX_ENTRIES", "Exported", "read_export", "write_export"]

#: Maximum number of entries in a file; a cache holds fewer by default.
MAX_ENTRIES = 65536

_FORMAT = "dnnops-plans"
_SCHEMA = 1
_MEMBERS = {"format", "schema", "entries"}
_MAX_BYTES = 256 * 1024**2
_MAX_HEADER_BYTES = 1024


class Exported(NamedTuple):
    """An intact entry of a file, kept as text because objects would need far more memory."""

    date: datetime
    text: str

    def entry(self) -> Entry:
        """Return the parsed entry."""
        return read_entry(parse_json(self.text.encode()))


def write_export(file: str | os.PathLike[str], entries: Iterable[Entry], force: bool) -> int:
    """Write entries to a file, one on each line.

    Parameters
    ----------
    file : str or path-like
        File to create. It appears only once it is complete.
    entries : iterable of Entry
        Entries to write.
    force : bool
        Whether to replace an existing file.

    Returns
    -------
    int
        Number of entries written.

    Raises
    ------
    DnnValueError
        If the file exists and `force` is False, or if the path is not a regular file.
    DnnCacheError
        If the file can't be written.
    """
    target = Path(os.path.abspath(file))
    lines = [canonical_json(write_entry(entry)) for entry in entries]
    text = f'{{"format":"{_FORMAT}","schema":{_SCHEMA},"entries":[\n' + ",\n".join(lines) + "\n]}\n"
    try:
        with open_directory(target.parent) as directory:
            _check_replaceable(directory, target, force)
            write_file(directory, target.name, text.encode(), mode=0o666)
    except OSError as error:
        raise DnnCacheError(f"{target} cannot be written: {error.strerror}") from error
    return len(lines)


def _check_replaceable(directory: int, target: Path, force: bool) -> None:
    try:
        status = os.stat(target.name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return
    if not stat.S_ISREG(status.st_mode):
        raise DnnValueError(f"{target} is not a regular file; give another name")
    if not force:
        raise DnnValueError(f"{target} already exists; force=True (--force) replaces it")


def read_export(file: str | os.PathLike[str]) -> tuple[list[Exported], list[str]]:
    """Read a file that `write_export` wrote.

    The file is read one entry at a time to limit memory: small JSON values need 50 times as much
    memory as their text.

    Parameters
    ----------
    file : str or path-like
        File to read.

    Returns
    -------
    entries : list of Exported
        Intact entries.
    refused : list of str
        Each invalid entry's number, with the reason why it can't be used.

    Raises
    ------
    DnnValueError
        If `write_export` can't have written the file.
    DnnCacheError
        If the file can't be read.
    """
    entries, refused = [], []
    latest = datetime.now(UTC) + CLOCK_TOLERANCE
    try:
        with open(file, "rb") as stream:
            for number, (content, text) in enumerate(_contents(stream), start=1):
                try:
                    entry = read_entry(content)
                    if entry.date > latest:
                        raise DamageError("its date is in the future")
                    entries.append(Exported(entry.date, text))
                except DamageError as damage:
                    refused.append(f"entry {number}: {damage}")
    except OSError as error:
        raise DnnCacheError(f"{os.fspath(file)} cannot be read: {error.strerror}") from error
    except DamageError as damage:
        raise DnnValueError(
            f"{os.fspath(file)} is not a file that `dnnops cache export` wrote: {damage}"
        ) from None
    return entries, refused


def _contents(stream: IO[bytes]) -> Iterator[tuple[Any, str]]:
    """Yield each entry of an export, parsed and as text, and check the rest of the file."""
    reader = JsonReader(stream, _MAX_BYTES)
    header: dict[str, Any] = {}
    if reader.peek() != "{":
        if not reader.peek():
            raise DamageError("it is not valid JSON: it is empty")
        raise DamageError(f"its format is not {_FORMAT}")
    for _ in reader.items("{", "}"):
        name = reader.value(_MAX_HEADER_BYTES)
        if not isinstance(name, str):
            raise DamageError("it is not valid JSON: a member's name is not a string")
        if name in header:
            raise DamageError("it is not valid JSON: a member is given twice")
        reader.take(":")
        header[name] = []
        if name != "entries":
            header[name] = reader.value(_MAX_HEADER_BYTES)
        elif reader.peek() != "[":
            raise DamageError("its entries are not a list")
        else:
            for number in reader.items("[", "]"):
                if number > MAX_ENTRIES:
                    raise DamageError(f"it holds more than {MAX_ENTRIES} entries")
                yield reader.value(MAX_ENTRY_BYTES), reader.text
    if reader.peek():
        raise DamageError("it is not valid JSON: something follows its end")
    check_header(header, _FORMAT, _SCHEMA, _MEMBERS)

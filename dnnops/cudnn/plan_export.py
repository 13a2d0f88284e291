"""Many entries of the cache of plans in one file, to be carried to another machine."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dnnops.cudnn.plan_entry import (
    DamageError,
    Entry,
    canonical_json,
    check_header,
    parse_json,
    read_entry,
    write_entry,
)
from dnnops.errors import DnnCacheError, DnnValueError
from dnnops.runtime.private_files import open_directory, write_file

__all__ = ["read_export", "write_export"]

_FORMAT = "dnnops-plans"
_SCHEMA = 1
_MEMBERS = {"format", "schema", "entries"}
_MAX_BYTES = 256 * 1024**2


def write_export(file: str | os.PathLike[str], entries: Iterable[Entry], force: bool) -> int:
    """Write entries to a file, which appears when it is complete; one line each.

    Parameters
    ----------
    file : str or path-like
        The file to make.
    entries : iterable of Entry
        What is to be in it.
    force : bool
        Whether to replace a file that is there.

    Returns
    -------
    int
        How many entries were written.

    Raises
    ------
    DnnValueError
        If there is a file already, and not `force`; or something that is no regular file.
    DnnCacheError
        If the file cannot be written.
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
        raise DnnValueError(f"{target} is no regular file, give another name")
    if not force:
        raise DnnValueError(f"{target} is there already; force=True (--force) replaces it")


def read_export(file: str | os.PathLike[str]) -> tuple[list[Entry], list[str]]:
    """Read a file that `write_export` made.

    Parameters
    ----------
    file : str or path-like
        The file.

    Returns
    -------
    entries : list of Entry
        Those that are intact.
    refused : list of str
        For each other one, which it is and why it cannot be used.

    Raises
    ------
    DnnValueError
        If the file as a whole is not what `write_export` makes.
    DnnCacheError
        If it cannot be read.
    """
    entries, refused = [], []
    for number, content in enumerate(_read_contents(file), start=1):
        try:
            entries.append(read_entry(content))
        except DamageError as damage:
            refused.append(f"entry {number}: {damage}")
    return entries, refused


def _read_contents(file: str | os.PathLike[str]) -> list[Any]:
    try:
        with open(file, "rb") as stream:
            text = stream.read(_MAX_BYTES + 1)
    except OSError as error:
        raise DnnCacheError(f"{os.fspath(file)} cannot be read: {error.strerror}") from error
    try:
        if len(text) > _MAX_BYTES:
            raise DamageError(f"it is over the limit of {_MAX_BYTES} bytes")
        content = parse_json(text)
        check_header(content, _FORMAT, _SCHEMA, _MEMBERS)
        if not isinstance(content["entries"], list):
            raise DamageError("its entries are no list")
    except DamageError as damage:
        raise DnnValueError(
            f"{os.fspath(file)} is not what `dnnops cache export` writes: {damage}"
        ) from None
    return content["entries"]

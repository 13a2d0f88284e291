"""Replace, remove and list files of a directory that processes share without locks.

A reader sees either the old or the new content of a file. `FileNotFoundError` can be raised at any
time, because another process may remove a file and a user the directory.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dnnops.errors import DnnCacheError
from dnnops.runtime.trust import distrust_directory

__all__ = ["TEMPORARY_NAME", "distrust", "remove", "replace", "reporting", "scan"]

#: Names of files that are being written, or were being written when their process was killed.
TEMPORARY_NAME = re.compile(r"\.dnnops-[0-9a-f]{16}\.tmp")


@contextmanager
def reporting(directory: Path, what: str, missing: bool = False) -> Iterator[None]:
    """Raise errors of the file system as `DnnCacheError`, `FileNotFoundError` only if `missing`."""
    try:
        yield
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not missing:
            raise
        message = f"the directory {directory} cannot be {what}: {error.strerror}"
        raise DnnCacheError(message) from error


def distrust(directory: Path, create: bool = False) -> str:
    """Return a reason why files in the directory may come from others, or an empty string.

    If `create` is True, the directory and its parents are created, it with mode 0700.
    """
    with reporting(directory, "used", missing=create):
        if create:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        return distrust_directory(directory)


def scan(directory: Path, name: re.Pattern[str]) -> dict[Path, os.stat_result]:
    """Return the status of the files whose names match a pattern; directories are omitted."""
    found = {}
    with reporting(directory, "read"), os.scandir(directory) as files:
        for file in files:
            if name.fullmatch(file.name) and not file.is_dir(follow_symlinks=False):
                with suppress(FileNotFoundError):
                    found[directory / file.name] = file.stat(follow_symlinks=False)
    return found


def remove(path: Path) -> bool:
    """Remove a file; return whether it existed."""
    with suppress(FileNotFoundError), reporting(path.parent, "written to"):
        os.unlink(path)
        return True
    return False


def replace(path: Path, content: str) -> None:
    """Create or replace a file atomically: after any exception, the former file is unchanged."""
    temporary = path.with_name(f".dnnops-{secrets.token_hex(8)}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        # Close within the try block: a network file system may report a full disk only then.
        with open(os.open(temporary, flags, 0o600), "wb") as file:
            file.write(content.encode())
        # Not synchronized to disk: readers need a checksum to detect damage by a power failure.
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise

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
from typing import BinaryIO

from dnnops.errors import DnnCacheError
from dnnops.runtime.trust import distrust_directory

__all__ = ["TEMPORARY_NAME", "distrust", "remove", "replace", "replacing", "reporting", "scan"]

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


@contextmanager
def replacing(path: str | os.PathLike[str], mode: int) -> Iterator[BinaryIO]:
    """Open a new file beside `path` that replaces it after the block, unless that raises.

    Parameters
    ----------
    path : str or path-like
        A link is replaced itself, not the file that it leads to.
    mode : int
        Mode of the new file, less the bits of the umask.

    Yields
    ------
    BinaryIO
        The new file, open for writing.

    Raises
    ------
    OSError
        If the file cannot be written or put in place. A former file is then unchanged.
    """
    temporary = os.path.join(os.path.dirname(path), f".dnnops-{secrets.token_hex(8)}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        # Close within the try block: a network file system may report a full disk only then.
        with open(os.open(temporary, flags, mode), "wb") as file:
            yield file
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def replace(path: Path, content: str) -> None:
    """Create or replace a file atomically: after any exception, the former file is unchanged."""
    # Not synchronized to disk: readers need a checksum to detect damage by a power failure.
    with replacing(path, 0o600) as file:
        file.write(content.encode())

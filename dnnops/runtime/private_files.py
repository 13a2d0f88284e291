"""Read and write small files that processes share without locks in a private directory.

Every function takes a descriptor of the directory, so that the path can't be replaced between a
check and its use. Files are replaced atomically: a reader sees either the old or the new content.
Other processes may replace or remove files at any time. The kernel reports this as ``ENOENT``, and
a network file system possibly as ``ESTALE``; both become `FileNotFoundError`.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

__all__ = [
    "FoundFile",
    "UntrustedError",
    "open_directory",
    "open_private_directory",
    "read_file",
    "remove_file",
    "scan",
    "write_file",
]

#: Names of files that are being written, or were being written when their process was killed.
TEMPORARY = re.compile(r"\.dnnops-[0-9a-f]{16}\.tmp")

_GONE = (errno.ENOENT, errno.ESTALE)
# How often to try to read a file that vanishes while it is being read.
_ATTEMPTS = 3


class UntrustedError(Exception):
    """Raised for a directory or file that can't be trusted; the message says why."""


class FoundFile(NamedTuple):
    """Name, size in bytes and modification time of a file, in seconds since 1970."""

    name: str
    size: int
    mtime: float


@contextmanager
def open_directory(path: str | os.PathLike[str]) -> Iterator[int]:
    """Open a directory for the functions of this module.

    Parameters
    ----------
    path : str or path-like
        Path of the directory.

    Yields
    ------
    int
        Descriptor of the directory.

    Raises
    ------
    OSError
        If the directory can't be opened.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def open_private_directory(path: str | os.PathLike[str], create: bool = False) -> Iterator[int]:
    """Open a directory that only this user can write to.

    Parameters
    ----------
    path : str or path-like
        Path of the directory.
    create : bool
        Whether to create the directory, with mode 0700, and its parents if it doesn't exist.

    Yields
    ------
    int
        Descriptor of the directory.

    Raises
    ------
    UntrustedError
        If the directory belongs to another user, or others may write to it.
    OSError
        If the directory can't be opened or created.
    """
    if create and not os.path.isdir(path):
        os.makedirs(path, mode=0o700, exist_ok=True)
    with open_directory(path) as descriptor:
        _check_trust(os.fstat(descriptor))
        yield descriptor


def _check_trust(status: os.stat_result) -> None:
    if status.st_uid != os.geteuid():
        raise UntrustedError(f"it belongs to another user, with the id {status.st_uid}")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UntrustedError(
            f"others may write to it, its mode is {stat.S_IMODE(status.st_mode):04o}"
        )


def read_file(directory: int, name: str, limit: int) -> tuple[bytes, os.stat_result]:
    """Read a whole file.

    Parameters
    ----------
    directory : int
        Descriptor of the directory.
    name : str
        Name of the file.
    limit : int
        Maximum size in bytes.

    Returns
    -------
    content : bytes
    status : os.stat_result

    Raises
    ------
    UntrustedError
        If the file is a symbolic link, not a regular file or too large, if it belongs to another
        user, or if others may write to it.
    FileNotFoundError
        If the file doesn't exist.
    OSError
        If the file can't be read.
    """
    for _ in range(_ATTEMPTS):
        try:
            return _read_file(directory, name, limit)
        except OSError as error:
            # Another machine has replaced the file: the next attempt opens the new one.
            if error.errno != errno.ESTALE:
                raise
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)


def _read_file(directory: int, name: str, limit: int) -> tuple[bytes, os.stat_result]:
    # O_NONBLOCK: otherwise opening a FIFO would wait for a writer.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(name, flags, dir_fd=directory)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UntrustedError("it is a symbolic link") from None
        raise
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise UntrustedError("it is not a regular file")
        _check_trust(status)
        if status.st_size > limit:
            raise UntrustedError(f"its size of {status.st_size} bytes is over the limit of {limit}")
        with open(descriptor, "rb", closefd=False) as file:
            content = file.read(limit)
    finally:
        os.close(descriptor)
    return content, status


def write_file(directory: int, name: str, content: bytes, mode: int = 0o600) -> None:
    """Create or replace a file atomically.

    After an exception, including an interrupt, the previous file is unchanged. A killed process
    leaves behind a file whose name matches `TEMPORARY`.

    Parameters
    ----------
    directory : int
        Descriptor of the directory.
    name : str
        Name of the file.
    content : bytes
        Content of the file.
    mode : int
        Permissions of the file, restricted by the process's umask.

    Raises
    ------
    FileNotFoundError
        If the directory is removed, or the file is removed while it is being written.
    OSError
        If the file can't be written.
    """
    temporary = f".dnnops-{secrets.token_hex(8)}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        # Close within the try block: a network file system may report a full disk only then.
        with open(os.open(temporary, flags, mode, dir_fd=directory), "wb") as file:
            file.write(content)
        # Not synchronized to disk: readers need a checksum to detect damage by a power failure.
        os.replace(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException as error:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=directory)
        if isinstance(error, OSError) and error.errno == errno.ESTALE:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name) from error
        raise


def remove_file(directory: int, name: str) -> bool:
    """Remove a file.

    Parameters
    ----------
    directory : int
        Descriptor of the directory.
    name : str
        Name of the file.

    Returns
    -------
    bool
        Whether the file existed.

    Raises
    ------
    OSError
        If the file can't be removed.
    """
    try:
        os.unlink(name, dir_fd=directory)
    except OSError as error:
        if error.errno not in _GONE:
            raise
        return False
    return True


def scan(directory: int, pattern: re.Pattern[str]) -> list[FoundFile]:
    """List the files of a directory whose names match a pattern, sorted by name.

    Parameters
    ----------
    directory : int
        Descriptor of the directory.
    pattern : re.Pattern
        Pattern that must match the whole name.

    Returns
    -------
    list of FoundFile
        Matching files. Symbolic links are listed as such; directories are omitted.

    Raises
    ------
    OSError
        If the directory can't be read.
    """
    found = []
    with os.scandir(directory) as entries:
        for entry in entries:
            if pattern.fullmatch(entry.name) is None:
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError as error:
                if error.errno not in _GONE:
                    raise
                continue
            if not stat.S_ISDIR(status.st_mode):
                found.append(FoundFile(entry.name, status.st_size, status.st_mtime))
    return sorted(found)

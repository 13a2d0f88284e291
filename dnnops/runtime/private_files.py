"""Small files in a directory that only its owner may write to, shared by processes without locks.

Every function takes a descriptor of the directory, so that its path cannot be exchanged between a
check and what follows. A file is replaced as a whole, and who reads it sees the old or the new one.
Files that other processes replace or remove meanwhile are a normal thing here: where the kernel
says ``ENOENT``, a network file system may say ``ESTALE``, and both become `FileNotFoundError`.
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

#: Names of files that are being written, or were when their process was killed.
TEMPORARY = re.compile(r"\.dnnops-[0-9a-f]{16}\.tmp")

_GONE = (errno.ENOENT, errno.ESTALE)
# How often a file is looked for that vanishes while it is being read.
_ATTEMPTS = 3


class UntrustedError(Exception):
    """A directory or file that someone else owns or may write to; the message says why."""


class FoundFile(NamedTuple):
    """A file's name, its size in bytes, and when it was written, in seconds since 1970."""

    name: str
    size: int
    mtime: float


@contextmanager
def open_directory(path: str | os.PathLike[str]) -> Iterator[int]:
    """Open a directory for the functions below.

    Parameters
    ----------
    path : str or path-like
        The directory.

    Yields
    ------
    int
        Its descriptor.

    Raises
    ------
    OSError
        If it cannot be opened.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def open_private_directory(path: str | os.PathLike[str], create: bool = False) -> Iterator[int]:
    """Open a directory that nobody but this user can write to.

    Parameters
    ----------
    path : str or path-like
        The directory.
    create : bool
        Whether to make it, with mode 0700, and its parents, if it is not there.

    Yields
    ------
    int
        Its descriptor.

    Raises
    ------
    UntrustedError
        If it belongs to another user, or others may write to it.
    OSError
        If it cannot be opened or made.
    """
    if create and not os.path.isdir(path):
        os.makedirs(path, mode=0o700, exist_ok=True)
    with open_directory(path) as descriptor:
        _check_trust(os.fstat(descriptor))
        yield descriptor


def _check_trust(status: os.stat_result) -> None:
    if status.st_uid != os.geteuid():
        raise UntrustedError(f"it belongs to another user, of id {status.st_uid}")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UntrustedError(
            f"others may write to it, its mode is {stat.S_IMODE(status.st_mode):04o}"
        )


def read_file(directory: int, name: str, limit: int) -> tuple[bytes, os.stat_result]:
    """Read a file as a whole.

    Parameters
    ----------
    directory : int
        Descriptor of the directory.
    name : str
        Name of the file.
    limit : int
        Bytes that it may have at most.

    Returns
    -------
    content : bytes
    status : os.stat_result

    Raises
    ------
    UntrustedError
        If it is a symbolic link, no regular file, too large, somebody else's, or open to others.
    FileNotFoundError
        If there is no such file.
    OSError
        If it cannot be read.
    """
    for _ in range(_ATTEMPTS):
        try:
            return _read_file(directory, name, limit)
        except OSError as error:
            # It was replaced from another machine: the next attempt opens the new one.
            if error.errno != errno.ESTALE:
                raise
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)


def _read_file(directory: int, name: str, limit: int) -> tuple[bytes, os.stat_result]:
    # O_NONBLOCK: opening a FIFO without a writer would wait for one.
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
            raise UntrustedError("it is no regular file")
        _check_trust(status)
        if status.st_size > limit:
            raise UntrustedError(f"its {status.st_size} bytes are over the limit of {limit}")
        with open(descriptor, "rb", closefd=False) as file:
            content = file.read(limit)
    finally:
        os.close(descriptor)
    return content, status


def write_file(directory: int, name: str, content: bytes, mode: int = 0o600) -> None:
    """Make or replace a file, all of it or nothing.

    An exception, be it an interrupt, leaves what was there before. A killed process leaves a file
    whose name matches `TEMPORARY`.

    Parameters
    ----------
    directory : int
        Descriptor of the directory.
    name : str
        Name of the file.
    content : bytes
        What is to be in it.
    mode : int
        Its permissions, less those that the process's umask takes away.

    Raises
    ------
    FileNotFoundError
        If the directory, or the file while it was being written, was removed.
    OSError
        If it cannot be written.
    """
    temporary = f".dnnops-{secrets.token_hex(8)}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        # Closing is a part of writing: a network file system may report a full disk only then.
        with open(os.open(temporary, flags, mode, dir_fd=directory), "wb") as file:
            file.write(content)
        # Not synchronized to the disk: what a power failure tears, a checksum has to tell.
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
        Whether it was there.

    Raises
    ------
    OSError
        If it cannot be removed.
    """
    try:
        os.unlink(name, dir_fd=directory)
    except OSError as error:
        if error.errno not in _GONE:
            raise
        return False
    return True


def scan(directory: int, pattern: re.Pattern[str]) -> list[FoundFile]:
    """List the files of a directory whose whole name matches, in the order of their names.

    Parameters
    ----------
    directory : int
        Descriptor of the directory.
    pattern : re.Pattern
        What the names have to match.

    Returns
    -------
    list of FoundFile
        Links are listed as such, directories are not.

    Raises
    ------
    OSError
        If the directory cannot be read.
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

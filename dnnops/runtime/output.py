"""Write the files that users name: states of networks, exports, reports and pictures.

A regular file is replaced only when the new one is complete and on the disk, and keeps its mode,
its owner and the links that lead to it. What else users may name are pipes, and descriptors such as
``/dev/stdout``. Devices are neither replaced nor written to.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import time
from contextlib import suppress
from typing import NamedTuple

from dnnops.errors import DnnValueError
from dnnops.runtime.files import replacing

__all__ = ["is_file", "obstacle", "write"]

#: How long to wait for a process that reads from a named pipe.
_READER_WITHIN = 5.0  # seconds
_MOST_LINKS = 40
_MOST_DIGITS = 9
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


class _Place(NamedTuple):
    """Where a path leads.

    Attributes
    ----------
    path : str
        The path without links at its end.
    descriptor : int or None
        Descriptor of this process that the path names.
    status : os.stat_result or None
        What is there; None if there is nothing.
    """

    path: str
    descriptor: int | None
    status: os.stat_result | None

    @property
    def unsuitable(self) -> str:
        """What is there, if it can be neither replaced nor written to."""
        kind = "" if self.status is None else _KINDS.get(stat.S_IFMT(self.status.st_mode), "")
        return kind if self.descriptor is None else ""


def _place(path: str | os.PathLike[str]) -> _Place:
    given = os.fsdecode(path)
    place = os.path.abspath(given)
    if given.endswith(os.sep) and not os.path.isdir(place):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), given)
    own = os.path.realpath("/proc/self/fd")
    for _ in range(_MOST_LINKS):
        folder, name = os.path.split(place)
        # A link there may name a pipe, which has no path, and must not be replaced if it names a
        # file: the descriptor would keep the old one.
        if name.isdecimal() and os.path.realpath(folder) == own:
            if len(name) > _MOST_DIGITS:  # more than a C int has
                raise OSError(errno.EBADF, os.strerror(errno.EBADF), given)
            return _Place(place, int(name), os.fstat(int(name)))
        if not os.path.islink(place):
            status = None
            with suppress(FileNotFoundError, NotADirectoryError):
                status = os.stat(place)
            return _Place(place, None, status)
        # Not abspath, which would take ".." for the folder above a link.
        place = os.path.join(os.path.realpath(folder), os.readlink(place))
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), os.fspath(path))


def is_file(path: str | os.PathLike[str]) -> bool:
    """Return whether `write` would replace a file that exists."""
    place = _place(path)
    is_regular = place.status is not None and stat.S_ISREG(place.status.st_mode)
    return is_regular and place.descriptor is None


def obstacle(path: str | os.PathLike[str]) -> str:
    """Return why `write` would fail, as far as can be known before there is something to write.

    Parameters
    ----------
    path : str or path-like

    Returns
    -------
    str
        Empty if nothing is in the way.
    """
    try:
        place = _place(path)
    except OSError as error:
        return str(error.strerror)
    if place.unsuitable:
        return f"it is {place.unsuitable}"
    if place.descriptor is not None:
        return ""
    folder = os.path.dirname(place.path)
    if not os.path.isdir(folder):
        return f"there is no folder {folder}"
    needed = [] if place.status is None else [place.path]
    needed += [folder] if not needed or is_file(path) else []
    denied = [x for x in needed if not os.access(x, os.W_OK)]
    return f"no permission to write to {denied[0]}" if denied else ""


def write(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Create a file, replace it, or write to a pipe or a descriptor of this process.

    After an exception, a former file is unchanged. The new one and its name are synchronized to
    the disk, so that a power failure leaves one of them.

    Parameters
    ----------
    path : str or path-like
        Links are followed, also if they lead to no file yet. A new file gets the mode 0666 without
        the bits of the umask.
    content : str or bytes
        Text is encoded as UTF-8.

    Raises
    ------
    DnnValueError
        If there is a directory, a device or a socket.
    OSError
        If it cannot be written.
    """
    data = content.encode() if isinstance(content, str) else content
    try:
        place = _place(path)
        if place.unsuitable:
            raise DnnValueError(
                f"{os.fspath(path)} is not a regular file but {place.unsuitable}; give another name"
            )
        if place.descriptor is not None:
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:
                    stream.flush()  # what was printed before comes first
            _write_all(os.dup(place.descriptor), data)
        elif place.status is not None and stat.S_ISFIFO(place.status.st_mode):
            _write_all(_open_pipe(place.path), data)
        else:
            _replace(place.path, place.status, data)
    except OSError as error:
        # The user knows neither the temporary file nor where the links lead.
        error.filename = os.fspath(path)
        del error.filename2  # None would be printed
        raise


def _write_all(descriptor: int, data: bytes) -> None:
    with open(descriptor, "wb") as file:
        file.write(data)


def _open_pipe(path: str) -> int:
    """Open a named pipe, once another process or thread reads from it."""
    until = time.monotonic() + _READER_WITHIN
    while True:
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if error.errno != errno.ENXIO or time.monotonic() > until:
                raise
            time.sleep(0.01)
        else:
            os.set_blocking(descriptor, True)
            return descriptor


def _replace(path: str, former: os.stat_result | None, data: bytes) -> None:
    if former is not None and not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    with replacing(path, 0o666 if former is None else 0o600) as file:
        file.write(data)
        file.flush()
        if former is not None:
            _keep_attributes(file.fileno(), path, former)
        os.fsync(file.fileno())
    _synchronize(os.path.dirname(path))


def _keep_attributes(descriptor: int, path: str, former: os.stat_result) -> None:
    """Give a new file the owner, the extended attributes and the mode of a former one."""
    mode = former.st_mode & 0o777
    try:
        os.fchown(descriptor, former.st_uid, former.st_gid)
    except PermissionError:
        try:
            os.fchown(descriptor, -1, former.st_gid)
        except PermissionError:
            # Another group must not read what others may not.
            mode &= ~0o070 | (mode & 0o007) << 3
    with suppress(OSError):
        for name in os.listxattr(path):
            with suppress(OSError):
                os.setxattr(descriptor, name, os.getxattr(path, name))
    os.fchmod(descriptor, mode)


def _synchronize(folder: str) -> None:
    """Write the names in a folder to the disk, where the file system can do that."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)

"""Decide whether files may come from other users, by one rule for libraries and stored plans.

A library that is loaded runs with this user's rights, and a stored plan decides what runs. What
others could have written or replaced is therefore not used. Only this user and root are trusted.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from functools import cache
from pathlib import Path

__all__ = ["distrust_directory", "distrust_file", "distrust_path"]


def distrust_directory(directory: Path) -> str:
    """Return a reason why others could write or replace files in a directory.

    The directory must belong to this user or root, and nobody else may write to it. Nor may they
    replace it: the same holds for the folders above it, and above the links on the way. Others may
    write to these if they are sticky, as ``/tmp`` is, or through a group that has only this user.

    Parameters
    ----------
    directory : Path
        Directory, or a symbolic link to one.

    Returns
    -------
    str
        Empty if the directory is trusted.

    Raises
    ------
    OSError
        If the directory is missing, is not a directory, or cannot be examined.
    """
    status = os.stat(f"{directory}/")  # the slash, so that it must be a directory
    reason = _distrust_owner(status, "it") or _distrust_mode(status, "it")
    return reason or distrust_path(directory)


def distrust_path(directory: Path) -> str:
    """Return a reason why others could replace a directory; see `distrust_directory`.

    Its own owner and mode do not matter.

    Parameters
    ----------
    directory : Path

    Returns
    -------
    str
        Empty if the path is trusted.

    Raises
    ------
    OSError
        If a folder above it does not exist or cannot be examined.
    """
    for place, above in _passed(os.path.abspath(directory)):
        reason = _distrust_owner(above, place, _unmapped_owner())
        if not reason and not (stat.S_ISLNK(above.st_mode) or above.st_mode & stat.S_ISVTX):
            reason = _distrust_mode(above, place, _is_own_group(above.st_gid))
        if reason:
            return reason
    return ""


def distrust_file(status: os.stat_result) -> str:
    """Return a reason why others could have written a file.

    Parameters
    ----------
    status : os.stat_result
        Status of a file in a directory that is trusted.

    Returns
    -------
    str
        Empty if the file is trusted.
    """
    if not stat.S_ISREG(status.st_mode):
        return "it is not a regular file"
    return _distrust_owner(status, "it") or _distrust_mode(status, "it")


def _distrust_owner(status: os.stat_result, name: str, also: int | None = None) -> str:
    if status.st_uid in (os.geteuid(), 0, also):
        return ""
    return f"{name} belongs to another user, with the id {status.st_uid}"


def _distrust_mode(status: os.stat_result, name: str, is_own_group: bool = False) -> str:
    if status.st_mode & (stat.S_IWOTH if is_own_group else stat.S_IWOTH | stat.S_IWGRP):
        return f"others may write to {name}, its mode is {stat.S_IMODE(status.st_mode):04o}"
    return ""


def _passed(directory: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the folders and links through which an absolute path leads, without its end.

    Parameters
    ----------
    directory : str
        An existing directory, so that its links lead in no circle.
    """
    place, waiting = "/", directory.split("/")
    while waiting:
        name = waiting.pop(0)
        if name in ("", "."):
            continue
        yield place, os.lstat(place)
        inner = os.path.join(place, name)
        if name == "..":
            place = os.path.dirname(place)
        elif stat.S_ISLNK((status := os.lstat(inner)).st_mode):
            yield inner, status
            target = os.readlink(inner)
            place = "/" if target.startswith("/") else place
            waiting[:0] = target.split("/")
        else:
            place = inner


@cache
def _is_own_group(group: int) -> bool:
    """Return whether a group has the name of this user and no other members.

    Many systems give each user such a group, and let it write to every new folder.
    """
    import grp
    import pwd

    try:
        entry, user = grp.getgrgid(group), pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return False
    return entry.gr_name == user and set(entry.gr_mem) <= {user}


@cache
def _unmapped_owner() -> int | None:
    """Return the owner that folders of root, outside of a container, seem to have inside of it.

    None if this process is in no such container.
    """
    try:
        mapped = Path("/proc/self/uid_map").read_text().split()
        if mapped == ["0", "0", str(2**32 - 1)]:
            return None
        return int(Path("/proc/sys/kernel/overflowuid").read_text())
    except (OSError, ValueError):
        return None

"""The folder of compiled libraries, which only this user and root may write to."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from dnnops.errors import DnnUnavailableError
from dnnops.runtime.compiling import MADE_IN_SCRATCH, MADE_OBJECT, SCRATCH, is_own
from dnnops.runtime.trust import distrust_directory, distrust_path

__all__ = ["LOCK", "OBJECTS", "holds_own", "make_private"]

#: Names in the folder: the lock of a build, and the folder of compiled files.
LOCK, OBJECTS = "build.lock", "objects"
_MADE_FILE = re.compile(rf"libdnnops_[\w-]+\.so(\.sha256)?|{re.escape(LOCK)}")


def holds_own(library: Path) -> bool:
    """Return whether a library is intact, and neither it nor its folder may come from others.

    Parameters
    ----------
    library : Path

    Returns
    -------
    bool
        False also if there is no such file.
    """
    try:
        return not distrust_directory(library.parent) and is_own(library)
    except OSError:
        return False


def make_private(directory: Path) -> None:
    """Create a directory with mode 0700.

    If others may write to an existing directory of this user, its mode is changed and its content
    removed, since any library that is loaded from there runs with this user's rights. Only what
    dnnops makes is removed: nothing is, if there is anything else, or if the directory is a link.

    Parameters
    ----------
    directory : Path
        Its parents are created, too.

    Raises
    ------
    DnnUnavailableError
        If the directory may hold what others wrote, or others could replace it.
    OSError
        If the directory can't be created.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    try:
        directory.mkdir(mode=0o700)
    except FileExistsError:
        if not directory.is_dir():
            raise
    reason = distrust_directory(directory)
    if not reason:
        return
    status = directory.lstat()
    is_removable = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    if is_removable and not distrust_path(directory):
        # Again after the change, since others could write until then.
        foreign = _foreign(directory)
        if not foreign:
            directory.chmod(0o700)
            foreign = _foreign(directory)
        if not foreign:
            _remove_content(directory)
            return
        reason += f", and dnnops did not make {foreign} in it, so nothing was removed"
    raise DnnUnavailableError(
        f"compiled libraries are not stored in {directory}: {reason}. A process would load what"
        " others put there; remove the write permission of others (chmod go-w), or point PyTensor's"
        " flag base_compiledir to another folder of yours"
    )


def _content(directory: Path) -> Iterator[tuple[Path, bool]]:
    """Yield the paths in a directory, and whether they are directories themselves."""
    with os.scandir(directory) as entries:
        for entry in entries:
            yield Path(entry.path), entry.is_dir(follow_symlinks=False)


def _foreign(directory: Path) -> str:
    """Return the path within a directory of something that dnnops does not make, or ""."""
    for path, is_directory in _content(directory):
        made = MADE_OBJECT if path.name == OBJECTS else MADE_IN_SCRATCH
        if not is_directory:
            if not _MADE_FILE.fullmatch(path.name):
                return path.name
        elif path.name != OBJECTS and not path.name.startswith(SCRATCH):
            return path.name
        else:
            for inner, is_nested in _content(path):
                if is_nested or not made.fullmatch(inner.name):
                    return f"{path.name}/{inner.name}"
    return ""


def _remove_content(directory: Path) -> None:
    """Remove the files in a directory and in the directories in it, without following links."""
    for path, is_directory in _content(directory):
        if not is_directory:
            path.unlink()
            continue
        for inner, _ in _content(path):
            inner.unlink()
        path.rmdir()

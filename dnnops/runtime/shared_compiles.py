"""Compile a module once for all processes that need it at the same time.

Processes that start together, such as those of a parallel sampler or of several GPUs, need the
same modules. PyTensor looks for the modules of other processes only while it holds its lock, by
when each process has begun to compile its own. Here, the first process that needs a module
compiles it, the others wait for that module alone, and PyTensor then stores it as usual.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dnnops.errors import DnnCacheError
from dnnops.runtime.files import distrust

__all__ = ["compile_once", "remove_old_modules", "shared_folder"]

#: Seconds for which a compiled module is kept for other processes, which then find it in
#: PyTensor's cache.
KEPT_S = 3600.0
#: Names of modules, of their locks and of folders in which they are made. Nothing else is removed.
_MADE = re.compile(r"[0-9a-f]{32}(\.lock|\.tmp)?|dnnops_\w+")


def shared_folder(compiledir: Path) -> Path | None:
    """Return the folder for modules that processes with a compile directory share.

    Parameters
    ----------
    compiledir : Path
        PyTensor's directory of modules.

    Returns
    -------
    Path or None
        None if the folder cannot be made, or others could put modules there.
    """
    folder = compiledir / "dnnops_modules"
    with suppress(OSError, DnnCacheError):
        if not distrust(folder, create=True):
            return folder
    return None


def compile_once(folder: Path, identity: str, compiled: Callable[[Path], None], into: Path) -> None:
    """Compile a module, or wait for another process that is compiling the same one.

    Parameters
    ----------
    folder : Path
        Folder that the processes share.
    identity : str
        Everything that the module depends on.
    compiled : callable
        Writes the module's files into the folder that it is given.
    into : Path
        Folder that receives the files.

    Raises
    ------
    Exception
        Whatever `compiled` raises. Nothing is stored then, and each waiting process tries itself.
    """
    stored = folder / hashlib.sha256(identity.encode()).hexdigest()[:32]
    with _locked(stored.with_suffix(".lock")):
        if _copied(stored, into):
            return
        compiled(into)
        # The files become visible to others all at once. Without a place to store them, for example
        # on a full disk, this process goes on with its own.
        scratch = _temporary(folder)
        with suppress(OSError):
            try:
                shutil.copytree(into, scratch, copy_function=_link)
                os.replace(scratch, stored)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)


def remove_old_modules(folder: Path) -> None:
    """Remove the modules of a shared folder that were not used for an hour.

    Parameters
    ----------
    folder : Path
        A folder that does not exist counts as empty.
    """
    with suppress(OSError):
        for path in folder.iterdir():
            if not _MADE.fullmatch(path.name):
                continue
            with suppress(OSError):  # another process may be removing it
                if time.time() - path.lstat().st_mtime < KEPT_S:
                    continue
                if path.suffix == ".lock":
                    path.unlink()
                elif path.is_dir() and not path.is_symlink():
                    # Another name first, since this process may be killed while it removes files.
                    shutil.rmtree(path.rename(_temporary(folder)))


def _temporary(folder: Path) -> Path:
    return folder / f"{secrets.token_hex(16)}.tmp"


def _copied(stored: Path, into: Path) -> bool:
    """Copy the files of a stored module; return False if it is not stored, or lost its files."""
    try:
        os.utime(stored)
        files = list(stored.iterdir())
        for file in files:
            _link(file, into / file.name)
    except OSError:
        return False
    return bool(files)


def _link(source: str | Path, target: str | Path) -> None:
    """Give a file a second name, or copy it where the file system has no links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock where the file system has locks; it is released if the process dies."""
    from filelock import FileLock

    lock = FileLock(path)
    try:
        lock.acquire(poll_interval=0.02)
    except (NotImplementedError, OSError):
        yield  # processes may then compile the same module, as they do without this
        return
    try:
        yield
    finally:
        lock.release()

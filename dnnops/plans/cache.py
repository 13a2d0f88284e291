"""Cache selections of convolution plans on disk, so that later processes need not time plans.

The flag ``dnn.conv.cache`` names a directory that any number of processes can share, even across
machines. It holds one file for each key, in the format of `dnnops.plans.entry`. Files are
replaced as a whole, so no locks are needed. If the directory or a file can't be used, convolutions
warn and time the plans again; they never fail.
"""

from __future__ import annotations

import errno
import os
import re
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from dnnops.config import flag_value
from dnnops.errors import DnnCacheError, DnnValueError, DnnWarning
from dnnops.plans.entry import (
    INVALID,
    MAX_ENTRY_BYTES,
    CachedChoice,
    CachedPlan,
    CacheFile,
    Entry,
    entry_name,
    read_entry,
    read_export,
    write_entry,
    write_export,
)
from dnnops.runtime import files, output
from dnnops.runtime.trust import distrust_file

__all__ = [
    "CacheFile",
    "CachedChoice",
    "CachedPlan",
    "Entry",
    "Imported",
    "PlanCache",
    "plan_cache",
]

FLAG = "dnn.conv.cache"

_ENTRY_NAME = re.compile(r"[0-9a-f]{64}\.json")
# Seconds. Marking used entries once a day is enough to find the unused ones.
_TOUCH_AFTER = 24 * 3600
# Seconds. Writing a file never takes an hour, so its process must have been killed.
_LEFTOVER_AFTER = 3600
# Counting reads the status of every file, so don't count at every store.
_WRITES_BETWEEN_COUNTS = 256
# Evict down to this fraction of the capacity, so that the next store need not evict again.
_FILLED_AFTER_EVICTION = 7 / 8

_lock = threading.Lock()
_warned: set[Path] = set()


def _renew_lock() -> None:
    """Replace the lock in a forked process, where its owner may not exist."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


@dataclass(frozen=True)
class Imported:
    """The result of importing a file of entries.

    Attributes
    ----------
    imported : int
        Number of entries that were added to the cache.
    kept : int
        Number of entries that were skipped because the cache had one at least as new.
    refused : tuple of str
        Each invalid entry's number, with the reason why it can't be used.
    """

    imported: int
    kept: int
    refused: tuple[str, ...]


class PlanCache:
    """A directory of entries, each with a key and the selection made for it.

    Convolutions call `find`, `store` and `drop`. These methods raise only if the key is invalid,
    see `dnnops.plans.entry.entry_name`. If the file system fails or a file is damaged, they issue a
    `DnnWarning`, once for each path, and continue. Users call the other methods, which raise
    `DnnCacheError` if the directory can't be used. A missing directory has no entries.

    Parameters
    ----------
    path : str or path-like
        Path of the directory. The first `store` creates it with mode 0700. It is not used if it
        belongs to a user other than root, or if others can write to it or to a folder above it (see
        `dnnops.runtime.trust`).
    capacity_bytes : int
        Maximum total size of the entries. The least recently used entries are removed.
    capacity_entries : int
        Maximum number of entries.

    Raises
    ------
    DnnValueError
        If the path is invalid.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        capacity_bytes: int = 64 * 1024**2,
        capacity_entries: int = 16384,
    ) -> None:
        if not os.fspath(path) or "\0" in os.fspath(path):
            raise DnnValueError(f"flag {FLAG}: {os.fspath(path)!a} is not a valid path")
        self.path = Path(os.path.abspath(path))
        self.capacity_bytes = capacity_bytes
        self.capacity_entries = capacity_entries
        # What may be written until the files are counted again; other processes write, too.
        self._spare_bytes = self._spare_entries = 0
        self._distrust = ""
        self._counts = dict.fromkeys(
            ("hits", "misses", "ignored", "stores", "failures", "evictions"), 0
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r})"

    @property
    def statistics(self) -> dict[str, int]:
        """Statistics of this process's use of the cache.

        The keys are ``hits``, ``misses``, ``ignored`` (misses because of a damaged file),
        ``stores``, ``failures`` (stores that failed) and ``evictions``.
        """
        with _lock:
            return dict(self._counts)

    def find(self, key: dict[str, Any]) -> CachedChoice | None:
        """Return the selection for a key, or None if there is no usable one."""
        path = self.path / entry_name(key)
        choice = None
        with self._tolerating(path):
            self._check_directory()
            choice = self._read(path).choice
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > _TOUCH_AFTER:
                    os.utime(path)
        self._count("misses" if choice is None else "hits")
        return choice

    def store(self, key: dict[str, Any], choice: CachedChoice) -> None:
        """Store the selection for a key, replacing an older one.

        If it has more than 256 plans, only the fastest 256 are stored.
        """
        path = self.path / entry_name(key)
        is_stored = False
        with self._tolerating(path):
            self._write(Entry.of_today(key, choice))
            is_stored = True
        if not is_stored:
            self._count("failures")

    def drop(self, key: dict[str, Any]) -> None:
        """Remove the selection for a key, if there is one."""
        path = self.path / entry_name(key)
        with self._tolerating(path):
            self._check_directory()
            files.remove(path)

    def files(self) -> Iterator[CacheFile]:
        """Iterate over all files of the cache, including damaged ones, ordered by name."""
        for path, status in sorted(self._scan(_ENTRY_NAME).items()):
            with suppress(FileNotFoundError):
                try:
                    file = CacheFile(path, status.st_size, self._read(path))
                except INVALID as reason:
                    file = CacheFile(path, status.st_size, None, str(reason))
                yield file

    def entries(self) -> Iterator[Entry]:
        """Iterate over the intact entries, ordered by file name."""
        return (file.entry for file in self.files() if file.entry is not None)

    def clear(self) -> int:
        """Remove all entries and the temporary files of killed processes, and count the entries.

        Other files in the directory are left alone.
        """
        for path in self._scan(files.TEMPORARY_NAME):
            files.remove(path)
        return sum(map(files.remove, self._scan(_ENTRY_NAME)))

    def export(self, file: str | os.PathLike[str], force: bool = False) -> int:
        """Write all intact entries to one JSON file.

        Parameters
        ----------
        file : str or path-like
            File to create; see `dnnops.runtime.output.write`. It appears only once it is complete.
        force : bool
            Whether to replace an existing file.

        Returns
        -------
        int
            Number of entries in the file.

        Raises
        ------
        DnnValueError
            If the file exists and `force` is False, or if there is a folder, a device or a socket.
        DnnCacheError
            If the directory can't be used, or the file can't be written.
        """
        target = Path(os.path.abspath(file))
        entries = list(self.entries())
        try:
            if not force and output.is_file(target):
                raise DnnValueError(f"{target} already exists; force=True (--force) replaces it")
            output.write(target, write_export(entries))
        except OSError as error:
            raise DnnCacheError(f"{target} cannot be written: {error.strerror}") from error
        return len(entries)

    def import_(self, file: str | os.PathLike[str]) -> Imported:
        """Add the entries of a file that `export` wrote.

        If the cache already has an entry for a key, the newer one is kept.

        Parameters
        ----------
        file : str or path-like
            File to read.

        Returns
        -------
        Imported
            Number of entries that were added, and the entries that were refused.

        Raises
        ------
        DnnValueError
            If `export` didn't write the file.
        DnnCacheError
            If the file can't be read, or the directory can't be used or written to.
        """
        name = os.fspath(file)
        try:
            with open(file, "rb") as stream:
                entries, refused = read_export(stream)
        except OSError as error:
            raise DnnCacheError(f"{name} cannot be read: {error.strerror}") from error
        except INVALID as reason:
            raise DnnValueError(
                f"{name} is not a file that `dnnops cache export` wrote: {reason}"
            ) from None
        imported = 0
        with files.reporting(self.path, "written to", missing=True):
            self._check_directory(create=True)
            # Write the newest last, so that the oldest are evicted if not all of them fit.
            for entry in sorted(entries, key=lambda entry: entry.date):
                if self._is_newer(entry):
                    self._write(entry)
                    imported += 1
        return Imported(imported, len(entries) - imported, tuple(refused))

    def _is_newer(self, entry: Entry) -> bool:
        """Return whether an entry is newer than the cache's entry for the same key, if any."""
        try:
            found = self._read(self.path / entry.name)
        except (*INVALID, FileNotFoundError):
            return True
        # An entry with a wrong date in the future would be kept forever.
        return entry.date > found.date or found.is_from_future

    def _count(self, name: str, number: int = 1) -> None:
        with _lock:
            self._counts[name] += number

    @contextmanager
    def _tolerating(self, path: Path) -> Iterator[None]:
        """Warn of a file or directory that can't be used, and skip the rest of the block."""
        try:
            yield
            return
        except FileNotFoundError:
            return
        except INVALID as reason:
            self._count("ignored")
            message = f"{path} is ignored, and plans are timed again: {reason}"
        except DnnCacheError as error:
            path = self.path
            message = f"{error}. This process continues, but every process times its plans again"
        with _lock:
            is_known = path in _warned
            _warned.add(path)
        if not is_known:
            # Levels 2 and 3 are contextlib and the method: the warning names the method's caller.
            warnings.warn(DnnWarning(f"flag {FLAG}: {message}"), stacklevel=4)

    def _check_directory(self, create: bool = False) -> None:
        # For good: if others could write to it once, its files may come from them.
        self._distrust = self._distrust or files.distrust(self.path, create)
        if self._distrust:
            raise DnnCacheError(
                f"the directory {self.path} is not used, because {self._distrust}; it must belong"
                " to this user or root, and nobody else may write to it or to a folder above it"
            )

    def _scan(self, name: re.Pattern[str]) -> dict[Path, os.stat_result]:
        with suppress(FileNotFoundError):
            self._check_directory()
            return files.scan(self.path, name)
        return {}

    def _read(self, path: Path) -> Entry:
        """Read and check the entry in a file."""
        try:
            with open(path, "rb") as file:
                if reason := distrust_file(os.fstat(file.fileno())):
                    raise DnnValueError(reason)
                entry = read_entry(file.read(MAX_ENTRY_BYTES + 1))
        except OSError as error:
            # On a network file system, ESTALE means that the file was just replaced or removed.
            if error.errno in (errno.ENOENT, errno.ESTALE):
                raise FileNotFoundError(errno.ENOENT, error.strerror) from error
            raise DnnValueError(f"it cannot be read: {error.strerror}") from error
        if entry.name != path.name:
            raise DnnValueError("its name does not match its key")
        return entry

    def _write(self, entry: Entry) -> None:
        """Write an entry, replacing an older one, and evict others beyond the capacity."""
        path, text = self.path / entry.name, write_entry(entry)
        with files.reporting(self.path, "written to"):
            try:
                self._check_directory(create=True)
                files.replace(path, text)
            except FileNotFoundError:  # another process has just removed or cleared the directory
                self._check_directory(create=True)
                files.replace(path, text)
        self._count("stores")
        self._spare_entries -= 1
        self._spare_bytes -= len(text)
        if self._spare_entries < 0 or self._spare_bytes < 0:
            self._make_room(path)

    def _make_room(self, spared: Path) -> None:
        """Count the entries and, if they exceed the capacity, evict the oldest except `spared`."""
        for path, status in self._scan(files.TEMPORARY_NAME).items():
            if time.time() - status.st_mtime >= _LEFTOVER_AFTER:
                files.remove(path)
        found = sorted(self._scan(_ENTRY_NAME).items(), key=lambda file: file[1].st_mtime)
        entries, size, part = len(found), sum(status.st_size for _, status in found), 1.0
        for path, status in found:
            if entries <= part * self.capacity_entries and size <= part * self.capacity_bytes:
                break
            part = _FILLED_AFTER_EVICTION
            if path != spared:
                self._count("evictions", files.remove(path))
                entries, size = entries - 1, size - status.st_size
        self._spare_entries = min(_WRITES_BETWEEN_COUNTS, self.capacity_entries - entries)
        self._spare_bytes = self.capacity_bytes - size


@lru_cache(maxsize=1)
def _cache_at(path: str) -> PlanCache:
    return PlanCache(path)


def plan_cache() -> PlanCache | None:
    """Return the cache that the flag ``dnn.conv.cache`` names.

    Returns
    -------
    PlanCache or None
        The same object until the flag changes; None if the flag is ``off``.

    Raises
    ------
    DnnValueError
        If the flag's value is not a valid path.
    """
    value = flag_value(FLAG)
    return None if value == "off" else _cache_at(value)

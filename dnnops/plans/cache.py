"""Cache selections of convolution plans on disk, so that later processes need not time plans.

The flag ``dnn.conv.cache`` names a directory that any number of processes can share, even across
machines. It holds one file for each key, in the format of `dnnops.plans.entry`. Files are
replaced as a whole, so no locks are needed. If the directory or a file can't be used, convolutions
warn and time the plans again; they never fail.
"""

from __future__ import annotations

import math
import os
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dnnops.config import flag_value
from dnnops.errors import DnnCacheError, DnnValueError, DnnWarning
from dnnops.plans.entry import (
    CLOCK_TOLERANCE,
    CachedChoice,
    CachedPlan,
    DamageError,
    Entry,
    check_key,
    entry_name,
    new_entry,
)
from dnnops.plans.export import read_export, write_export
from dnnops.plans.files import PlanFiles, UntrustedCacheError

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

_lock = threading.Lock()
_warned: set[tuple[str, str]] = set()
_current: tuple[str, PlanCache] | None = None


def _renew_lock() -> None:
    """Replace the lock in a forked process, where its owner may not exist."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


def _warn_once(kind: str, path: Path, message: str, stacklevel: int = 3) -> None:
    with _lock:
        if (kind, str(path)) in _warned:
            return
        _warned.add((kind, str(path)))
    warnings.warn(DnnWarning(f"flag {FLAG}: {message}"), stacklevel=stacklevel)


@dataclass(frozen=True)
class CacheFile:
    """A file of the cache, intact or damaged.

    Attributes
    ----------
    path : Path
        Path of the file.
    size : int
        Size in bytes.
    entry : Entry or None
        Contents of the file, or None if they can't be used.
    reason : str
        Reason why the contents can't be used; empty if they can.
    """

    path: Path
    size: int
    entry: Entry | None
    reason: str = ""


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

    Convolutions call `find`, `store` and `drop`. These methods never raise because of the file
    system or of damaged files; they issue a `DnnWarning`, once for each path, and continue. Users
    call the other methods, which raise `DnnCacheError`.

    Parameters
    ----------
    path : str or path-like
        Path of the directory. The first `store` creates it with mode 0700. It is not used if it
        belongs to another user or if others can write to it.
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
        self._files = PlanFiles(str(self.path), capacity_bytes, capacity_entries)
        self._off = False
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
        """Look up the selection for a key.

        Parameters
        ----------
        key : dict
            See `dnnops.plans.entry.check_key`.

        Returns
        -------
        CachedChoice or None
            The selection, or None if there is no usable one.

        Raises
        ------
        DnnTypeError, DnnValueError
            If the key is invalid.
        """
        name = entry_name(check_key(key))
        if self._off:
            return None
        try:
            with self._files.open() as directory:
                entry = self._files.use(directory, name)
        except FileNotFoundError:
            self._count(misses=1)
            return None
        except DamageError as damage:
            self._count(misses=1, ignored=1)
            path = self.path / name
            _warn_once("entry", path, f"{path} is ignored, and plans are timed again: {damage}")
            return None
        except DnnCacheError as error:
            self._count(misses=1)
            self._go_on_without(error)
            return None
        self._count(hits=1)
        return entry.choice

    def store(self, key: dict[str, Any], choice: CachedChoice) -> None:
        """Store the selection for a key, replacing an older one.

        Parameters
        ----------
        key : dict
            See `dnnops.plans.entry.check_key`.
        choice : CachedChoice
            Plans with their times. If there are more than 256, only the fastest 256 are stored.

        Raises
        ------
        DnnTypeError, DnnValueError
            If the key is invalid.
        """
        check_key(key)
        if self._off:
            return
        # Try twice, because another process may remove the directory meanwhile.
        for _ in range(2):
            try:
                with self._files.open(create=True) as directory:
                    evicted = self._files.write(directory, new_entry(key, choice))
                self._count(stores=1, evictions=evicted)
                return
            except FileNotFoundError:
                continue
            except DnnCacheError as error:
                self._count(failures=1)
                self._go_on_without(error)
                return
        self._count(failures=1)
        # Other processes may keep removing the directory. Warn only if it can't be created at all.
        try:
            os.makedirs(self.path, mode=0o700, exist_ok=True)
        except FileNotFoundError:
            self._go_on_without(self._nowhere())
        except OSError:
            pass

    def drop(self, key: dict[str, Any]) -> None:
        """Remove the selection for a key, if there is one.

        Parameters
        ----------
        key : dict
            See `dnnops.plans.entry.check_key`.

        Raises
        ------
        DnnTypeError, DnnValueError
            If the key is invalid.
        """
        name = entry_name(check_key(key))
        if self._off:
            return
        try:
            with self._files.open() as directory:
                self._files.remove(directory, name)
        except FileNotFoundError:
            pass
        except DnnCacheError as error:
            self._go_on_without(error)

    def files(self) -> Iterator[CacheFile]:
        """Iterate over all files of the cache, including damaged ones, ordered by name.

        Yields
        ------
        CacheFile

        Raises
        ------
        DnnCacheError
            If the directory can't be used. A missing directory is not an error.
        """
        try:
            with self._files.open() as directory:
                for found in self._files.listing(directory):
                    path = self.path / found.name
                    try:
                        entry, status = self._files.read(directory, found.name)
                        yield CacheFile(path, status.st_size, entry)
                    except DamageError as damage:
                        yield CacheFile(path, found.size, None, str(damage))
                    except FileNotFoundError:
                        continue
        except FileNotFoundError:
            return

    def entries(self) -> Iterator[Entry]:
        """Iterate over the intact entries, ordered by file name.

        Yields
        ------
        Entry

        Raises
        ------
        DnnCacheError
            If the directory can't be used. A missing directory is not an error.
        """
        return (file.entry for file in self.files() if file.entry is not None)

    def clear(self) -> int:
        """Remove all files of the cache and the temporary files of killed processes.

        Other files in the directory are left alone.

        Returns
        -------
        int
            Number of entries that were removed.

        Raises
        ------
        DnnCacheError
            If the directory can't be used or written to.
        """
        try:
            with self._files.open() as directory:
                self._files.sweep(directory, older_than=-math.inf)
                found = self._files.listing(directory)
                return sum(self._files.remove(directory, file.name) for file in found)
        except FileNotFoundError:
            return 0

    def export(self, file: str | os.PathLike[str], force: bool = False) -> int:
        """Write all intact entries to one JSON file.

        Parameters
        ----------
        file : str or path-like
            File to create. It appears only once it is complete.
        force : bool
            Whether to replace an existing file.

        Returns
        -------
        int
            Number of entries in the file.

        Raises
        ------
        DnnValueError
            If the file exists and `force` is False, or if the path is not a regular file.
        DnnCacheError
            If the directory can't be used, or the file can't be written.
        """
        return write_export(file, self.entries(), force)

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
        entries, refused = read_export(file)
        # Write the newest last, so that the oldest are evicted if not all of them fit.
        entries.sort(key=lambda exported: exported.date)
        imported = 0
        try:
            with self._files.open(create=True) as directory:
                for exported in entries:
                    entry = exported.entry()
                    if self._is_newer(directory, entry):
                        evicted = self._files.write(directory, entry)
                        self._count(stores=1, evictions=evicted)
                        imported += 1
        except FileNotFoundError:
            raise self._nowhere() from None
        return Imported(imported, len(entries) - imported, tuple(refused))

    def _is_newer(self, directory: int, entry: Entry) -> bool:
        """Return whether an entry is newer than the cache's entry for the same key, if any."""
        try:
            found = self._files.read(directory, entry.name)[0].date
            # An entry with a wrong date in the future would be kept forever.
            return entry.date > found or found > datetime.now(UTC) + CLOCK_TOLERANCE
        except (DamageError, FileNotFoundError):
            return True

    def _count(self, **numbers: int) -> None:
        with _lock:
            for name, number in numbers.items():
                self._counts[name] += number

    def _nowhere(self) -> DnnCacheError:
        return DnnCacheError(f"the directory {self.path} cannot be created, or was just removed")

    def _go_on_without(self, error: DnnCacheError) -> None:
        self._off |= isinstance(error, UntrustedCacheError)
        message = f"{error}. This process continues, but every process times its plans again"
        _warn_once("directory", self.path, message, stacklevel=4)


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
    global _current
    value = flag_value(FLAG)
    if value == "off":
        return None
    with _lock:
        if _current is None or _current[0] != value:
            _current = value, PlanCache(value)
        return _current[1]

"""The choices among convolutions' plans on disk, so that the next process times nothing.

The flag ``dnn.conv.cache`` names a directory that any number of processes share, also of several
machines. It holds one file a key, whose form `dnnops.cudnn.plan_entry` has; files are replaced as a
whole, so there are no locks. Whatever is wrong with the directory or a file costs a warning and
timing the plans anew, never a failure.
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
from dnnops.cudnn.plan_entry import (
    CLOCK_TOLERANCE,
    CachedChoice,
    CachedPlan,
    DamageError,
    Entry,
    check_key,
    entry_name,
    new_entry,
)
from dnnops.cudnn.plan_export import read_export, write_export
from dnnops.cudnn.plan_files import PlanFiles, UntrustedCacheError
from dnnops.errors import DnnCacheError, DnnValueError, DnnWarning

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
    """Let a forked process not wait for a thread that it does not have."""
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
    """A file of the cache, intact or not.

    Attributes
    ----------
    path : Path
        Where it lies.
    size : int
        Its size in bytes.
    entry : Entry or None
        What it holds; None if that cannot be used.
    reason : str
        Why it cannot be used; empty if it can.
    """

    path: Path
    size: int
    entry: Entry | None
    reason: str = ""


@dataclass(frozen=True)
class Imported:
    """What became of the entries of a file that was imported.

    Attributes
    ----------
    imported : int
        Entries that are in the cache now.
    kept : int
        Entries for which the cache had one at least as new.
    refused : tuple of str
        For each other entry, which it is and why it cannot be used.
    """

    imported: int
    kept: int
    refused: tuple[str, ...]


class PlanCache:
    """A directory of entries, each a key and the choice made for it.

    `find`, `store` and `drop`, which convolutions call, never raise because of the file system or
    of what is in it: they issue a `DnnWarning`, once for each path, and go on. The other methods
    are for a user who wants to know, and raise `DnnCacheError`.

    Parameters
    ----------
    path : str or path-like
        The directory. It is made at the first `store`, with mode 0700. One that belongs to another
        user or that others may write to is not used.
    capacity_bytes : int
        Size that all entries may have together; those not used for the longest time are removed.
    capacity_entries : int
        Number of entries that there may be.

    Raises
    ------
    DnnValueError
        If the path cannot be one.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        capacity_bytes: int = 64 * 1024**2,
        capacity_entries: int = 16384,
    ) -> None:
        if not os.fspath(path) or "\0" in os.fspath(path):
            raise DnnValueError(f"flag {FLAG}: {os.fspath(path)!a} cannot be a directory's path")
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
        """What this process did here.

        ``hits``, ``misses`` (``ignored`` of them because of what the file was like), ``stores``,
        ``failures`` to store, and ``evictions``.
        """
        with _lock:
            return dict(self._counts)

    def find(self, key: dict[str, Any]) -> CachedChoice | None:
        """Look for the choice that was made for a key.

        Parameters
        ----------
        key : dict
            See `dnnops.cudnn.plan_entry.check_key`.

        Returns
        -------
        CachedChoice or None
            None if there is none that can be used.

        Raises
        ------
        DnnTypeError, DnnValueError
            If the key cannot be one.
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
            _warn_once("entry", path, f"{path} is ignored, and the plans are timed anew: {damage}")
            return None
        except DnnCacheError as error:
            self._count(misses=1)
            self._go_on_without(error)
            return None
        self._count(hits=1)
        return entry.choice

    def store(self, key: dict[str, Any], choice: CachedChoice) -> None:
        """Keep the choice that was made for a key, in the place of an older one.

        Parameters
        ----------
        key : dict
            See `dnnops.cudnn.plan_entry.check_key`.
        choice : CachedChoice
            The plans and their times. Of more than 256, the fastest are kept.

        Raises
        ------
        DnnTypeError, DnnValueError
            If the key cannot be one.
        """
        check_key(key)
        if self._off:
            return
        # Twice, because the directory may be removed meanwhile.
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
        # Unlike one that others keep removing, it can never be made if the system says that of it.
        try:
            os.makedirs(self.path, mode=0o700, exist_ok=True)
        except FileNotFoundError:
            self._go_on_without(self._nowhere())
        except OSError:
            pass

    def drop(self, key: dict[str, Any]) -> None:
        """Forget the choice that was made for a key, if there is one.

        Parameters
        ----------
        key : dict
            See `dnnops.cudnn.plan_entry.check_key`.

        Raises
        ------
        DnnTypeError, DnnValueError
            If the key cannot be one.
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
        """All files of the cache, in the order of their names, also those that cannot be used.

        Yields
        ------
        CacheFile

        Raises
        ------
        DnnCacheError
            If the directory cannot be used. That there is none is no error.
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
        """The intact entries, in the order of their files' names.

        Yields
        ------
        Entry

        Raises
        ------
        DnnCacheError
            If the directory cannot be used. That there is none is no error.
        """
        return (file.entry for file in self.files() if file.entry is not None)

    def clear(self) -> int:
        """Remove all files of the cache, and what killed processes left; nothing else.

        Returns
        -------
        int
            How many entries there were.

        Raises
        ------
        DnnCacheError
            If the directory cannot be used or written to.
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
            The file to make. It appears when it is complete.
        force : bool
            Whether to replace a file that is there.

        Returns
        -------
        int
            How many entries it has.

        Raises
        ------
        DnnValueError
            If there is a file already, and not `force`; or something that is no regular file.
        DnnCacheError
            If the directory cannot be used, or the file cannot be written.
        """
        return write_export(file, self.entries(), force)

    def import_(self, file: str | os.PathLike[str]) -> Imported:
        """Add the entries of a file that `export` wrote; of two for one key the newer one is kept.

        Parameters
        ----------
        file : str or path-like
            The file.

        Returns
        -------
        Imported
            How many entries were added, and which were refused.

        Raises
        ------
        DnnValueError
            If the file is not what `export` writes.
        DnnCacheError
            If the file cannot be read, or the directory not be used or written to.
        """
        entries, refused = read_export(file)
        # The newest last: if there are more than fit, the oldest will have to go.
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
        """Whether an entry is newer than the one that the cache has for its key, if any."""
        try:
            found = self._files.read(directory, entry.name)[0].date
            # A date in the future is wrong, and would be kept for ever.
            return entry.date > found or found > datetime.now(UTC) + CLOCK_TOLERANCE
        except (DamageError, FileNotFoundError):
            return True

    def _count(self, **numbers: int) -> None:
        with _lock:
            for name, number in numbers.items():
                self._counts[name] += number

    def _nowhere(self) -> DnnCacheError:
        return DnnCacheError(f"the directory {self.path} cannot be made, or was removed meanwhile")

    def _go_on_without(self, error: DnnCacheError) -> None:
        self._off |= isinstance(error, UntrustedCacheError)
        message = f"{error}. This process goes on, and each one times the plans anew"
        _warn_once("directory", self.path, message, stacklevel=4)


def plan_cache() -> PlanCache | None:
    """The cache that the flag ``dnn.conv.cache`` names.

    Returns
    -------
    PlanCache or None
        The same object as long as the flag stays the same; None if the flag is ``off``.

    Raises
    ------
    DnnValueError
        If the flag's value cannot be a path.
    """
    global _current
    value = flag_value(FLAG)
    if value == "off":
        return None
    with _lock:
        if _current is None or _current[0] != value:
            _current = value, PlanCache(value)
        return _current[1]

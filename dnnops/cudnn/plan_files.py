"""The directory of the cache of plans: reading, writing and removing entries, within its capacity.

What goes wrong raises: `DamageError` because of one entry, `DnnCacheError` because of the
directory. `FileNotFoundError` is what it says, and may come at any time: another process may have
evicted an entry, or a user removed the directory.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from dnnops.cudnn.plan_entry import (
    MAX_ENTRY_BYTES,
    DamageError,
    Entry,
    canonical_json,
    parse_json,
    read_entry,
    write_entry,
)
from dnnops.errors import DnnCacheError
from dnnops.runtime.private_files import (
    TEMPORARY,
    FoundFile,
    UntrustedError,
    open_private_directory,
    read_file,
    remove_file,
    scan,
    write_file,
)

__all__ = ["PlanFiles", "UntrustedCacheError"]

_NAME = re.compile(r"[0-9a-f]{64}\.json")

# Seconds. A used entry is marked as such once a day, which is often enough to evict the others.
_TOUCH_AFTER = 24 * 3600
# Nobody takes an hour to write a file: the process was killed.
_LEFTOVER_AFTER = 3600
# Counting files takes a look at each, so that it is not done at every store.
_WRITES_BETWEEN_COUNTS = 256
# Evicting goes down to this part of the capacity, so that the next store need not evict again.
_FILLED_AFTER_EVICTION = 7 / 8


class UntrustedCacheError(DnnCacheError):
    """The directory belongs to someone else, or others may write to it."""


class PlanFiles:
    """A directory and how much there may be in it; see `dnnops.cudnn.plan_cache.PlanCache`."""

    def __init__(self, path: str, capacity_bytes: int, capacity_entries: int) -> None:
        self.path = path
        self.capacity_bytes = capacity_bytes
        self.capacity_entries = capacity_entries
        # What there was when it was last counted, and what was written since: an estimate, as one
        # entry may have replaced another, and other processes and threads write, too.
        self._entries = self._bytes = 0
        self._writes_until_count = 0

    @contextmanager
    def open(self, create: bool = False) -> Iterator[int]:
        """Open the directory, having made it if `create`, and yield its descriptor."""
        with ExitStack() as stack:
            try:
                with self._reporting("used"):
                    directory = stack.enter_context(open_private_directory(self.path, create))
            except UntrustedError as error:
                raise UntrustedCacheError(
                    f"the directory {self.path} is not used, as {error}; it has to be this user's,"
                    " and writable for nobody else"
                ) from None
            yield directory

    @contextmanager
    def _reporting(self, what: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            reason = error.strerror or error
            raise DnnCacheError(f"the directory {self.path} cannot be {what}: {reason}") from error

    def read(self, directory: int, name: str) -> tuple[Entry, os.stat_result]:
        """Read and check the entry in a file."""
        try:
            content, status = read_file(directory, name, MAX_ENTRY_BYTES)
        except FileNotFoundError:
            raise
        except UntrustedError as error:
            raise DamageError(str(error)) from None
        except OSError as error:
            raise DamageError(f"it cannot be read: {error.strerror or error}") from error
        entry = read_entry(parse_json(content))
        if entry.name != name:
            raise DamageError("its name does not fit its key")
        return entry, status

    def use(self, directory: int, name: str) -> Entry:
        """Read an entry, and note that it is in use, so that it is not among the next evicted."""
        entry, status = self.read(directory, name)
        if time.time() - status.st_mtime > _TOUCH_AFTER:
            with suppress(OSError):
                os.utime(name, dir_fd=directory, follow_symlinks=False)
        return entry

    def write(self, directory: int, entry: Entry) -> int:
        """Write an entry, in the place of an older one; return how many were evicted for it."""
        content = f"{canonical_json(write_entry(entry))}\n".encode()
        with self._reporting("written to"):
            write_file(directory, entry.name, content)
        self._entries += 1
        self._bytes += len(content)
        self._writes_until_count -= 1
        if self._writes_until_count >= 0 and self._fits():
            return 0
        self._writes_until_count = _WRITES_BETWEEN_COUNTS
        return self._make_room(directory, entry.name)

    def remove(self, directory: int, name: str) -> bool:
        """Remove a file; return whether it was there."""
        with self._reporting("written to"):
            return remove_file(directory, name)

    def listing(self, directory: int) -> list[FoundFile]:
        """The files that have an entry's name, in the order of their names."""
        with self._reporting("read"):
            return scan(directory, _NAME)

    def sweep(self, directory: int, older_than: float = _LEFTOVER_AFTER) -> None:
        """Remove files that were being written `older_than` seconds ago."""
        with self._reporting("read"):
            leftovers = scan(directory, TEMPORARY)
        for leftover in leftovers:
            if time.time() - leftover.mtime >= older_than:
                self.remove(directory, leftover.name)

    def _fits(self, part: float = 1) -> bool:
        return (
            self._entries <= part * self.capacity_entries
            and self._bytes <= part * self.capacity_bytes
        )

    def _make_room(self, directory: int, spared: str) -> int:
        """Count the entries and, if there are too many, remove the oldest, but not `spared`."""
        self.sweep(directory)
        found = self.listing(directory)
        self._entries, self._bytes = len(found), sum(file.size for file in found)
        if self._fits():
            return 0
        evicted = 0
        for file in sorted(found, key=lambda file: (file.mtime, file.name)):
            if self._fits(_FILLED_AFTER_EVICTION):
                break
            if file.name != spared:
                evicted += self.remove(directory, file.name)
                self._entries, self._bytes = self._entries - 1, self._bytes - file.size
        return evicted

"""Read, write and remove the files of the plan cache, and keep it within its capacity.

Problems with an entry raise `DamageError`, and problems with the directory `DnnCacheError`.
`FileNotFoundError` can be raised at any time, because another process may evict an entry and a user
may remove the directory.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from dnnops.errors import DnnCacheError
from dnnops.plans.entry import (
    MAX_ENTRY_BYTES,
    DamageError,
    Entry,
    canonical_json,
    parse_json,
    read_entry,
    write_entry,
)
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

# Seconds. Marking used entries once a day is enough to find the unused ones.
_TOUCH_AFTER = 24 * 3600
# Seconds. Writing a file never takes an hour, so its process must have been killed.
_LEFTOVER_AFTER = 3600
# Counting reads the status of every file, so don't count at every store.
_WRITES_BETWEEN_COUNTS = 256
# Evict down to this fraction of the capacity, so that the next store need not evict again.
_FILLED_AFTER_EVICTION = 7 / 8


class UntrustedCacheError(DnnCacheError):
    """Raised when the directory belongs to another user, or when other users can write to it."""


class PlanFiles:
    """A directory of entries and its capacity; see `dnnops.plans.cache.PlanCache`."""

    def __init__(self, path: str, capacity_bytes: int, capacity_entries: int) -> None:
        self.path = path
        self.capacity_bytes = capacity_bytes
        self.capacity_entries = capacity_entries
        # Estimates: the last count plus what was written since. Entries may have been replaced, and
        # other processes and threads write, too.
        self._entries = self._bytes = 0
        self._writes_until_count = 0

    @contextmanager
    def open(self, create: bool = False) -> Iterator[int]:
        """Open the directory, creating it first if `create` is True, and yield its descriptor."""
        with ExitStack() as stack:
            try:
                with self._reporting("used"):
                    directory = stack.enter_context(open_private_directory(self.path, create))
            except UntrustedError as error:
                raise UntrustedCacheError(
                    f"the directory {self.path} is not used, because {error}; it must belong to"
                    " this user, and nobody else may write to it"
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
            raise DamageError("its name does not match its key")
        return entry, status

    def use(self, directory: int, name: str) -> Entry:
        """Read an entry and mark it as used, so that it isn't evicted soon."""
        entry, status = self.read(directory, name)
        if time.time() - status.st_mtime > _TOUCH_AFTER:
            with suppress(OSError):
                os.utime(name, dir_fd=directory, follow_symlinks=False)
        return entry

    def write(self, directory: int, entry: Entry) -> int:
        """Write an entry, replacing an older one; return how many others were evicted."""
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
        """Remove a file; return whether it existed."""
        with self._reporting("written to"):
            return remove_file(directory, name)

    def listing(self, directory: int) -> list[FoundFile]:
        """Return the files of entries, ordered by name."""
        with self._reporting("read"):
            return scan(directory, _NAME)

    def sweep(self, directory: int, older_than: float = _LEFTOVER_AFTER) -> None:
        """Remove temporary files that are at least `older_than` seconds old."""
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
        """Count the entries and, if they exceed the capacity, evict the oldest except `spared`."""
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

"""Whether another capture of a function pays."""

from __future__ import annotations

from typing import Any

__all__ = ["FIRST_WAIT", "FREE_CAPTURES", "KEPT_SIGNATURES", "REPLAYS_PER_CAPTURE", "Budget"]

#: Number of different shapes that a function counts, and of values for each.
KEPT_SIGNATURES = 64
#: A capture takes as long as some calls. If arrays or values keep changing, so that no graph is
#: replayed often, the next capture waits: for replays, or for twice as many calls each time.
FREE_CAPTURES, REPLAYS_PER_CAPTURE, FIRST_WAIT = 8, 20, 64


class Budget:
    """Counts what a function's calls have in common, and so how many captures it may make."""

    def __init__(self) -> None:
        #: The values that calls with each signature had, until there are too many.
        self._values: dict[Any, set[Any]] = {}
        self._waiting_calls = 0

    def forget(self) -> None:
        """Forget the values of all signatures."""
        self._values.clear()

    def allows(self, key: tuple[Any, Any], captures: int, replays: int) -> bool:
        """Return whether to capture a call, which may wait for its values to come again.

        Parameters
        ----------
        key : tuple
            Signature and values of the call.
        captures, replays : int
            Their numbers so far.
        """
        signature, values = key
        seen = self._values.setdefault(signature, set())
        is_new = bool(seen) and values not in seen
        if len(seen) >= KEPT_SIGNATURES:
            seen.clear()
        seen.add(values)
        if is_new:
            return False
        waited = (self._waiting_calls // FIRST_WAIT).bit_length()
        if captures < FREE_CAPTURES + replays // REPLAYS_PER_CAPTURE + waited:
            return True
        self._waiting_calls += 1
        return False

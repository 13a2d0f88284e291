"""Record the functions that a script compiles and calls."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from pytensor.compile import Function
from pytensor.compile.maker import FunctionMaker

__all__ = ["RecordedFunction", "recording"]


@dataclass
class RecordedFunction:
    """A function that the script compiled.

    Attributes
    ----------
    function : pytensor.compile.Function
        The function.
    calls : int
        Number of calls that returned.
    seconds : float
        Wall time of these calls.
    arguments : tuple
        Arguments of the last call that returned.
    named : dict
        Its arguments that were passed by name.
    """

    function: Any
    calls: int = 0
    seconds: float = 0.0
    arguments: tuple[Any, ...] = ()
    named: dict[str, Any] = field(default_factory=dict)


class _Depth(threading.local):
    """How many compilations and calls the thread is in."""

    value: int = 0

    @contextmanager
    def deeper(self) -> Iterator[bool]:
        """Enter a compilation or a call; yield whether the script itself made it."""
        self.value += 1
        try:
            yield self.value == 1
        finally:
            self.value -= 1


@contextmanager
def recording() -> Iterator[list[RecordedFunction]]:
    """Record all functions that are compiled within the block, and their calls.

    The functions within other ones, such as those of ``scan``, are not recorded. Results do not
    change.

    Yields
    ------
    list of RecordedFunction
        The functions, in the order of compilation.
    """
    found: dict[int, RecordedFunction] = {}
    functions: list[RecordedFunction] = []
    depth = _Depth()
    create, call = FunctionMaker.create, Function.__call__

    def recorded_create(maker: Any, *args: Any, **kwargs: Any) -> Any:
        with depth.deeper() as by_script:
            function = create(maker, *args, **kwargs)
        if by_script:
            # The list keeps the function alive, so that no other one gets its id.
            functions.append(RecordedFunction(function))
            found[id(function)] = functions[-1]
        return function

    def recorded_call(function: Any, *args: Any, **kwargs: Any) -> Any:
        with depth.deeper():
            begin = perf_counter()
            result = call(function, *args, **kwargs)
            seconds = perf_counter() - begin
        entry = found.get(id(function))
        if entry is not None:
            entry.calls += 1
            entry.seconds += seconds
            entry.arguments, entry.named = args, kwargs
        return result

    _set(recorded_create, recorded_call)
    try:
        yield functions
    finally:
        _set(create, call)


def _set(create: Any, call: Any) -> None:
    for owner, name, new in ((FunctionMaker, "create", create), (Function, "__call__", call)):
        setattr(owner, name, new)

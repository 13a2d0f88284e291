"""Base of JAX tasks timed behind a gate: one compiled function runs a whole turn.

JAX does not expose its stream. So custom calls shut and open the gate, and other custom calls,
which do nothing on the device, keep the calls in between in order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from benchmarks.harness import BenchmarkError
from benchmarks.peers.conv_jax import passed, register
from benchmarks.peers.gated import GatedTask

__all__ = ["ChainTask", "compiled_chain", "make_timer_known"]


def make_timer_known(timer: str, device: str) -> None:
    """Register the timer's custom calls, before a program with them is compiled."""
    if missing := register(timer, "CUDA" if device == "cuda" else "cpu"):
        raise BenchmarkError(missing)


def compiled_chain(work: Callable[..., tuple[Any, ...]], operands: list[Any], calls: int) -> Any:
    """Compile several calls in sequence, between start and stop.

    Parameters
    ----------
    work : callable
        Function from operands to results.
    operands : list
        Arrays, or their shapes and dtypes.
    calls : int
        Number of calls.

    Returns
    -------
    compiled function
        Donates the operands' memory, and returns the operands followed by the last call's results.
    """

    def chain(*operands: Any) -> tuple[Any, ...]:
        given = passed("timer_start_call", list(operands), [])
        for call in range(calls):
            results = work(*given)
            if call + 1 < calls:
                given = passed("timer_fence_call", given, list(results))
        given = passed("timer_stop_call", given, list(results))
        return (*given, *results)

    donated = tuple(range(len(operands)))
    return jax.jit(chain, donate_argnums=donated).lower(*operands).compile()


class ChainTask(GatedTask):
    """A task whose turn is a function from `compiled_chain`; subclasses set `chain` and `operands`.

    The list of operands is kept up to date, so that others may use them between turns.
    """

    chain: Any
    operands: list[Any]

    def turn(self) -> None:
        count = len(self.operands)
        # The chain donates the operands' memory.
        operands = list(self.operands)
        self.operands[:] = []
        self.kept = None
        found = self.chain(*operands)
        self.operands[:], self.kept = found[:count], found[count:]
        # JAX launches the work from another thread.
        self.synchronize()

    def warm(self) -> None:
        self.timer.enable(False)
        self.turn()
        self.timer.enable(True)

    def synchronize(self) -> None:
        jax.block_until_ready((self.operands, self.kept))

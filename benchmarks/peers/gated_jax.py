"""What JAX's peers that are timed behind a gate share: one compiled function for all of a turn.

JAX's stream can't be asked for. So what shuts the gate and what opens it are custom calls, and
others, which do nothing on the device, keep the calls in between in order.
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
    """Make the timer's custom calls known, before anything with them is compiled."""
    if missing := register(timer, "CUDA" if device == "cuda" else "cpu"):
        raise BenchmarkError(missing)


def compiled_chain(work: Callable[..., tuple[Any, ...]], operands: list[Any], calls: int) -> Any:
    """Compile some calls in a row between start and stop.

    Parameters
    ----------
    work : callable
        Gives the results of operands.
    operands : list
        Arrays, or their shapes and dtypes.
    calls : int
        How many.

    Returns
    -------
    compiled function
        It takes the operands' memory, and gives them back with the last call's results after them.
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
    """Work whose turn is what `compiled_chain` gave: a subclass sets `chain` and `operands`.

    The list of operands always holds those that there are, so that others may use them in between.
    """

    chain: Any
    operands: list[Any]

    def turn(self) -> None:
        count = len(self.operands)
        # The chain takes the operands' memory.
        operands = list(self.operands)
        self.operands[:] = []
        self.kept = None
        found = self.chain(*operands)
        self.operands[:], self.kept = found[:count], found[count:]
        # What is launched, is launched by another thread.
        self.synchronize()

    def warm(self) -> None:
        self.timer.enable(False)
        self.turn()
        self.timer.enable(True)

    def synchronize(self) -> None:
        jax.block_until_ready((self.operands, self.kept))

"""Attention in JAX on one GPU: cuDNN's fused attention, or XLA's own code.

Threads compile all programs, in the order of the cases. Programs that `prepare` does not wait for
are compiled on the CPU while earlier cases are measured. XLA's own attention is compiled before any
measurement, because XLA tries matrix products on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from multiprocessing.util import Finalize
from typing import Any

import jax
import numpy as np

from benchmarks.attention_data import NAMES, SEEDS, attention_shapes
from benchmarks.harness import Task
from benchmarks.peers import conv_jax
from benchmarks.peers.gated_jax import ChainTask, compiled_chain, make_timer_known

_THREADS = 8
#: Seconds that `prepare` waits for programs that need not be ready.
_WAIT_S = 20.0
_pool = ThreadPoolExecutor(_THREADS)
# Otherwise the process would compile the remaining programs before it exits.
Finalize(None, _pool.shutdown, kwargs={"wait": False, "cancel_futures": True}, exitpriority=1)
_programs: dict[tuple[Any, ...], Future[Any]] = {}

Shapes = tuple[tuple[int, ...], ...]


def versions() -> dict[str, Any]:
    """Return the versions of what is measured."""
    return {"jax": jax.__version__}


def _program(compile_it: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """Return the future result of `compile_it` for the arguments; a thread runs it once."""
    key = (compile_it, *arguments)
    if key not in _programs:
        _programs[key] = _pool.submit(compile_it, *arguments)
    return _programs[key]


def _maker(shapes: Shapes, dtype: str) -> Any:
    """Compile a function that makes the operands, with heads after positions, as JAX expects."""

    def make() -> list[Any]:
        return [
            conv_jax.values(shape, np.uint32(seed), np.float32(1), dtype).swapaxes(1, 2)
            for shape, seed in zip(shapes, SEEDS.values(), strict=False)
        ]

    return jax.jit(make).lower().compile()


def _moved(shape: tuple[int, ...], dtype: str) -> Any:
    batch, heads, places, depth = shape
    return jax.ShapeDtypeStruct((batch, places, heads, depth), dtype)


def _summer(shape: tuple[int, ...], dtype: str) -> Any:
    """Compile a function that sums a result in the same order as the other libraries."""
    return (
        jax.jit(lambda x: conv_jax.sketch(x.swapaxes(1, 2))).lower(_moved(shape, dtype)).compile()
    )


def _chain(
    shapes: Shapes, dtype: str, is_causal: bool, training: bool, implementation: str, calls: int
) -> Any:
    """Compile ``jax.nn.dot_product_attention``, with its gradients for training."""

    def forward(query: Any, key: Any, value: Any) -> tuple[Any, ...]:
        out = jax.nn.dot_product_attention(
            query, key, value, is_causal=is_causal, implementation=implementation
        )
        return (out,)

    def trained(query: Any, key: Any, value: Any, gout: Any) -> tuple[Any, ...]:
        out, pull = jax.vjp(forward, query, key, value)
        return (*out, *pull((gout,)))

    operands = [_moved(shape, dtype) for shape in shapes]
    return compiled_chain(trained if training else forward, operands, calls)


def _programs_of(case: dict[str, Any]) -> tuple[Future[Any], list[Future[Any]], Future[Any]]:
    """Return the programs that make the operands, sum each result, and are timed."""
    shapes, dtype = tuple(attention_shapes(case).values()), case["dtype"]
    chosen = (case["is_causal"], case["training"], case["implementation"], case["calls"])
    # The gradients have the operands' shapes.
    of_results = (shapes[0], *(shapes[:3] if case["training"] else ()))
    return (
        _program(_maker, shapes, dtype),
        [_program(_summer, shape, dtype) for shape in of_results],
        _program(_chain, shapes, dtype, *chosen),
    )


class Attention(ChainTask):
    """``jax.nn.dot_product_attention``, compiled."""

    def __init__(self, case: dict[str, Any]) -> None:
        super().__init__(case["timer"], case["calls"])
        make_timer_known(case["timer"], case["device"])
        make, sums, chain = _programs_of(case)
        self.chain = chain.result()
        self.sums = [program.result() for program in sums]
        self.operands = list(make.result()())
        self.warm()

    def results(self) -> dict[str, np.ndarray]:
        found = [np.asarray(add(x)) for add, x in zip(self.sums, self.kept, strict=True)]
        return dict(zip(NAMES, found, strict=False))

    def close(self) -> None:
        super().close()
        self.operands.clear()


def make_task(case: dict[str, Any]) -> Task:
    """Prepare a case of ``benchmarks/attention.py``."""
    return Attention(case)


def prepare(cases: Sequence[dict[str, Any]]) -> None:
    """Compile what the cases need, or start to; see the module's docstring."""
    make_timer_known(cases[0]["timer"], cases[0]["device"])
    needed: list[Future[Any]] = []
    others: list[Future[Any]] = []
    for case in cases:
        make, sums, chain = _programs_of(case)
        is_needed = case["implementation"] == "xla" or case is cases[0]
        (needed if is_needed else others).extend((make, *sums, chain))
    # If a program failed, the case that needs it raises the error.
    wait(others, _WAIT_S)
    wait(needed)

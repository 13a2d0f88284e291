"""Measure threads that call compiled functions: one function for all, or a copy for each.

Run ``python -m benchmarks.serving [--threads 4] [--batch 8] [--json FILE]``, with
``OMP_NUM_THREADS=1`` to leave the cores to the threads of the server.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.maker import FunctionMaker

from benchmarks.cpu import environment
from dnnops import layers, nnet
from dnnops.modes import OneDnnMode
from dnnops.runtime import output

__all__ = ["main"]

#: Seconds that a round takes, and number of rounds.
ROUND, ROUNDS = 1.0, 5


class _Unguarded(OneDnnMode):
    """The mode, with PyTensor's own functions."""

    function_maker = FunctionMaker


def _microseconds(calls: Sequence[Callable[[], Any]]) -> list[float]:
    """Return the medians of the times of calls, which alternate."""
    found: list[list[float]] = [[] for _ in calls]
    for _ in range(9):
        for call, times in zip(calls, found, strict=True):
            start = time.process_time()
            for _ in range(20_000):
                call()
            times.append((time.process_time() - start) / 20_000 * 1e6)
    return [median(times) for times in found]


def lock_cost() -> dict[str, float]:
    """Return the time of a call of a small function with and without its lock."""
    x = pt.fvector("x")
    modes = OneDnnMode(), _Unguarded()
    functions = [pytensor.function([x], x + 1, mode=mode, trust_input=True) for mode in modes]
    argument = np.ones(3, "float32")
    guarded, bare = _microseconds([lambda f=f: f(argument) for f in functions])
    return {"call_us": guarded, "unguarded_us": bare, "lock_us": guarded - bare}


def network() -> Any:
    """Return a compiled network for images of 3 x 32 x 32."""
    layers.seed(0)
    size: dict[str, Any] = {"dtype": "float32"}
    net = layers.Sequential(
        layers.SpatialConvolution(3, 32, 3, 3, 1, 1, 1, 1, **size),
        nnet.relu,
        layers.SpatialConvolution(32, 64, 3, 3, 2, 2, 1, 1, **size),
        nnet.relu,
        lambda x: x.mean(axis=(2, 3)),
        layers.Linear(64, 10, **size),
    ).eval()
    x = pt.ftensor4("x")
    return pytensor.function([x], nnet.softmax(net(x)), mode="ONEDNN")


def calls_per_second(functions: Sequence[Any], batch: int) -> float:
    """Return how many calls as many threads do in a second, each of its function."""
    images = np.ones((batch, 3, 32, 32), "float32")

    def run(function: Any) -> int:
        count, until = 0, time.perf_counter() + ROUND
        while time.perf_counter() < until:
            function(images)
            count += 1
        return count

    rates = []
    with ThreadPoolExecutor(len(functions)) as pool:
        for _ in range(ROUNDS):
            start = time.perf_counter()
            count = sum(pool.map(run, functions))
            rates.append(count / (time.perf_counter() - start))
    return median(rates)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving", description=__doc__)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(arguments)
    found = lock_cost()
    predict = network()
    start = time.perf_counter()
    copies = [predict, *(predict.copy() for _ in range(args.threads - 1))]
    found["copy_ms"] = 1e3 * (time.perf_counter() - start) / max(1, args.threads - 1)
    found["one_thread"] = calls_per_second([predict], args.batch)
    found["one_function"] = calls_per_second([predict] * args.threads, args.batch)
    found["copies"] = calls_per_second(copies, args.batch)
    for name, value in found.items():
        print(f"{name:14} {value:10.2f}")
    if args.json:
        content = {"machine": environment(), "arguments": {"threads": args.threads}, **found}
        output.write(args.json, json.dumps(content, indent=1, default=str) + "\n")


if __name__ == "__main__":
    main()

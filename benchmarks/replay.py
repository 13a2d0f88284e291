"""Profile captured steps of whole networks: ``python -m benchmarks.replay``.

For each network of the benchmark of models, the table has the milliseconds of a step, the share of
it in which no kernel runs, the kernels, and the microseconds that the host needs for the replay and
for the call of the compiled function: while the device works on earlier steps, and while it is
idle, after the host has waited for it. Goals: less than 2 % of idle time, and a replay of 30 us in
both cases.

A step's time is the median between CUDA events, while nothing is profiled. PyTorch's profiler tells
how long kernels run; kernels that run at the same time count once. Each case has a process of its
own, because once a process has been profiled, its launches take several times as long.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import pairwise, starmap
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.harness import BenchmarkError
from benchmarks.machine import describe_machine
from benchmarks.model_zoo import MODELS
from benchmarks.models import MOST_HOST_MS, TOLERANCE, dnnops_flags, model_cases, selected
from benchmarks.report import Row
from dnnops.capture.replay import Replay
from dnnops.capture.vm import why_not_captured
from dnnops.runtime import output

#: Steps until a function is captured, and steps that are timed and profiled.
WARM_UP, TIMED, PROFILED = 8, 40, 3
#: Steps that are launched one after the other, the first of them on an idle device.
QUEUED = 9
#: Goals: the share of a step without a kernel, and microseconds of the host for a replay.
MOST_IDLE, MOST_REPLAY_US = 0.02, 1e3 * MOST_HOST_MS


def host_times(step: Any) -> dict[str, float]:
    """Return the median microseconds of replays and calls: queued ones, and on an idle device."""
    run = Replay.run
    calls: list[float] = []
    replays: list[float] = []

    def timed(replay: Replay) -> list[Any]:
        start = time.perf_counter()
        outputs = run(replay)
        replays.append(time.perf_counter() - start)
        return outputs

    with patch.object(Replay, "run", timed):
        for _ in range(TIMED):
            step.synchronize()
            for _ in range(QUEUED):
                start = time.perf_counter()
                step.run()
                calls.append(time.perf_counter() - start)
    step.synchronize()

    assert len(replays) == len(calls)
    queued = [i for i in range(len(calls)) if i % QUEUED]
    return {
        "replay_us": 1e6 * statistics.median(replays[i] for i in queued),
        "idle_replay_us": 1e6 * statistics.median(replays[::QUEUED]),
        "call_us": 1e6 * statistics.median(calls[i] for i in queued),
        "idle_call_us": 1e6 * statistics.median(calls[::QUEUED]),
    }


def kernel_times(step: Any) -> tuple[list[Any], float]:
    """Profile some steps.

    Returns
    -------
    kernels : list
        Events of PyTorch's profiler for kernels and copies.
    busy_ms : float
        Milliseconds per step in which at least one of them runs.
    """
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(PROFILED):
            step.run()
        step.synchronize()
    kernels = [event for event in profiler.events() if event.device_type.name == "CUDA"]
    kernels.sort(key=lambda event: event.time_range.start)
    return kernels, busy_us(kernels) / PROFILED / 1e3


def busy_us(kernels: Sequence[Any]) -> float:
    """Return the microseconds in which at least one of the kernels, in order of start, runs."""
    busy = end = 0.0
    for event in kernels:
        start, stop = event.time_range.start, event.time_range.end
        busy += max(stop - max(start, end), 0)
        end = max(end, stop)
    return busy


def measure(case: dict[str, Any], trust_input: bool = False) -> tuple[Row, list[tuple[str, float]]]:
    """Profile a case; return a row, and name and microseconds of kernels of `PROFILED` steps."""
    from benchmarks.peers.models.dnnops_gpu import Step

    step = Step({**case, "flags": dnnops_flags(case["precision"])})
    try:
        step.function.trust_input = trust_input
        for _ in range(WARM_UP):
            step.run()
        if reason := why_not_captured(step.function.vm, step.function.maker.fgraph):
            raise BenchmarkError(f"{case['case']}: not captured: {reason}")
        return _profile(case["case"], step)
    finally:
        step.close()


def _profile(case: str, step: Any) -> tuple[Row, list[tuple[str, float]]]:
    step.synchronize()
    events = [step.record()]
    for _ in range(TIMED):
        step.run()
        events.append(step.record())
    step.synchronize()
    ms = 1e3 * statistics.median(starmap(step.seconds_between, pairwise(events)))
    host = host_times(step)
    kernels, busy_ms = kernel_times(step)
    row: Row = {
        "case": case,
        "ms": ms,
        "busy_ms": busy_ms,
        "idle": 1 - busy_ms / ms,
        "kernels": len(kernels) / PROFILED,
        **host,
        "compile_s": step.compile_s,
    }
    return row, [(event.name, event.time_range.elapsed_us()) for event in kernels]


def print_kernels(kernels: Sequence[tuple[str, float]], number: int) -> None:
    """Print the kernels that take most of a step."""
    found: dict[str, list[float]] = {}
    for name, us in kernels:
        found.setdefault(name, []).append(us)
    ordered = sorted(found.items(), key=lambda item: -sum(item[1]))
    for name, times in ordered[:number]:
        us, count = sum(times) / PROFILED, len(times) / PROFILED
        print(f"    {us:9.1f} us {count:6.1f}x  {name[:100]}", flush=True)


def main() -> None:
    """Print a table; the exit status is 1 if a row misses a goal."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=list(MODELS))
    parser.add_argument("--what", nargs="+", choices=("training", "inference"))
    parser.add_argument("--batch", nargs="+", type=int)
    parser.add_argument("--precisions", nargs="+", choices=list(TOLERANCE))
    parser.add_argument("--trust-input", action="store_true", help="let PyTensor check nothing")
    parser.add_argument("--kernels", type=int, default=0, metavar="N", help="print the N longest")
    parser.add_argument("--json", type=Path, help="file for the rows")
    arguments = parser.parse_args()
    wanted = {
        "model": arguments.models,
        "what": arguments.what,
        "batch": arguments.batch,
        "precision": arguments.precisions,
    }
    rows: list[Row] = []
    missed = 0
    print(f"{'':34} {'ms':>7} {'idle':>5} {'kernels':>7} {'replay us':>9} {'call us':>8}")
    print(f"{'':56} {'queued/idle':>18}")
    cases = selected(model_cases(peers=()), wanted)
    profile = partial(measure, trust_input=arguments.trust_input)
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as processes:
        for row, kernels in processes.map(profile, cases):
            rows.append(row)
            slowest = max(row["replay_us"], row["idle_replay_us"])
            misses = row["idle"] >= MOST_IDLE or slowest > MOST_REPLAY_US
            missed += misses
            print(
                f"{row['case']:34} {row['ms']:7.3f} {row['idle']:5.1%} {row['kernels']:7.0f} "
                f"{row['replay_us']:5.0f}/{row['idle_replay_us']:<3.0f} "
                f"{row['call_us']:4.0f}/{row['idle_call_us']:<3.0f}{' *' if misses else ''}",
                flush=True,
            )
            print_kernels(kernels, arguments.kernels)
    if arguments.json:
        from benchmarks.peers.dnnops_gpu import versions

        content = {"machine": describe_machine(1) | versions(), "rows": rows}
        output.write(arguments.json, json.dumps(content, indent=1) + "\n")
    sys.exit(f"{missed} of {len(rows)} rows miss a goal (*)" if missed else 0)


if __name__ == "__main__":
    main()

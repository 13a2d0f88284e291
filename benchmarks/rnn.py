"""Compare training steps of recurrent networks with other libraries: ``python -m benchmarks.rnn``.

On the first GPU, or with ``--device cpu`` on the CPU. The cases are in ``rnn_data.py``, and what a
library does with one in ``peers/rnn_LIBRARY.py``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from math import exp, log
from typing import Any

from benchmarks import cpu, gpu
from benchmarks.harness import BenchmarkError, RemoteTask, Session, check_agreement, measure
from benchmarks.report import Row, ratios
from benchmarks.rnn_data import cpu_cases, gpu_cases
from benchmarks.runner import Part, at_least
from benchmarks.runner import main as run

#: Times as fast as PyTorch, by the geometric mean of all rows.
MEAN = 1.05
#: dnnops takes scratch memory in whole MiB.
SLACK_MIB = 1.0
#: Largest relative difference of the libraries' results.
TOLERANCE = {"float32": 1e-4, "float16": 2e-2}


def measure_case(session: Session, case: dict[str, Any], device: str) -> list[Row]:
    """Check that the libraries do the same, and time their steps in turns."""

    def opened(name: str) -> RemoteTask:
        return session.worker(f"rnn_{name}").open({**case, "device": device})

    tasks = {name: opened(name) for name in ("dnnops", "torch")}
    if case["jax"]:
        try:
            tasks["jax"] = opened("jax")
        except BenchmarkError as error:  # it is for information
            print(f"without JAX: {str(error).strip().splitlines()[-1]}", file=sys.stderr)
            # It would not tell its version either.
            session.workers.pop(("rnn_jax", "")).stop()
    check_agreement({n: t.results() for n, t in tasks.items()}, TOLERANCE[case["dtype"]])
    # Of one step, when all that is made once is there.
    facts = {name: task.facts() for name, task in tasks.items()}
    measurement = measure(tasks, session.settings)
    for task in tasks.values():
        task.close()
    row: Row = {
        "case": case["case"],
        **measurement.medians("ms"),
        "spread_pct": measurement.spread_pct(),
    }
    if device == "cuda":
        row |= {name: facts["dnnops"][name] for name in ("algorithm", "launch_ms")}
        row |= {f"{name}_peak_mib": facts[name]["peak_mib"] for name in ("dnnops", "torch")}
    return [row]


def gpu_misses(rows: Sequence[Row]) -> list[str]:
    """Rows that are slower or take more memory than PyTorch, and a mean that is too low."""
    found = at_least(1.0)(rows)
    mean = exp(sum(log(ratios(row)["torch"]) for row in rows) / len(rows))
    if mean < MEAN:
        found.append(f"{mean:.3f} times as fast as torch by the geometric mean, not {MEAN:g}")
    return found + [
        f"{row['case']}: {row['dnnops_peak_mib']:.1f} MiB, torch {row['torch_peak_mib']:.1f} MiB"
        for row in rows
        if row["dnnops_peak_mib"] > row["torch_peak_mib"] + SLACK_MIB
    ]


PARTS = {
    "cuda": Part(
        "gpu",
        "rnn_gpu",
        "Training steps of recurrent networks on the GPU",
        lambda session: gpu_cases(session.small),
        lambda session, case: measure_case(session, case, "cuda"),
        gpu_misses,
    ),
    "cpu": Part(
        "cpu",
        "rnn_cpu",
        "Training steps of recurrent networks on the CPU",
        lambda session: cpu_cases(session.small),
        lambda session, case: measure_case(session, case, "cpu"),
        at_least(1.0),
    ),
}


def gpu_environment(threads: int) -> dict[str, str]:
    """As for other benchmarks on the GPU; JAX leaves memory to the others."""
    return {**gpu.environment(threads), "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


ENVIRONMENTS = {"cuda": gpu_environment, "cpu": cpu.environment}


def main(arguments: Sequence[str] | None = None) -> int:
    """Read ``--device`` and measure there."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--device", choices=PARTS, default="cuda")
    args, others = parser.parse_known_args(arguments)
    words = "Compare training steps of recurrent networks; --device {cuda,cpu} says where."
    return run(words, [PARTS[args.device]], ENVIRONMENTS[args.device], others)


if __name__ == "__main__":
    sys.exit(main())

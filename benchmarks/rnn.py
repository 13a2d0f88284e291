"""Compare training steps of recurrent networks with other libraries: ``python -m benchmarks.rnn``.

It runs on the first GPU, or with ``--device cpu`` on the CPU. The cases are in ``rnn_data.py``, and
the code that runs them in ``peers/rnn_LIBRARY.py``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from math import exp, log
from typing import Any

from benchmarks import cpu, gpu
from benchmarks.harness import (
    BenchmarkError,
    RemoteTask,
    Session,
    Settings,
    WorkerLostError,
    check_agreement,
    error_line,
    measure_apart,
)
from benchmarks.report import Row, ratios
from benchmarks.rnn_data import ALGORITHMS, cpu_cases, gpu_cases
from benchmarks.runner import Part, at_least
from benchmarks.runner import main as run

#: Goal: times as fast as PyTorch, by the geometric mean of all rows.
MEAN = 1.05
#: dnnops allocates scratch memory in whole MiB.
SLACK_MIB = 1.0
#: Seconds per turn of short steps, and of all turns of two libraries.
SHORT_TURN_S, CASE_S = 0.05, 0.8
LEAST_ROUNDS = 3
#: Steps until all arrays that take turns in memory have been used.
WARM_STEPS = 8
#: Largest relative difference between the libraries' results.
TOLERANCE = {"float32": 1e-4, "float16": 2e-2}


def fitted(settings: Settings, step_s: float) -> Settings:
    """Return settings with shorter turns for short steps, and fewer turns for long ones.

    A case takes a second or two, but has at least three turns of two steps.
    """
    turn_s = min(settings.turn_s, max(SHORT_TURN_S, 2 * step_s))
    # Each turn also has a step that does not count.
    rounds = min(settings.rounds, max(LEAST_ROUNDS, round(CASE_S / (2 * (turn_s + step_s)))))
    return replace(settings, rounds=rounds, turn_s=turn_s)


def measure_case(session: Session, case: dict[str, Any], device: str) -> list[Row]:
    """Check that the libraries agree, and time their steps in turns."""
    tasks: dict[str, RemoteTask] = {}
    try:
        for name in ("dnnops", "torch"):
            tasks[name] = session.worker(f"rnn_{name}").open({**case, "device": device})
        if case["jax"]:
            try:
                tasks["jax"] = session.worker("rnn_jax").open(case)
            except BenchmarkError as error:  # JAX is for information only
                print(f"without JAX: {error_line(error)}", file=sys.stderr)
                # It could not report its version either.
                session.workers.pop(("rnn_jax", "")).stop()
        return [_measured(session, case, device, tasks)]
    finally:
        for task in tasks.values():
            with suppress(WorkerLostError):  # its memory is then free anyway
                task.close()


def _measured(
    session: Session, case: dict[str, Any], device: str, tasks: dict[str, RemoteTask]
) -> Row:
    check_agreement({n: t.results() for n, t in tasks.items()}, TOLERANCE[case["dtype"]])
    settings = session.settings
    if device == "cuda":
        # dnnops captures repeated steps among these.
        step_s = max(min(tasks[name].times(WARM_STEPS)) for name in ("dnnops", "torch"))
        settings = fitted(settings, step_s)
    # For one step, after everything that is made once.
    facts = {name: task.facts() for name, task in tasks.items()}
    measurement = measure_apart(tasks, settings)
    row: Row = {
        "case": case["case"],
        **measurement.medians("ms"),
        "spread_pct": measurement.spread_pct(),
    }
    if device == "cuda":
        ours = ("algorithm", "replays", "replay_failure", "ms_to_launch")
        row |= {name: facts["dnnops"][name] for name in ours}
        row |= {f"{name}_peak_mib": facts[name]["peak_mib"] for name in ("dnnops", "torch")}
    return row


def gpu_misses(rows: Sequence[Row]) -> list[str]:
    """Return messages for rows slower or with more memory than PyTorch, and for a low mean."""
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
    """Return the environment of other GPU benchmarks; JAX leaves memory to the others."""
    return {**gpu.environment(threads), "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


ENVIRONMENTS = {"cuda": gpu_environment, "cpu": cpu.environment}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark on the device that ``--device`` selects."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--device", choices=PARTS, default="cuda")
    parser.add_argument("--algo", choices=ALGORITHMS, default="auto")
    args, others = parser.parse_known_args(arguments)
    part = PARTS[args.device]
    if args.algo != "auto":
        others = ["--only", " ", *others]  # matches every case, and writes nothing
        part = replace(
            part, cases=lambda session: _with_algorithm(PARTS[args.device], session, args.algo)
        )
    words = (
        "Compare training steps of recurrent networks. --device {cuda,cpu} selects the device;"
        " --algo selects the cuDNN algorithm of dnnops, and writes nothing."
    )
    return run(words, [part], ENVIRONMENTS[args.device], others)


def _with_algorithm(part: Part, session: Session, algo: str) -> list[dict[str, Any]]:
    return [
        {**case, "case": f"{case['case']}, {algo}", "algo": algo, "jax": False}
        for case in part.cases(session)
    ]


if __name__ == "__main__":
    sys.exit(main())

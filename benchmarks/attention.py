"""Compare attention with PyTorch and JAX on one GPU: ``python -m benchmarks.attention``.

The cases are in ``attention_data.py``, and ``peers/attention_LIBRARY.py`` runs them. Every library
makes the same operands on the device, and takes its turns behind the gate of
``peers/device_timer.cpp``. JAX is optional, and its failures do not stop the run. XLA's attention
without cuDNN (``jax_xla``) is measured for the first size only: it stores all scores and takes
seconds to compile.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks.attention_data import TOLERANCE, attention_cases
from benchmarks.gpu import environment_beside_jax
from benchmarks.harness import (
    BenchmarkError,
    RemoteTask,
    Session,
    Settings,
    Worker,
    WorkerLostError,
    beside,
    check_agreement,
    error_line,
    measure_apart,
)
from benchmarks.peers.device_timer import built_for_gpu
from benchmarks.report import Row
from benchmarks.runner import Part, at_least, main

#: The module of each library, and the entries that it adds to a case.
PEERS: dict[str, tuple[str, dict[str, Any]]] = {
    "dnnops": ("attention_dnnops", {}),
    "torch": ("attention_torch", {}),
    "jax_cudnn": ("attention_jax", {"implementation": "cudnn"}),
    "jax_xla": ("attention_jax", {"implementation": "xla"}),
}
#: Libraries that may be missing or fail a case.
OPTIONAL = ("jax_cudnn", "jax_xla")
#: Seconds per turn. All but the longest cases are called many times per turn, each behind a gate.
TURN_S = 0.02
#: Seconds a library may take to start and compile, and to run a case.
_START_LIMIT_S, _LIMIT_S = 240.0, 60.0


def cases(session: Session) -> list[dict[str, Any]]:
    """Return the cases: forward, and forward with gradients."""
    return attention_cases(session.small)


def fitted(settings: Settings) -> Settings:
    """Return settings with shorter turns and no pauses, since no host thread is timed or spins."""
    return replace(settings, turn_s=min(settings.turn_s, TURN_S), pause_s=0.0)


def _given(case: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the case with the entries that this library needs."""
    return {"device": "cuda", **case, "timer": built_for_gpu()[0], **PEERS[name][1]}


def _wanted(case: dict[str, Any]) -> list[str]:
    """Return the names of the libraries that measure a case."""
    return [
        name
        for name in PEERS
        if not (name in OPTIONAL and built_for_gpu()[1]) and (name != "jax_xla" or case["with_xla"])
    ]


def _worker(session: Session, name: str) -> Worker:
    """Return the library's process; each library has its own, and all start at the same time."""
    return session.worker(PEERS[name][0], name)


def _reasons(session: Session, answers: dict[str, Any]) -> dict[str, str]:
    """Return why optional libraries failed; raise if a required one did."""
    errors = {n: answer for n, answer in answers.items() if isinstance(answer, BenchmarkError)}
    for name, error in errors.items():
        if name not in OPTIONAL:
            raise error
        try:
            _worker(session, name).call("versions")
        except BenchmarkError:  # then it cannot report its version to `runner` either
            session.workers.pop((PEERS[name][0], name)).kill()
    return {name: error_line(error) for name, error in errors.items()}


def prepare(session: Session, missing: Sequence[dict[str, Any]]) -> None:
    """Start all libraries at the same time, and let them compile what they need."""
    calls = {}
    for name in PEERS:
        given = [_given(case, name) for case in missing if name in _wanted(case)]
        if given:
            worker = _worker(session, name)
            worker.limit_s = _START_LIMIT_S
            calls[name] = partial(worker.call, "prepare", given)
    with suppress(BenchmarkError):  # measuring a case reports it again
        _reasons(session, beside(calls))


def measure_case(session: Session, case: dict[str, Any]) -> list[Row]:
    """Check that the libraries agree, and time them in turns."""
    calls = {}
    for name in _wanted(case):
        worker = _worker(session, name)
        worker.limit_s = _LIMIT_S
        calls[name] = partial(worker.open, _given(case, name))
    answers = beside(calls)
    tasks = {name: task for name, task in answers.items() if isinstance(task, RemoteTask)}
    try:
        return [_measured(session, case, tasks, _reasons(session, answers))]
    finally:
        for task in tasks.values():
            with suppress(BenchmarkError):
                task.close()


def _measured(
    session: Session, case: dict[str, Any], tasks: dict[str, RemoteTask], reasons: dict[str, str]
) -> Row:
    tasks["torch"].ask("choose")
    ours = {"dnnops": tasks["dnnops"].results()}
    for name in list(tasks)[1:]:
        try:
            check_agreement({**ours, name: tasks[name].results()}, TOLERANCE[case["dtype"]])
        except BenchmarkError as error:
            if name not in OPTIONAL or isinstance(error, WorkerLostError):
                raise
            reasons[name] = error_line(error)
            tasks.pop(name).close()
    measurement = measure_apart(tasks, fitted(session.settings))
    facts = {name: task.facts() for name, task in tasks.items()}
    if without_jax := built_for_gpu()[1]:
        reasons["jax"] = error_line(without_jax)
    return {
        "case": case["case"],
        **measurement.medians("ms"),
        "spread_pct": measurement.spread_pct(),
        "waits": sum(found["waits"] for found in facts.values()),
        "torch_backend": facts["torch"]["torch_backend"],
        "missing": "; ".join(f"{name}: {reason}" for name, reason in reasons.items()),
    }


PARTS = (
    Part(
        "attention",
        "attention_gpu",
        "Scaled dot-product attention on the GPU",
        cases,
        measure_case,
        at_least(1.0),
        prepare=prepare,
    ),
)

if __name__ == "__main__":
    sys.exit(main("Compare attention on a GPU.", PARTS, environment_beside_jax))

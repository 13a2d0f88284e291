"""Compare networks of `dnnops.layers` with the same ones of `dnnops.nnet`'s functions.

``python -m benchmarks.layers`` measures training steps on the first GPU, and with ``--device cpu``
those on the CPU. ``peers/models/with_layers.py`` and ``with_functions.py`` have the networks.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks import cpu, gpu
from benchmarks.harness import (
    BenchmarkError,
    Measurement,
    RemoteTask,
    Session,
    beside,
    check_agreement,
    measure,
)
from benchmarks.model_zoo import MODELS
from benchmarks.models import TOLERANCE, dnnops_flags
from benchmarks.report import Row, draw_bars
from benchmarks.runner import Part
from benchmarks.runner import main as run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NETWORKS = ("resnet", "lstm", "transformer")
#: The two ways to write a network.
WAYS = ("layers", "functions")
PRECISIONS = {"cuda": ("float32", "bfloat16"), "cpu": ("float32",)}
#: Images of a batch on a GPU; other sizes are those of the benchmark of models.
GPU_IMAGES = 32
#: Goal: the time with layers, relative to that with functions.
MOST = 1.02
#: Turns are so many times shorter than in other benchmarks, and there are so many times as many, so
#: that other load on the machine affects both ways alike. If the ratio is still farther from 1 than
#: the goal allows, on either side, there are again so many times as many.
TIMES_AS_MANY = 4


def layer_cases(device: str, small: bool = False) -> list[dict[str, Any]]:
    """Return the cases: a training step of each network in each precision.

    Parameters
    ----------
    device : {'cuda', 'cpu'}
        Device of the data.
    small : bool
        Whether to use small sizes, for a quick check of the programs.
    """
    cases = []
    for network in NETWORKS:
        model = MODELS[network]
        sizes = dict(model.gpu_sizes if device == "cuda" and not small else model.sizes)
        if small:
            sizes["batch"] = 2
        elif device == "cuda" and model.kind == "images":
            sizes["batch"] = GPU_IMAGES
        cases += [
            {
                "case": f"{network}, {precision}",
                "model": network,
                "what": "training",
                "precision": precision,
                "sizes": sizes,
                "device": device,
                "flags": dnnops_flags(precision),
            }
            for precision in PRECISIONS[device]
        ]
    return cases


def _cases(device: str, session: Session) -> list[dict[str, Any]]:
    return layer_cases(device, session.small)


def measure_case(session: Session, case: dict[str, Any]) -> list[Row]:
    """Check that both networks have the same losses, and time them in turns."""
    workers = {way: session.worker("models.dnnops_layers", way) for way in WAYS}
    # Compiling takes longest.
    opened = beside({way: partial(w.open, {**case, "way": way}) for way, w in workers.items()})
    tasks = {way: task for way, task in opened.items() if isinstance(task, RemoteTask)}
    try:
        for task in opened.values():
            if isinstance(task, BenchmarkError):
                raise task
        results = {way: task.results() for way, task in tasks.items()}
        check_agreement(results, TOLERANCE[case["precision"]])
        measurement = _measured(session, tasks)
        facts = {way: task.facts() for way, task in tasks.items()}
    finally:
        for task in tasks.values():
            with suppress(BenchmarkError):
                task.close()
    row: Row = {
        "case": case["case"],
        "network": case["model"],
        "device": case["device"],
        "precision": case["precision"],
        **measurement.medians("ms"),
        "ratio": ratio(measurement),
        "spread_pct": measurement.spread_pct(),
    }
    if case["device"] == "cuda":
        row |= {f"{way}_host_ms": facts[way]["host_ms"] for way in WAYS}
    return [row]


def ratio(measurement: Measurement) -> float:
    """Return the time with layers, relative to that with functions."""
    medians = measurement.medians("s")
    return medians["layers_s"] / medians["functions_s"]


def _measured(session: Session, tasks: dict[str, RemoteTask]) -> Measurement:
    settings = replace(
        session.settings,
        rounds=TIMES_AS_MANY * session.settings.rounds,
        turn_s=session.settings.turn_s / TIMES_AS_MANY,
    )
    measurement = measure(tasks, settings)
    if abs(ratio(measurement) - 1) > MOST - 1:
        more = replace(settings, rounds=(TIMES_AS_MANY - 1) * settings.rounds)
        measurement = measurement.joined(measure(tasks, more))
    return measurement


def misses(rows: Sequence[Row]) -> list[str]:
    """Return a message for each network that is slower with layers than the goal allows."""
    return [
        f"{row['case']}: {row['ratio']:.3f} times the time of the functions, not {MOST:g} times"
        for row in rows
        if row["ratio"] > MOST
    ]


def draw(title: str, rows: Sequence[Row]) -> Figure:
    """Draw the time with layers relative to that with functions, the worst row at the top."""
    rows = sorted(rows, key=lambda row: -row["ratio"])
    words = "time with layers / time with functions"
    return draw_bars(title, rows, lambda row: {"layers": row["ratio"]}, words)


PARTS = {
    device: Part(
        "layers",
        f"layers_{words.lower()}",
        f"Networks of layers and of functions on the {words}",
        partial(_cases, device),
        measure_case,
        misses,
        draw,
    )
    for device, words in (("cuda", "GPU"), ("cpu", "CPU"))
}
ENVIRONMENTS = {"cuda": gpu.environment, "cpu": cpu.environment}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark on the device that ``--device`` selects."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--device", choices=PARTS, default="cuda")
    args, others = parser.parse_known_args(arguments)
    words = (
        "Compare networks of layers with the same ones of functions. --device {cuda,cpu} selects"
        " the device."
    )
    return run(words, [PARTS[args.device]], ENVIRONMENTS[args.device], others)


if __name__ == "__main__":
    sys.exit(main())

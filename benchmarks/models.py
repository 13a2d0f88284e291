"""Compare whole networks with PyTorch and JAX on one GPU: ``python -m benchmarks.models``.

The networks are in ``model_zoo.py``, and ``peers/models/LIBRARY_gpu.py`` runs them. dnnops is
measured with its default flags and, if a network has convolutions, with algorithms selected by
time, in the same run. ``--peers`` selects the other libraries, of which any may fail a case.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import exp, log
from typing import Any

from benchmarks import gpu
from benchmarks.harness import (
    BenchmarkError,
    Measurement,
    RemoteTask,
    Session,
    Settings,
    beside,
    check_agreement,
    error_line,
    measure,
)
from benchmarks.model_zoo import MODELS
from benchmarks.report import Row, draw_ratios, fastest_ratio, ratios
from benchmarks.runner import Part
from benchmarks.runner import main as run

#: The module of each other library, and the entries that it adds to a case.
PEERS: dict[str, tuple[str, dict[str, Any]]] = {
    "torch": ("models.torch_gpu", {"how": "eager"}),
    "torch_graph": ("models.torch_gpu", {"how": "graph"}),
    "torch_compile": ("models.torch_gpu", {"how": "compile"}),
    "torch_max_autotune": ("models.torch_gpu", {"how": "max_autotune"}),
    "jax": ("models.jax_gpu", {}),
}
#: The name of dnnops with each choice of algorithms, and the words that these add to a case.
OURS = {"dnnops": "", "dnnops_timed": "time_once"}
#: Largest relative difference between the losses, or scores, of libraries.
TOLERANCE = {"float32": 1e-3, "tf32": 1e-2, "float16": 1e-2, "bfloat16": 3e-2}
#: Batches of what is measured more than once; others have the one of `model_zoo`.
BATCHES = {("resnet", "training"): (32, 128, 256), ("resnet", "inference"): (1, 8, 128)}
#: With a batch of so many float32 images or more, the libraries do not fit side by side.
MANY_IMAGES = 128
#: Number of libraries that do, in addition to dnnops.
FITTING = 2
#: Seconds per turn, and of all turns of a library.
TURN_S, LIBRARY_S = 0.2, 1.5
LEAST_ROUNDS, MOST_ROUNDS = 3, 5
#: Number of libraries that compile at the same time.
AT_ONCE = 14
#: Seconds that a library may take to compile or to answer otherwise.
LIMIT_S = 900.0
#: Where rows are stored; runs with other peers have files of their own.
ROWS_FILE = "models_rows.jsonl"

# Goals
#: Times as fast as the fastest peer: with any flags, with default flags, and the geometric mean.
LEAST, LEAST_BY_DEFAULT, MEAN = 1.0, 0.95, 1.15
#: Peak memory relative to PyTorch's.
MOST_MEMORY = 1.05
#: Milliseconds of the host for a step that is replayed as a CUDA graph.
MOST_HOST_MS = 0.03
#: Milliseconds of single cases, by model, what, batch and precision.
MOST_MS = {
    ("resnet", "training", 128, "bfloat16"): 21.0,
    ("resnet", "inference", 1, "bfloat16"): 0.5,
}


def environment(threads: int) -> dict[str, str]:
    """Return the environment of other GPU benchmarks; JAX leaves memory to the others."""
    return {**gpu.environment(threads), "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


# -- cases -----------------------------------------------------------------------------------


def dnnops_flags(precision: str, algorithm: str = "") -> dict[str, str]:
    """Return the flags of dnnops for a precision and an algorithm; the default one if empty."""
    flags = {"dnn.cuda_graph": "auto"}
    if precision == "tf32":
        flags["dnn.allow_tf32"] = "True"
    elif precision != "float32":
        flags["dnn.mixed_precision"] = precision
    if algorithm:
        flags |= {"dnn.conv.algo_fwd": algorithm, "dnn.conv.algo_bwd": algorithm}
    return flags


def model_cases(
    small: bool = False, device: str = "cuda", peers: Sequence[str] = tuple(PEERS)
) -> list[dict[str, Any]]:
    """Return the cases: training of each network and inference of ResNet, in each precision.

    Parameters
    ----------
    small : bool
        Whether to use small sizes, for a quick check of the programs.
    device : {'cuda', 'cpu'}
        Device of the data.
    peers : sequence of str
        Keys of `PEERS`.
    """
    cases = []
    for model, what in [*((model, "training") for model in MODELS), ("resnet", "inference")]:
        sizes = MODELS[model].sizes if small else MODELS[model].gpu_sizes
        batches = (2,) if small else BATCHES.get((model, what), (sizes["batch"],))
        for batch in batches:
            for precision in TOLERANCE:
                cases.append(
                    {
                        "case": f"{model}, {what}, {batch}, {precision}",
                        "model": model,
                        "what": what,
                        "batch": batch,
                        "precision": precision,
                        "sizes": {**sizes, "batch": batch},
                        "device": device,
                        "peers": list(peers),
                    }
                )
    return cases


def selected(cases: Sequence[dict[str, Any]], wanted: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the cases whose entries are among those wanted; None wants all."""
    return [
        case
        for case in cases
        if all(values is None or case[key] in values for key, values in wanted.items())
    ]


# -- one case --------------------------------------------------------------------------------


def fitted(settings: Settings, step_s: float) -> Settings:
    """Return settings with which each library takes about `LIBRARY_S` seconds."""
    turn_s = min(settings.turn_s, TURN_S)
    # Each turn also has a step that does not count.
    rounds = round(LIBRARY_S / (max(turn_s, step_s) + step_s))
    rounds = min(settings.rounds, max(LEAST_ROUNDS, min(rounds, MOST_ROUNDS)))
    return replace(settings, rounds=rounds, turn_s=turn_s)


def groups(case: dict[str, Any]) -> list[list[str]]:
    """Divide the peers into groups that fit into memory together with dnnops."""
    peers = case["peers"]
    images = case["batch"] if case["precision"] in ("float32", "tf32") else case["batch"] / 2
    trains_images = case["what"] == "training" and MODELS[case["model"]].kind == "images"
    if not trains_images or images < MANY_IMAGES:
        return [peers]
    return [peers[i : i + FITTING] for i in range(0, len(peers), FITTING)]


class _Case:
    """The libraries that measure a case, each in a process of its own, and why others do not."""

    def __init__(self, session: Session, case: dict[str, Any]) -> None:
        self.session, self.case = session, case
        has_filters = MODELS[case["model"]].kind == "images"
        self.own = tuple(OURS) if has_filters else ("dnnops",)
        self.started: dict[str, RemoteTask | BenchmarkError] = {}
        self.tasks: dict[str, RemoteTask] = {}
        self.reasons: dict[str, str] = {}
        self.facts: dict[str, dict[str, Any]] = {}
        self.samples: dict[str, list[float]] = {}

    def _key(self, name: str) -> tuple[str, str]:
        module = "models.dnnops_gpu" if name in OURS else PEERS[name][0]
        return module, f"{name}, {self.case['case']}"

    def start(self, name: str) -> RemoteTask:
        """Start the process of a library and let it compile what needs no time on the device."""
        worker = self.session.worker(*self._key(name))
        worker.limit_s = LIMIT_S
        if name in OURS:
            flags = dnnops_flags(self.case["precision"], OURS[name])
            return worker.open({**self.case, "flags": flags})
        return worker.open({**self.case, **PEERS[name][1]})

    def open(self, name: str) -> None:
        """Let a library run its first steps, and compare their results."""
        try:
            if isinstance(task := self.started.pop(name), BenchmarkError):
                raise task
            self.tasks[name] = task
            results = task.results()
            if name == "dnnops":
                self.expected = results
            else:
                tolerance = TOLERANCE[self.case["precision"]]
                check_agreement({"dnnops": self.expected, name: results}, tolerance)
        except BenchmarkError as error:
            self.fail(name, error)

    def fail(self, name: str, error: BenchmarkError) -> None:
        """Remember why a library has no time; raise if it is dnnops."""
        if name == "dnnops":
            raise error
        self.reasons[name] = error_line(error)
        self.samples.pop(name, None)
        print(f"without {name}: {self.reasons[name]}", file=sys.stderr, flush=True)
        self.close(name)

    def close(self, name: str) -> None:
        """End the process of a library, which gives its memory back."""
        self.tasks.pop(name, None)
        self.started.pop(name, None)
        self.session.end(*self._key(name))

    def close_all(self) -> None:
        """End all processes."""
        for name in [*self.own, *self.case["peers"]]:
            self.close(name)

    def measure(self, names: Sequence[str]) -> None:
        """Time dnnops and other libraries in turns, without those that fail."""
        samples: dict[str, list[float]] = {}
        while not samples:
            tasks = {name: self.tasks[name] for name in (*OURS, *names) if name in self.tasks}
            try:
                step_s = max(min(task.times(2)) for task in tasks.values())
                samples = measure(tasks, fitted(self.session.settings, step_s)).samples
            except BenchmarkError as error:
                self.fail(self._failing(tasks, error), error)
        for name, task in tasks.items():
            try:
                self.facts[name] = task.facts()
            except BenchmarkError as error:
                self.fail(name, error)
            else:
                self.samples.setdefault(name, []).extend(samples[name])

    def _failing(self, tasks: dict[str, RemoteTask], error: BenchmarkError) -> str:
        """Return which of the libraries fails; a task that fails does so again."""
        for name, task in tasks.items():
            try:
                task.times(1)
            except BenchmarkError:
                return name
        raise error


class Ahead:
    """Starts the libraries of several cases at the same time, since compiling takes longest.

    Parameters
    ----------
    cases : int
        Number of cases.
    """

    def __init__(self, cases: int = 1) -> None:
        self.cases = cases
        self._waiting: list[dict[str, Any]] = []
        self._started: dict[str, _Case] = {}

    def prepare(self, session: Session, cases: Sequence[dict[str, Any]]) -> None:
        """Remember the cases that will be measured, in their order."""
        self._waiting = list(cases)

    def start(self, session: Session, case: dict[str, Any]) -> _Case:
        """Return a case whose libraries have started, and start those of the next ones."""
        name = case["case"]
        if name not in self._started:
            waiting = [c["case"] for c in self._waiting]
            first = waiting.index(name) if name in waiting else len(waiting)
            chosen = self._waiting[first : first + self.cases] or [case]
            self._waiting = self._waiting[first + self.cases :]
            self._started = {c["case"]: _Case(session, c) for c in chosen}
            work = {
                (found, library): partial(found.start, library)
                for found in self._started.values()
                for library in (*found.own, *found.case["peers"])
            }
            for (found, library), task in beside(work, AT_ONCE).items():
                found.started[library] = task
        return self._started.pop(name)

    def measure(self, session: Session, case: dict[str, Any]) -> list[Row]:
        """Measure a case; see `measure_case`."""
        return measure_case(self.start(session, case))


def measure_case(found: _Case) -> list[Row]:
    """Check that the libraries agree, and time them in turns; return a row for each algorithm."""
    case = found.case
    try:
        for name in found.own:
            found.open(name)
        for names in groups(case):
            for name in names:
                found.open(name)
            found.measure(names)
            for name in names:
                found.close(name)
    finally:
        found.close_all()
    return rows_of(case, found.samples, found.facts, found.reasons)


def rows_of(
    case: dict[str, Any],
    samples: dict[str, list[float]],
    facts: dict[str, dict[str, Any]],
    reasons: dict[str, str],
) -> list[Row]:
    """Return a row for each algorithm of dnnops, beside the same times of other libraries."""
    if not set(samples) - set(OURS):
        raise BenchmarkError(f"no other library has a time: {reasons}")
    rows = []
    for own, algorithm in OURS.items():
        if own not in samples:
            continue
        names = [own, *(name for name in samples if name not in OURS)]
        measurement = Measurement(
            {"dnnops" if name == own else name: samples[name] for name in names}
        )
        flags = dnnops_flags(case["precision"], algorithm)
        row: Row = {
            "case": case["case"] + (f", {algorithm}" if algorithm else ""),
            **{key: case[key] for key in ("model", "what", "batch", "precision")},
            "flags": ",".join(f"{name}={value}" for name, value in flags.items()),
            **measurement.medians("ms"),
            "spread_pct": measurement.spread_pct(),
        }
        for name in names:
            prefix = "dnnops" if name == own else name
            row |= {f"{prefix}_{key}": value for key, value in facts[name].items()}
        row["missing"] = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        rows.append(row)
    return rows


# -- goals -----------------------------------------------------------------------------------


def misses(rows: Sequence[Row]) -> list[str]:
    """Return messages for rows that miss a goal of time or memory."""
    found = []
    best: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        key = tuple(row[name] for name in ("model", "what", "batch", "precision"))
        if key not in best or fastest_ratio(row) > fastest_ratio(best[key]):
            best[key] = row
        by_default = "dnn.conv.algo" not in row["flags"]
        if by_default and fastest_ratio(row) < LEAST_BY_DEFAULT:
            found.append(_slower(row, LEAST_BY_DEFAULT))
        ours, theirs = row.get("dnnops_peak_mib"), row.get("torch_peak_mib")
        if ours and theirs and ours > MOST_MEMORY * theirs:
            found.append(f"{row['case']}: {ours:.0f} MiB, torch {theirs:.0f} MiB")
        if reason := row.get("dnnops_not_captured"):
            found.append(f"{row['case']}: not captured: {reason}")
        elif row["dnnops_host_ms"] > MOST_HOST_MS:
            found.append(f"{row['case']}: {row['dnnops_host_ms']:.3f} ms of the host")
    for key, row in best.items():
        if fastest_ratio(row) < LEAST:
            found.append(_slower(row, LEAST))
        if row["dnnops_ms"] > MOST_MS.get(key, row["dnnops_ms"]):
            found.append(f"{row['case']}: {row['dnnops_ms']:.2f} ms, not {MOST_MS[key]:g} ms")
    mean = exp(sum(log(fastest_ratio(row)) for row in best.values()) / len(best))
    if mean < MEAN:
        found.append(f"{mean:.3f} times as fast as the fastest peer by the mean, not {MEAN:g}")
    return found


def _slower(row: Row, goal: float) -> str:
    found = ratios(row)
    peer = min(found, key=lambda name: found[name])
    return f"{row['case']}: {found[peer]:.2f} times as fast as {peer}, not {goal:g} times"


def summary(row: Row) -> Row:
    """Return what a table on the terminal shows of a row: its times."""
    return {key: row[key] for key in row if key == "case" or key.endswith("_ms")}


def make_part(ahead: Ahead) -> Part:
    """Return the benchmark, which starts libraries ahead."""
    return Part(
        "models",
        "gpu_models",
        "Whole networks on the GPU",
        lambda session: model_cases(session.small),
        ahead.measure,
        misses,
        partial(draw_ratios, order=fastest_ratio),
        environment,
        ahead.prepare,
        summary,
    )


PART = make_part(Ahead())


def rows_file(peers: Sequence[str]) -> str:
    """Return the file that stores the rows of these peers unless ``--rows`` names another."""
    stem, _, suffix = ROWS_FILE.partition(".")
    words = [] if list(peers) == list(PEERS) else list(peers)
    return f"{'_'.join([stem, *words])}.{suffix}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark of the cases that the command line selects."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--models", nargs="+", choices=MODELS)
    parser.add_argument("--what", nargs="+", choices=("training", "inference"))
    parser.add_argument("--batch", nargs="+", type=int)
    parser.add_argument("--precisions", nargs="+", choices=TOLERANCE)
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--ahead", type=int, default=1)
    args, others = parser.parse_known_args(arguments)
    wanted = {"model": args.models, "what": args.what}
    wanted |= {"batch": args.batch, "precision": args.precisions}
    is_whole = not any(wanted.values()) and args.peers == list(PEERS) and args.device == "cuda"
    if not is_whole:
        others = ["--only", " ", *others]  # matches every case, and writes no files for the docs
    has_file = any(word.startswith("--rows") for word in others)
    if args.device == "cuda" and "--small" not in others and not has_file:
        others += ["--rows", rows_file(args.peers)]
    part = replace(
        make_part(Ahead(args.ahead)),
        cases=lambda session: selected(model_cases(session.small, args.device, args.peers), wanted),
    )
    words = (
        "Compare whole networks on a GPU. --models, --what (training, inference), --batch,"
        " --precisions and --peers select cases and libraries, several words each, and write no"
        " files for the documentation; --device cpu checks the programs with --small. --ahead N"
        " lets the libraries of N cases compile at the same time. Rows are"
        f" stored in {ROWS_FILE} unless --rows names another file."
    )
    return run(words, [part], environment, others)


if __name__ == "__main__":
    sys.exit(main())

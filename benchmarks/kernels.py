"""Compare dnnops' own kernels and loops with what libraries have for the same.

``python -m benchmarks.kernels gpu`` measures kernels on the first GPU, and ``python -m
benchmarks.kernels cpu`` loops on the CPU. Rows are printed as soon as they are measured, in
milliseconds, with the fastest library's time divided by dnnops'. ``docs/decisions/kernels.rst``
says which kernels stay, and why.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.cpu import environment
from benchmarks.harness import Measurement, Session, Settings, check_agreement, error_line, measure
from benchmarks.machine import describe_machine
from dnnops.runtime import output

#: Turns of each library on a GPU; in each it runs as often as `small_ops.Timer` says.
ROUNDS = 5
#: The kernels of the GPU, in the order in which they are measured.
ORDER = (
    "copy_arrays",
    "reduction",
    "pool_kernel",
    "max_pool_grad_grad_kernel",
    "pool_cells",
    "dropout",
    "window_sum_kernel",
    "sampler",
    "cross_entropy",
    "ctc",
    "attention_grad",
    "dnnops_elementwise_packed",
    "batchnorm",
)
#: On a GPU, results that differ by more than this get a remark.
DIFFERENCE = 1e-2


class Report:
    """The rows of one run, printed and written one by one.

    Parameters
    ----------
    path : Path or None
        JSON file for the rows.
    machine : dict
        Description of the machine.
    """

    def __init__(self, path: Path | None, machine: dict[str, Any]) -> None:
        self.path, self.machine = path, machine
        self.rows: list[dict[str, Any]] = []
        self.begin = time.perf_counter()

    def add(self, kernel: str, case: str, ms: dict[str, float], **facts: Any) -> None:
        """Add a row with the times of each library."""
        row = {"kernel": kernel, "case": case, "ms": ms, **facts}
        self.rows.append(row)
        others = [t for name, t in ms.items() if name != "dnnops"]
        ratio = f"{min(others) / ms['dnnops']:6.2f}" if others and "dnnops" in ms else "     -"
        times = ", ".join(f"{name} {t:.4g}" for name, t in ms.items())
        notes = "".join(f"; {name}: {value}" for name, value in facts.items())
        elapsed = time.perf_counter() - self.begin
        print(f"{elapsed:6.1f} s {ratio}  {kernel}: {case}: {times}{notes}", flush=True)
        if self.path is not None:
            text = json.dumps({"machine": self.machine, "rows": self.rows}, indent=1)
            output.write(self.path, f"{text}\n")


# -- on a GPU ------------------------------------------------------------------------------------


def _first(result: Any) -> Any:
    """Return the first array of a result, if there is one."""
    while isinstance(result, list | tuple):
        result = result[0] if result else None
    return result


def _difference(g: Any, result: Any, expected: Any) -> float | None:
    """Return the relative difference of two results, or None if they cannot be compared."""
    if isinstance(result, g.torch.Tensor):
        result = g.cupy.from_dlpack(result.detach())
    if result is None or expected is None or result.size != expected.size:
        return None
    a, b = (x.astype("float64").reshape(expected.shape) for x in (result, expected))
    return float(g.cupy.sqrt(((a - b) ** 2).sum() / (b**2).sum()))


def _gpu_row(g: Any, prepare: Any) -> tuple[dict[str, float], dict[str, Any]]:
    """Time the calls of a row in turns; return their medians and remarks."""
    ways = prepare(g)
    ms: dict[str, float] = {name: t for name, t in ways.items() if not callable(t)}
    facts: dict[str, Any] = {}
    calls: dict[str, Any] = {}
    expected = None
    for name, call in ways.items():
        if name in ms:
            continue
        try:
            result = _first(call())
            call()
            g.cupy.cuda.runtime.deviceSynchronize()
        except Exception as error:
            facts[f"error of {name}"] = error_line(f"{type(error).__name__}: {error}")
            continue
        calls[name] = call
        if name == "dnnops":
            expected = result
        with contextlib.suppress(Exception):
            difference = _difference(g, result, expected)
            if difference is not None and not difference < DIFFERENCE:
                facts[f"difference of {name}"] = f"{difference:.2g}"
    samples: dict[str, list[float]] = {name: [] for name in calls}
    order = list(calls)
    for _ in range(ROUNDS if calls else 0):
        for name in order:
            samples[name].append(g.timer(calls[name]))
        order.append(order.pop(0))
    return ms | {name: statistics.median(s) for name, s in samples.items()}, facts


def on_gpu(path: Path | None, only: str, deadline: float) -> None:
    """Measure the rows of the GPU."""
    from benchmarks import kernels_gpu, kernels_layers
    from benchmarks.kernels_ctypes import load_cutensor
    from benchmarks.peers.dnnops_gpu import versions

    begin = time.perf_counter()
    g = kernels_gpu.Gpu()
    machine = describe_machine(2) | versions() | {"torch": g.torch.__version__}
    report = Report(path, machine)
    print(json.dumps(machine), flush=True)
    try:
        load_cutensor()
    except OSError as error:
        print(f"cuTENSOR is not installed: {error}", flush=True)
    rows = [*kernels_gpu.ROWS, *kernels_layers.ROWS]
    for kernel, case, prepare in sorted(rows, key=lambda row: ORDER.index(row[0])):
        if only.lower() not in f"{kernel} {case}".lower():
            continue
        if time.perf_counter() - begin > deadline:
            print(f"stopped at the deadline of {deadline:g} s, before {kernel}: {case}")
            break
        try:
            ms, facts = _gpu_row(g, prepare)
            report.add(kernel, case, ms, **facts)
        except Exception as error:
            print(f"{kernel}: {case}: {error_line(f'{type(error).__name__}: {error}')}", flush=True)


# -- on the CPU ----------------------------------------------------------------------------------


def on_cpu(path: Path | None, only: str, settings: Settings, threads: int) -> None:
    """Measure the rows of the CPU, each library in its own process."""
    from benchmarks.kernels_cpu import CASES

    report = Report(path, describe_machine(threads))
    with Session(environment(threads), settings) as session:
        for case in CASES:
            if only.lower() not in f"{case['kernel']} {case['case']}".lower():
                continue
            tasks = {}
            try:
                for library in case["libraries"]:
                    worker = session.worker("kernels_cpu", library)
                    tasks[library] = worker.open({**case, "library": library})
                    report.machine |= worker.call("versions", library)
                results = {name: task.results() for name, task in tasks.items()}
                if compared := {name: found for name, found in results.items() if found}:
                    check_agreement(compared, case["tolerance"])
                measurement: Measurement = measure(tasks, settings)
                medians = {
                    name.removesuffix("_ms"): t for name, t in measurement.medians("ms").items()
                }
                spread = measurement.spread_pct()
                report.add(case["kernel"], case["case"], medians, spread_pct=spread)
            except Exception as error:
                print(f"{case['kernel']}: {case['case']}: {error_line(error)}", flush=True)
            for task in tasks.values():
                with contextlib.suppress(Exception):
                    task.close()


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("device", choices=("gpu", "cpu"))
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="also write the rows to this file"
    )
    parser.add_argument("--only", default="", metavar="PATTERN", help="rows that contain this")
    parser.add_argument(
        "--deadline", type=float, default=140, metavar="S", help="of the GPU's rows"
    )
    parser.add_argument("--threads", type=int, default=2, help="threads of each library on the CPU")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each library on the CPU")
    parser.add_argument("--turn", type=float, default=0.2, metavar="S", help="seconds of a turn")
    args = parser.parse_args(arguments)
    if args.device == "gpu":
        on_gpu(args.json, args.only, args.deadline)
    else:
        on_cpu(args.json, args.only, Settings(args.rounds, args.turn), args.threads)


if __name__ == "__main__":
    main()

"""Compare dnnops on the CPU with PyTorch: ``python -m benchmarks.cpu``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.harness import Measurement, Session, check_agreement, measure
from benchmarks.model_zoo import MODELS
from benchmarks.networks import DIRECTIONS, VGG_LAYERS
from benchmarks.report import Row, draw_growth
from benchmarks.runner import Part, at_least, main

#: The two ways in which PyTorch may keep images in memory; the first is its default.
PEERS = {"torch": {}, "torch_channels_last": {"memory_format": "channels_last"}}
#: Sizes of models in a quick check.
SMALL = {"batch": 2}
#: By how many MiB memory may seem to change: what an allocator does once.
FLAT_MIB = 1.0


def environment(threads: int) -> dict[str, str]:
    """Give every library the same threads, and hide the GPU, so that mode DNN uses oneDNN."""
    count = str(threads)
    return {"OMP_NUM_THREADS": count, "MKL_NUM_THREADS": count, "CUDA_VISIBLE_DEVICES": ""}


def race(
    session: Session,
    case: dict[str, Any],
    tolerance: float,
    each: bool,
    modules: tuple[str, str] = ("dnnops_cpu", "torch_cpu"),
) -> Any:
    """Check that dnnops and PyTorch agree, and time them in turns.

    Parameters
    ----------
    session : Session
        Session with the workers.
    case : dict
        Case to measure.
    tolerance : float
        Largest relative difference of the results.
    each : bool
        Whether each element has to agree, not only the norm of the difference.
    modules : tuple of str
        Modules of `benchmarks.peers` with the tasks of dnnops and PyTorch.

    Returns
    -------
    Measurement
        Times by library.
    dict
        Facts about the task of dnnops.
    """
    tasks = {"dnnops": session.worker(modules[0]).open(case)}
    for name, options in PEERS.items():
        tasks[name] = session.worker(modules[1]).open({**case, **options})
    check_agreement({name: task.results() for name, task in tasks.items()}, tolerance, each)
    measurement: Measurement = measure(tasks, session.settings)
    facts = tasks["dnnops"].facts()
    for task in tasks.values():
        task.close()
    return measurement, facts


# -- training --------------------------------------------------------------------------------


def training_cases(session: Session) -> list[dict[str, Any]]:
    """Return the cases: a training step of a VGG-like network in two modes."""
    layers = (8, "M", 16, "M", "M") if session.small else VGG_LAYERS
    return [
        {
            "kind": "training",
            "case": f"VGG-like, {size}x{size}, mode {mode}",
            "size": size,
            "batch": 4 if session.small else 32,
            "layers": layers,
            "mode": mode,
        }
        for size in (32, 64)
        for mode in ("DNN", "default")
    ]


def measure_training(session: Session, case: dict[str, Any]) -> list[Row]:
    """Time training steps: forward, loss, backward, update."""
    measurement, facts = race(session, case, tolerance=1e-3, each=True)
    return [
        {
            "case": case["case"],
            "linker": facts["linker"],
            "batch": case["batch"],
            **measurement.medians("ms"),
            "spread_pct": measurement.spread_pct(),
        }
    ]


# -- models ----------------------------------------------------------------------------------


def model_cases(session: Session) -> list[dict[str, Any]]:
    """Return the cases: a training step of each network."""
    return [
        {"case": name, "model": name, "sizes": {**model.sizes, **(SMALL if session.small else {})}}
        for name, model in MODELS.items()
    ]


def measure_model(session: Session, case: dict[str, Any]) -> list[Row]:
    """Time training steps of a network."""
    modules = ("models.dnnops_cpu", "models.torch_cpu")
    measurement, _ = race(session, case, tolerance=1e-3, each=True, modules=modules)
    return [
        {
            "case": case["case"],
            "batch": case["sizes"]["batch"],
            **measurement.medians("ms"),
            "spread_pct": measurement.spread_pct(),
        }
    ]


# -- single convolutions ---------------------------------------------------------------------

# channels, filters, size, kernel, stride, pad, groups
CONVOLUTIONS = (
    (64, 64, 56, 3, 1, 1, 1),
    (3, 64, 224, 7, 2, 3, 1),
    (256, 256, 14, 3, 1, 1, 1),
    (64, 256, 56, 1, 1, 0, 1),
    (128, 128, 28, 3, 1, 1, 128),
    (128, 128, 112, 3, 1, 1, 128),
)


def convolution_cases(session: Session) -> list[dict[str, Any]]:
    """Return the cases: convolutions, each with its gradients."""
    cases = []
    for channels, filters, full_size, kernel, stride, pad, groups in CONVOLUTIONS:
        size = min(full_size, 14) if session.small else full_size
        what = f"depthwise {channels}" if groups > 1 else f"{channels} to {filters}"
        step = f"/{stride}" if stride > 1 else ""
        for direction in DIRECTIONS:
            words = f"{what}, {size}x{size}, {kernel}x{kernel}{step}, {direction.replace('_', ' ')}"
            sizes = {"channels": channels, "filters": filters, "size": size, "kernel": kernel}
            sizes |= {"stride": stride, "pad": pad, "groups": groups}
            sizes |= {"batch": 2 if session.small else 32}
            cases.append({"kind": "convolution", "case": words, "direction": direction, **sizes})
    return cases


def measure_convolution(session: Session, case: dict[str, Any]) -> list[Row]:
    """Time one convolution, or one of its gradients."""
    measurement, _ = race(session, case, tolerance=1e-4, each=False)
    return [
        {
            "case": case["case"],
            "batch": case["batch"],
            **measurement.medians("ms"),
            "spread_pct": measurement.spread_pct(),
        }
    ]


# -- memory ----------------------------------------------------------------------------------


def memory_cases(session: Session) -> list[dict[str, Any]]:
    """Return the cases: many calls of a small compiled function."""
    calls = [100, 200, 300] if session.small else [100, 300, 1000, 3000, 10000]
    return [
        {"case": f"small network, mode {mode}", "mode": mode, "calls": calls}
        for mode in ("DNN", "default")
    ]


def measure_memory(session: Session, case: dict[str, Any]) -> list[Row]:
    """Measure the memory of a process that has only this function."""
    worker = session.worker("dnnops_cpu", case["mode"])
    points = worker.call("resident_memory", case["mode"], case["calls"])
    return [{"case": case["case"], **point} for point in points]


def growth(rows: Sequence[Row], limits: dict[str, float]) -> list[str]:
    """Return a message for each quantity of a function that grows by more MiB than its limit."""
    found = []
    for name in dict.fromkeys(row["case"] for row in rows):
        own = [row for row in rows if row["case"] == name]
        for quantity, limit in limits.items():
            change = own[-1][quantity] - own[0][quantity]
            if change > limit:
                found.append(
                    f"{name}: {quantity} grew by {change:.2f} MiB from call {own[0]['calls']} to "
                    f"{own[-1]['calls']}"
                )
    return found


PARTS = (
    Part(
        "training",
        "cpu_training",
        "A training step on the CPU",
        training_cases,
        measure_training,
        at_least(1.2),
    ),
    Part(
        "models",
        "cpu_models",
        "A training step of each network on the CPU",
        model_cases,
        measure_model,
        at_least(1.2, "torch"),
    ),
    Part(
        "convolution",
        "cpu_convolution",
        "Single convolutions on the CPU",
        convolution_cases,
        measure_convolution,
        at_least(1.0),
    ),
    Part(
        "memory",
        "cpu_memory",
        "Memory over many calls on the CPU",
        memory_cases,
        measure_memory,
        lambda rows: growth(rows, {"resident_mib": FLAT_MIB}),
        draw_growth,
    ),
)

if __name__ == "__main__":
    sys.exit(main("Compare dnnops on the CPU with PyTorch.", PARTS, environment))

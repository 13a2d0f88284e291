"""Compare batch normalization and pooling with other libraries: ``python -m benchmarks.norm``.

The cases are in ``norm_data.py``, and the code that runs them in ``peers/norm_LIBRARY.py``, or on a
GPU in ``peers/norm_gpu_LIBRARY.py``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from math import prod
from typing import Any

from benchmarks import gpu
from benchmarks.cpu import environment
from benchmarks.harness import Measurement, Session, check_agreement, measure
from benchmarks.norm_data import gpu_cases, norm_cases, pool_cases
from benchmarks.peers.device_timer import built_for_gpu
from benchmarks.report import Row
from benchmarks.runner import Part, at_least, main

#: On the CPU: the module of each library, and the entries that it adds to a case.
CPU_PEERS: dict[str, tuple[str, dict[str, Any]]] = {
    "dnnops": ("norm_dnnops", {}),
    "torch": ("norm_torch", {}),
    "torch_channels_last": ("norm_torch", {"memory_format": "channels_last"}),
}


def cases(session: Session) -> list[dict[str, Any]]:
    """Return the cases: normalizations and poolings."""
    return norm_cases(session.small) + pool_cases(session.small)


def measure_case(
    session: Session, case: dict[str, Any], peers: dict[str, tuple[str, dict[str, Any]]]
) -> list[Row]:
    """Check that the libraries agree, and time them in turns."""
    tasks = {
        name: session.worker(module).open({**case, **options})
        for name, (module, options) in peers.items()
        # Arrays with two axes have only one memory format.
        if not (options and len(case["shape"]) == 2)
    }
    check_agreement({name: task.results() for name, task in tasks.items()}, 1e-4)
    measurement: Measurement = measure(tasks, session.settings)
    for task in tasks.values():
        task.close()
    return [
        {
            "case": case["case"],
            **measurement.medians("ms"),
            "spread_pct": measurement.spread_pct(),
        }
    ]


# -- on a GPU --------------------------------------------------------------------------------

#: Arrays that a training step has to move: x and out for the output, and x, top and dx for the
#: gradient. A copy moves two of the same size.
ARRAYS_MOVED, ARRAYS_COPIED = 5, 2
#: The most times as long as that it may take.
OVER_FLOOR = 1.1
TOLERANCES = {"float32": 1e-4, "float16": 4e-3, "bfloat16": 3e-2}


def measure_on_gpu(session: Session, case: dict[str, Any]) -> list[Row]:
    """Time training on the device against PyTorch, JAX if it is installed, and a copy."""
    library, without_jax = built_for_gpu()
    given = {**case, "timer": library}
    peers = {"dnnops": "norm_gpu_dnnops", "torch": "norm_gpu_torch"}
    if not without_jax:
        peers["jax"] = "norm_gpu_jax"
    tasks = {name: session.worker(module).open(given) for name, module in peers.items()}
    check_agreement(
        {name: task.results() for name, task in tasks.items()}, TOLERANCES[case["dtype"]]
    )
    tasks["copy"] = session.worker(peers["dnnops"]).open({**given, "kind": "copy"})
    measurement = measure(tasks, session.settings)
    waits = sum(task.facts()["waits"] for task in tasks.values())
    for task in tasks.values():
        task.close()
    medians = measurement.medians("ms")
    copy = medians.pop("copy_ms")
    return [
        {
            "case": case["case"],
            **medians,
            # A limit on the time: divided by that of dnnops, it is at most 1.
            "floor_ms": copy * ARRAYS_MOVED / ARRAYS_COPIED,
            "copy_tb_per_s": _megabytes(case) * ARRAYS_COPIED / copy / 1e3,
            "spread_pct": measurement.spread_pct(),
            "waits": waits,
            **({"without_jax": without_jax} if without_jax else {}),
        }
    ]


def _megabytes(case: dict[str, Any]) -> float:
    return prod(case["shape"]) * (4 if case["dtype"] == "float32" else 2) / 1e6


def above_floor(rows: Sequence[Row]) -> list[str]:
    """Return a message for each row that takes too long for the memory that it moves."""
    return [
        f"{row['case']}: {row['dnnops_ms'] / row['floor_ms']:.2f} times the floor of "
        f"{row['floor_ms']:.3f} ms, not {OVER_FLOOR:g} times"
        for row in rows
        if row["dnnops_ms"] > OVER_FLOOR * row["floor_ms"]
    ]


PARTS = (
    Part(
        "cpu",
        "norm_cpu",
        "Batch normalization and pooling on the CPU",
        cases,
        lambda session, case: measure_case(session, case, CPU_PEERS),
        at_least(1.0),
    ),
    Part(
        "gpu",
        "norm_gpu",
        "Batch normalization in training on the GPU, forward and backward",
        lambda session: gpu_cases(session.small),
        measure_on_gpu,
        above_floor,
        environment=gpu.environment_beside_jax,
    ),
)

if __name__ == "__main__":
    sys.exit(main("Compare batch normalization and pooling.", PARTS, environment))

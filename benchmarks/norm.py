"""Compare batch normalization and pooling with other libraries: ``python -m benchmarks.norm``.

The cases are in ``norm_data.py``, and what a library does with one in ``peers/norm_LIBRARY.py``. A
part for another device names its own peers.
"""

from __future__ import annotations

import sys
from typing import Any

from benchmarks.cpu import environment
from benchmarks.harness import Measurement, Session, check_agreement, measure
from benchmarks.norm_data import norm_cases, pool_cases
from benchmarks.report import Row
from benchmarks.runner import Part, at_least, main

#: On the CPU: the module of each library, and what is added to a case.
CPU_PEERS: dict[str, tuple[str, dict[str, Any]]] = {
    "dnnops": ("norm_dnnops", {}),
    "torch": ("norm_torch", {}),
    "torch_channels_last": ("norm_torch", {"memory_format": "channels_last"}),
}


def cases(session: Session) -> list[dict[str, Any]]:
    """Normalizations and poolings."""
    return norm_cases(session.small) + pool_cases(session.small)


def measure_case(
    session: Session, case: dict[str, Any], peers: dict[str, tuple[str, dict[str, Any]]]
) -> list[Row]:
    """Check that the libraries do the same, and time them in turns."""
    tasks = {
        name: session.worker(module).open({**case, **options})
        for name, (module, options) in peers.items()
        # Two axes have one memory format.
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


PARTS = (
    Part(
        "cpu",
        "norm_cpu",
        "Batch normalization and pooling on the CPU",
        cases,
        lambda session, case: measure_case(session, case, CPU_PEERS),
        at_least(1.0),
    ),
)

if __name__ == "__main__":
    sys.exit(main("Compare batch normalization and pooling.", PARTS, environment))

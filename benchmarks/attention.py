"""Compare attention with PyTorch and JAX on one GPU: ``python -m benchmarks.attention``.

The cases are in ``attention_data.py``, and what a library does with one in
``peers/attention_LIBRARY.py``. All take their turns, on the same random operands. JAX, and what
fails in it, may be missing.
"""

from __future__ import annotations

import sys
from typing import Any

from benchmarks.attention_data import TOLERANCE, attention_cases
from benchmarks.gpu import environment
from benchmarks.harness import BenchmarkError, RemoteTask, Session, check_agreement, measure
from benchmarks.report import Row
from benchmarks.runner import Part, at_least, main

#: The module of each library, and what is added to a case.
PEERS: dict[str, tuple[str, dict[str, Any]]] = {
    "dnnops": ("attention_dnnops", {}),
    "torch": ("attention_torch", {}),
    "jax_cudnn": ("attention_jax", {"implementation": "cudnn"}),
    "jax_xla": ("attention_jax", {"implementation": "xla"}),
}
#: Those that need not be there, or take a case.
OPTIONAL = ("jax_cudnn", "jax_xla")
#: What XLA's scores may take; it keeps them.
_SCORE_BYTES = 4 << 30


def cases(session: Session) -> list[dict[str, Any]]:
    """Forward, and forward with gradients."""
    # A library takes no memory in advance: several share the device.
    session.environment["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    return attention_cases(session.small)


def measure_case(session: Session, case: dict[str, Any]) -> list[Row]:
    """Check that the libraries do the same, and time them in turns."""
    scores = 4 * case["batch"] * case["heads"] * case["queries"] * case["keys"]
    tasks: dict[str, RemoteTask] = {}
    reasons: list[str] = []
    for name, (module, options) in PEERS.items():
        if name == "jax_xla" and scores > _SCORE_BYTES:
            continue
        try:
            tasks[name] = session.worker(module).open({**case, **options})
        except BenchmarkError as error:
            if name not in OPTIONAL:
                raise
            reasons.append(f"{name}: {str(error).strip().splitlines()[-1][:120]}")
    results = {name: task.results() for name, task in tasks.items()}
    check_agreement(results, TOLERANCE[case["dtype"]])
    del results
    measurement = measure(tasks, session.settings)
    facts = tasks["torch"].facts()
    for task in tasks.values():
        task.close()
    return [
        {
            "case": case["case"],
            **measurement.medians("ms"),
            "spread_pct": measurement.spread_pct(),
            **facts,
            "missing": "; ".join(reasons),
        }
    ]


PARTS = (
    Part(
        "attention",
        "attention_gpu",
        "Scaled dot-product attention on the GPU",
        cases,
        measure_case,
        at_least(1.0),
    ),
)

if __name__ == "__main__":
    sys.exit(main("Compare attention on a GPU.", PARTS, environment))

"""Run the seeds that ``python -m tests.networks -n 16`` has put into the environment.

pytest collects this file only by its name.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.networks.examine import examine

__all__ = ["CHUNK", "REPORTS", "SEEDS"]

#: Environment variables: device and seeds, such as ``cuda:0:2000``, and a folder for reports.
SEEDS, REPORTS = "DNNOPS_TEST_NETWORKS", "DNNOPS_TEST_NETWORKS_REPORTS"
#: Seeds of a test, which runs in one process.
CHUNK = 10

_device, _first, _last = os.environ.get(SEEDS, "cpu:0:1").split(":")
_CHUNKS = [range(i, min(i + CHUNK, int(_last))) for i in range(int(_first), int(_last), CHUNK)]


@pytest.mark.parametrize("seeds", _CHUNKS, ids=str)
def test_given_seeds(seeds):
    """Write a report for each seed; the command reads them, and says what failed."""
    path = Path(os.environ[REPORTS], f"{seeds.start}.jsonl")
    for seed in seeds:
        report = examine(seed, _device)
        with path.open("a") as file:
            file.write(json.dumps(asdict(report), default=float) + "\n")

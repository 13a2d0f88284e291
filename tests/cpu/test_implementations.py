"""oneDNN never runs a reference implementation, which is many times slower than a loop."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.oracle import SEED, repeat_command


def implementations(count: int) -> set[str]:
    """Return the primitives and implementations that some random cases run."""
    command = [sys.executable, "-m", "tests.cpu.implementations_run", str(SEED), str(count)]
    environment = {**os.environ, "ONEDNN_VERBOSE": "profile_exec"}
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout[-300:] + found.stderr[-2000:]
    fields = [line.split(",") for line in found.stdout.splitlines() if ",exec,cpu," in line]
    starts = [line.index("cpu") + 1 for line in fields]
    return {
        ",".join((*line[at : at + 2], line[-2])) for line, at in zip(fields, starts, strict=True)
    }


@pytest.mark.parametrize("count", [30, pytest.param(500, marks=pytest.mark.slow)])
def test_no_reference_implementation(count):
    found = implementations(count)
    assert {"pooling", "convolution"} <= {line.split(",")[0] for line in found}
    slow = sorted(line for line in found if line.split(",")[1].startswith("ref"))
    assert not slow, f"{slow[:20]}; {repeat_command()}"

"""The seed of random cases: given, random, or of the commit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.oracle import seed_of_commit

ROOT = Path(__file__).parents[2]


def seeds(*values: str | None) -> list[int]:
    """Return the seeds of one process after another value each of DNNOPS_TEST_SEED."""
    environment = {k: v for k, v in os.environ.items() if k != "DNNOPS_TEST_SEED"}
    program = "import importlib, os\nfrom tests import oracle\n"
    for value in values:
        if value is not None:
            program += f"os.environ['DNNOPS_TEST_SEED'] = {value!r}\n"
        program += "print(importlib.reload(oracle).SEED)\n"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [int(line) for line in done.stdout.split()[-len(values) :]]


def test_seed():
    given, first, second = seeds("123", "random", "random")
    assert given == 123
    assert first != second


@pytest.mark.needs("git")
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="an unpacked source distribution")
def test_seed_of_commit():
    assert seeds(None) == [seed_of_commit()] != [0]

"""The seed of random cases: given, random, or of the commit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.oracle import seed_of_commit

ROOT = Path(__file__).parents[1]


def seed(value: str | None) -> int:
    """Return the seed of a process whose environment has this DNNOPS_TEST_SEED."""
    environment = {k: v for k, v in os.environ.items() if k != "DNNOPS_TEST_SEED"}
    if value is not None:
        environment["DNNOPS_TEST_SEED"] = value
    program = "from tests.oracle import SEED; print(SEED)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout.split()[-1])


def test_seed():
    assert seed("123") == 123
    assert seed("random") != seed("random")


@pytest.mark.needs("git")
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="an unpacked source distribution")
def test_seed_of_commit():
    assert seed(None) == seed_of_commit() > 0

"""The mechanism that runs libraries of Theano's time, on a library of three tests."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.theano.suites.suite import Suite, run_tests, suite

TESTS = """
import unittest
from nose.plugins.skip import SkipTest
import numpy as np
import theano

def test_right():
    assert theano.tensor.constant(np.float(2)).eval() == 2

def test_wrong():
    assert theano.version.version == "0.1"

def test_skipped():
    raise SkipTest("no GPU")
"""


@pytest.mark.parametrize("name", ["lasagne", "keras", "theano", "tutorials"])
def test_files_of_suites(name: str):
    one = suite(name)
    assert one.copied
    re.compile(one.skipped)
    for row in one.replaced:
        assert set(row) <= {"files", "old", "new", "why"}
        assert row["why"]
        re.compile(row["old"])
    listed = [test for tests in one.excluded.values() for test in tests]
    assert len(listed) == len(set(listed))


def test_outcomes(tmp_path: Path):
    source = tmp_path / "source"
    source.mkdir()
    (source / "test_of_theano.py").write_text(TESTS)
    one = Suite(
        source=str(source),
        copied={"": "tests"},
        tests=("tests",),
        skipped="no GPU",
        replaced=({"old": r"np\.float\b", "new": "float", "why": "NumPy 1.24 dropped it"},),
        excluded={"asserts a version": ("tests.test_of_theano.test_w*",)},
    )
    results = run_tests(one, tmp_path / "run", flags="mode=FAST_COMPILE")
    assert str(results).endswith("1 passed, 1 failed, 1 skipped"), results.output
    assert list(results.surprises()) == []
    results.of = replace(one, skipped="no compiler", excluded={"old": (min(results.passed),)})
    assert list(results.surprises()) == [
        "failed: tests.test_of_theano.test_wrong",
        "passed, although it is excluded (old): tests.test_of_theano.test_right",
        "skipped (no GPU): tests.test_of_theano.test_skipped",
    ]
    with pytest.raises(ValueError, match="nothing to replace"):
        replace(one, replaced=({"old": "absent", "new": ""},)).copy(tmp_path / "again")

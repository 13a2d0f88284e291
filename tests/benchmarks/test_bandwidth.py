"""The benchmark of bandwidth, with small arrays."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import bandwidth
from benchmarks.bandwidth import CASES, GOALS


def test_cases():
    assert len({case.name for case in CASES}) == len(CASES)
    assert {case.kind for case in CASES} == set(GOALS)


@pytest.mark.gpu
@pytest.mark.needs("torch")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_calls_agree(case, monkeypatch):
    """dnnops and PyTorch compute the same, and the bytes are those of the arrays."""
    monkeypatch.setattr(bandwidth, "NBYTES", 1 << 22)
    monkeypatch.setattr(bandwidth, "IMAGES", (4, 64, 64, 64))
    g = bandwidth.Gpu()
    ours, torch, nbytes = case.prepare(g)
    found, expected = ours(), torch()
    read = 1 << 22 if case.kind == "reduction" else nbytes - found.nbytes
    assert nbytes == read + (found.nbytes if case.kind == "elementwise" else 0)
    tolerance = 2e-3 if "float16" in case.name else 1e-5
    scale = np.abs(expected.cpu().numpy().astype("float64")).max()
    np.testing.assert_allclose(found.get(), expected.cpu().numpy(), atol=tolerance * scale, rtol=0)

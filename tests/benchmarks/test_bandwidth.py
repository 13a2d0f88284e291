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
    from benchmarks.kernels_gpu import Gpu

    g = Gpu()
    values, arrays = g.values, []

    def recorded(*words):
        arrays.append(values(*words))
        return arrays[-1]

    monkeypatch.setattr(g, "values", recorded)
    ours, torch, nbytes = case.prepare(g)
    found, expected = ours(), torch()
    written = found.nbytes if case.kind == "elementwise" else 0
    # A bias is too small to count.
    assert nbytes == written + sum(x.nbytes for x in arrays if x.nbytes >= 1 << 22)
    tolerance = 2e-3 if "float16" in case.name else 1e-5
    scale = np.abs(expected.cpu().numpy().astype("float64")).max()
    np.testing.assert_allclose(found.get(), expected.cpu().numpy(), atol=tolerance * scale, rtol=0)

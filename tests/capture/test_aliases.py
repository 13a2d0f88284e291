"""Whether arrays share memory; needs no device."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from numpy.lib.array_utils import byte_bounds

from dnnops.capture.aliases import is_same, overlaps, require_apart
from dnnops.errors import DnnNotSupportedError
from tests.gpuarray.fake_devices import FakeDevices


@pytest.fixture
def block(monkeypatch: pytest.MonkeyPatch):
    fake = FakeDevices()
    monkeypatch.setattr(fake, "byte_bounds", byte_bounds, raising=False)
    monkeypatch.setitem(sys.modules, "cupy", fake)
    return fake.array(np.arange(12.0))


def test_the_same_elements(block):
    assert is_same(block, block)
    assert is_same(block[2:5], block[2:5])
    assert not is_same(block[2:5], block[3:6])
    assert not is_same(block[:4].reshape(2, 2), block[:4])
    assert not is_same(block[:3], block[:6:2])
    assert not is_same(block, block.view("int64"))


def test_ranges_that_overlap(block):
    assert overlaps(block[2:5], [block[8:], block[4:6]])
    assert overlaps(block[4:6], [block[2:5]])
    assert overlaps(block[3:4], [block])
    assert overlaps(block[::-1][:2], [block[10:]])
    assert not overlaps(block[2:5], [block[5:], block[:2]])
    assert not overlaps(block[5:], [block[2:5]])
    assert not overlaps(block[3:3], [block])
    assert not overlaps(block, [])


def test_arrays_that_must_be_apart(block):
    require_apart([block[8:], block[:4], block[4:8], block[5:5]])
    require_apart([])
    for arrays in ([block[4:], block[:5]], [block, block], [block, block[3:4]]):
        with pytest.raises(DnnNotSupportedError, match="two shared variables share memory"):
            require_apart(arrays)

"""Attention on a GPU with scores for which cuDNN's engines are wrong, unless faults are avoided."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tests.gpu.attention.attention_on_gpu import (
    Data,
    Form,
    GradientByCudnn,
    errors,
    run_on_gpu,
    run_without_stats,
)
from tests.gpu.device import poison

pytestmark = pytest.mark.gpu


def assert_right(form):
    data = Data(form, 0)
    poison()
    found = errors(data, run_on_gpu(data, GradientByCudnn))
    assert {name: error for name, error in found.items() if not error <= 1} == {}, form


@pytest.mark.parametrize("offset", [-125.0, -1000.0, 1000.0])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("keys", [64, 192, 320])
def test_half_a_tile_of_keys(keys, dtype, offset):
    form = Form(dtype, lengths=(keys, keys), offset=offset)
    assert_right(form)
    assert_right(dataclasses.replace(form, lengths=(17, keys), depths=(128, 128)))
    assert_right(dataclasses.replace(form, mask="bool", heads=(4, 2)))
    assert_right(dataclasses.replace(form, mask="float", is_causal=True))


@pytest.mark.parametrize("is_deterministic", [False, True])
@pytest.mark.parametrize("keys", [64, 128, 192, 1000])
def test_one_query(keys, is_deterministic):
    form = Form(batch=1, lengths=(1, keys), offset=-125.0, is_deterministic=is_deterministic)
    assert_right(form)
    assert_right(dataclasses.replace(form, mask="bool", depths=(80, 64)))
    assert_right(dataclasses.replace(form, dtype="bfloat16", offset=-1000.0))


@pytest.mark.parametrize("heads", [(4, 4), (4, 1)])
@pytest.mark.parametrize("mask", [None, "bool"])
def test_one_score(mask, heads):
    assert_right(Form(lengths=(1, 1), heads=heads, mask=mask, offset=-125.0))
    assert_right(Form(lengths=(1, 1), heads=heads, mask=mask, mask_ones=(0,), offset=-125.0))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_masked_keys_with_the_largest_scores(dtype):
    """A finite bias would not hide them."""
    data = Data(Form(dtype, lengths=(150, 200), mask="bool"), 0)
    data.given["key"][:, :, ::3] *= 1e4
    data.given["mask"][:] = np.arange(200) % 3 != 0
    found = errors(data, [run_without_stats(data), *data.expected()[1:]])
    assert found["out"] <= 1

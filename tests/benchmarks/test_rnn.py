"""The benchmark of recurrent networks: its cases, data and goals."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.rnn import gpu_misses
from benchmarks.rnn_data import cpu_cases, gpu_cases, parameter_shapes, rnn_arrays
from dnnops.nnet import RNNBlock


def test_cases():
    cases = gpu_cases()
    assert len({case["case"] for case in cases}) == len(cases)
    for name, values in (("hidden", {512, 1024}), ("dtype", {"float16", "float32"})):
        assert {case[name] for case in cases} == values
    assert {case["batch"] for case in cases} >= {32, 256}
    assert {case["steps"] for case in cases} >= {50, 200}
    assert {case["layers"] for case in cases} >= {1, 2, 4}
    assert any(case["jax"] for case in cases)
    assert not any(case["jax"] for case in cpu_cases())


@pytest.mark.parametrize("case", gpu_cases(small=True)[:3], ids=lambda case: case["case"])
def test_data(case):
    block = RNNBlock("float32", case["hidden"], case["layers"], case["mode"])
    w, x, gy = rnn_arrays(case)
    assert w.size == block.get_param_size(case["hidden"])
    assert w.size == sum(int(np.prod(s)) for s in parameter_shapes(case))
    assert x.shape == gy.shape == (case["steps"], case["batch"], case["hidden"])
    np.testing.assert_array_equal(rnn_arrays(case).x, x)


def test_goals():
    row = {"case": "a", "dnnops_ms": 1.0, "torch_ms": 1.1}
    row |= {"dnnops_peak_mib": 10.0, "torch_peak_mib": 10.0}
    assert gpu_misses([row, row]) == []
    (slower, mean) = gpu_misses([{**row, "torch_ms": 0.9}, row])
    assert "a: 0.90 times as fast as torch" in slower
    assert "geometric mean" in mean
    (memory,) = gpu_misses([{**row, "dnnops_peak_mib": 12.0}])
    assert memory == "a: 12.0 MiB, torch 10.0 MiB"

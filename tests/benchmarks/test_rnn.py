"""Test the benchmark of recurrent networks: cases, data and goals."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from benchmarks.harness import Settings
from benchmarks.rnn import fitted, gpu_misses
from benchmarks.rnn_data import ALGORITHMS, cpu_cases, gpu_cases, parameter_shapes, rnn_arrays
from dnnops.nnet import RNNBlock
from dnnops.nnet.rnn.op import RNN_ALGORITHMS


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
    assert ALGORITHMS == RNN_ALGORITHMS


@pytest.mark.parametrize("case", gpu_cases(small=True)[:3], ids=lambda case: case["case"])
def test_data(case):
    block = RNNBlock("float32", case["hidden"], case["layers"], case["mode"])
    w, x, gy = rnn_arrays(case)
    assert w.size == block.get_param_size(case["hidden"])
    assert w.size == sum(int(np.prod(s)) for s in parameter_shapes(case))
    assert x.shape == gy.shape == (case["steps"], case["batch"], case["hidden"])
    np.testing.assert_array_equal(rnn_arrays(case).x, x)


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["lstm", "gru"])
def test_a_closed_case_keeps_no_memory(mode):
    """The function stays, and memory that it keeps would count as that of other networks."""
    import cupy

    from benchmarks.peers import rnn_dnnops

    # The gradient with respect to the parameters is too large to be kept; states are not.
    case = {"mode": mode, "hidden": 256, "layers": 2, "batch": 128, "steps": 3, "dtype": "float32"}
    pool = cupy.get_default_memory_pool()
    used = []
    for _ in range(3):
        task = rnn_dnnops.make_task({**case, "case": "", "device": "cuda"})
        task.times(3)
        task.close()
        used.append(pool.used_bytes())
    state = 2 * 128 * 256 * 4
    assert used[1] == used[2], f"grows: {used}"
    # Compare with the memory after the function's nodes are gone, too.
    del task
    rnn_dnnops._functions.clear()
    gc.collect()
    assert used[2] - pool.used_bytes() < state / 4, f"{used}, at last {pool.used_bytes()}"


def test_turns_fit_the_steps():
    """A case takes a few seconds, but at least two steps per turn."""
    for step_s in (1e-4, 1e-3, 1e-2, 0.06, 0.3):
        settings = fitted(Settings(), step_s)
        assert settings.turn_s >= min(0.4, 2 * step_s)
        assert 3 <= settings.rounds <= 7
        assert 2 * settings.rounds * (settings.turn_s + step_s) <= max(1, 20 * step_s)


def test_goals():
    row = {"case": "a", "dnnops_ms": 1.0, "torch_ms": 1.1}
    row |= {"dnnops_peak_mib": 10.0, "torch_peak_mib": 10.0}
    assert gpu_misses([row, row]) == []
    (slower, mean) = gpu_misses([{**row, "torch_ms": 0.9}, row])
    assert "a: 0.90 times as fast as torch" in slower
    assert "geometric mean" in mean
    (memory,) = gpu_misses([{**row, "dnnops_peak_mib": 12.0}])
    assert memory == "a: 12.0 MiB, torch 10.0 MiB"

"""Test the GPU benchmark of batch normalization, without a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor
import pytest

from benchmarks.harness import check_agreement
from benchmarks.norm_data import EPSILON, gpu_cases
from benchmarks.peers.gated import ArrayTask
from benchmarks.peers.norm_gpu_dnnops import training_step
from benchmarks.peers.norm_turns import CALLS, SEEDS, NormTask
from tests.needs import missing
from tests.rewriting.gpu.test_to_cudnn import nodes, rewritten


class InNumpy(NormTask, ArrayTask):
    """Compute the reference as an expression, with channels second."""

    device = "cpu"

    def run(self) -> Any:
        axes = tuple(i for i in range(len(self.shape)) if i != 1)
        along = tuple(self.channels if i == 1 else 1 for i in range(len(self.shape)))
        order = (0, len(self.shape) - 1, *range(1, len(self.shape) - 1))
        x, top = (
            self.flat(self.count, SEEDS[name], self.dtype)
            .reshape(self.physical_shape)
            .transpose(order if self.is_channels_last else range(len(order)))
            for name in ("x", "top")
        )
        gamma, beta = (
            self.flat(self.channels, SEEDS[name], "float32").reshape(along)
            for name in ("gamma", "beta")
        )
        invstd = 1 / np.sqrt(x.var(axes, keepdims=True) + EPSILON)
        normal = (x - x.mean(axes, keepdims=True)) * invstd
        dgamma, dbeta = ((top * a).sum(axes, keepdims=True) for a in (normal, 1))
        count = self.count / self.channels
        dx = gamma * invstd * (top - dbeta / count - normal * dgamma / count)
        return normal * gamma + beta, dx, dgamma, dbeta

    def results(self) -> dict[str, np.ndarray]:
        out, dx, dgamma, dbeta = self.run()
        if self.is_channels_last:
            out, dx = (np.moveaxis(a, 1, -1) for a in (out, dx))
        found = {"out": np.array(self.sketch(out)), "dx": np.array(self.sketch(dx))}
        return {**found, "dgamma": dgamma.ravel(), "dbeta": dbeta.ravel()}


@pytest.mark.needs("torch or jax")
@pytest.mark.parametrize("case", gpu_cases(small=True)[:2], ids=lambda case: case["case"])
def test_peers_compute_the_same(case, timer, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    given = {**case, "timer": timer}
    tasks: dict[str, NormTask] = {"numpy": InNumpy(given)}
    if not missing("torch"):
        from benchmarks.peers import norm_gpu_torch

        monkeypatch.setattr(norm_gpu_torch.Normalization, "device", "cpu")
        tasks["torch"] = norm_gpu_torch.make_task(given)
    if not missing("jax"):
        from benchmarks.peers import norm_gpu_jax

        known = norm_gpu_jax.make_timer_known
        monkeypatch.setattr(norm_gpu_jax, "make_timer_known", lambda path, _: known(path, "cpu"))
        tasks["jax"] = norm_gpu_jax.make_task(given)
    check_agreement({name: task.results() for name, task in tasks.items()}, 1e-4)
    for task in tasks.values():
        assert task.calls == CALLS
        assert min(task.times(3)) > 0
        assert task.facts() == {"waits": 0}
        task.close()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_graphs_run_on_the_device(dtype):
    shape = (4, 16, 8, 8)
    inputs, outputs = training_step(shape, dtype)
    assert [v.type.dtype for v in outputs] == [dtype, dtype, "float32", "float32"]
    with pytensor.config.change_flags(dnn__enabled="no_check"):
        fgraph = rewritten(inputs, outputs)
    assert len(nodes(fgraph, "GpuDnnBatchNorm")) == len(nodes(fgraph, "GpuDnnBatchNormGrad")) == 1
    assert not nodes(fgraph, "HostFromGpu")

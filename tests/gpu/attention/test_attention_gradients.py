"""Gradients of attention on a GPU: dnnops' kernel for short sequences, cuDNN for others."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest

from dnnops.errors import DnnNotSupportedError
from dnnops.runtime.build import c_code_dir
from tests.gpu.attention.attention_on_gpu import (
    Data,
    Form,
    GradientByCudnn,
    GradientByKernel,
    apply_all,
    errors,
    random_form,
    run_on_gpu,
    uniform_operands,
)
from tests.gpu.device import host, on_gpu, poison
from tests.oracle import SEED, repeat_command

pytestmark = pytest.mark.gpu

#: Samples from PyTorch's operator tests; three dimensions mean one head.
SAMPLES = [
    Form(batch=4, heads=(4, 4), lengths=(3, 6), depths=(8, 8)),
    Form(batch=4, heads=(1, 1), lengths=(3, 6), depths=(8, 8)),
    Form(batch=4, heads=(4, 4), lengths=(3, 6), depths=(8, 8), is_causal=True),
    Form(batch=4, heads=(4, 4), lengths=(3, 6), depths=(8, 16)),
    Form(batch=4, heads=(4, 4), lengths=(3, 6), depths=(8, 8), mask="float", mask_ones=(0, 1)),
    Form(batch=4, heads=(4, 4), lengths=(3, 6), depths=(8, 8), mask="bool", mask_ones=(0, 1)),
    Form(batch=4, heads=(4, 2), lengths=(3, 6), depths=(8, 8)),
]

_SOURCE = c_code_dir() / "gpu/attention/attention_grad_kernel.cpp"


def _most_scores() -> int:
    """Return the number of scores up to which the kernel computes gradients."""
    (found,) = re.findall(r"MOST_SCORES = (\d+) \* (\d+);", _SOURCE.read_text())
    return int(found[0]) * int(found[1])


def relative_errors(data: Data, results: list) -> list[float]:
    """Return ``||difference|| / ||reference||`` of the three gradients."""
    pairs = zip(results[2:], data.expected()[2:], strict=True)
    return [float(np.linalg.norm(host(a) - b) / np.linalg.norm(b)) for a, b in pairs]


@pytest.mark.parametrize("form", SAMPLES, ids=str)
def test_operator_samples(form):
    """Scores are about 100, so a rounded output or weight causes errors of 1e-3 and more."""
    for seed in range(10):
        data = uniform_operands(Data(form, seed), 9)
        poison()
        found = relative_errors(data, run_on_gpu(data))
        assert max(found) <= 4e-4, f"{form}, seed {seed}: {found}; {repeat_command()}"


@pytest.mark.parametrize("length", [16, 60, 64])
@pytest.mark.parametrize("depth", [20, 64, 128])
def test_large_scores(length, depth):
    data = uniform_operands(Data(Form(lengths=(length, length), depths=(depth, depth)), 0), 9)
    found = relative_errors(data, run_on_gpu(data, GradientByKernel))
    assert max(found) <= 4e-4, f"{length} keys of depth {depth}: {found}"


@pytest.mark.parametrize("number", range(6))
def test_random(number):
    """Compare the kernel with the oracle and cuDNN."""
    rng = np.random.default_rng([SEED, number, 99])
    for i in range(8):
        form = random_form(rng)
        lengths = tuple(int(n) for n in rng.integers(1, (180, 65)))
        form = dataclasses.replace(
            form, lengths=lengths, depths=tuple(min(d, 128) for d in form.depths)
        )
        data = Data(form, int(rng.integers(2**32)))
        poison()
        results = run_on_gpu(data, GradientByKernel)
        found = errors(data, results)
        assert max(found.values()) <= 1, f"{form}, seed {data.seed}: {found}; {repeat_command()}"
        if i % 2:
            continue
        others = errors(data, run_on_gpu(data, GradientByCudnn))
        for name in ("dquery", "dkey", "dvalue"):
            assert found[name] <= others[name] + 0.2, f"{name} of {form}: {found}, cuDNN {others}"


def _same(a: list, b: list) -> list[bool]:
    return [bool((x == y).all()) for x, y in zip(a[2:], b[2:], strict=True)]


@pytest.mark.parametrize("heads", [(2, 2), (4, 2)])
def test_boundary(heads):
    """The kernel computes gradients up to the bound and cuDNN beyond it; both are right."""
    rows = _most_scores() // 64 // (heads[0] // heads[1])
    for queries in (rows, rows + 1):
        form = Form(heads=heads, lengths=(queries, 64), is_deterministic=True)
        data = Data(form, 0)
        taken = run_on_gpu(data)
        assert max(errors(data, taken).values()) <= 1, queries
        kernel, other = GradientByKernel, GradientByCudnn
        if queries > rows:
            kernel, other = other, kernel
        assert all(_same(taken, run_on_gpu(data, kernel))), f"{queries} queries of {rows}"
        assert not all(_same(taken, run_on_gpu(data, other))), f"{queries} queries of {rows}"


def test_more_keys_than_the_kernel_has_room_for():
    data = Data(Form(lengths=(2, 65)), 0)
    assert max(errors(data, run_on_gpu(data)).values()) <= 1
    with pytest.raises(DnnNotSupportedError, match="64 keys"):
        run_on_gpu(data, GradientByKernel)


def test_repeatable():
    data = Data(Form(heads=(6, 2), lengths=(100, 60), mask="float", is_causal=True), 1)
    first = run_on_gpu(data, GradientByKernel)
    for _ in range(5):
        poison()
        assert all(_same(first, run_on_gpu(data, GradientByKernel)))


def test_capture():
    """A kernel captured as a CUDA graph computes with the current operands."""
    import cupy

    form = Form(lengths=(40, 50), query_lengths=True, key_lengths=True, mask="bool")
    data, other = Data(form, 0), Data(form, 1)
    op = GradientByKernel(form.scale, form.is_causal, form.optional)

    def operands(of: Data) -> list:
        out, stats = of.expected()[:2]
        given = [on_gpu(out, form.dtype), on_gpu(stats, "float32"), on_gpu(of.gout, form.dtype)]
        return [*of.on_device(), *given]

    arrays = operands(data)
    stream = cupy.cuda.Stream(non_blocking=True)
    apply_all(op, *arrays)
    cupy.cuda.Device().synchronize()
    with stream:
        kept = apply_all(op, *arrays)
        stream.begin_capture()
        found = apply_all(op, *arrays)
        graph = stream.end_capture()
        for target, source in zip(arrays, operands(other), strict=True):
            target[...] = source
        graph.launch(stream)
    stream.synchronize()
    del kept
    for got, wanted in zip(found, other.expected()[2:], strict=True):
        assert np.linalg.norm(host(got) - wanted) <= 2e-3 * np.linalg.norm(wanted)

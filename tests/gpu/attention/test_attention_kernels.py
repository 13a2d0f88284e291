"""The kernels around cuDNN's attention, run on the host and compiled for a GPU."""

from __future__ import annotations

import numpy as np
import pytest

from dnnops.gpu.kernels import kernel_source
from tests.emulation.host_attention import HostKernels
from tests.emulation.nvrtc import compile_cuda


@pytest.fixture(scope="module")
def kernels(tmp_path_factory) -> dict[int, HostKernels]:
    directory = tmp_path_factory.mktemp("attention")
    return {width: HostKernels(directory, width) for width in (1, 2)}


@pytest.mark.parametrize("in_memory", [False, True])
@pytest.mark.parametrize("given", [(True, True), (True, False), (False, True), (False, False)])
def test_lengths(kernels, given, in_memory):
    queries = np.array([0, 3, 9, -1, 4, 5])
    keys = np.array([2, 0, 7, 5, 90, 1])
    inner_queries, inner_keys, rows, columns = (np.full(6, -7, np.int32) for _ in range(4))
    random = np.zeros(2, np.int64)
    kernels[1].run(
        "lengths",
        blocks=1,
        threads=4,
        queries=queries if given[0] else None,
        keys=keys if given[1] else None,
        batch=6,
        max_queries=5,
        max_keys=8,
        seed=0 if in_memory else 123456789012345,
        offset=0 if in_memory else -1,
        inner_queries=inner_queries,
        inner_keys=inner_keys,
        rows=rows,
        columns=columns,
        random=random,
        state=np.array([123456789012345, -1]) if in_memory else None,
    )
    wanted_keys = keys.clip(0, 8) if given[1] else np.full(6, 8)
    wanted_rows = np.where(wanted_keys > 0, queries.clip(0, 5) if given[0] else 5, 0)
    np.testing.assert_array_equal(rows, wanted_rows)
    np.testing.assert_array_equal(columns, wanted_keys)
    np.testing.assert_array_equal(inner_queries, np.maximum(wanted_rows, 1))
    np.testing.assert_array_equal(inner_keys, np.maximum(wanted_keys, 1))
    assert random.tolist() == [123456789012345, -1]


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_mask(kernels, width, is_causal, seed):
    rng = np.random.default_rng(seed)
    batch, heads, queries, keys = (int(n) for n in rng.integers(1, 5, 4))
    ones = rng.random(4) < 0.3
    shape = [1 if one else n for one, n in zip(ones, (batch, heads, queries, keys), strict=True)]
    if width == 1:
        mask = rng.random(shape) < 0.4
        wanted = np.where(mask, 0.0, -np.inf)
    else:
        mask = rng.standard_normal(shape).astype(np.float16)
        mask[rng.random(shape) < 0.5] = -np.inf
        wanted = mask
    counts = mask if width == 1 else mask > -np.inf
    columns = rng.integers(0, keys + 1, batch).astype(np.int32) if seed % 2 else None
    all_batches = batch if columns is not None else shape[0]
    bias = np.full((shape[0], shape[1], queries, keys + 3), 7, np.float16)
    visible = np.full((all_batches, shape[1], queries), 9, np.uint8)
    kernels[width].run(
        "mask",
        mask=mask,
        steps=[0 if n == 1 else s for n, s in zip(mask.shape, mask.strides, strict=True)],
        bias=bias,
        visible=visible,
        columns=columns,
        batch=all_batches,
        heads=shape[1],
        queries=queries,
        keys=keys,
        bias_batch=shape[0],
        bias_stride=keys + 3,
        is_causal=is_causal,
    )
    np.testing.assert_array_equal(bias[..., :keys], np.broadcast_to(wanted, bias[..., :keys].shape))
    assert (bias[..., keys:] == 7).all()
    seen = np.broadcast_to(counts, (all_batches, shape[1], queries, keys)).copy()
    if is_causal:
        seen = np.tril(seen)
    for n in range(all_batches if columns is not None else 0):
        seen[n, :, :, columns[n] :] = False
    np.testing.assert_array_equal(visible, seen.any(axis=3))


def test_stats(kernels):
    given = np.array([0, -np.inf, 5, -1000, np.nan, np.inf], np.float32)
    result = np.zeros(6, np.float32)
    kernels[1].run("stats", **{"from": given, "to": result, "count": 6})
    np.testing.assert_array_equal(result, np.where(given == -np.inf, np.float32(1e30), given))


@pytest.mark.parametrize("negates", [False, True])
@pytest.mark.parametrize("back", [False, True])
def test_copy(kernels, back, negates):
    rng = np.random.default_rng(0)
    wide = rng.standard_normal((2, 5, 3, 40)).astype(np.float16)
    outer = wide[:, :, 1:, 3:23].transpose(0, 2, 1, 3)  # heads before rows
    inner = np.full((2, 2, 6, 24), 7, np.float16)
    if back:
        inner[:] = rng.standard_normal(inner.shape)
    source, target = (inner, outer) if back else (outer, inner)
    before = wide.copy()
    kernels[1].run(
        "copy",
        **{"from": source, "to": target},
        sizes=target.shape,
        rows=5,
        columns=20,
        from_steps=[s // 2 for s in source.strides[:3]],
        to_steps=[s // 2 for s in target.strides[:3]],
        negates=int(negates),
    )
    sign = np.float16(-1 if negates else 1)
    if back:
        np.testing.assert_array_equal(outer, sign * inner[:, :, :5, :20])
        wide[:, :, 1:, 3:23] = before[:, :, 1:, 3:23]
        np.testing.assert_array_equal(wide, before)
    else:
        np.testing.assert_array_equal(inner[:, :, :5, :20], sign * outer)
        assert not inner[:, :, 5:].any()
        assert not inner[:, :, :, 20:].any()


@pytest.mark.parametrize("lengths", [None, [0, 4, 2]])
@pytest.mark.parametrize("visible_shape", [None, (1, 1, 4), (3, 1, 4), (1, 2, 4), (3, 2, 4)])
@pytest.mark.parametrize("hides_all", [False, True])
@pytest.mark.parametrize("with_stats", [False, True])
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3)])
def test_hide(kernels, lengths, visible_shape, hides_all, with_stats, order):
    rng = np.random.default_rng(1)
    sizes = [(3, 2, 4, 5)[axis] for axis in order]
    array = rng.standard_normal(sizes).astype(np.float16).transpose(order)
    stats = rng.standard_normal((3, 2, 4)).astype(np.float32)
    visible = None if visible_shape is None else (rng.random(visible_shape) < 0.5).astype(np.uint8)
    vector = None if lengths is None else np.array(lengths, np.int32)
    hidden = np.full((3, 2, 4), hides_all)
    if vector is not None:
        hidden |= np.arange(4) >= vector[:, None, None]
    if visible is not None:
        hidden |= visible == 0
    wanted = np.where(hidden[..., None], 0, array), np.where(hidden, -np.inf, stats)
    kernels[1].run(
        "hide",
        array=array,
        stats=stats if with_stats else None,
        lengths=vector,
        visible=visible,
        batch=3,
        heads=2,
        rows=4,
        columns=5,
        steps=[step // 2 for step in array.strides[:3]],
        visible_batch=visible_shape[0] if visible_shape else 1,
        visible_heads=visible_shape[1] if visible_shape else 1,
        hides_all=hides_all,
    )
    np.testing.assert_array_equal(array, wanted[0])
    if with_stats:
        np.testing.assert_array_equal(stats, wanted[1])


@pytest.mark.needs("nvrtc")
@pytest.mark.parametrize("width", [1, 2])
def test_compiles_for_a_gpu(width):
    macros = (f"-DMASK_WIDTH={width}", "-DMINUS_INFINITY=0xff80", "-DHIDDEN=0xff80")
    code = compile_cuda(kernel_source("attention"), *macros).code
    for kernel in code.split(".visible .entry ")[1:]:
        wait, load, store = map(kernel.find, ("griddepcontrol.wait", "ld.global", "st.global"))
        assert 0 < wait < min(x for x in (load, store) if x > 0)

"""Run the kernels of float32 attention on the host."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pytensor import config

from dnnops.gpu.kernels import kernel_source
from tests.emulation.host_kernels import launch_struct, with_host_cuda
from tests.gpu.attention.attention_on_gpu import Data, Form
from tests.host_libraries import compile_once

_ENTRY = """
extern "C" int run(const AttentionTilesParams *p, unsigned blocks, unsigned seed) {
  return run_grid(attention_KERNEL, *p, blocks, THREADS, SHARED_BYTES, seed);
}
"""
KERNELS = ("out", "dquery", "dkey")


@dataclass(frozen=True)
class Tiles:
    """The constants with which a kernel is compiled."""

    warps: int = 2
    tiles: int = 1
    columns: int = 16
    stages: int = 2
    hold: int = 1
    least_blocks: int = 1
    depth: int = 32
    value_depth: int = 32
    aligned: int = 1
    split: int = 0
    mask: int = 0

    @property
    def macros(self) -> dict[str, int]:
        return {name.upper(): value for name, value in vars(self).items()}

    @property
    def rows(self) -> int:
        return 16 * self.tiles * self.warps


class HostTiles:
    """The three kernels, compiled with the same constants."""

    def __init__(self, folder: Path, tiles: Tiles):
        self.tiles = tiles
        macros = [f"-D{name}={value}" for name, value in tiles.macros.items()]
        self._libraries = {}
        for kernel in KERNELS:
            source = kernel_source(f"attention_{kernel}").replace(
                "extern __shared__ uint4 shared[];", "uint4 *const shared = Block::dynamic.data();"
            )
            name = "_".join([kernel, *map(str, tiles.macros.values())])
            entry = _ENTRY.replace("KERNEL", kernel)
            (folder / f"{name}.cpp").write_text(f'#include "host_cuda.hpp"\n{source}\n{entry}')
            command = [config.cxx, "-std=c++17", "-O1", "-shared", "-fPIC", "-w", *macros]
            command += ["-fsanitize=alignment", "-fsanitize-undefined-trap-on-error"]
            command += [f"-I{Path(__file__).parent}", "-o", f"{name}.so", f"{name}.cpp"]
            compile_once(with_host_cuda(command), folder)
            self._libraries[kernel] = ctypes.CDLL(str(folder / f"{name}.so"))

    def run(self, data: Data, seed: int = 0) -> list[np.ndarray]:
        """Return the output, the statistics and the gradients; all arrays start as NaN."""
        form, given = data.form, data.given
        query, key, value, gout = (
            _laid_out(x, form) for x in (given["query"], given["key"], given["value"], data.gout)
        )
        out, dquery, dkey, dvalue = (_filled_like(x) for x in (gout, query, key, value))
        stats = np.full(out.shape[:3], np.nan, np.float32)
        numbers = np.full((3, *stats.shape), np.nan, np.float32)
        arrays = [query, key, value, out, gout, dquery, dkey, dvalue]
        mask = given.get("mask")
        if mask is not None and mask.dtype != bool:
            mask = mask.astype(np.float32)
        words: dict[str, Any] = {f"array_{i}": array for i, array in enumerate(arrays)}
        words |= {"stats": stats, "rows": numbers, "mask": 0 if mask is None else mask}
        for name in ("query_lengths", "key_lengths"):
            words[name] = np.asarray(given[name], np.int64) if name in given else 0
        for i, array in enumerate(arrays):
            words |= {f"step_{i}_{axis}": array.strides[axis] // 4 for axis in range(3)}
        for axis in range(4):
            is_one = mask is None or mask.shape[axis] == 1
            words[f"mask_step_{axis}"] = 0 if is_one else mask.strides[axis] // mask.itemsize
        assert not self.tiles.aligned or all(map(_moves_by_16_bytes, arrays))
        n, heads, queries, depth = query.shape
        key_heads, keys = key.shape[1:3]
        words |= {"heads": heads, "group": heads // key_heads, "queries": queries, "keys": keys}
        words |= {"depth": depth, "value_depth": value.shape[3], "is_causal": form.is_causal}
        words["scale"] = float(depth**-0.5 if form.scale is None else form.scale)
        launch = launch_struct(**words)
        by_queries = -(-queries // self.tiles.rows) * n * heads
        by_keys = -(-keys // self.tiles.rows) * n * key_heads
        for kernel, blocks in zip(KERNELS, (by_queries, by_queries, by_keys), strict=True):
            assert self._libraries[kernel].run(launch, blocks, seed) == 0
        return [out, stats, dquery, dkey, dvalue]


def _laid_out(array: np.ndarray, form: Form) -> np.ndarray:
    """Return a float32 copy with heads innermost, or as part of a wider array of NaN."""
    array = array.astype(np.float32)
    if form.layout == "heads_first":
        return array
    n, heads, rows, depth = array.shape
    wide = np.full((n, rows, heads, depth + 8 * (form.layout == "packed")), np.nan, np.float32)
    wide[..., :depth] = array.transpose(0, 2, 1, 3)
    return wide[..., :depth].transpose(0, 2, 1, 3)


def _filled_like(array: np.ndarray) -> np.ndarray:
    result = np.empty_like(array)
    result.fill(np.nan)
    return result


def _moves_by_16_bytes(array: np.ndarray) -> bool:
    steps = [s for s, n in zip(array.strides[:3], array.shape[:3], strict=True) if n > 1]
    return (
        array.ctypes.data % 16 == 0 and not any(s % 16 for s in steps) and array.shape[3] % 4 == 0
    )

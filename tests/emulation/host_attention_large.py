"""Run the kernels for large scores on the host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.emulation.host_attention_grad import CODES, laid_out, moves_by_16_bytes
from tests.emulation.host_kernels import compile_for_host, launch_struct
from tests.gpu.attention.attention_on_gpu import Data
from tests.gpu.device import bits, values

KERNELS = ("attention_large_dquery", "attention_large_dkey")
ROWS, THREADS = 256, 256  # of a block, as in attention_large_params.hpp


class HostLarge:
    """The kernels, compiled for a dtype and a number of columns."""

    def __init__(self, folder: Path, dtype: str, columns: int):
        self.dtype, self.columns = dtype, columns
        macros = {"DTYPE": CODES[dtype], "MOST_COLUMNS": columns}
        structs = dict.fromkeys(KERNELS, "AttentionLargeParams")
        self._library = compile_for_host(folder, "attention_large", structs, macros)

    def run(self, data: Data, limit: float, seed: int = 0) -> list[np.ndarray]:
        """Return the float64 gradients; what stays as it was is NaN."""
        form, given = data.form, data.given
        assert (form.dtype, max(form.depths) <= self.columns) == (self.dtype, True)
        arrays = [laid_out(given[o], form) for o in ("query", "key", "value")]
        arrays.append(laid_out(data.gout, form))
        nan = 0x7E00 if form.dtype == "float16" else 0x7FC0
        arrays += [np.full(a.shape, nan, np.uint16) for a in arrays[:3]]
        stats = np.ascontiguousarray(data.expected()[1].astype(np.float32))
        numbers = np.full((*stats.shape, 3), np.nan, np.float32)
        mask, width = given.get("mask"), 0
        if mask is not None:
            width = 1 if mask.dtype == bool else 2
            mask = mask if width == 1 else bits(mask, form.dtype)
        words: dict[str, Any] = {f"array_{i}": array for i, array in enumerate(arrays)}
        words |= {"stats": stats, "rows": numbers, "mask": 0 if mask is None else mask}
        for name in ("query_lengths", "key_lengths"):
            words[name] = np.asarray(given[name], np.int64) if name in given else 0
        for i, array in enumerate(arrays):
            words |= {f"step_{i}_{axis}": array.strides[axis] // 2 for axis in range(3)}
        for axis in range(4):
            is_one = mask is None or mask.shape[axis] == 1
            words[f"mask_step_{axis}"] = 0 if is_one else mask.strides[axis]
        n, heads, queries, depth = arrays[0].shape
        shared, keys = arrays[1].shape[1:3]
        words |= {"mask_width": width, "heads": shared, "group": heads // shared}
        words |= {"queries": queries, "keys": keys, "depth": depth}
        words |= {"value_depth": arrays[2].shape[3]}
        words |= {"vectors": all(map(moves_by_16_bytes, arrays[:4])), "is_causal": form.is_causal}
        words["scale"] = float(depth**-0.5 if form.scale is None else form.scale)
        words["limit"] = float(limit)
        launch = launch_struct(**words)
        by_queries = n * shared * -(-heads // shared * queries // ROWS)
        by_keys = n * shared * -(-keys // ROWS)
        for kernel, blocks in zip(KERNELS, (by_queries, by_keys), strict=True):
            assert getattr(self._library, f"run_{kernel}")(launch, blocks, THREADS, seed) == 0
        kind = np.float16 if form.dtype == "float16" else np.uint16
        return [values(a.view(kind), form.dtype) for a in arrays[4:]]

"""Run the kernel of attention's gradient on the host, and compute the expected results."""

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
from tests.gpu.device import bits, values
from tests.host_libraries import compile_once

_ENTRY = """
extern "C" int run(const AttentionGradParams *p, unsigned blocks, unsigned seed) {
  return run_grid(attention_grad, *p, blocks, THREADS, sizeof(shared_arrays), seed);
}
"""
CODES = {"float16": 2, "bfloat16": 3}


@dataclass(frozen=True)
class Sizes:
    """The constants with which the kernel is compiled."""

    dtype: str = "float16"
    warps: int = 4
    keys: int = 16
    queries: int = 16
    depth: int = 16
    value_depth: int = 16

    @property
    def macros(self) -> dict[str, int]:
        names = ("warps", "keys", "queries", "depth", "value_depth")
        sizes = {name.upper(): getattr(self, name) for name in names}
        return {"DTYPE": CODES[self.dtype], **sizes}


class HostGradient:
    """The kernel, compiled for given sizes."""

    def __init__(self, folder: Path, sizes: Sizes):
        source = kernel_source("attention_grad").replace(
            "extern __shared__ uint4 shared[];", "uint4 *const shared = Block::dynamic.data();"
        )
        macros = [f"-D{name}={value}" for name, value in sizes.macros.items()]
        name = "_".join(str(value) for value in sizes.macros.values())
        (folder / f"{name}.cpp").write_text(f'#include "host_cuda.hpp"\n{source}\n{_ENTRY}')
        command = [config.cxx, "-std=c++17", "-O1", "-shared", "-fPIC", "-w", *macros]
        command += ["-fsanitize=alignment", "-fsanitize-undefined-trap-on-error"]
        command += [f"-I{Path(__file__).parent}", "-o", f"{name}.so", f"{name}.cpp"]
        compile_once(with_host_cuda(command), folder)
        self.sizes = sizes
        self._library = ctypes.CDLL(str(folder / f"{name}.so"))

    def run(self, data: Data, vectors: bool = True, seed: int = 0) -> list[np.ndarray]:
        """Return the float64 gradients of query, key and value; the output arrays start as NaN."""
        form = data.form
        given = data.given
        assert form.dtype == self.sizes.dtype
        arrays = [laid_out(given[o], form) for o in ("query", "key", "value")]
        arrays.append(laid_out(data.gout, form))
        arrays += [
            np.full(a.shape, 0x7E00 if form.dtype == "float16" else 0x7FC0, np.uint16)
            for a in arrays[:3]
        ]
        mask = given.get("mask")
        width = 0
        if mask is not None:
            width = 1 if mask.dtype == bool else 2
            mask = mask if width == 1 else bits(mask, form.dtype)
        words: dict[str, Any] = {}
        for i, array in enumerate(arrays):
            words[f"array_{i}"] = array
        words["mask"] = mask if mask is not None else 0
        for name in ("query_lengths", "key_lengths"):
            words[name] = np.asarray(given[name], np.int64) if name in given else 0
        for i, array in enumerate(arrays):
            for axis in range(3):
                words[f"step_{i}_{axis}"] = array.strides[axis] // 2
        for axis in range(4):
            is_one = mask is None or mask.shape[axis] == 1
            words[f"mask_step_{axis}"] = 0 if is_one else mask.strides[axis]
        words["mask_width"] = width
        words["vectors"] = sum(vectors * moves_by_16_bytes(a) << i for i, a in enumerate(arrays))
        n, heads, queries, depth = arrays[0].shape
        words |= {"heads": form.heads[1], "group": heads // form.heads[1]}
        words |= {"queries": queries, "keys": arrays[1].shape[2], "depth": depth}
        words |= {"value_depth": arrays[2].shape[3], "is_causal": form.is_causal}
        words["scale"] = float(depth**-0.5 if form.scale is None else form.scale)
        launch = launch_struct(**words)
        assert self._library.run(launch, n * form.heads[1], seed) == 0
        kind = np.float16 if form.dtype == "float16" else np.uint16
        return [values(a.view(kind), form.dtype) for a in arrays[4:]]


def laid_out(array: np.ndarray, form: Form) -> np.ndarray:
    """Return an array's bits with heads innermost, or as part of a wider array of NaN."""
    typed = bits(array, form.dtype).view(np.uint16)
    if form.layout == "heads_first":
        return np.ascontiguousarray(typed)
    n, heads, rows, depth = array.shape
    wide = np.full((n, rows, heads, depth + 8 * (form.layout == "packed")), 0x7FFF, np.uint16)
    wide[..., :depth] = typed.transpose(0, 2, 1, 3)
    return wide[..., :depth].transpose(0, 2, 1, 3)


def moves_by_16_bytes(array: np.ndarray) -> bool:
    steps = [s for s, n in zip(array.strides[:3], array.shape[:3], strict=True) if n > 1]
    return (
        array.ctypes.data % 16 == 0 and not any(s % 16 for s in steps) and array.shape[3] % 8 == 0
    )


def relative_errors(data: Data, found: list[np.ndarray]) -> list[float]:
    """Return each gradient's ``||difference|| / ||reference||``; NaN results yield NaN."""
    errors = []
    for got, wanted in zip(found, data.expected()[2:], strict=True):
        norm = np.linalg.norm(wanted)
        difference = np.linalg.norm(got - wanted)
        errors.append(float(difference / norm if norm else difference))
    return errors

"""Compile the kernels of the CTC loss for the host, and run them on NumPy arrays."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import numpy as np

from dnnops.cudnn.kernels import kernel_source
from dnnops.gpuarray.dtypes import numpy_dtype
from dnnops.runtime.build import c_code_dir
from dnnops.runtime.op import DTYPE_CODES

KERNELS = ("ctc_normalizers", "ctc_first_half", "ctc_second_half", "ctc_gradients")
_POINTERS = (
    *("activations", "costs", "gradients", "lengths", "begins", "symbols", "links"),
    *("normalizers", "middles", "passes", "rows", "totals"),
)
_SIZES = ("all_steps", "batch", "classes", "steps", "places", "lanes")


class Params(ctypes.Structure):
    """``CtcParams``."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, ctypes.c_longlong) for name in _SIZES),
    ]


def host_source(program: str, params: str, kernels: tuple[str, ...], dtype: str) -> str:
    """A program's source for the host, in a namespace, with functions ``KERNEL_DTYPE``."""
    source = kernel_source(program).replace(
        "extern __shared__ uint4 shared[];", "uint4 *const shared = Block::dynamic.data();"
    )
    # The file with the parameters has been included outside of the namespace.
    source = source[source.index("#endif", source.index("struct")) :].removeprefix("#endif")
    entries = "".join(
        f'extern "C" int {kernel}_{dtype}(const {params} *p, unsigned blocks, unsigned threads,'
        " unsigned shared, unsigned seed) {\n"
        f"  return run_grid({kernel}, *p, blocks, threads, shared, seed);\n}}\n"
        for kernel in kernels
    )
    return f"namespace of_{dtype} {{\n#define DTYPE {DTYPE_CODES[dtype]}\n{source}\n{entries}}}\n"


def build(folder: Path, header: str, sources: list[str]) -> ctypes.CDLL:
    """Compile sources of `host_source` together."""
    text = f'#include "host_cuda.hpp"\n#include "{header}"\n'
    undefine = "#undef DTYPE\n#undef NEVER\n"
    (folder / "kernels.cpp").write_text(text + undefine.join(sources))
    command = ["g++", "-std=c++17", "-O1", "-fPIC", "-shared", "-w", "-o", "kernels.so"]
    command += [f"-I{Path(__file__).parent}", f"-I{c_code_dir() / 'runtime' / 'cudnn'}"]
    subprocess.run([*command, "kernels.cpp"], cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "kernels.so"))


def build_ctc(folder: Path, dtypes: tuple[str, ...]) -> ctypes.CDLL:
    """The kernels for some dtypes."""
    sources = [host_source("ctc", "CtcParams", KERNELS, dtype) for dtype in dtypes]
    return build(folder, "ctc_params.hpp", sources)


def links_of(labels: list[list[int]]) -> list[int]:
    """``CtcParams::links``, by looking at all pairs."""
    links = []
    for label in labels:
        for i, symbol in enumerate(label):
            later = [k for k in range(i + 1, len(label)) if label[k] == symbol]
            links.append(2 * (later[0] - i if later else 0) + (symbol in label[:i]))
    return links


def run_ctc(
    library: ctypes.CDLL,
    dtype: str,
    activations: np.ndarray,
    labels: list[list[int]],
    lengths: list[int],
    *,
    with_gradients: bool = True,
    shared_rows: bool = True,
    threads: int = 32,
    seed: int = 0,
) -> list[np.ndarray]:
    """Costs and gradients, as ``run_kernels`` in ``ctc.cpp`` launches the kernels."""
    all_steps, batch, classes = activations.shape
    steps, places = max(lengths), 2 * max(map(len, labels)) + 1
    arrays = {
        "activations": np.ascontiguousarray(activations.astype(numpy_dtype(dtype))),
        "costs": np.full(batch, np.nan, "float64" if dtype == "float64" else "float32"),
        "gradients": np.full(activations.shape, 7, numpy_dtype(dtype)),
        "lengths": np.array(lengths, "int32"),
        "begins": np.cumsum([0, *map(len, labels)], dtype="int32"),
        "symbols": np.array([s for label in labels for s in label], "int32"),
        "links": np.array(links_of(labels), "int32"),
        "normalizers": np.full((batch, steps), np.nan),
        "middles": np.full((batch, 2, places), np.nan),
        "passes": np.full((batch, steps, places), np.nan),
        "rows": np.full((batch, 2, 2, places), np.nan),
        "totals": np.full(batch, np.nan),
    }
    left_out = set() if with_gradients else {"gradients", "passes"}
    left_out |= {"rows"} if shared_rows else set()
    pointers = {n: None if n in left_out else a.ctypes.data for n, a in arrays.items()}
    lanes = 8
    params = Params(
        **pointers, all_steps=all_steps, batch=batch, classes=classes, steps=steps, places=places,
        lanes=lanes,
    )  # fmt: skip
    rows_bytes = 16 * places if shared_rows else 0
    launches = [
        (KERNELS[0], -(-steps * batch * lanes // 32), 32, 8 * 32),
        (KERNELS[1], 2 * batch, threads, rows_bytes),
        (KERNELS[2], 2 * batch, threads, 8 * threads + rows_bytes),
    ]
    if with_gradients:
        launches.append((KERNELS[3], all_steps * batch, 32, 8 * 32))
    for kernel, blocks, count, shared in launches:
        function = getattr(library, f"{kernel}_{dtype}")
        status = function(ctypes.byref(params), blocks, count, shared, seed) if blocks else 0
        assert status == 0, f"{kernel} wrote beyond its shared memory"
    return [arrays["costs"], arrays["gradients"]][: 1 + with_gradients]

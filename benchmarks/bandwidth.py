"""Compare the bandwidth of kernels with that of a copy: ``python -m benchmarks.bandwidth``.

Elementwise Ops and reductions read arrays of 256 MiB on the first GPU. A row has the bytes that are
read and written per second, relative to those of a copy of 256 MiB in the same turns, and the same
for PyTorch. Goals: 92 % for elementwise Ops, and 88 % for reductions.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pytensor import scalar

from benchmarks.machine import describe_machine
from dnnops.gpuarray.elemwise import GpuElemwise
from dnnops.gpuarray.reduction import reduce_array
from dnnops.runtime import output

if TYPE_CHECKING:
    from benchmarks.kernels_gpu import Call, Gpu

__all__ = ["CASES", "Case"]

NBYTES = 1 << 28
ITEM_SIZES = {"float32": 4, "float16": 2}
FORMATS = ("contiguous", "channels_last")
#: Images of `NBYTES` in float32; those of float16 have twice as many channels.
IMAGES = (64, 256, 64, 64)
ROUNDS = 9
GOALS = {"elementwise": 0.92, "reduction": 0.88}


class Case(NamedTuple):
    """A kernel and its operands.

    Attributes
    ----------
    kind : {'elementwise', 'reduction'}
        What the goal is for.
    name : str
        Name in the table.
    prepare : callable
        Function of a `Gpu` that returns the calls of dnnops and PyTorch, and the bytes that they
        read and write.
    """

    kind: str
    name: str
    prepare: Callable[[Gpu], tuple[Call, Call, int]]


def _vectors(g: Gpu, dtype: str, number: int) -> list[Any]:
    return [g.values((NBYTES // ITEM_SIZES[dtype],), dtype) for _ in range(number)]


def _images(g: Gpu, dtype: str, layout: str) -> Any:
    batch, channels, *sizes = IMAGES
    return g.values((batch, channels * 4 // ITEM_SIZES[dtype], *sizes), dtype, layout)


def _unary(dtype: str, g: Gpu) -> tuple[Call, Call, int]:
    (x,) = _vectors(g, dtype, 1)
    return g.call(GpuElemwise(scalar.tanh), x), partial(g.torch.tanh, g.tensor(x)), 2 * NBYTES


def _binary(dtype: str, g: Gpu) -> tuple[Call, Call, int]:
    x, y = _vectors(g, dtype, 2)
    torch = partial(g.torch.mul, g.tensor(x), g.tensor(y))
    return g.call(GpuElemwise(scalar.mul), x, y), torch, 3 * NBYTES


def _composite(dtype: str, g: Gpu) -> tuple[Call, Call, int]:
    """Return calls of ``x * y + tanh(z)``, for which PyTorch needs several kernels."""
    arrays = _vectors(g, dtype, 3)
    x, y, z = (scalar.get_scalar_type(dtype)() for _ in range(3))
    op = GpuElemwise(scalar.Composite([x, y, z], [x * y + scalar.tanh(z)]))
    s, t, u = map(g.tensor, arrays)
    return g.call(op, *arrays), lambda: g.torch.addcmul(g.torch.tanh(u), s, t), 4 * NBYTES


def _bias(dtype: str, layout: str, g: Gpu) -> tuple[Call, Call, int]:
    x = _images(g, dtype, layout)
    bias = g.values((1, x.shape[1], 1, 1), dtype)
    torch = partial(g.torch.add, g.tensor(x), g.tensor(bias))
    return g.call(GpuElemwise(scalar.add), x, bias), torch, 2 * NBYTES


def _reduction(
    shape: tuple[int, ...] | str, axes: tuple[int, ...], kind: str, dtype: str, g: Gpu
) -> tuple[Call, Call, int]:
    if isinstance(shape, str):
        x = _images(g, dtype, shape)
    else:
        x = g.values((*shape[:-1], NBYTES // ITEM_SIZES[dtype] // prod(shape[:-1])), dtype)
    op, function = {
        "sum": (scalar.add, g.torch.sum),
        "maximum": (scalar.maximum, g.torch.amax),
    }[kind]
    words = (op, dtype, "float32" if dtype == "float16" else "float64", dtype, None)
    torch = partial(function, g.tensor(x), axes)
    return partial(reduce_array, x, axes, *words), torch, NBYTES


#: Shapes, of which the last length follows from `NBYTES`, or the memory format of images, and axes.
REDUCED: dict[str, tuple[tuple[int, ...] | str, tuple[int, ...]]] = {
    "vector": ((-1,), (0,)),
    "rows of a matrix with 4096": ((4096, -1), (1,)),
    "rows of a matrix with 65536": ((65536, -1), (1,)),
    "columns of a matrix with 16384 rows": ((16384, -1), (0,)),
    "columns of a matrix with 65536 rows": ((65536, -1), (0,)),
    "channels, contiguous": ("contiguous", (0, 2, 3)),
    "channels, channels-last": ("channels_last", (0, 2, 3)),
}
CASES = [
    *(
        Case("elementwise", f"{name}, {dtype}", partial(prepare, dtype))
        for name, prepare in (
            ("tanh(x)", _unary),
            ("x * y", _binary),
            ("x * y + tanh(z)", _composite),
        )
        for dtype in ITEM_SIZES
    ),
    *(
        Case(
            "elementwise",
            f"x + bias, {layout}, {dtype}".replace("_", "-"),
            partial(_bias, dtype, layout),
        )
        for layout in FORMATS
        for dtype in ITEM_SIZES
    ),
    *(
        Case("reduction", f"{kind}, {name}, {dtype}", partial(_reduction, shape, axes, kind, dtype))
        for kind, dtype in (("sum", "float32"), ("sum", "float16"), ("maximum", "float32"))
        for name, (shape, axes) in REDUCED.items()
    ),
]


def measure(g: Gpu, case: Case) -> dict[str, Any]:
    """Time a case, PyTorch and a copy in turns."""
    ours, torch, nbytes = case.prepare(g)
    source = g.cupy.ones(NBYTES // 4, "float32")
    target = g.cupy.empty_like(source)
    calls = {
        "dnnops": ours,
        "torch": torch,
        "copy": lambda: target.data.copy_from_device_async(source.data, NBYTES),
    }
    moved = {"dnnops": nbytes, "torch": nbytes, "copy": 2 * NBYTES}
    ms = g.timer.compare(calls, ROUNDS)
    rate = {name: moved[name] / ms[name] for name in calls}
    return {
        "kind": case.kind,
        "case": case.name,
        "bytes": nbytes,
        **{f"{name}_ms": ms[name] for name in calls},
        **{f"{name}_of_copy": rate[name] / rate["copy"] for name in ("dnnops", "torch")},
    }


def main() -> None:
    """Print a table; the exit status is 1 if a row misses its goal."""
    from benchmarks.kernels_gpu import Gpu
    from benchmarks.peers.dnnops_gpu import versions

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="file for the rows")
    parser.add_argument("--only", default="", help="only cases with these words")
    arguments = parser.parse_args()
    g = Gpu()
    machine = describe_machine(1) | versions() | {"torch": g.torch.__version__}
    rows: list[dict[str, Any]] = []
    missed = 0
    print(f"{'':54} {'ms':>7} {'of copy':>7} {'PyTorch':>7}")
    for case in CASES:
        if arguments.only not in case.name:
            continue
        row = measure(g, case)
        rows.append(row)
        misses = row["dnnops_of_copy"] < GOALS[case.kind]
        missed += misses
        print(
            f"{case.name:54} {row['dnnops_ms']:7.4f} {row['dnnops_of_copy']:7.1%} "
            f"{row['torch_of_copy']:7.1%}{' missed' if misses else ''}",
            flush=True,
        )
        g.cupy.get_default_memory_pool().free_all_blocks()
    if arguments.json:
        output.write(
            arguments.json, json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n"
        )
    sys.exit(f"{missed} of {len(rows)} rows are below their goal" if missed else 0)


if __name__ == "__main__":
    main()

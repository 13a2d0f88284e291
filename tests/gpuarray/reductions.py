"""Cases of the tests of reduction kernels, and their compilation for the host."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytensor.scalar as ps
import pytest

from dnnops.dtypes import numpy_dtype
from dnnops.gpuarray.reduction_source import reduction_source
from tests.host_libraries import compile_once

HEADERS = Path(__file__).parents[1] / "emulation"
PROCESSORS = 132

#: Op, dtypes of operand, accumulator and result, and the function applied to each element first.
KINDS = (
    (ps.add, "float32", "float64", "float32", None),
    (ps.add, "float32", "float32", "float32", "abs"),
    (ps.add, "float16", "float32", "float32", "sqr"),
    (ps.add, "bfloat16", "float64", "bfloat16", None),
    (ps.add, "float64", "float64", "float64", "sqr"),
    (ps.add, "int8", "int64", "int64", None),
    (ps.mul, "float64", "float64", "float64", None),
    (ps.maximum, "float32", "float32", "float32", None),
    (ps.maximum, "bfloat16", "float32", "bfloat16", "abs"),
    (ps.minimum, "uint8", "uint8", "uint8", None),
    (ps.minimum, "float16", "float32", "float16", None),
    (ps.and_, "bool", "bool", "bool", None),
    (ps.or_, "int16", "int16", "int16", None),
    (ps.xor, "uint32", "uint32", "uint32", None),
)
PREMAPPED = {None: lambda x: x, "abs": np.abs, "sqr": np.square}
REDUCE = {
    ps.add: np.add,
    ps.mul: np.multiply,
    ps.maximum: np.maximum,
    ps.minimum: np.minimum,
    ps.and_: np.bitwise_and,
    ps.or_: np.bitwise_or,
    ps.xor: np.bitwise_xor,
}
BOUNDS = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 3e-6, "float64": 1e-13}


def values_of(rng, dtype, shape):
    """Return random values, in NumPy's dtype and as stored."""
    if dtype == "bool":
        stored = rng.random(shape) < 0.999
    elif dtype in BOUNDS:
        near_one = rng.uniform(0.99, 1.01, shape) * rng.choice([-1, 1], shape)
        stored = near_one.astype(numpy_dtype(dtype))
    else:
        limits = np.iinfo(dtype)
        stored = rng.integers(limits.min, limits.max, shape, dtype)
    return stored


def oracle(kind, stored):
    op, dtype, acc_dtype, _, premap = kind
    wide = "float64" if dtype in BOUNDS else acc_dtype if op in (ps.add, ps.mul) else dtype
    return REDUCE[op].reduce(PREMAPPED[premap](stored.astype(wide)), axis=-1)


def check(kind, stored, found, words):
    op, dtype, acc_dtype, out_dtype, premap = kind
    expected = oracle(kind, stored)
    if dtype not in BOUNDS:
        np.testing.assert_array_equal(found, expected, err_msg=words)
        return
    with np.errstate(invalid="ignore"):
        sizes = np.abs(PREMAPPED[premap](stored.astype("float64"))).sum(axis=-1)
    extremum = op in (ps.maximum, ps.minimum)
    scale = np.abs(expected) if extremum or op is ps.mul else 1 + 0.1 * sizes
    bound = max(BOUNDS[out_dtype], 1e-6 if acc_dtype == "float32" else 0)
    assert np.array_equal(np.isnan(found), np.isnan(expected)), words
    error = np.abs(found - expected)
    fine = (error <= bound * np.maximum(scale, np.abs(expected))) | np.isnan(expected)
    assert fine.all(), f"{words}: found {found}, expected {expected}"


def kind_param(number: int):
    """Return the number of a kind as a parameter of a test."""
    kind = KINDS[number]
    marks = [pytest.mark.needs("ml_dtypes")] if "bfloat16" in kind else []
    return pytest.param(number, id=" ".join(map(str, kind)), marks=marks)


def compile_for_host(folder, name, variants):
    """Compile reduction kernels for the host.

    Parameters
    ----------
    folder : Path
        Where to put the library.
    name : str
        File in ``c_code/gpu/reduction``.
    variants : iterable of tuple
        Arithmetic, name of the macro, its value, and functions that launch the kernels.

    Returns
    -------
    ctypes.CDLL
    """
    text = '#include "host_cuda.hpp"\n'
    for number, (arithmetic, macro, value, entries) in enumerate(variants):
        source = reduction_source(arithmetic, name)
        text += f"#define {macro} {value}\nnamespace of_{number} {{\n{source}\n{entries}}}\n"
        text += f"#undef {macro}\n#undef IDENTITY\n"
    (folder / "kernels.cpp").write_text(text)
    command = ["g++", "-std=c++17", "-O1", "-w", "-fPIC", "-shared", f"-I{HEADERS}"]
    compile_once([*command, "-o", "kernels.so", "kernels.cpp"], folder)
    return ctypes.CDLL(str(folder / "kernels.so"))

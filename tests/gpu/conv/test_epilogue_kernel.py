"""The kernel of a convolution's epilogue, compiled for the host, against the abstract Op."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from dnnops.dtypes import DTYPE_CODES, numpy_dtype
from dnnops.gpu.fused.conv_activation import ACTIVATIONS
from dnnops.nnet.activation.op import Activation
from tests.emulation.host_kernels import compile_for_gpu, compile_for_host, launch_struct
from tests.oracle import RELATIVE_ERROR, assert_close

#: Activation, coefficient, parts, dtype, dtype of vectors, adjacent elements, channels last.
CASES = [
    ("relu", 0.0, 2, "float32", "float32", 4, 1),
    ("identity", 0.0, 3, "float16", "float32", 8, 0),
    ("clipped_relu", 0.5, 7, "bfloat16", "bfloat16", 2, 1),
    ("tanh", 0.0, 4, "float64", "float64", 2, 0),
    ("sigmoid", 0.0, 1, "float32", "float32", 1, 1),
    ("elu", 0.7, 6, "float16", "float16", 1, 0),
    ("swish", 1.5, 5, "bfloat16", "float32", 4, 1),
]
BATCH, CHANNELS, POSITIONS = 3, 8, 40


def macros(case: Any) -> dict[str, Any]:
    activation, _, parts, dtype, vector_dtype, unit, last = case
    return {
        "DTYPE": DTYPE_CODES[dtype],
        "VECTOR_DTYPE": DTYPE_CODES[vector_dtype],
        "PARTS": parts,
        "ACTIVATION": ACTIVATIONS.index(activation),
        "UNIT": unit,
        "CHANNELS_LAST": last,
        "INDEX": "unsigned" if unit % 4 else "size_t",
    }


def reference(case: Any, arrays: dict[str, np.ndarray]) -> np.ndarray:
    activation, coef, parts, *_, last = case
    wide = {name: a.astype("float64") for name, a in arrays.items()}
    column = (lambda v: v) if last else (lambda v: v[:, None])
    y = wide["y"]
    if parts & 1:
        y = y * column(wide["scale"])
    if parts & 4:
        y = y + wide["addend"]
    if parts & 2:
        y = y + column(wide["bias"])
    if activation == "identity":
        return y
    storage: list[list[Any]] = [[None]]
    Activation(activation, coef).perform(None, [y], storage)  # type: ignore[arg-type]
    return storage[0][0]


every_case = pytest.mark.parametrize(
    "case",
    [pytest.param(c, id=c[0], marks=() if c in CASES[:2] else pytest.mark.slow) for c in CASES],
)


@every_case
def test_kernel(case, tmp_path):
    _, coef, _, dtype, vector_dtype, unit, last = case
    shape = (BATCH, POSITIONS, CHANNELS) if last else (BATCH, CHANNELS, POSITIONS)
    rng = np.random.default_rng(1)
    arrays = {
        "y": rng.standard_normal(shape).astype(numpy_dtype(dtype)),
        "scale": rng.standard_normal(CHANNELS).astype(numpy_dtype(vector_dtype)),
        "bias": rng.standard_normal(CHANNELS).astype(numpy_dtype(vector_dtype)),
        "addend": rng.standard_normal(shape).astype(numpy_dtype(dtype)),
    }
    arrays["y"][0, 0, 0] = np.nan
    expected = reference(case, arrays)
    library = compile_for_host(
        tmp_path, "conv_epilogue", {"conv_epilogue": "EpilogueLaunch"}, macros(case)
    )
    count = arrays["y"].size
    launch = launch_struct(
        **arrays,
        units=count // unit,
        channels=CHANNELS // unit if last else CHANNELS,
        step=1 if last else POSITIONS // unit,
        coef=float(coef),
    )
    # Fewer threads than units, and a block that is not full.
    assert library.run_conv_epilogue(launch, 2, 64, 0) == 0
    found = arrays["y"].astype("float64")
    assert np.isnan(found[0, 0, 0])
    assert np.isnan(expected[0, 0, 0])
    found[0, 0, 0] = expected[0, 0, 0] = 0
    assert_close(found, expected, bound=RELATIVE_ERROR[dtype])


@pytest.mark.needs("nvrtc")
@every_case
def test_compiles_for_a_gpu(case):
    code = compile_for_gpu("conv_epilogue", macros(case))
    # Threads read and write whole units.
    assert ("ld.global.v" in code) == (case[5] > 1)


def test_cases_cover_everything():
    assert {case[0] for case in CASES} == set(ACTIVATIONS)
    assert {case[2] for case in CASES} == set(range(1, 8))
    pairs = itertools.product(("float16", "bfloat16"), (0, 1))
    assert {(case[3], case[3] == case[4]) for case in CASES} >= {(d, bool(s)) for d, s in pairs}

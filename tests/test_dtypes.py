"""The table of dtypes, and its counterpart in C."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
import pytest
from pytensor.tensor.type import TensorType

from dnnops.dtypes import (
    DTYPE_CODES,
    DTYPE_NAMES,
    DTYPES,
    FLOAT_DTYPES,
    HALF_DTYPES,
    HOST_FLOAT_DTYPES,
    compute_dtype,
    numpy_dtype,
)
from dnnops.runtime.build import c_code_dir
from tests.needs import of_dtypes

HEADER = (c_code_dir() / "abi" / "dnnops_dtypes.h").read_text()
#: For each code, the arguments of ``X``: constant, name, bytes, and NumPy's name.
ROWS = re.findall(r"^  X\((\w+), (\w+), (\d), (\w+)\)", HEADER, re.MULTILINE)


def test_c_has_the_same_names_and_codes():
    assert [row[1] for row in ROWS] == [DTYPE_NAMES[code] for code in range(len(DTYPE_NAMES))]
    assert [row[0] for row in ROWS] == [row[1].upper() for row in ROWS]


@pytest.mark.parametrize("dtype", of_dtypes(*DTYPE_CODES))
def test_c_has_the_same_sizes(dtype):
    assert int(ROWS[DTYPE_CODES[dtype]][2]) == numpy_dtype(dtype).itemsize


@pytest.mark.parametrize("dtype", DTYPE_CODES)
def test_c_has_the_dtypes_of_numpy(dtype):
    in_numpy = ROWS[DTYPE_CODES[dtype]][3]
    assert in_numpy == ("NOTYPE" if dtype == "bfloat16" else dtype.upper())


@pytest.mark.parametrize("dtype", of_dtypes(*DTYPES))
def test_kernels_compute_with_enough_bits(dtype):
    """In a C type of the same size, except for floating-point numbers of 16 bits."""
    sizes = {"bool": 1, "char": 1, "short": 2, "int": 4, "long": 8, "float": 4, "double": 8}
    size = sizes[DTYPES[dtype].c_type.split()[-1]]
    assert size == (4 if dtype in HALF_DTYPES else numpy_dtype(dtype).itemsize)
    assert DTYPES[dtype].c_type.startswith("unsigned") == dtype.startswith("uint")
    assert compute_dtype(dtype) == ("float32" if dtype in HALF_DTYPES else dtype)


def test_floating_point_dtypes():
    assert FLOAT_DTYPES == ("float16", "bfloat16", "float32", "float64")
    assert HOST_FLOAT_DTYPES == ("float16", "float32", "float64")
    for narrow, wide in pairwise(HOST_FLOAT_DTYPES):
        assert np.can_cast(narrow, wide)
    with pytest.raises(TypeError):
        TensorType("bfloat16", shape=())

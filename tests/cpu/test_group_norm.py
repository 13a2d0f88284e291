"""Group normalization on the CPU: against NumPy in float64, dtypes, strides, ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor
import pytest
from hypothesis import strategies as st

from dnnops.cpu.group_norm import OneDnnGroupNorm, OneDnnGroupNormGrad
from dnnops.nnet import GroupNorm, GroupNormGrad
from tests.linkers import LINKERS
from tests.nnet.norm.group_norm_cases import Case, cases, names_of, reference, with_gradients
from tests.oracle import PERFORM_MODE, assert_close, fuzz

CPU_OPS = {GroupNorm: OneDnnGroupNorm, GroupNormGrad: OneDnnGroupNormGrad}
NAMES = {op.__name__ for op in CPU_OPS.values()}
BOUNDS = {"float16": 1e-3, "float32": 3e-7, "float64": 1e-14}


@LINKERS
@pytest.mark.parametrize("dtype", sorted(BOUNDS))
def test_on_the_cpu(mode, dtype):
    inputs, outputs = with_gradients(3, 1e-3, dtype, 4)
    compiled = pytensor.function(inputs, outputs, mode=mode)
    assert names_of(compiled) >= NAMES
    assert not names_of(compiled) & {"GroupNorm", "GroupNormGrad"}
    # The last one is large enough for several threads.
    for shape in ((2, 6, 3, 4), (1, 3, 1, 7), (4, 12, 40, 30)):
        case = Case(shape, 3, 1e-3, seed=1)
        arrays = case.arrays(dtype)
        expected = reference(case, arrays)
        last, *vectors, gy = arrays
        strided = [
            np.asfortranarray(last),
            *(np.repeat(v, 2)[::2] for v in vectors),
            gy[..., ::-1].copy()[..., ::-1],
        ]
        for given in (arrays, strided):
            for out, ref in zip(compiled(*given), expected, strict=True):
                assert_close(out, ref, bound=BOUNDS[dtype])


@fuzz(
    40,
    case=cases(least=0, most=4, epsilons=[0.1, 0.5]),
    dtype=st.sampled_from(["float32", "float64"]),
)
def test_random_configurations_on_the_cpu(case, dtype):
    arrays = case.arrays(dtype)
    expected = reference(case, arrays)
    for op, operands, refs in (
        (GroupNorm, arrays[:3], expected[:1]),
        (GroupNormGrad, [arrays[0], arrays[1], arrays[3]], expected[1:]),
    ):
        backend = CPU_OPS[op](case.num_groups, case.epsilon)
        node = backend.make_node(*operands)
        storage: list[Any] = [[None] for _ in node.outputs]
        backend.perform(node, operands, storage)
        for (out,), ref in zip(storage, refs, strict=True):
            assert_close(out, ref, bound=10 * BOUNDS[dtype], allow_zero=True)


def test_float16_with_float32_parameters():
    inputs, outputs = with_gradients(2, 1e-3, "float16", 3, "float32")
    assert [y.type.dtype for y in outputs] == ["float16", "float16", "float32", "float32"]
    case = Case((3, 4, 50), 2, 1e-3, seed=2)
    half, wide = case.arrays("float16"), case.arrays("float32")
    arrays = [half[0], *wide[1:3], half[3]]
    for mode in (PERFORM_MODE, "CVM"):
        compiled = pytensor.function(inputs, outputs, mode=mode)
        for out, ref in zip(compiled(*arrays), reference(case, arrays), strict=True):
            assert_close(out, ref, bound=BOUNDS["float16"])


def test_a_large_mean_on_the_cpu():
    """Sums in float32 would leave no correct digit of the variance."""
    x = (1e4 + np.random.default_rng(3).standard_normal((2, 4, 300, 100))).astype("float32")
    case = Case(x.shape, 2, 1e-5, seed=3)
    arrays = [x, *case.arrays("float32")[1:]]
    inputs, outputs = with_gradients(2, 1e-5, "float32", 4)
    compiled = pytensor.function(inputs, outputs, mode="CVM")
    for out, ref in zip(compiled(*arrays), reference(case, arrays), strict=True):
        assert_close(out, ref, bound=BOUNDS["float32"])


def test_more_dimensions_than_the_library_supports():
    shape = (2, 4, 1, 2, 1, 2, 1, 2, 3)
    case = Case(shape, 2, 1e-3, seed=4)
    inputs, outputs = with_gradients(2, 1e-3, "float64", len(shape))
    compiled = pytensor.function(inputs, outputs, mode="CVM")
    assert not names_of(compiled) & NAMES
    arrays = case.arrays()
    for out, ref in zip(compiled(*arrays), reference(case, arrays), strict=True):
        assert_close(out, ref)

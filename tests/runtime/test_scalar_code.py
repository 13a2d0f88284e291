"""CUDA source of scalar Ops and reductions, compiled by NVRTC for an H200; no GPU needed."""

from __future__ import annotations

import numpy as np
import pytensor.scalar as ps
import pytest
from pytensor.scalar.basic import Composite

from dnnops.errors import DnnNotSupportedError
from dnnops.gpuarray.elementwise.kernel import ElementwiseKernel
from dnnops.gpuarray.elemwise import can_run
from dnnops.runtime.scalar_code import c_literal, scalar_code
from tests.gpuarray.cuda_source import (
    compile_log,
    elementwise_log,
    elementwise_source,
    reduction_source,
)

FLOATS = ["float16", "bfloat16", "float32", "float64"]
INTEGERS = ["bool", "int8", "uint8", "int32", "int64", "uint64"]

FLOAT_OPS = [
    ps.add, ps.sub, ps.mul, ps.true_div, ps.pow, ps.maximum, ps.minimum, ps.neg, ps.abs,
    ps.sign, ps.exp, ps.expm1, ps.log, ps.log1p, ps.sqrt, ps.sqr, ps.sigmoid, ps.softplus,
    ps.tanh, ps.sin, ps.arctan2, ps.erf, ps.erfc, ps.gammaln, ps.psi, ps.floor, ps.ceil,
    ps.trunc, ps.round_half_to_even, ps.isnan, ps.isinf, ps.eq, ps.lt, ps.switch, ps.clip,
    ps.int_div, ps.mod, ps.identity, ps.reciprocal, ps.second,
]  # fmt: skip
INTEGER_OPS = [
    ps.add, ps.mul, ps.maximum, ps.minimum, ps.eq, ps.ge, ps.switch, ps.true_div,
    ps.int_div, ps.mod, ps.pow, ps.identity, ps.trunc, ps.exp, ps.and_, ps.or_, ps.xor,
    ps.invert,
]  # fmt: skip


def scalar(dtype):
    return ps.get_scalar_type("float32" if dtype == "bfloat16" else dtype)()


def log_of(op, dtype, **kwargs):
    operands = [scalar(dtype)] * (op.nin if op.nin > 0 else 2)
    outputs = [z.type.dtype for z in op.make_node(*operands).outputs]
    return elementwise_log(op, (dtype,) * len(operands), outputs, **kwargs)


@pytest.mark.needs("nvrtc")
@pytest.mark.parametrize(
    ("op", "dtypes"), [(op, FLOATS) for op in FLOAT_OPS] + [(op, INTEGERS) for op in INTEGER_OPS]
)
def test_kernels_compile(op, dtypes):
    for dtype in dtypes:
        if dtype == "float16" and op in (ps.int_div, ps.mod):
            continue  # PyTensor's type inference has no float16 for them
        assert not log_of(op, dtype), dtype


@pytest.mark.needs("nvrtc")
@pytest.mark.parametrize("op", [ps.mul, ps.exp, ps.switch, ps.eq, ps.isnan, ps.invert])
def test_packed_kernels_compile(op):
    """Test operands and results of other sizes, host scalars, and repeated operands, too."""
    for dtype in INTEGERS if op is ps.invert else FLOATS:
        nin = op.nin if op.nin > 0 else 2
        for last in ("dense", "scalar", "repeated", "rows") if nin > 1 else ("dense",):
            kinds = ("dense",) * (nin - 1) + (last,)
            result = "rows" if last == "rows" else "dense"
            log = log_of(op, dtype, kinds=kinds, result_kinds=(result,), width=2)
            assert not log, (dtype, last)


@pytest.mark.needs("nvrtc")
def test_strided_operands_and_host_scalars_compile():
    for last in ("strided", "scalar", "stored", "dense"):
        for result in ("strided", "dense"):
            kinds = ("strided", last)
            log = log_of(ps.add, "bfloat16", kinds=kinds, result_kinds=(result,), axes=4)
            assert not log, (last, result)


def composite():
    x, y = ps.float32("x"), ps.float32("y")
    low = ps.Cast(ps.float16)(x * y)
    return Composite([x, y], [ps.exp(low) + np.float32(0.5), x > y, ps.pow(x, np.int8(2))])


@pytest.mark.needs("nvrtc")
def test_composite_compiles():
    op = composite()
    outputs = tuple(z.type.dtype for z in op.outputs)
    assert not elementwise_log(op, ("float32", "bfloat16"), outputs)
    # The inner float16 is computed with as float, and costs no rounding.
    assert "half" not in scalar_code(op, ("float32", "bfloat16")).operation


def test_host_only_code_is_refused():
    assert not can_run(ps.gammainc, ("float32", "float32"))
    assert not can_run(ps.jv, ("float64", "float64"))
    with pytest.raises(DnnNotSupportedError, match="complex64"):
        scalar_code(ps.add, ("complex64", "complex64"))


@pytest.mark.needs("cupy")
def test_kernels_are_cached(monkeypatch):
    import cupy

    class Module:
        def __init__(self, code, **options):
            self.code = code

        def get_function(self, name):
            return self

    monkeypatch.setattr(cupy, "RawModule", Module)

    def compiled(op, dtype):
        # No graph has this kernel, of which nothing is compiled.
        dense = ("dense", "dense")
        return ElementwiseKernel(op, (dtype,) * 2, (dtype,), dense, dense[:1], 16).compiled()

    assert compiled(ps.add, "float32") is compiled(ps.add, "float32")
    assert compiled(ps.add, "float32") is not compiled(ps.add, "float64")
    assert compiled(ps.add, "float32") is not compiled(ps.mul, "float32")


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        (1, "float32", "((float)(1.0))"),
        (0.1, "float64", "((double)(0.1))"),
        (np.inf, "float32", "((float)(INFINITY))"),
        (-np.inf, "float64", "((double)(-INFINITY))"),
        (np.nan, "float32", "((float)(NAN))"),
        (True, "bool", "((bool)1LL)"),
        (-3, "int8", "((signed char)-3LL)"),
        (2**64 - 1, "uint64", f"((unsigned long long){2**64 - 1}ULL)"),
        (-(2**63), "int64", f"((long long)({-(2**63) + 1}LL - 1))"),
    ],
)
def test_literals(value, dtype, text):
    assert c_literal(value, dtype) == text


@pytest.mark.needs("nvrtc")
@pytest.mark.parametrize("op", [ps.add, ps.mul, ps.maximum, ps.minimum, ps.and_, ps.or_, ps.xor])
def test_reductions_compile(op):
    from dnnops.gpuarray.reduction import reduction_kernel

    bitwise = op in (ps.and_, ps.or_, ps.xor)
    accumulators = dict.fromkeys(INTEGERS, "int64") | dict.fromkeys(FLOATS, "float64")
    for dtype in INTEGERS if bitwise else INTEGERS + FLOATS:
        accumulates = op in (ps.add, ps.mul)
        out = "int64" if accumulates and dtype in INTEGERS else dtype
        kernel = reduction_kernel(op, dtype, accumulators[dtype], out)
        for ndim in (1, 3):
            assert not compile_log(reduction_source(kernel, ndim)), dtype


@pytest.mark.needs("nvrtc")
def test_index_check_compiles():
    from dnnops.gpuarray.deferred import check_kernel

    for dtype in ("int32", "int64", "uint8"):
        source = elementwise_source(check_kernel(dtype), 1, True, scalars=(1, 2, 3))
        assert not compile_log(source)

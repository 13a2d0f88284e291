"""Scaled sums of arrays, as elementwise steps of prepared calls.

cuBLAS reads the factors of a product on the host, so that a captured graph could only repeat the
values that it was captured with. Factors in device memory are applied by a kernel instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from pytensor.scalar.basic import Cast, Composite, add, eq, get_scalar_type, mul, switch

from dnnops.dtypes import compute_dtype
from dnnops.gpuarray.elementwise.step import elementwise_step
from dnnops.gpuarray.layout import common_order
from dnnops.gpuarray.prepared.builder import CallBuilder
from dnnops.gpuarray.prepared.call import Address, Number, PreparedCall, Result
from dnnops.gpuarray.prepared.placed import Placed
from dnnops.gpuarray.products.calls import ProductFactors, add_product

__all__ = ["add_scaled_sum", "scaled_afterwards"]


#: A factor of a term and its dtype.
Factor = tuple[str, Address | Number | np.ndarray]


def add_scaled_sum(
    call: CallBuilder,
    dtype: str,
    out: Placed,
    alpha: Factor,
    arrays: Sequence[Placed],
    addend: tuple[Factor, Placed] | None = None,
) -> bool:
    """Add the step that computes ``out = alpha * product of arrays + beta * z``.

    Parameters
    ----------
    call : CallBuilder
    dtype : str
        Dtype of all arrays. 16-bit floats are computed with in float32.
    out : Placed
        It may be `z` itself. It must not be empty.
    alpha : tuple
        Factor.
    arrays : sequence of Placed
        Arrays of the rank of `out`, with length 1 where they are broadcast.
    addend : tuple, optional
        `beta` and `z`. If `beta` is 0, the values in `z` are ignored, as by BLAS.

    Returns
    -------
    bool
        False if a kernel cannot access the arrays.
    """
    order = common_order([out], out.shape)
    factors = [alpha] if addend is None else [alpha, addend[0]]
    placed = [*arrays] if addend is None else [*arrays, addend[1]]
    dtypes = tuple(compute_dtype(factor) for factor, _ in factors)
    scalar_op = _scaled_sum(compute_dtype(dtype), dtypes, len(arrays))
    operands = [*factors, *((dtype, x.transpose(order)) for x in placed)]
    step = elementwise_step(scalar_op, operands, [(dtype, out.transpose(order))])
    if step is None:
        return False
    call.steps.append(step)
    return True


def scaled_afterwards(
    inputs: Sequence[Any], factors: Sequence[Factor], settings: int, inplace: bool
) -> PreparedCall | None:
    """Prepare ``beta * z + alpha * dot(x, y)`` with factors of which one is on the device.

    Parameters
    ----------
    inputs : sequence
        Values of ``z``, ``alpha``, ``x``, ``y`` and ``beta``. ``y`` and ``z`` are matrices, or both
        are vectors.
    factors : sequence of tuple
        Dtypes and places of ``alpha`` and ``beta``.
    settings : int
        See `dnnops.gpuarray.products.blas.product_settings`.
    inplace : bool
        Whether the result overwrites ``z``.

    Returns
    -------
    PreparedCall or None
        None if a kernel cannot access the operands.
    """
    call = CallBuilder(inputs)
    z, _, x, y, _ = inputs
    product, right = call.new(z.shape, x.dtype), call.operand(3)
    target = product
    if y.ndim == 1:
        right, target = right.as_column(), product.as_column()
    add_product(call, x.dtype, call.operand(2), right, target, ProductFactors(settings=settings))
    addend = call.operand(0)
    out = addend if inplace else call.new(z.shape, x.dtype)
    if not add_scaled_sum(call, x.dtype.name, out, factors[0], [product], (factors[1], addend)):
        return None
    return call.call(Result(out.address.place))


@cache
def _scaled_sum(dtype: str, factors: tuple[str, ...], count: int) -> Composite:
    """Return the scalar Op, whose operands are one or two factors and the arrays.

    The first `count` arrays are multiplied; a second factor scales the last one.
    """
    type_ = get_scalar_type(dtype)
    numbers = [get_scalar_type(factor)() for factor in factors]
    arrays = [type_() for _ in range(count + len(factors) - 1)]
    scales = [x if x.type == type_ else Cast(type_)(x) for x in numbers]
    total = mul(scales[0], *arrays[:count])
    if len(factors) == 2:
        zero = type_.make_constant(np.dtype(dtype).type(0))
        total = add(total, switch(eq(scales[1], zero), zero, mul(scales[1], arrays[-1])))
    return Composite([*numbers, *arrays], [total])

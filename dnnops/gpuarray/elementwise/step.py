"""Launches of elementwise kernels for operands of certain layouts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from pytensor.scalar.basic import ScalarOp, identity

from dnnops.dtypes import HALF_DTYPES, numpy_dtype
from dnnops.gpuarray.elementwise.kernel import THREADS, ElementwiseKernel
from dnnops.gpuarray.elementwise.packed import (
    LEAST_SIZE,
    SCALAR,
    STORED,
    STRIDED,
    Access,
    pack_width,
    packed_access,
    strided_access,
)
from dnnops.gpuarray.prepared.call import Address, KernelStep, Number
from dnnops.gpuarray.prepared.placed import Placed

__all__ = ["copy_step", "elementwise_step"]

_MAX_BLOCKS, _MAX_SMALL = 2**31 - 1, 2**31 - 1


def elementwise_step(
    scalar_op: ScalarOp,
    operands: Sequence[tuple[str, Placed | Address | Number | np.ndarray]],
    results: Sequence[tuple[str, Placed]],
) -> KernelStep | None:
    """Return the launch that applies a scalar Op to each element of some arrays.

    Parameters
    ----------
    scalar_op : ScalarOp
    operands : sequence of (str, object)
        Dtype of each operand, and where it is: arrays with their axes in memory order, with length
        1 where they are broadcast; the address of a number in device memory; or a number on the
        host, an operand or a constant.
    results : sequence of (str, Placed)
        Dtypes and arrays, all of one shape. They must not be empty.

    Returns
    -------
    KernelStep or None
        None if a kernel cannot access the arrays.
    """
    if scalar_op == identity:
        operands, results = _as_bits(operands, results)
    in_dtypes = tuple(dtype for dtype, _ in operands)
    out_dtypes = tuple(dtype for dtype, _ in results)
    values = [x for _, x in operands]
    targets = [z for _, z in results]
    forms = [x if isinstance(x, Placed) else _kind_of_number(x) for x in values]
    if not all(x.is_aligned for x in (*forms, *targets) if isinstance(x, Placed)):
        return None  # memory of other libraries
    arrays = [t for t, x in zip(in_dtypes, forms, strict=True) if isinstance(x, Placed)]
    size, access = targets[0].size, None
    if size >= LEAST_SIZE:
        access = packed_access(forms, targets, pack_width([*arrays, *out_dtypes]))
    if access is None:
        access = strided_access(forms, targets)
    blocks = -(-size // (access.width * THREADS))
    if blocks > _MAX_BLOCKS:
        return None
    kernel = ElementwiseKernel(
        scalar_op,
        in_dtypes,
        out_dtypes,
        access.kinds,
        access.result_kinds,
        access.width,
        len(access.lengths),
        bool(access.lengths) and size > _MAX_SMALL,
    )
    arguments = _arguments(kernel, access, values, targets)
    return KernelStep(kernel.compiled(), blocks, THREADS, arguments)


def _as_bits(operands: Sequence[Any], results: Sequence[Any]) -> tuple[Any, Any]:
    """Let 16-bit floats be copied as integers: a conversion to float32 and back changes NaNs."""
    (from_dtype, source), (to_dtype, target) = *operands, *results
    if from_dtype != to_dtype or from_dtype not in HALF_DTYPES or not isinstance(source, Placed):
        return operands, results
    return [("uint16", source)], [("uint16", target)]


def copy_step(dtype: str, source: Placed, target: Placed) -> KernelStep | None:
    """Return the launch that copies an array into another one of its dtype.

    Parameters
    ----------
    dtype : str
    source, target : Placed
        `source` has length 1 where it is broadcast.
    """
    return elementwise_step(identity, [(dtype, source)], [(dtype, target)])


def _kind_of_number(x: Any) -> str:
    return STORED if isinstance(x, Address) else SCALAR


def _arguments(
    kernel: ElementwiseKernel, access: Access, values: Sequence[Any], targets: Sequence[Placed]
) -> list[Any]:
    """Return the arguments in the order of the kernel's parameters."""
    arguments: list[Any] = []
    numbers = iter(access.numbers)
    for value, kind, dtype in zip(values, access.kinds, kernel.in_dtypes, strict=True):
        if isinstance(value, Placed):
            value = value.address
        elif not isinstance(value, Address | Number):
            value = np.asarray(value, numpy_dtype(dtype))
        arguments += [value, *_typed(kernel, kind, next(numbers))]
    for kind in access.result_kinds:
        arguments += _typed(kernel, kind, next(numbers))
    arguments.append(np.int64(targets[0].size))
    length = np.dtype(kernel.length_type).type
    arguments += [length(n) for n in access.lengths[1:]]
    return [*arguments, *(z.address for z in targets)]


def _typed(kernel: ElementwiseKernel, kind: str, numbers: Sequence[int]) -> list[Any]:
    if kind != STRIDED and not numbers:
        return []
    types = kernel.number_types(kind)
    return [np.dtype(t).type(n) for t, n in zip(types, numbers, strict=True)]

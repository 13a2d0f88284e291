"""Products in 16 bits.

cuDNN and cuBLAS can add another array to a product. If that array is float32, for example the
velocity of a parameter, it must not be rounded. The sum is then computed by an elementwise loop,
which reads the product in 16 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import singledispatch
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import Op
from pytensor.scalar import add, get_scalar_type, mul
from pytensor.scalar.basic import Cast, Composite
from pytensor.scalar.basic import float32 as float32_scalar
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.math import Dot

from dnnops.gpu.conv import GpuDnnConvBase
from dnnops.gpuarray.basic import GpuDimShuffle
from dnnops.gpuarray.elemwise import GpuElemwise
from dnnops.gpuarray.op import is_on_device
from dnnops.gpuarray.products.blas import GpuDot, GpuGemm, GpuGemv
from dnnops.rewriting.mixed_precision.roles import Role, is_half
from dnnops.rewriting.mixed_precision.storage import Storage

__all__ = ["in_halves", "linear_combination"]


def in_halves(node: Apply, role: Role, storage: Storage, lives_narrow: bool) -> Sequence[Variable]:
    """Return the results of a product with 16-bit operands.

    Parameters
    ----------
    node : Apply
        Node of the product.
    role : Role
        Its role.
    storage : Storage
        How the operands are stored.
    lives_narrow : bool
        Whether a result that an elementwise loop computes is stored in 16 bits.
    """
    return _in_halves(node.op, node, role, storage, storage.dtype if lives_narrow else "float32")


@singledispatch
def _in_halves(op: Op, node: Apply, role: Role, storage: Storage, dtype: str) -> Sequence[Variable]:
    inputs = [
        storage.narrow(x) if i in role.data else storage.exact(x) for i, x in enumerate(node.inputs)
    ]
    return op.make_node(*inputs).outputs


@_in_halves.register(GpuDnnConvBase)
def _conv(op: Any, node: Apply, role: Role, storage: Storage, dtype: str) -> Sequence[Variable]:
    first, second, *others = node.inputs
    inputs = [storage.narrow(first), storage.narrow(second), *others]
    if not op.accumulate:
        return op.make_node(*inputs).outputs
    *inputs, alpha, beta, _ = inputs
    out = storage[node.inputs[-1]]
    if dtype != "float32" and is_half(out):
        return op.make_node(*inputs, alpha, beta, storage.narrow(node.inputs[-1])).outputs
    plain = op.replace(accumulate=False, inplace=False)
    product = plain.make_node(*inputs).outputs[0]
    return [linear_combination(dtype, (alpha, product), (beta, out))]


def _dot(op: Any, x: Variable, y: Any, storage: Storage) -> Any:
    """Return the product of a matrix with a matrix or a vector."""
    product, narrow = GpuDot(Dot(), op.allow_tf32, op.algo), storage.narrow(y)
    if y.type.ndim == 2:
        return product.make_node(storage.narrow(x), narrow).outputs[0]
    column = _reordered(narrow, (0, "x"))
    return _reordered(product.make_node(storage.narrow(x), column).outputs[0], (0,))


@_in_halves.register(GpuDot)
def _scaled_dot(
    op: Any, node: Apply, role: Role, storage: Storage, dtype: str
) -> Sequence[Variable]:
    x, y, *factor = node.inputs
    product = _dot(op, x, y, storage)
    return [linear_combination(dtype, (factor[0], product)) if factor else product]


@_in_halves.register(GpuGemm)
@_in_halves.register(GpuGemv)
def _dot_and_sum(
    op: Any, node: Apply, role: Role, storage: Storage, dtype: str
) -> Sequence[Variable]:
    z, alpha, x, y, beta = node.inputs
    terms = [(storage[alpha], _dot(op, x, y, storage))]
    if not (isinstance(beta, Constant) and _number(beta) == 0):
        terms.append((storage[beta], storage[z]))
    return [linear_combination(dtype, *terms)]


def linear_combination(dtype: str, *terms: tuple[Any, Any]) -> Any:
    """Return the sum of products of a factor and an array.

    Parameters
    ----------
    dtype : str
        Dtype of the result.
    *terms : tuple of Variable
        Factor, which is a host scalar or a 0-d device array, and device array.

    Returns
    -------
    GpuArrayVariable
    """
    inputs: list[Any] = []
    operands: list[Any] = []
    scaled = []
    for factor, array in terms:
        inputs.append(float32_scalar())
        operands.append(array)
        term = inputs[-1]
        if isinstance(factor, Constant):
            if _number(factor) != 1:
                term = mul(term, float32_scalar.make_constant(np.float32(_number(factor))))
        else:
            # PyTensor has no scalars in bfloat16. The loop widens operands in 16 bits.
            dtype_of_factor = "float32" if is_half(factor) else factor.type.dtype
            inputs.append(get_scalar_type(dtype_of_factor)())
            operands.append(_with_rank(factor, array.type.ndim))
            term = mul(term, Cast(float32_scalar)(inputs[-1]))
        scaled.append(term)
    total = add(*scaled) if len(scaled) > 1 else scaled[0]
    if total in inputs:
        return operands[0]
    return GpuElemwise(Composite(inputs, [total]), out_dtypes=[dtype]).make_node(*operands).out


def _number(x: Any) -> float:
    return float((x.host_data if is_on_device(x) else x.data).item())


def _with_rank(x: Any, ndim: int) -> Any:
    """Return a 0-d device array with more axes, for an elementwise Op; host scalars stay."""
    if not is_on_device(x):
        return x
    return _reordered(x, ["x"] * ndim)


def _reordered(x: Any, order: Sequence[Any]) -> Any:
    op = DimShuffle(input_ndim=x.type.ndim, new_order=order)
    return GpuDimShuffle(op).make_node(x).out

"""What GPU Ops do with 16-bit arrays."""

from __future__ import annotations

from enum import Enum
from functools import singledispatch
from typing import Any, NamedTuple

from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.raise_op import CheckAndRaise
from pytensor.scalar.basic import (
    Composite,
    Cosh,
    Exp,
    Exp2,
    Expm1,
    Log,
    Log1p,
    Log2,
    Log10,
    Pow,
    Reciprocal,
    Sinh,
    Sqr,
    Tan,
)
from pytensor.tensor.shape import Shape, Shape_i

from dnnops.dtypes import HALF_DTYPES
from dnnops.gpu.activation import GpuDnnActivationBase
from dnnops.gpu.batchnorm import GpuDnnBatchNormBase
from dnnops.gpu.conv import GpuDnnConvBase
from dnnops.gpu.cross_entropy import GpuCrossEntropy, GpuCrossEntropyGrad
from dnnops.gpu.dropout import GpuDnnDropoutGrad, GpuDnnDropoutOp
from dnnops.gpu.pool import GpuDnnPoolBase
from dnnops.gpu.pool_kernels import GpuKernelPool
from dnnops.gpu.rnn import GpuDnnRNNBase
from dnnops.gpu.softmax import GpuDnnSoftmaxBase
from dnnops.gpuarray.basic import (
    GpuAlloc,
    GpuContiguous,
    GpuDimShuffle,
    GpuJoin,
    GpuReshape,
    GpuSpecifyShape,
    GpuSplit,
    first_joined,
)
from dnnops.gpuarray.elemwise import GpuElemwise
from dnnops.gpuarray.op import is_on_device
from dnnops.gpuarray.products.blas import GpuBatchedDot, GpuDot, GpuGemm, GpuGemv
from dnnops.gpuarray.reduction import GpuArgmax, GpuCAReduce
from dnnops.gpuarray.subtensor import GpuAdvancedSubtensor, GpuIncSubtensor, GpuSubtensor
from dnnops.gpuarray.transfer import GpuCast
from dnnops.gpuarray.windows.op import GpuSetWindow, GpuWindow
from dnnops.nnet.rnn.op import INT_OPERANDS

__all__ = [
    "Kind",
    "Role",
    "is_float32",
    "is_half",
    "keeps_float32",
    "role_of",
]


class Kind(Enum):
    """What an Op does with 16-bit arrays.

    Attributes
    ----------
    PRODUCT
        The Op multiplies and adds. It runs in 16 bits, and so its operands are cast.
    DATA
        The Op takes arrays of one dtype. It runs in 16 bits if its first operand is stored so.
    ELEMENTWISE
        Each operand can have any dtype, and each result is stored as its users need it.
    REDUCTION
        The Op reads 16-bit arrays, and its result is float32, except for extrema.
    VIEW
        The result is a view or a copy of the first operand, whatever its dtype.
    JOIN
        The result consists of all operands, which have one dtype.
    CAST
        The Op converts the dtype.
    LOSS
        As DATA, except that what it returns of each row is float32.
    SHAPE
        The Op reads only the shape.
    OTHER
        The Op has float32 operands and results.
    """

    PRODUCT, DATA, ELEMENTWISE, REDUCTION, VIEW, JOIN, CAST, LOSS, SHAPE, OTHER = range(10)


class Role(NamedTuple):
    """What a node does with 16-bit arrays.

    Attributes
    ----------
    kind : Kind
    data : sequence of int
        Indices of the operands that may be stored in 16 bits.
    results : sequence of int
        Indices of the results that may be stored in 16 bits.
    """

    kind: Kind
    data: tuple[int, ...] = ()
    results: tuple[int, ...] = (0,)


_OTHER = Role(Kind.OTHER, (), ())


def is_float32(x: Any) -> bool:
    """Return whether a variable is a float32 array on a device."""
    return is_on_device(x) and x.type.dtype == "float32"


def is_half(x: Any) -> bool:
    """Return whether a variable is a 16-bit floating-point array on a device."""
    return is_on_device(x) and x.type.dtype in HALF_DTYPES


def role_of(node: Apply) -> Role:
    """Return the role of a node."""
    return _OTHER if node.op.destroy_map else _role(node.op, node)


@singledispatch
def _role(op: Op, node: Apply) -> Role:
    return _OTHER


def _product(*data: int) -> Any:
    def role(op: Op, node: Apply) -> Role:
        # The product of two vectors is a sum; it may be part of a loss.
        return Role(Kind.PRODUCT, data) if node.outputs[0].type.ndim else _OTHER

    return role


_role.register(GpuDnnConvBase, _product(0, 1))
_role.register(GpuDot, _product(0, 1))
_role.register(GpuBatchedDot, _product(0, 1))
_role.register(GpuGemm, _product(2, 3))
_role.register(GpuGemv, _product(2, 3))


@_role.register(GpuDnnRNNBase)
def _rnn_role(op: Any, node: Apply) -> Role:
    names = getattr(op, "all_operands", op.operands)
    arrays = (i for i, name in enumerate(names) if name not in (*INT_OPERANDS, "reserve"))
    count = len(node.outputs) - int(getattr(op, "keeps_reserve", False))
    return Role(Kind.PRODUCT, tuple(arrays), tuple(range(count)))


@_role.register(GpuDnnBatchNormBase)
def _batch_norm_role(op: Any, node: Apply) -> Role:
    abstract = op.abstract_op()
    results = (i for i, is_data in enumerate(abstract.data_results) if is_data)
    return Role(Kind.DATA, tuple(range(len(abstract.data))), tuple(results))


@_role.register(GpuDnnActivationBase)
@_role.register(GpuDnnDropoutGrad)
@_role.register(GpuDnnDropoutOp)
@_role.register(GpuDnnPoolBase)
@_role.register(GpuKernelPool)
def _data_role(op: Op, node: Apply) -> Role:
    arrays = (i for i, x in enumerate(node.inputs) if is_float32(x))
    return Role(Kind.DATA, tuple(arrays))


@_role.register(GpuDnnSoftmaxBase)
def _softmax_role(op: Any, node: Apply) -> Role:
    # Its logarithm becomes part of a loss.
    return _OTHER if op.algo == "log" else _data_role(op, node)


@_role.register(GpuCrossEntropy)
def _cross_entropy_role(op: Op, node: Apply) -> Role:
    return Role(Kind.LOSS, (0,), ())


@_role.register(GpuCrossEntropyGrad)
def _cross_entropy_grad_role(op: Op, node: Apply) -> Role:
    return Role(Kind.LOSS, (1,))


@_role.register(GpuElemwise)
def _elementwise_role(op: Op, node: Apply) -> Role:
    arrays = (i for i, x in enumerate(node.inputs) if is_on_device(x))
    return Role(Kind.ELEMENTWISE, tuple(arrays), tuple(range(len(node.outputs))))


@_role.register(GpuCAReduce)
@_role.register(GpuArgmax)
def _reduction_role(op: Op, node: Apply) -> Role:
    return Role(Kind.REDUCTION, (0,))


@_role.register(GpuAdvancedSubtensor)
@_role.register(GpuAlloc)
@_role.register(GpuContiguous)
@_role.register(GpuDimShuffle)
@_role.register(GpuReshape)
@_role.register(GpuSpecifyShape)
@_role.register(GpuSplit)
@_role.register(GpuSubtensor)
@_role.register(GpuWindow)
@_role.register(CheckAndRaise)
def _view_role(op: Op, node: Apply) -> Role:
    return Role(Kind.VIEW, (0,), tuple(range(len(node.outputs))))


@_role.register(GpuIncSubtensor)
@_role.register(GpuSetWindow)
def _change_role(op: Op, node: Apply) -> Role:
    return Role(Kind.JOIN, (0, 1))


@_role.register(GpuJoin)
def _join_role(op: Any, node: Apply) -> Role:
    return Role(Kind.JOIN, tuple(range(first_joined(op.host_op), len(node.inputs))))


@_role.register(GpuCast)
def _cast_role(op: Op, node: Apply) -> Role:
    return Role(Kind.CAST, (0,))


@_role.register(Shape)
@_role.register(Shape_i)
def _shape_role(op: Op, node: Apply) -> Role:
    return Role(Kind.SHAPE, (0,), ())


# As in PyTorch's autocast: the results can overflow in float16, or lose many digits.
_WIDE_RESULTS = (
    Cosh, Exp, Exp2, Expm1, Log, Log1p, Log2, Log10, Pow, Reciprocal, Sinh, Sqr, Tan
)  # fmt: skip


def keeps_float32(op: GpuElemwise, output: int) -> bool:
    """Return whether a result of an elementwise Op should not be rounded without need."""
    scalar_op = op.scalar_op
    if isinstance(scalar_op, Composite):
        result: Variable = scalar_op.fgraph.outputs[output]
        scalar_op = result.owner.op if result.owner else scalar_op
    return isinstance(scalar_op, _WIDE_RESULTS)

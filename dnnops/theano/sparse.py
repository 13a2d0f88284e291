"""Names of ``theano.sparse`` that PyTensor's sparse module doesn't have, or has changed."""

from __future__ import annotations

import scipy
from pytensor import sparse
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant
from pytensor.sparse import math
from pytensor.sparse import variable as variables

from dnnops.theano.ops import OpName
from dnnops.theano.variables import StandIn

__all__ = [
    "MulSD",
    "MulSS",
    "MulSV",
    "Neg",
    "SparseConstant",
    "SparseConstantSignature",
    "SparseType",
    "SparseVariable",
    "SquareDiagonal",
    "constant",
    "enable_sparse",
    "scipy_ver",
    "sgn",
    "structured_monoid",
]

enable_sparse = True
scipy_ver = [int(part) for part in scipy.__version__.split(".")[:2]]

SparseType = sparse.SparseTensorType
#: In Theano, shared variables and constants were not instances of this class.
SparseVariable = StandIn(variables.SparseVariable, lambda: (Constant, SharedVariable))
SparseConstant = variables.SparseConstant
SparseConstantSignature = variables.SparseConstantSignature
constant = variables.constant
sgn = math.sign
structured_monoid = math.structured_elemwise

Neg = OpName("Neg", lambda: math.neg)
SquareDiagonal = OpName("SquareDiagonal", lambda: sparse.square_diagonal)
MulSS = math.SparseSparseMultiply
MulSD = math.SparseDenseMultiply
MulSV = math.SparseDenseVectorMultiply

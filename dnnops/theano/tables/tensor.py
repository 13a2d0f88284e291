"""Tables of ``theano.tensor``, with its subpackages ``nnet`` and ``signal``."""

from __future__ import annotations

from dnnops.theano.tables.base import Table, at
from dnnops.theano.tables.compiling import SHAPE_OPS

__all__ = ["GRADIENTS", "LINALG", "NNET", "TABLES"]

GRADIENTS = (
    at("pytensor.gradient", "Lop", "Rop", "subgraph_grad", "numeric_grad")
    | at("pytensor.gradient", consider_constant="zero_grad")
    | at("dnnops.theano.functions", "verify_grad")
    | at("dnnops.theano.tensors.gradient", "grad")
)
_SHARED_STREAMS = at(
    "dnnops.theano.random", "RandomStateSharedVariable", "RandomStreams", "randomstate_constructor"
)
_SUBTENSOR = "pytensor.tensor.subtensor"
_TENSOR_OPS = (
    at("pytensor.tensor.elemwise", "CAReduce", "Elemwise")
    | at("dnnops.theano.ops", "DimShuffle")
    | at("pytensor.tensor.basic", "ARange", "Alloc", "AllocEmpty", "Choose")
    | at("pytensor.tensor", sgn="sign")
    | at("pytensor.tensor.basic", "ExtractDiag", "Eye", "Join", "MakeVector", "Nonzero")
    | at("pytensor.tensor.basic", "PermuteRowElements", "ScalarFromTensor", "Split")
    | at("pytensor.tensor.basic", "TensorFromScalar")
    | at("pytensor.tensor.math", "All", "Any", "Argmax", "Dot", "Prod", "ProdWithoutZeros", "Sum")
    | at("pytensor.tensor.shape", "Reshape")
    | at(_SUBTENSOR, "AdvancedIncSubtensor", "AdvancedIncSubtensor1", "AdvancedSubtensor")
    | at(_SUBTENSOR, "AdvancedSubtensor1", "IncSubtensor", "Subtensor", "get_idx_list")
    | at(_SUBTENSOR, "advanced_inc_subtensor", "advanced_inc_subtensor1")
    | at(_SUBTENSOR, "advanced_subtensor", "advanced_subtensor1", "get_canonical_form_slice")
    | at("pytensor.tensor.exceptions", "NotScalarConstantError", "ShapeError")
    | at("pytensor.tensor.exceptions", AdvancedIndexingError="AdvancedIndexingError")
    | at("pytensor.tensor.type_other", "MakeSlice", "NoneTypeT", "SliceConstant", "SliceType")
    | at("pytensor.tensor.type_other", "as_int_none_variable")
    | at("pytensor.tensor.basic", extract_constant="extract_constant")
    | at("pytensor.tensor.basic", "register_transfer")
    | at("pytensor.tensor.math", "makeKeepDims")
    | at("pytensor.tensor.type", "wmatrix")
    | at("pytensor.tensor.variable", "TensorConstant", "TensorConstantSignature")
    | at("pytensor.tensor.subtensor", "SubtensorPrinter", "advanced_set_subtensor")
    | at("pytensor.tensor.subtensor", "advanced_set_subtensor1")
    | at("pytensor.scalar.basic", "mod_check")
    | at("builtins", AsTensorError="TypeError")
)
_DTYPES = at(
    "pytensor.tensor.type",
    *("all_dtypes", "complex_dtypes", "continuous_dtypes", "discrete_dtypes", "float_dtypes"),
    *("int_dtypes", "integer_dtypes", "uint_dtypes", "values_eq_approx_remove_inf"),
    *("values_eq_approx_remove_inf_nan", "values_eq_approx_remove_nan"),
)
LINALG = (
    "dnnops.theano.tensors.linalg",
    "pytensor.tensor.linalg",
    "pytensor.tensor.slinalg",
    "pytensor.tensor.nlinalg",
)
_ASSERT = at("pytensor.raise_op", "Assert") | {"assert_op": "pytensor.raise_op:assert_op"}

NNET = Table(
    (
        *("dnnops.theano.nnet", "dnnops.theano.ops", "dnnops.theano.abstract_conv"),
        *("dnnops.theano.blocksparse", "dnnops.nnet"),
    ),
    at("pytensor.scalar", scalar_sigmoid="sigmoid", scalar_softplus="softplus")
    | at("pytensor.scalar", ScalarSigmoid="Sigmoid", ScalarSoftplus="Softplus"),
)
_PRODUCTS = at(
    "pytensor.tensor.rewriting.math",
    *("compute_mul", "is_1pexp", "parse_mul_tree", "perform_sigm_times_exp", "simplify_mul"),
)
_POOL = Table(
    ("dnnops.theano.ops", "dnnops.nnet"), at("dnnops.theano.nnet", "max_pool_2d", "max_pool_3d")
)
_CORR = Table(("dnnops.theano.abstract_conv",))

TABLES: dict[str, Table] = {
    "theano.tensor": Table(
        ("dnnops.theano.tensor", "dnnops.theano.tensors.removed", "pytensor.tensor"),
        {
            **_TENSOR_OPS,
            **_DTYPES,
            **SHAPE_OPS,
            **GRADIENTS,
            **at("dnnops.theano.tensors.io", "LoadFromDisk", "load", "mpi_enabled"),
            **at("pytensor.printing", "pprint"),
            **at("pytensor.scalar", "int32"),
            **at("dnnops.theano.functions", _shared="shared"),
            **at("dnnops.theano.variables", "TensorVariable", "Variable"),
        },
    ),
    "theano.tensor.basic": Table(
        (
            *("dnnops.theano.tensor", "dnnops.theano.tensors.removed"),
            *("pytensor.tensor", "pytensor.tensor.basic"),
        ),
        _TENSOR_OPS
        | _DTYPES
        | SHAPE_OPS
        | GRADIENTS
        | at("pytensor.tensor.math", "_allclose", "_get_atol_rtol"),
    ),
    "theano.tensor.blas": Table(("pytensor.tensor.blas", "pytensor.tensor.rewriting.blas")),
    "theano.tensor.blas_c": Table(
        ("pytensor.tensor.blas_c", "pytensor.tensor.rewriting.blas_c"),
    ),
    "theano.tensor.blas_headers": Table(("pytensor.tensor.blas_headers",)),
    "theano.tensor.elemwise": Table(
        ("pytensor.tensor.elemwise",),
        at("pytensor.tensor.math", "MulWithoutZeros", "mul_without_zeros")
        | at("pytensor.tensor.variable", "TensorConstant")
        | at("dnnops.theano.ops", "DimShuffle")
        | at("pytensor.tensor.math", "All", "Any", "Prod", "ProdWithoutZeros", "Sum"),
    ),
    "theano.tensor.elemwise_cgen": Table(("pytensor.tensor.elemwise_cgen",)),
    "theano.tensor.extra_ops": Table(
        ("pytensor.tensor.extra_ops",),
        at("dnnops.theano.tensors.removed", "CumprodOp", "CumsumOp", "DiffOp", "RepeatOp")
        | at("dnnops.theano.tensor", "repeat", "unravel_index"),
    ),
    "theano.tensor.fft": Table(("pytensor.tensor.fft",)),
    "theano.tensor.fourier": Table(("pytensor.tensor.fourier",)),
    "theano.tensor.inplace": Table(("dnnops.theano.tensors.inplace",)),
    "theano.tensor.io": Table(("dnnops.theano.tensors.io",)),
    "theano.tensor.nlinalg": Table(
        LINALG,
        at("pytensor.tensor.basic", "ExtractDiag", "alloc_diag", "diag", "trace")
        | at("dnnops.theano.tensors.removed", "AllocDiag")
        | at("pytensor.tensor.basic", extract_diag="diagonal"),
    ),
    "theano.tensor.opt": Table(
        tuple(
            f"pytensor.tensor.rewriting.{name}"
            for name in ("basic", "math", "elemwise", "shape", "subtensor", "subtensor_lift")
        ),
        _ASSERT
        | at("pytensor.tensor.basic", "MakeVectorPrinter")
        | at("dnnops.theano.tensors.removed", "Rebroadcast")
        | at("pytensor.tensor.rewriting.shape", "ShapeFeature"),
    ),
    "theano.tensor.opt_uncanonicalize": Table(("pytensor.tensor.rewriting.uncanonicalize",)),
    "theano.tensor.raw_random": Table(
        ("dnnops.theano.tensors.raw_random",),
        at("dnnops.theano.random", RandomStreamsBase="RandomStreams"),
    ),
    "theano.tensor.shared_randomstreams": Table(names=_SHARED_STREAMS),
    "theano.tensor.sharedvar": Table(
        ("pytensor.tensor.sharedvar",),
        at("dnnops.theano.functions", tensor_constructor="shared")
        | at("pytensor.scalar.sharedvar", "ScalarSharedVariable"),
    ),
    "theano.tensor.slinalg": Table(LINALG),
    "theano.tensor.sort": Table(
        ("pytensor.tensor.sort",),
        at("dnnops.theano.tensors.removed", "TopKOp", "argtopk", "topk", "topk_and_argtopk"),
    ),
    "theano.tensor.subtensor": Table(
        (_SUBTENSOR,), at("pytensor.tensor.exceptions", "AdvancedIndexingError")
    ),
    "theano.tensor.type": Table(("pytensor.tensor.type",)),
    "theano.tensor.type_other": Table(("pytensor.tensor.type_other",)),
    "theano.tensor.utils": Table(("pytensor.tensor.utils",)),
    "theano.tensor.var": Table(
        ("pytensor.tensor.variable",),
        at("dnnops.theano.variables", "TensorVariable") | at("builtins", AsTensorError="TypeError"),
    ),
    "theano.tensor.xlogx": Table(("pytensor.tensor.xlogx",)),
    # Neural networks
    "theano.tensor.nnet": Table(
        NNET.sources,
        # dnnops.nnet has a function of this module's name.
        {
            **NNET.names,
            **at("dnnops.theano.conv", "abstract_conv2d"),
            "ctc": "theano.tensor.nnet.ctc:",
        },
    ),
    "theano.tensor.nnet.abstract_conv": Table(
        ("dnnops.theano.abstract_conv", "dnnops.nnet"),
        at("dnnops.theano.conv", conv2d="abstract_conv2d"),
    ),
    "theano.tensor.nnet.blocksparse": NNET,
    "theano.tensor.nnet.bn": NNET,
    "theano.tensor.nnet.conv": Table(("dnnops.nnet",), at("dnnops.theano.conv", "conv2d")),
    "theano.tensor.nnet.conv3d2d": Table(("dnnops.theano.conv3d2d",)),
    "theano.tensor.nnet.corr": _CORR,
    "theano.tensor.nnet.corr3d": _CORR,
    "theano.tensor.nnet.ctc": NNET,
    "theano.tensor.nnet.neighbours": NNET,
    "theano.tensor.nnet.nnet": NNET,
    "theano.tensor.nnet.sigm": Table(NNET.sources, {**NNET.names, **_PRODUCTS}),
    "theano.tensor.signal": Table(),
    "theano.tensor.signal.conv": Table(names=at("dnnops.theano.conv", conv2d="signal_conv2d")),
    "theano.tensor.signal.downsample": _POOL,
    "theano.tensor.signal.pool": _POOL,
}

"""Tables that map the names of Theano 1.0.5 to objects of PyTensor and dnnops."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["ADVICE", "TABLES", "Table"]


@dataclass(frozen=True)
class Table:
    """Contents of one Theano module.

    Attributes
    ----------
    sources : tuple of str
        Modules that provide its public names; the first module with a given name is used.
    names : mapping of str to str
        Further names and references to their objects; see `dnnops.theano.modules.resolve`.
    """

    sources: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)


def _at(module: str, *names: str, **renamed: str) -> dict[str, str]:
    """Return references to names in a module; keywords map a Theano name to another name there."""
    return {name: f"{module}:{name}" for name in names} | {
        name: f"{module}:{there}" for name, there in renamed.items()
    }


_BASIC = "pytensor.graph.basic"
_TRAVERSAL = "pytensor.graph.traversal"
_REWRITING = "pytensor.graph.rewriting.basic"

_GRAPH = (
    _at(_BASIC, "Apply", "Constant", "Node", "clone", "clone_get_equiv")
    | _at("dnnops.theano.variables", "Variable")
    | _at(_BASIC, "equal_computations")
    | _at(_TRAVERSAL, "ancestors", "general_toposort", "io_toposort")
    | _at(_TRAVERSAL, inputs="graph_inputs", ops="applys_between", variables="vars_between")
    | _at(_TRAVERSAL, orphans="orphans_between", stack_search="walk")
    | _at("dnnops.theano.functions", "is_same_graph")
)
_OPS = (
    _at("pytensor.graph.op", "Op", PureOp="Op")
    | _at("pytensor.link.c.op", "COp", "OpenMPOp")
    | _at("pytensor.link.c.interface", "CLinkerOp", "HideC")
    | _at("pytensor.graph.utils", "MethodNotDefined")
)
_TYPES = (
    _at("pytensor.graph.type", "Type", PureType="Type")
    | _at("pytensor.link.c.type", "CDataType", "EnumList", "EnumType", "CEnumType")
    | _at("pytensor.link.c.type", "Generic", "generic")
)
_FEATURES = _at(
    "pytensor.graph.features",
    *("Bookkeeper", "Feature", "History", "NoOutputFromInplace", "ReplaceValidate", "Validator"),
)
_REWRITERS = (
    _at(_REWRITING, "MergeOptimizer", "copy_stack_trace", "in2out", "out2in")
    | _at(_REWRITING, Optimizer="GraphRewriter", optimizer="graph_rewriter")
    | _at(_REWRITING, LocalOptimizer="NodeRewriter", local_optimizer="node_rewriter")
    | _at(
        _REWRITING, SeqOptimizer="SequentialGraphRewriter", LocalOptGroup="SequentialNodeRewriter"
    )
    | _at(_REWRITING, EquilibriumOptimizer="EquilibriumGraphRewriter")
    | _at(_REWRITING, NavigatorOptimizer="NodeProcessingGraphRewriter")
    | _at(_REWRITING, OpSub="SubstitutionNodeRewriter")
    | _at(_REWRITING, PatternSub="PatternNodeRewriter", TopoOptimizer="WalkingGraphRewriter")
    | _at("pytensor.graph.rewriting.db", "EquilibriumDB", "LocalGroupDB", "ProxyDB", "SequenceDB")
    | _at("pytensor.graph.rewriting.db", DB="RewriteDatabase", Query="RewriteDatabaseQuery")
)
_LINKERS = (
    _at("pytensor.link.basic", "Container", "Linker", "LocalLinker", "PerformLinker")
    | _at("pytensor.link.basic", "WrapLinker", "WrapLinkerMany")
    | _at("pytensor.link.c.basic", "CLinker", "DualLinker", "OpWiseCLinker")
)
_FUNCTION_GRAPH = (
    _at("pytensor.graph.fg", "FunctionGraph")
    | _at("pytensor.graph.utils", "InconsistencyError", "MissingInputError")
    | _at("pytensor.graph.destroyhandler", "DestroyHandler")
)
_PARAMS = _at("pytensor.link.c.params_type", "Params", "ParamsType")
_SHAPE_OPS = _at(
    "pytensor.tensor.shape", "Shape", "Shape_i", "SpecifyShape", "shape", "specify_shape"
)
_DEBUG = "pytensor.compile.debug"
_GRADIENTS = _at(
    "pytensor.gradient", "Lop", "Rop", "subgraph_grad", "verify_grad", "numeric_grad"
) | _at("pytensor.gradient", consider_constant="zero_grad")
_SHARED_STREAMS = _at("dnnops.theano.random", "RandomStreams")
_SUBTENSOR = "pytensor.tensor.subtensor"
_TENSOR_OPS = (
    _at("pytensor.tensor.elemwise", "CAReduce", "DimShuffle", "Elemwise")
    | _at("pytensor.tensor.basic", "ARange", "Alloc", "AllocDiag", "AllocEmpty", "Choose")
    | _at("pytensor.tensor.basic", "ExtractDiag", "Eye", "Join", "MakeVector", "Nonzero")
    | _at("pytensor.tensor.basic", "PermuteRowElements", "ScalarFromTensor", "Split")
    | _at("pytensor.tensor.basic", "TensorFromScalar")
    | _at("pytensor.tensor.math", "All", "Any", "Argmax", "Dot", "Prod", "ProdWithoutZeros", "Sum")
    | _at("pytensor.tensor.shape", "Reshape")
    | _at(_SUBTENSOR, "AdvancedIncSubtensor", "AdvancedIncSubtensor1", "AdvancedSubtensor")
    | _at(_SUBTENSOR, "AdvancedSubtensor1", "IncSubtensor", "Subtensor", "get_idx_list")
    | _at(_SUBTENSOR, "advanced_inc_subtensor", "advanced_inc_subtensor1")
    | _at(_SUBTENSOR, "advanced_subtensor", "advanced_subtensor1", "get_canonical_form_slice")
    | _at("pytensor.tensor.exceptions", "NotScalarConstantError", "ShapeError")
    | _at("pytensor.tensor.exceptions", AdvancedIndexingError="AdvancedIndexingError")
    | _at("pytensor.tensor.type_other", "MakeSlice", "NoneTypeT", "SliceConstant", "SliceType")
)
_DTYPES = _at(
    "pytensor.tensor.type",
    *("all_dtypes", "complex_dtypes", "continuous_dtypes", "discrete_dtypes", "float_dtypes"),
    *("int_dtypes", "integer_dtypes", "uint_dtypes", "values_eq_approx_remove_inf"),
    *("values_eq_approx_remove_inf_nan", "values_eq_approx_remove_nan"),
)
_LINALG = ("pytensor.tensor.linalg", "pytensor.tensor.slinalg", "pytensor.tensor.nlinalg")
_DEVICE = _at(
    "dnnops.theano.gpu",
    *("gpu_contiguous", "gpu_from_host", "host_from_gpu"),
) | _at("dnnops.gpuarray", "GpuContiguous", "GpuFromHost", "HostFromGpu", "as_gpuarray_variable")
_ASSERT = _at("pytensor.raise_op", "Assert") | {"assert_op": "pytensor.raise_op:assert_op"}

_SPARSE = ("dnnops.theano.sparse", "pytensor.sparse", "pytensor.sparse.basic")

_GOF = Table(
    names={
        **_GRAPH,
        **_OPS,
        **_TYPES,
        **_FEATURES,
        **_REWRITERS,
        **_LINKERS,
        **_FUNCTION_GRAPH,
        **_PARAMS,
    }
)
_NNET = Table(
    ("dnnops.theano.nnet", "dnnops.theano.ops", "dnnops.theano.abstract_conv", "dnnops.nnet"),
    _at("pytensor.scalar", scalar_sigmoid="sigmoid", scalar_softplus="softplus"),
)
_POOL = Table(
    ("dnnops.theano.ops", "dnnops.nnet"), _at("dnnops.theano.nnet", "max_pool_2d", "max_pool_3d")
)
_CORR = Table(("dnnops.theano.abstract_conv",))
_COMPILE = Table(
    ("dnnops.theano.functions", "pytensor.compile"),
    {
        **_SHAPE_OPS,
        **_at("pytensor.compile.builders", "OpFromGraph"),
        **_at("pytensor.compile.maker", "FunctionMaker"),
        **_at("pytensor.compile.executor", "Function", "AliasedMemoryError"),
        **_at("pytensor.compile.io", "Out", "SymbolicInput", "SymbolicOutput"),
        **_at(f"{_DEBUG}.debugmode", "DebugMode"),
        **_at(f"{_DEBUG}.monitormode", "MonitorMode"),
        **_at(f"{_DEBUG}.nanguardmode", "NanGuardMode"),
        **_at(f"{_DEBUG}.profiling", "ProfileStats"),
        **_at("pytensor.compile.mode", "FAST_COMPILE", "Mode", "get_default_mode", "get_mode"),
        "as_op": "pytensor:wrap_py",
        "pfunc": "dnnops.theano.functions:function",
    },
)

TABLES: dict[str, Table] = {
    "theano": Table(
        ("dnnops.theano.functions", "pytensor"),
        {
            **_GOF.names,
            **_GRADIENTS,
            **_at("pytensor.scan.views", "foldl", "foldr", "map", "reduce"),
            **_at("pytensor.scan.checkpoints", "scan_checkpoints"),
            **_at("pytensor.printing", "pp", "pprint"),
            **_at("pytensor.compile.io", "Out", "SymbolicInput", "SymbolicOutput"),
            **_at("pytensor.compile.mode", "predefined_linkers", "predefined_modes"),
            **_at(f"{_DEBUG}.profiling", "ProfileStats"),
            **_at("pytensor.tensor", "dot", "get_scalar_constant_value"),
            "FunctionMaker": "pytensor.compile.maker:FunctionMaker",
            "as_op": "pytensor:wrap_py",
            "clone": "dnnops.theano.functions:clone",  # differs from that of theano.gof
            "config": "dnnops.theano.config:config",
            "change_flags": "dnnops.theano.config:change_flags",
        },
    ),
    "theano.compat": Table(
        names=_at("collections", "OrderedDict") | _at("builtins", izip="zip", imap="map")
    ),
    "theano.configdefaults": Table(names=_at("dnnops.theano.config", "config")),
    "theano.configparser": Table(names=_at("dnnops.theano.config", "change_flags", "config")),
    "theano.d3viz": Table(("pytensor.d3viz",)),
    "theano.gradient": Table(("pytensor.gradient",), _GRADIENTS),
    "theano.ifelse": Table(
        ("pytensor.ifelse",),  # exists only before PyTensor 3.1
        _at("pytensor.conditional", "IfElse", "ifelse"),
    ),
    "theano.misc": Table(),
    "theano.misc.pkl_utils": Table(("pytensor.misc.pkl_utils",)),
    "theano.printing": Table(("pytensor.printing",)),
    "theano.raise_op": Table(("pytensor.raise_op",)),
    "theano.scalar": Table(
        ("pytensor.scalar",),
        _at("pytensor.scalar", Scalar="ScalarType", abs_="abs", inv="reciprocal", sgn="sign"),
    ),
    "theano.scalar.basic": Table(
        ("pytensor.scalar.basic",),
        _at("pytensor.scalar", Scalar="ScalarType", abs_="abs", inv="reciprocal", sgn="sign"),
    ),
    "theano.sparse": Table(_SPARSE, _at("pytensor.sparse.sharedvar", shared="sparse_constructor")),
    "theano.sparse.basic": Table(_SPARSE),
    "theano.sparse.sharedvar": Table(("pytensor.sparse.sharedvar",)),
    "theano.sparse.type": Table(names=_at("dnnops.theano.sparse", "SparseType")),
    "theano.sparse.utils": Table(("pytensor.sparse.utils",)),
    "theano.typed_list": Table(("pytensor.typed_list",)),
    "theano.updates": Table(names=_at("dnnops.theano.functions", "OrderedUpdates")),
    "theano.version": Table(
        names=_at(
            "dnnops.theano.functions",
            **dict.fromkeys(("full_version", "short_version", "version"), "VERSION"),
        )
    ),
    # The graph
    "theano.gof": _GOF,
    "theano.gof.cc": Table(names=_LINKERS),
    "theano.gof.fg": Table(names=_FUNCTION_GRAPH),
    "theano.gof.graph": Table(names=_GRAPH),
    "theano.gof.link": Table(names=_LINKERS),
    "theano.gof.op": Table(names=_OPS),
    "theano.gof.opt": Table(names=_REWRITERS),
    "theano.gof.optdb": Table(names=_REWRITERS),
    "theano.gof.params_type": Table(names=_PARAMS),
    "theano.gof.toolbox": Table(names=_FEATURES),
    "theano.gof.type": Table(names=_TYPES),
    "theano.gof.utils": Table(
        names=_at("pytensor.graph.utils", "MethodNotDefined", "add_tag_trace")
    ),
    # Compiling
    "theano.compile": _COMPILE,
    "theano.compile.builders": Table(("pytensor.compile.builders",)),
    "theano.compile.debugmode": Table((f"{_DEBUG}.debugmode",)),
    "theano.compile.function": _COMPILE,
    "theano.compile.function_module": _COMPILE,
    "theano.compile.io": Table(
        ("pytensor.compile.io",), _at("dnnops.theano.functions", "In", "Param")
    ),
    "theano.compile.mode": Table(("pytensor.compile.mode",), _at("pytensor.compile", "optdb")),
    "theano.compile.monitormode": Table((f"{_DEBUG}.monitormode",)),
    "theano.compile.nanguardmode": Table((f"{_DEBUG}.nanguardmode",)),
    "theano.compile.ops": Table(
        ("pytensor.compile.ops",), _SHAPE_OPS | {"as_op": "pytensor:wrap_py"}
    ),
    "theano.compile.pfunc": _COMPILE,
    "theano.compile.profiling": Table((f"{_DEBUG}.profiling",)),
    "theano.compile.sharedvalue": Table(
        ("pytensor.compile.sharedvalue",), _at("dnnops.theano.functions", "shared")
    ),
    # Loops
    "theano.scan_module": Table(
        ("pytensor.scan",),
        _at("dnnops.theano.functions", "clone", "scan")
        | _at("pytensor.scan.views", "foldl", "foldr", "map", "reduce"),
    ),
    "theano.scan_module.scan": Table(
        ("pytensor.scan.basic",), _at("dnnops.theano.functions", "scan")
    ),
    "theano.scan_module.scan_op": Table(("pytensor.scan.op",)),
    "theano.scan_module.scan_utils": Table(
        ("pytensor.scan.utils",),
        _at(_BASIC, "equal_computations") | _at("dnnops.theano.functions", "clone"),
    ),
    "theano.scan_module.scan_views": Table(("pytensor.scan.views",)),
    # Tensors
    "theano.tensor": Table(
        ("dnnops.theano.tensor", "pytensor.tensor"),
        {
            **_TENSOR_OPS,
            **_DTYPES,
            **_SHAPE_OPS,
            **_GRADIENTS,
            **_at("pytensor.printing", "pprint"),
            **_at("pytensor.scalar", "int32"),
            **_at("dnnops.theano.variables", "TensorVariable", "Variable"),
        },
    ),
    "theano.tensor.basic": Table(
        ("dnnops.theano.tensor", "pytensor.tensor", "pytensor.tensor.basic"),
        _TENSOR_OPS | _DTYPES | _SHAPE_OPS | _GRADIENTS,
    ),
    "theano.tensor.blas": Table(("pytensor.tensor.blas", "pytensor.tensor.rewriting.blas")),
    "theano.tensor.elemwise": Table(
        ("pytensor.tensor.elemwise",),
        _at("pytensor.tensor.math", "All", "Any", "Prod", "ProdWithoutZeros", "Sum"),
    ),
    "theano.tensor.extra_ops": Table(("pytensor.tensor.extra_ops",)),
    "theano.tensor.fft": Table(("pytensor.tensor.fft",)),
    "theano.tensor.nlinalg": Table(
        _LINALG,
        _at("pytensor.tensor.basic", "AllocDiag", "ExtractDiag", "alloc_diag", "diag", "trace")
        | _at("pytensor.tensor.basic", extract_diag="diagonal"),
    ),
    "theano.tensor.opt": Table(
        ("pytensor.tensor.rewriting.basic", "pytensor.tensor.rewriting.math"),
        _ASSERT | _at("pytensor.tensor.rewriting.shape", "ShapeFeature"),
    ),
    "theano.tensor.raw_random": Table(
        names={"RandomStreamsBase": "dnnops.theano.random:RandomStreams"}
    ),
    "theano.tensor.shared_randomstreams": Table(names=_SHARED_STREAMS),
    "theano.tensor.sharedvar": Table(
        ("pytensor.tensor.sharedvar",), _at("dnnops.theano.functions", tensor_constructor="shared")
    ),
    "theano.tensor.slinalg": Table(_LINALG),
    "theano.tensor.sort": Table(("pytensor.tensor.sort",)),
    "theano.tensor.subtensor": Table((_SUBTENSOR,)),
    "theano.tensor.type": Table(("pytensor.tensor.type",)),
    "theano.tensor.type_other": Table(("pytensor.tensor.type_other",)),
    "theano.tensor.utils": Table(("pytensor.tensor.utils",)),
    "theano.tensor.var": Table(
        ("pytensor.tensor.variable",), _at("dnnops.theano.variables", "TensorVariable")
    ),
    "theano.tensor.xlogx": Table(("pytensor.tensor.xlogx",)),
    # Neural networks
    "theano.tensor.nnet": _NNET,
    "theano.tensor.nnet.abstract_conv": Table(
        ("dnnops.theano.abstract_conv", "dnnops.nnet"),
        _at("dnnops.theano.conv", conv2d="abstract_conv2d"),
    ),
    "theano.tensor.nnet.blocksparse": _NNET,
    "theano.tensor.nnet.bn": _NNET,
    "theano.tensor.nnet.conv": Table(("dnnops.nnet",), _at("dnnops.theano.conv", "conv2d")),
    "theano.tensor.nnet.conv3d2d": Table(names=_at("dnnops.theano.conv", conv3d="conv3d2d")),
    "theano.tensor.nnet.corr": _CORR,
    "theano.tensor.nnet.corr3d": _CORR,
    "theano.tensor.nnet.ctc": _NNET,
    "theano.tensor.nnet.neighbours": _NNET,
    "theano.tensor.nnet.nnet": _NNET,
    "theano.tensor.nnet.sigm": _NNET,
    "theano.tensor.signal": Table(),
    "theano.tensor.signal.conv": Table(names=_at("dnnops.theano.conv", conv2d="signal_conv2d")),
    "theano.tensor.signal.downsample": _POOL,
    "theano.tensor.signal.pool": _POOL,
    # The GPU
    "theano.gpuarray": Table(("dnnops.gpuarray",), _at("dnnops.theano.gpu", "pygpu_activated")),
    "theano.gpuarray.basic_ops": Table(("dnnops.gpuarray",), _DEVICE),
    "theano.gpuarray.ctc": Table(("dnnops.dnn",), _at("dnnops.dnn", gpu_ctc="dnn_ctc")),
    "theano.gpuarray.dnn": Table(("dnnops.dnn",)),
    "theano.gpuarray.neighbours": Table(
        names=_at("dnnops.theano.ops", GpuImages2Neibs="Images2Neibs")
    ),
    "theano.gpuarray.type": Table(("dnnops.gpuarray",)),
    # Theano's experimental and deprecated modules
    "theano.sandbox": Table(),
    "theano.sandbox.cuda": Table(
        ("dnnops.theano.cuda",), _at("dnnops.gpuarray", CudaNdarrayType="GpuArrayType") | _DEVICE
    ),
    "theano.sandbox.cuda.basic_ops": Table(
        ("dnnops.gpuarray",),
        _DEVICE | _at("dnnops.gpuarray", as_cuda_ndarray_variable="as_gpuarray_variable"),
    ),
    "theano.sandbox.cuda.blas": Table(names=_at("dnnops.theano.cuda", "GpuCorrMM")),
    "theano.sandbox.cuda.dnn": Table(("dnnops.dnn",)),
    "theano.sandbox.linalg": Table(_LINALG),
    "theano.sandbox.neighbours": _NNET,
    "theano.sandbox.rng_mrg": Table(names=_at("dnnops.theano.random", "MRG_RandomStreams")),
}

_STREAMS = "Draw from theano.sandbox.rng_mrg.MRG_RandomStreams"
_ABSTRACT = "Use conv2d, conv2d_grad_wrt_inputs or conv2d_grad_wrt_weights of theano.tensor.nnet"

#: Replacements of missing names, by the name alone or with its module.
ADVICE: dict[str, str] = {
    "AdvancedIncSubtensor1": "Use theano.tensor.inc_subtensor or set_subtensor",
    "AdvancedSubtensor1": "Index a tensor: x[indices]",
    "AdvancedBooleanSubtensor": "Index a tensor with a mask, or use AdvancedSubtensor",
    "ConvOp": _ABSTRACT,
    "Conv3D": "Use theano.tensor.nnet.conv3d",
    "Flatten": "Use theano.tensor.flatten",
    "MaxAndArgmax": "Use theano.tensor.max_and_argmax",
    "DownsampleFactorMax": "Use theano.tensor.signal.pool.pool_2d",
    "Rebroadcast": "Use theano.tensor.addbroadcast or patternbroadcast",
    "Tile": "Use theano.tensor.tile",
    "topk": "Use theano.tensor.sort and a slice",
    "argtopk": "Use theano.tensor.argsort and a slice",
    "topk_and_argtopk": "Use theano.tensor.argsort and a slice",
    "get_test_value": "PyTensor has no test values: evaluate with x.eval({input: value})",
    "recv": "PyTensor has no MPI Ops",
    "send": "PyTensor has no MPI Ops",
    "tests": "Theano's tests are not part of PyTensor: use dnnops' own (`make test`)",
    "theano.test": "Theano's tests are not part of PyTensor: use dnnops' own (`make test`)",
    "theano.sandbox.rng_curand": _STREAMS,
    "theano.sandbox.cuda.rng_curand": _STREAMS,
    "theano.sandbox.fourier": "Use theano.tensor.fft",
    "theano.sandbox.scan": "Use theano.scan",
    "theano.sandbox.gpuarray": "Use theano.gpuarray",
    "theano.sandbox.softsign": "Use theano.tensor.nnet.softsign",
    "theano.compat.six": "Install the package six, and import it",
    "theano.compat.python2x": "Use Python's built-in functions",
}

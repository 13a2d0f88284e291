"""Tables of ``theano.gof``: graphs, Ops, types, rewrites and linkers."""

from __future__ import annotations

from dnnops.theano.tables.base import Table, at

__all__ = ["GOF", "TABLES"]

_HERE = "dnnops.theano.graph"
_BASIC = "pytensor.graph.basic"
_TRAVERSAL = "pytensor.graph.traversal"
_REWRITING = "pytensor.graph.rewriting.basic"

_GRAPH = (
    at(_BASIC, "Apply", "Constant", "Node", "clone", "clone_get_equiv")
    | at("dnnops.theano.variables", "Variable")
    | at(_BASIC, "equal_computations")
    | at(_TRAVERSAL, "general_toposort", "io_toposort")
    | at(_HERE, "ancestors", "get_debug_values", "get_test_value", "inputs", "is_in_ancestors")
    | at(_HERE, "list_of_nodes", "ops", "orphans", "stack_search", "variables")
    | at(_HERE, "variables_and_orphans")
    | at("pytensor.tensor.blas", "view_roots")
    | at("pytensor.graph.op", "io_connection_pattern")
    | at("pytensor.link.c.basic", "NoParams")
    | at("dnnops.theano.functions", is_same_graph_with_merge="is_same_graph")
    | at("builtins", default_leaf_formatter="str")
    | at("dnnops.theano.functions", "is_same_graph")
)
_OPS = (
    at("dnnops.theano.extending", "Op", PureOp="Op")
    | at("pytensor.link.c.op", "OpenMPOp", COp="ExternalCOp")
    | at("pytensor.link.c.interface", "CLinkerOp", "CLinkerType", "HideC")
    | at("pytensor.link.c.interface", "CLinkerObject")
    | at(_HERE, "get_debug_values", "get_test_value")
    | at("pytensor.graph.utils", "MethodNotDefined")
)
_TYPES = (
    at("dnnops.theano.extending", "Type", PureType="Type")
    | at("pytensor.link.c.type", "CDataType", "EnumList", "EnumType", "CEnumType")
    | at("pytensor.link.c.type", "CDataTypeConstant", "Generic", "generic")
    | at("pytensor.link.c.interface", "CLinkerType")
)
_FEATURES = at(
    "pytensor.graph.features",
    *("AlreadyThere", "BadOptimization", "Bookkeeper", "Feature", "History"),
    *("NoOutputFromInplace", "PreserveVariableAttributes", "ReplaceValidate", "Validator"),
    ReplacementDidntRemovedError="ReplacementDidNotRemoveError",
) | at(_HERE, "PreserveNames")
_REWRITERS = (
    at(_REWRITING, "MergeOptimizer", "copy_stack_trace", "in2out", "out2in")
    | at(_REWRITING, Optimizer="GraphRewriter", optimizer="graph_rewriter")
    | at("dnnops.theano.extending", "LocalOptimizer", "local_optimizer")
    | at(_REWRITING, SeqOptimizer="SequentialGraphRewriter", LocalOptGroup="SequentialNodeRewriter")
    | at(_REWRITING, EquilibriumOptimizer="EquilibriumGraphRewriter")
    | at(_REWRITING, NavigatorOptimizer="NodeProcessingGraphRewriter")
    | at(_REWRITING, OpSub="SubstitutionNodeRewriter")
    | at(_REWRITING, PatternSub="PatternNodeRewriter", TopoOptimizer="WalkingGraphRewriter")
    | at("pytensor.graph.rewriting.db", "EquilibriumDB", "LocalGroupDB", "ProxyDB", "SequenceDB")
    | at(_REWRITING, "ChangeTracker", "FromFunctionGraphRewriter", "MergeFeature")
    | at(_REWRITING, "merge_dict", "pre_constant_merge")
    | at(_REWRITING, CheckStackTraceOptimization="CheckStackTraceRewriter")
    | at(_REWRITING, CheckStrackTraceFeature="CheckStackTraceFeature")
    | at(_REWRITING, FromFunctionLocalOptimizer="FromFunctionNodeRewriter")
    | at(_REWRITING, FromFunctionOptimizer="FromFunctionGraphRewriter")
    | at(_REWRITING, inplace_optimizer="inplace_graph_rewriter")
    | at(_REWRITING, pre_greedy_local_optimizer="pre_greedy_node_rewriter")
    | at("dnnops.theano.functions", is_same_graph_with_merge="is_same_graph")
    | at(_HERE, "OpRemove", "check_stack_trace")
    | at("pytensor.graph.rewriting.db", "TopoDB")
    | at("pytensor.graph.rewriting.db", DB="RewriteDatabase", Query="RewriteDatabaseQuery")
)
_LINKERS = (
    at("pytensor.link.basic", "Container", "Linker", "LocalLinker", "PerformLinker")
    | at("pytensor.link.basic", "WrapLinker", "WrapLinkerMany")
    | at("pytensor.link.c.basic", "CLinker", "DualLinker", "OpWiseCLinker")
    | at("pytensor.link.utils", "gc_helper", "map_storage", "raise_with_op", "streamline")
)
_FUNCTION_GRAPH = (
    at("pytensor.graph.fg", "FunctionGraph")
    | at("pytensor.graph.utils", "InconsistencyError", "MissingInputError")
    | at("pytensor.graph.destroyhandler", "DestroyHandler")
    | at("pytensor.graph.null_type", "NullType")
)
_PARAMS = at("pytensor.link.c.params_type", "Params", "ParamsType")
GOF = Table(
    names={
        **_GRAPH,
        **_OPS,
        **_TYPES,
        **_FEATURES,
        **_REWRITERS,
        **_LINKERS,
        **_FUNCTION_GRAPH,
        **_PARAMS,
        **at(_HERE, "hashtype", "object2"),
    }
)

TABLES: dict[str, Table] = {
    "theano.gof": GOF,
    "theano.gof.cc": Table(("pytensor.link.c.basic",), _LINKERS | _OPS),
    "theano.gof.cmodule": Table(
        ("pytensor.link.c.cmodule",), at("pytensor.link.c.exceptions", "MissingGXX")
    ),
    "theano.gof.compiledir": Table(("pytensor.compile.compiledir",)),
    "theano.gof.compilelock": Table(
        ("pytensor.compile.compilelock",), at("pytensor.compile.compilelock", get_lock="lock_ctx")
    ),
    "theano.gof.cutils": Table(("pytensor.link.c.cutils",)),
    "theano.gof.destroyhandler": Table(("pytensor.graph.destroyhandler",)),
    "theano.gof.fg": Table(("pytensor.graph.fg",), _FUNCTION_GRAPH),
    "theano.gof.graph": Table(("pytensor.graph.basic",), _GRAPH),
    "theano.gof.link": Table(("pytensor.link.basic",), _LINKERS),
    "theano.gof.null_type": Table(("pytensor.graph.null_type",)),
    "theano.gof.op": Table(("pytensor.graph.op",), _OPS),
    "theano.gof.opt": Table(("pytensor.graph.rewriting.basic",), _REWRITERS),
    "theano.gof.optdb": Table(("pytensor.graph.rewriting.db",), _REWRITERS),
    "theano.gof.params_type": Table(("pytensor.link.c.params_type",), _PARAMS),
    "theano.gof.toolbox": Table(("pytensor.graph.features",), _FEATURES),
    "theano.gof.type": Table(("pytensor.graph.type", "pytensor.link.c.type"), _TYPES),
    "theano.gof.unify": Table(("pytensor.graph.rewriting.unify",)),
    "theano.gof.utils": Table(
        ("dnnops.theano.graph", "pytensor.graph.utils", "pytensor.utils"),
        at("pytensor.graph.utils", scratchpad="Scratchpad")
        | at("pytensor.graph.traversal", "toposort"),
    ),
    "theano.gof.vm": Table(("pytensor.link.vm",), at("pytensor.link.vm", VM_Linker="VMLinker")),
}

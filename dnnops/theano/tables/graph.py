"""Tables of ``theano.gof``: graphs, Ops, types, rewrites and linkers."""

from __future__ import annotations

from dnnops.theano.tables.base import Table, at

__all__ = ["GOF", "TABLES"]

_BASIC = "pytensor.graph.basic"
_TRAVERSAL = "pytensor.graph.traversal"
_REWRITING = "pytensor.graph.rewriting.basic"

_GRAPH = (
    at(_BASIC, "Apply", "Constant", "Node", "clone", "clone_get_equiv")
    | at("dnnops.theano.variables", "Variable")
    | at(_BASIC, "equal_computations")
    | at(_TRAVERSAL, "ancestors", "general_toposort", "io_toposort")
    | at(_TRAVERSAL, inputs="graph_inputs", ops="applys_between", variables="vars_between")
    | at(_TRAVERSAL, orphans="orphans_between", stack_search="walk")
    | at("dnnops.theano.functions", "is_same_graph")
)
_OPS = (
    at("pytensor.graph.op", "Op", PureOp="Op")
    | at("pytensor.link.c.op", "COp", "OpenMPOp")
    | at("pytensor.link.c.interface", "CLinkerOp", "HideC")
    | at("pytensor.graph.utils", "MethodNotDefined")
)
_TYPES = (
    at("pytensor.graph.type", "Type", PureType="Type")
    | at("pytensor.link.c.type", "CDataType", "EnumList", "EnumType", "CEnumType")
    | at("pytensor.link.c.type", "Generic", "generic")
)
_FEATURES = at(
    "pytensor.graph.features",
    *("Bookkeeper", "Feature", "History", "NoOutputFromInplace", "ReplaceValidate", "Validator"),
)
_REWRITERS = (
    at(_REWRITING, "MergeOptimizer", "copy_stack_trace", "in2out", "out2in")
    | at(_REWRITING, Optimizer="GraphRewriter", optimizer="graph_rewriter")
    | at(_REWRITING, LocalOptimizer="NodeRewriter", local_optimizer="node_rewriter")
    | at(_REWRITING, SeqOptimizer="SequentialGraphRewriter", LocalOptGroup="SequentialNodeRewriter")
    | at(_REWRITING, EquilibriumOptimizer="EquilibriumGraphRewriter")
    | at(_REWRITING, NavigatorOptimizer="NodeProcessingGraphRewriter")
    | at(_REWRITING, OpSub="SubstitutionNodeRewriter")
    | at(_REWRITING, PatternSub="PatternNodeRewriter", TopoOptimizer="WalkingGraphRewriter")
    | at("pytensor.graph.rewriting.db", "EquilibriumDB", "LocalGroupDB", "ProxyDB", "SequenceDB")
    | at("pytensor.graph.rewriting.db", DB="RewriteDatabase", Query="RewriteDatabaseQuery")
)
_LINKERS = (
    at("pytensor.link.basic", "Container", "Linker", "LocalLinker", "PerformLinker")
    | at("pytensor.link.basic", "WrapLinker", "WrapLinkerMany")
    | at("pytensor.link.c.basic", "CLinker", "DualLinker", "OpWiseCLinker")
)
_FUNCTION_GRAPH = (
    at("pytensor.graph.fg", "FunctionGraph")
    | at("pytensor.graph.utils", "InconsistencyError", "MissingInputError")
    | at("pytensor.graph.destroyhandler", "DestroyHandler")
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
    }
)

TABLES: dict[str, Table] = {
    "theano.gof": GOF,
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
        names=at("pytensor.graph.utils", "MethodNotDefined", "add_tag_trace")
    ),
}

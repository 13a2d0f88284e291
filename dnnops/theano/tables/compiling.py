"""Tables of ``theano.compile`` and ``theano.scan_module``."""

from __future__ import annotations

from dnnops.theano.tables.base import Table, at

__all__ = ["SHAPE_OPS", "TABLES"]

SHAPE_OPS = at(
    "pytensor.tensor.shape", "Shape", "Shape_i", "SpecifyShape", "shape", "specify_shape"
)
_DEBUG = "pytensor.compile.debug"
_COMPILE = Table(
    ("dnnops.theano.functions", "pytensor.compile"),
    {
        **SHAPE_OPS,
        **at("pytensor.compile.builders", "OpFromGraph"),
        **at("pytensor.compile.maker", "FunctionMaker"),
        **at("pytensor.compile.executor", "Function", "AliasedMemoryError"),
        **at("pytensor.compile.io", "Out", "SymbolicInput", "SymbolicOutput"),
        **at("pytensor.tensor.shape", "register_shape_c_code", "register_shape_i_c_code"),
        **at("pytensor.tensor.rewriting.ofg", "inline_ofg_expansion"),
        **at(f"{_DEBUG}.debugmode", "DebugMode"),
        **at("dnnops.theano.extending", "MonitorMode", "optdb"),
        **at(f"{_DEBUG}.nanguardmode", "NanGuardMode"),
        **at(f"{_DEBUG}.profiling", "ProfileStats"),
        **at("pytensor.compile.mode", "FAST_COMPILE", "Mode", "get_default_mode", "get_mode"),
        **at("dnnops.theano.tensors.removed", "Rebroadcast"),
        "as_op": "pytensor:wrap_py",
        "pfunc": "dnnops.theano.functions:function",
    },
)

TABLES: dict[str, Table] = {
    "theano.compile": _COMPILE,
    "theano.compile.builders": Table(
        ("pytensor.compile.builders",), at("pytensor.tensor.rewriting.ofg", "inline_ofg_expansion")
    ),
    "theano.compile.debugmode": Table(
        (f"{_DEBUG}.debugmode",), at("dnnops.theano.functions", "debugprint")
    ),
    "theano.compile.function": _COMPILE,
    "theano.compile.function_module": Table(
        (*_COMPILE.sources, "pytensor.compile.executor", "pytensor.compile.maker"), _COMPILE.names
    ),
    "theano.compile.io": Table(
        ("pytensor.compile.io",), at("dnnops.theano.functions", "In", "Param")
    ),
    "theano.compile.mode": Table(
        ("pytensor.compile.mode",),
        at("dnnops.theano.extending", "optdb"),
    ),
    "theano.compile.monitormode": Table(
        names=at("dnnops.theano.extending", "MonitorMode", "detect_nan")
    ),
    "theano.compile.nanguardmode": Table((f"{_DEBUG}.nanguardmode",)),
    "theano.compile.ops": Table(
        ("pytensor.compile.ops",),
        SHAPE_OPS
        | at("pytensor.tensor.shape", "register_shape_c_code", "register_shape_i_c_code", "shape_i")
        | at(f"{_DEBUG}.debugmode", "OutputGuard")
        | at("dnnops.theano.tensors.removed", "Rebroadcast")
        | {"as_op": "pytensor:wrap_py"},
    ),
    "theano.compile.pfunc": _COMPILE,
    "theano.compile.profiling": Table((f"{_DEBUG}.profiling",)),
    "theano.compile.sharedvalue": Table(
        ("pytensor.compile.sharedvalue",), at("dnnops.theano.functions", "shared")
    ),
    # Loops
    "theano.scan_module": Table(
        ("pytensor.scan",),
        at("dnnops.theano.functions", "clone", "scan")
        | at("pytensor.scan.views", "foldl", "foldr", "map", "reduce"),
    ),
    "theano.scan_module.scan_checkpoints": Table(("pytensor.scan.checkpoints",)),
    "theano.scan_module.scan_opt": Table(
        ("pytensor.scan.rewriting",),
        at("pytensor.scan.rewriting.inplace", "ScanInplaceOptimizer")
        | at("pytensor.scan.rewriting.merge", "ScanMerge", "has_duplicates", "make_equiv")
        | at("pytensor.scan.rewriting.merge", "scan_merge_inouts")
        | at("pytensor.scan.rewriting.db", "scan_eqopt1", "scan_eqopt2", "scan_seqopt1"),
    ),
    "theano.scan_module.scan": Table(
        ("pytensor.scan.basic",), at("dnnops.theano.functions", "scan")
    ),
    "theano.scan_module.scan_op": Table(("pytensor.scan.op",)),
    "theano.scan_module.scan_utils": Table(
        ("pytensor.scan.utils",),
        at("pytensor.graph.basic", "equal_computations")
        | at("dnnops.theano.functions", "clone")
        | at("pytensor.scan.basic", "get_updates_and_outputs"),
    ),
    "theano.scan_module.scan_views": Table(("pytensor.scan.views",)),
}

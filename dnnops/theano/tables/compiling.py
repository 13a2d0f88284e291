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
        **at(f"{_DEBUG}.debugmode", "DebugMode"),
        **at(f"{_DEBUG}.monitormode", "MonitorMode"),
        **at(f"{_DEBUG}.nanguardmode", "NanGuardMode"),
        **at(f"{_DEBUG}.profiling", "ProfileStats"),
        **at("pytensor.compile.mode", "FAST_COMPILE", "Mode", "get_default_mode", "get_mode"),
        "as_op": "pytensor:wrap_py",
        "pfunc": "dnnops.theano.functions:function",
    },
)

TABLES: dict[str, Table] = {
    "theano.compile": _COMPILE,
    "theano.compile.builders": Table(("pytensor.compile.builders",)),
    "theano.compile.debugmode": Table((f"{_DEBUG}.debugmode",)),
    "theano.compile.function": _COMPILE,
    "theano.compile.function_module": _COMPILE,
    "theano.compile.io": Table(
        ("pytensor.compile.io",), at("dnnops.theano.functions", "In", "Param")
    ),
    "theano.compile.mode": Table(("pytensor.compile.mode",), at("pytensor.compile", "optdb")),
    "theano.compile.monitormode": Table((f"{_DEBUG}.monitormode",)),
    "theano.compile.nanguardmode": Table((f"{_DEBUG}.nanguardmode",)),
    "theano.compile.ops": Table(
        ("pytensor.compile.ops",), SHAPE_OPS | {"as_op": "pytensor:wrap_py"}
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
    "theano.scan_module.scan": Table(
        ("pytensor.scan.basic",), at("dnnops.theano.functions", "scan")
    ),
    "theano.scan_module.scan_op": Table(("pytensor.scan.op",)),
    "theano.scan_module.scan_utils": Table(
        ("pytensor.scan.utils",),
        at("pytensor.graph.basic", "equal_computations") | at("dnnops.theano.functions", "clone"),
    ),
    "theano.scan_module.scan_views": Table(("pytensor.scan.views",)),
}

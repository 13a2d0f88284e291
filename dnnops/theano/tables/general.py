"""Tables of ``theano`` itself and its smaller modules."""

from __future__ import annotations

from dnnops.theano.tables.base import Table, at
from dnnops.theano.tables.graph import GOF
from dnnops.theano.tables.tensor import GRADIENTS

__all__ = ["TABLES"]

_SPARSE = ("dnnops.theano.sparse", "pytensor.sparse", "pytensor.sparse.basic")
_DEBUG = "pytensor.compile.debug"

TABLES: dict[str, Table] = {
    "theano": Table(
        ("dnnops.theano.functions", "pytensor"),
        {
            **GOF.names,
            **GRADIENTS,
            **at("pytensor.scan.views", "foldl", "foldr", "map", "reduce"),
            **at("pytensor.scan.checkpoints", "scan_checkpoints"),
            **at("pytensor.printing", "pp", "pprint"),
            **at("pytensor.compile.io", "Out", "SymbolicInput", "SymbolicOutput"),
            **at("pytensor.compile.mode", "predefined_linkers", "predefined_modes"),
            **at(f"{_DEBUG}.profiling", "ProfileStats"),
            **at("pytensor.tensor", "dot", "get_scalar_constant_value"),
            "FunctionMaker": "pytensor.compile.maker:FunctionMaker",
            "as_op": "pytensor:wrap_py",
            "clone": "dnnops.theano.functions:clone",  # differs from that of theano.gof
            "config": "dnnops.theano.config:config",
            "change_flags": "dnnops.theano.config:change_flags",
        },
    ),
    "theano.compat": Table(
        names=at("collections", "OrderedDict") | at("builtins", izip="zip", imap="map")
    ),
    "theano.configdefaults": Table(names=at("dnnops.theano.config", "config")),
    "theano.configparser": Table(names=at("dnnops.theano.config", "change_flags", "config")),
    "theano.d3viz": Table(("pytensor.d3viz",)),
    "theano.gradient": Table(("pytensor.gradient",), GRADIENTS),
    "theano.ifelse": Table(
        ("pytensor.ifelse",),  # exists only before PyTensor 3.1
        at("pytensor.conditional", "IfElse", "ifelse"),
    ),
    "theano.misc": Table(),
    "theano.misc.pkl_utils": Table(("pytensor.misc.pkl_utils",)),
    "theano.printing": Table(("pytensor.printing",)),
    "theano.raise_op": Table(("pytensor.raise_op",)),
    "theano.scalar": Table(
        ("pytensor.scalar",),
        at("pytensor.scalar", Scalar="ScalarType", abs_="abs", inv="reciprocal", sgn="sign"),
    ),
    "theano.scalar.basic": Table(
        ("pytensor.scalar.basic",),
        at("pytensor.scalar", Scalar="ScalarType", abs_="abs", inv="reciprocal", sgn="sign"),
    ),
    "theano.sparse": Table(_SPARSE, at("pytensor.sparse.sharedvar", shared="sparse_constructor")),
    "theano.sparse.basic": Table(_SPARSE),
    "theano.sparse.sharedvar": Table(("pytensor.sparse.sharedvar",)),
    "theano.sparse.type": Table(names=at("dnnops.theano.sparse", "SparseType")),
    "theano.sparse.utils": Table(("pytensor.sparse.utils",)),
    "theano.typed_list": Table(("pytensor.typed_list",)),
    "theano.updates": Table(names=at("dnnops.theano.functions", "OrderedUpdates")),
    "theano.version": Table(
        names=at(
            "dnnops.theano.functions",
            **dict.fromkeys(("full_version", "short_version", "version"), "VERSION"),
        )
    ),
}

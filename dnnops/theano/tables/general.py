"""Tables of ``theano`` itself and its smaller modules."""

from __future__ import annotations

from dnnops.theano.tables.base import Table, at
from dnnops.theano.tables.graph import GOF
from dnnops.theano.tables.tensor import GRADIENTS

__all__ = ["TABLES"]

_SPARSE = ("dnnops.theano.sparse", "pytensor.sparse", "pytensor.sparse.basic")
_DEBUG = "pytensor.compile.debug"
_SCALAR_NAMES = (
    at("pytensor.scalar", Scalar="ScalarType", abs_="abs", inv="reciprocal", sgn="sign")
    | at("pytensor.scalar.basic", Inv="Reciprocal", Sgn="Sign")
    | at("builtins", builtin_bool="bool", builtin_complex="complex", builtin_float="float")
    | at("builtins", builtin_int="int")
)

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
            **at("pytensor.compile.mode", "predefined_optimizers"),
            **at(f"{_DEBUG}.dump", "function_dump"),
            **at("dnnops.theano.graph", "object2"),
            # PyTensor has a function of this name.
            "ifelse": "theano.ifelse:",
            **{name: f"theano.gof.{name}:" for name in ("opt", "toolbox", "utils")},
            **at(f"{_DEBUG}.profiling", "ProfileStats"),
            **at("pytensor.tensor", "dot", "get_scalar_constant_value"),
            "FunctionMaker": "pytensor.compile.maker:FunctionMaker",
            "as_op": "pytensor:wrap_py",
            "clone": "dnnops.theano.functions:clone",  # differs from that of theano.gof
            "_asarray": "dnnops.theano.functions:asarray",
            "config": "dnnops.theano.config:config",
            "change_flags": "dnnops.theano.config:change_flags",
        },
    ),
    "theano.compat": Table(
        ("dnnops.theano.compat",),
        at("collections", "OrderedDict", DefaultOrderedDict="OrderedDict")
        | at("builtins", "next", ifilter="filter", izip="zip", imap="map")
        | at("collections.abc", "Callable", "Iterable", "Mapping", "ValuesView")
        | at("collections.abc", DictMixin="MutableMapping")
        | at("importlib", "reload")
        | at("io", "BytesIO")
        | at("operator", operator_div="truediv")
        | at("pytensor.utils", "get_unbound_function", "maybe_add_to_os_environ_pathlist"),
    ),
    "theano.configdefaults": Table(names=at("dnnops.theano.config", "config")),
    "theano.configparser": Table(
        ("pytensor.configparser",), at("dnnops.theano.config", "change_flags", "config")
    ),
    "theano.d3viz": Table(("pytensor.d3viz",)),
    "theano.d3viz.d3viz": Table(("pytensor.d3viz.d3viz",)),
    "theano.d3viz.formatting": Table(("pytensor.d3viz.formatting",)),
    "theano.gradient": Table(
        ("pytensor.gradient",),
        GRADIENTS
        | at("dnnops.theano.functions", "format_as")
        | at("pytensor.gradient", ConsiderConstant="ZeroGrad", consider_constant_="zero_grad"),
    ),
    "theano.ifelse": Table(
        ("pytensor.ifelse",),  # exists only before PyTensor 3.1
        at("pytensor.conditional", "IfElse", "ifelse"),
    ),
    "theano.misc": Table(),
    "theano.misc.frozendict": Table(("pytensor.misc.frozendict",)),
    "theano.misc.may_share_memory": Table(("pytensor.misc.may_share_memory",)),
    "theano.misc.ordered_set": Table(("pytensor.misc.ordered_set",)),
    "theano.misc.pkl_utils": Table(("dnnops.theano.pickling", "pytensor.misc.pkl_utils")),
    "theano.misc.safe_asarray": Table(names=at("dnnops.theano.functions", _asarray="asarray")),
    "theano.misc.windows": Table(
        names=at(
            "pytensor.utils",
            *("call_subprocess_Popen", "output_subprocess_Popen", "subprocess_Popen"),
        )
    ),
    "theano.printing": Table(("pytensor.printing",), at("dnnops.theano.functions", "debugprint")),
    "theano.raise_op": Table(("pytensor.raise_op",)),
    "theano.scalar": Table(
        ("pytensor.scalar",),
        _SCALAR_NAMES,
    ),
    "theano.scalar.basic": Table(
        ("pytensor.scalar.basic",),
        _SCALAR_NAMES,
    ),
    "theano.scalar.basic_scipy": Table(("pytensor.scalar.math",)),
    "theano.scalar.sharedvar": Table(("pytensor.scalar.sharedvar",)),
    "theano.sparse": Table(_SPARSE, at("pytensor.sparse.sharedvar", shared="sparse_constructor")),
    "theano.sparse.basic": Table(_SPARSE),
    "theano.sparse.opt": Table(("pytensor.sparse.rewriting",)),
    "theano.sparse.sharedvar": Table(("pytensor.sparse.sharedvar",)),
    "theano.sparse.type": Table(names=at("dnnops.theano.sparse", "SparseType")),
    "theano.sparse.utils": Table(("pytensor.sparse.utils",)),
    "theano.typed_list": Table(("pytensor.typed_list",)),
    **dict.fromkeys(
        ("theano.typed_list.basic", "theano.typed_list.type"), Table(("pytensor.typed_list",))
    ),
    "theano.updates": Table(names=at("dnnops.theano.functions", "OrderedUpdates")),
    "theano.version": Table(
        names=at(
            "dnnops.theano.functions",
            **dict.fromkeys(("full_version", "short_version", "version"), "VERSION"),
        )
    ),
}

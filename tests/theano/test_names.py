"""Every public name of Theano 1.0.5 is there, or its error says what to use."""

from __future__ import annotations

import importlib
import pkgutil
import re
import warnings
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from dnnops.theano.tables import advice_for
from tests.theano.record_names import NAMES

#: Names that need a replacement and not a counterpart, at most. They are internals of Theano:
#: rewrites, code generation, the GPU's Ops. The error names what to use.
MISSING = 990


def recorded() -> dict[str, list[str]]:
    """Return the record: names by heading."""
    record: dict[str, list[str]] = {}
    for line in NAMES.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            heading = line.strip("[]")
            record[heading] = []
        else:
            record[heading] += line.split()
    return record


RECORD = recorded()
MODULES = [name for name in RECORD if name != "flags" and ":" not in name]


def errors(module: str) -> Iterator[tuple[str, Exception]]:
    """Yield the names of a module that are missing, with the error for each."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some names are deprecated in PyTensor
        try:
            imported = importlib.import_module(module)
        except ImportError as error:
            yield "", error
            return
        for name in RECORD[module]:
            try:
                getattr(imported, name)
            except AttributeError as error:
                yield name, error


def test_the_record_is_whole():
    assert sum(map(len, RECORD.values())) > 4000
    assert {"tensordot", "topk", "sgn", "Op"} <= {n for names in RECORD.values() for n in names}


def test_every_name_is_there_or_its_error_says_what_to_use(theano: Any):
    silent, missing = [], 0
    for module in MODULES:
        for name, error in errors(module):
            missing += 1 if name else len(RECORD[module])
            text = str(error)
            if "neither PyTensor nor dnnops provides it. " not in text:
                silent.append(f"{module}.{name}: {text}")
    assert not silent, "\n".join(silent)
    assert missing <= MISSING


def test_what_errors_name_exists(theano: Any):
    texts = {str(error) for module in MODULES for _, error in errors(module)}
    advice = " ".join(text.partition("provides it. ")[2] for text in texts)
    named = set(re.findall(r"\b(?:theano|dnnops|pytensor)(?:\.\w+)+", advice))
    assert {"theano.tensor.xlogx", "dnnops.dnn.RNNBlock", "pytensor.compile"} <= named
    assert [name for name in sorted(named) if not exists(name)] == []


def exists(name: str) -> bool:
    """Return whether a name can be resolved, importing modules."""
    try:
        pkgutil.resolve_name(name)
    except (AttributeError, ImportError):
        return False
    return True


def test_submodules_are_modules(theano: Any):
    """A function of PyTensor with a module's name doesn't hide it, unless Theano's own did."""
    hidden = []
    for module in MODULES:
        parent, _, name = module.rpartition(".")
        if not parent or name in RECORD[parent]:
            continue
        try:
            importlib.import_module(module)
        except ImportError:
            continue
        found = getattr(importlib.import_module(parent), name)
        hidden += [] if isinstance(found, ModuleType) else [module]
    assert not hidden


@pytest.mark.parametrize("flag", RECORD["flags"])
def test_flags(theano: Any, flag: str):
    """A flag has a value, and can be set to it."""
    *sections, last = flag.split(".")
    section = theano.config
    for one in sections:
        section = getattr(section, one)
    value = getattr(section, last)
    if not callable(value):
        setattr(section, last, value)
        assert getattr(section, last) == value


def test_advice_is_only_given_for_what_is_missing(theano: Any):
    assert advice_for("theano.tensor.nnet.conv", "ConvOp").startswith("Use conv2d")
    assert advice_for("theano.sandbox", "rng_curand").startswith("Draw from")
    assert advice_for("theano.misc", "strutil").startswith("Use textwrap")
    assert advice_for("theano.gpuarray.dnn", "GpuDnnRNNOp") == "Use dnnops.dnn.RNNBlock"
    assert advice_for("numpy", "ones") is None


#: Members that have no counterpart: methods of Python 2, of the graphs that are built inside, and
#: the states of MRG31k3p.
NO_COUNTERPART = {
    "__div__", "__nonzero__", "__rdiv__",
    "__asapply__", "__repr_test_value__", "append_construction_observer",
    "notify_construction_observers", "remove_construction_observer", "run_params",
    "__add_client__", "__import__", "__import_r__", "__remove_client__", "__setstate__",
    "__setup_node__", "__setup_r__", "disown",
    "Constant", "Variable", "value_validity_msg", "construction_observers",
    "defaults", "finder", "indices", "inv_finder",
    "get_substream_rstates", "inc_rstate", "n_streams", "pretty_return", "rstate",
}  # fmt: skip


def test_members_of_classes(theano: Any):
    tt = theano.tensor
    x = tt.dmatrix("x")
    objects = {
        "theano.compile.function_module:Function": theano.function([x], x),
        "theano.compile.sharedvalue:SharedVariable": theano.shared(1.0),
        "theano.gof.fg:FunctionGraph": theano.gof.FunctionGraph([x], [x + 1], clone=False),
        "theano.gof.graph:Apply": (x + 1).owner,
        "theano.gof.graph:Constant": tt.constant(1.0),
        "theano.gof.graph:Variable": x,
        "theano.gof.op:Op": tt.exp,
        "theano.gof.op:PureOp": tt.exp,
        "theano.gof.type:PureType": x.type,
        "theano.sandbox.rng_mrg:MRG_RandomStreams": theano.sandbox.rng_mrg.MRG_RandomStreams(1),
        "theano.scalar.basic:_scalar_py_operators": theano.scalar.float64(),
        "theano.sparse.basic:_sparse_py_operators": theano.sparse.csr_matrix(),
        "theano.tensor.shared_randomstreams:RandomStreams": (
            tt.shared_randomstreams.RandomStreams(1)
        ),
        "theano.tensor.type:TensorType": x.type,
        "theano.tensor.var:_tensor_py_operators": x,
        "theano.typed_list.basic:_typed_list_py_operators": (
            theano.typed_list.TypedListType(x.type)()
        ),
    }
    assert set(objects) == {heading for heading in RECORD if ":" in heading}
    missing = {
        f"{heading}.{name}"
        for heading, value in objects.items()
        for name in RECORD[heading]
        if not hasattr(value, name) and name not in NO_COUNTERPART
    }
    # In Theano, the first only raised an error.
    assert missing == {
        "theano.compile.sharedvalue:SharedVariable.value",
        "theano.typed_list.basic:_typed_list_py_operators.dtype",
        "theano.typed_list.basic:_typed_list_py_operators.ndim",
    }

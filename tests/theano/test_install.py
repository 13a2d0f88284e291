"""What ``import theano`` imports, and that nothing else changes."""

from __future__ import annotations

import importlib
import subprocess
import sys
import warnings
from types import ModuleType
from typing import Any

import pytensor
import pytensor.tensor as pt
import pytest

import dnnops.nnet
import dnnops.theano
from dnnops.errors import DnnNotSupportedError
from dnnops.theano.tables import ADVICE, TABLES

#: What one of the supported releases of PyTensor does not have.
NOT_EVERYWHERE = {"AdvancedIncSubtensor1", "AdvancedSubtensor1"}


def test_nothing_happens_without_install():
    with pytest.raises(ModuleNotFoundError):
        import theano  # noqa: F401


def test_install_is_idempotent_and_undone():
    filters = list(warnings.filters)
    finders = list(sys.meta_path)
    dnnops.theano.install()
    dnnops.theano.install()
    assert len(sys.meta_path) == len(finders) + 1
    assert dnnops.theano.installed()
    import theano.tensor.nnet

    assert theano.tensor.nnet is sys.modules["theano.tensor.nnet"]
    dnnops.theano.uninstall()
    dnnops.theano.uninstall()
    assert not dnnops.theano.installed()
    assert sys.meta_path == finders
    assert list(warnings.filters) == filters
    with pytest.raises(ModuleNotFoundError):
        import theano.tensor


def test_real_theano_is_refused(monkeypatch: pytest.MonkeyPatch):
    real = ModuleType("theano")
    real.__file__ = "/somewhere/theano/__init__.py"
    monkeypatch.setitem(sys.modules, "theano", real)
    with pytest.raises(DnnNotSupportedError, match=r"already.*/somewhere/theano.*before anything"):
        dnnops.theano.install()
    monkeypatch.delitem(sys.modules, "theano")
    assert not dnnops.theano.installed()


def test_importing_it_installs_nothing_and_leaves_pytensor_alone():
    program = (
        "import pytensor.tensor.variable as v; before = dict(vars(v.TensorVariable)); "
        "import sys, dnnops.theano; assert not dnnops.theano.installed(); "
        "assert 'dnnops.theano.tables' not in sys.modules; "
        "dnnops.theano.install(); import theano.tensor; theano.tensor.stack; "
        "assert dict(vars(v.TensorVariable)) == before"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("name", TABLES)
def test_every_module_has_what_its_table_says(name: str, theano: Any):
    module = importlib.import_module(name)
    for source in TABLES[name].sources:
        importlib.import_module(source)
    for own in TABLES[name].names:
        assert hasattr(module, own) or own in NOT_EVERYWHERE, own
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some names are deprecated in PyTensor
        for public in module.__all__:
            getattr(module, public)
    assert set(module.__all__) <= set(dir(module))


def test_parents_of_modules_are_there():
    for name in TABLES:
        assert name == "theano" or name.rpartition(".")[0] in TABLES


def test_star_import(theano: Any):
    names: dict[str, Any] = {}
    exec("from theano.tensor import *\nfrom theano.tensor.nnet import *", names)
    assert names["matrix"]("x").type.ndim == 2
    assert names["sigmoid"] is dnnops.nnet.sigmoid


def test_the_same_objects(theano: Any):
    import theano.tensor as tt
    from theano.gof import Apply, Op
    from theano.gpuarray.dnn import dnn_conv
    from theano.tensor.var import TensorVariable

    assert tt.exp is pt.exp
    assert Apply is pytensor.graph.Apply
    assert isinstance(pt.exp, Op)
    assert issubclass(pytensor.graph.Op, Op)
    assert dnn_conv is dnnops.dnn.dnn_conv
    assert tt.TensorVariable is TensorVariable
    assert theano.__version__.startswith("1.0.5")


def test_functions_win_over_modules_of_their_name(theano: Any):
    import theano.compile.function
    import theano.tensor.sort
    import theano.tensor.var
    from theano.compile.function import function

    assert theano.compile.function is function
    assert theano.tensor.var is pt.var
    assert theano.tensor.sort is pt.sort


def test_a_missing_name_says_what_to_use(theano: Any):
    with pytest.raises(AttributeError, match=r"tensor\.inc_code is not available.*C code"):
        theano.tensor.inc_code  # noqa: B018
    with pytest.raises(ImportError, match=r"nnet\.conv\.ConvOp is not.* conv2d"):
        from theano.tensor.nnet.conv import ConvOp  # noqa: F401
    with pytest.raises(ImportError, match=r"theano\.sandbox\.rng_curand is not .*rng_mrg"):
        import theano.sandbox.rng_curand
    with pytest.raises(AttributeError, match=r"theano\.tensor\.nnet\.nonsense is not available"):
        theano.tensor.nnet.nonsense  # noqa: B018
    assert not hasattr(theano.tensor, "nonsense")


def test_advice_names_what_is_missing(theano: Any):
    """Advice for an existing name would never be shown."""
    for name in ADVICE:
        modules = (
            [name.rpartition(".")[0]] if "." in name else ["theano.tensor", "theano.tensor.nnet"]
        )
        for module in modules:
            if module not in TABLES or name in NOT_EVERYWHERE:
                continue
            assert not hasattr(importlib.import_module(module), name.rpartition(".")[2]), name


def test_shared_variables_and_constants_are_no_tensor_variables(theano: Any):
    """Lasagne uses it to tell whether an initial state is an expression or a parameter."""
    tt = theano.tensor
    assert isinstance(tt.matrix(), tt.TensorVariable)
    assert isinstance(tt.matrix() + 1, tt.TensorVariable)
    assert not isinstance(theano.shared([1.0]), tt.TensorVariable)
    assert not isinstance(tt.constant(1.0), tt.TensorVariable)
    assert isinstance(theano.shared([1.0]), theano.Variable)
    for made in (tt.TensorVariable(tt.matrix().type), theano.Variable(tt.matrix().type, name="x")):
        assert type(made).__module__.startswith("pytensor.")
        assert isinstance(made, theano.Variable)
    assert issubclass(pt.TensorVariable, theano.Variable)
    assert not issubclass(type(tt.constant(1.0)), tt.TensorVariable)

    class Mine(theano.gof.Variable):
        def __init__(self, type: Any):
            theano.gof.Variable.__init__(self, type, None, None, "mine")

    assert Mine(tt.matrix().type).name == "mine"

    assert issubclass(Mine, pytensor.graph.Variable)
    assert not isinstance(tt.matrix(), Mine)

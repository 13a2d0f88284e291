"""Hints for names, arguments and flags that do not exist."""

from __future__ import annotations

import inspect
import os
import pickle
import re
import subprocess
import sys

import pytensor
import pytensor.tensor as pt
import pytest
from pytensor import config

import dnnops
from dnnops import layers, nnet, optim
from dnnops.config import FLAGS
from dnnops.errors import DnnTypeError, DnnUnknownFlagError, DnnValueError
from dnnops.flag_names import flag_hint
from dnnops.foreign_arguments import ARGUMENTS, REMARKS
from dnnops.foreign_names import NAMES
from dnnops.hints import explained, nearest

PACKAGES = {"layers": layers, "nnet": nnet, "optim": optim}
X, W = pt.tensor4("x", dtype="float32"), pt.tensor4("w", dtype="float32")
P = pytensor.shared(1.0)


def test_tables_name_what_exists():
    """Each dotted name in a hint exists, and no foreign name is one of dnnops."""
    for table, names in NAMES.items():
        for name, hint in names.items():
            package = PACKAGES.get(table, dnnops)
            assert name not in package.__all__
            for found, attribute in re.findall(r"\b(layers|nnet|optim)\.(\w+)", hint):
                assert attribute in PACKAGES[found].__all__, (name, hint)
            if table in PACKAGES:
                with pytest.raises(AttributeError, match=re.escape(f"{name!r}; use {hint}")):
                    getattr(package, name)


def _public_functions():
    for package in PACKAGES.values():
        for name in package.__all__:
            value = getattr(package, name)
            if inspect.isfunction(value) or (
                inspect.isclass(value) and issubclass(value, layers.Layer)
            ):
                yield value


def test_arguments_of_the_table_exist():
    """Each argument that a hint recommends is one of some public function."""
    known = {name for value in _public_functions() for name in inspect.signature(value).parameters}
    for name, texts in ARGUMENTS.items():
        assert any(set(text.split(", ")) <= known for text in texts), name
    assert not {name for name in REMARKS if not name.isidentifier()}


@pytest.mark.parametrize(
    ("package", "name", "hint"),
    [
        ("layers", "Conv2d", "use layers.SpatialConvolution"),
        ("layers", "DenseLayer", "use layers.Linear"),
        ("layers", "relu", "use nnet.relu"),
        ("layers", "Lineer", "did you mean Linear?"),
        ("nnet", "max_pool2d", r"use nnet.pool_2d\(x, "),
        ("nnet", "silu", "use nnet.swish"),
        ("nnet", "Conv2d", "use layers.SpatialConvolution"),
        ("nnet", "sofmax", "did you mean softmax?"),
        ("optim", "Adam", "use optim.adam"),
        ("optim", "StepLR", "use optim.exponential"),
        ("optim", "Adagrad", "use .* updates that you write"),
        ("layers", "ReflectionPad2d", "use the function pytensor.tensor.pad"),
        ("layers", "AdaptiveMaxPool3d", r"use x.max\(...\) over the spatial axes"),
        ("nnet", "smooth_l1_loss", "use an expression of pytensor.tensor"),
        ("nnet", "relu_", "use nnet.relu"),
        ("nnet", "leaky_relu_", r"use nnet.relu\(x, 0.01\)"),
        ("dnnops", "conv2d", "use nnet.conv2d"),
        ("dnnops", "nn", "use dnnops.layers"),
    ],
)
def test_names(package: str, name: str, hint: str):
    module = PACKAGES.get(package, dnnops)
    with pytest.raises(AttributeError, match=hint):
        getattr(module, name)
    assert not hasattr(module, name)
    full = module.__name__
    with pytest.raises(ImportError, match=f"cannot import name '{name}' from '{full}'; {hint}"):
        exec(f"from {full} import {name}")


def test_names_without_a_hint():
    with pytest.raises(AttributeError, match=r"^module 'dnnops.nnet' has no attribute 'qwzx'$"):
        _ = nnet.qwzx
    with pytest.raises(ImportError):
        exec("from dnnops.nnet import qwzx")
    # Modules that are not public still import.
    exec("from dnnops.nnet.conv import geometry; from dnnops.layers import places")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: nnet.conv2d(X, W, stride=2, padding=1),
            "conv2d() got unexpected keyword arguments 'stride' and 'padding'; use subsample for "
            "stride; use border_mode for padding",
        ),
        (lambda: nnet.conv3d(X, W, dilation=2, groups=2), "use filter_dilation for dilation; use"),
        (lambda: nnet.conv2d(X, W, bias=P), "bias: add it to the result"),
        (lambda: nnet.pool_2d(X, kernel_size=2), "use ws for kernel_size"),
        (lambda: nnet.softmax(X, dim=1), "use axis for dim"),
        (lambda: nnet.layer_norm(X, eps=1e-3), "use epsilon for eps"),
        (lambda: nnet.relu(X, negative_slope=0.1), "use alpha for negative_slope"),
        (lambda: nnet.conv2d(X, W, subsampel=2), "did you mean subsample?"),
        (lambda: nnet.tanh(X, qwzx=2), "it takes x"),
        (lambda: optim.adam(P**2, [P], lr=0.1), "use learning_rate for lr"),
        (lambda: optim.adam(P**2, [P], beta1=0.9), "use betas for beta1"),
        (lambda: optim.cosine(0.1, T_max=3), "use steps for T_max"),
        (
            lambda: layers.SpatialConvolution(in_channels=3, out_channels=8, kernel_size=3),
            "use n_input_plane for in_channels; use n_output_plane for out_channels; use kw and kh",
        ),
        (
            lambda: layers.VolumetricConvolution(3, 8, 3, 3, 3, stride=2),
            "use dt, dw and dh for stride",
        ),
        (lambda: layers.BatchNormalization(num_features=3), "use n_feature for num_features"),
        (lambda: layers.Linear(3, 4, use_bias=False), "Linear() got an unexpected keyword "),
        (lambda: layers.Dropout(rate=0.5), "use p for rate"),
        (lambda: layers.BLSTM(3, 4, num_units=3), "use hidden_size for num_units"),
    ],
)
def test_arguments(call, message: str):
    with pytest.raises(DnnTypeError, match=re.escape(message)) as caught:
        call()
    assert caught.value.__cause__ is None


def test_values():
    with pytest.raises(DnnValueError, match=r"got 'same' \(it is called 'half' here\)"):
        nnet.conv2d(X, W, border_mode="same")
    with pytest.raises(DnnValueError, match=r"got 'avg' \(it is called 'average_exc_pad' here\)"):
        nnet.pool_2d(X, (2, 2), mode="avg")


def test_other_errors_are_kept():
    """Of what runs inside the function, and of calls that lack arguments or have one twice."""

    @explained
    def function(x, y=1, **options):
        return int(x, **options)

    with pytest.raises(TypeError, match="missing 1 required positional"):
        function(y=3)
    with pytest.raises(TypeError, match="multiple values"):
        function(1, x=1)
    with pytest.raises(TypeError, match=r"int\(\)|'lr' is an invalid keyword"):
        function("1", lr=3)
    assert function("11", base=2) == 3
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'filters'"):
        nnet.conv2d(X)


def test_functions_stay_what_they_were():
    """Signatures, pickles, names and identities."""
    for function in _public_functions():
        assert pickle.loads(pickle.dumps(function)) is function
    for package in (nnet, optim):
        for function in filter(inspect.isfunction, map(vars(package).get, package.__all__)):
            home = sys.modules[function.__module__]
            assert getattr(home, function.__name__) is function
            assert inspect.signature(function) == inspect.signature(function.__wrapped__)
    assert list(inspect.signature(layers.Linear).parameters)[:3] == [
        *("input_size", "output_size", "bias")
    ]


@pytest.mark.parametrize(
    ("flag", "nearest_flag"),
    [
        ("dnn__conv__algo_fdw", "dnn__conv__algo_fwd"),
        ("dnn__alow_tf32", "dnn__allow_tf32"),
        ("onednn__conv__algorithm", "onednn__conv__algo"),
        ("floatx", "floatX"),
    ],
)
def test_change_flags(flag: str, nearest_flag: str):
    with pytest.raises(DnnUnknownFlagError) as caught:
        config.change_flags(**{flag: "x"})
    assert isinstance(caught.value, KeyError)
    assert str(caught.value) == f"there is no flag {flag}; did you mean {nearest_flag}?"


def _typos(name: str):
    """Yield a name with a letter left out, doubled, replaced, or swapped with the next one."""
    for i, letter in enumerate(name):
        if letter not in "._":
            yield name[:i] + name[i + 1 :]
            yield name[: i + 1] + name[i:]
            yield name[:i] + "q" + name[i + 1 :]
            if name[i + 1 : i + 2] not in ("", ".", "_", letter):
                yield name[:i] + name[i + 1] + letter + name[i + 2 :]


def test_typos_in_flags():
    """A letter that is wrong leads to the flag, in the spelling of the name."""
    known = list(config._config_var_dict)
    wrong = []
    for number, flag in enumerate(FLAGS):
        separator = (".", "__")[number % 2]
        name = flag.key.replace("__", separator)
        for typo in _typos(name):
            hint = flag_hint(typo, known, separator)
            # Some typos are as close to another flag: algo_wd to algo_fwd and algo_bwd.
            ties = ("algo_wd", "algo_qwd")
            if hint != f"; did you mean {name}?" and not typo.endswith(ties):
                wrong.append((typo, hint))
    assert wrong == []


@pytest.mark.parametrize(
    ("name", "separator", "hint"),
    [
        ("cxy", ".", "cxx"),
        ("mdoe", ".", "mode"),
        ("optimizerr", ".", "optimizer"),
        ("compile.timeuot", ".", "compile.timeout"),
        ("dnnverbose", ".", "dnn.verbose"),
        ("dnnverbose", "__", "dnn__verbose"),
        ("dnn_enabled", ".", "dnn.enabled"),
        ("dnn__enabld", ".", "dnn__enabled"),
        ("dnn.conv.algo_bwd_dat", "__", "dnn.conv.algo_bwd_data"),
        ("cudnn.enabled", ".", "dnn.enabled"),
        (
            *("onednn.enabld", "__"),
            "dnn.enabled, onednn.conv.algo, onednn.scratch_limit or onednn.kept_memory",
        ),
    ],
)
def test_nearest_flag(name: str, separator: str, hint: str):
    assert flag_hint(name, config._config_var_dict, separator) == f"; did you mean {hint}?"


def test_flags_unlike_any():
    with pytest.raises(KeyError, match=r"there is no flag qwzx$"):
        config.change_flags(qwzx=1)
    with config.change_flags(dnn__verbose=False):
        pass


def test_flags_of_the_environment():
    flags = os.environ.get("PYTENSOR_FLAGS", "")
    wrong = "dnn.conv.algo_fdw=small,dnn__alow_tf32=True,floatx=float32,qwzx=1,floatX=float32"
    done = subprocess.run(
        [sys.executable, "-c", "import dnnops"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTENSOR_FLAGS": f"{flags},{wrong}".lstrip(",")},
    )
    hints = re.findall(r"DnnWarning: PYTENSOR_FLAGS: (.*)", done.stderr)
    assert hints == [
        "there is no flag dnn.conv.algo_fdw; did you mean dnn.conv.algo_fwd?",
        "there is no flag dnn__alow_tf32; did you mean dnn__allow_tf32?",
        "there is no flag floatx; did you mean floatX?",
    ]


def test_nearest():
    names = ["log_softmax", "Linear", "conv2d"]
    assert nearest("logsoftmax", names) == "log_softmax"
    assert nearest("linear", names) == "Linear"
    assert nearest("recurrent", names) == ""

"""The switches of cudnn.torch set flags."""

from __future__ import annotations

import pytensor
import pytest

from dnnops import layers
from dnnops.config import flag_value
from dnnops.errors import DnnTypeError

FLAGS = ("dnn.conv.algo_fwd", "dnn.conv.algo_bwd_data", "dnn.conv.algo_bwd_filter", "dnn.verbose")


@pytest.fixture(autouse=True)
def flags():
    kept = {flag.replace(".", "__"): flag_value(flag) for flag in FLAGS}
    with pytensor.config.change_flags(**kept):
        yield


def algorithms() -> set:
    return {flag_value(flag) for flag in FLAGS[:3]}


def test_benchmark_and_fastest():
    assert (layers.benchmark, layers.fastest) == (False, True)
    layers.benchmark = True
    assert algorithms() == {"time_on_shape_change"}
    layers.fastest = False
    assert (layers.benchmark, layers.fastest) == (True, True)
    layers.benchmark = False
    assert algorithms() == {"guess_once"}
    layers.fastest = False
    assert algorithms() == {"small"}
    assert (layers.benchmark, layers.fastest) == (False, False)
    layers.fastest = True
    assert algorithms() == {"guess_once"}


def test_verbose():
    assert layers.verbose is False
    layers.verbose = True
    assert flag_value("dnn.verbose") is True


@pytest.mark.parametrize("name", ["benchmark", "fastest", "verbose"])
def test_errors(name):
    with pytest.raises(DnnTypeError, match=f"layers: {name} must be True or False"):
        setattr(layers, name, "yes")

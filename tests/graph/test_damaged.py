"""Stored graphs that were changed: the errors of the methods that declare a graph, or none."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from dnnops import graph as cudnn
from dnnops.errors import DnnError, DnnTypeError, DnnValueError
from tests.graph.planning import declared
from tests.graph.stored import changed, read

VALUES: tuple[Any, ...] = (
    *(None, "x", -1, 0, 1, 2, 10**30, 2**62, -(2**70), 1.5, float("nan"), float("inf"), True),
    *([], {}, [0], [1], [1, 2], [0, 0, 0, 0], [-1], [1] * 9, [[1]], "FLOAT", "\ud800"),
    *(["data_type", "FLOAT"], ["__builtins__", "eval"], ["Enum", "x"], ["np", "pi"]),
)
GRAPHS = ("conv_bias_relu", "batchnorm", "rmsnorm_backward", "sdpa_with_lengths", "max_pool")


def stored(name: str) -> Any:
    return json.loads(declared(name)[0].serialize())


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(item, (*path, key))


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
@pytest.mark.parametrize("name", GRAPHS)
def test_a_changed_value(name):
    """The graph is refused with an error of dnnops, or can be shown, stored and computed."""
    data, draw = stored(name), random.Random(name)
    refused = 0
    for path in places(data):
        for value in draw.sample(VALUES, 3):
            try:
                graph = read(changed(data, path, value))
            except DnnError:
                refused += 1
                continue
            assert repr(graph)
            assert str(graph)
            for tensor in graph.tensors.values():
                assert repr(tensor)
                assert tensor.span > 0
                assert tensor.is_packed in (True, False)
            assert str(read(json.loads(graph.serialize()))) == str(graph)
            with contextlib.suppress(DnnError):
                assert graph.as_op().results
    assert refused > 50


PARAMETERS = ("nodes", 0, "parameters")


@pytest.mark.parametrize(
    ("name", "parameter", "value", "error", "words"),
    [
        ("conv_bias_relu", "stride", [0, 1], DnnValueError, "stride must be at least 1"),
        ("conv_bias_relu", "stride", [1.5, 1], DnnTypeError, "stride must be a sequence"),
        ("conv_bias_relu", "stride", 0, DnnTypeError, "stride must be a sequence"),
        ("conv_bias_relu", "dilation", [-1, 1], DnnValueError, "dilation must be at least 1"),
        ("conv_bias_relu", "pre_padding", ["a", 1], DnnTypeError, "pre_padding must be"),
        ("conv_bias_relu", "math_mode", "CONVOLUTION", DnnTypeError, "math_mode must be a member"),
        ("max_pool", "stride", [0, 0], DnnValueError, "stride must be at least 1"),
        ("max_pool", "window", [0, 2], DnnValueError, "window must be at least 1"),
        ("max_pool", "generate_index", 1, DnnTypeError, "must be True or False"),
        ("sdpa_with_lengths", "attn_scale", "1", DnnTypeError, "attn_scale must be a number"),
        ("sdpa_with_lengths", "causal_mask", None, DnnTypeError, "causal_mask must be True"),
        ("matmul", "padding_value", ["__builtins__", "eval"], DnnTypeError, "must be a number"),
        ("matmul", "padding_value", ["data_type", "FLOAT"], DnnTypeError, "must be a number"),
        ("rmsnorm_backward", "has_dbias", [], DnnTypeError, "has_dbias must be True or False"),
        ("rmsnorm_backward", "more", 1, DnnTypeError, "there is no parameter 'more'"),
    ],
)
def test_parameters_are_checked(name, parameter, value, error, words):
    with pytest.raises(error, match=words):
        read(changed(stored(name), (*PARAMETERS, parameter), value))


@pytest.mark.parametrize(
    "value",
    [["__builtins__", "eval"], ["Enum", "FLOAT"], ["data_type", "FLOAT"], ["np", "pi"], ["x", "y"]],
)
def test_only_enums_of_parameters_are_read(value):
    with pytest.raises(DnnError):
        read(changed(stored("conv_bias_relu"), (*PARAMETERS, "math_mode"), value))


def test_a_method_that_does_not_exist():
    data = stored("conv_bias_relu")
    for value in ("expression", ["__builtins__", "eval"], 1):
        with pytest.raises(DnnError):
            read(changed(data, ("nodes", 1, "parameters", "method"), value))


def test_strides_and_sizes_of_other_lengths():
    data = stored("conv_bias_relu")
    for stride in ([1], [1] * 5):
        with pytest.raises(DnnValueError, match="which have different lengths"):
            read(changed(data, ("tensors", 0, "stride"), stride))


def test_a_tensor_by_value_is_one_number():
    with pytest.raises(DnnValueError, match="'x' is passed by value and has dim"):
        read(changed(stored("conv_bias_relu"), ("tensors", 0, "is_pass_by_value"), True))
    graph = cudnn.pygraph(io_data_type="float32", compute_data_type="float32")
    graph.relu(graph.tensor([2, 3], is_pass_by_value=True)).set_output(True)
    with pytest.raises(DnnValueError, match="expected one element"):
        graph.validate()


def test_operations_in_another_order():
    data = stored("conv_bias_relu")
    data["nodes"].reverse()
    with pytest.raises(DnnValueError, match="before it is computed"):
        read(data)


@pytest.mark.parametrize(
    ("name", "port", "words"),
    [
        ("batchnorm_inference", "MEAN", r"MEAN \[1, 18, 1, 1\] does not broadcast to X"),
        ("batchnorm_inference", "INV_VARIANCE", "INV_VARIANCE .* does not broadcast to X"),
        ("batchnorm", "PREV_RUNNING_VAR", "PREV_RUNNING_VAR .* does not broadcast to X"),
        ("batchnorm", "MOMENTUM", "MOMENTUM has dim .* expected one element"),
        ("layernorm", "EPSILON", "EPSILON has dim .* expected one element"),
    ],
)
def test_operands_of_a_normalization(name, port, words):
    data = stored(name)
    inputs = data["nodes"][0]["inputs"]
    if port in ("MOMENTUM", "EPSILON"):
        inputs[port] = inputs["X"]
    else:
        (tensor,) = (x for x in data["tensors"] if x["name"] == inputs[port])
        tensor |= {"dim": [1, 18, 1, 1], "stride": [18, 1, 18, 18]}
    with pytest.raises(DnnValueError, match=words):
        read(data)

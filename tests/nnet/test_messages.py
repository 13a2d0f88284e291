"""Errors name the user's arguments, and flags must be flags."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import dnnops
from dnnops import dnn, nnet
from dnnops.config import parse_flag
from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.gpu.algorithms import LEGACY_ALGORITHMS, parse_algorithm
from tests.oracle import PERFORM_MODE

X = pt.tensor("x", shape=(2, 4, 6, 7), dtype="float32")


def test_the_stride_in_the_place_of_ignore_border_is_an_error():
    with pytest.raises(DnnTypeError, match=r"ignore_border must be .* got \(1, 1\); .*stride="):
        nnet.pool_2d(X, (2, 2), (1, 1))
    with pytest.raises(DnnTypeError, match=r"ignore_border must be .* got \(1, 1, 1\); .*stride="):
        nnet.pool_3d(X, (2, 2, 2), (1, 1, 1))


@pytest.mark.parametrize("value", ["False", "True", float("nan"), 2, np.nan, ()], ids=repr)
def test_non_bools_are_rejected(value):
    with pytest.raises(DnnTypeError, match="ignore_border must be True or False"):
        nnet.pool_2d(X, (2, 2), value)
    with pytest.raises(DnnTypeError, match="ignore_border must be True or False"):
        nnet.pool_output_shape((2, 4, 6, 7), (2, 2), (2, 2), (0, 0), value)
    with pytest.raises(DnnTypeError, match="unshared must be True or False"):
        nnet.conv2d(X, X, unshared=value)


def test_gpu_pooling_is_deterministic_only_if_it_is_said_so():
    with pytest.raises(DnnTypeError, match="deterministic must be True or False, got 'no'"):
        dnn.GpuDnnPool(deterministic="no")
    assert dnn.GpuDnnPool(deterministic=np.bool_(True)).deterministic is True
    assert dnn.GpuDnnPool(deterministic=0).deterministic is False


def test_transposed_convolution_names_its_own_arguments():
    kern = pt.tensor("w", shape=(3, 4, 3, 3), dtype="float32")
    image = pt.tensor("x", shape=(2, 3, 4, 5), dtype="float32")

    def message(*args, **kwargs):
        with pytest.raises((DnnTypeError, DnnValueError)) as caught:
            nnet.conv2d_transpose(*args, **kwargs)
        text = str(caught.value)
        assert text.startswith("conv2d_transpose: ")
        assert "output_grad" not in text
        assert "subsample" not in text
        assert "gradient" not in text
        return text

    assert "input must be a tensor" in message(None, kern, (2, 4, 6, 7))
    assert "input_dilation must be between 1" in message(
        image, kern, (2, 4, 6, 7), input_dilation=0
    )
    text = message(image, kern, (2, 4, 9, 7))
    assert "input must have the shape (2, 3, 7, 5)" in text
    assert "output_shape (2, 4, 9, 7)" in text
    assert "input_dilation=(1, 1)" in text
    assert "output_shape has 5 channels" in message(image, kern, (2, 5, 6, 7))


@pytest.mark.parametrize("factor", [-0.1, 1.5, 2, float("nan"), pt.constant(7.0)], ids=str)
@pytest.mark.parametrize("module", [nnet, dnn], ids=["nnet", "dnn"])
def test_a_running_average_factor_is_between_0_and_1(module, factor):
    p = pt.tensor("p", shape=(1, 4, 6, 7), dtype="float32")
    train = {
        nnet: nnet.batch_normalization_train,
        dnn: dnn.dnn_batch_normalization_train,
    }[module]
    with pytest.raises(DnnValueError, match="running_average_factor must be finite and at least 0"):
        train(X, p, p, running_average_factor=factor, running_mean=p, running_var=p)


@pytest.mark.parametrize("mode", [PERFORM_MODE, "ONEDNN"], ids=["perform", "onednn"])
def test_a_symbolic_running_average_factor_is_checked_at_the_call(mode):
    x, p, factor = pt.fmatrix("x"), pt.fvector("p"), pt.dscalar("factor")
    outputs = nnet.batch_normalization_train(
        x, p, p, running_average_factor=factor, running_mean=p, running_var=p
    )
    fn = pytensor.function([x, p, factor], outputs, mode=mode)
    ones = np.ones((2, 3), "float32"), np.ones(3, "float32")
    for good in (0.0, 0.5, 1.0):
        fn(*ones, good)
    for bad in (-0.5, 1.01, np.nan):
        with pytest.raises(DnnValueError, match="factor"):
            fn(*ones, bad)


@pytest.mark.parametrize("mode", [PERFORM_MODE, "ONEDNN"], ids=["perform", "onednn"])
def test_a_symbolic_vector_of_another_length_is_named(mode):
    x, ws = pt.tensor4("x", dtype="float32"), pt.lvector("ws")
    pooled = pytensor.function([x, ws], nnet.pool_2d(x, ws, ignore_border=True), mode=mode)
    image = np.ones((1, 1, 4, 4), "float32")
    assert pooled(image, [2, 2]).shape == (1, 1, 2, 2)
    for length in (1, 3):
        with pytest.raises(DnnValueError, match="ws must be a vector of 2 integers"):
            pooled(image, [2] * length)


def test_shapes_of_outputs_check_their_arguments():
    with pytest.raises(DnnValueError, match=r"conv_output_shape: kern_shape \(for an img_shape"):
        nnet.conv_output_shape((2, 4, 6, 7), (3, 4, 3))
    with pytest.raises(DnnValueError, match=r"subsample must be between 1 .* got \(0, 1\)"):
        nnet.conv_output_shape((2, 4, 6, 7), (3, 4, 3, 3), subsample=(0, 1))
    with pytest.raises(DnnValueError, match="fit into the padded image"):
        nnet.conv_output_shape((2, 4, 6, 7), (3, 4, 9, 3))
    with pytest.raises(DnnValueError, match="every entry of stride"):
        nnet.pool_output_shape((2, 4, 6, 7), (2, 2), (0, 2), (0, 0), True)
    with pytest.raises(DnnTypeError, match="resolve_padding: dilation must be an int or 2 ints"):
        nnet.resolve_padding("half", (3, 3), "ab")


def test_device_gradients_name_a_missing_shape():
    kern = pt.tensor("w", shape=(3, 4, 3, 3), dtype="float32")
    with pytest.raises(DnnTypeError, match="dnn_gradinput: img_shp must be 4 sizes, got None"):
        dnn.dnn_gradinput(kern, X, None)
    with pytest.raises(DnnTypeError, match="dnn_gradweight: kerns_shp must be 4 sizes, got None"):
        dnn.dnn_gradweight(X, X, None)


def test_flag_choices_names_itself():
    with pytest.raises(DnnTypeError, match=r"^flag_choices: there is no argument colour"):
        dnnops.flag_choices((1, 1, 4, 4), (1, 1, 2, 2), device="cpu", colour="red")
    with pytest.raises(DnnTypeError, match=r"^flag_choices: there is no argument energy"):
        dnnops.flag_choices((1, 1, 4, 4), (1, 1, 2, 2), device="cpu", energy=True)
    for function in (dnnops.flag_choices, dnnops.conv_plans):
        with pytest.raises(DnnTypeError, match=r": time must be True or False, got 'no'"):
            function((1, 1, 4, 4), (1, 1, 2, 2), device="cpu", time="no")
    with pytest.raises(DnnTypeError, match="chosen_plans: time must be True or False"):
        dnnops.chosen_plans(None, time="yes")
    with pytest.raises(DnnTypeError, match="version: raises must be True or False"):
        dnnops.version(raises="no")


@pytest.mark.parametrize(
    ("flag", "direction"),
    [
        ("dnn.conv.algo_fwd", "forward"),
        ("dnn.conv.algo_bwd_data", "grad_inputs"),
        ("dnn.conv.algo_bwd_filter", "grad_weights"),
    ],
)
def test_a_number_of_no_algorithm_is_refused_where_the_flag_is_read(flag, direction):
    count = len(LEGACY_ALGORITHMS[direction])
    for number in range(count):
        assert parse_flag(flag, number) == str(number)
        parse_algorithm(number, direction)
    for number in (count, 99, -1):
        with pytest.raises(DnnValueError, match=rf"flag {flag}: .* a number from 0 to {count - 1}"):
            parse_flag(flag, number)

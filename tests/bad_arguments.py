"""A valid call of every public function, and values that few or no parameters accept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import scipy.sparse
from pytensor.tensor.type_other import NoneConst, SliceType

from tests.examples import examples


def _float(*shape: int | None, dtype: str = "float32") -> Any:
    return pt.tensor("x", shape=shape, dtype=dtype)


def _int(*shape: int | None) -> Any:
    return pt.tensor("i", shape=shape, dtype="int64")


def _image() -> Any:
    return _float(2, 4, 6, 7)


def _volume() -> Any:
    return _float(2, 4, 5, 6, 7)


def _sequence() -> Any:
    return _float(2, 4, 7)


def _filters(spatial: int) -> Any:
    return _float(3, 4, *(3,) * spatial)


def _top(spatial: tuple[int, ...]) -> Any:
    return _float(2, 3, *(n - 2 for n in spatial))


_ROWS, _DEPTH = (6, 7), (5, 6, 7)


def _transposed(spatial: tuple[int, ...]) -> dict[str, Any]:
    return {
        "input": _top(spatial),
        "filters": _filters(len(spatial)),
        "output_shape": (2, 4, *spatial),
    }


def _grad_inputs(spatial: tuple[int, ...]) -> dict[str, Any]:
    return {
        "output_grad": _top(spatial),
        "filters": _filters(len(spatial)),
        "input_shape": (2, 4, *spatial),
    }


def _grad_weights(image: Any, spatial: tuple[int, ...]) -> dict[str, Any]:
    return {
        "input": image,
        "output_grad": _top(spatial),
        "filter_shape": (3, 4, *(3,) * len(spatial)),
    }


def _attention() -> dict[str, Any]:
    return {"query": _float(2, 3, 5, 4), "key": _float(2, 3, 6, 4), "value": _float(2, 3, 6, 8)}


def _batch_norm(*names: str) -> dict[str, Any]:
    return {"inputs": _image(), **{name: _float(1, 4, 6, 7) for name in names}}


_AVERAGES = {
    "running_mean": _float(1, 4, 6, 7),
    "running_var": _float(1, 4, 6, 7),
    "running_average_factor": 0.1,
}

_ONE_HOT = {"x": _float(5, 3), "y_idx": _int(5)}

NNET: dict[str, dict[str, Any]] = {
    "assert_conv_shape": {"shape": (2, 3, 4, 5)},
    "assert_shape": {"x": _image(), "expected_shape": (None, 4, 6, 7)},
    "border_mode_to_pad": {"mode": "half", "convdim": 2, "kshp": (3, 3)},
    "prepend_0_to_each_row": {"mat": _float(5, 3)},
    "prepend_1_to_each_row": {"mat": _float(5, 3)},
    "prepend_scalar_to_each_row": {"val": 2.0, "mat": _float(5, 3)},
    "softmax_graph": {"c": _float(5, 3)},
    "sparse_block_dot": {
        "W": _float(2, 3, 4, 5),
        "h": _float(2, 2, 4),
        "inputIdx": _int(2, 2),
        "b": _float(3, 5),
        "outputIdx": _int(2, 2),
    },
    "affine_grid": {"theta": _float(2, 2, 3), "out_shape": (6, 7)},
    "batch_normalization": _batch_norm("gamma", "beta", "mean", "std"),
    "batch_normalization_test": _batch_norm("gamma", "beta", "mean", "var"),
    "batch_normalization_train": {**_batch_norm("gamma", "beta"), **_AVERAGES},
    "bilinear_kernel_1D": {"ratio": 2},
    "bilinear_kernel_2D": {"ratio": 2},
    "bilinear_upsampling": {"input": _image(), "ratio": 2},
    "binary_crossentropy": {"output": _float(5), "target": _float(5)},
    "categorical_crossentropy": {"coding_dist": _float(5, 3), "true_dist": _float(5, 3)},
    "causal_conv1d": {
        "input": _sequence(),
        "filters": _filters(1),
        "filter_shape": (3, 4, 3),
    },
    "check_conv_gradinputs_shape": {
        "image_shape": (2, 4, 6, 7),
        "kernel_shape": (3, 4, 3, 3),
        "output_shape": (2, 3, 4, 5),
        "border_mode": "valid",
        "subsample": (1, 1),
    },
    "clipped_relu": {"x": _image(), "ceiling": 6.0},
    "confusion_matrix": {"actual": _int(5), "pred": _int(5)},
    "conv1d": {"input": _sequence(), "filters": _filters(1)},
    "conv2d": {"input": _image(), "filters": _filters(2)},
    "conv2d_grad_wrt_inputs": _grad_inputs(_ROWS),
    "conv2d_grad_wrt_weights": _grad_weights(_image(), _ROWS),
    "conv2d_transpose": _transposed(_ROWS),
    "conv3d": {"input": _volume(), "filters": _filters(3)},
    "conv3d_grad_wrt_inputs": _grad_inputs(_DEPTH),
    "conv3d_grad_wrt_weights": _grad_weights(_volume(), _DEPTH),
    "conv3d_transpose": _transposed(_DEPTH),
    "conv_output_shape": {"img_shape": (2, 4, 6, 7), "kern_shape": (3, 4, 3, 3)},
    "cross_entropy": {"x": _float(5, 3), "labels": _int(5)},
    "crossentropy_categorical_1hot": {"coding_dist": _float(5, 3), "true_one_of_n": _int(5)},
    "crossentropy_categorical_1hot_grad": {
        "g_y": _float(5),
        "coding_dist": _float(5, 3),
        "true_one_of_n": _int(5),
    },
    "crossentropy_softmax_1hot": _ONE_HOT,
    "crossentropy_softmax_1hot_with_bias": {**_ONE_HOT, "b": _float(3)},
    "crossentropy_softmax_1hot_with_bias_dx": {
        "dy": _float(5),
        "sm": _float(5, 3),
        "y_idx": _int(5),
    },
    "crossentropy_softmax_argmax_1hot_with_bias": {**_ONE_HOT, "b": _float(3)},
    "crossentropy_softmax_max_and_argmax_1hot": _ONE_HOT,
    "crossentropy_softmax_max_and_argmax_1hot_with_bias": {**_ONE_HOT, "b": _float(3)},
    "ctc": {"activations": _float(6, 2, 5), "labels": _int(2, 3), "input_lengths": _int(2)},
    "divisive_normalization": {"x": _image()},
    "dropout": {"x": _image(), "seed": 1},
    "dropout_state": {"seed": 1},
    "elu": {"x": _image()},
    "frac_bilinear_upsampling": {"input": _image(), "frac_ratio": (3, 2)},
    "get_conv_gradinputs_shape": {
        "kernel_shape": (3, 4, 3, 3),
        "top_shape": (2, 3, 4, 5),
        "border_mode": "valid",
        "subsample": (1, 1),
    },
    "get_conv_gradinputs_shape_1axis": {
        "kernel_shape": 3,
        "top_shape": 4,
        "border_mode": "valid",
        "subsample": 1,
    },
    "get_conv_gradweights_shape": {
        "image_shape": (2, 4, 6, 7),
        "top_shape": (2, 3, 4, 5),
        "border_mode": "valid",
        "subsample": (1, 1),
    },
    "get_conv_gradweights_shape_1axis": {
        "image_shape": 6,
        "top_shape": 4,
        "border_mode": "valid",
        "subsample": 1,
    },
    "get_conv_output_shape": {
        "image_shape": (2, 4, 6, 7),
        "kernel_shape": (3, 4, 3, 3),
        "border_mode": "valid",
        "subsample": (1, 1),
    },
    "get_conv_shape_1axis": {
        "image_shape": 6,
        "kernel_shape": 3,
        "border_mode": "valid",
        "subsample": 1,
    },
    "grid_sample": {"img": _image(), "grid": _float(2, 3, 4, 2)},
    "h_softmax": {
        "x": _float(5, 4),
        "batch_size": 5,
        "n_outputs": 6,
        "n_classes": 2,
        "n_outputs_per_class": 3,
        "W1": _float(4, 2),
        "b1": _float(2),
        "W2": _float(2, 4, 3),
        "b2": _float(2, 3),
        "target": _int(5),
    },
    "hard_sigmoid": {"x": _image()},
    "images2neibs": {"ten4": _float(2, 4, 6, 8), "neib_shape": (2, 2)},
    "log_softmax": {"x": _image(), "axis": 1},
    "logsoftmax": {"x": _float(5, 3), "axis": 1},
    "max_pool_2d_same_size": {"input": _image(), "patch_size": (2, 2)},
    "neibs2images": {
        "neibs": _float(96, 4),
        "neib_shape": (2, 2),
        "original_shape": (2, 4, 6, 8),
    },
    "pool_2d": {"input": _image(), "ws": (2, 2)},
    "pool_3d": {"input": _volume(), "ws": (2, 2, 2)},
    "pool_output_shape": {
        "img_shape": (2, 4, 6, 7),
        "ws": (2, 2),
        "stride": (2, 2),
        "pad": (0, 0),
        "ignore_border": True,
    },
    "embedding": {"indices": _int(2, 3), "table": _float(5, 4)},
    "gelu": {"x": _image()},
    "layer_norm": {"x": _image(), "gamma": _float(7), "beta": _float(7), "axes": (-1,)},
    "relu": {"x": _image()},
    "rms_norm": {"x": _image(), "gamma": _float(7), "axes": (-1,)},
    "resolve_padding": {"border_mode": "half", "kernel_spatial": (3, 3)},
    "scaled_dot_product_attention": _attention(),
    "selu": {"x": _image()},
    "separable_conv2d": {
        "input": _image(),
        "depthwise_filters": _float(8, 1, 3, 3),
        "pointwise_filters": _float(5, 8, 1, 1),
        "num_channels": 4,
    },
    "separable_conv3d": {
        "input": _volume(),
        "depthwise_filters": _float(8, 1, 3, 3, 3),
        "pointwise_filters": _float(5, 8, 1, 1, 1),
        "num_channels": 4,
    },
    "sigmoid": {"x": _image()},
    "sigmoid_binary_crossentropy": {"output": _float(5), "target": _float(5)},
    "softmax": {"x": _image(), "axis": 1},
    "softmax_with_bias": {"x": _float(5, 3), "b": _float(3)},
    "softplus": {"x": _image()},
    "softsign": {"x": _image()},
    "spatial_transformer": {"img": _image(), "theta": _float(2, 2, 3)},
    "swish": {"x": _image()},
    "tanh": {"x": _image()},
    "ultra_fast_sigmoid": {"x": _image()},
}

NNET |= {example.function.__name__: example.operands("float32") for example in examples()}
DNN: dict[str, dict[str, Any]] = {
    "dnn_activation": {"x": _image()},
    "dnn_add": {"a": _float(1, 4, 1, 1), "c": _image()},
    "dnn_batch_normalization_test": _batch_norm("gamma", "beta", "mean", "var"),
    "dnn_batch_normalization_train": {**_batch_norm("gamma", "beta"), **_AVERAGES},
    "dnn_conv": {"img": _image(), "kerns": _filters(2)},
    "dnn_conv3d": {"img": _volume(), "kerns": _filters(3)},
    "dnn_ctc": {"activations": _float(6, 2, 5), "labels": _int(2, 3), "input_lengths": _int(2)},
    "dnn_divisive_normalization": {"img": _image()},
    "dnn_gradinput": {"kerns": _filters(2), "topgrad": _top(_ROWS), "img_shp": (2, 4, 6, 7)},
    "dnn_gradinput3d": {"kerns": _filters(3), "topgrad": _top(_DEPTH), "img_shp": (2, 4, 5, 6, 7)},
    "dnn_gradweight": {"img": _image(), "topgrad": _top(_ROWS), "kerns_shp": (3, 4, 3, 3)},
    "dnn_gradweight3d": {"img": _volume(), "topgrad": _top(_DEPTH), "kerns_shp": (3, 4, 3, 3, 3)},
    "dnn_lrn": {"img": _image()},
    "dnn_pool": {"img": _image(), "ws": (2, 2)},
    "dnn_reduction": {"x": _image(), "red_op": "add"},
    "dnn_spatialtf": {"img": _image(), "theta": _float(2, 2, 3)},
    "dnn_transform": {"x": _image()},
    "dropout": {"x": _image()},
    "gpu_dnn_conv": {},
    "gpu_dnn_conv_gradI": {},
    "gpu_dnn_conv_gradW": {},
}

#: Other required arguments of each Op that has flags.
OPS: dict[str, dict[str, Any]] = {
    "AveragePoolGrad": {"ndim": 2, "mode": "sum"},
    "BatchNormTrain": {"axes": (0,)},
    "DivisiveNormalization": {"n": 5, "alpha": 1.0, "beta": 0.75, "k": 2.0},
    "DivisiveNormalizationGrad": {"n": 5, "alpha": 1.0, "beta": 0.75, "k": 2.0},
    "GpuDnnActivation": {"mode": "relu"},
    "GpuDnnActivationGrad": {"mode": "relu"},
    "GpuDnnDivisiveNormalization": {"n": 5, "alpha": 1.0, "beta": 0.75, "k": 2.0},
    "GpuDnnDivisiveNormalizationGrad": {"n": 5, "alpha": 1.0, "beta": 0.75, "k": 2.0},
    "GpuDnnRNNBackward": {"rnn_mode": "lstm", "hidden_size": 3, "num_layers": 1},
    "GpuDnnRNNForward": {"rnn_mode": "lstm", "hidden_size": 3, "num_layers": 1},
    "GpuDnnReduction": {"red_op": "add"},
    "MaxPoolGrad": {"ndim": 2},
    "MaxPoolGradGrad": {"ndim": 2},
    "Pool": {"ndim": 2, "mode": "max"},
    "RNNBackward": {"rnn_mode": "lstm", "hidden_size": 3, "num_layers": 1},
    "RNNBlock": {"dtype": "float32", "hidden_size": 3, "num_layers": 1, "rnn_mode": "lstm"},
    "RNNForward": {"rnn_mode": "lstm", "hidden_size": 3, "num_layers": 1},
    "WholeSoftmax": {"axis": (0,)},
}


class _NoArray:
    """Object whose conversion raises an unexpected exception."""

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("no array")


class _NoItem:
    """Object with a length of two but no entries."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: Any) -> Any:
        raise KeyError(index)


#: Values that no parameter accepts.
NEVER: dict[str, Any] = {
    "object": object(),
    "dict": {"a": 1},
    "bytes": b"ab",
    "complex": 1j,
    "function": lambda: 0,
    "set": {1},
    "slice": slice(1),
    "no array": _NoArray(),
    "no item": _NoItem(),
    "generator": (i for i in range(2)),
    "date": np.datetime64("2020-01-01"),
    "array of objects": np.array([object()], dtype=object),
    "array of strings": np.array(["a"]),
    "complex array": np.ones((2, 4, 6, 7), complex),
    "list of objects": [object()] * 2,
    "complex variable": pt.tensor("c", shape=(2, 4, 6, 7), dtype="complex64"),
    "ragged": [[1, 2], [3]],
    "random generator": np.random.default_rng(0),
    "NoneConst": NoneConst,
    "slice variable": SliceType()(),
}

_NAN, _INF = float("nan"), float("inf")
_LENGTHS = (1, 2, 3, 4, 5, 6)
_ENTRIES: dict[str, Any] = {
    "0": 0,
    "1": 1,
    "-1": -1,
    "1.5": 1.5,
    "nan": _NAN,
    "None": None,
    "True": True,
    "'1'": "1",
    "2**31": 2**31,
    "2**63": 2**63,
    "2**70": 2**70,
    "int scalar": pt.iscalar("i"),
    "float scalar": pt.dscalar("f"),
    "constant -1": pt.constant(-1),
}

#: Values that some parameters accept.
SOMETIMES: dict[str, Any] = {
    **{f"({n},)*{k}": (value,) * k for n, value in _ENTRIES.items() for k in _LENGTHS},
    "word": "no such word",
    "False": False,
    "2": 2,
    "0.5": 0.5,
    **{n: value for n, value in _ENTRIES.items() if n != "'1'"},
    "-0.0": -0.0,
    "inf": _INF,
    "-inf": -_INF,
    "2**31 - 1": 2**31 - 1,
    "2**32 + 1": 2**32 + 1,
    "-2**31": -(2**31),
    "-2**70": -(2**70),
    "10**400": 10**400,
    "-10**400": -(10**400),
    "'False'": "False",
    "''": "",
    "'1'": "1",
    "()": (),
    "[]": [],
    "one entry each": ((1,), (1,)),
    "three entries each": ((1, 2, 3), (1, 2, 3)),
    "mixed list": [pt.iscalar(), None, "a", 1],
    "int8": np.int8(3),
    "float64": np.float64(0.5),
    "bool_": np.bool_(True),
    "0-d int array": np.array(3),
    "0-d float array": np.array(0.5),
    "int array": np.array([1, 1]),
    "float array": np.array([1.0, 1.0]),
    "bool array": np.array([True, False]),
    "4-d array": np.ones((2, 4, 6, 7)),
    "4-d float16 array": np.ones((2, 4, 6, 7), "float16"),
    "4-d int array": np.ones((2, 4, 6, 7), "int32"),
    "empty array": np.ones((0, 4, 6, 7)),
    "uint64 array": np.array([2**63] * 2, "uint64"),
    "uint64 array of 4": np.array([2**63] * 4, "uint64"),
    "masked array": np.ma.array([1, 2]),
    "range": range(2),
    "list of strings": ["a", "b"],
    "bool scalar": pt.scalar("b", dtype="bool"),
    "int vector": pt.lvector("v"),
    "int vector of 3": pt.tensor("v", shape=(3,), dtype="int64"),
    "float vector": pt.dvector("fv"),
    "int matrix": pt.lmatrix(),
    "float matrix": pt.fmatrix(),
    "float64 of 3 axes": _float(None, None, None, dtype="float64"),
    "float64 of 4 axes": _float(None, None, None, None, dtype="float64"),
    "int of 4 axes": _float(None, None, None, None, dtype="int32"),
    "bool of 4 axes": _float(None, None, None, None, dtype="bool"),
    "float32 of 5 axes": _float(None, None, None, None, None),
    "float32 of 6 axes": _float(None, None, None, None, None, None),
    "other shape": _float(9, 9, 9, 9),
    "constant nan": pt.constant(_NAN),
    "negative constant vector": pt.constant([-1, -1]),
    "huge constant vector": pt.constant([2**40, 2**40]),
    "negative constant vector of 4": pt.constant([-1] * 4),
    "vectors in a list": [pt.lvector(), pt.lvector()],
    "sparse": scipy.sparse.csr_matrix(np.eye(2)),
    "scalar type": pytensor.scalar.int64("s"),
    "shared generator": pytensor.shared(np.random.default_rng(1)),
    "shared": pytensor.shared(np.ones((2, 4, 6, 7), "float32")),
}

#: Values for flags.
SWITCHES = ("True", "False", "0", "1", "bool_")

"""Layers of float32 stay float32: no node of a layer or its gradients is float64."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytensor
import pytensor.tensor as pt

from dnnops import layers
from tests.nnet.test_widening import every_floatx, wide_nodes


def tensor(*sizes: int, dtype: str = "float32") -> Any:
    return pt.tensor(dtype=dtype, shape=sizes)


def sequence() -> Any:
    return tensor(5, 2, 3)


def image() -> Any:
    return tensor(2, 4, 8, 8)


def volume() -> Any:
    return tensor(2, 4, 8, 8, 8)


def _classes(*sizes: int) -> Any:
    return tensor(*sizes, dtype="int64")


#: What makes each layer, and its operands.
LAYERS: dict[str, tuple[Callable[[], Any], list[Any]]] = {
    "AffineGridGenerator": (lambda: layers.AffineGridGenerator(5, 6), [tensor(2, 2, 3)]),
    "BGRU": (lambda: layers.BGRU(3, 4), [sequence()]),
    "BLSTM": (lambda: layers.BLSTM(3, 4), [sequence()]),
    "BatchNormalization": (lambda: layers.BatchNormalization(3), [tensor(5, 3)]),
    "BilinearSampler": (layers.BilinearSampler, [image(), tensor(2, 5, 6, 2)]),
    "ClippedReLU": (lambda: layers.ClippedReLU(0.7), [image()]),
    "Concat": (lambda: layers.Concat(1, layers.ReLU(), layers.Tanh()), [image()]),
    "CrossEntropyCriterion": (layers.CrossEntropyCriterion, [tensor(5, 3), _classes(5)]),
    "Dropout": (lambda: layers.Dropout(0.3), [image()]),
    "Embedding": (lambda: layers.Embedding(7, 3), [_classes(5)]),
    "GELU": (lambda: layers.GELU(approximate=True), [image()]),
    "GRU": (lambda: layers.GRU(3, 4, 2, dropout=0.3), [sequence()]),
    "GroupNorm": (lambda: layers.GroupNorm(2, 4), [tensor(2, 4, 300, 300)]),
    "LSTM": (lambda: layers.LSTM(3, 4), [sequence()]),
    "LayerNorm": (lambda: layers.LayerNorm(8), [image()]),
    "Linear": (lambda: layers.Linear(3, 4), [tensor(5, 3)]),
    "LogSoftMax": (layers.LogSoftMax, [tensor(5, 3)]),
    "MultiHeadAttention": (lambda: layers.MultiHeadAttention(4, 2), [tensor(2, 5, 4)]),
    "RMSNorm": (lambda: layers.RMSNorm(8), [image()]),
    "RNN": (lambda: layers.RNN(3, 4, mode="rnn_tanh"), [sequence()]),
    "RNNReLU": (lambda: layers.RNNReLU(3, 4), [sequence()]),
    "RNNTanh": (lambda: layers.RNNTanh(3, 4), [sequence()]),
    "ReLU": (layers.ReLU, [image()]),
    "Residual": (lambda: layers.Residual(layers.ReLU()), [image()]),
    "Sequential": (lambda: layers.Sequential(layers.ReLU(), layers.Dropout(0.2)), [image()]),
    "Sigmoid": (layers.Sigmoid, [image()]),
    "SoftMax": (layers.SoftMax, [tensor(5, 3)]),
    "SpatialAveragePooling": (lambda: layers.SpatialAveragePooling(3, 3, 2, 2, 1, 1), [image()]),
    "SpatialBatchNormalization": (lambda: layers.SpatialBatchNormalization(4), [image()]),
    "SpatialConvolution": (lambda: layers.SpatialConvolution(4, 3, 3, 3), [image()]),
    "SpatialCrossEntropyCriterion": (
        layers.SpatialCrossEntropyCriterion,
        [image(), _classes(2, 8, 8)],
    ),
    "SpatialCrossMapLRN": (layers.SpatialCrossMapLRN, [image()]),
    "SpatialDivisiveNormalization": (layers.SpatialDivisiveNormalization, [image()]),
    "SpatialFullConvolution": (lambda: layers.SpatialFullConvolution(4, 3, 3, 3), [image()]),
    "SpatialLogSoftMax": (layers.SpatialLogSoftMax, [image()]),
    "SpatialMaxPooling": (lambda: layers.SpatialMaxPooling(3, 3, 2, 2, 1, 1).ceil(), [image()]),
    "SpatialSoftMax": (layers.SpatialSoftMax, [image()]),
    "SpatialTransformer": (
        lambda: layers.SpatialTransformer(
            layers.Sequential(layers.View(-1), layers.Linear(256, 6)), 5, 6
        ),
        [image()],
    ),
    "Tanh": (layers.Tanh, [image()]),
    "TemporalConvolution": (lambda: layers.TemporalConvolution(3, 4, 2), [tensor(2, 5, 3)]),
    "TemporalMaxPooling": (lambda: layers.TemporalMaxPooling(2), [tensor(2, 6, 3)]),
    "TransformerEncoderLayer": (
        lambda: layers.TransformerEncoderLayer(4, 2, 8, dropout=0.1),
        [tensor(2, 5, 4)],
    ),
    "View": (lambda: layers.View(-1), [image()]),
    "VolumetricAveragePooling": (lambda: layers.VolumetricAveragePooling(2, 2, 2), [volume()]),
    "VolumetricBatchNormalization": (lambda: layers.VolumetricBatchNormalization(4), [volume()]),
    "VolumetricConvolution": (lambda: layers.VolumetricConvolution(4, 3, 3, 3, 3), [volume()]),
    "VolumetricCrossEntropyCriterion": (
        layers.VolumetricCrossEntropyCriterion,
        [volume(), _classes(2, 8, 8, 8)],
    ),
    "VolumetricFullConvolution": (
        lambda: layers.VolumetricFullConvolution(4, 3, 3, 3, 3),
        [volume()],
    ),
    "VolumetricLogSoftMax": (layers.VolumetricLogSoftMax, [volume()]),
    "VolumetricMaxPooling": (lambda: layers.VolumetricMaxPooling(2, 2, 2), [volume()]),
    "VolumetricSoftMax": (layers.VolumetricSoftMax, [volume()]),
}


def test_every_layer_is_tried():
    public = {
        name
        for name in layers.__all__
        if inspect.isclass(getattr(layers, name))
        and issubclass(getattr(layers, name), layers.Layer)
    }
    assert public - {"Layer"} == set(LAYERS)


@every_floatx
def test_layers(floatx):
    wrong = {}
    for name, (make, operands) in LAYERS.items():
        # The parameters are float32 in either case.
        with pytensor.config.change_flags(floatX="float32"):
            layer = make()
        with pytensor.config.change_flags(floatX=floatx):
            result = layer(*operands)
            result = result[0] if isinstance(result, (list, tuple)) else result
            inputs = [x for x in (*operands, *layer.parameters()) if x.type.dtype == "float32"]
            gradients = pytensor.grad(
                None,
                inputs,
                known_grads={result: result.type()},
                disconnected_inputs="ignore",
                return_disconnected="none",
            )
            if found := wide_nodes([result, *(g for g in gradients if g is not None)]):
                wrong[name] = found[:3]
    assert not wrong

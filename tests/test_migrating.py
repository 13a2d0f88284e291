"""Names of Theano's three modules are here, or docs/migrating.rst says what takes their place."""

from __future__ import annotations

from pathlib import Path

import pytest

import dnnops.dnn
import dnnops.nnet

GUIDE = (Path(__file__).parents[1] / "docs" / "migrating.rst").read_text(encoding="utf-8")

#: Of Theano 1.0.5: ``theano.gpuarray.dnn``.
DNN = """
dnn_available dnn_present version GpuDnnConvDesc GpuDnnConv GpuDnnConvGradW GpuDnnConvGradI
dnn_conv dnn_conv3d dnn_gradweight dnn_gradweight3d dnn_gradinput dnn_gradinput3d GpuDnnPool
GpuDnnPoolGrad dnn_pool GpuDnnSoftmax GpuDnnSoftmaxGrad GpuDnnReduction GpuDnnBatchNorm
GpuDnnBatchNormInference GpuDnnBatchNormGrad dnn_batch_normalization_train
dnn_batch_normalization_test GpuDnnDropoutOp dropout RNNBlock GpuDnnRNNOp GpuDnnRNNGradInputs
GpuDnnRNNGradWeights GpuDnnTransformerGrid GpuDnnTransformerSampler GpuDnnTransformerGradI
GpuDnnTransformerGradT dnn_spatialtf
"""

#: ``theano.tensor.nnet`` and ``theano.tensor.signal.pool``.
NNET = """
conv2d conv3d conv2d_transpose conv2d_grad_wrt_inputs conv2d_grad_wrt_weights
conv3d_grad_wrt_inputs conv3d_grad_wrt_weights separable_conv2d separable_conv3d causal_conv1d
bilinear_upsampling bilinear_kernel_1D bilinear_kernel_2D get_conv_output_shape pool_2d pool_3d
max_pool_2d_same_size batch_normalization batch_normalization_train batch_normalization_test
softmax logsoftmax relu elu selu sigmoid hard_sigmoid ultra_fast_sigmoid softplus softsign
binary_crossentropy sigmoid_binary_crossentropy categorical_crossentropy
crossentropy_softmax_1hot prepend_scalar_to_each_row confusion_matrix h_softmax ctc
images2neibs neibs2images sparse_block_dot
"""


@pytest.mark.parametrize(("room", "names"), [(dnnops.dnn, DNN), (dnnops.nnet, NNET)])
def test_names(room, names):
    missing = [name for name in names.split() if not hasattr(room, name)]
    assert [name for name in missing if name not in GUIDE] == []
    # What is there is no business of the table's last rows.
    assert set(missing) <= {
        "GpuDnnRNNOp", "GpuDnnRNNGradInputs", "GpuDnnRNNGradWeights",
        "crossentropy_softmax_1hot", "prepend_scalar_to_each_row", "sparse_block_dot",
    }  # fmt: skip


def test_the_guide_has_a_table():
    section = GUIDE[GUIDE.index("What differs") :]
    assert ".. list-table::" in section
    assert not [line for line in section.splitlines() if line.startswith("* ")]

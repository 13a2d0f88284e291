"""Tables of ``theano.gpuarray`` and ``theano.sandbox``."""

from __future__ import annotations

from dnnops.theano.tables.base import Table, at
from dnnops.theano.tables.tensor import LINALG, NNET

__all__ = ["TABLES"]

#: Modules with the names of ``basic_ops``.
_DEVICE = ("dnnops.theano.gpu", "dnnops.gpuarray")
_BLOCKS = "dnnops.theano.blocksparse"
_OPS = "dnnops.theano.ops"


def _gpu(module: str, *names: str) -> dict[str, str]:
    """Return references to classes in a module by the names of their counterparts on a GPU."""
    return at(module, **{f"Gpu{name}": name for name in names})


TABLES: dict[str, Table] = {
    "theano.gpuarray": Table(
        ("dnnops.gpuarray",),
        at("dnnops.theano.gpu", "pygpu_activated") | at("dnnops.theano.cuda", "use"),
    ),
    "theano.gpuarray.basic_ops": Table(_DEVICE),
    "theano.gpuarray.blas": Table(
        names=_gpu("dnnops.theano.abstract_conv", "CorrMM", "CorrMM_gradInputs")
        | _gpu("dnnops.theano.abstract_conv", "CorrMM_gradWeights", "Corr3dMM")
        | _gpu("dnnops.theano.abstract_conv", "Corr3dMM_gradInputs", "Corr3dMM_gradWeights")
        | at("pytensor.tensor", gpu_dot22="dot")
    ),
    "theano.gpuarray.blocksparse": Table(
        names=_gpu(_BLOCKS, "SparseBlockGemv", "SparseBlockOuter")
        | at(_BLOCKS, gpu_sparse_block_gemv="sparse_block_gemv")
        | at(_BLOCKS, gpu_sparse_block_gemv_inplace="sparse_block_gemv_inplace")
        | at(_BLOCKS, gpu_sparse_block_outer="sparse_block_outer")
        | at(_BLOCKS, gpu_sparse_block_outer_inplace="sparse_block_outer_inplace")
    ),
    "theano.gpuarray.ctc": Table(
        ("dnnops.dnn",),
        at("dnnops.dnn", gpu_ctc="dnn_ctc") | _gpu(_OPS, "ConnectionistTemporalClassification"),
    ),
    "theano.gpuarray.dnn": Table(("dnnops.dnn",)),
    "theano.gpuarray.fft": Table(names=at("pytensor.tensor.fft", curfft="rfft", cuirfft="irfft")),
    "theano.gpuarray.linalg": Table(
        names=at(
            "dnnops.theano.tensors.linalg",
            gpu_solve_lower_triangular="solve_lower_triangular",
            gpu_solve_upper_triangular="solve_upper_triangular",
        )
        | at("pytensor.tensor.linalg", gpu_matrix_inverse="inv", gpu_svd="svd")
    ),
    "theano.gpuarray.neighbours": Table(
        names=at("dnnops.theano.ops", GpuImages2Neibs="Images2Neibs")
    ),
    "theano.gpuarray.nnet": Table(
        names=_gpu(_OPS, "CrossentropySoftmax1HotWithBiasDx", "Softmax", "SoftmaxWithBias")
        | _gpu(_OPS, "CrossentropySoftmaxArgmax1HotWithBias")
        | at("dnnops.nnet", gpu_softmax="softmax", gpu_softmax_with_bias="softmax_with_bias")
        | at(
            "dnnops.nnet",
            gpu_crossentropy_softmax_1hot_with_bias_dx="crossentropy_softmax_1hot_with_bias_dx",
            gpu_crossentropy_softmax_argmax_1hot_with_bias=(
                "crossentropy_softmax_argmax_1hot_with_bias"
            ),
        )
    ),
    "theano.gpuarray.pool": Table(
        names=_gpu(_OPS, "AveragePoolGrad", "DownsampleFactorMaxGradGrad", "MaxPoolGrad", "Pool")
    ),
    "theano.gpuarray.sort": Table(names=_gpu("dnnops.theano.tensors.removed", "TopKOp")),
    "theano.gpuarray.type": Table(
        ("dnnops.gpuarray",), at("dnnops.gpuarray", gpuarray_shared_constructor="shared")
    ),
    # Theano's experimental and deprecated modules
    "theano.sandbox": Table(),
    "theano.sandbox.cuda": Table(
        ("dnnops.theano.cuda", "dnnops.theano.gpu"),
        at("dnnops.gpuarray", "GpuContiguous", "GpuFromHost", "HostFromGpu")
        | at("dnnops.gpuarray", "as_gpuarray_variable", CudaNdarrayType="GpuArrayType"),
    ),
    "theano.sandbox.cuda.basic_ops": Table(
        _DEVICE, at("dnnops.gpuarray", as_cuda_ndarray_variable="as_gpuarray_variable")
    ),
    "theano.sandbox.cuda.blas": Table(names=at("dnnops.theano.cuda", "GpuCorrMM")),
    "theano.sandbox.cuda.dnn": Table(("dnnops.dnn",)),
    "theano.sandbox.linalg": Table(
        LINALG,
        at("pytensor.tensor.basic", "alloc_diag", "diag")
        | at("pytensor.tensor.basic", extract_diag="diagonal"),
    ),
    "theano.sandbox.linalg.ops": Table(LINALG),
    "theano.sandbox.multinomial": Table(),
    "theano.sandbox.neighbours": NNET,
    "theano.sandbox.rng_mrg": Table(names=at("dnnops.theano.random", "MRG_RandomStreams")),
}

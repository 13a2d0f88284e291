"""Tables of ``theano.gpuarray`` and ``theano.sandbox``."""

from __future__ import annotations

from dnnops.theano.tables.base import Table, at
from dnnops.theano.tables.tensor import LINALG, NNET

__all__ = ["TABLES"]

_DEVICE = at(
    "dnnops.theano.gpu",
    *("gpu_contiguous", "gpu_from_host", "host_from_gpu"),
) | at("dnnops.gpuarray", "GpuContiguous", "GpuFromHost", "HostFromGpu", "as_gpuarray_variable")

TABLES: dict[str, Table] = {
    "theano.gpuarray": Table(("dnnops.gpuarray",), at("dnnops.theano.gpu", "pygpu_activated")),
    "theano.gpuarray.basic_ops": Table(("dnnops.gpuarray",), _DEVICE),
    "theano.gpuarray.ctc": Table(("dnnops.dnn",), at("dnnops.dnn", gpu_ctc="dnn_ctc")),
    "theano.gpuarray.dnn": Table(("dnnops.dnn",)),
    "theano.gpuarray.neighbours": Table(
        names=at("dnnops.theano.ops", GpuImages2Neibs="Images2Neibs")
    ),
    "theano.gpuarray.type": Table(("dnnops.gpuarray",)),
    # Theano's experimental and deprecated modules
    "theano.sandbox": Table(),
    "theano.sandbox.cuda": Table(
        ("dnnops.theano.cuda",), at("dnnops.gpuarray", CudaNdarrayType="GpuArrayType") | _DEVICE
    ),
    "theano.sandbox.cuda.basic_ops": Table(
        ("dnnops.gpuarray",),
        _DEVICE | at("dnnops.gpuarray", as_cuda_ndarray_variable="as_gpuarray_variable"),
    ),
    "theano.sandbox.cuda.blas": Table(names=at("dnnops.theano.cuda", "GpuCorrMM")),
    "theano.sandbox.cuda.dnn": Table(("dnnops.dnn",)),
    "theano.sandbox.linalg": Table(LINALG),
    "theano.sandbox.neighbours": NNET,
    "theano.sandbox.rng_mrg": Table(names=at("dnnops.theano.random", "MRG_RandomStreams")),
}

"""Batch normalization on a GPU in dnnops, and a plain copy of an array."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt

from benchmarks.harness import Task
from benchmarks.norm_data import EPSILON
from benchmarks.peers.dnnops_gpu import versions
from benchmarks.peers.gated import ArrayTask
from benchmarks.peers.graphs import compile_nodes, library_ops
from benchmarks.peers.norm_turns import SEEDS, NormTask
from dnnops.dnn import dnn_batch_normalization_train
from dnnops.gpu.batchnorm import GpuDnnBatchNormGrad
from dnnops.gpuarray import GpuArrayType
from dnnops.gpuarray.transfer import as_gpuarray_variable
from dnnops.nnet import batch_normalization_train

__all__ = ["make_task", "versions"]


def training_step(shape: tuple[int, ...], dtype: str) -> tuple[list[Any], list[Any]]:
    """Return the inputs and outputs of a graph on the device.

    The inputs are the batch, the gradient with respect to its normalization, the scale and the
    bias. The outputs are the normalization and the gradients.
    """
    x, top = (GpuArrayType(dtype, shape)() for _ in range(2))
    gamma, beta = (GpuArrayType("float32", (shape[1],))() for _ in range(2))
    inputs = [x, top, gamma, beta]
    if dtype == "bfloat16":  # PyTensor's own tensors do not support it
        out = dnn_batch_normalization_train(x, gamma, beta, "spatial", EPSILON)[0]
        # The Op's statistics have the rank of the batch; those that the function returns do not.
        _, mean, invstd = out.owner.outputs
        scale = out.owner.inputs[1]
        return inputs, [out, *GpuDnnBatchNormGrad("spatial")(x, top, scale, mean, invstd)]
    axes = tuple(i for i in range(len(shape)) if i != 1)
    host = [pt.as_tensor_variable(v) for v in (x, gamma, beta)]
    out = batch_normalization_train(*host, axes, EPSILON)[0]
    known = {out: pt.as_tensor_variable(top)}
    outputs = [out, *pytensor.grad(None, [x, gamma, beta], known_grads=known)]
    return inputs, [as_gpuarray_variable(v) for v in outputs]


class Normalization(NormTask, ArrayTask):
    """Batch normalization as a compiled function of `dnnops.nnet`."""

    def __init__(self, case: dict[str, Any]) -> None:
        super().__init__(case)
        inputs, outputs = training_step(self.shape, self.dtype)
        self.function = compile_nodes(inputs, outputs, mode="CUDNN")
        library_ops(self.function, "GpuDnn")
        images = [
            self._image(self.flat(self.count, SEEDS[name], self.dtype)) for name in ("x", "top")
        ]
        parameters = [
            self.flat(self.channels, SEEDS[name], "float32") for name in ("gamma", "beta")
        ]
        self.operands = (*images, *parameters)
        self.warm()

    def _image(self, flat: Any) -> Any:
        array = flat.reshape(self.physical_shape)
        if not self.is_channels_last:
            return array
        return array.transpose(0, array.ndim - 1, *range(1, array.ndim - 1))

    def run(self) -> Any:
        return self.function(*self.operands)

    def results(self) -> dict[str, np.ndarray]:
        out, dx, dgamma, dbeta = self.run()
        found = {}
        for name, array in (("out", out), ("dx", dx)):
            if self.is_channels_last:
                array = array.transpose(0, *range(2, array.ndim), 1)
            found[name] = np.array(self.sketch(array))
        return {**found, "dgamma": dgamma.get().ravel(), "dbeta": dbeta.get().ravel()}


_COPY = r"""
extern "C" __global__ void __launch_bounds__(512)
copy(const uint4 *from, uint4 *to, long long count) {
  const long long start = blockIdx.x * 2048ll + threadIdx.x;
  uint4 loaded[4];
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (start + i * 512 < count) loaded[i] = from[start + i * 512];
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (start + i * 512 < count) to[start + i * 512] = loaded[i];
}
"""


class Copy(NormTask, ArrayTask):
    """A copy, which reads and writes an array of the case's size once."""

    def __init__(self, case: dict[str, Any]) -> None:
        super().__init__(case)
        import cupy

        self.source = self.flat(self.count, SEEDS["x"], self.dtype)
        self.target = cupy.empty_like(self.source)
        self.vectors = self.source.nbytes // 16
        self.kernel = cupy.RawKernel(_COPY, "copy")
        self.warm()

    def run(self) -> Any:
        blocks = -(-self.vectors // 2048)
        self.kernel((blocks,), (512,), (self.source, self.target, np.int64(self.vectors)))


def make_task(case: dict[str, Any]) -> Task:
    """Prepare a case of ``benchmarks/norm.py`` on a GPU."""
    return (Copy if case["kind"] == "copy" else Normalization)(case)

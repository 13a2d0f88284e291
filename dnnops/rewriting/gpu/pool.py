"""Lift pooling and its gradients to cuDNN or dnnops kernels."""

from __future__ import annotations

from typing import Any

from pytensor.graph.basic import Variable

from dnnops.gpu.pool import GpuDnnPool, GpuDnnPoolGrad
from dnnops.gpu.pool_kernels import GpuMaxPoolGradGrad, GpuPool, GpuPoolGrad
from dnnops.nnet.pool.geometry import MAX_DETERMINISTIC
from dnnops.nnet.pool.op import AveragePoolGrad, MaxPoolGrad, MaxPoolGradGrad, Pool
from dnnops.nnet.validate import static_vector
from dnnops.rewriting.gpu.mechanism import register, register_kernel


def _whole_windows(op: Any, img: Any, vectors: list[Any]) -> bool:
    """Return whether no window extends past the end of the image, as cuDNN requires."""
    if op.ignore_border:
        return True
    ws, stride, _ = (static_vector(v, op.ndim) for v in vectors)
    sizes = img.type.shape[2:]
    if None in (*ws, *stride, *sizes):
        return False
    return all(
        n >= w and (n - w) % s == 0 and s <= w for n, w, s in zip(sizes, ws, stride, strict=True)
    )


def _build_pool(op: Any, inputs: list[Any]) -> list[Variable] | None:
    x, *vectors = inputs
    if not _whole_windows(op, x, vectors):
        return None
    return [GpuDnnPool(op.mode, op.ndim, op.ignore_border)(*inputs)]


def _build_max_grad(op: Any, inputs: list[Any]) -> list[Variable] | None:
    x, _, _, *vectors = inputs
    if not _whole_windows(op, x, vectors):
        return None
    mode = MAX_DETERMINISTIC if op.deterministic else "max"
    return [GpuDnnPoolGrad(mode, op.ndim, op.ignore_border)(*inputs)]


def _build_average_grad(op: Any, inputs: list[Any]) -> list[Variable] | None:
    x, gz, *vectors = inputs
    if not _whole_windows(op, x, vectors):
        return None
    # cuDNN also requires the pooled array, but reads its values only for maxima.
    return [GpuDnnPoolGrad(op.mode, op.ndim, op.ignore_border)(x, gz, gz, *vectors)]


register(Pool, _build_pool, operands=(0,))
register(MaxPoolGrad, _build_max_grad, operands=(0, 1, 2))
register(AveragePoolGrad, _build_average_grad, operands=(0, 1))

register_kernel(Pool, lambda op, x: GpuPool(op.ndim, op.mode, op.ignore_border)(*x), (0,))
register_kernel(
    MaxPoolGrad, lambda op, x: GpuPoolGrad(op.ndim, "max", op.ignore_border)(*x), (0, 1, 2)
)
register_kernel(
    AveragePoolGrad,
    lambda op, x: GpuPoolGrad(op.ndim, op.mode, op.ignore_border)(x[0], x[1], *x[1:]),
    (0, 1),
)
register_kernel(
    MaxPoolGradGrad,
    lambda op, x: GpuMaxPoolGradGrad(op.ndim, "max", op.ignore_border)(*x),
    (0, 1, 2),
)

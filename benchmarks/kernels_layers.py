"""More rows of ``python -m benchmarks.kernels gpu``: pooling, dropout, losses and other layers."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from benchmarks.kernels_ctypes import CudnnDropout, CudnnMaxPool
from benchmarks.kernels_gpu import FLOATS, Gpu, Row, Ways
from dnnops.gpu import attention, pool, pool_kernels, softmax, spatial_transformer
from dnnops.gpu.cross_entropy import GpuCrossEntropy, GpuCrossEntropyGrad
from dnnops.gpu.ctc import GpuCTC, GpuDnnCTC
from dnnops.gpu.dropout import GpuDnnDropoutGrad, GpuDnnDropoutOp

__all__ = ["ROWS"]


def _pool(mode: str, size: int, dtype: str, what: str, g: Gpu) -> Ways:
    """Pool windows of 3x3 with strides of 2; an even size has partial windows at its end."""
    x = g.values((64, 64, size, size), dtype)
    sizes = ((3, 3), (2, 2), (0, 0))
    is_max, functional = mode == "max", g.torch.nn.functional
    forward = g.call(pool_kernels.GpuPool(2, mode, False), x, *sizes)
    out = forward()
    top, t = g.values(out.shape, dtype), g.tensor(x)
    # Sizes, dilation and ceil_mode, as aten's functions take them.
    geometry = ([3, 3], [2, 2], [0, 0])
    if what == "forward":
        ways: Ways = {"dnnops": forward, "cuDNN": g.call(pool.GpuDnnPool(mode, 2), x, *sizes)}
        if is_max:
            ways["PyTorch"] = lambda: functional.max_pool2d(t, 3, 2, ceil_mode=True)
        else:
            ways["PyTorch"] = lambda: functional.avg_pool2d(t, 3, 2, 0, True, False)
    elif what == "gradient":
        words = (x, out, top, *sizes)
        ways = {
            "dnnops": g.call(pool_kernels.GpuPoolGrad(2, mode, False), *words),
            "cuDNN": g.call(pool.GpuDnnPoolGrad(mode, 2), *words),
        }
        ttop = g.tensor(top)
        if is_max:
            indices = functional.max_pool2d(t, 3, 2, ceil_mode=True, return_indices=True)[1]
            backward = g.aten.max_pool2d_with_indices_backward
            ways["PyTorch"] = lambda: backward(ttop, t, *geometry, [1, 1], True, indices)
        else:
            backward = g.aten.avg_pool2d_backward
            ways["PyTorch"] = lambda: backward(ttop, t, *geometry, True, False, None)
    else:
        indices = functional.max_pool2d(t, 3, 2, ceil_mode=True, return_indices=True)[1].flatten(2)
        ways = {
            "dnnops": g.call(pool_kernels.GpuMaxPoolGradGrad(2, mode, False), x, out, x, *sizes),
            "PyTorch": lambda: t.flatten(2).gather(2, indices).view(out.shape),
        }
    if size % 2 == 0:
        ways.pop("cuDNN", None)  # it would leave out the last windows
    return ways


def _pool_cells(
    shape: tuple[int, ...], window: tuple[int, int, int], dtype: str, gradient: bool, g: Gpu
) -> Ways:
    """Pool maxima of channels-last images; a window has a length, a stride and a padding."""
    x = g.values(shape, dtype, "channels_last")
    sizes = tuple((size, size) for size in window)
    forward = g.call(pool.GpuDnnPool("max", 2, memory_format="channels_last"), x, *sizes)
    pooled, t = forward(), g.tensor(x)
    gz = g.values(pooled.shape, dtype, "channels_last")
    cudnn, functional = CudnnMaxPool(x, pooled, gz, *window), g.torch.nn.functional
    if not gradient:
        return {
            "dnnops": forward,
            "cuDNN": cudnn.forward,
            "PyTorch": lambda: functional.max_pool2d(t, *window),
        }
    op = pool.GpuDnnPoolGrad("max", 2, memory_format="channels_last")
    indices = functional.max_pool2d(t, *window, return_indices=True)[1]
    backward, tgz = g.aten.max_pool2d_with_indices_backward, g.tensor(gz)
    geometry = (*map(list, sizes), [1, 1])
    return {
        "dnnops": g.call(op, x, pooled, gz, *sizes),
        "cuDNN": cudnn.backward,
        "PyTorch": lambda: backward(tgz, t, *geometry, False, indices),
    }


def _dropout(dtype: str, gradient: bool, g: Gpu) -> Ways:
    x = g.values((64, 256, 56, 56), dtype)
    t = g.tensor(x)
    forward = g.call(GpuDnnDropoutOp(), x, 0.5, np.array([1, 0], "int64"))
    cudnn = CudnnDropout(x, 0.5)
    if not gradient:
        return {
            "dnnops": forward,
            "cuDNN": cudnn.forward,
            "PyTorch": lambda: g.aten.native_dropout(t, 0.5, True),
        }
    reserve = forward()[1]
    mask = g.aten.native_dropout(t, 0.5, True)[1]
    return {
        "dnnops": g.call(GpuDnnDropoutGrad(), x, 0.5, reserve),
        "cuDNN": cudnn.backward,
        "PyTorch": lambda: g.aten.native_dropout_backward(t, mask, 2.0),
    }


# -- losses --------------------------------------------------------------------------------------


def _cross_entropy(shape: tuple[int, int], dtype: str, g: Gpu) -> Ways:
    """Compute costs and gradients; cuDNN's part leaves out picking the labels' elements."""
    x, cost = g.values(shape, dtype), g.values(shape[:1], dtype)
    labels = g.cupy.asarray(g.rng.integers(0, shape[1], shape[0]))
    forward = g.call(GpuCrossEntropy(), x, labels)
    backward = g.call(GpuCrossEntropyGrad(), cost, x, labels, forward()[1])
    logs = g.call(softmax.GpuDnnSoftmax("log", axis=1), x)
    slopes = g.call(softmax.GpuDnnSoftmaxGrad("log", axis=1), x, logs())
    t, tcost, tlabels = g.tensor(x).requires_grad_(), g.tensor(cost), g.tensor(labels)

    def torch() -> Any:
        costs = g.torch.nn.functional.cross_entropy(t, tlabels, reduction="none")
        return g.torch.autograd.grad(costs, t, tcost)[0]

    return {
        "dnnops": lambda: (forward(), backward())[1],
        "cuDNN log-softmax": lambda: [None, logs(), slopes()],
        "PyTorch": torch,
    }


def _ctc(steps: int, batch: int, classes: int, length: int, g: Gpu) -> Ways:
    """Compute costs and gradients; the calls copy labels from the host."""
    x = g.values((steps, batch, classes), "float32")
    labels = g.rng.integers(1, classes, (batch, length)).astype("int32")
    steps_each = np.full(batch, steps, "int32")
    t = g.tensor(x).requires_grad_()
    targets = g.torch.from_numpy(labels).to("cuda").long()
    lengths = [g.torch.full((batch,), n, dtype=g.torch.long) for n in (steps, length)]

    def torch() -> Any:
        functional = g.torch.nn.functional
        costs = functional.ctc_loss(
            functional.log_softmax(t, 2), targets, *lengths, reduction="none"
        )
        return costs.detach(), g.torch.autograd.grad(costs.sum(), t)

    return {
        "dnnops": g.call(GpuCTC(), x, labels, steps_each),
        "cuDNN": g.call(GpuDnnCTC(), x, labels, steps_each),
        "cuDNN, not deterministic": g.call(GpuDnnCTC(deterministic=False), x, labels, steps_each),
        "PyTorch": torch,
    }


# -- attention and spatial transformers ----------------------------------------------------------


def _attention_grad(batch: int, length: int, g: Gpu) -> Ways:
    q, k, v, top = (g.values((batch, 16, length, 64), "float16") for _ in range(4))
    out, stats = g.call(attention.GpuDnnAttention(), q, k, v)()
    ways: Ways = {}
    for name, path in (("dnnops", 1), ("cuDNN", 2)):
        op = attention.GpuDnnAttentionGrad()
        op.path = path  # type: ignore[misc]
        ways[name] = g.call(op, q, k, v, out, stats, top)
    operands = tuple(g.tensor(a).requires_grad_() for a in (q, k, v))
    forward = partial(g.torch.nn.functional.scaled_dot_product_attention, *operands)
    ways["PyTorch"] = g.gradient(forward, operands, g.tensor(top))
    return ways


def _sampler(shape: tuple[int, ...], what: str, g: Gpu) -> Ways:
    img, top = (g.values(shape, "float32") for _ in range(2))
    turn = np.array([[0.9, -0.2, 0.1], [0.2, 0.9, -0.1]], "float32")
    theta = g.cupy.asarray(np.broadcast_to(turn, (shape[0], 2, 3)).copy())
    own, theirs = (
        g.call(op, theta, shape[2:])
        for op in (
            spatial_transformer.GpuTransformerGrid(),
            spatial_transformer.GpuDnnTransformerGrid(),
        )
    )
    grid = own()
    timg, tgrid = (g.tensor(a).requires_grad_() for a in (img, grid))
    functional = g.torch.nn.functional
    sample = partial(functional.grid_sample, timg, tgrid, align_corners=True)
    if what == "grid":
        affine = partial(functional.affine_grid, g.tensor(theta), shape, align_corners=True)
        return {"dnnops": own, "cuDNN": theirs, "PyTorch": affine}
    if what == "samples":
        ops: Any = spatial_transformer.GpuTransformerSampler
        cudnn: Any = spatial_transformer.GpuDnnTransformerSampler
        operands = (img, grid)
        torch: Any = lambda: sample().detach()  # noqa: E731
    else:
        ops = spatial_transformer.GpuTransformerGradI
        cudnn = spatial_transformer.GpuDnnTransformerGradI
        operands = (img, grid, top)
        torch = g.gradient(sample, (timg, tgrid), g.tensor(top))
    return {
        "dnnops": g.call(ops(), *operands),
        "cuDNN": g.call(cudnn(), *operands),
        "PyTorch": torch,
    }


ROWS: list[Row] = [
    *(
        (
            "pool_kernel",
            f"{mode} 3x3/2, 64x64x{size}x{size}, {dtype}, {what}",
            partial(_pool, mode, size, dtype, what),
        )
        for mode in ("max", "average_exc_pad")
        for dtype in FLOATS
        for size in (112, 113)
        for what in ("forward", "gradient")
    ),
    (
        "max_pool_grad_grad_kernel",
        "3x3/2, 64x64x112x112, float32",
        partial(_pool, "max", 112, "float32", "second"),
    ),
    *(
        (
            "pool_cells",
            f"max {window[0]}x{window[0]}/{window[1]}, {'x'.join(map(str, shape))} channels-last, "
            f"{dtype}, {'gradient' if gradient else 'forward'}",
            partial(_pool_cells, shape, window, dtype, gradient),
        )
        for dtype in FLOATS
        for shape, window in (
            ((32, 64, 224, 224), (2, 2, 0)),
            ((32, 256, 56, 56), (2, 2, 0)),
            ((32, 512, 14, 14), (2, 2, 0)),
            ((128, 64, 112, 112), (3, 2, 1)),
            ((32, 192, 28, 28), (3, 1, 1)),
        )
        for gradient in (False, True)
    ),
    *(
        (
            "dropout",
            f"64x256x56x56, {dtype}, {'gradient' if gradient else 'forward'}",
            partial(_dropout, dtype, gradient),
        )
        for dtype in FLOATS
        for gradient in (False, True)
    ),
    *(
        ("cross_entropy", f"{shape[0]}x{shape[1]}, {dtype}", partial(_cross_entropy, shape, dtype))
        for dtype in FLOATS
        for shape in ((65536, 10), (8192, 1000), (4096, 50257))
    ),
    *(
        (
            "attention_grad",
            f"{16 * batch} heads, {length} queries and keys of 64, float16",
            partial(_attention_grad, batch, length),
        )
        for batch in (256, 1)
        for length in (8, 32)
    ),
    *(
        (
            "ctc",
            f"{steps} steps, batch {batch}, {classes} classes, labels of {length}, float32",
            partial(_ctc, steps, batch, classes, length),
        )
        for steps, batch, classes, length in (
            (50, 32, 30, 15),
            (200, 32, 100, 40),
            (500, 64, 1000, 100),
        )
    ),
    *(
        ("sampler", f"{'x'.join(map(str, shape))}, float32, {what}", partial(_sampler, shape, what))
        for shape in ((32, 64, 64, 64), (64, 3, 224, 224))
        for what in ("grid", "samples", "gradients")
    ),
]

"""Convolution, bias and relu in one cuDNN graph, its plans with their times, and as an Op."""

from __future__ import annotations

import cupy
import numpy as np
import pytensor
import pytensor.tensor as pt

from dnnops import graph as cudnn

graph = cudnn.pygraph(
    io_data_type=cudnn.data_type.HALF,
    intermediate_data_type=cudnn.data_type.FLOAT,
    compute_data_type=cudnn.data_type.FLOAT,
)
n, c, h, w, k = 16, 128, 64, 64, 128
X = graph.tensor(name="X", dim=[n, c, h, w], stride=[c * h * w, 1, c * w, c])
W = graph.tensor(name="W", dim=[k, c, 3, 3], stride=[9 * c, 1, 3 * c, c])
B = graph.tensor(name="B", dim=[1, k, 1, 1], stride=[k, 1, k, k])
conv = graph.conv_fprop(image=X, weight=W, padding=[1, 1], stride=[1, 1], dilation=[1, 1])
Y = graph.relu(graph.bias(name="bias", input=conv, bias=B), name="relu").set_output(True)
graph.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])


def images(*shape: int) -> cupy.ndarray:
    memory = cupy.random.standard_normal((shape[0], *shape[2:], shape[1]), "float32")
    return (memory / 8).astype("float16").transpose(0, 3, 1, 2)


arrays = {X: images(n, c, h, w), W: images(k, c, 3, 3), B: images(1, k, 1, 1)}
arrays[Y] = images(n, k, h, w)
graph.time_plans(arrays)
print(graph.plan_table(width=80))
graph.execute(arrays)

# The same graph as an Op, with gradients, in a graph of PyTensor.
block = graph.as_op()
x, filters, bias = (pt.tensor(dtype="float16", shape=(None,) * 4) for _ in range(3))
y = block(x, filters, bias)
gradient = pytensor.grad(y.astype("float32").sum(), filters)
function = pytensor.function([x, filters, bias], [y, gradient], mode="CUDNN")
result, _ = function(*(arrays[t].get() for t in (X, W, B)))
error = np.linalg.norm(result - arrays[Y].get()) / np.linalg.norm(arrays[Y].get())
print(f"relative difference {error:.1e}")
assert error < 1e-3

"""The first notebook of cuDNN's frontend, on dnnops.graph.

Its output array had the shape of another convolution, which `execute` refuses.
"""

from __future__ import annotations

import torch

from dnnops import graph as cudnn

torch.manual_seed(42)
assert torch.cuda.is_available()
print(f"cudnn.backend_version(): {cudnn.backend_version()}")

handle = cudnn.create_handle()

graph = cudnn.pygraph(
    handle=handle,
    name="cudnn_graph_0",
    io_data_type=cudnn.data_type.HALF,
    compute_data_type=cudnn.data_type.FLOAT,
)

X = graph.tensor(
    name="X",
    dim=[8, 64, 56, 56],
    stride=[56 * 56 * 64, 1, 56 * 64, 64],
    data_type=cudnn.data_type.HALF,
)
W = graph.tensor(name="W", dim=[32, 64, 3, 3], stride=[3 * 3 * 64, 1, 3 * 64, 64])

Y = graph.conv_fprop(
    X,
    W,
    padding=[1, 1],
    stride=[1, 1],
    dilation=[1, 1],
    compute_data_type=cudnn.data_type.FLOAT,
)
Y.set_output(True)

graph.build([cudnn.heur_mode.A])
print(graph)


def channels_last(*shape: int) -> torch.Tensor:
    images = torch.randn(*shape, device="cuda", dtype=torch.float16)
    return images.to(memory_format=torch.channels_last)


X_gpu, W_gpu = channels_last(8, 64, 56, 56), channels_last(32, 64, 3, 3)
Y_gpu = channels_last(8, 32, 56, 56)
workspace = torch.empty(graph.get_workspace_size(), device="cuda", dtype=torch.uint8)

graph.execute({X: X_gpu, W: W_gpu, Y: Y_gpu}, workspace, handle=handle)
torch.cuda.synchronize()

expected = torch.nn.functional.conv2d(X_gpu.double(), W_gpu.double(), padding=1)
error = (Y_gpu - expected).norm() / expected.norm()
print(f"relative error {error:.1e}")
assert error < 1e-3

cudnn.destroy_handle(handle)

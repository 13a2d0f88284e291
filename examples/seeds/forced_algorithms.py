"""What a fork of PyTorch showed: time and memory of a convolution's algorithms, and one forced.

There, ``torch.backends.cudnn.conv_fwd_algo = 1`` selected the algorithm, and the convolution
printed the others. Here, a function lists them, and the flag names one. Without a GPU, the
algorithms are those of oneDNN.
"""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor import config

import dnnops
from dnnops.dnn import dnn_available
from dnnops.nnet import conv2d

image_shape, filter_shape = (8, 32, 28, 28), (32, 32, 3, 3)
on_gpu = dnn_available()

plans = dnnops.conv_plans(
    image_shape,
    filter_shape,
    border_mode="half",
    device="cuda" if on_gpu else "cpu",
    time=True,
)
print("algorithm, time in ms, memory in bytes")
for plan in plans:
    time = "-1" if plan.time_ms is None else f"{plan.time_ms:.4f}"
    print(f"{plan.name}, {time}, {plan.workspace_bytes}")

supported = [plan.name for plan in plans if plan.time_ms is not None]
print("supported:", ", ".join(supported))

wanted = supported[1]
x = pt.tensor("x", dtype="float32", shape=image_shape)
filters = pt.tensor("filters", dtype="float32", shape=filter_shape)
flag = "dnn__conv__algo_fwd" if on_gpu else "onednn__conv__algo"
with config.change_flags(**{flag: wanted}):
    y = conv2d(x, filters, border_mode="half")
    function = pytensor.function([x, filters], y, mode="CUDNN" if on_gpu else "ONEDNN")
function(np.ones(image_shape, "float32"), np.ones(filter_shape, "float32"))
used = str(dnnops.chosen_plans(function))
print(used)
assert wanted in used

"""Print a graph and the function that PyTensor compiles from it."""

from __future__ import annotations

import pytensor
import pytensor.tensor as pt
from pytensor.tensor.special import softmax

from dnnops.nnet import conv2d, pool_2d

x = pt.ftensor4("x")
filters = pt.ftensor4("filters")
y = conv2d(x, filters, border_mode="half")
y = pool_2d(y, ws=(2, 2), ignore_border=True)
y = softmax(y, axis=1)
pytensor.dprint(y)

f = pytensor.function([x, filters], y, mode="DNN")
print()
pytensor.dprint(f)

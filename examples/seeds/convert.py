"""The two conversions of cudnn.torch's page, and one that runs on any machine."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt

from dnnops import dnn, layers


def network() -> layers.Sequential:
    net = layers.Sequential()
    net.add(layers.SpatialConvolution(3, 96, 11, 11, 3, 3, dtype="float32"))
    return net.add(layers.ReLU())


net = network()
layers.convert(net, "cudnn")
print(net)

net = network()
layers.convert(net, "cudnn", lambda module: "ReLU" in type(module).__name__)
print(net)

# No parameter is copied: the network gives the same results on the library that is here.
x = pt.tensor4("x", dtype="float32")
image = np.random.default_rng(0).standard_normal((2, 3, 32, 32)).astype("float32")
net = network()
before = pytensor.function([x], net(x), mode="FAST_COMPILE")(image)
layers.convert(net, "cudnn" if dnn.dnn_available() else "onednn")
print(net)
after = pytensor.function([x], net(x))(image)
np.testing.assert_allclose(after, before, rtol=1e-3, atol=1e-3)

"""Show how a graph becomes library calls: print it before and after it is compiled."""

from __future__ import annotations

import pytensor
import pytensor.tensor as pt
from pytensor.tensor.special import softmax

from dnnops.nnet import conv2d, pool_2d

images = pt.tensor("images", dtype="float32", shape=(None, 3, 32, 32))
filters = pt.tensor("filters", dtype="float32", shape=(16, 3, 5, 5))
features = pool_2d(conv2d(images, filters, border_mode="half"), ws=(2, 2), ignore_border=True)
probabilities = softmax(features, axis=1)

print("before:")
pytensor.dprint(probabilities)

function = pytensor.function([images, filters], probabilities, mode="ONEDNN")
print("\nafter:")
pytensor.dprint(function)

"""List, time and force the plans of a convolution on the CPU."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor import config

import dnnops
from dnnops.nnet import conv2d

image_shape, filter_shape = (8, 32, 28, 28), (32, 32, 3, 3)

# List the plans, fastest first. A plan that cannot run has a reason instead of a time.
plans = dnnops.conv_plans(image_shape, filter_shape, border_mode="half", device="cpu", time=True)
for plan in plans:
    print(f"{plan.name:16} " + (f"{plan.time_ms:7.3f} ms" if plan.time_ms else plan.reason or ""))

# What each value of the flag would select.
print()
choices = dnnops.flag_choices(image_shape, filter_shape, border_mode="half", device="cpu")
for value, plan in choices.items():
    print(f"onednn.conv.algo={value} selects {plan}")

# Force a plan, and see what the compiled function used.
x = pt.tensor("x", dtype="float32", shape=image_shape)
filters = pt.tensor("filters", dtype="float32", shape=filter_shape)
with config.change_flags(onednn__conv__algo="direct"):
    f = pytensor.function([x, filters], conv2d(x, filters, border_mode="half"), mode="ONEDNN")
f(np.ones(image_shape, "float32"), np.ones(filter_shape, "float32"))
print()
print(dnnops.chosen_plans(f))

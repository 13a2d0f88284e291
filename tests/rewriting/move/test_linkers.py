"""Errors for device variables with a linker that cannot run them."""

from __future__ import annotations

import pytensor
import pytensor.tensor as pt
import pytest

import dnnops
from dnnops.errors import DnnTypeError
from dnnops.gpuarray import GpuArrayType


@pytest.mark.parametrize("mode", [None, "FAST_RUN", "NUMBA"])
def test_numba_is_refused(mode):
    x = GpuArrayType("float32", (None,) * 4)("x")
    h = pt.ftensor4("h")
    for given, out in ((x, dnnops.dnn_pool(x, (2, 2))), (h, h.transfer("cuda"))):
        with pytest.raises(DnnTypeError, match=r"(?s)is on the GPU, .*mode='DNN' or mode='CUDNN'"):
            pytensor.function([given], out, mode=mode)


def test_graphs_of_the_host_are_not():
    h = pt.ftensor4("h")
    f = pytensor.function([h], h.transfer("cuda").transfer("cpu") * 2, mode="NUMBA")
    assert f.maker.fgraph.outputs[0].type.dtype == "float32"

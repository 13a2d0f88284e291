"""Run a small graph with an installed dnnops; fail unless oneDNN computed it correctly."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.tensor.special import softmax

import dnnops
from dnnops.__main__ import main
from dnnops.nnet import conv2d, pool_2d
from dnnops.runtime.build import ONEDNN
from dnnops.runtime.prebuilt import supported_levels

package = Path(dnnops.__file__).parent
assert "site-packages" in package.parts, f"{package} is not an installed package"
assert (package / "py.typed").exists()
print(f"Python {sys.version.split()[0]}, PyTensor {pytensor.__version__}, NumPy {np.__version__}")

# The package contains the runtime library, so only the modules of Ops are compiled.
if supported_levels():
    assert ONEDNN.path.parent == package / "lib", f"{ONEDNN.path} was compiled at first use"

image = (np.arange(2 * 3 * 10 * 8) % 7).astype("float32").reshape(2, 3, 10, 8)
filters = (np.arange(4 * 3 * 3 * 3) % 5 - 2).astype("float32").reshape(4, 3, 3, 3)
windows = np.lib.stride_tricks.sliding_window_view(image, (3, 3), axis=(2, 3))
convolved = np.einsum("bchwij,fcij->bfhw", windows, filters[:, :, ::-1, ::-1])
pooled = convolved.reshape(2, 4, 4, 2, 3, 2).max(axis=(3, 5))
shares = np.exp(pooled - pooled.max(axis=1, keepdims=True))
shares /= shares.sum(axis=1, keepdims=True)

x, w = pt.ftensor4("x"), pt.ftensor4("w")
convolution = conv2d(x, w)
pool = pool_2d(convolution, ws=(2, 2), ignore_border=True)
gradient = pytensor.grad(convolution.sum(), w)
# CVM is the linker that runs C; the default mode runs Numba.
for mode in ("ONEDNN", "CVM", None):
    function = pytensor.function([x, w], [convolution, pool, softmax(pool, axis=1)], mode=mode)
    ops = {type(node.op).__name__ for node in function.maker.fgraph.toposort()}
    expected_ops = {"OneDnnConv", "OneDnnPool", "OneDnnSoftmax"}
    assert expected_ops <= ops, f"mode {mode}: {expected_ops - ops} not among {ops}"
    results = function(image, filters)
    np.testing.assert_array_equal(results[0], convolved)
    np.testing.assert_array_equal(results[1], pooled)
    np.testing.assert_allclose(results[2], shares, rtol=1e-5, atol=1e-7)

backward = pytensor.function([x, w], gradient, mode="ONEDNN")
np.testing.assert_array_equal(
    backward(image, filters),
    np.broadcast_to(windows.sum(axis=(0, 2, 3))[None, :, ::-1, ::-1], filters.shape),
)

# PyTensor knows the flags of dnnops even before dnnops is imported.
subprocess.run(
    [
        sys.executable,
        "-I",
        "-W",
        "error",
        "-c",
        "import pytensor; assert pytensor.config.mode == 'DNN'",
    ],
    env={**os.environ, "PYTENSOR_FLAGS": "mode=DNN,dnn.conv.algo_fwd=time_once"},
    check=True,
)

sys.exit(main(["doctor"]))

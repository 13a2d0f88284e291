"""Time of calls of `dnnops.libcudnn` that need no GPU, including cuDNN's own time.

``python -m benchmarks.libcudnn`` prints the best of many repetitions, and the time in which the
functions are generated.
"""

from __future__ import annotations

import time
import timeit
from collections.abc import Callable

from dnnops import libcudnn
from dnnops.libcudnn.loading import generated_module
from dnnops.runtime.find import find_cudnn

_CALLS, _REPETITIONS = 10_000, 20


def microseconds(call: Callable[[], object]) -> float:
    """Return the shortest mean time of a call."""
    return min(timeit.repeat(call, number=_CALLS, repeat=_REPETITIONS)) / _CALLS * 1e6


def main() -> None:
    """Print a table."""
    find_cudnn()
    start = time.perf_counter()
    generated_module()
    print(f"{'generating the functions':40} {time.perf_counter() - start:5.2f} s")
    nchw = libcudnn.cudnnTensorFormat["CUDNN_TENSOR_NCHW"]
    floats = libcudnn.cudnnDataType["CUDNN_DATA_FLOAT"]
    correlation = libcudnn.cudnnConvolutionMode["CUDNN_CROSS_CORRELATION"]
    with (
        libcudnn.cudnnCreateTensorDescriptor() as x,
        libcudnn.cudnnCreateFilterDescriptor() as w,
        libcudnn.cudnnCreateConvolutionDescriptor() as convolution,
    ):
        shape, strides = (64, 128, 112, 112), (1605632, 12544, 112, 1)
        libcudnn.cudnnSetFilter4dDescriptor(w, floats, nchw, 128, 128, 7, 7)
        arguments = (3, 3, 1, 1, 1, 1, correlation, floats)
        libcudnn.cudnnSetConvolution2dDescriptor(convolution, *arguments)
        calls: dict[str, Callable[[], object]] = {
            "cudnnGetVersion": libcudnn.cudnnGetVersion,
            "cudnnSetTensor4dDescriptor": lambda: libcudnn.cudnnSetTensor4dDescriptor(
                x, nchw, floats, *shape
            ),
            "cudnnGetTensor4dDescriptor": lambda: libcudnn.cudnnGetTensor4dDescriptor(x),
            "cudnnSetTensorNdDescriptor": lambda: libcudnn.cudnnSetTensorNdDescriptor(
                x, floats, 4, shape, strides
            ),
            "cudnnGetTensorNdDescriptor": lambda: libcudnn.cudnnGetTensorNdDescriptor(x, 4),
            "cudnnGetConvolution2dForwardOutputDim": lambda: (
                libcudnn.cudnnGetConvolution2dForwardOutputDim(convolution, x, w)
            ),
        }
        for name, call in calls.items():
            call()
            print(f"{name:40} {microseconds(call):5.2f} us")


if __name__ == "__main__":
    main()

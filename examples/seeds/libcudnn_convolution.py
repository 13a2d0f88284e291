"""Forward convolution of the README of cudnn-python-wrappers, with CuPy in place of PyCUDA."""

from __future__ import annotations

import numpy as np

from dnnops import libcudnn

# Set some options and tensor dimensions
tensor_format = libcudnn.cudnnTensorFormat["CUDNN_TENSOR_NCHW"]
data_type = libcudnn.cudnnDataType["CUDNN_DATA_FLOAT"]
convolution_mode = libcudnn.cudnnConvolutionMode["CUDNN_CROSS_CORRELATION"]

n_input = 64
filters_in = 128
filters_out = 128
height_in = 112
width_in = 112
height_filter = 7
width_filter = 7
pad_h = 3
pad_w = 3
vertical_stride = 1
horizontal_stride = 1
upscalex = 1
upscaley = 1
alpha = 1.0
beta = 1.0

# Descriptor for input
X_desc = libcudnn.cudnnCreateTensorDescriptor()
libcudnn.cudnnSetTensor4dDescriptor(
    X_desc, tensor_format, data_type, n_input, filters_in, height_in, width_in
)

# Filter descriptor
filters_desc = libcudnn.cudnnCreateFilterDescriptor()
libcudnn.cudnnSetFilter4dDescriptor(
    filters_desc, data_type, tensor_format, filters_out, filters_in, height_filter, width_filter
)

# Convolution descriptor
conv_desc = libcudnn.cudnnCreateConvolutionDescriptor()
libcudnn.cudnnSetConvolution2dDescriptor(
    conv_desc,
    pad_h,
    pad_w,
    vertical_stride,
    horizontal_stride,
    upscalex,
    upscaley,
    convolution_mode,
    data_type,
)

# Get output dimensions (first two values are n_input and filters_out)
_, _, height_output, width_output = libcudnn.cudnnGetConvolution2dForwardOutputDim(
    conv_desc, X_desc, filters_desc
)

# Output tensor
Y_desc = libcudnn.cudnnCreateTensorDescriptor()
libcudnn.cudnnSetTensor4dDescriptor(
    Y_desc, tensor_format, data_type, n_input, filters_out, height_output, width_output
)


def convolve() -> None:
    """Run the convolution on a GPU, print its time, and compare a part of it with NumPy."""
    import cupy

    # Create a cuDNN context
    cudnn_context = libcudnn.cudnnCreate()

    X = cupy.random.rand(n_input, filters_in, height_in, width_in, dtype=np.float32)  # noqa: N806
    filters = cupy.random.rand(
        filters_out, filters_in, height_filter, width_filter, dtype=np.float32
    )
    Y = cupy.zeros((n_input, filters_out, height_output, width_output), np.float32)  # noqa: N806

    # Perform convolution
    (best,) = libcudnn.cudnnGetConvolutionForwardAlgorithm_v7(
        cudnn_context, X_desc, filters_desc, conv_desc, Y_desc, 1
    )
    algo = best.algo
    print(f"Cudnn algorithm = {algo.name}")

    ws_size = libcudnn.cudnnGetConvolutionForwardWorkspaceSize(
        cudnn_context, X_desc, filters_desc, conv_desc, Y_desc, algo
    )
    workspace = cupy.empty(ws_size, np.uint8)

    start, end = cupy.cuda.Event(), cupy.cuda.Event()
    start.record()
    libcudnn.cudnnConvolutionForward(
        cudnn_context,
        alpha,
        X_desc,
        X,
        filters_desc,
        filters,
        conv_desc,
        algo,
        workspace,
        ws_size,
        beta,
        Y_desc,
        Y,
    )
    end.record()
    end.synchronize()
    print(f"{cupy.cuda.get_elapsed_time(start, end):7.3f} msecs")

    # In the middle of the last image, no padding takes part.
    patch = X[-1, :, 50 : 50 + height_filter, 60 : 60 + width_filter]
    expected = (patch.astype("float64") * filters.astype("float64")).sum(axis=(1, 2, 3))
    error = abs(Y[-1, :, 50 + pad_h, 60 + pad_w] / expected - 1).max()
    print(f"largest relative error {float(error):.1e}")

    libcudnn.cudnnDestroy(cudnn_context)


if __name__ == "__main__":
    convolve()

    # Clean up
    libcudnn.cudnnDestroyTensorDescriptor(X_desc)
    libcudnn.cudnnDestroyTensorDescriptor(Y_desc)
    libcudnn.cudnnDestroyFilterDescriptor(filters_desc)
    libcudnn.cudnnDestroyConvolutionDescriptor(conv_desc)

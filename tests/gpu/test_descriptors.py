"""Work of the runtime library that needs no GPU: checks, shapes, cuDNN's descriptors."""

from __future__ import annotations

import numpy as np
import pytest

from dnnops.errors import (
    DnnLibraryError,
    DnnNotSupportedError,
    DnnTypeError,
    DnnValueError,
)
from dnnops.gpu.algorithms import LEGACY_ALGORITHMS
from dnnops.gpu.conv import GpuDnnConv, GpuDnnConvGradI, GpuDnnConvGradW
from dnnops.gpu.conv_padding import is_asymmetric
from dnnops.gpu.library import cudnn_version
from dnnops.gpu.pool import GpuDnnPool, GpuDnnPoolGrad
from dnnops.gpu.softmax import GpuDnnSoftmax, GpuDnnSoftmaxGrad
from dnnops.runtime.build import CUDNN
from tests.gpu.calls import call, channels_last, device_tensor, shape_of
from tests.oracle import ConvCase, PoolCase, conv_cases, fuzz, pool_cases

pytestmark = pytest.mark.needs("cudnn")

DTYPES = ("float16", "bfloat16", "float32", "float64")
CONVOLUTIONS = (GpuDnnConv, GpuDnnConvGradI, GpuDnnConvGradW)


def conv_call(case: ConvCase, index: int, dtype: str, make=device_tensor) -> tuple[list, object]:
    """Return the inputs, including alpha, and the description of the result."""
    img, kern, top = (make(s, dtype) for s in (case.img_shape, case.kern_shape, case.top_shape))
    inputs, result = (
        ([img, kern], top),
        ([kern, top, np.array(case.img_shape[2:])], img),
        ([img, top, np.array(case.kern_shape[2:])], kern),
    )[index]
    return [*inputs, np.array(1.0)], result


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("make", [device_tensor, channels_last])
@pytest.mark.parametrize("index", range(3), ids=[op.__name__ for op in CONVOLUTIONS])
@fuzz(max_examples=40, case=conv_cases())
def test_convolution(index, make, dtype, case):
    """The legacy API accepts the descriptors, and computes the same shape."""
    op = CONVOLUTIONS[index](**case.params)
    inputs, result = conv_call(case, index, dtype, make)
    if is_asymmetric(op):
        for function in ("shape", "describe"):
            with pytest.raises(
                DnnNotSupportedError, match=r"cuDNN 9\d+ is not used for asymmetric"
            ):
                call(f"dnnops_cudnn_conv_{function}", op, inputs, [result])
        return
    (out,) = call("dnnops_cudnn_conv_shape", op, inputs)
    assert shape_of(out) == shape_of(result)
    assert out.dtype == result.dtype
    call("dnnops_cudnn_conv_describe", op, inputs, [result])


@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
@pytest.mark.parametrize("make", [device_tensor, channels_last])
def test_the_result_has_the_format_of_the_addend(make, memory_format):
    op = GpuDnnConv(accumulate=True, memory_format=memory_format)
    out = make((2, 5, 4, 3))
    arrays = [device_tensor((2, 3, 4, 3)), device_tensor((5, 3, 1, 1))]
    (found,) = call("dnnops_cudnn_conv_shape", op, [*arrays, np.array(1.0), np.array(1.0), out])
    assert list(found.strides[:4]) == list(out.strides[:4])


@fuzz(max_examples=30, case=conv_cases(empty=True))
def test_shape_of_empty_convolutions(case):
    for index, cls in enumerate(CONVOLUTIONS):
        inputs, result = conv_call(case, index, "float32")
        op = cls(**case.params)
        if is_asymmetric(op):
            continue
        (out,) = call("dnnops_cudnn_conv_shape", op, inputs)
        assert shape_of(out) == shape_of(result)


@pytest.mark.parametrize(
    ("img", "kern", "params", "words"),
    [
        ((1, 3, 5, 5), (2, 4, 3, 3), {}, "3 channels"),
        ((1, 4, 5, 5), (3, 2, 3, 3), {"num_groups": 2}, "does not divide"),
        ((1, 3, 5, 5), (2, 3, 6, 3), {}, "larger than the padded image"),
        ((1, 3, 5), (2, 3, 3), {}, "4 dimensions"),
    ],
)
def test_bad_shapes(img, kern, params, words):
    op = GpuDnnConv(**params)
    inputs = [device_tensor(img), device_tensor(kern), np.array(1.0)]
    with pytest.raises(
        (DnnValueError, DnnTypeError), match=rf"(?s)GpuDnnConv: .*{words}.*operands"
    ):
        call("dnnops_cudnn_conv_shape", op, inputs)


def test_precision_has_to_fit():
    op = GpuDnnConv(precision="float16")
    arrays = [device_tensor((1, 2, 4, 4)), device_tensor((3, 2, 1, 1)), np.array(1.0)]
    words = "precision float16 is not supported for float32 arrays"
    with pytest.raises(DnnValueError, match=words):
        call("dnnops_cudnn_conv_describe", op, arrays, [device_tensor((1, 3, 4, 4))])


def test_negative_strides_are_refused():
    image = device_tensor((1, 2, 4, 4), strides=(32, 16, -4, 1))
    arrays = [image, device_tensor((3, 2, 1, 1)), np.array(1.0)]
    with pytest.raises(DnnNotSupportedError, match="positive strides"):
        call("dnnops_cudnn_conv_describe", GpuDnnConv(), arrays, [device_tensor((1, 3, 4, 4))])


def test_large_arrays_are_refused_by_the_legacy_api():
    image = device_tensor((1 << 16, 1 << 10, 8, 8))
    arrays = [image, device_tensor((1, 1 << 10, 8, 8)), np.array(1.0)]
    with pytest.raises(DnnNotSupportedError, match=r"less than 2\*\*31 elements"):
        call(
            "dnnops_cudnn_conv_describe", GpuDnnConv(), arrays, [device_tensor((1 << 16, 1, 1, 1))]
        )


def pool_call(case: PoolCase, gradient: bool, dtype: str) -> list:
    img, top = device_tensor(case.img_shape, dtype), device_tensor(case.out_shape, dtype)
    return [img, *([top, top] if gradient else []), *case.vectors]


@pytest.mark.parametrize("dtype", DTYPES)
@fuzz(max_examples=40, case=pool_cases(empty=True))
def test_pooling(dtype, case):
    params = {"ndim": case.ndim, "mode": case.mode, "ignore_border": case.ignore_border}
    (out,) = call("dnnops_cudnn_pool_shape", GpuDnnPool(**params), pool_call(case, False, dtype))
    assert shape_of(out) == case.out_shape
    (out,) = call("dnnops_cudnn_pool_shape", GpuDnnPoolGrad(**params), pool_call(case, True, dtype))
    assert shape_of(out) == case.img_shape


def test_softmax():
    x = device_tensor((2, 3, 4))
    (out,) = call("dnnops_cudnn_softmax_shape", GpuDnnSoftmax(axis=2), [x])
    assert shape_of(out) == (2, 3, 4)
    with pytest.raises(DnnValueError, match="GpuDnnSoftmax: axes 3 to 3"):
        call("dnnops_cudnn_softmax_shape", GpuDnnSoftmax(axis=3), [x])
    with pytest.raises(DnnValueError, match=r"GpuDnnSoftmaxGrad: .*same dtype and shape"):
        call("dnnops_cudnn_softmax_shape", GpuDnnSoftmaxGrad(axis=1), [x, device_tensor((2, 4, 3))])


@pytest.mark.parametrize("function", ["conv", "pool", "softmax"])
def test_integers_are_refused(function):
    op, inputs = {
        "conv": (GpuDnnConv(), [device_tensor((1, 1, 3, 3), "int32")] * 2 + [np.array(1.0)]),
        "pool": (
            GpuDnnPool(ndim=2),
            [
                device_tensor((1, 1, 3, 3), "int32"),
                *(np.array([1, 1]) for _ in range(2)),
                np.array([0, 0]),
            ],
        ),
        "softmax": (GpuDnnSoftmax(), [device_tensor((2, 3), "int32")]),
    }[function]
    with pytest.raises(DnnTypeError, match=r"expected float16.* got int32"):
        call(f"dnnops_cudnn_{function}_shape", op, inputs)


@pytest.mark.parametrize("direction", LEGACY_ALGORITHMS)
def test_algorithm_names_are_those_of_the_library(direction):
    name_of = CUDNN.library.dnnops_cudnn_conv_algorithm
    index = list(LEGACY_ALGORITHMS).index(direction)
    names = LEGACY_ALGORITHMS[direction]
    assert [name_of(index, i).decode() for i in range(len(names))] == list(names)
    assert name_of(index, len(names)) is None


def test_versions():
    library = CUDNN.library
    assert cudnn_version() // 10000 == library.dnnops_cudnn_header_version() // 10000 == 9
    assert library.dnnops_cudnn_cudart_version() >= 12000


@pytest.mark.needs("no gpu")
def test_a_call_without_a_gpu_fails_with_the_reason():
    inputs = [device_tensor((1, 2, 4, 4)), device_tensor((3, 2, 1, 1)), np.array(1.0)]
    with pytest.raises(DnnLibraryError, match=r"GpuDnnConv: cuda\w+\(.*\) returned cudaError"):
        call("dnnops_cudnn_conv", GpuDnnConv(), inputs, [device_tensor((1, 3, 4, 4))])

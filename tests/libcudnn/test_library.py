"""The functions of the installed cuDNN that need no device."""

from __future__ import annotations

import ctypes
import importlib.util
import pickle
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dnnops import errors, libcudnn
from dnnops.errors import DnnTypeError, DnnUnavailableError, DnnValueError
from dnnops.libcudnn.calls import Symbols
from dnnops.libcudnn.declarations import Declarations, read_headers
from dnnops.libcudnn.kinds import HandleOf, OnDevice
from dnnops.libcudnn.loading import generated_module
from dnnops.libcudnn.parameters import classify
from dnnops.libcudnn.results import Returned
from dnnops.runtime.find import find_cudnn

pytestmark = pytest.mark.needs("cudnn")

PREFIXES = ("cudnn", "CUDNN", "libraryPropertyType")
#: Values of enums.
NCHW, FLOAT, DOUBLE = 0, 0, 1


@pytest.fixture(scope="module")
def declared() -> Declarations:
    return read_headers(find_cudnn().include_dirs[0])


@pytest.fixture
def tensor() -> Iterator[Any]:
    """Return the descriptor of a tensor of 2x3x4x5 floats."""
    with libcudnn.cudnnCreateTensorDescriptor() as descriptor:
        libcudnn.cudnnSetTensor4dDescriptor(descriptor, NCHW, FLOAT, 2, 3, 4, 5)
        yield descriptor


def test_every_function_and_enum_is_there(declared: Declarations):
    """Compare with a simpler way to read the headers."""
    texts = [
        re.sub(r"/\*.*?\*/|//[^\n]*|^\s*#.*?(?<!\\)$", "", path.read_text(), flags=re.S | re.M)
        for path in find_cudnn().include_dirs[0].glob("cudnn*.h")
    ]
    functions = set(re.findall(r"\b(cudnn\w+)\s*\([^()*]*(?:\*[^()]*)?\)\s*;", "".join(texts)))
    enums = set(re.findall(r"typedef enum[^;}]*\}\s*(cudnn\w+)", "".join(texts)))
    assert len(functions) > 200
    assert functions == set(declared.functions)
    assert enums == set(declared.enums) - {"libraryPropertyType"}
    names = dir(libcudnn)
    assert set(names) > functions | enums
    assert [name for name in names if not name.startswith(PREFIXES)] == []
    for name in functions:
        function = getattr(libcudnn, name)
        assert re.sub(r"\s+", "", f"{name}(") in re.sub(r"\s+", "", function.__doc__)
        assert function.__module__ == "dnnops.libcudnn"


def test_results_are_the_documented_outputs(declared: Declarations):
    """What the headers document as an output is a result, an array, or a descriptor to fill."""
    compared = 0
    for function in declared.functions.values():
        for kind, variable in zip(classify(function, declared), function.parameters, strict=True):
            way = function.directions.get(variable.name)
            if way in ("in", "out") and not isinstance(kind, HandleOf | OnDevice):
                is_result = bool(kind.result) or isinstance(kind, Returned)
                # Memory whose type another argument gives.
                if kind.name not in ("param", "ptr", "tag"):
                    assert is_result == (way == "out"), (function.name, kind)
                    compared += 1
    assert compared > 200 or not any(f.directions for f in declared.functions.values())


def test_versions():
    major, minor, patch = (libcudnn.cudnnGetProperty(kind) for kind in libcudnn.libraryPropertyType)
    assert (major, minor, patch) == find_cudnn().version
    assert libcudnn.cudnnGetVersion() == libcudnn.CUDNN_VERSION
    assert libcudnn.cudnnGetErrorString(0) == "CUDNN_STATUS_SUCCESS"
    for name in ("Graph", "Ops", "Cnn", "Adv"):
        assert getattr(libcudnn, f"cudnn{name}VersionCheck")() is None


def test_enums():
    kind = libcudnn.cudnnTensorFormat
    assert kind is libcudnn.cudnnTensorFormat_t
    assert issubclass(kind, IntEnum)
    assert kind["CUDNN_TENSOR_NCHW"] == kind.CUDNN_TENSOR_NCHW == 0
    assert pickle.loads(pickle.dumps(kind(1))) is kind(1)


def test_tensor_descriptors(tensor):
    result = libcudnn.cudnnGetTensor4dDescriptor(tensor)
    assert result == (FLOAT, 2, 3, 4, 5, 60, 20, 5, 1)
    assert isinstance(result[0], libcudnn.cudnnDataType_t)
    assert libcudnn.cudnnGetTensorSizeInBytes(tensor) == 480
    shape, strides = np.array([2, 3, 4, 5, 6]), (360, 120, 30, 6, 1)
    libcudnn.cudnnSetTensorNdDescriptor(tensor, DOUBLE, 5, shape, strides)
    assert libcudnn.cudnnGetTensorNdDescriptor(tensor, 8) == (DOUBLE, 5, tuple(shape), strides)
    # cuDNN says how many there are, even if it returns fewer.
    assert libcudnn.cudnnGetTensorNdDescriptor(tensor, 2) == (DOUBLE, 5, (2, 3), (360, 120))
    with pytest.raises(DnnValueError, match="nbDimsRequested is -1"):
        libcudnn.cudnnGetTensorNdDescriptor(tensor, -1)


def test_arguments_as_ctypes_and_keywords(tensor):
    pointer = ctypes.c_void_p(tensor)
    size = ctypes.c_int(7)
    libcudnn.cudnnSetTensor4dDescriptor(
        pointer, format=ctypes.c_int(NCHW), dataType=FLOAT, n=size, c=np.int64(3), h=1, w=1
    )
    assert libcudnn.cudnnGetTensor4dDescriptor(int(tensor))[1:3] == (7, 3)
    strides = (ctypes.c_int * 3)(6, 3, 1)
    libcudnn.cudnnSetTensorNdDescriptor(tensor, FLOAT, 3, (5, 2, 3), strides)
    assert libcudnn.cudnnGetTensorNdDescriptor(tensor, 8)[3] == (6, 3, 1)


def test_output_shapes(tensor):
    with (
        libcudnn.cudnnCreateFilterDescriptor() as filters,
        libcudnn.cudnnCreateConvolutionDescriptor() as convolution,
        libcudnn.cudnnCreatePoolingDescriptor() as pooling,
    ):
        libcudnn.cudnnSetFilter4dDescriptor(filters, FLOAT, NCHW, 8, 3, 3, 3)
        assert libcudnn.cudnnGetFilterNdDescriptor(filters, 6)[2:] == (4, (8, 3, 3, 3))
        libcudnn.cudnnSetConvolutionNdDescriptor(convolution, 2, (1, 1), (1, 2), (1, 1), 1, FLOAT)
        shape = libcudnn.cudnnGetConvolution2dForwardOutputDim(convolution, tensor, filters)
        assert shape == (2, 8, 4, 3)
        arguments = (convolution, tensor, filters, 4)
        assert libcudnn.cudnnGetConvolutionNdForwardOutputDim(*arguments) == shape
        libcudnn.cudnnSetPooling2dDescriptor(pooling, 0, 0, 2, 2, 0, 0, 2, 2)
        arguments = (pooling, tensor, 4)
        assert libcudnn.cudnnGetPoolingNdForwardOutputDim(*arguments) == (2, 3, 2, 2)


def test_sequences_and_single_elements():
    with libcudnn.cudnnCreateRNNDataDescriptor() as data:
        libcudnn.cudnnSetRNNDataDescriptor(data, FLOAT, 0, 4, 3, 8, [4, 2, 1], -1.5)
        result = libcudnn.cudnnGetRNNDataDescriptor(data, 3)
        assert result == (FLOAT, 0, 4, 3, 8, (4, 2, 1), -1.5)
        with pytest.raises(DnnValueError, match="seqLengthArray has 2 elements; expected 3"):
            libcudnn.cudnnSetRNNDataDescriptor(data, FLOAT, 0, 4, 3, 8, [4, 2], None)


@pytest.mark.gpu  # this descriptor needs CUDA's driver
def test_arrays_that_may_be_null():
    with libcudnn.cudnnCreateTensorTransformDescriptor() as transform:
        libcudnn.cudnnSetTensorTransformDescriptor(transform, 4, 1, None, None, None, 0)
        libcudnn.cudnnSetTensorTransformDescriptor(transform, 4, 1, (0, 1, 2, 3), None, (2, 2), 0)
        result = libcudnn.cudnnGetTensorTransformDescriptor(transform, 4)
        assert result[:2] == (1, (0, 1, 2, 3))


def test_arrays_that_may_not_be_null(tensor):
    """cuDNN would read from address zero."""
    with pytest.raises(DnnValueError, match="dimA is null; expected 3 elements"):
        libcudnn.cudnnSetTensorNdDescriptor(tensor, FLOAT, 3, None, None)


def test_real_parameters():
    with libcudnn.cudnnCreateActivationDescriptor() as activation:
        libcudnn.cudnnSetActivationDescriptor(activation, 3, 1, 6)
        assert libcudnn.cudnnGetActivationDescriptor(activation) == (3, 1, 6.0)


def set_convolution_attributes(convolution: Any) -> None:
    """Set the attributes of a convolution in cuDNN's graph API, in every form of the elements."""

    def set_attribute(name: str, kind: str, values: Any) -> None:
        attribute = libcudnn.cudnnBackendAttributeName_t[f"CUDNN_ATTR_CONVOLUTION_{name}"]
        type_ = libcudnn.cudnnBackendAttributeType_t[f"CUDNN_TYPE_{kind}"]
        libcudnn.cudnnBackendSetAttribute(convolution, attribute, type_, len(values), values)

    set_attribute("COMP_TYPE", "DATA_TYPE", [libcudnn.cudnnDataType(FLOAT)])
    set_attribute("CONV_MODE", "CONVOLUTION_MODE", [1])
    set_attribute("SPATIAL_DIMS", "INT64", [2])
    set_attribute("DILATIONS", "INT64", np.array([1, 2]))
    set_attribute("FILTER_STRIDES", "INT64", (3, 4))
    set_attribute("PRE_PADDINGS", "INT64", range(5, 7))
    with pytest.raises(errors.CudnnBadParamError, match="cudnnBackendSetAttribute returned"):
        set_attribute("POST_PADDINGS", "FLOAT", [7.0, 8.0])
    set_attribute("POST_PADDINGS", "INT64", [7, 8])


def test_graph_api():
    kind = libcudnn.cudnnBackendDescriptorType_t.CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR
    with libcudnn.cudnnBackendCreateDescriptor(kind) as convolution:
        set_convolution_attributes(convolution)


@pytest.mark.gpu  # finalizing loads CUDA's driver
def test_finalized_graph_api():
    kind = libcudnn.cudnnBackendDescriptorType_t.CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR
    name = libcudnn.cudnnBackendAttributeName_t.CUDNN_ATTR_CONVOLUTION_DILATIONS
    type_ = libcudnn.cudnnBackendAttributeType_t.CUDNN_TYPE_INT64
    with libcudnn.cudnnBackendCreateDescriptor(kind) as convolution:
        set_convolution_attributes(convolution)
        libcudnn.cudnnBackendFinalize(convolution)
        assert libcudnn.cudnnBackendGetAttribute(convolution, name, type_, 8) == (2, (1, 2))
        memory = np.zeros(2, "int64")
        libcudnn.cudnnBackendGetAttribute(convolution, name, type_, 2, memory)
        assert list(memory) == [1, 2]


def test_callback():
    messages = []

    def callback(severity: int, data: Any, debug: Any, message: Any) -> None:
        # Lines end with a zero, and the message with an empty line.
        at, lines = ctypes.addressof(message.contents), []
        while line := ctypes.string_at(at):
            lines.append(line.decode())
            at += len(line) + 1
        messages.append((debug.contents.cudnnStatus, lines))

    function = libcudnn.cudnnCallback_t(callback)
    former = libcudnn.cudnnGetCallback()
    libcudnn.cudnnSetCallback(libcudnn.CUDNN_SEV_ERROR_EN, None, function)
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert libcudnn.cudnnGetCallback()[1:] == (0, address)
    with libcudnn.cudnnCreateTensorDescriptor() as tensor, pytest.raises(errors.CudnnBadParamError):
        libcudnn.cudnnSetTensor4dDescriptor(tensor, NCHW, FLOAT, -2, 3, 4, 5)
    libcudnn.cudnnSetCallback(*former)
    (status, lines), *_ = messages
    assert status == libcudnn.cudnnStatus_t.CUDNN_STATUS_BAD_PARAM
    assert len(lines) > 3
    assert "cudnnSetTensor4dDescriptor" in lines[0]
    assert "n <= 0" in lines[1]


def test_number_as_callback_is_refused():
    with pytest.raises(DnnValueError, match="cudnnSetCallback: fptr is 7, which is not an address"):
        libcudnn.cudnnSetCallback(libcudnn.CUDNN_SEV_INFO_EN, None, 7)


def test_integers_are_not_memory(tensor):
    """cuDNN would read the elements from these addresses."""
    with (
        libcudnn.cudnnCreateFilterDescriptor() as filters,
        libcudnn.cudnnCreatePoolingDescriptor() as pooling,
        libcudnn.cudnnCreateRNNDataDescriptor() as data,
    ):
        for call in (
            lambda: libcudnn.cudnnSetTensorNdDescriptor(tensor, FLOAT, 3, 5000, 5000),
            lambda: libcudnn.cudnnSetFilterNdDescriptor(filters, FLOAT, NCHW, 4, 5000),
            lambda: libcudnn.cudnnSetPoolingNdDescriptor(pooling, 0, 0, 2, 4096, 4096, 4096),
            lambda: libcudnn.cudnnSetRNNDataDescriptor(data, FLOAT, 0, 4, 1, 8, 5000, None),
        ):
            with pytest.raises(DnnTypeError, match="is of type int; expected a sequence"):
                call()


def test_parameters_of_fused_operations(tensor):
    """cuDNN would read from integers, or write to them."""
    operation = libcudnn.cudnnFusedOps_t(0)
    descriptor = libcudnn.cudnnFusedOpsConstParamLabel_t.CUDNN_PARAM_XDESC
    placeholder = libcudnn.cudnnFusedOpsConstParamLabel_t.CUDNN_PARAM_XDATA_PLACEHOLDER
    with libcudnn.cudnnCreateFusedOpsConstParamPack(operation) as pack:
        for function in (
            libcudnn.cudnnSetFusedOpsConstParamPackAttribute,
            libcudnn.cudnnGetFusedOpsConstParamPackAttribute,
        ):
            with pytest.raises(DnnTypeError, match="param is of type int; expected an array on"):
                function(pack, placeholder, 5000)
        libcudnn.cudnnSetFusedOpsConstParamPackAttribute(pack, descriptor, tensor)
        number, value = ctypes.c_int(1), ctypes.c_int()
        libcudnn.cudnnSetFusedOpsConstParamPackAttribute(pack, placeholder, number)
        libcudnn.cudnnGetFusedOpsConstParamPackAttribute(pack, placeholder, value)
        assert value.value == 1


def test_lists_of_unknown_length_are_not_null(tensor):
    """Other descriptors give the lengths of these, which dnnops does not know."""
    with libcudnn.cudnnCreateCTCLossDescriptor() as loss:
        handle = libcudnn.cudnnHandle_t(1 << 20)  # the function must not be called with it
        for wrong in (None, []):
            lists = (wrong, [1], [1])
            with pytest.raises(DnnValueError, match=r"labels (is null|has 0 elements)"):
                libcudnn.cudnnGetCTCLossWorkspaceSize(handle, tensor, tensor, *lists, 0, loss)


def graph_api(descriptor: str) -> Any:
    kinds = libcudnn.cudnnBackendDescriptorType_t
    return libcudnn.cudnnBackendCreateDescriptor(kinds[f"CUDNN_BACKEND_{descriptor}_DESCRIPTOR"])


def test_attributes_of_the_graph_api(tensor):
    names, types = libcudnn.cudnnBackendAttributeName_t, libcudnn.cudnnBackendAttributeType_t
    set_attribute = libcudnn.cudnnBackendSetAttribute
    with graph_api("OPERATION_CONVOLUTION_FORWARD") as operation:
        name = names.CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X
        kind = types.CUDNN_TYPE_BACKEND_DESCRIPTOR
        with graph_api("TENSOR") as destroyed:
            pass
        for wrong, message in (
            (destroyed, "is <destroyed cudnnBackendDescriptor_t"),
            (tensor, "is a cudnnTensorDescriptor_t; expected a cudnnBackendDescriptor_t"),
            (None, "is null"),
        ):
            with pytest.raises((DnnTypeError, DnnValueError), match=message):
                set_attribute(operation, name, kind, 1, [wrong])
    with graph_api("CONVOLUTION") as convolution:
        name = names.CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS
        set_attribute(convolution, name, types.CUDNN_TYPE_INT64, 1, 2)
        set_attribute(convolution, name, types.CUDNN_TYPE_INT64, 1, 5000)
        array = (ctypes.c_int64 * 1)(1)
        with pytest.raises(DnnValueError, match="arrayOfElements has 1 elements; expected 4"):
            set_attribute(convolution, name, types.CUDNN_TYPE_INT64, 4, array)
        name = names.CUDNN_ATTR_CONVOLUTION_COMP_TYPE
        format_ = libcudnn.cudnnTensorFormat_t(0)
        with pytest.raises(DnnTypeError, match="expected a cudnnDataType_t"):
            set_attribute(convolution, name, types.CUDNN_TYPE_DATA_TYPE, 1, [format_])
    with graph_api("VARIANT_PACK") as pack:
        name = names.CUDNN_ATTR_VARIANT_PACK_WORKSPACE
        set_attribute(pack, name, types.CUDNN_TYPE_VOID_PTR, 1, 0x7F0000001000)


def test_every_type_of_attribute_has_its_enum():
    """A later one that has none is passed as an integer."""
    types = generated_module()._types
    numbers = ["BOOLEAN", "INT64", "FLOAT", "DOUBLE", "VOID_PTR", "INT32", "CHAR", "FRACTION"]
    for member in libcudnn.cudnnBackendAttributeType_t:
        word = member.name.removeprefix("CUDNN_TYPE_")
        _, kind = types.find(member)
        assert (kind is None) == (word in numbers), word
    assert types.find(0)[1] is libcudnn.cudnnHandle_t


# --- Errors --------------------------------------------------------------------------------------


def test_status_becomes_its_exception(tensor):
    with pytest.raises(errors.CudnnBadParamError) as caught:
        libcudnn.cudnnSetTensor4dDescriptor(tensor, NCHW, FLOAT, -2, 3, 4, 5)
    assert isinstance(caught.value, ValueError)
    assert caught.value.status == "CUDNN_STATUS_BAD_PARAM"
    pattern = r"cudnnSetTensor4dDescriptor returned CUDNN_STATUS_BAD_PARAM \(.*n <= 0.*\)"
    assert re.fullmatch(pattern, str(caught.value))


@pytest.mark.needs("no gpu")
def test_no_device():
    with pytest.raises(errors.CudnnNotInitializedError, match="cudnnCreate returned"):
        libcudnn.cudnnCreate()


def test_every_status_has_an_exception(declared: Declarations):
    """A table has those of a known version; a newer one's classes are made when they occur."""
    statuses = libcudnn.cudnnStatus_t
    for name, value in declared.enums["cudnnStatus_t"].items():
        if value == 0:
            continue
        status = statuses(value).name  # a former name is an alias
        kind = errors.cudnn_error(status, value)
        words = name.removeprefix("CUDNN_STATUS_").replace("_", "").removesuffix("ERROR")
        assert getattr(errors, kind.__name__) is kind
        if name == status:
            assert kind.__name__.upper() == f"CUDNN{words}ERROR"
            assert kind.status == name
        assert issubclass(kind, errors.DnnLibraryError)
        # As the exceptions of Ops for the same statuses.
        assert issubclass(kind, errors.DnnNotSupportedError) == (value // 1000 == 3)
        assert issubclass(kind, errors.DnnMemoryError) == (value in (4003, 4004))
        assert issubclass(kind, ValueError) == (value // 1000 == 2)
    assert errors.CudnnAllocFailedError is errors.CudnnInternalErrorHostAllocationFailedError
    with pytest.raises(AttributeError):
        _ = errors.CudnnBadParmError


def test_threads_destroy_an_object_once():
    """Without a lock, several of them would call cuDNN, which frees the memory twice."""
    called = []
    for _ in range(50):
        descriptor = libcudnn.cudnnCreateTensorDescriptor()
        barrier = threading.Barrier(4)

        def destroy(descriptor: Any = descriptor, barrier: threading.Barrier = barrier) -> bool:
            barrier.wait()
            try:
                libcudnn.cudnnDestroyTensorDescriptor(descriptor)
            except DnnValueError:
                return False
            return True

        with ThreadPoolExecutor(4) as pool:
            called.append(sum(future.result() for future in [pool.submit(destroy) for _ in "1234"]))
    assert called == [1] * 50


def test_the_object_is_retired_before_it_is_destroyed(monkeypatch):
    """Between the call and a later mark, another thread could destroy it, too."""
    module: Any = generated_module()
    seen = []
    destroy = module._c.cudnnDestroyTensorDescriptor

    def spy(descriptor: int) -> int:
        seen.append(type(descriptor))
        return destroy(descriptor)

    monkeypatch.setattr(module._c, "cudnnDestroyTensorDescriptor", spy)
    libcudnn.cudnnCreateTensorDescriptor().destroy()
    assert seen != [libcudnn.cudnnTensorDescriptor_t]


def test_destroying_twice():
    destroy = libcudnn.cudnnDestroyTensorDescriptor
    for way in (destroy, lambda x: destroy(int(x)), lambda x: destroy(ctypes.c_void_p(x))):
        descriptor = libcudnn.cudnnCreateTensorDescriptor()
        same = libcudnn.cudnnTensorDescriptor_t(descriptor)
        way(descriptor)
        for again in (descriptor.destroy, same.destroy, lambda d=descriptor: d.__enter__()):
            with pytest.raises(DnnValueError, match="destroyed cudnnTensorDescriptor_t"):
                again()


def test_getters_return_the_handles_of_objects():
    with (
        libcudnn.cudnnCreateDropoutDescriptor() as dropout,
        libcudnn.cudnnCreateRNNDescriptor() as rnn,
    ):
        libcudnn.cudnnSetRNNDescriptor_v8(rnn, 0, 0, 0, 0, 0, 0, 0, 0, 4, 4, 4, 1, dropout, 0)
        assert libcudnn.cudnnGetRNNDescriptor_v8(rnn)[12] is dropout
        dropout.destroy()
        with pytest.raises(DnnValueError, match="which other code must destroy"):
            libcudnn.cudnnGetRNNDescriptor_v8(rnn)[12].destroy()


def test_wrong_descriptors(tensor):
    with libcudnn.cudnnCreateFilterDescriptor() as filters:
        for wrong, error, message in (
            (filters, DnnTypeError, "is a cudnnFilterDescriptor_t; expected a cudnnTensorDesc"),
            (None, DnnValueError, "is null; expected a cudnnTensorDescriptor_t"),
            (0, DnnValueError, "is null"),
        ):
            with pytest.raises(error, match=f"cudnnGetTensorSizeInBytes: tensorDesc {message}"):
                libcudnn.cudnnGetTensorSizeInBytes(wrong)
    with pytest.raises(DnnValueError, match="filterDesc is <destroyed cudnnFilterDescriptor_t"):
        libcudnn.cudnnGetFilterSizeInBytes(filters)
    with pytest.raises(DnnValueError, match="destroyed"):
        libcudnn.cudnnDestroyFilterDescriptor(filters)


def test_wrong_arguments_are_refused_before_the_call(tensor):
    before = libcudnn.cudnnGetTensor4dDescriptor(tensor)
    data_type = libcudnn.cudnnDataType_t
    for arguments, error in (
        ((data_type(0), FLOAT, 1, 1, 1, 1), DnnTypeError),
        (("CUDNN_TENSOR_NCHW", FLOAT, 1, 1, 1, 1), DnnTypeError),
        ((NCHW, FLOAT, 1.0, 1, 1, 1), DnnTypeError),
        ((NCHW, FLOAT, tensor, 1, 1, 1), DnnTypeError),
        ((NCHW, FLOAT, 1, 1, 1), TypeError),
        ((NCHW, FLOAT, 2**31, 1, 1, 1), OverflowError),
        ((NCHW, FLOAT, 2**31, 1, 1, 1), DnnValueError),
        ((2**40, FLOAT, 1, 1, 1, 1), OverflowError),
    ):
        with pytest.raises(error):
            libcudnn.cudnnSetTensor4dDescriptor(tensor, *arguments)
    assert libcudnn.cudnnGetTensor4dDescriptor(tensor) == before


def test_numbers_that_do_not_fit(tensor):
    """The exceptions name the function and the argument."""
    limit = r"expected -2147483648 to 2147483647 \(int\)"
    with (
        libcudnn.cudnnCreateLRNDescriptor() as lrn,
        libcudnn.cudnnCreateRNNDataDescriptor() as data,
        graph_api("CONVOLUTION") as convolution,
    ):
        int64 = libcudnn.cudnnBackendAttributeType_t.CUDNN_TYPE_INT64
        handle = libcudnn.cudnnHandle_t(1 << 20)  # the function must not be called with it
        for message, function, *arguments in (
            (f"n is {2**31}; {limit}", "SetTensor4dDescriptor", tensor, 0, 0, 2**31, 1, 1, 1),
            (f"format is {2**40}; {limit}", "SetTensor4dDescriptor", tensor, 2**40, 0, 1, 1, 1, 1),
            ("lrnN is -1; expected 0 to", "SetLRNDescriptor", lrn, -1, 1.0, 1.0, 1.0),
            ("lrnAlpha: int too large", "SetLRNDescriptor", lrn, 5, 10**400, 1.0, 1.0),
            ("paddingFill is 300", "SetRNNDataDescriptor", data, 3, 0, 4, 1, 8, [4], 300),
            (r"arrayOfElements is \[", "BackendSetAttribute", convolution, 0, int64, 1, [2**70]),
            ("alpha: int too large", "ScaleTensor", handle, tensor, None, 10**400),
        ):
            with pytest.raises(errors.DnnOverflowError, match=f"^cudnn{function}: {message}"):
                getattr(libcudnn, f"cudnn{function}")(*arguments)


def test_wrong_factors(tensor):
    handle = libcudnn.cudnnHandle_t(1 << 20)  # the function must not be called with it
    for wrong in (
        tensor,
        True,
        np.True_,
        libcudnn.cudnnDataType(0),
        "1",
        1j,
        np.ones(3),
        5000 * [1],
    ):
        with pytest.raises(DnnTypeError, match="cudnnScaleTensor: alpha is of type"):
            libcudnn.cudnnScaleTensor(handle, tensor, None, wrong)


def test_arrays_of_the_host_are_refused(tensor):
    handle = libcudnn.cudnnHandle_t(1 << 20)  # the function must not be called with it
    array = np.zeros((2, 3, 4, 5), "float32")
    for x, y in ((array, None), (None, array)):
        with pytest.raises(DnnTypeError, match="in the host's memory"):
            libcudnn.cudnnSoftmaxForward(handle, 0, 0, 1.0, tensor, x, 0.0, tensor, y)
    with pytest.raises(DnnTypeError, match="alpha is of type NoneType"):
        libcudnn.cudnnSoftmaxForward(handle, 0, 0, None, tensor, None, 0.0, tensor, None)


def test_hints_for_former_names():
    for name, hint in (
        ("cudnnError", "dnnops.errors.CudnnError"),
        ("cudnnCheckStatus", "functions raise exceptions"),
        ("cudnnGetConvolutionForwardAlgorithm", "use cudnnGetConvolutionForwardAlgorithm_v7"),
        ("cudnnConvolutionFwdPreference_t", "cudnnGetConvolutionForwardAlgorithm_v7 returns"),
    ):
        with pytest.raises(AttributeError, match=f"does not declare it; .*{hint}"):
            getattr(libcudnn, name)


def test_reason_for_a_function_that_is_left_out(monkeypatch):
    module: Any = generated_module()
    monkeypatch.setitem(module._omitted, "cudnnOdd", "x has the type odd")
    with pytest.raises(AttributeError, match="dnnops cannot call it: x has the type odd"):
        _ = libcudnn.cudnnOdd
    assert set(module._omitted) == {"cudnnOdd"}  # cuDNN has no such functions today


def test_exceptions_of_later_statuses():
    kind = errors.cudnn_error("CUDNN_STATUS_BAD_PARAM_LATER", 2999)
    assert errors.cudnn_error("CUDNN_STATUS_BAD_PARAM_LATER", 2999) is kind
    assert issubclass(kind, errors.CudnnBadParamError)
    # cuDNN has one name for all values that it does not know.
    assert errors.cudnn_error("CUDNN_UNKNOWN_STATUS", 3999) is errors.CudnnNotSupportedError
    assert errors.cudnn_error("CUDNN_UNKNOWN_STATUS", 5999) is errors.CudnnExecutionFailedError
    assert errors.cudnn_error("CUDNN_UNKNOWN_STATUS", 9999) is errors.CudnnError


def test_exceptions_in_other_processes():
    """The class need not exist there."""
    error = errors.cudnn_error("CUDNN_STATUS_BAD_PARAM_REMOTE", 2998)("text")
    error.add_note("note")
    program = (
        f"import pickle; error = pickle.loads({pickle.dumps(error)!r});"
        "print(repr(error), type(error).__base__.__name__, error.__notes__)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout.strip() == ("CudnnBadParamRemoteError('text') CudnnBadParamError ['note']")
    again = pickle.loads(pickle.dumps(errors.CudnnBadParamNullPointerError("text")))
    assert type(again) is errors.CudnnBadParamNullPointerError


def test_threads_get_one_class_of_exceptions():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            for i in range(100):
                barrier = threading.Barrier(4)

                def make(i: int = i, barrier: threading.Barrier = barrier) -> type:
                    barrier.wait()
                    return errors.cudnn_error(f"CUDNN_STATUS_RACE_{i}", 2900)

                assert len({f.result() for f in [pool.submit(make) for _ in "1234"]}) == 1
    finally:
        sys.setswitchinterval(interval)


def test_missing_symbol_is_an_error_of_the_call():
    symbols = Symbols(find_cudnn(), {"cudnnFuture": "int(int)"})
    with pytest.raises(DnnUnavailableError, match="has no function cudnnFuture"):
        _ = symbols.cudnnFuture
    with pytest.raises(AttributeError, match=r"cuDNN [\d.]+ does not declare it"):
        _ = libcudnn.cudnnFuture


@pytest.mark.parametrize(("data_type", "code"), [(FLOAT, "<f4"), (DOUBLE, "<f8")])
def test_factors_have_the_type_of_the_tensor(tensor, data_type, code):
    scaling = generated_module()._scaling
    libcudnn.cudnnSetTensor4dDescriptor(tensor, NCHW, data_type, 1, 1, 1, 1)
    with libcudnn.cudnnCreateFilterDescriptor() as filters:
        libcudnn.cudnnSetFilter4dDescriptor(filters, data_type, NCHW, 1, 1, 1, 1)
        for scale in (scaling.of_tensor(tensor), scaling.of_filter(filters)):
            for value in (1.5, np.float32(1.5), ctypes.c_double(1.5)):
                assert np.frombuffer(scale(value, "alpha"), code) == 1.5
            assert np.frombuffer(scale(2, "alpha"), code) == 2
            number = {FLOAT: ctypes.c_float, DOUBLE: ctypes.c_double}[data_type](1.5)
            assert not isinstance(scale(ctypes.byref(number), "alpha"), bytes)
            with pytest.raises(DnnValueError, match="alpha has 1 bytes; expected"):
                scale(ctypes.byref(ctypes.c_char()), "alpha")


def test_descriptors_of_the_example():
    path = Path(__file__).parents[2] / "examples" / "seeds" / "libcudnn_convolution.py"
    spec = importlib.util.spec_from_file_location("libcudnn_convolution", path)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    assert (example.height_output, example.width_output) == (112, 112)
    assert libcudnn.cudnnGetTensor4dDescriptor(example.Y_desc)[1:5] == (64, 128, 112, 112)

"""Shared variables on the device, and values that come from elsewhere."""

from __future__ import annotations

import pickle

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.tensor.sharedvar import TensorSharedVariable

from dnnops.errors import DnnTypeError, DnnUnavailableError
from dnnops.gpuarray import (
    GpuArraySharedVariable,
    GpuArrayType,
    put_shared_on_gpu,
    shared,
)
from tests.gpuarray.graphs import GPU_MODE, assert_near, to_device

VALUE = np.arange(6, dtype="float32").reshape(2, 3)


@pytest.fixture
def shared_on_gpu():
    put_shared_on_gpu(True)
    yield
    put_shared_on_gpu(False)


@pytest.mark.needs("no gpu")
def test_without_a_gpu_the_reason_is_given():
    with pytest.raises(DnnUnavailableError, match="cuda0"):
        shared(VALUE)


def test_symbolic_values_are_refused():
    with pytest.raises(DnnTypeError, match="symbolic"):
        shared(pt.fmatrix())


def test_unknown_device():
    with pytest.raises(DnnTypeError, match="'gpu' is not a CUDA device"):
        shared(VALUE, device="gpu")


def test_pytensor_shared_is_restored(shared_on_gpu):
    put_shared_on_gpu(False)
    assert type(pytensor.shared(VALUE)) is TensorSharedVariable


@pytest.mark.parametrize("value", [np.arange(3), np.ones((), "float32"), 1.5, np.float32(2)])
def test_integers_and_scalars_stay_on_the_host(shared_on_gpu, value):
    assert isinstance(pytensor.shared(value), TensorSharedVariable)


def test_target_cpu(shared_on_gpu):
    variable = pytensor.shared(VALUE, "name", target="cpu", borrow=True)
    assert isinstance(variable, TensorSharedVariable)
    assert variable.name == "name"


@pytest.mark.gpu
def test_pytensor_shared_makes_device_variables(shared_on_gpu):
    variable = pytensor.shared(VALUE, name="w", shape=(2, None))
    assert isinstance(variable, GpuArraySharedVariable)
    assert variable.type == GpuArrayType("float32", (2, None))
    assert pytensor.shared(VALUE, target="cuda0").type.device == 0


@pytest.mark.gpu
def test_values():
    variable = shared(VALUE, name="w")
    got = variable.get_value()
    assert isinstance(got, np.ndarray)
    np.testing.assert_array_equal(got, VALUE)
    inner = variable.get_value(return_internal_type=True)
    inner[...] = 0
    np.testing.assert_array_equal(variable.get_value(), VALUE)
    variable.get_value(borrow=True, return_internal_type=True)[...] = 0
    np.testing.assert_array_equal(variable.get_value(), 0 * VALUE)


@pytest.mark.gpu
def test_set_value_copies_unless_it_borrows():
    variable, array = shared(VALUE), to_device(VALUE)
    variable.set_value(array)
    array[...] = 7
    np.testing.assert_array_equal(variable.get_value(), VALUE)
    variable.set_value(array, borrow=True)
    assert variable.get_value(borrow=True, return_internal_type=True) is array
    host = VALUE.copy()
    variable.set_value(host)
    host[...] = 9
    np.testing.assert_array_equal(variable.get_value(), VALUE)
    variable.zero(borrow=True)
    np.testing.assert_array_equal(variable.get_value(), 0 * VALUE)
    with pytest.raises(DnnTypeError, match="expects 2 dimensions"):
        variable.set_value(VALUE[0])
    with pytest.raises(DnnTypeError, match="expects dtype float32"):
        variable.set_value(np.full((2, 3), 0.1))


@pytest.mark.gpu
def test_bfloat16():
    variable = shared(VALUE, dtype="bfloat16")
    assert variable.dtype == "bfloat16"
    assert variable.get_value().dtype.name == "bfloat16"
    variable.set_value(VALUE + 1)
    np.testing.assert_array_equal(variable.get_value().astype("float32"), VALUE + 1)
    variable.set_value(variable.get_value())
    f = pytensor.function([], variable * 2, updates=[(variable, variable / 2)], mode=GPU_MODE)
    result = f()
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result, 2 * (VALUE + 1))
    np.testing.assert_array_equal(variable.get_value().astype("float32"), (VALUE + 1) / 2)


@pytest.mark.gpu
def test_pickle():
    variable = pickle.loads(pickle.dumps(shared(VALUE, name="w")))
    assert variable.name == "w"
    np.testing.assert_array_equal(variable.get_value(), VALUE)


@pytest.mark.gpu
def test_pickled_function():
    variable, x = shared(VALUE), GpuArrayType("float32", (None, None))()
    constant = x.type.make_constant(VALUE)
    f = pytensor.function([x], x * variable + constant, mode=GPU_MODE)
    again = pickle.loads(pickle.dumps(f))
    np.testing.assert_array_equal(again(to_device(VALUE)), VALUE**2 + VALUE)


@pytest.mark.gpu
def test_outputs_do_not_alias_shared_values():
    variable = shared(VALUE)
    f = pytensor.function([], variable.transfer("cuda"), mode=GPU_MODE)
    f()[...] = 0
    np.testing.assert_array_equal(variable.get_value(), VALUE)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int64", "bool"])
def test_transfers_round(dtype):
    host = pt.tensor(dtype="float32" if dtype == "bfloat16" else dtype, shape=(None, None))
    there = GpuArrayType(dtype, (None, None)).filter_variable(host)
    f = pytensor.function([host], [there, pt.as_tensor_variable(there)], mode="FAST_COMPILE")
    device, back = f(VALUE.astype(host.dtype))
    assert device.dtype.name == dtype
    np.testing.assert_array_equal(back, VALUE.astype(host.dtype))


@pytest.mark.gpu
@pytest.mark.needs("torch")
def test_inputs_from_other_libraries():
    import torch

    if not torch.cuda.is_available():
        pytest.skip("PyTorch has no CUDA")
    x = GpuArrayType("float32", (None, None))()
    f = pytensor.function([x], (x * 2).transfer("cuda"), mode=GPU_MODE)
    tensor = torch.arange(6, dtype=torch.float32, device="cuda").reshape(2, 3)
    assert x.type.filter(tensor).data.ptr == tensor.data_ptr()
    assert_near(f(tensor), 2 * VALUE, 0)
    assert_near(f(tensor.T), 2 * VALUE.T, 0)
    brain = GpuArrayType("bfloat16", (None, None))
    assert brain.filter(tensor.bfloat16()).dtype.name == "bfloat16"
    with pytest.raises(DnnTypeError, match="expects dtype float32"):
        x.type.filter(tensor.double())
    with pytest.raises(DnnTypeError, match="got Tensor"):
        x.type.filter(tensor.cpu(), strict=True)


@pytest.mark.gpu
def test_cuda_array_interface():
    class Foreign:
        def __init__(self, array):
            self.__cuda_array_interface__ = array.__cuda_array_interface__
            self.array = array

    array = to_device(VALUE)
    filtered = GpuArrayType("float32", (None, None)).filter(Foreign(array))
    assert filtered.data.ptr == array.data.ptr


@pytest.mark.gpu
def test_filter():
    type_ = GpuArrayType("float32", (None, 3))
    array = to_device(VALUE)
    assert type_.filter(array) is array
    assert type_.filter(array, strict=True) is array
    np.testing.assert_array_equal(type_.filter(VALUE.tolist()).get(), VALUE)
    with pytest.raises(DnnTypeError, match="array on cuda0"):
        type_.filter(VALUE, strict=True)
    with pytest.raises(DnnTypeError, match="expects shape"):
        type_.filter(to_device(VALUE[:, :2]))
    with pytest.raises(DnnTypeError, match="expects dtype"):
        type_.filter(array.astype("float16"), strict=True)
    assert type_.filter(array.astype("float16")).dtype == np.float32
    assert type_.filter(array.astype("float64"), allow_downcast=True).dtype == np.float32
    with pytest.raises(DnnTypeError, match="expects dtype"):
        type_.filter(array.astype("float64"))


@pytest.mark.gpu
def test_comparisons():
    type_ = GpuArrayType("float32", (None,))
    nan = to_device(np.array([1, np.nan], "float32"))
    assert type_.values_eq(nan, nan.copy())
    assert type_.values_eq_approx(nan, nan * np.float32(1 + 1e-6))
    assert not type_.values_eq(nan, nan + 1)
    assert type_.may_share_memory(nan, nan[1:])
    assert not type_.may_share_memory(nan, nan.copy())
    brain = GpuArrayType("bfloat16", (None,)).filter(np.array([1.0, 2.0]))
    assert type(brain).__name__ == "ndarray"
    assert GpuArrayType.values_eq_approx(brain, brain.copy())
    assert not GpuArrayType.values_eq_approx(brain, brain + brain)


@pytest.mark.gpu
@pytest.mark.alone  # other processes of a run see one GPU
@pytest.mark.needs("two gpus")
def test_two_devices():
    import cupy

    there = shared(VALUE, device=1)
    x = GpuArrayType("float32", (None, None))()
    doubled = (there * 2).transfer("cuda1")
    f = pytensor.function([x], [doubled, doubled.transfer("cuda0") + x], mode=GPU_MODE)
    first, total = f(to_device(VALUE))
    assert first.device.id == 1
    np.testing.assert_array_equal(total.get(), 3 * VALUE)
    assert cupy.cuda.runtime.getDevice() == 0
    with pytest.raises(DnnTypeError, match="got one on cuda0"):
        there.set_value(to_device(VALUE))

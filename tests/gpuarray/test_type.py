"""GpuArrayType, its variables and constants, as far as they need no device."""

from __future__ import annotations

import pickle

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.io import In
from pytensor.compile.ops import view_op
from pytensor.gradient import DisconnectedType, disconnected_type
from pytensor.graph.basic import Constant

from dnnops.dtypes import DTYPES, numpy_dtype
from dnnops.errors import DnnTypeError, DnnUnavailableError, DnnValueError
from dnnops.gpuarray import (
    GpuArrayConstant,
    GpuArrayType,
    GpuArrayVariable,
    GpuCast,
    GpuFromHost,
    GpuToGpu,
    HostFromGpu,
    as_gpuarray_variable,
    infer_device,
)
from dnnops.gpuarray.basic import GpuSpecifyShape
from tests.needs import of_dtypes


def matrix(*shape, dtype="float32", device=0, name=None):
    return GpuArrayType(dtype, shape or (None, None), device)(name)


@pytest.mark.parametrize("dtype", of_dtypes(*sorted(DTYPES)))
def test_every_dtype(dtype):
    type_ = GpuArrayType(dtype, (2, None))
    assert type_.dtype == dtype
    assert type_.numpy_dtype.name == dtype
    assert type_.get_size((2, 3)) == 6 * numpy_dtype(dtype).itemsize
    assert type_ == pickle.loads(pickle.dumps(type_))


@pytest.mark.parametrize(
    ("args", "error"),
    [
        (("complex64", (None,)), DnnTypeError),
        (("float3", (None,)), DnnTypeError),
        (("float32", (-1,)), DnnTypeError),
        (("float32", ("a",)), DnnTypeError),
        (("float32", (1,), -1), DnnValueError),
        (("float32", (1,), "cuda"), DnnValueError),
    ],
)
def test_bad_types(args, error):
    with pytest.raises(error):
        GpuArrayType(*args)


def test_equality_and_clone():
    type_ = GpuArrayType("float32", (None, 3))
    assert type_ == GpuArrayType("float32", (None, 3))
    assert hash(type_) == hash(GpuArrayType("float32", (None, 3)))
    assert type_ != GpuArrayType("float32", (None, 3), device=1)
    assert type_ != pt.TensorType("float32", (None, 3))
    assert type_.clone(dtype="bfloat16", device=2) == GpuArrayType("bfloat16", (None, 3), 2)
    assert type_(shape=(2, 3)).type.shape == (2, 3)
    with pytest.raises(ValueError, match="static shape"):
        type_(shape=(2, 4))


def test_is_super_and_in_same_class():
    loose, narrow = GpuArrayType("float32", (None, 3)), GpuArrayType("float32", (2, 3))
    assert loose.is_super(narrow)
    assert not narrow.is_super(loose)
    assert loose.in_same_class(narrow)
    # What an update is asked for.
    assert loose.in_same_class(GpuArrayType("float32", (1, 3)))
    assert not GpuArrayType("float32", (1, 3)).in_same_class(loose)
    assert not loose.in_same_class(GpuArrayType("float32", (2, 1)))
    for other in ({"dtype": "float64"}, {"device": 1}, {"shape": (None,)}):
        assert not loose.is_super(loose.clone(**other))


def test_updates_of_known_lengths():
    """A variable of unknown lengths takes an update that has length 1 somewhere."""
    variable = GpuArrayType("float32", (None, None))()
    update = variable.type.filter_variable(pt.tensor("new", dtype="float32", shape=(1, 6)))
    assert In(variable, update=update).update.type.shape == (1, 6)
    with pytest.raises(TypeError, match="compatible"):
        In(update, update=variable)


def test_filter_variable():
    type_ = GpuArrayType("float32", (None, 3))
    host = pt.tensor("host", dtype="float32", shape=(2, 3))
    moved = type_.filter_variable(host)
    assert isinstance(moved.owner.op, GpuFromHost)
    assert moved.type == GpuArrayType("float32", (2, 3))
    assert type_.filter_variable(moved) is moved
    # Less specific: checked at run time.
    checked = type_.filter_variable(pt.fmatrix())
    assert isinstance(checked.owner.op, GpuSpecifyShape)
    assert checked.type == type_
    other = type_.filter_variable(matrix(2, 3, device=1))
    assert isinstance(other.owner.op, GpuToGpu)
    cast = type_.clone(dtype="bfloat16").filter_variable(host)
    assert isinstance(cast.owner.op, GpuCast)
    assert cast.type.dtype == "bfloat16"


@pytest.mark.parametrize(
    "other",
    [pt.dmatrix(), pt.fvector(), pt.tensor(dtype="float32", shape=(2, 4)), pt.imatrix()],
)
def test_filter_variable_refuses(other):
    with pytest.raises(DnnTypeError, match="cannot convert"):
        GpuArrayType("float32", (None, 3)).filter_variable(other)


def test_constant_needs_no_device():
    value = np.arange(6, dtype="float32").reshape(2, 3)
    constant = GpuArrayType("float32", (None, None)).make_constant(value)
    assert isinstance(constant, GpuArrayConstant)
    assert isinstance(constant, Constant)
    assert constant.type.shape == (2, 3)
    again = pickle.loads(pickle.dumps(constant))
    assert again.signature() == constant.signature()
    assert hash(again.signature()) == hash(constant.signature())
    assert constant.equals(again)
    other = GpuArrayType("float32", (None, None)).make_constant(value + 1)
    assert constant.signature() != other.signature()
    fortran = GpuArrayType("float32", (None, None)).make_constant(np.asfortranarray(value))
    assert constant.signature() == fortran.signature()
    assert hash(constant.signature()) == hash(fortran.signature())
    nan = GpuArrayType("float32", ()).make_constant(np.float32("nan"))
    assert nan.signature() == GpuArrayType("float32", ()).make_constant(np.nan).signature()


def test_constant_must_fit():
    with pytest.raises(DnnTypeError, match="expects 2 dimensions"):
        GpuArrayType("float32", (None, None)).make_constant(np.zeros(3, "float32"))
    with pytest.raises(DnnTypeError, match="expects dtype float32, got ndarray, dtype float64"):
        GpuArrayType("float32", (None,)).make_constant(np.full(3, 0.1))
    with pytest.raises(DnnTypeError, match=r"expects shape \(2,\)"):
        GpuArrayType("float32", (2,)).make_constant(np.zeros(3, "float32"))


@pytest.mark.needs("ml_dtypes")
def test_bfloat16_constant_rounds():
    constant = GpuArrayType("bfloat16", (None,)).make_constant(np.array([1.0, 1.001], "float32"))
    assert constant.host_data.dtype.name == "bfloat16"
    np.testing.assert_array_equal(constant.host_data.astype("float32"), [1, 1])


def test_filter_refuses_a_variable():
    with pytest.raises(DnnTypeError, match="symbolic variable"):
        GpuArrayType("float32", ()).filter(pt.fscalar())


@pytest.mark.needs("no gpu")
def test_a_value_without_a_device_gives_the_reason():
    with pytest.raises(DnnUnavailableError, match="cuda0"):
        GpuArrayType("float32", (None,)).filter(np.zeros(3, "float32"))


# Variables


@pytest.mark.parametrize(
    "build",
    [
        lambda w: w * 2,
        lambda w: 2 - w,
        lambda w: -w,
        lambda w: abs(w),
        lambda w: w @ w.T,
        lambda w: w**2,
        lambda w: w > 0,
        lambda w: np.float32(2) * w,
        lambda w: np.ones((2, 2), "float32") + w,
        lambda w: w.T,
        lambda w: w.sum(axis=0),
        lambda w: w.mean(),
        lambda w: w[0],
        lambda w: w[w > 0],
        lambda w: w[1:].set(0),
        lambda w: w.reshape((-1,)),
        lambda w: w.dimshuffle(1, "x", 0),
        lambda w: w.flatten(),
        lambda w: w.argmax(axis=1),
        lambda w: w.astype("float64"),
        lambda w: w.clip(0, 1),
        lambda w: w.shape[0],
        lambda w: w.size,
        lambda w: pt.exp(w),
        lambda w: pt.concatenate([w, w]),
        lambda w: pt.as_tensor_variable(w),
    ],
)
def test_operators_give_host_expressions(build):
    device, host = matrix(name="w"), pt.fmatrix("w")
    assert build(device).type == build(host).type


def test_properties():
    w = matrix(None, 1)
    assert isinstance(w, GpuArrayVariable)
    assert (w.ndim, w.dtype, w.broadcastable) == (2, "float32", (False, True))
    assert pt.get_vector_length(GpuArrayType("int64", (3,))()) == 3


def test_as_tensor_variable_transfers():
    w = matrix()
    assert isinstance(pt.as_tensor_variable(w).owner.op, HostFromGpu)
    assert isinstance(w.transfer("cpu").owner.op, HostFromGpu)
    assert w.transfer("cuda") is w
    assert w.transfer("cuda0") is w
    assert isinstance(w.transfer("cuda1").owner.op, GpuToGpu)
    assert pt.fmatrix().transfer("cuda1").type.device == 1
    with pytest.raises(ValueError, match="Can't transfer"):
        w.transfer("tpu")


def test_bfloat16_leaves_as_float32():
    w = matrix(dtype="bfloat16")
    host = pt.as_tensor_variable(w)
    assert host.type.dtype == "float32"
    assert isinstance(host.owner.inputs[0].owner.op, GpuCast)
    assert w.astype("float32").type == GpuArrayType("float32", (None, None))
    assert matrix().astype("bfloat16").type == GpuArrayType("bfloat16", (None, None))


def test_casts_of_host_variables():
    """A host tensor cannot be bfloat16, so the cast moves it."""
    host = pt.fmatrix()
    assert host.astype("bfloat16").type == GpuArrayType("bfloat16", (None, None))
    assert (host + 1).astype("bfloat16").type == GpuArrayType("bfloat16", (None, None))
    assert host.astype("float16").type == pt.TensorType("float16", (None, None))
    assert host.astype(np.float64).type == pt.TensorType("float64", (None, None))
    with pytensor.config.change_flags(device="cuda1"):
        assert host.astype("bfloat16").type.device == 1
    gradient = pt.grad(pt.as_tensor_variable(host.astype("bfloat16")).sum(), host)
    assert gradient.type == host.type


def test_sum_of_device_variables_stays():
    assert (matrix() + matrix()).type == GpuArrayType("float32", (None, None))
    assert isinstance((matrix() + 1).type, pt.TensorType)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bfloat16"])
def test_gradient_has_the_variable_s_type(dtype):
    w = matrix(2, None, dtype=dtype)
    gradient = pt.grad((w * 2).sum() + pt.exp(w).sum(), w)
    wanted = "float32" if dtype == "bfloat16" else dtype
    assert gradient.type == GpuArrayType(wanted, (2, None))


def test_pushforward_of_transfers():
    host, device = pt.fmatrix(), matrix()
    for op, x, tangent in [
        (GpuFromHost(0), host, pt.fmatrix()),
        (HostFromGpu(), device, matrix()),
        (GpuToGpu(1), device, matrix()),
        (GpuCast("float16"), device, matrix()),
    ]:
        out = op(x)
        (result,) = op.pushforward([x], [out], [tangent])
        assert result.type == out.type
        (result,) = op.pushforward([x], [out], [disconnected_type()])
        assert isinstance(result.type, DisconnectedType)


def test_as_gpuarray_variable():
    w = matrix()
    assert as_gpuarray_variable(w) is w
    assert as_gpuarray_variable(w, 1).type.device == 1
    assert as_gpuarray_variable(pt.fmatrix(), 1).type == GpuArrayType("float32", (None, None), 1)
    constant = as_gpuarray_variable(np.ones((2, 3), "float32"))
    assert constant.type == GpuArrayType("float32", (2, 3))
    assert as_gpuarray_variable(1.5).type.dtype == pytensor.config.floatX


def test_infer_device():
    assert infer_device(matrix(device=1), pt.fmatrix()) == 1
    with pytest.raises(DnnTypeError, match="on one device"):
        infer_device(matrix(), matrix(device=1))
    with pytest.raises(DnnTypeError, match="on one device"):
        infer_device(pt.fmatrix())


def test_generic_ops_run_in_c():
    """Shapes, copies and views of device variables are compiled, linked and loaded."""
    x = matrix(name="x")
    f = pytensor.function([x], [x, x.shape, x.shape[1], view_op(x)], mode="CVM")
    assert all(getattr(thunk, "cthunk", None) is not None for thunk in f.vm.thunks)

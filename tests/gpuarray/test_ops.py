"""Tensor Ops on the device: which Ops they become, without a GPU, and their results with one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytensor
import pytensor.scalar as ps
import pytensor.tensor as pt
import pytest
from numpy.exceptions import AxisError
from pytensor.graph.basic import Apply
from pytensor.tensor import blas
from pytensor.tensor.blas import Gemm
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.math import Dot
from pytensor.tensor.shape import Reshape

from dnnops.dtypes import numpy_dtype
from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.gpuarray import GpuArrayType, GpuContiguous, shared
from dnnops.gpuarray.basic import (
    GpuAllocEmpty,
    GpuDimShuffle,
    GpuJoin,
    GpuReshape,
    GpuSplit,
    first_joined,
)
from dnnops.gpuarray.elementwise.packed import LEAST_SIZE
from dnnops.gpuarray.elemwise import GpuElemwise
from dnnops.gpuarray.products.blas import GpuDot, GpuGemm
from tests.gpuarray.graphs import (
    GPU_MODE,
    assert_near,
    compare,
    device_variable,
    ops,
    rewritten,
    to_device,
)

rng = np.random.default_rng(42)


def normal(*shape, dtype="float32"):
    return rng.standard_normal(shape).astype(dtype)


def channels_last(x):
    return np.ascontiguousarray(np.moveaxis(x, 1, -1)).transpose(0, 3, 1, 2)


INDICES = np.array([0, 2, -1, 0])


@dataclass
class Case:
    build: Any
    values: tuple
    contains: str
    host: tuple = field(default=())  # Ops that may stay on the host


CASES = {
    "elemwise": Case(lambda x: pt.exp(x) * 2 + 1, (normal(3, 4),), "GpuElemwise"),
    "broadcast": Case(
        lambda x, b: x + b.dimshuffle("x", 0, "x", "x"),
        (normal(2, 3, 4, 5), normal(3)),
        "GpuElemwise",
    ),
    "channels_last": Case(
        lambda x, b: pt.maximum(x + b.dimshuffle("x", 0, "x", "x"), 0),
        (channels_last(normal(2, 3, 4, 5)), normal(3)),
        "GpuElemwise",
    ),
    "strided": Case(lambda x: x[::2, ::-1] * 3, (normal(6, 4),), "GpuElemwise"),
    "transposed": Case(lambda x, y: x.T + y, (normal(3, 4), normal(4, 3)), "GpuElemwise"),
    "scalar": Case(lambda x, s: x * s, (normal(3, 4), normal()), "GpuElemwise"),
    "empty": Case(lambda x: x * 2, (normal(0, 3),), "GpuElemwise"),
    "integer division": Case(
        lambda x, y: x // y + x % y, (np.arange(-6, 6), np.tile([1, 2, 3, -4], 3)), "GpuElemwise"
    ),
    "nan": Case(
        lambda x: pt.maximum(x, 0), (np.array([np.nan, -1, np.inf], "float32"),), "GpuElemwise"
    ),
    "cast": Case(lambda x: (x * 10).astype("int8"), (normal(3, 4),), "GpuElemwise"),
    "sum": Case(lambda x: x.sum(axis=(0, 2, 3)), (normal(2, 3, 4, 5),), "GpuCAReduce"),
    "sum of channels_last": Case(
        lambda x: x.sum(axis=(0, 2, 3)), (channels_last(normal(2, 3, 4, 5)),), "GpuCAReduce"
    ),
    "total": Case(lambda x: x.sum(), (channels_last(normal(2, 3, 4, 5)),), "GpuCAReduce"),
    "large total": Case(lambda x: x.sum(), (normal(300, 1000),), "GpuCAReduce"),
    "mean": Case(
        lambda x: x.mean(axis=1),
        (normal(3, 4),),
        "GpuCAReduce",
        ("Shape_i", "Elemwise", "DimShuffle"),
    ),
    "std": Case(
        lambda x: x.std(axis=0),
        (normal(9, 4),),
        "GpuCAReduce",
        ("Shape_i", "Elemwise"),
    ),
    "sum of nothing": Case(lambda x: x.sum(axis=1), (normal(3, 0),), "GpuCAReduce"),
    "max": Case(lambda x: x.max(axis=0), (normal(3, 4),), "GpuCAReduce"),
    "min of nan": Case(
        lambda x: x.min(axis=1), (np.array([[1, np.nan], [2, 3]], "float32"),), "GpuCAReduce"
    ),
    "prod": Case(lambda x: x.prod(axis=1), (normal(3, 4),), "GpuCAReduce"),
    "all": Case(lambda x: (x > 0).all(axis=0), (normal(3, 4),), "GpuCAReduce"),
    "any": Case(lambda x: (x > 1).any(), (normal(3, 4),), "GpuCAReduce"),
    "argmax": Case(lambda x: x.argmax(axis=1), (normal(3, 4),), "GpuArgmax"),
    "argmax of all": Case(lambda x: x.argmax(), (normal(3, 4),), "GpuArgmax"),
    "argmax of two": Case(lambda x: pt.argmax(x, axis=(0, 2)), (normal(3, 4, 5),), "GpuArgmax"),
    "dot": Case(lambda x, y: x @ y, (normal(3, 4), normal(4, 5)), "GpuDot"),
    "dot of transposed": Case(lambda x, y: x.T @ y.T, (normal(4, 3), normal(5, 4)), "GpuDot"),
    "dot of empty": Case(lambda x, y: x @ y, (normal(3, 0), normal(0, 5)), "GpuDot"),
    "scaled dot": Case(lambda x, y: 0.5 * (x @ y), (normal(3, 4), normal(4, 5)), "GpuDot"),
    "gemm": Case(
        lambda z, x, y, s: z - s * (x.T @ y),
        (normal(3, 5), normal(4, 3), normal(4, 5), normal()),
        "GpuGemm",
    ),
    "matrix and vector": Case(
        lambda a, x: a @ x, (normal(3, 4), normal(4)), "GpuGemv", ("Shape_i",)
    ),
    "gemv": Case(
        lambda y, a, x: y + 0.5 * (a.T @ x), (normal(4), normal(3, 4), normal(3)), "GpuGemv"
    ),
    "ger": Case(
        lambda a, x, y: a + 0.5 * pt.outer(x, y),
        (normal(3, 4), normal(3), normal(4)),
        "GpuGer" if hasattr(blas, "Ger") else "GpuElemwise",  # which later releases lack
    ),
    "vectors": Case(lambda x, y: x @ y, (normal(4), normal(4)), "GpuGemv"),
    "batched dot": Case(
        lambda x, y: pt.matmul(x, y), (normal(6, 3, 4), normal(6, 4, 5)), "GpuBatchedDot"
    ),
    "reshape": Case(lambda x: x.reshape((2, -1)), (normal(3, 4),), "GpuReshape"),
    "reshape of transposed": Case(lambda x: x.T.reshape((-1,)), (normal(3, 4),), "GpuReshape"),
    "flatten channels_last": Case(
        lambda x: x.reshape((x.shape[0], -1)),
        (channels_last(normal(2, 3, 4, 5)),),
        "GpuReshape",
        ("Shape_i", "MakeVector"),
    ),
    "dimshuffle": Case(lambda x: x.dimshuffle(1, "x", 0), (normal(3, 4),), "GpuDimShuffle"),
    "squeeze": Case(
        lambda x: pt.specify_shape(x, (1, None)).squeeze(0), (normal(1, 4),), "GpuDimShuffle"
    ),
    "row": Case(lambda x: x[1], (normal(3, 4),), "GpuSubtensor"),
    "slices": Case(lambda x: x[1:, ::-2], (normal(3, 4),), "GpuSubtensor"),
    "rows by index": Case(lambda x, i: x[i], (normal(3, 4), INDICES), "GpuAdvancedSubtensor"),
    "pairs": Case(lambda x, i: x[i, i], (normal(3, 4), INDICES), "GpuAdvancedSubtensor"),
    "index and slice": Case(
        lambda x, i: x[:, i, 1:], (normal(2, 3, 4), INDICES), "GpuAdvancedSubtensor"
    ),
    "mask": Case(lambda x: x[x > 0], (normal(3, 4),), "GpuAdvancedSubtensor"),
    "inc": Case(lambda x, y: x[1:].inc(y), (normal(3, 4), normal(2, 4)), "GpuIncSubtensor"),
    "set": Case(lambda x: x[:, 0].set(5.0), (normal(3, 4),), "GpuIncSubtensor"),
    "inc by index": Case(
        lambda x, y, i: x[i].inc(y),
        (normal(3, 4), normal(4, 4), INDICES),
        "GpuAdvancedIncSubtensor",
    ),
    "inc pairs": Case(
        lambda x, y, i: x[i, i].inc(y),
        (normal(3, 4), normal(4), INDICES),
        "GpuAdvancedIncSubtensor",
    ),
    "set by index": Case(
        lambda x, i: x[i].set(2.0), (normal(3, 4), INDICES), "GpuAdvancedIncSubtensor"
    ),
    "join": Case(
        lambda x, y: pt.concatenate([x, y * 2], axis=1), (normal(3, 4), normal(3, 2)), "GpuJoin"
    ),
    "stack": Case(lambda x, y: pt.stack([x, y]), (normal(3, 4), normal(3, 4)), "GpuJoin"),
    "split": Case(
        lambda x: (lambda a, b, c: b * 2 + a[:, :2] + c)(*pt.split(x, [3, 2, 2], axis=-1)),
        (normal(3, 7),),
        "GpuSplit",
    ),
    "gradient of a join": Case(
        lambda x, y: pt.grad((pt.concatenate([x, y], axis=1) ** 3).sum(), x) * 1.5,
        (normal(3, 4), normal(3, 2)),
        "GpuSplit",
        ("Shape_i", "MakeVector"),
    ),
    "softmax without cuDNN": Case(
        lambda x: pt.special.softmax(x, axis=1), (normal(3, 4),), "GpuElemwise"
    ),
}
FREE = {"HostFromGpu", "ScalarFromTensor"}


@pytest.mark.parametrize("name", CASES)
def test_moves_to_the_device(name):
    case = CASES[name]
    inputs = [device_variable(v) for v in case.values]
    found = ops(rewritten(inputs, [case.build(*inputs)]))
    assert case.contains in found
    assert found.count("HostFromGpu") == 1
    stayed = {op for op in found if not op.startswith("Gpu")} - FREE - set(case.host)
    assert not stayed, stayed


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_result(name):
    compare(CASES[name].build, *CASES[name].values)


FLOAT_CASES = ["elemwise", "channels_last", "sum", "total", "max", "argmax", "dot", "reshape",
               "slices", "pairs", "inc", "inc by index", "join", "split", "mean", "batched dot",
               "gemm", "gemv", "inc pairs"]  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
@pytest.mark.parametrize("name", FLOAT_CASES)
def test_result_in_other_float_dtypes(name, dtype):
    compare(CASES[name].build, *CASES[name].values, dtype=dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int16", "int32", "int64"])
@pytest.mark.parametrize("reduce", ["sum", "prod", "max", "min", "argmax"])
def test_reductions_of_integers(reduce, dtype):
    x = rng.integers(0, 2 if dtype == "bool" else 5, (4, 5)).astype(dtype)
    compare(lambda v: getattr(v, reduce)(axis=1), x)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bool", "int8", "int64", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("reduce", ["sum", "max", "min", "all"])
def test_large_reductions(reduce, dtype):
    """CuPy uses different code for them, based on CUB."""
    if reduce == "all" and dtype != "bool":
        pytest.skip("of booleans")
    # Both signs, because float16 has no numbers above 65504.
    low, high = (0, 2) if dtype == "bool" else (-2, 3)
    x = rng.integers(low, high, (300, 1001))
    x = x.astype("float32" if dtype == "bfloat16" else dtype)
    for axis in (None, 1, 0):
        compare(
            lambda v, axis=axis: getattr(v, reduce)(axis=axis),
            x,
            dtype="bfloat16" if dtype == "bfloat16" else None,
        )


#: More elements than a kernel for large arrays needs, and not a multiple of a thread's share.
LARGE = (5, 31, 65, 105)
assert np.prod(LARGE) > LEAST_SIZE
assert np.prod(LARGE) % 2


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_large_dense_arrays(dtype):
    """Of which a thread has several elements: in either order of memory, and of other dtypes."""
    x, y = normal(*LARGE), normal(*LARGE)
    mask = normal(*LARGE) > 0
    compare(lambda v, w: v * w - pt.exp(v), x, y, dtype=dtype)
    compare(lambda v, w: pt.maximum(v, w), channels_last(x), channels_last(y), dtype=dtype)
    compare(lambda v, w: pt.switch(w, v, v * 2), x, mask, dtype=dtype)
    compare(lambda v: v > 0.5, x, dtype=dtype)
    compare(lambda v: pt.cast(v, "float32") / 3, x, dtype=dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_large_arrays_with_repeated_ones(dtype):
    """Add a bias of each channel, in either memory order; of each image; of all; of other axes."""
    x = normal(*LARGE)
    for axes in ((1,), (0,), (), (0, 1), (1, 2, 3), (0, 2, 3), (1, 2)):
        b = normal(*(LARGE[axis] for axis in axes))
        pattern = [axes.index(axis) if axis in axes else "x" for axis in range(4)]

        def build(v, w, pattern=pattern):
            return pt.maximum(v + w.dimshuffle(pattern), 0)

        compare(build, x, b, dtype=dtype)
        if axes == (1,):
            compare(build, channels_last(x), b, dtype=dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("offset", [0, 1, 4])
def test_large_arrays_from_any_address(offset):
    """Those that don't begin at a multiple of 16 bytes as well; and a scalar of the host."""
    x, factor = GpuArrayType("float32", (None,))(), pt.fscalar()
    f = pytensor.function([x, factor], (x * factor).transfer("cuda"), mode=GPU_MODE)
    value = normal(LEAST_SIZE + 9)
    got = f(to_device(value)[offset:], np.float32(2.5))
    np.testing.assert_array_equal(got.get(), value[offset:] * np.float32(2.5))


@pytest.mark.gpu
def test_large_arrays_in_place():
    value = normal(LEAST_SIZE + 5)
    x = shared(value)
    f = pytensor.function([], [], updates=[(x, x - 0.5 * x * x)], mode=GPU_MODE)
    (node,) = f.maker.fgraph.apply_nodes
    assert node.op.inplace_pattern
    f()
    np.testing.assert_allclose(x.get_value(), value - 0.5 * value * value, rtol=1e-5, atol=1e-6)


@pytest.mark.gpu
def test_memory_format_is_kept():
    x = channels_last(normal(2, 3, 4, 5))
    variable = device_variable(x)
    f = pytensor.function([variable], (pt.exp(variable) + 1).transfer("cuda"), mode=GPU_MODE)
    value = to_device(x)
    assert f(value).strides == value.strides


@pytest.mark.gpu
@pytest.mark.parametrize("change", [lambda x, i: x[i], lambda x, i: x[i].inc(1.0)])
def test_index_out_of_bounds_raises(change):
    x, i = GpuArrayType("float32", (None, None))(), pt.lvector()
    f = pytensor.function([x, i], change(x, i), mode=GPU_MODE)
    value = to_device(normal(3, 4))
    with pytest.raises(IndexError, match="axis 0"):
        f(value, np.array([0, 3]))
    # And the process goes on.
    f(value, np.array([0, 2]))


@pytest.mark.gpu
def test_runtime_broadcasting_is_refused():
    x, y = (GpuArrayType("float32", (None, None))() for _ in range(2))
    f = pytensor.function([x, y], x + y, mode=GPU_MODE)
    with pytest.raises(DnnValueError, match="cannot be broadcast"):
        f(to_device(normal(3, 4)), to_device(normal(1, 4)))


@pytest.mark.gpu
def test_maximum_of_nothing():
    x = GpuArrayType("float32", (None, None))()
    f = pytensor.function([x], x.max(axis=1), mode=GPU_MODE)
    with pytest.raises(DnnValueError, match="no elements"):
        f(to_device(normal(3, 0)))


@pytest.mark.gpu
def test_tf32_is_off_unless_asked_for():
    x, y = normal(256, 256), normal(256, 256)
    wanted = x.astype("float64") @ y.astype("float64")
    for allowed, tolerance in ((False, 1e-6), (True, 1e-3)):
        with pytensor.config.change_flags(dnn__allow_tf32=allowed):
            inputs = [device_variable(v) for v in (x, y)]
            f = pytensor.function(inputs, inputs[0] @ inputs[1], mode=GPU_MODE)
        assert_near(f(to_device(x), to_device(y)), wanted, tolerance)


def test_tf32_is_read_when_the_op_is_made():
    with pytensor.config.change_flags(dnn__allow_tf32=True):
        allowed = GpuDot(Dot())
    assert allowed.allow_tf32
    assert allowed != GpuDot(Dot())


@pytest.mark.gpu
def test_alloc_empty():
    n = pt.lscalar()
    f = pytensor.function([n], GpuAllocEmpty("float32")(n, 3), mode=GPU_MODE)
    assert f(2).shape == (2, 3)


@pytest.mark.gpu
def test_contiguous():
    x = device_variable(normal(3, 4))
    f = pytensor.function([x], GpuContiguous()(x), mode=GPU_MODE)
    value = to_device(normal(4, 3)).T
    result = f(value)
    assert result.flags.c_contiguous
    assert_near(result, value.get(), 0)


# What needs no device: types, errors, shape inference


def test_static_shapes():
    x = GpuArrayType("bfloat16", (2, None, 4))()
    shuffled = GpuDimShuffle(DimShuffle(input_ndim=3, new_order=(2, "x", 0, 1)))(x)
    assert shuffled.type == GpuArrayType("bfloat16", (4, 1, 2, None))
    reshaped = GpuReshape(Reshape(2))(x, np.array([8, -1]))
    assert reshaped.type == GpuArrayType("bfloat16", (8, None))
    added = GpuElemwise(ps.add)(x, GpuArrayType("float32", (1, 3, 4))())
    assert added.type == GpuArrayType("float32", (2, 3, 4))


def test_elemwise_checks():
    add = GpuElemwise(ps.add)
    x = GpuArrayType("float32", (2, 3))()
    with pytest.raises(DnnTypeError, match="neither a device array nor a host scalar"):
        add(x, pt.fmatrix())
    with pytest.raises(DnnTypeError, match="ranks"):
        add(x, GpuArrayType("float32", (3,))())
    with pytest.raises(DnnValueError, match="broadcast"):
        add(x, GpuArrayType("float32", (2, 4))())
    with pytest.raises(DnnTypeError, match="on one device"):
        add(x, GpuArrayType("float32", (2, 3), device=1)())
    with pytest.raises(DnnTypeError, match="cannot overwrite"):
        GpuElemwise(ps.eq, [(0, 0)])(x, x)


def test_float16_and_bfloat16_do_not_mix():
    x, y = (GpuArrayType(dtype, (3,))() for dtype in ("float16", "bfloat16"))
    node = pt.join(0, pt.fvector(), pt.fvector()).owner
    with pytest.raises(DnnTypeError, match="cast one"):
        GpuJoin(node.op)(*node.inputs[: first_joined(node.op)], x, y)


def split_on_gpu(x, lengths, axis):
    """Apply `GpuSplit` to a device variable."""
    host = pt.split(x.type.host_type(), lengths, n_splits=3, axis=axis)[0].owner
    return GpuSplit(host.op).make_node(x, *host.inputs[1:])


@pytest.mark.needs("cupy")
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_parts_are_views(axis):
    """NumPy stands in for CuPy."""
    node = split_on_gpu(GpuArrayType("float32", (None,) * 3)(), [2, 0, 3], axis)
    assert node.op.view_map == {0: [0], 1: [0], 2: [0]}
    assert [z.type.shape[axis] for z in node.outputs] == [2, 0, 3]
    shape = [4, 4, 4]
    shape[axis] = 5
    x = normal(*shape)
    operands = [v.data for v in node.inputs[1:]]
    parts = node.op.prepare(node, x, *operands).run([x, *operands])
    for part, wanted in zip(parts, np.split(x, [2, 2], axis=axis), strict=True):
        np.testing.assert_array_equal(part, wanted)
        assert not part.size or np.shares_memory(part, x)


@pytest.mark.parametrize("axis", [2, -3])
def test_joined_axis_is_checked(axis):
    """The axis of a `Join` may be known only when it runs."""
    x, number = GpuArrayType("float32", (None, None))(), pt.iscalar()
    op = GpuJoin(pt.join(number, *[x.type.host_type()] * 2).owner.op)
    node = Apply(op, [number, x, x], [x.type()])
    with pytest.raises(AxisError):
        op.prepare(node, np.array(axis), normal(2, 3), normal(2, 3))


@pytest.mark.parametrize("lengths", [[2, 2], [2, 2, 2], [5, -2, 2], [1, 1, 1]])
def test_lengths_of_parts_are_checked(lengths):
    n = pt.lvector()
    node = split_on_gpu(GpuArrayType("float32", (None, None))(), n, 1)
    axis = () if hasattr(node.op.host_op, "axis") else (np.array(1),)
    with pytest.raises(DnnValueError, match="length"):
        node.op.prepare(node, normal(3, 5), *axis, np.array(lengths))


@pytest.mark.gpu
def test_parts_of_an_array_are_overwritten_in_order():
    """One part may be overwritten only after the others have been read."""
    x = normal(6, 4)
    variable = device_variable(x)

    def build(v):
        first, second = pt.split(v * 2, [2, 4], axis=0)
        return pt.concatenate([pt.exp(second), first + pt.tanh(second)[1:3]])

    function = compare(build, x)
    assert "GpuSplit" in ops(function.maker.fgraph)
    function = pytensor.function(
        [variable], [z.transfer("cuda") for z in pt.split(variable, [2, 4])], mode=GPU_MODE
    )
    value = to_device(x)
    parts = function(value)
    parts[0][...] = 0
    assert_near(value, x, 0)


@pytest.mark.parametrize(
    "build",
    [
        lambda x: GpuDimShuffle(DimShuffle(input_ndim=2, new_order=(1, "x", 0)))(x),
        lambda x: GpuReshape(Reshape(1))(x, np.array([-1])),
        lambda x: GpuContiguous()(x),
        lambda x: x.astype("bfloat16"),
        lambda x: GpuDot(Dot())(x, x.type(name="y")),
        lambda x: split_on_gpu(x, [1, 2, 3], 1).outputs[1],
    ],
)
def test_shape_inference_computes_nothing(build):
    x = GpuArrayType("float32", (None, None))("x")
    out = build(x)
    graph = rewritten([v for v in pytensor.graph.traversal.graph_inputs([out])
                       if not isinstance(v, pytensor.graph.basic.Constant)],
                      [pt.as_tensor_variable(out).shape])  # fmt: skip
    assert not [op for op in ops(graph) if op.startswith("Gpu") or op == "HostFromGpu"]


def test_gradient_of_contiguous():
    x = GpuArrayType("float32", (None,))()
    assert pt.grad(GpuContiguous()(x).sum(), x).type == x.type


def test_gemm_prints_its_place():
    assert str(GpuGemm(Gemm(inplace=True))) == "GpuGemm{inplace}"


# -- results in fewer bits -----------------------------------------------------------------


def test_results_in_other_dtypes():
    x, y = GpuArrayType("bfloat16", (None, 4))(), GpuArrayType("float32", (1, 4))()
    op = GpuElemwise(ps.add, out_dtypes=["float16"])
    assert op.make_node(x, y).out.type == GpuArrayType("float16", (None, 4))
    assert str(op) == "GpuElemwise{add,float16}"
    assert op != GpuElemwise(ps.add)
    # Only an operand of the same dtype can be overwritten.
    with pytest.raises(DnnTypeError, match="cannot overwrite"):
        GpuElemwise(ps.add, {0: 0}.items(), ["float16"]).make_node(x, x)
    assert GpuElemwise(ps.add, {0: 0}.items(), ["bfloat16"]).make_node(x, x)


def test_in_place_results_keep_their_dtype():
    x, y = GpuArrayType("bfloat16", (None,))(), GpuArrayType("float32", (None,))()
    inner = GpuElemwise(ps.mul, out_dtypes=["bfloat16"]).make_node(x, y).out
    outer = GpuElemwise(ps.add, out_dtypes=["bfloat16"]).make_node(inner, y).out
    graph = rewritten([x, y], [outer])
    last = graph.outputs[0].owner
    assert last.op.inplace_pattern == ((0, 0),)
    assert last.out.type.dtype == "bfloat16"


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("size", [6, LEAST_SIZE // 4 + 1])
def test_mixed_dtypes_are_rounded_once(dtype, size):
    x, b = normal(size, 4), normal(1, 4)
    narrow = x.astype(numpy_dtype(dtype))
    operands = [GpuArrayType(dtype, x.shape)(), GpuArrayType("float32", b.shape)()]
    floats = [ps.float32() for _ in operands]
    total = ps.add(*floats)
    scalar_op = ps.Composite(floats, [total, ps.mul(total, floats[1])])
    results = GpuElemwise(scalar_op, out_dtypes=[dtype, "float32"]).make_node(*operands).outputs
    f = pytensor.function(operands, results, mode=GPU_MODE)
    low, high = f(to_device(narrow), to_device(b))
    expected = narrow.astype("float32") + b
    np.testing.assert_array_equal(low.get(), expected.astype(numpy_dtype(dtype)))
    np.testing.assert_allclose(high.get(), expected * b, rtol=1e-6)

"""Reductions with cuDNN: descriptors and kernels without a GPU, results with one."""

from __future__ import annotations

import itertools

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.gradient import verify_grad

from dnnops.dtypes import DTYPE_CODES
from dnnops.errors import DnnNotSupportedError, DnnTypeError, DnnValueError
from dnnops.gpu.reduction import REDUCTIONS, GpuDnnReduction
from dnnops.gpuarray.type import GpuArrayType
from tests.emulation.host_kernels import compile_for_gpu, compile_for_host, launch_struct
from tests.gpu.calls import call, device_tensor, shape_of
from tests.gpu.device import bits, host, make_node, on_gpu, poison, rounded, values
from tests.oracle import PERFORM_MODE, RELATIVE_ERROR, SEED, repeat_command

DTYPES = ("float16", "float32", "float64")
SHAPES = ((), (5,), (1, 1), (2, 3, 4), (1, 4, 1), (0, 3), (2, 1, 3, 2, 1, 3, 2, 3))

ORACLES = {
    "add": lambda x, axes: x.sum(axis=axes),
    "mul": lambda x, axes: x.prod(axis=axes),
    "minimum": lambda x, axes: x.min(axis=axes),
    "maximum": lambda x, axes: x.max(axis=axes),
    "absmax": lambda x, axes: abs(x).max(axis=axes),
    "mean": lambda x, axes: x.mean(axis=axes),
    "norm1": lambda x, axes: abs(x).sum(axis=axes),
    "norm2": lambda x, axes: np.sqrt((x**2).sum(axis=axes)),
}


def axes_of(ndim: int):
    for count in range(ndim + 1):
        yield from itertools.combinations(range(ndim), count)


def made(op: GpuDnnReduction, dtype: str, shape) -> GpuDnnReduction:
    return op.make_node(GpuArrayType(dtype, shape)()).op


@pytest.mark.needs("cudnn")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_descriptors(shape, dtype):
    """cuDNN accepts the descriptors, also with eight dimensions."""
    for axes in axes_of(len(shape)):
        op = made(GpuDnnReduction("add", axes), dtype, shape)
        x = device_tensor(shape, dtype)
        call("dnnops_cudnn_reduction_describe", op, [x])
        (out,) = call("dnnops_cudnn_reduction_shape", op, [x])
        assert shape_of(out) == tuple(n for i, n in enumerate(shape) if i not in axes)
        assert out.dtype == DTYPE_CODES[dtype]


@pytest.mark.needs("cudnn")
def test_indices_and_wider_results():
    op = made(GpuDnnReduction("max", 1, return_indices=True), "float16", (3, 4))
    x = device_tensor((3, 4), "float16")
    call("dnnops_cudnn_reduction_describe", op, [x])
    value, index = call("dnnops_cudnn_reduction_shape", op, [x], [device_tensor(())] * 2)
    assert [shape_of(value), shape_of(index)] == [(3,), (3,)]
    assert index.dtype == DTYPE_CODES["int64"]
    op = made(GpuDnnReduction("sum", 0, dtype="float32"), "float16", (3, 4))
    (out,) = call("dnnops_cudnn_reduction_shape", op, [x])
    assert out.dtype == DTYPE_CODES["float32"]


@pytest.mark.needs("cudnn")
def test_empty_and_large_operands():
    for red_op in ("max", "min", "amax"):
        op = made(GpuDnnReduction(red_op, 0), "float32", (0, 3))
        with pytest.raises(DnnValueError, match="no elements to reduce"):
            call("dnnops_cudnn_reduction_shape", op, [device_tensor((0, 3))])
        op = made(GpuDnnReduction(red_op, 0), "float32", (0, 0))
        call("dnnops_cudnn_reduction_shape", op, [device_tensor((0, 0))])
    op = made(GpuDnnReduction("sum", 0), "float32", (None, None))
    with pytest.raises(DnnNotSupportedError, match=r"less than 2\*\*31"):
        call("dnnops_cudnn_reduction_describe", op, [device_tensor((1 << 16, 1 << 15))])


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda x: GpuDnnReduction("median")(x), DnnValueError, "median"),
        (lambda x: GpuDnnReduction(["sum"])(x), DnnValueError, "red_op must be one of"),
        (lambda x: GpuDnnReduction("sum", 2)(x), DnnValueError, "does not fit"),
        (lambda x: GpuDnnReduction("sum", (0, -2))(x), DnnValueError, "twice"),
        (lambda x: GpuDnnReduction("sum", "0")(x), DnnTypeError, "axis"),
        (lambda x: GpuDnnReduction("sum", return_indices=True)(x), DnnValueError, "indices"),
        (lambda x: GpuDnnReduction("sum", acc_dtype="float64")(x), DnnTypeError, "float64"),
        (lambda x: GpuDnnReduction("sum", dtype="float16")(x), DnnTypeError, "float16"),
        (
            lambda x: GpuDnnReduction("sum")(GpuArrayType("bfloat16", (3,))()),
            DnnTypeError,
            "bfloat16",
        ),
    ],
)
def test_bad_arguments(make, error, words):
    with pytest.raises(error, match=words):
        make(GpuArrayType("float32", (None, None))())


@pytest.mark.parametrize("red_op", REDUCTIONS)
def test_gradients(red_op):
    x = GpuArrayType("float32", (None, 3, 4))()
    z = GpuDnnReduction(red_op, (0, 2))(x)
    assert z.type.shape == (3,)
    assert pytensor.grad(pt.as_tensor_variable(z).sum(), x).type.ndim == 3
    # What they are: derivatives of an expression, on the host.
    op = made(GpuDnnReduction(red_op, (0, 2)), "float64", (2, 3, 4))
    rng = np.random.default_rng(0)
    verify_grad(
        lambda x: op._expressions(x)[0],
        [rng.standard_normal((2, 3, 4))],
        rng=rng,
        mode=PERFORM_MODE,
    )


def test_names_and_defaults():
    assert GpuDnnReduction("avg").red_op == "mean"
    op = made(GpuDnnReduction("amax", -1), "float16", (2, 3))
    assert (op.axis, op.acc_dtype, op.dtype) == ((1,), "float32", "float16")
    assert op == GpuDnnReduction("absmax", (1,), "float32", "float16", False)


#: Dtypes of the elements and of their copies, and whether these are absolute values.
COPIES = (
    ("float16", "float32", 1),
    ("float16", "float16", 0),
    ("float32", "float32", 1),
    ("float64", "float64", 1),
)


def macros_of(source, target, absolute):
    return {"FROM": DTYPE_CODES[source], "TO": DTYPE_CODES[target], "ABSOLUTE": absolute}


@pytest.mark.needs("nvrtc")
def test_gpu_compiler():
    for copy in COPIES:
        assert "griddepcontrol.wait" in compile_for_gpu("reduction", macros_of(*copy))


def test_kernels_on_the_host(tmp_path):
    rng = np.random.default_rng(SEED)
    kernels = dict.fromkeys(("copy_elements", "widen_indices"), "reduction_launch")
    for source, target, absolute in COPIES:
        macros = macros_of(source, target, absolute)
        library = compile_for_host(tmp_path, "reduction", kernels, macros)
        x = rounded(rng.standard_normal(700), source)
        x[:3] = 0.0, -0.0, np.nan
        out = np.full(700, 7, target)
        launch = launch_struct(x=bits(x, source), out=out, count=700)
        assert library.run_copy_elements(launch, 2, 256, 0) == 0
        np.testing.assert_array_equal(values(out, target), abs(x) if absolute else x)
        np.testing.assert_array_equal(np.signbit(out[:2]), [False, not absolute])
    indices = rng.integers(2**32, size=300, dtype="uint32")
    wide = np.full(300, -1, "int64")
    library.run_widen_indices(launch_struct(x=indices, out=wide, count=300), 1, 256, 0)
    np.testing.assert_array_equal(wide, indices)


# -- with a GPU ----------------------------------------------------------------------------


def run_on_gpu(op, x):
    node, inputs = make_node(op, x)
    storage = [[None] for _ in node.outputs]
    node.op.perform(node, inputs, storage)
    return [cell[0] for cell in storage]


def random_shape(rng: np.random.Generator) -> tuple[int, ...]:
    ndim = int(rng.integers(1, 9))
    return tuple(int(n) for n in rng.integers(1, 7 if ndim < 6 else 4, ndim))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_random(dtype):
    import cupy

    rng = np.random.default_rng(SEED)
    failures = []
    for number in range(160):
        shape = random_shape(rng)
        if number % 8 == 0:
            shape = tuple(int(n) for n in rng.integers(1, 400, 2))
        red_op = REDUCTIONS[number % len(REDUCTIONS)]
        axes = tuple(i for i in range(len(shape)) if rng.integers(2))
        x = rng.standard_normal(shape)
        if red_op == "mul":
            x = 1 + x / 16
        x = rounded(x, dtype)
        given = on_gpu(x, dtype)
        if number % 3 == 0:
            given = cupy.asfortranarray(given)
        # Sums cancel, so errors are relative to the terms.
        scale = np.maximum(abs(x).sum(axis=axes), 1) if red_op == "add" else 1
        indices = red_op in ("minimum", "maximum") and number % 16 > 7
        wide = "float32" if dtype == "float16" and number % 5 == 0 else None
        words = f"number {number}: {red_op} of {dtype}{shape} over {axes}"
        words += f", strides {given.strides}, indices={indices}, dtype={wide}"
        poison()
        try:
            found = run_on_gpu(
                GpuDnnReduction(red_op, axes, dtype=wide, return_indices=indices), given
            )
            ref = np.asarray(ORACLES[red_op](x, axes))
            error = np.max(abs(host(found[0]) - ref) / np.maximum(scale, abs(ref)), initial=0)
            assert error <= RELATIVE_ERROR[dtype], f"error {error}"
            if indices:
                kept = [i for i in range(len(shape)) if i not in axes]
                flat = x.transpose([*kept, *axes]).reshape(*(shape[i] for i in kept), -1)
                places = found[1].get()
                assert places.dtype == "int64"
                chosen = np.take_along_axis(flat, places[..., None], axis=-1)[..., 0]
                np.testing.assert_array_equal(chosen, ref)
        except Exception as error:
            failures.append(f"{words}: {type(error).__name__}: {error}")
    assert not failures, f"{len(failures)} fail; {repeat_command()}\n" + "\n".join(failures[:12])


@pytest.mark.gpu
def test_special_values():
    x = np.array([[1.0, np.nan, 3.0], [2.0, -5.0, np.inf]])
    for red_op in ("maximum", "minimum", "add", "norm1", "norm2", "absmax"):
        (out,) = run_on_gpu(GpuDnnReduction(red_op, 1), on_gpu(x, "float32"))
        ref = ORACLES[red_op](x, (1,))
        np.testing.assert_array_equal(host(out), ref, err_msg=red_op)
    empty = on_gpu(np.zeros((0, 3)), "float32")
    for red_op, value in (("add", 0), ("mul", 1), ("mean", np.nan), ("norm2", 0)):
        (out,) = run_on_gpu(GpuDnnReduction(red_op, 0), empty)
        np.testing.assert_array_equal(host(out), np.full(3, value), err_msg=red_op)


@pytest.mark.gpu
def test_compiled_function():
    x = GpuArrayType("float32", (None, None, None))()
    outputs = [GpuDnnReduction("norm2", (0, 2))(x), *GpuDnnReduction("max", 1, None, None, True)(x)]
    outputs.append(pytensor.grad(pt.as_tensor_variable(outputs[0]).sum(), x))
    f = pytensor.function([x], outputs, mode=pytensor.compile.get_mode("CVM").including("gpu"))
    rng = np.random.default_rng(SEED)
    for number in range(40):
        value = rng.standard_normal(rng.integers(1, 40, 3)).astype("float32")
        norm, largest, place, gradient = (np.asarray(z.get()) for z in f(on_gpu(value, "float32")))
        wide = value.astype("float64")
        ref = np.sqrt((wide**2).sum(axis=(0, 2)))
        words = f"{number}: {value.shape}"
        np.testing.assert_allclose(norm, ref, rtol=1e-5, err_msg=words)
        np.testing.assert_array_equal(largest, value.max(axis=1), err_msg=words)
        np.testing.assert_array_equal(place, value.argmax(axis=1), err_msg=words)
        np.testing.assert_allclose(
            gradient, wide / ref[:, None], rtol=1e-4, atol=1e-6, err_msg=words
        )

"""`GpuDense`: its launches and kernel on the host, against the float64 oracle; on a GPU as well."""

from __future__ import annotations

import ctypes
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytensor
import pytest

from dnnops.compat import inferred_shapes
from dnnops.dtypes import DTYPE_CODES, numpy_dtype
from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.gpu.fused.dense import GpuDense
from dnnops.gpuarray.transfer import host_from_gpu
from dnnops.gpuarray.type import GpuArrayType
from tests.emulation import host_ops
from tests.emulation.host_kernels import compile_for_gpu
from tests.gpu.calls import call, device_tensor, shape_of
from tests.gpu.device import DTYPES, rounded
from tests.needs import of_dtypes
from tests.oracle import RELATIVE_ERROR, SEED, UNIT, assert_close, repeat_command

KINDS = ("", "relu", "gelu")
#: Bits of the epilogues that the emulated cuBLASLt has: all, no GELU, only biases, none.
SUPPORTED = (~0, ~32, 4, 0)


class Case:
    """A random call: operands in any layout, and the Op's parameters."""

    def __init__(self, rng: np.random.Generator, dtype: str):
        m, n = (int(rng.choice([1, 2, 3, 7, 8, 16, 31, 129])) for _ in range(2))
        k = int(rng.choice([0, 1, 2, 5, 8, 33]))
        m = 0 if rng.random() < 0.05 else m
        kind = str(rng.choice(KINDS))
        bias, addend = bool(rng.random() < 0.5), bool(rng.random() < 0.5)
        self.op = GpuDense(kind, bias, addend, allow_tf32=False)
        self.dtype = dtype
        integers = bool(rng.random() < 0.3)  # exact, with zeros
        shapes = [(m, k), (k, n)] + [(n,)] * bias + [(m, n)] * addend
        self.values = [
            rounded(rng.integers(-2, 3, s) if integers else rng.standard_normal(s), dtype)
            for s in shapes
        ]
        if m and k and rng.random() < 0.3:
            self.values[0][rng.integers(m)] = np.nan
        self.orders = [str(rng.choice(["C", "F", "gaps"])) for _ in shapes]
        self.text = f"{self.op} {dtype} {shapes} {self.orders}: {repeat_command()}"

    def arrays(self, takes: Any) -> list[np.ndarray]:
        """Return the operands in their layouts; `takes` copies what the Op does not take."""
        found = []
        for i, (value, order) in enumerate(zip(self.values, self.orders, strict=True)):
            typed = value.astype(numpy_dtype(self.dtype))
            if order == "gaps" and typed.ndim == 2:
                wide = np.zeros((typed.shape[0], typed.shape[1] + 3), typed.dtype)
                wide[:, : typed.shape[1]] = typed
                typed = wide[:, : typed.shape[1]]
            elif order == "F":
                typed = np.asfortranarray(typed)
            found.append(takes(i, typed))
        return found

    def expected(self) -> np.ndarray:
        x, w, *terms = self.values
        operand = x @ w + sum(terms)
        if self.op.activation == "relu":
            return np.maximum(operand, 0)
        if self.op.activation == "gelu":
            inner = np.sqrt(2 / np.pi) * (operand + 0.044715 * operand**3)
            return operand * 0.5 * (1 + np.tanh(inner))
        return operand

    def check(self, results: list[np.ndarray], *, adds_bias: bool = True) -> None:
        """Compare a result; without `adds_bias`, it is rounded before the bias is added."""
        (found,) = results
        expected = self.expected()
        np.testing.assert_array_equal(np.isnan(found), np.isnan(expected), err_msg=self.text)
        error = np.linalg.norm(np.nan_to_num(found - expected))
        bound = 2 * RELATIVE_ERROR[self.dtype] * np.linalg.norm(np.nan_to_num(expected))
        # Terms that cancel, and the tails of GELU, leave less than the rounding errors.
        x, w, *terms = (np.abs(np.nan_to_num(value)) for value in self.values)
        unit = UNIT["float64" if self.dtype == "float64" else "float32"]
        bound += 4 * unit * np.linalg.norm(x @ w + sum(terms))
        if self.op.bias and not adds_bias:
            bound += UNIT[self.dtype] * np.linalg.norm(x @ w + sum(terms[1:]))
        assert error <= bound, f"{error}: {self.text}"


# -- on the host ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def host_op(tmp_path_factory):
    """Return a function that compiles the Op for a dtype and an emulated cuBLASLt."""
    folder = tmp_path_factory.mktemp("dense")
    emulated = Path(host_ops.__file__).with_name("host_cublaslt.cpp")
    own = ("product_plan.cpp", "product_form.cpp", "copies.cpp")
    sources = (*map(host_ops._source, own), emulated)
    return host_ops.HostOp(
        folder, "dense", "dense", "DenseParams", ("dense",), DTYPES, sources=sources
    )


def readable(i: int, array: np.ndarray) -> np.ndarray:
    """Return the operand, or the copy that the Op makes of the addend."""
    return array if i < 2 or array.strides[-1] == array.itemsize else np.ascontiguousarray(array)


@pytest.mark.needs("cudnn")
@pytest.mark.parametrize("dtype", of_dtypes(*DTYPES, quick="float32"))
@pytest.mark.parametrize("supported", SUPPORTED)
def test_random_cases_on_the_host(host_op, dtype, supported):
    rng = np.random.default_rng(SEED)
    library = host_op._library
    library.support_epilogues(ctypes.c_int64(supported))
    # The process keeps what cuBLASLt has answered, for each device.
    device = SUPPORTED.index(supported)
    for _ in range(60):
        case = Case(rng, dtype)
        results = host_op.run(case.op, *case.arrays(readable), device=device)
        case.check(results, adds_bias=bool(supported & 4))


@pytest.mark.needs("cudnn")
@pytest.mark.parametrize(
    ("milliseconds", "algo", "expected"),
    [
        ((4, 3.95, 1, 2), "time_once", 2),
        ((4, 3.95, -1, 5), "time_once", 0),  # not faster by enough; the third fails
        ((-1, 5, 3), "time_once", 2),
        ((4, 3), "guess_once", 0),
    ],
)
def test_the_fastest_algorithm_is_selected_once(host_op, milliseconds, algo, expected):
    library = host_op._library
    # A device of its own, since the process keeps plans.
    device = 100 + sum(map(ord, f"{milliseconds}{algo}"))
    x, w = np.zeros((1024, 1024), "float32"), np.zeros((1024, 1024), "float32")
    op = GpuDense("gelu", allow_tf32=False, algo=algo)
    try:
        library.set_durations(
            (ctypes.c_double * len(milliseconds))(*milliseconds), len(milliseconds)
        )
        counts = []
        for _ in range(2):
            library.count_products()
            host_op.run(op, x, w, device=device)
            counts.append(library.count_products())
            assert library.last_algorithm() == expected
        assert counts[1] == 1
        assert (counts[0] == 1) == (algo == "guess_once")
    finally:
        library.set_durations(None, 0)


@pytest.mark.needs("cudnn")
def test_small_products_are_not_timed(host_op):
    library = host_op._library
    try:
        library.set_durations((ctypes.c_double * 2)(4, 1), 2)
        library.count_products()
        op = GpuDense("gelu", allow_tf32=False, algo="time_once")
        host_op.run(op, np.zeros((64, 64), "float32"), np.zeros((64, 64), "float32"), device=99)
        assert library.count_products() == 1
    finally:
        library.set_durations(None, 0)


@pytest.mark.needs("nvrtc")
def test_gpu_compiler():
    for dtype in DTYPES:
        assert "griddepcontrol.wait" in compile_for_gpu("dense", {"DTYPE": DTYPE_CODES[dtype]})


@pytest.mark.needs("cudnn")
def test_shapes():
    op = GpuDense("relu", bias=True)
    operands = [device_tensor((3, 4)), device_tensor((4, 130)), device_tensor((130,))]
    outputs = [device_tensor(())]
    found = call("dnnops_cudnn_dense_shape", op, operands, outputs)
    assert [shape_of(t) for t in found] == [(3, 130)]
    bad = {
        "cannot be multiplied": [device_tensor((3, 5)), *operands[1:]],
        "the bias does not have the shape": [*operands[:2], device_tensor((3,))],
        "must have the same dtype": [*operands[:2], device_tensor((130,), "float64")],
    }
    for message, given in bad.items():
        with pytest.raises((DnnTypeError, DnnValueError), match=message):
            call("dnnops_cudnn_dense_shape", op, given, outputs)


def matrix(*shape: int | None, dtype: str = "float32") -> Any:
    return GpuArrayType(dtype, shape)()


def test_operands_and_results():
    x, w, bias, addend = matrix(None, 4), matrix(4, 6), matrix(6), matrix(3, None)
    op = GpuDense("relu", bias=True, addend=True)
    node = op.make_node(x, w, bias, addend)
    assert [z.type.shape for z in node.outputs] == [(3, 6)]
    assert op.epilogue == "RELU_BIAS"
    assert pickle.loads(pickle.dumps(op)) == op
    assert len({op, GpuDense("relu", bias=True), GpuDense("gelu", bias=True)}) == 3
    shapes = [tuple(v.shape) for v in node.inputs]
    assert len(inferred_shapes(op, node, shapes)) == 1


@pytest.mark.parametrize(
    ("parameters", "operands", "message"),
    [
        ({"activation": "elu"}, (), "activation must be one of"),
        ({"bias": True}, (matrix(3, 4), matrix(4, 6)), "expected 3 operands"),
        ({}, (matrix(3, 4), matrix(4, 6, dtype="float64")), "same dtype"),
        ({}, (matrix(3, 4), matrix(5, 6)), "4.*5"),
        ({}, (matrix(3, 4, 5), matrix(4, 6)), "x has 3 dimensions"),
        ({"bias": True}, (matrix(3, 4), matrix(4, 6), matrix(5)), "bias"),
        ({"addend": True}, (matrix(3, 4), matrix(4, 6), matrix(1, 6)), "addend"),
        ({}, (), "at least 2 operands"),
    ],
)
def test_bad_parameters_and_operands(parameters, operands, message):
    with pytest.raises((DnnTypeError, DnnValueError), match=message):
        GpuDense(**parameters)(*operands)


def test_derivatives():
    """Gradients of the Op are those of the expressions that it stands for."""
    x, w, bias = matrix(3, 4), matrix(4, 6), matrix(6)
    for kind in ("", "relu", "gelu"):
        out = GpuDense(kind, bias=True)(x, w, bias)
        grads = pytensor.grad(host_from_gpu(out).sum(), [x, w, bias])
        assert [g.type.ndim for g in grads] == [2, 2, 1]


# -- on a GPU ------------------------------------------------------------------------------


def on_gpu(i: int, array: np.ndarray) -> Any:
    """Copy an array to the device with its strides."""
    import cupy

    if array.size == 0 or array.ndim < 2:
        return cupy.asarray(np.ascontiguousarray(array))
    if array.strides[0] == array.itemsize and array.shape[0] > 1:
        return cupy.asarray(np.ascontiguousarray(array.T)).T
    wide = cupy.empty((array.shape[0], array.strides[0] // array.itemsize or 1), array.dtype)
    if wide.shape[1] < array.shape[1]:
        return cupy.asarray(np.ascontiguousarray(array))
    wide[:, : array.shape[1]] = cupy.asarray(np.ascontiguousarray(array))
    return wide[:, : array.shape[1]]


def variables_of(case: Case) -> list[Any]:
    return [GpuArrayType(case.dtype, (None,) * v.ndim)() for v in case.values]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_random_cases_on_a_gpu(dtype):
    """Emitted C code and `perform`; each Op is compiled once."""
    import cupy

    rng = np.random.default_rng(SEED)
    functions: dict[GpuDense, Any] = {}
    for number in range(120):
        case = Case(rng, dtype)
        arrays = case.arrays(on_gpu)
        arrays = [cupy.asarray(a) for a in arrays]
        given = variables_of(case)
        node = case.op.make_node(*given)
        if number % 2:
            storage = [[None] for _ in node.outputs]
            case.op.perform(node, arrays, storage)
            results = [cell[0] for cell in storage]
        else:
            if case.op not in functions:
                functions[case.op] = pytensor.function(given, node.outputs, mode="CUDNN")
            results = functions[case.op](*arrays)
        case.check([r.get().astype("float64") for r in results])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("addend", [False, True])
def test_large_layers_on_a_gpu(dtype, addend):
    """Sizes for which cuBLASLt has the epilogues, with zeros and NaN before relu."""
    import cupy

    rng = np.random.default_rng(SEED)
    m, k, n = 512, 256, 384
    values = [rng.integers(-1, 2, s).astype("float64") for s in [(m, k), (k, n)]]
    values += [rng.integers(-3, 4, s).astype("float64") for s in [(n,), (m, n)][: 1 + addend]]
    values[0][5] = np.nan
    x, w, *terms = values
    typed = [cupy.asarray(v.astype(numpy_dtype(dtype))) for v in values]
    op = GpuDense("relu", bias=True, addend=addend, allow_tf32=False)
    node = op.make_node(*(GpuArrayType(dtype, (None,) * v.ndim)() for v in typed))
    storage = [[None]]
    op.perform(node, typed, storage)
    out = storage[0][0].get().astype("float64")
    assert np.isnan(out[5]).all()
    # The sums are integers that all dtypes hold, so they are exact.
    np.testing.assert_array_equal(out, np.maximum(x @ w + sum(terms), 0))


@pytest.mark.gpu
def test_captured_on_a_gpu():
    """A layer and its gradient are replayed as a CUDA graph."""
    import cupy

    from dnnops import nnet

    x, w, b, v = matrix(64, 32), matrix(32, 128), matrix(128), matrix(128, 16)
    loss = ((nnet.relu(x @ w + b) @ v) ** 2).sum()
    outputs = [loss, *pytensor.grad(loss, [w, b, v])]
    rng = np.random.default_rng(SEED)
    with pytensor.config.change_flags(dnn__cuda_graph="True"):
        f = pytensor.function([x, w, b, v], outputs, mode="CUDNN")
    assert any(isinstance(n.op, GpuDense) for n in f.maker.fgraph.toposort())
    with pytensor.config.change_flags(dnn__cuda_graph="False"):
        plain = pytensor.function(
            [x, w, b, v],
            outputs,
            mode=pytensor.compile.mode.get_mode("CUDNN").excluding("gpu_dense"),
        )
    shapes = [(64, 32), (32, 128), (128,), (128, 16)]
    for _ in range(5):
        arrays = [cupy.asarray(rng.standard_normal(s, "float32")) for s in shapes]
        for found, expected in zip(f(*arrays), plain(*arrays), strict=True):
            assert_close(cupy.asnumpy(found), cupy.asnumpy(expected), "float32")
    assert f.vm.replays

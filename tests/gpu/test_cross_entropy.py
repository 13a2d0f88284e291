"""Cross-entropy on a GPU: its kernels on the host and compiled; on a GPU against the oracle."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.replace import clone_replace
from pytensor.tensor.special import log_softmax

from dnnops.dtypes import DTYPE_CODES, HALF_DTYPES
from dnnops.errors import DnnIndexError, DnnTypeError
from dnnops.gpu.cross_entropy import GpuCrossEntropy, GpuCrossEntropyGrad
from dnnops.gpuarray.type import GpuArrayType
from dnnops.nnet.loss.cross_entropy import CrossEntropy, CrossEntropyGrad
from tests.emulation.host_kernels import compile_for_gpu, compile_for_host, launch_struct
from tests.gpu.calls import call, device_tensor, shape_of
from tests.gpu.device import DTYPES, bits, host, make_node, on_gpu, poison, rounded, values
from tests.needs import of_dtypes
from tests.oracle import PERFORM_MODE, RELATIVE_ERROR, SEED, repeat_command

GPU_MODE = pytensor.compile.get_mode("CVM").including("gpu")
KERNELS = dict.fromkeys(
    ("cross_entropy", "cross_entropy_grad", "cross_entropy_grad_of_one"), "cross_entropy_launch"
)
#: Numbers of threads that share a row, with the labels' dtype.
LANES = {1: "int64", 8: "int32", 256: "int64"}


def run_oracle(op, *arrays):
    node = op.make_node(*arrays)
    storage = [[None] for _ in node.outputs]
    op.perform(node, [np.asarray(a) for a in arrays], storage)
    return [cell[0] for cell in storage]


class Case:
    """Draw scores, labels and a gradient with respect to the costs."""

    def __init__(
        self,
        rng: np.random.Generator,
        dtype: str,
        largest: int,
        label_dtype: str = "int64",
        costs_dtype: str = "",
    ):
        self.rows = int(rng.integers(0, 40))
        # Rows of 16-byte words are read differently.
        several = 8 * int(rng.integers(1, 1 + largest // 8))
        self.classes = int(rng.choice([1, 2, 3, 10, several, int(rng.integers(1, largest))]))
        self.every_row = bool(rng.integers(2))
        count = self.rows if self.every_row else int(rng.integers(0, self.rows + 1))
        self.is_shared = self.every_row and rng.integers(4) == 0
        if self.is_shared:  # one row is read at any number of labels
            self.rows, count = 1, int(rng.choice([0, 2, 3, 40, 700]))
        one = self.every_row and self.rows and not self.is_shared and rng.integers(4) == 0
        self.count = count
        self.x = rounded(rng.standard_normal((self.rows, self.classes)) * rng.choice([1, 8]), dtype)
        if self.x.size and rng.integers(5) == 0:
            # With infinity, the row's results are NaN.
            special = rng.choice([-np.inf, np.inf])
            self.x[rng.integers(self.rows), rng.integers(self.classes)] = special
        self.labels = rng.integers(-self.classes, self.classes, 1 if one else count)
        self.labels = self.labels.astype(label_dtype)
        self.g = rounded(
            rng.standard_normal(1 if rng.integers(4) == 0 else count), costs_dtype or dtype
        )

    def expected(self):
        costs, statistics = run_oracle(
            CrossEntropy(self.every_row, self.every_row), self.x, self.labels
        )
        op = CrossEntropyGrad(self.every_row, self.every_row)
        (gradient,) = run_oracle(op, self.g, self.x, self.labels, statistics)
        return costs, statistics, gradient

    def check(
        self, dtype: str, costs, statistics, gradient, words: str, costs_dtype: str = ""
    ) -> None:
        bounds = {key: max(value, 1e-6) for key, value in RELATIVE_ERROR.items()}
        bounds["float64"] = RELATIVE_ERROR["float64"]
        wide = RELATIVE_ERROR["float64" if dtype == "float64" else "float32"]
        limits = (bounds[costs_dtype or dtype], wide, bounds[dtype])
        names = ("costs", "statistics", "gradient")
        found = (costs, statistics, gradient)
        for name, out, ref, limit in zip(names, found, self.expected(), limits, strict=True):
            np.testing.assert_allclose(
                out, ref, rtol=limit, atol=limit, err_msg=f"{name} of {self} in {words}"
            )

    def __str__(self) -> str:
        return (
            f"x {self.x.shape}, labels {self.labels.dtype}{self.labels.shape}, g {self.g.shape},"
            f" every_row={self.every_row}"
        )


@pytest.mark.parametrize("dtype", of_dtypes(*DTYPES, quick="float32"))
def test_kernels_on_the_host(tmp_path, dtype):
    rng = np.random.default_rng(SEED)
    libraries = {}
    for number in range(60):
        lanes, label_dtype = list(LANES.items())[number % len(LANES)]
        costs_dtype = "float32" if lanes == 8 and dtype in HALF_DTYPES else dtype
        case = Case(rng, dtype, 60, label_dtype, costs_dtype)
        if lanes not in libraries:
            label_bits = 8 * case.labels.itemsize
            macros = {"DTYPE": DTYPE_CODES[dtype], "LANES": lanes, "LABEL_BITS": label_bits}
            macros["COST_DTYPE"] = DTYPE_CODES[costs_dtype]
            libraries[lanes] = compile_for_host(tmp_path, "cross_entropy", KERNELS, macros)
        library = libraries[lanes]
        x, g = bits(case.x, dtype), bits(case.g, costs_dtype)
        costs = np.full(case.count, 7, g.dtype)
        statistics = np.full(
            (case.count, 2), np.nan, "float64" if dtype == "float64" else "float32"
        )
        gradient = np.full(case.x.shape, 7, x.dtype)
        flag = np.zeros(1, "int32")
        common = {
            "flag": flag,
            "rows": case.rows,
            "classes": case.classes,
            "count": case.count,
            "label_step": int(case.labels.size == case.count),
            "row_step": int(not case.is_shared),
            "g_step": int(case.g.size != 1),
            "number": 3,
            "by_words": case.classes * x.itemsize % 16 == 0 and x.ctypes.data % 16 == 0,
        }
        of_rows = 256 // lanes
        backward = ("cross_entropy_grad", gradient, -(-case.rows // of_rows))
        if case.is_shared:
            backward = ("cross_entropy_grad_of_one", gradient, case.classes)
        for kernel, result, blocks in (
            ("cross_entropy", costs, -(-case.count // of_rows)),
            backward,
        ):
            launch = launch_struct(
                x=x, labels=case.labels, g=g, statistics=statistics, result=result, **common
            )
            assert getattr(library, f"run_{kernel}")(launch, blocks, 256, number) == 0
        words = f"{dtype}, {lanes} lanes: {repeat_command()}"
        found = (values(costs, costs_dtype), statistics, values(gradient, dtype))
        case.check(dtype, *found, words, costs_dtype)
        assert flag[0] == 0


def test_labels_out_of_bounds_on_the_host(tmp_path):
    macros = {"DTYPE": 0, "COST_DTYPE": 0, "LANES": 4, "LABEL_BITS": 64}
    library = compile_for_host(tmp_path, "cross_entropy", KERNELS, macros)
    x = np.zeros((4, 3), "float32")
    for wrong in (3, -4, 2**40):
        labels, flag = np.array([0, wrong, -3, 2]), np.zeros(1, "int32")
        costs, statistics = np.zeros(4, "float32"), np.zeros((4, 2), "float32")
        launch = launch_struct(
            x=x, labels=labels, g=x, statistics=statistics, result=costs, flag=flag,
            rows=4, classes=3, count=4, label_step=1, row_step=1, g_step=1, number=5, by_words=0,
        )  # fmt: skip
        library.run_cross_entropy(launch, 1, 256, 0)
        assert flag[0] == 5
        np.testing.assert_array_equal(np.isnan(costs), [False, True, False, False])


@pytest.mark.needs("nvrtc")
def test_gpu_compiler():
    for dtype, lanes in product(DTYPES, LANES):
        label_bits = 8 * np.dtype(LANES[lanes]).itemsize
        macros = {"DTYPE": DTYPE_CODES[dtype], "LANES": lanes, "LABEL_BITS": label_bits}
        macros["COST_DTYPE"] = DTYPE_CODES["float32" if lanes == 8 else dtype]
        assert "griddepcontrol.wait" in compile_for_gpu("cross_entropy", macros)


@pytest.mark.needs("cudnn")
def test_shapes():
    x = device_tensor((6, 9), "float16")
    one = device_tensor((1, 9), "float16")
    for every_row, given, labels, count in (
        (True, x, 6, 6),
        (True, x, 1, 6),
        (False, x, 4, 4),
        (True, one, 4, 4),
    ):
        found = call(
            "dnnops_cudnn_cross_entropy_shape",
            GpuCrossEntropy(every_row, every_row),
            [given, device_tensor((labels,), "int64")],
            [device_tensor(()), device_tensor(())],
        )
        assert [shape_of(t) for t in found] == [(count,), (count, 2)]
        assert [t.dtype for t in found] == [DTYPE_CODES["float16"], DTYPE_CODES["float32"]]
    (costs, _) = call(
        "dnnops_cudnn_cross_entropy_shape",
        GpuCrossEntropy(float32_costs=True),
        [x, device_tensor((6,), "int64")],
        [device_tensor(()), device_tensor(())],
    )
    assert costs.dtype == DTYPE_CODES["float32"]
    with pytest.raises(DnnIndexError, match="7 labels, but only 6 rows"):
        call(
            "dnnops_cudnn_cross_entropy_shape",
            GpuCrossEntropy(False),
            [x, device_tensor((7,), "int32")],
            [x, x],
        )


def test_bad_operands():
    x = GpuArrayType("float32", (None, None))()
    with pytest.raises(DnnTypeError, match="labels"):
        GpuCrossEntropy()(x, GpuArrayType("float32", (None,))())
    with pytest.raises(DnnTypeError, match="dimensions"):
        GpuCrossEntropy()(GpuArrayType("float32", (None,))(), pt.lvector())
    half, g = GpuArrayType("bfloat16", (3, 5))(), GpuArrayType("bfloat16", (3,))()
    op = GpuCrossEntropy(float32_costs=True)
    costs, statistics = op(half, np.arange(3))
    assert costs.type.dtype == "float32"
    with pytest.raises(DnnTypeError, match="g must be float32"):
        GpuCrossEntropyGrad(float32_costs=True)(g, half, np.arange(3), statistics)
    with pytest.raises(DnnIndexError, match="4 labels for 3 rows"):
        GpuCrossEntropy()(GpuArrayType("float32", (3, 5))(), np.arange(4))


# -- with a GPU ----------------------------------------------------------------------------


def run_on_gpu(op, *operands):
    node, inputs = make_node(op, *operands)
    storage = [[None] for _ in node.outputs]
    node.op.perform(node, inputs, storage)
    return [cell[0] for cell in storage]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_random(dtype):
    import cupy

    rng = np.random.default_rng(SEED)
    for number in range(60):
        largest = 5000 if number % 10 == 0 else 600
        is_wide = number % 4 == 0 and dtype in HALF_DTYPES
        costs_dtype = "float32" if is_wide else dtype
        case = Case(rng, dtype, largest, ("int32", "int64")[number % 2], costs_dtype)
        x, g, labels = (
            on_gpu(case.x, dtype),
            on_gpu(case.g, costs_dtype),
            cupy.asarray(case.labels),
        )
        if number % 3 == 0:
            x = cupy.asfortranarray(x)
        poison()
        props = case.every_row, case.every_row, is_wide
        costs, statistics = run_on_gpu(GpuCrossEntropy(*props), x, labels)
        (gradient,) = run_on_gpu(GpuCrossEntropyGrad(*props), g, x, labels, statistics)
        words = f"{dtype}, number {number}, strides {x.strides}: {repeat_command()}"
        case.check(dtype, host(costs), host(statistics), host(gradient), words, costs_dtype)


@pytest.mark.gpu
def test_compiled_function():
    """One module computes cost and gradient of many shapes like the CPU; then a label is wrong."""
    x, labels = pt.fmatrix(), pt.lvector()
    loss = -log_softmax(x, axis=1)[pt.arange(labels.shape[0]), labels].mean()
    outputs = [loss, pytensor.grad(loss, x)]
    on_device = GpuArrayType("float32", (None, None))()
    replaced = clone_replace(outputs, {x: pt.as_tensor_variable(on_device)})
    f = pytensor.function([on_device, labels], replaced, mode=GPU_MODE)
    names = {type(node.op).__name__ for node in f.maker.fgraph.apply_nodes}
    assert names >= {"GpuCrossEntropy", "GpuCrossEntropyGrad"}, names
    assert not any("Softmax" in name for name in names), names
    reference = pytensor.function([x, labels], outputs, mode=PERFORM_MODE)
    rng = np.random.default_rng(SEED)
    for number in range(80):
        rows, classes = int(rng.integers(1, 300)), int(rng.integers(1, 1200))
        given = rng.standard_normal((rows, classes)).astype("float32")
        chosen = rng.integers(-classes, classes, rows)
        found = f(on_gpu(given, "float32"), chosen)
        for out, ref in zip(found, reference(given, chosen), strict=True):
            out = np.asarray(out.get() if hasattr(out, "get") else out)
            np.testing.assert_allclose(
                out, ref, rtol=2e-5, atol=2e-6, err_msg=f"{number}: {rows}x{classes}"
            )
    with pytest.raises(IndexError, match="out of bounds for 3 classes"):
        f(on_gpu(np.zeros((2, 3)), "float32"), np.array([0, 3]))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("form", ["log_softmax", "softmax", "categorical"])
def test_one_row_read_at_many_labels(form, dtype):
    """The type doesn't know that there is one row; the gradient is the sum over the labels."""
    x, labels = pt.matrix(dtype=dtype), pt.lvector()
    rows = pt.arange(x.shape[0])
    costs = {
        "log_softmax": lambda: -log_softmax(x, axis=1)[rows, labels],
        "softmax": lambda: -pt.log(pt.special.softmax(x, axis=1))[rows, labels],
        "categorical": lambda: -pt.log(pt.special.softmax(x, axis=1)[rows, labels]),
    }[form]()
    weights = 1 + pt.arange(costs.shape[0]) % 7  # so that no sum of gradients overflows in float16
    loss = (pt.cast(costs, "float64") * weights).sum()
    f = pytensor.function([x, labels], [loss, pytensor.grad(loss, x)], mode="CUDNN")
    names = {type(node.op).__name__ for node in f.maker.fgraph.apply_nodes}
    assert names >= {"GpuCrossEntropy", "GpuCrossEntropyGrad"}, names
    rng = np.random.default_rng(SEED)
    for classes, count in ((3, 2), (10, 700), (4001, 5), (7, 1)):
        given = rounded(rng.standard_normal((1, classes)), dtype)
        chosen = rng.integers(-classes, classes, count)
        by_cost = 1e-3 if dtype == "float16" else 1e-5
        exponentials = np.exp(given - given.max())
        softmax = exponentials / exponentials.sum()
        by_label = 1 + np.arange(count) % 7
        wanted = (-np.log(softmax[0, chosen]) * by_label).sum()
        by_row = np.repeat(softmax, count, axis=0)
        by_row[np.arange(count), chosen] -= 1
        gradient = (by_label[:, None] * by_row).sum(axis=0)
        found = [np.asarray(z, "float64") for z in f(given.astype(dtype), chosen)]
        np.testing.assert_allclose(found[0], wanted, rtol=by_cost)
        assert np.linalg.norm(found[1][0] - gradient) <= 2 * by_cost * np.linalg.norm(gradient)

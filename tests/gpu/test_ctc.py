"""The CTC loss on a GPU: against the float64 oracle, and against PyTorch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from dnnops import dnn, nnet
from dnnops.capture.schedule import schedule
from dnnops.dtypes import DTYPE_CODES, numpy_dtype
from dnnops.errors import DnnLibraryError, DnnNotSupportedError, DnnTypeError, DnnValueError
from dnnops.gpu.ctc import GpuCTC, GpuDnnCTC
from dnnops.gpu.kernels import kernel_source
from dnnops.gpuarray.op import is_on_device
from dnnops.gpuarray.type import GpuArrayType
from dnnops.nnet.loss.ctc import CTC
from tests.emulation.host_ops import HostOp
from tests.emulation.nvrtc import compile_cuda
from tests.gpu.calls import call, device_tensor, shape_of
from tests.gpu.compiled import check_module
from tests.gpu.device import DTYPES, apply_all, host, on_gpu, poison, restrided, rounded
from tests.gpuarray.graphs import ops, rewritten
from tests.needs import require
from tests.nnet.loss.ctc_cases import Case, cases
from tests.nnet.loss.test_ctc import BAD_VALUES, FOUR, LABELS, X, run
from tests.oracle import RELATIVE_ERROR, fuzz

#: Bounds for costs, relative to the cost or 1, and for gradients, which are between -1 and 1.
BOUNDS = {**RELATIVE_ERROR, "float32": 2e-6}

#: Relative error of cuDNN's gradients per unit of the highest cost. cuDNN adds logarithms in
#: float32, whose spacing grows with the cost. With 9.19, errors were 1.1e-5 at a cost of 72, 1.4e-5
#: at 83 and 7.6e-5 at 470.
CUDNN_ERROR_BY_COST = 3e-7
#: Additional error for each step with a probability near 1, whose logarithm cancels: 5e-8 with
#: 9.19.
CUDNN_CANCELLATION = 1e-6


def cudnn_bound(costs):
    """Return the allowed relative error of cuDNN's gradients."""
    return max(RELATIVE_ERROR["float32"], CUDNN_ERROR_BY_COST * np.max(costs, initial=0))


def compare_with_cudnn(results, expected, what):
    """Compare by norms."""
    expected = expected[: len(results)]
    bounds = [RELATIVE_ERROR["float32"], cudnn_bound(expected[0])][: len(results)]
    for out, ref, bound in zip(results, expected, bounds, strict=True):
        error, norm = np.linalg.norm(out - ref), np.linalg.norm(ref)
        assert error <= bound * norm + CUDNN_CANCELLATION * np.sqrt(out.size), (
            f"{what}: error {error:.3g}, norm {norm:.3g}, bound {bound:.3g}\nout "
            f"{out.ravel()[:40]}\nexpected {ref.ravel()[:40]}"
        )


def compare(results, expected, dtype, what):
    """Compare costs and gradients with the oracle's."""
    costs, gradients = expected
    bound = BOUNDS["float32" if dtype in ("float16", "bfloat16") else dtype]
    words = f"costs {results[0]}, expected {costs}; {what}"
    np.testing.assert_allclose(results[0], costs, rtol=bound, atol=bound, err_msg=words)
    if len(results) > 1:
        # The difference of two numbers up to 1.
        bound = max(BOUNDS[dtype], 1e-14 * np.abs(costs).max(initial=0, where=np.isfinite(costs)))
        np.testing.assert_allclose(results[1], gradients, rtol=bound, atol=bound, err_msg=what)


def describe(op, arrays):
    _, labels, *lengths = arrays
    return f"{op} labels {labels.tolist()} lengths {[x.tolist() for x in lengths]}"


# -- without a GPU -------------------------------------------------------------------------


KERNELS = (
    "ctc_labels",
    "ctc_normalizers",
    "ctc_first_half",
    "ctc_second_half",
    "ctc_gradients",
    "ctc_certain",
)


@pytest.fixture(scope="module")
def on_host(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ctc")
    return HostOp(folder, "ctc", "ctc", "CtcParams", KERNELS, DTYPES)


def check_host(on_host, dtype, arrays, given=False):
    x = rounded(arrays[0], dtype)
    integers = arrays[1 : 4 if given else 3]
    expected = run(CTC(True, given), x, *integers)
    operands = (x.astype(numpy_dtype(dtype)), *integers)
    results = on_host.run(GpuCTC(True, given), *operands)
    compare(results, expected, dtype, describe("GpuCTC", arrays[:4]))
    (alone,) = on_host.run(GpuCTC(False, given), *operands)
    np.testing.assert_array_equal(alone, results[0])
    # A kernel reads labels and lengths of either dtype.
    wide = [array.astype("int64" if len(x) % 2 else "int32") for array in operands[1:]]
    found = on_host.run(GpuCTC(True, given, labels_on_device=True), operands[0], *wide)
    assert not on_host.reported()
    for got, wanted in zip(found, results, strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.needs("cudnn")
@pytest.mark.parametrize("dtype", DTYPES)
@fuzz(max_examples=40, case=cases(max_steps=14, max_classes=50, max_columns=16, scales=(1.0, 5.0)))
def test_kernels_on_the_host(on_host, dtype, case):
    check_host(on_host, dtype, case.arrays(), bool(case.seed % 2))


@pytest.mark.needs("cudnn")
@pytest.mark.parametrize(("steps", "columns"), [(560, 270), (2100, 1040)])
def test_labels_of_any_length_on_the_host(on_host, steps, columns):
    """More than 255 symbols, and rows of positions that do not fit in shared memory."""
    x, labels, lengths, _ = Case(steps, 1, 4, columns, seed=1).arrays()
    check_host(on_host, "float32", (x, labels, lengths))


SPECIAL_LABELS = np.array([[1, 2], [1, 2], [1, 2], [1, 2], [-1, -1], [1, 1]])


def special_activations():
    """NaN, infinity, a step without probabilities, an impossible label, no steps at all."""
    x = np.random.default_rng(0).standard_normal((6, 6, 4))
    x[2, 0, 1], x[1, 1, 2], x[3, 2], x[:, 3, 1], x[:, 5, 3] = np.nan, np.inf, *[-np.inf] * 3
    return x, np.array([6, 6, 6, 6, 0, 5])


@pytest.mark.needs("cudnn")
def test_special_values_on_the_host(on_host):
    x, lengths = special_activations()
    check_host(on_host, "float32", (x, SPECIAL_LABELS, lengths))


@pytest.mark.needs("cudnn")
@pytest.mark.parametrize("name", [name for name in BAD_VALUES if name != "no classes"])
def test_values_that_do_not_fit_on_the_device(on_host, name):
    """The others of the batch keep their costs; the next transfer to the host raises an error."""
    (x, *integers), message = BAD_VALUES[name]
    integers = [np.asarray(array, "int64") for array in integers]
    op = GpuCTC(with_label_lengths=len(integers) > 2, labels_on_device=True)
    costs, gradients = on_host.run(op, np.asarray(x, "float32"), *integers)
    assert on_host.reported().startswith("CTC: ")
    assert not on_host.reported()
    is_wrong = np.isnan(costs)
    assert 0 < is_wrong.sum() < len(costs) or len(costs) == 1, message
    assert not gradients[:, is_wrong].any()
    assert np.isfinite(gradients).all()


@pytest.mark.parametrize("place", ["on the device", "on the host"])
@pytest.mark.parametrize("dtype", ["int64", "uint8"])
def test_labels_are_part_of_a_captured_graph(place, dtype):
    """Nothing is transferred if they are on the device, and they are uploaded if not."""
    w, x = GpuArrayType("float32", (5, 4))(), GpuArrayType("float32", (None, None, 5))()
    integers = [
        GpuArrayType(dtype, (None,) * n)()
        if place == "on the device"
        else pt.tensor(dtype=dtype, shape=(None,) * n)
        for n in (2, 1, 1)
    ]
    hosts = [pt.as_tensor_variable(v) for v in integers]
    loss = nnet.ctc(pt.as_tensor_variable(x) @ pt.as_tensor_variable(w), *hosts).mean()
    new = (w - np.float32(0.1) * pytensor.grad(loss, w)).transfer("cuda")
    with pytensor.config.change_flags(dnn__enabled="no_check"):
        mode = pytensor.compile.get_mode("CUDNN")
        graph = rewritten([w, x, *integers], [loss.transfer("cuda"), new], mode)
    order = graph.toposort()
    found = schedule(graph, order, [None] * len(order))
    assert found.by_value == ()
    assert ops(graph).count("GpuFromHost") == (0 if place == "on the device" else 3)
    assert "HostFromGpu" not in ops(graph)
    (node,) = [n for n in order if isinstance(n.op, GpuCTC)]
    assert all(is_on_device(v) for v in node.inputs)


@pytest.mark.needs("nvrtc")
@pytest.mark.parametrize("dtype", DTYPES)
def test_kernels_compile(dtype):
    compile_cuda(kernel_source("ctc"), f"-DDTYPE={DTYPE_CODES[dtype]}")


@pytest.mark.needs("cudnn")
@pytest.mark.parametrize("cls", [GpuCTC, GpuDnnCTC])
@pytest.mark.parametrize("given", [False, True])
def test_c_module(cls, given):
    integers = [pt.imatrix(), pt.ivector(), *([pt.lvector()] if given else [])]
    x = GpuArrayType("float32", (None,) * 3)()
    check_module(cls(with_label_lengths=given).make_node(x, *integers).outputs[0])


@pytest.mark.needs("cudnn")
@pytest.mark.parametrize("op", [GpuCTC(), GpuDnnCTC(), GpuCTC(False)])
def test_shapes(op):
    inputs = [device_tensor((4, 2, 3)), LABELS, FOUR]
    costs, gradients = call("dnnops_cudnn_ctc_shape", op, inputs, [device_tensor(())] * 2)
    assert shape_of(costs) == (2,)
    assert shape_of(gradients) == ((4, 2, 3) if op.with_gradients else ())
    node = op.make_node(GpuArrayType("float32", (None, None, 3))(), LABELS, FOUR)
    assert [z.type.shape for z in node.outputs] == [(2,), (None, 2, 3)][: len(node.outputs)]


@pytest.mark.needs("cudnn")
@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(dtype):
    x = GpuArrayType(dtype, (None,) * 3)()
    costs, gradients = GpuCTC().make_node(x, LABELS, FOUR).outputs
    assert costs.type.dtype == ("float64" if dtype == "float64" else "float32")
    assert gradients.type.dtype == dtype
    if dtype != "float32":
        with pytest.raises(DnnTypeError, match=rf"GpuDnnCTC: .*float32 activations, got {dtype}"):
            GpuDnnCTC()(x, LABELS, FOUR)
        with pytest.raises(DnnTypeError, match=f"float32, got {dtype}"):
            call(
                "dnnops_cudnn_ctc_shape",
                GpuDnnCTC(),
                [device_tensor((4, 2, 3), dtype), LABELS, FOUR],
            )


@pytest.mark.needs("cudnn")
@pytest.mark.parametrize("cls", [GpuCTC, GpuDnnCTC])
@pytest.mark.parametrize("name", BAD_VALUES)
def test_values_that_do_not_fit(cls, name):
    """The error is raised before anything runs on the GPU."""
    (x, *integers), message = BAD_VALUES[name]
    op = cls(with_label_lengths=len(integers) > 2)
    inputs = [device_tensor(np.shape(x)), *map(np.asarray, integers)]
    function = "dnnops_cudnn_ctc" + "_shape" * (name == "no classes")
    with pytest.raises(DnnValueError, match=message):
        call(function, op, inputs, [device_tensor((2,)), device_tensor(np.shape(x))])


@pytest.mark.needs("cudnn")
@pytest.mark.parametrize(
    ("labels", "lengths", "message"),
    [
        (np.tile([[1], [2]], 256), [600, 600], "at most 255 symbols, got 256"),
        ([[1, 2], [-1, -1]], [600, 600], "label of batch entry 1 is empty, .*cost is wrong"),
        ([[-1], [1]], [0, 600], "label of batch entry 0 is empty"),
    ],
)
@pytest.mark.parametrize("deterministic", [True, False])
def test_labels_that_cudnn_does_not_take(labels, lengths, message, deterministic):
    """The error is raised before anything runs on the GPU; `GpuCTC` accepts these operands."""
    inputs = [device_tensor((600, 2, 3)), np.array(labels), np.array(lengths)]
    outputs = [device_tensor((2,)), device_tensor((600, 2, 3))]
    op = GpuDnnCTC(deterministic=deterministic)
    with pytest.raises(DnnNotSupportedError, match=f"GpuDnnCTC: .*{message}.*dnnops.nnet.ctc"):
        call("dnnops_cudnn_ctc", op, inputs, outputs)


def test_the_deterministic_algorithm_is_the_default():
    x = GpuArrayType("float32", (None,) * 3)()
    assert dnn.dnn_ctc(x, LABELS, FOUR).owner.op == GpuDnnCTC(True, False, True)
    assert dnn.dnn_ctc(x, LABELS, FOUR, deterministic=False).owner.op == GpuDnnCTC(
        deterministic=False
    )
    with pytest.raises(DnnTypeError, match="GpuDnnCTC: deterministic"):
        dnn.dnn_ctc(x, LABELS, FOUR, deterministic=None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((X[0], LABELS, FOUR), "activations must have 3 dimensions"),
        ((X, LABELS[0], FOUR), "labels must be an integer matrix"),
        ((X, LABELS.astype("float32"), FOUR), "labels must be an integer matrix"),
        ((X, LABELS, [1.5, 2]), "input_lengths must be an integer vector"),
    ],
)
def test_types_that_do_not_fit(arguments, message):
    x, *rest = arguments
    with pytest.raises(DnnTypeError, match=f"GpuDnnCTC: {message}"):
        dnn.dnn_ctc(x.astype("float32"), *rest)


@pytest.mark.needs("cudnn")
@pytest.mark.needs("no gpu")
def test_a_call_without_a_gpu_fails_with_the_reason():
    outputs = [device_tensor((2,)), device_tensor((4, 2, 3))]
    with pytest.raises(DnnLibraryError, match=r"GpuCTC: cuda\w+\(.*\) returned cudaError"):
        call("dnnops_cudnn_ctc", GpuCTC(), [device_tensor((4, 2, 3)), LABELS, FOUR], outputs)


# -- on a GPU ------------------------------------------------------------------------------


def check_gpu(op, dtype, arrays, given=False, seed=0):
    operands = [rounded(arrays[0], dtype), *arrays[1 : 4 if given else 3]]
    expected = run(CTC(True, given), *operands)
    poison()
    x = restrided(np.random.default_rng(seed), on_gpu(operands[0], dtype))
    results = [host(r) for r in apply_all(op, x, *operands[1:])]
    if isinstance(op, GpuDnnCTC):
        compare_with_cudnn(results, expected, describe(op, operands))
    else:
        compare(results, expected, dtype, describe(op, operands))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@fuzz(max_examples=80, case=cases(max_steps=40, max_classes=40, max_columns=16, scales=(1.0, 8.0)))
def test_random(dtype, case):
    arrays = case.arrays()
    given = bool(case.seed % 2)
    check_gpu(GpuCTC(True, given), dtype, arrays, given, case.seed)
    check_gpu(GpuCTC(False, given), dtype, arrays, given, case.seed)


def without_empty_labels(case):
    """Return a case's arrays, with a symbol in each label that would be empty."""
    x, labels, lengths, label_lengths = case.arrays()
    for n in np.flatnonzero(label_lengths == 0):
        labels[n, 0], label_lengths[n], lengths[n] = 1, 1, max(1, lengths[n])
    return x, labels, lengths, label_lengths


@pytest.mark.gpu
@pytest.mark.parametrize("deterministic", [True, False])
@fuzz(max_examples=110, case=cases(max_steps=40, max_classes=40, max_columns=16))
def test_cudnn(deterministic, case):
    case = replace(case, classes=max(2, case.classes), columns=max(1, case.columns))
    arrays = without_empty_labels(case)
    given = bool(case.seed % 2)
    op = GpuDnnCTC(True, given, deterministic)
    check_gpu(op, "float32", arrays, given, case.seed)
    check_gpu(GpuDnnCTC(False, given, deterministic), "float32", arrays, given, case.seed)


@pytest.mark.gpu
@fuzz(max_examples=40, case=cases(max_steps=40, max_classes=40, max_columns=16, scales=(8.0,)))
def test_cudnn_large_activations(case):
    """cuDNN's other algorithm has wrong gradients for these; larger costs underflow in both."""
    case = replace(case, classes=max(2, case.classes), columns=max(1, case.columns))
    check_gpu(GpuDnnCTC(), "float32", without_empty_labels(case), seed=case.seed)


@pytest.mark.gpu
@pytest.mark.parametrize("steps", [3, 200])
@pytest.mark.parametrize("deterministic", [True, False])
def test_cudnn_certain(deterministic, steps):
    """Gradients are right for labels with a float32 probability of 1, of nearly 1, and lower.

    Over many steps, rounding errors of probabilities add up: `dnnops.dnn.dnn_ctc` documents the
    resulting error of the cost.
    """
    labels = np.array([[1, 2], [1, 1], [2, 0], [1, 2], [1, 2], [1, 1]])
    margins = [25, 20, 30, *([15, 3] if steps < 10 else [17, 6]), 40]
    x = np.zeros((steps, 6, 4))
    for n, margin in enumerate(margins):
        path = [1, 0, 1] if labels[n, 0] == labels[n, 1] else [labels[n, 0]] + 2 * [labels[n, 1]]
        x[np.arange(steps), n, path[:2] + path[2:] * (steps - 2)] = margin
    label_lengths = np.array([2, 2, 1, 2, 2, 2])
    op = GpuDnnCTC(True, True, deterministic)
    check_gpu(op, "float32", (x, labels, np.full(6, steps), label_lengths), given=True)


@pytest.mark.gpu
def test_cudnn_rounds_costs_of_certain_labels():
    """`dnnops.dnn.dnn_ctc` documents this error: 7e-6 of 1.84e-4; dnnops' kernels are right."""
    x = np.zeros((200, 1, 4))
    x[np.arange(200), 0, [1, *199 * [2]]] = 15
    integers = [np.array([[1, 2]]), np.array([200])]
    (cost,), gradient = run(CTC(True), x, *integers)
    assert cost == pytest.approx(1.84e-4, rel=0.01)
    arrays = [on_gpu(x, "float32"), *integers]
    found, slope = (host(r) for r in apply_all(GpuDnnCTC(True), *arrays))
    assert abs(found[0] - cost) <= 8e-6
    assert np.abs(slope - gradient).max() <= 2e-7  # of 9e-7
    compare([host(r) for r in apply_all(GpuCTC(True), *arrays)], [[cost], gradient], "float32", "")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_special_values(dtype):
    x, lengths = special_activations()
    check_gpu(GpuCTC(), dtype, (x, SPECIAL_LABELS, lengths))


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("steps", "columns", "classes"), [(700, 300, 30), (2400, 1100, 5), (60, 20, 20_000), (5, 0, 3)]
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sizes(dtype, steps, columns, classes):
    """Rows of positions in and outside of shared memory, many classes, and over 255 symbols."""
    case = Case(steps, 3, classes, columns, seed=1)
    x, labels, lengths, _ = case.arrays()
    check_gpu(GpuCTC(), dtype, (x, labels, lengths))


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(0, 2, 3), (4, 0, 3), (0, 0, 1)])
@pytest.mark.parametrize("op", [GpuCTC(), GpuDnnCTC()], ids=["kernels", "cudnn"])
def test_empty(op, shape):
    labels = np.full((shape[1], 2), -1)
    check_gpu(op, "float32", (np.zeros(shape), labels, np.zeros(shape[1], "int64")))


@pytest.mark.gpu
@pytest.mark.parametrize("op", [GpuCTC(), GpuDnnCTC()], ids=["kernels", "cudnn"])
def test_the_same_bits(op):
    x, labels, lengths, _ = without_empty_labels(Case(150, 16, 40, 30, seed=3))
    first, second = (apply_all(op, on_gpu(x, "float32"), labels, lengths) for _ in range(2))
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a.get(), b.get())


@pytest.mark.gpu
def test_a_captured_graph_is_refused():
    import cupy

    x = on_gpu(np.zeros((4, 2, 3)), "float32")
    apply_all(GpuCTC(), x, LABELS, FOUR)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        try:
            with pytest.raises(DnnNotSupportedError, match="labels and lengths are in host memory"):
                apply_all(GpuCTC(), x, LABELS, FOUR)
        finally:
            stream.end_capture()


@pytest.mark.gpu
@pytest.mark.parametrize("place", ["on the device", "on the host"])
def test_a_captured_step(place):
    """Labels and lengths that change are read by each replay, and errors come with a result."""
    dtypes = {"labels": "int32", "steps": "int64", "symbols": "int64"}
    integers = [
        GpuArrayType(dtype, (None,) * n)() if place == "on the device"
        else pt.tensor(dtype=dtype, shape=(None,) * n)
        for dtype, n in zip(dtypes.values(), (2, 1, 1), strict=True)
    ]  # fmt: skip
    x = GpuArrayType("float32", (None,) * 3)()
    costs = nnet.ctc(pt.as_tensor_variable(x), *(pt.as_tensor_variable(v) for v in integers))
    outputs = [costs, pytensor.grad(costs.sum(), x)]
    f = pytensor.function([x, *integers], outputs, mode="CUDNN")
    to = on_gpu if place == "on the device" else lambda value, dtype: value.astype(dtype)

    def step(*arrays):
        return [np.asarray(z.get() if hasattr(z, "get") else z, "float64") for z in f(*arrays)]

    for seed in range(6):
        arrays = Case(30, 5, 12, 9, seed).arrays()
        given = [to(v, t) for v, t in zip(arrays[1:], dtypes.values(), strict=True)]
        found = step(on_gpu(arrays[0], "float32"), *given)
        expected = run(CTC(True, True), rounded(arrays[0], "float32"), *arrays[1:])
        compare(found, expected, "float32", f"seed {seed}")
    # One more capture if the arrays on the device that were read in place have moved.
    assert f.vm.captures <= 2
    assert f.vm.reason == ""
    wrong = arrays[1].copy()
    wrong[:, 0] = 12
    with pytest.raises(IndexError, match="symbol outside the alphabet"):
        step(on_gpu(arrays[0], "float32"), to(wrong, "int32"), *given[1:])
    step(on_gpu(arrays[0], "float32"), *given)


@pytest.mark.gpu
def test_compiled_functions():
    """Compare the abstract Op in a GPU mode, and ``dnn_ctc``, with PyTorch on the GPU."""
    x, labels, lengths = GpuArrayType("float32", (None,) * 3)(), pt.imatrix(), pt.ivector()
    factors = pt.fvector()
    outputs = []
    for costs in (
        nnet.ctc(pt.as_tensor_variable(x), labels, lengths),
        pt.as_tensor_variable(dnn.dnn_ctc(x, labels, lengths)),
    ):
        outputs += [costs, pytensor.grad((costs * factors).sum(), x)]
    f = pytensor.function(
        [x, labels, lengths, factors],
        outputs,
        mode=pytensor.compile.get_mode("CVM").including("gpu"),
    )
    names = {type(node.op).__name__ for node in f.maker.fgraph.apply_nodes}
    assert {"GpuCTC", "GpuDnnCTC"} <= names, names
    assert not any("OneDnn" in name for name in names), names
    require("torch")
    import torch

    rng = np.random.default_rng(0)
    for seed, (steps, batch) in enumerate([(120, 16), (50, 3), (120, 16)]):
        case = Case(steps, batch, 40, 20, seed)
        value, label, length, label_length = without_empty_labels(case)
        value = value.astype("float32")
        weights = rng.standard_normal(batch).astype("float32")
        results = [np.asarray(r.get() if hasattr(r, "get") else r)
                   for r in f(on_gpu(value, "float32"), label, length, weights)]  # fmt: skip
        leaf = torch.tensor(value, device="cuda", dtype=torch.float64, requires_grad=True)
        loss = torch.nn.functional.ctc_loss(
            leaf.log_softmax(2),
            torch.tensor(np.maximum(label, 1).astype("int64"), device="cuda"),
            torch.tensor(length.astype("int64"), device="cuda"),
            torch.tensor(label_length.astype("int64"), device="cuda"),
            reduction="none",
        )
        (loss * torch.tensor(weights, device="cuda")).sum().backward()
        costs, gradient = loss.detach().cpu().numpy(), leaf.grad.cpu().numpy()
        bounds = RELATIVE_ERROR["float32"], cudnn_bound(costs)
        for i, (kind, bound) in enumerate(zip(("abstract", "explicit"), bounds, strict=True)):
            np.testing.assert_allclose(
                results[2 * i], costs, rtol=RELATIVE_ERROR["float32"], err_msg=f"{kind} {case}"
            )
            error = np.linalg.norm(results[2 * i + 1] - gradient) / np.linalg.norm(gradient)
            assert error < bound, f"{kind} {case}: relative error {error:.3g}"

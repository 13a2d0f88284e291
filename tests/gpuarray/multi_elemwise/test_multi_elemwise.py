"""One elementwise operation on many arrays: on the host, compiled for a GPU, and on a GPU."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytensor.scalar as ps
import pytest
from pytensor.tensor.type import TensorType

from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.gpuarray import GpuArrayType
from dnnops.gpuarray.elementwise.packed import DENSE, SCALAR, STORED
from dnnops.gpuarray.elemwise import GpuElemwise
from dnnops.gpuarray.multi_elemwise import op as module
from dnnops.gpuarray.multi_elemwise.op import GpuMultiElemwise, operand_kinds
from tests.emulation.nvrtc import compile_cuda
from tests.gpuarray.graphs import to_device
from tests.gpuarray.multi_elemwise.multi_elemwise_cases import (
    CASES,
    HostArray,
    HostDevice,
    assert_results,
    values,
)
from tests.needs import missing
from tests.oracle import SEED, repeat_command

#: Ranks of the items, so many that they need two launches.
RANKS = (1, 4, 2, 0, 3, 2, 1, 4, 1)
SMALL_LIMIT = 300

NAMES = [
    pytest.param(name, marks=[pytest.mark.needs("ml_dtypes")] if "bfloat16" in case.dtypes else [])
    for name, case in CASES.items()
]


def shapes(rng, block_size):
    """Return shapes for `RANKS`: small ones, empty ones, and some of more than a block."""
    near = [int(rng.integers(1, 40)), block_size, 2 * block_size + int(rng.integers(1, 9))]
    return [
        (near[2],),
        (2, 3, int(rng.integers(1, 9)), 5),
        (3, 0),
        (),
        (7, int(rng.integers(1, 30)), 2),
        (int(rng.integers(2, 40)), 40),
        (near[0],),
        (3, 4, 5, 6),
        (near[1],),
    ]


@pytest.fixture(scope="module")
def device(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "parameter_limit", lambda device: SMALL_LIMIT)
        nodes = [
            case.node(RANKS)
            for case in CASES.values()
            if "bfloat16" not in case.dtypes or not missing("ml_dtypes")
        ]
        kernels = [module._Launcher(node.op, node).kernel for node in nodes]
    variants = [replace(k, on_device=(on,) * len(k.on_device)) for k in kernels for on in (0, 1)]
    return HostDevice(tmp_path_factory.mktemp("multi"), variants)


def in_order(x, order):
    """Return an array with the same values and its axes in another order in memory."""
    back = np.argsort(order).tolist()
    return np.ascontiguousarray(x.transpose(order)).transpose(back).view(HostArray)


def at(x, start):
    """Return an array with the same values some elements after a multiple of 16 bytes."""
    memory = np.zeros(x.size + start + 16, x.dtype)
    first = -memory.ctypes.data % 16 // x.itemsize + start
    view = memory[first : first + x.size].reshape(x.shape).view(HostArray)
    view[...] = x
    return view


@pytest.mark.parametrize("numbers_on_device", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_on_the_host(device, monkeypatch, name, numbers_on_device):
    """Items of all sizes, at any address, in any order in memory."""
    device.install(monkeypatch, SMALL_LIMIT)
    case, rng = CASES[name], np.random.default_rng([SEED, len(name)])
    node = case.node(RANKS)
    op, launcher = node.op, module._Launcher(node.op, node)
    alone = []

    def compute(single, node, *operands):
        dtypes = [z.type.numpy_dtype for z in node.outputs]
        found = [z.astype(t) for z, t in zip(case.expected(operands), dtypes, strict=True)]
        for o, i in single.inplace_pattern:
            operands[i][...] = found[o]
            found[o] = operands[i]
        alone.append(operands[single.inplace_pattern[0][1] if single.inplace_pattern else 0].shape)
        return tuple(found)

    monkeypatch.setattr(GpuElemwise, "compute", compute)
    sizes = shapes(rng, launcher.kernel.block_size)
    dense = [i for i, kind in enumerate(case.kinds) if kind == DENSE]
    given = []
    for number, shape in enumerate(sizes):
        item = {}
        for i, kind in enumerate(case.kinds):
            if kind != SCALAR:
                x = values(rng, case.dtypes[i], shape if kind == DENSE else (1,) * len(shape))
                # Every third item is unaligned, two of rank 4 and 3 are in another order.
                item[i] = at(x, int(rng.integers(1, 7)) if number % 3 == 2 else 0)
                if kind == DENSE and number in (1, 4):
                    item[i] = in_order(x, (0, 2, 3, 1) if number == 1 else (2, 0, 1))
        if number == 7:  # its arrays are in different orders
            item[dense[0]] = in_order(item[dense[0]], (0, 2, 3, 1))
        given.append(item)
    numbers = {
        i: values(rng, case.dtypes[i], ()) for i, kind in enumerate(case.kinds) if kind == SCALAR
    }
    if numbers_on_device:
        monkeypatch.setattr(module, "_is_on_host", lambda number: False)
    operands = [[item.get(i, numbers.get(i)) for i in range(len(case.kinds))] for item in given]
    before = [[np.array(x) for x in row] for row in operands]
    device.launches.clear()
    results = launcher([*(item[i] for item in given for i in op.arrays), *numbers.values()])
    width = op.scalar_op.nout
    words = f"{name}; {repeat_command()}"
    for number, row in enumerate(before):
        assert_results(case, row, results[number * width : (number + 1) * width], words)
        for o, i in case.inplace:
            assert results[number * width + o] is operands[number][i]
    one_order = len(dense) == 1
    assert alone == ([] if one_order else [sizes[7]])
    # Neither an empty item nor one in different orders is in the kernel.
    assert sum(device.launches) == len(RANKS) - 1 - len(alone)
    assert len(device.launches) >= 2


@pytest.mark.parametrize("name", NAMES)
def test_repeated_calls(device, monkeypatch, name):
    """Calls with the shapes of the last one take a shorter way, unless the order has changed."""
    device.install(monkeypatch, SMALL_LIMIT)
    case, rng = CASES[name], np.random.default_rng([SEED, len(name)])
    node = case.node(RANKS)
    op, launcher = node.op, module._Launcher(node.op, node)
    items = []
    monkeypatch.setattr(
        launcher, "_item", lambda *a, item=launcher._item: items.append(a[1]) or item(*a)
    )
    # A call with other shapes, and one with other orders, in between.
    for call, (rows, is_transposed) in enumerate([(3, 0), (3, 0), (3, 0), (5, 0), (3, 1), (5, 0)]):
        passed = [
            at(values(rng, dtype, (rows,) * rank if kind == DENSE else (1,) * rank), 0)
            for rank in RANKS
            for dtype, kind in zip(case.dtypes, case.kinds, strict=True)
            if kind != SCALAR
        ]
        if is_transposed:
            passed = [x.T for x in passed]
        passed += [values(rng, case.dtypes[i], ()) for i in op.numbers]
        before = [[np.array(x) for x in op.operands(passed, item)] for item in range(len(RANKS))]
        items.clear()
        results = launcher(passed)
        assert bool(items) is (call not in (1, 2, 5)), call
        width = op.scalar_op.nout
        for item, row in enumerate(before):
            own = op.operands(passed, item)
            got = results[item * width : (item + 1) * width]
            assert_results(case, row, got, f"{name}, call {call}; {repeat_command()}")
            assert all(got[o] is own[i] for o, i in case.inplace)


@pytest.mark.needs("nvrtc")
@pytest.mark.parametrize("name", NAMES)
def test_gpu_compiler(monkeypatch, name):
    """NVRTC compiles them without a GPU: they load 16 bytes at once and use only registers."""
    monkeypatch.setattr(module, "parameter_limit", lambda device: module.LARGE_LIMIT)
    node = CASES[name].node([1] * 1000)
    kernel = module._Launcher(node.op, node).kernel
    assert kernel.table().nbytes > module.LARGE_LIMIT // 3
    for on_device in (False, True):
        variant = replace(kernel, on_device=(on_device,) * len(kernel.on_device))
        log, code = compile_cuda(variant.source(), "-std=c++17", "-Xptxas=-v")
        assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in log, log
        assert "ld.global.v" in code
        assert "st.global.v" in code


# -- the Op --------------------------------------------------------------------------------


def test_the_node():
    """Items have their own shapes, and overwrite their own arrays."""
    float32 = ps.float32
    v, g, rate = (float32(name) for name in ("v", "g", "rate"))
    formula = ps.Composite([v, g, rate], [v - rate * g])
    op = GpuMultiElemwise(formula, (DENSE, DENSE, SCALAR), 2, [(0, 0)])
    shaped = GpuArrayType("float32", (2, None)), GpuArrayType("float32", (None, 3))
    arrays = [t() for t in shaped] + [GpuArrayType("float32", (5,))() for _ in range(2)]
    node = op.make_node(*arrays, TensorType("float32", ())())
    assert [z.type.shape for z in node.outputs] == [(2, 3), (5,)]
    assert op.destroy_map == {0: [0], 1: [2]}
    assert op.operands("abcdr", 1) == ["c", "d", "r"]
    assert str(op).startswith("GpuMultiElemwise{2 x Composite")
    again = pickle.loads(pickle.dumps(op))
    assert again == op
    assert hash(again) == hash(op)
    assert again.destroy_map == op.destroy_map
    assert op != GpuMultiElemwise(formula, (DENSE, DENSE, SCALAR), 2)
    assert not GpuMultiElemwise(formula, (DENSE, DENSE, SCALAR), 2).destroy_map


def test_kinds_of_operands():
    x, row, one = (GpuArrayType("float32", shape)() for shape in ((4, 3), (1, 3), (1, 1)))
    number = TensorType("float32", ())()
    kinds = [operand_kinds(GpuElemwise(ps.add).make_node(x, y)) for y in (x, one, number, row)]
    assert kinds == [(DENSE, DENSE), (DENSE, STORED), (DENSE, SCALAR), None]


def test_refused_operands():
    op = GpuMultiElemwise(ps.add, (DENSE, SCALAR), 2)
    x, number = GpuArrayType("float32", (None,))(), TensorType("float32", ())()
    with pytest.raises(DnnValueError, match="expected 3 operands; got 2"):
        op.make_node(x, number)
    others = (
        GpuArrayType("float64", (None,))(),  # another dtype
        GpuArrayType("float32", (None,), device=1)(),
        number,
    )
    for other in others:
        with pytest.raises(DnnTypeError, match="item 1 has operands of types"):
            op.make_node(x, other, number)
    one, scalar = GpuArrayType("float32", (1,))(), GpuArrayType("float32", ())()
    for y in (one, scalar):
        assert op.make_node(x, y, number).outputs[1].type == y.type
    with pytest.raises(DnnTypeError, match="item 1 has operands of types"):
        GpuMultiElemwise(ps.add, (DENSE, STORED), 2).make_node(x, one, x, scalar)


def test_shapes_of_results():
    node = CASES["momentum"].node([2, 1])
    shapes = [("v", i) for i in range(6)] + [()]
    assert node.op.infer_shape(None, node, shapes) == [shapes[0]] * 2 + [shapes[3]] * 2


def test_room_for_parameters():
    node = CASES["momentum"].node([1] * 1000)
    most = {}
    for limit in (module.LIMIT, module.LARGE_LIMIT):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(module, "parameter_limit", lambda device, limit=limit: limit)
            kernel = module._Launcher(node.op, node).kernel
        assert kernel.table().nbytes + 16 <= limit
        most[limit] = kernel.items
    # Nine launches, or two, of as many items as possible in the same number.
    assert most == {module.LIMIT: 112, module.LARGE_LIMIT: 500}


# -- on a GPU ------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_on_a_gpu(name):
    """As on the host, and with more items than fit into the parameters of a kernel."""
    import cupy

    case, rng = CASES[name], np.random.default_rng([SEED, len(name)])
    ranks = RANKS * 100
    node = case.node(ranks)
    op, launcher = node.op, module._Launcher(node.op, node)
    sizes = shapes(rng, launcher.kernel.block_size) * 100
    numbers = [values(rng, case.dtypes[i], ()) for i in op.numbers]
    host: list[np.ndarray] = []
    for number, shape in enumerate(sizes):
        row = [
            values(rng, case.dtypes[i], shape if i in op.dense else (1,) * len(shape))
            for i in op.arrays
        ]
        if number % 9 in (1, 7):
            orders = [
                (0, 2, 3, 1) if i == 0 or number % 9 == 1 else (0, 1, 2, 3) for i in op.arrays
            ]
            row = [in_order(x, order) for x, order in zip(row, orders, strict=True)]
        host += row
    for on_device in (False, True):
        given = [to_device(np.asarray(x)) for x in host]
        for place in range(5 * len(op.arrays), len(given), 9 * len(op.arrays)):
            # To an address that is no multiple of 16 bytes.
            memory = cupy.empty(given[place].size + 1, given[place].dtype)
            memory[1:] = given[place].ravel()
            given[place] = memory[1:].reshape(given[place].shape)
        operands = [*given, *(cupy.asarray(x) if on_device else x for x in numbers)]
        results = op.compute(node, *operands)
        width = op.scalar_op.nout
        for item in range(len(ranks)):
            got = results[item * width : (item + 1) * width]
            own = op.operands(operands, item)
            assert all(got[o] is own[i] for o, i in case.inplace)
            before = op.operands([*host, *numbers], item)
            words = f"{name}, item {item}; {repeat_command()}"
            assert_results(case, before, [z.get() for z in got], words)

"""Every Op of PyTensor moves to a GPU, or stays, without an error that is not of dnnops."""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.gradient import disconnected_grad, grad_clip, grad_scale, zero_grad
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import Op
from pytensor.graph.traversal import toposort
from pytensor.printing import Print
from pytensor.raise_op import Assert
from pytensor.scalar.basic import ScalarOp
from pytensor.tensor import blas, extra_ops, linalg, signal, special, subtensor
from pytensor.tensor.math import ProdWithoutZeros
from pytensor.tensor.shape import Shape_i
from pytensor.tensor.type import TensorType

from dnnops.dtypes import DTYPES
from dnnops.gpuarray import GpuArrayType
from dnnops.gpuarray.transfer import host_from_gpu
from dnnops.rewriting.mixed_precision.rewriter import MixedPrecision
from dnnops.rewriting.move.lifters import lifters_of
from dnnops.rewriting.move.lifting import GraphToGpu

MODULES = (pt, extra_ops, linalg, signal, special, subtensor)

# What functions may take, of one kind each.
S, V, M, T = (pt.tensor(dtype="float32", shape=shape) for shape in [(), (4,), (4, 4), (2, 4, 4)])
K, L, B = pt.lscalar("k"), pt.lvector("i"), pt.bmatrix("b")
ARGUMENTS: tuple[tuple[Any, ...], ...] = (
    (S,), (V,), (M,), (T,), (K,), (L,), (3,), ((2, 3),), ([M, M],),
    (M, M), (T, T), (V, V), (M, V), (M, L), (M, 1), (M, (2, 8)), (0, M, M), (B, M, M), (M, V, V),
)  # fmt: skip


def explicit() -> Iterator[Any]:
    """Yield results of Ops that no function with such arguments applies."""
    yield blas.Dot22()(M, M)
    yield blas.Dot22Scalar()(M, M, S)
    yield blas.Gemm(inplace=False)(M, S, M, M, S)
    yield blas.Gemv(inplace=False)(V, S, M, V, S)
    if hasattr(blas, "Ger"):  # not in newer releases of PyTensor
        yield blas.Ger(destructive=False)(M, S, V, V)
    yield blas.BatchedDot()(T, T)
    yield Shape_i(0)(M)
    yield ProdWithoutZeros()(M)
    yield Assert("positive")(M, S > 0)
    yield Print("x")(M)
    yield from (disconnected_grad(M), zero_grad(M), grad_clip(M, -1, 1), grad_scale(M, 2.0))
    yield from (pt.min(M, axis=0), pt.argmax(M, axis=1), pt.argmax(M), pt.linalg.inv(T))
    for variable in (M[0], M[:, 1:], M[L], M[L, L]):
        yield variable
        yield pt.inc_subtensor(variable, S)
        yield pt.set_subtensor(variable, S)


def kind(node: Apply) -> tuple[Any, ...]:
    """Return what lifters may depend on: the Op's classes, and the types of its operands."""
    inner = (type(getattr(node.op, name, None)) for name in ("scalar_op", "core_op"))
    return type(node.op), *inner, *(str(x.type) for x in node.inputs)


@cache
def nodes() -> list[Apply]:
    """Return nodes of as many kinds as PyTensor's functions make of the arguments."""
    found: dict[Any, Apply] = {}

    def add(results: Any) -> None:
        results = results if isinstance(results, list | tuple) else [results]
        for node in toposort([z for z in results if isinstance(z, Variable)]):
            if not isinstance(node.op, ScalarOp):
                found.setdefault(kind(node), node)

    add(list(explicit()))
    functions = {
        id(f): f
        for module in MODULES
        for name, f in vars(module).items()
        if callable(f) and not inspect.isclass(f) and not name.startswith("_")
    }
    with pytensor.config.change_flags(on_opt_error="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # many functions are deprecated
        for function in functions.values():
            for arguments in ARGUMENTS:
                with contextlib.suppress(Exception):  # these arguments are of another kind
                    add(function(*arguments))
    return list(found.values())


def resident(x: Any) -> Any:
    """Return a variable of the type of an operand that is computed on the device, if it can be.

    In 16 bits, floating-point numbers are stored so, since they are those of a product.
    """
    if isinstance(x, Constant) or not isinstance(x.type, TensorType) or x.type.dtype not in DTYPES:
        return x
    if x.type.dtype != "float32":
        return host_from_gpu(GpuArrayType(x.type.dtype, x.type.shape)())
    a, b = (host_from_gpu(GpuArrayType("float32", (None, None))()) for _ in range(2))
    product = pt.dot(a, b)
    return (
        product if x.type.shape == (None, None) else product.reshape([n or 4 for n in x.type.shape])
    )


def moved(node: Apply) -> FunctionGraph:
    """Return the graph of one node whose operands are on the device, as a GPU would run it."""
    made = node.clone_with_new_inputs([resident(x) for x in node.inputs], strict=False)
    graph = FunctionGraph(outputs=list(made.outputs), clone=False)
    for lifter in lifters_of(made, frozenset()):
        lifter.operand_indices(made)
        lifter.is_heavy(made)
        lifter.can_be_pulled(made)
        for i in range(len(made.inputs)):
            lifter.takes_on_device(made, i)
    GraphToGpu(everything=True).apply(graph)
    return graph


@pytest.fixture(autouse=True)
def without_a_device() -> Iterator[None]:
    with pytensor.config.change_flags(
        dnn__enabled="no_check", on_opt_error="raise", floatX="float32"
    ):
        yield


def test_the_kinds_of_nodes():
    """Nearly every class of Op that a user's graph may hold is among the nodes."""
    classes: set[type] = {c for node in nodes() for c in kind(node)[:3]}
    wanted = {
        *("AdvancedIncSubtensor", "AdvancedSubtensor", "Argmax", "BatchedDot", "Blockwise"),
        *("CAReduce", "CumOp", "DimShuffle", "Elemwise", "Gemm", "Gemv", "IncSubtensor"),
        *("Join", "MatrixInverse", "Nonzero", "Reshape", "Scan", "Softmax", "SortOp", "Split"),
    }
    assert wanted <= {c.__name__ for cls in classes for c in cls.__mro__}
    assert sum(issubclass(c, Op) for c in classes) > 150


def test_every_op_moves_or_stays_and_runs_in_mixed_precision():
    with pytensor.config.change_flags(dnn__mixed_precision="bfloat16"):
        for node in nodes():
            MixedPrecision().apply(moved(node))


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_argmax_of_a_product_in_16_bits(axis):
    """Its operand is stored in 16 bits, and its indices keep their dtype."""
    with pytensor.config.change_flags(dnn__mixed_precision="bfloat16"):
        graph = moved(pt.argmax(M, axis=axis).owner)
        MixedPrecision().apply(graph)
    (node,) = [n for n in graph.apply_nodes if type(n.op).__name__ == "GpuArgmax"]
    assert node.inputs[0].type.dtype == "bfloat16"
    assert graph.outputs[0].type.dtype == "int64"


def test_a_batched_inverse_takes_its_operand_from_the_device():
    """No lifter takes the matrices, so they are transferred, and the product still moves."""
    graph = moved(pt.linalg.inv(T).owner)
    names = [type(n.op).__name__ for n in graph.toposort()]
    assert names[-2:] == ["HostFromGpu", "Blockwise"]
    assert "GpuDot" in names


@pytest.mark.parametrize(
    "node", [x.owner for x in explicit() if x.owner.op.__module__ == blas.__name__], ids=str
)
def test_products_move_if_one_array_is_on_the_device(node):
    """Their scalar factors stay on the host, and move nothing."""
    for place, given in enumerate(node.inputs):
        inputs = [x.type() for x in node.inputs]
        inputs[place] = host_from_gpu(GpuArrayType("float32", given.type.shape)())
        made = node.clone_with_new_inputs(inputs, strict=False)
        graph = FunctionGraph(outputs=list(made.outputs), clone=False)
        GraphToGpu().apply(graph)
        (found,) = [n for n in graph.apply_nodes if len(n.inputs) == len(node.inputs) > 1]
        on_device = [isinstance(x.type, GpuArrayType) for x in found.inputs]
        is_array = [x.type.ndim > 0 for x in node.inputs]
        assert on_device == (is_array if given.type.ndim else [False] * len(is_array))

"""Derivatives of each graph of `dnnops.dnn`, computed on the host with the abstract Ops."""

from __future__ import annotations

from typing import Any

import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import get_mode
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.gradient import NullTypeGradError, grad, pushforward
from pytensor.graph.basic import Constant
from pytensor.graph.fg import FunctionGraph, Output
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import graph_inputs
from pytensor.link.c.basic import CLinker

import dnnops.dnn
from dnnops.gpu.base import CudnnOp
from dnnops.gpuarray import GpuArrayType
from dnnops.gpuarray.op import is_on_device
from dnnops.gpuarray.transfer import HostFromGpu, as_gpuarray_variable
from tests.dnn.dnn_functions import FUNCTIONS, DnnFunction
from tests.emulation.host_graphs import on_host
from tests.gpu.device import on_gpu
from tests.gpuarray.graphs import assert_near, rewritten
from tests.oracle import PERFORM_MODE, check_gradient, check_second_derivatives

CASES = pytest.mark.parametrize(
    "function",
    # PyTensor's loops take half a minute.
    [
        pytest.param(f, id=f.name, marks=[pytest.mark.slow] if f.name == "RNNBlock" else [])
        for f in FUNCTIONS
    ],
)
#: Writing their C code takes seconds. Other functions and variants stand for them.
LONG_CODE = (
    "RNNBlock",
    "dnn_spatialtf",
    "dnn_batch_normalization_train, running",
    "dnn_batch_normalization_test, per activation",
    "dnn_divisive_normalization, means",
)
MODE = get_mode("CVM").including("gpu", "cudnn").excluding("onednn")
#: cuDNN supports only float32 for it, whose differences have few digits.
COARSE = {"float32": {"eps": 1e-2, "bound": 5e-3}}


def test_all_functions_are_here():
    """Return each function of the package that takes arrays, and RNNBlock."""
    names = dnnops.dnn.__all__
    makers = {name for name in names if name.islower() and not name.startswith("gpu_dnn")}
    makers = makers - {"dnn_available", "dnn_present", "version"} | {"RNNBlock"}
    assert {f.name.partition(",")[0] for f in FUNCTIONS} == makers
    assert len(makers) == 19


@CASES
def test_gradient(function: DnnFunction):
    """Compare pullback and pushforward with differences, in float64 on the host."""
    check_gradient(
        function.flat,
        function.points(),
        allow_zero=True,
        lower=on_host,
        **COARSE.get(function.dtype, {}),
    )


@CASES
def test_second_derivatives(function: DnnFunction):
    if function.second:
        x = pt.tensor(dtype="float32", shape=function.shapes[0])
        first = grad(function.flat(x).sum(), x)
        with pytest.raises(NullTypeGradError, match=function.second):
            grad((first**2).sum(), x)
        return
    with pytensor.config.change_flags(mode="FAST_COMPILE"):  # of loops' inner functions
        check_second_derivatives(
            function.flat,
            function.points(),
            allow_zero=True,
            lower=on_host,
            by_pushforward=not function.lacks_pushforward,
        )


def _derivatives(function: DnnFunction) -> tuple[list[Any], list[Any]]:
    """Return device variables, and the value, gradients, a tangent and second derivatives."""
    operands = [GpuArrayType(function.dtype, shape)() for shape in function.shapes]
    outputs = function.outputs(*operands)
    cost = sum(pt.sqr(pt.as_tensor_variable(z)).sum() for z in outputs)
    first = grad(cost, operands)
    tangents = [x.type() for x in operands]
    along = pushforward(
        outputs, operands, tangents, use_op_pushforward=True, disconnected_outputs="ignore"
    )
    wanted = [*outputs, *first, *along]
    if not function.second:
        wanted += grad(sum(pt.sqr(pt.as_tensor_variable(g)).sum() for g in first), operands)
    return [*operands, *tangents], wanted


def _device_graph(function: DnnFunction) -> FunctionGraph:
    """Return the derivatives, rewritten for a GPU."""
    _, wanted = _derivatives(function)
    with pytensor.config.change_flags(dnn__enabled="no_check"):
        free = [x for x in graph_inputs(wanted) if not isinstance(x, Constant)]
        return rewritten(free, wanted, MODE)


def _write_c(node) -> str:
    # Constants on a device would need one.
    inputs = [
        x for x in dict.fromkeys(node.inputs) if is_on_device(x) or not isinstance(x, Constant)
    ]
    graph = FunctionGraph(inputs, list(node.outputs), clone=True)
    return CLinker().accept(graph).get_src_code()


@pytest.mark.gpu
@CASES
def test_numbers_on_a_gpu(function: DnnFunction):
    """Compare all results on the device with the host."""
    inputs, wanted = _derivatives(function)
    values = [*function.points(), *function.points(1)]
    options: dict[str, Any] = {"on_unused_input": "ignore"}
    if hasattr(SharedVariable, "default_update"):
        # Dropout's state would be different for a second function.
        options["no_default_updates"] = True
    found = pytensor.function(inputs, wanted, mode="CUDNN", **options)(
        *(on_gpu(value, function.dtype) for value in values)
    )
    hosts = [pt.tensor(dtype=function.dtype, shape=x.type.shape) for x in inputs]
    replaced = {x: as_gpuarray_variable(h) for x, h in zip(inputs, hosts, strict=True)}
    reference = pytensor.function(
        hosts,
        on_host(graph_replace(wanted, replaced, strict=False)),
        mode=PERFORM_MODE,
        **options,
    )(*(value.astype(function.dtype) for value in values))
    for out, wanted_value in zip(found, reference, strict=True):
        assert_near(out, wanted_value, 1e-10 if function.dtype == "float64" else 1e-4)


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(f, id=f.name, marks=[pytest.mark.slow] if f.name in LONG_CODE else [])
        for f in FUNCTIONS
    ],
)
def test_rewriting_and_code(function: DnnFunction):
    """The whole graph moves to the device, and each of its cuDNN Ops generates C code."""
    graph = _device_graph(function)
    if function.name != "RNNBlock":  # whose second derivatives are loops on the host
        left = [z for n in graph.toposort() if isinstance(n.op, HostFromGpu) for z in n.outputs]
        clients = [node for z in left for node, _ in graph.clients[z]]
        assert all(isinstance(node.op, Output) for node in clients), clients
    nodes = [node for node in graph.toposort() if isinstance(node.op, CudnnOp)]
    assert nodes
    for node in {node.op: node for node in nodes}.values():
        assert node.op.function in _write_c(node)

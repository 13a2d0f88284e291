"""Ops that compute declared graphs: in PyTensor's graphs on any device, and with cuDNN's plans."""

from __future__ import annotations

import json
from functools import cached_property
from threading import Lock
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Apply, Variable
from pytensor.link.basic import PerformLinker
from pytensor.link.c.params_type import Params

from dnnops.compat import shape_inference
from dnnops.cpu.base import CPU
from dnnops.dtypes import DTYPE_CODES, FLOAT_DTYPES, host_dtype
from dnnops.errors import DnnNotSupportedError, DnnTypeError, DnnValueError
from dnnops.gpu.base import ONLY_ALIGNED, TAKES_CHANNELS_LAST, TAKES_CONTIGUOUS, device_operand
from dnnops.gpu.derivatives import GpuAbstractOp
from dnnops.gpu.library import GPU_CUDNN, cudnn_status
from dnnops.gpuarray.device import default_device, on_device
from dnnops.gpuarray.op import infer_device, is_on_device
from dnnops.gpuarray.transfer import cast
from dnnops.gpuarray.type import GpuArrayType
from dnnops.nnet.expressions import ExpandableOp, ExpressionOp
from dnnops.runtime.implementations import BuildContext, implements

__all__ = ["DeclaredGraph", "GpuDeclaredGraph"]


def _declared(data: str) -> Any:
    from dnnops.graph.execution import ExecutableGraph
    from dnnops.graph.serialization import add_from_data

    graph = ExecutableGraph()
    add_from_data(graph, json.loads(data))
    graph.validate()
    return graph


def _array_dtype(tensor: Any) -> str:
    """Return the dtype of arrays for a tensor; empty if there is none."""
    from dnnops.graph.names import dtype_of

    return dtype_of(tensor.data_type) or ""


def _memory_format(tensor: Any) -> str | None:
    """Return the memory format of a tensor, or None if it has another one."""
    from dnnops.graph.tensors import strides_of

    orders = {"contiguous": None, "channels_last": [0, *range(2, len(tensor.dim)), 1]}
    for name, order in orders.items():
        usual = strides_of(tensor.dim, order)
        if all(
            size == 1 or given == stride
            for size, given, stride in zip(tensor.dim, tensor.stride, usual, strict=True)
        ):
            return name
    return None


class DeclaredGraph(ExpandableOp, ExpressionOp):
    """A graph of `dnnops.graph` as an Op; `pygraph.as_op` makes it.

    The operands are the graph's inputs, in their order, and the results are its outputs. Tensors of
    bfloat16 are float32 on the host. Numbers that are passed by value are scalars.

    Parameters
    ----------
    data : str
        Declaration of the graph, as JSON.
    """

    __props__ = ("data",)

    def __init__(self, data: str) -> None:
        self.data = data

    @classmethod
    def from_graph(cls, graph: Any) -> DeclaredGraph:
        """Return the Op of a graph.

        Raises
        ------
        DnnValueError
            If the graph is not valid.
        DnnNotSupportedError
            If an operation or a tensor has no equivalent in PyTensor.
        """
        from dnnops.graph.serialization import as_data

        graph.validate()
        op = cls(json.dumps(as_data(graph)))
        numbers = [t for t in graph.tensors.values() if t.value is not None]
        for tensor in (*op.operands, *op.results, *numbers):
            op._check(tensor)
        # Operations without an expression raise an error now, not when the Op is applied.
        op.expressions(*(x.type() for x in map(op._host_variable, op.operands)))
        return op

    @staticmethod
    def _check(tensor: Any) -> None:
        dtype, what = _array_dtype(tensor), "arrays"
        # cuDNN may pack eight elements of BOOLEAN into a byte.
        is_supported = dtype in DTYPE_CODES and dtype != "bool"
        if tensor.is_pass_by_value:
            what, is_supported = "numbers on the host", is_supported and dtype != "bfloat16"
        if not is_supported:
            raise DnnNotSupportedError(
                f"tensor {tensor.name!r}: {what} of PyTensor can't have the data type"
                f" {tensor.data_type.name}"
            )
        if tensor.ragged_offset is not None:
            raise DnnNotSupportedError(f"tensor {tensor.name!r} has a ragged_offset")
        if not tensor.is_pass_by_value and _memory_format(tensor) is None:
            raise DnnNotSupportedError(
                f"tensor {tensor.name!r} of dim {tensor.dim} and stride {tensor.stride} is neither"
                " contiguous nor channels-last"
            )

    @cached_property
    def graph(self) -> Any:
        """The graph, validated."""
        return _declared(self.data)

    @cached_property
    def operands(self) -> list[Any]:
        """Tensors of the operands."""
        return [t for t in self.graph.get_inputs() if t.value is None]

    @cached_property
    def results(self) -> list[Any]:
        """Tensors of the results."""
        return self.graph.get_outputs()

    def __getstate__(self) -> dict[str, Any]:
        return {"data": self.data}

    def __str__(self) -> str:
        name = type(self).__name__
        return f"{name}{{{', '.join(node.tag for node in self.graph.nodes)}}}"

    @staticmethod
    def _host_variable(tensor: Any) -> Any:
        shape = () if tensor.is_pass_by_value else tuple(tensor.dim)
        return pt.tensor(dtype=host_dtype(_array_dtype(tensor)), shape=shape)

    def _check_count(self, inputs: Any) -> None:
        if len(inputs) != len(self.operands):
            names = ", ".join(t.name for t in self.operands)
            raise DnnTypeError(
                f"graph {self.graph.name!r} takes {len(self.operands)} operands ({names}), got"
                f" {len(inputs)}"
            )

    def _check_shape(self, tensor: Any, shape: Any) -> None:
        dim = [] if tensor.is_pass_by_value else tensor.dim
        if len(shape) != len(dim) or any(
            n not in (None, k) for n, k in zip(shape, dim, strict=True)
        ):
            raise DnnValueError(
                f"graph {self.graph.name!r}: operand {tensor.name} has shape {tuple(shape)};"
                f" expected {tuple(dim)}"
            )

    def _checked(self, tensor: Any, x: Any) -> Any:
        """Return an operand after checking its shape, and that a cast loses no digits."""
        self._check_shape(tensor, x.type.shape)
        given, expected = host_dtype(x.type.dtype), self._host_variable(tensor).type.dtype
        # A number in Python is a double.
        if not tensor.is_pass_by_value and not np.can_cast(given, expected):
            raise DnnTypeError(
                f"graph {self.graph.name!r}: operand {tensor.name} has dtype {x.type.dtype};"
                f" expected {expected} (cast it first)"
            )
        return x

    def _as_operand(self, tensor: Any, x: Any) -> Any:
        dtype = self._host_variable(tensor).type.dtype
        x = self._checked(tensor, x)
        return x if x.type.dtype == dtype else pt.cast(x, dtype)

    def make_node(self, *inputs: Any) -> Apply:
        self._check_count(inputs)
        given = []
        for tensor, value in zip(self.operands, inputs, strict=True):
            given.append(self._as_operand(tensor, pt.as_tensor_variable(value)))
        return Apply(self, given, [self._host_variable(t) for t in self.results])

    @shape_inference
    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        return [tuple(pt.constant(n, dtype="int64") for n in t.dim) for t in self.results]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        reached: dict[int, set[int]] = {t.uid: {t.uid} for t in self.operands}
        for step in self.graph.nodes:
            known = set().union(*(reached.get(t.uid, set()) for t in step.inputs.values()))
            for t in step.outputs.values():
                reached[t.uid] = known
        # Integers, such as lengths, have no gradient.
        return [
            [
                node.inputs[i].type.dtype in FLOAT_DTYPES and x.uid in reached[y.uid]
                for y in self.results
            ]
            for i, x in enumerate(self.operands)
        ]

    def _expressions(self, *inputs: Any) -> list[Any]:
        values: dict[int, Any] = {}
        for tensor, value in zip(self.operands, inputs, strict=True):
            self._check_shape(tensor, value.type.shape)
            if not tensor.is_pass_by_value:
                value = pt.specify_shape(value, tensor.dim)
            values[tensor.uid] = value
        for tensor in self.graph.tensors.values():
            if tensor.value is not None:
                values[tensor.uid] = pt.constant(np.array(tensor.value, _array_dtype(tensor)))
        for node in self.graph.nodes:
            compute = _COMPUTE_DTYPES.get(node.compute_data_type.name, "float32")
            operands = {
                port: _in_dtype(values[tensor.uid], compute) for port, tensor in node.inputs.items()
            }
            for port, result in node.expressions(operands).items():
                tensor = node.outputs[port]
                dtype = self._host_variable(tensor).type.dtype
                given = result.type.shape
                if len(given) != len(tensor.dim) or any(
                    n not in (None, k) for n, k in zip(given, tensor.dim, strict=True)
                ):
                    raise DnnValueError(
                        f"{node.where}: the operands give {port} the shape {given}; expected"
                        f" {tuple(tensor.dim)}"
                    )
                values[tensor.uid] = pt.specify_shape(pt.cast(result, dtype), tensor.dim)
        return [values[t.uid] for t in self.results]

    @cached_property
    def _function(self) -> Any:
        inputs = [self._host_variable(t) for t in self.operands]
        mode = Mode(linker=PerformLinker(), optimizer="None")
        return pytensor.function(
            inputs, self._expressions(*inputs), mode=mode, on_unused_input="ignore"
        )

    def perform(self, node: Apply, inputs: list[Any], output_storage: list[list[Any]]) -> None:
        for tensor, value in zip(self.operands, inputs, strict=True):
            self._check_shape(tensor, value.shape)
        for storage, value in zip(output_storage, self._function(*inputs), strict=True):
            storage[0] = np.asarray(value)


#: Dtypes of expressions by the type in which an operation computes. Others keep their operands'.
_COMPUTE_DTYPES = {
    "DOUBLE": "float64",
    "INT32": "int32",
    "INT64": "int64",
    "BOOLEAN": None,
    "NOT_SET": None,
}


def _in_dtype(x: Any, dtype: str | None) -> Any:
    if dtype is None or x.type.dtype == "bool":
        return x
    return pt.cast(x, dtype)


def _write_out(op: Any, inputs: list[Any], context: BuildContext) -> list[Variable]:
    return op.expressions(*inputs)


implements(DeclaredGraph, on=CPU, build=_write_out)(DeclaredGraph)


def _on_device(node: Apply) -> list[int]:
    return [i for i, t in enumerate(node.op.operands) if not t.is_pass_by_value]  # type: ignore[attr-defined]


@implements(DeclaredGraph, on=GPU_CUDNN, operands=_on_device, heavy=True)
class GpuDeclaredGraph(GpuAbstractOp, DeclaredGraph):
    """`DeclaredGraph` with cuDNN's plans, called as ``GpuDeclaredGraph(data)(*operands)``.

    A plan is made when a function is compiled, for its device.
    """

    function = "dnnops_cudnn_declared_graph"
    abstract_class = DeclaredGraph

    def __init__(self, data: str) -> None:
        super().__init__(data)
        self._planned: dict[int, Any] = {}
        self._lock = Lock()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    @classmethod
    def build(cls, op: Any, inputs: list[Any], context: BuildContext) -> list[Variable] | None:
        node = cls(op.data).make_node(*inputs)
        device = node.op.node_device(node)
        if not cudnn_status(device):
            try:
                node.op.plan_for(device)
            except DnnNotSupportedError:
                return None  # the operations are computed one by one
        return [cast(x, host_dtype(x.type.dtype)) for x in node.outputs]

    def make_node(self, *inputs: Any) -> Apply:
        self._check_count(inputs)
        name = f"graph {self.graph.name!r}"
        devices = [x for x in inputs if is_on_device(x)]
        device = infer_device(*devices) if devices else default_device()
        given = []
        for tensor, value in zip(self.operands, inputs, strict=True):
            if tensor.is_pass_by_value:
                x = self._as_operand(tensor, pt.as_tensor_variable(value))
            else:
                x = device_operand(name, tensor.name, value, device)
                x = cast(self._checked(tensor, x), _array_dtype(tensor))
            given.append(x)
        results = [
            GpuArrayType(_array_dtype(t), tuple(t.dim), device=device)() for t in self.results
        ]
        return Apply(self, given, results)

    # -- plans -----------------------------------------------------------------------------

    def plan_for(self, device: int) -> Any:
        """Return the graph with a plan for a device, which is made at first use.

        Raises
        ------
        DnnNotSupportedError
            If the device supports no plan. The message has the reasons.
        """
        from dnnops.graph.names import heur_mode

        # Functions keep the addresses of the first plan, so that there must be no second one.
        with self._lock:
            if device not in self._planned:
                graph = _declared(self.data)
                with on_device(device):
                    graph.build([heur_mode.A, heur_mode.FALLBACK])
                    graph.constants()
                self._planned[device] = graph
            return self._planned[device]

    def _words(self, device: int) -> list[int]:
        described: list[int] = []
        for tensor in (*self.operands, *self.results):
            dim = [] if tensor.is_pass_by_value else tensor.dim
            dtype = DTYPE_CODES[_array_dtype(tensor)]
            described += [tensor.uid, dtype, len(dim), *dim]
        counts = [len(self.operands), len(self.results)]
        if cudnn_status(device):  # the function is compiled for another machine
            return [0, 0, *counts, 0, 0, *described]
        graph = self.plan_for(device)
        plan, numbers = graph.plan_at(), graph.constants()
        for uid, value in numbers:
            described += [uid, value.ctypes.data]
        address = int(plan.descriptor.handle)
        clears = any(node.leaves_unwritten for node in graph.nodes)
        return [address, plan.workspace, *counts, len(numbers), int(clears), *described]

    def parameters(self) -> list[int]:
        import cupy

        try:
            device = cupy.cuda.runtime.getDevice()
        except cupy.cuda.runtime.CUDARuntimeError:
            device = default_device()
        return self._words(device)

    def get_params(self, node: Apply) -> Params:
        words = np.array(self._words(self.node_device(node)), dtype=np.int64)
        return self.params_type.get_params(words=words)

    # -- memory formats --------------------------------------------------------------------

    def _layouts(self, operand: int) -> int:
        is_last = _memory_format(self.operands[operand]) == "channels_last"
        # The descriptors declare that arrays are aligned.
        return ONLY_ALIGNED | (TAKES_CHANNELS_LAST if is_last else TAKES_CONTIGUOUS)

    def output_format(self, index: int, inputs: list[Any]) -> str:
        return _memory_format(self.results[index]) or "contiguous"

    def c_output_format(self, index: int) -> str:
        return f"DNNOPS_{self.output_format(index, []).upper()}"

"""What the Ops on device arrays have in common.

Most of them do on the device what one Op of PyTensor does on the host: the same parameters, static
shapes and shape inference, and one call of CuPy. :class:`MirrorOp` holds such an Op, asks it for
all that, and leaves the call to its subclass.
"""

from __future__ import annotations

from typing import Any, ClassVar

from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.tensor.exceptions import ShapeError
from pytensor.tensor.type import TensorType

from dnnops.compat import inferred_shapes, shape_inference
from dnnops.errors import DnnTypeError
from dnnops.gpuarray.device import is_current, on_device
from dnnops.gpuarray.type import GpuArrayType

# float16 behaves in every Op's type inference as bfloat16, which TensorType lacks, has to.
_STAND_IN = {"bfloat16": "float16"}


def infer_device(*variables: Any) -> int:
    """Give the device that all device variables among `variables` are on.

    Raises
    ------
    DnnTypeError
        If none is a device variable, or if they are on several devices.
    """
    devices = {v.type.device for v in variables if is_on_device(v)}
    if len(devices) != 1:
        found = [str(getattr(v, "type", v)) for v in variables]
        raise DnnTypeError(f"operands of a GPU Op must be on one device; got {found}")
    return devices.pop()


def is_on_device(variable: Any) -> bool:
    """Tell whether `variable` is symbolic and of `GpuArrayType`."""
    return isinstance(variable, Variable) and isinstance(variable.type, GpuArrayType)


class GpuOp(Op):
    """An Op that computes with CuPy on the device of its inputs.

    A subclass gives ``compute(node, *inputs)``, which returns the output's value, or a tuple
    of the outputs' values. It is called with the device of the node current.
    """

    _f16_ok = True

    def compute(self, node: Apply, *inputs: Any) -> Any:
        """Compute the outputs; see the class."""
        raise NotImplementedError

    def node_device(self, node: Apply) -> int:
        """Give the device that runs the node."""
        return node.outputs[0].type.device

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        """Run :meth:`compute` on the right device."""
        device = self.node_device(node)
        if is_current(device):
            results = self.compute(node, *inputs)
        else:
            with on_device(device):
                results = self.compute(node, *inputs)
        if not isinstance(results, tuple):
            results = (results,)
        for storage, result in zip(output_storage, results, strict=True):
            storage[0] = result

    def do_constant_folding(self, fgraph: Any, node: Apply) -> bool:
        """Never: a graph has to compile on a machine without a GPU."""
        return False


class MirrorOp(GpuOp):
    """The GPU's version of an Op of PyTensor.

    Parameters
    ----------
    host_op : Op
        Gives parameters, output types, shape inference and view and destroy maps.
    """

    __props__: ClassVar[tuple[str, ...]] = ("host_op",)

    def __init__(self, host_op: Op):
        self.host_op = host_op
        # Only set where there is one: PyTensor looks for the attributes.
        if host_op.view_map:
            self.view_map = host_op.view_map
        if host_op.destroy_map:
            self.destroy_map = host_op.destroy_map

    def with_host_op(self, host_op: Op) -> MirrorOp:
        """The Op of another Op of the host, with what it may have besides."""
        return type(self)(host_op)

    def host_node(self, *inputs: Any) -> Apply:
        """Apply the host's Op to stand-ins of the device variables among `inputs`."""
        return self.host_op.make_node(*[_stand_in(x) if is_on_device(x) else x for x in inputs])

    def make_node(self, *inputs: Any) -> Apply:
        """Take device variables and host variables as the Op's class says; the host's Op checks."""
        device = infer_device(*inputs)
        node = self.host_node(*inputs)
        # The host's Op may have completed its parameters, as CAReduce does.
        op = self if node.op is self.host_op else self.with_host_op(node.op)
        bfloat16 = any(is_on_device(x) and x.type.dtype == "bfloat16" for x in inputs)
        if bfloat16 and any(is_on_device(x) and x.type.dtype == "float16" for x in inputs):
            raise DnnTypeError(f"{self}: float16 and bfloat16 operands; cast one of them")
        operands = [x if is_on_device(x) else y for x, y in zip(inputs, node.inputs, strict=True)]
        outputs = [
            GpuArrayType(
                "bfloat16" if bfloat16 and out.type.dtype == "float16" else out.type.dtype,
                out.type.shape,
                device,
            )()
            for out in node.outputs
        ]
        return Apply(op, operands, outputs)

    @shape_inference
    def infer_shape(self, node: Apply, shapes: Any) -> Any:
        """As the host's Op."""
        if not hasattr(self.host_op, "infer_shape"):
            raise ShapeError(f"{self.host_op} infers no shape")
        return inferred_shapes(self.host_op, self.host_node(*node.inputs), shapes)

    def __str__(self) -> str:
        return f"{type(self).__name__}{{{self.host_op}}}"


def _stand_in(variable: Any) -> Variable:
    dtype = variable.type.dtype
    return TensorType(_STAND_IN.get(dtype, dtype), shape=variable.type.shape)()

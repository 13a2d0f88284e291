"""Base classes of the Ops on device arrays.

Most of these Ops do on the device what a PyTensor Op does on the host. :class:`MirrorOp` holds that
host Op and delegates parameters, static shapes and shape inference to it; a subclass only adds the
call to CuPy.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import Op
from pytensor.tensor.exceptions import ShapeError
from pytensor.tensor.shape import Shape, Shape_i
from pytensor.tensor.type import TensorType

from dnnops.compat import inferred_shapes, shape_inference
from dnnops.errors import DnnCompileError, DnnNotSupportedError, DnnTypeError
from dnnops.gpuarray.device import is_current, on_device
from dnnops.gpuarray.type import GpuArrayType

if TYPE_CHECKING:
    from dnnops.gpuarray.prepared.call import PreparedCall

# TensorType lacks bfloat16. In the type inference of every Op, float16 behaves as bfloat16 should.
_STAND_IN = {"bfloat16": "float16"}


def infer_device(*variables: Any) -> int:
    """Return the number of the device that holds all device variables among `variables`.

    Parameters
    ----------
    *variables
        Variables, of which those on the host do not count.

    Returns
    -------
    int

    Raises
    ------
    DnnTypeError
        If there is no device variable, or if the device variables are on several devices.
    """
    devices = {v.type.device for v in variables if is_on_device(v)}
    if len(devices) != 1:
        found = [str(getattr(v, "type", v)) for v in variables]
        raise DnnTypeError(f"operands of a GPU Op must be on one device; got {found}")
    return devices.pop()


def is_on_device(variable: Any) -> bool:
    """Return whether `variable` is symbolic and of `GpuArrayType`."""
    return isinstance(variable, Variable) and isinstance(variable.type, GpuArrayType)


def host_operands(node: Apply) -> frozenset[int]:
    """Return the indices of the operands of a node that are not on a device."""
    return frozenset(i for i, x in enumerate(node.inputs) if not is_on_device(x))


def depends_on_values(variables: Iterable[Variable]) -> bool:
    """Return whether variables may change although all arrays keep their shapes.

    Parameters
    ----------
    variables : iterable of Variable

    Returns
    -------
    bool
        False if they are constants, or computed from nothing but constants and shapes.
    """
    pending, seen = list(variables), set()
    while pending:
        x = pending.pop()
        if x in seen or isinstance(x, Constant):
            continue
        seen.add(x)
        if x.owner is None or not x.owner.inputs:
            return True
        if not isinstance(x.owner.op, Shape | Shape_i):
            pending += x.owner.inputs
    return False


class DeviceOp(Op):
    """Base class of all Ops on device arrays.

    :meth:`host_expressions` says what an Op computes, in Ops for the host. Derivatives that no GPU
    Op computes are built from it, and `dnnops.layers.convert` moves nodes back to the host with it.
    """

    #: The class of the abstract Op that computes the same. Its parameters are attributes of the
    #: device Op. None if no single Op does.
    abstract_class: ClassVar[Any] = None

    def opaque_operands(self) -> tuple[int, ...]:
        """Return the indices of operands that only the library that wrote them can read."""
        return ()

    def abstract_op(self) -> Any:
        """Return the abstract Op that computes the same.

        Raises
        ------
        DnnNotSupportedError
            If there is none.
        """
        if self.abstract_class is None:
            raise DnnNotSupportedError(f"{type(self).__name__} has no counterpart on the host")
        names = self.abstract_class.__props__
        return self.abstract_class(**{name: getattr(self, name) for name in names})

    def host_expressions(self, *inputs: Any) -> list[Any]:
        """Return the results as expressions of abstract Ops and those of PyTensor.

        Ops that overwrite operands have the expressions of those that do not.

        Parameters
        ----------
        *inputs : TensorVariable
            The operands on the host. Those of dtype bfloat16 are float32 there.

        Returns
        -------
        list of TensorVariable
            They may have other floating-point dtypes than the results on the device.

        Raises
        ------
        DnnNotSupportedError
            If no Ops on the host compute the same.
        """
        return list(self.abstract_op().make_node(*inputs).outputs)


class GpuOp(DeviceOp):
    """Base class of Ops that compute with CuPy on the device of their inputs.

    A subclass implements ``compute(node, *inputs)``, which returns the value of the output, or
    a tuple of the values of several outputs. While it runs, the node's device is the current
    device. If it also implements ``prepare(node, *inputs)``, C code runs its nodes, and calls
    ``compute`` only for operands for which ``prepare`` returns None.
    """

    _f16_ok = True

    def compute(self, node: Apply, *inputs: Any) -> Any:
        """Compute the value of the output, or a tuple of the values of several outputs."""
        call = self.prepared(node, *inputs)
        if call is None:
            raise NotImplementedError
        return call.run(inputs)

    def prepare(self, node: Apply, *inputs: Any) -> PreparedCall | None:
        """Return what to do for operands like these, or None if only :meth:`compute` can do it.

        It may depend on the shapes and strides of arrays, on their addresses modulo
        `dnnops.gpuarray.prepared.call.ALIGNMENT`, on host operands, and on the device. Of the
        operands in :meth:`number_operands`, it may only depend on whether they are on the device.
        To raise `DnnNotSupportedError` is the same as to return None.
        """
        return None

    def prepared(self, node: Apply, *inputs: Any) -> PreparedCall | None:
        """Return what :meth:`prepare` does, or has returned for operands like these."""
        # Imported here because only nodes that run need it.
        from dnnops.gpuarray.prepared.cache import prepared_call

        return prepared_call(node, inputs)

    def prepares(self, node: Apply) -> bool:
        """Return whether :meth:`prepare` may return something for a node."""
        return type(self).prepare is not GpuOp.prepare

    def number_operands(self, node: Apply) -> frozenset[int]:
        """Return the indices of the host operands that kernels take as numbers.

        In a captured function, these operands are 0-d arrays on the device instead, so that they
        may change from call to call.
        """
        return frozenset()

    def make_thunk(
        self,
        node: Apply,
        storage_map: Any,
        compute_map: Any,
        no_recycling: Any,
        impl: Any = None,
    ) -> Any:
        """Return a function that runs the node, from C if possible."""
        if impl != "py" and self.prepares(node):
            # Imported here because it loads the runtime library.
            from dnnops.gpuarray.prepared.thunk import native_thunk

            thunk = native_thunk(node, storage_map, compute_map)
            if thunk is not None:
                return thunk
        return super().make_thunk(node, storage_map, compute_map, no_recycling, impl)

    def node_device(self, node: Apply) -> int:
        """Return the number of the device that runs the node."""
        return node.outputs[0].type.device

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        """Run :meth:`compute` on the node's device."""
        device = self.node_device(node)
        try:
            if is_current(device):
                results = self.compute(node, *inputs)
            else:
                with on_device(device):
                    results = self.compute(node, *inputs)
        except DnnCompileError as error:
            error.name_node(node)
            raise
        if not isinstance(results, tuple):
            results = (results,)
        for storage, result in zip(output_storage, results, strict=True):
            storage[0] = result

    def do_constant_folding(self, fgraph: Any, node: Apply) -> bool:
        """Return False, so that graphs compile on machines without a GPU."""
        return False


class MirrorOp(GpuOp):
    """GPU version of a PyTensor Op.

    Parameters
    ----------
    host_op : Op
        PyTensor Op that provides the parameters, output types, shape inference, and view and
        destroy maps.
    """

    __props__: ClassVar[tuple[str, ...]] = ("host_op",)
    #: The parameter of the host Op that makes it overwrite its first operand, if there is one.
    inplace_parameter: ClassVar[str | None] = None

    def __init__(self, host_op: Op):
        self.host_op = host_op
        # Set only non-empty maps: PyTensor checks whether the attributes exist.
        if host_op.view_map:
            self.view_map = host_op.view_map
        if host_op.destroy_map:
            self.destroy_map = host_op.destroy_map

    def with_host_op(self, host_op: Op) -> MirrorOp:
        """Return a copy of this Op with another host Op; its own parameters are kept."""
        return type(self)(host_op)

    def inplace_versions(self) -> list[MirrorOp]:
        """Return the version of this Op that overwrites an operand, if its host Op has one."""
        if self.inplace_parameter is None:
            return []
        version, host_op = copy.copy(self), copy.copy(self.host_op)
        setattr(host_op, self.inplace_parameter, True)
        version.host_op = host_op
        host_op.destroy_map = version.destroy_map = {0: [0]}
        return [version]

    def host_node(self, *inputs: Any) -> Apply:
        """Apply the host Op to `inputs`, with host stand-ins for the device variables."""
        return self.host_op.make_node(*[_stand_in(x) if is_on_device(x) else x for x in inputs])

    def make_node(self, *inputs: Any) -> Apply:
        """Build the node from device and host variables, which the host Op checks."""
        device = infer_device(*inputs)
        node = self.host_node(*inputs)
        # The host Op may have completed its parameters, as CAReduce does.
        op = self if node.op is self.host_op else self.with_host_op(node.op)
        bfloat16 = any(is_on_device(x) and x.type.dtype == "bfloat16" for x in inputs)
        if bfloat16 and any(is_on_device(x) and x.type.dtype == "float16" for x in inputs):
            raise DnnTypeError(
                f"{self}: cannot mix float16 and bfloat16 operands; cast one of them"
            )
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

    def host_expressions(self, *inputs: Any) -> list[Any]:
        """Apply the host Op, which does not overwrite its operands then."""
        host_op = self.host_op
        if host_op.destroy_map:
            host_op = copy.copy(host_op)
            setattr(host_op, self.inplace_parameter, False)
            host_op.destroy_map = {}
        return list(host_op.make_node(*inputs).outputs)

    @shape_inference
    def infer_shape(self, node: Apply, shapes: Any) -> Any:
        """Infer the shapes with the host Op."""
        if not hasattr(self.host_op, "infer_shape"):
            raise ShapeError(f"{self.host_op} doesn't implement shape inference")
        return inferred_shapes(self.host_op, self.host_node(*node.inputs), shapes)

    def __str__(self) -> str:
        return f"{type(self).__name__}{{{self.host_op}}}"


def _stand_in(variable: Any) -> Variable:
    dtype = variable.type.dtype
    return TensorType(_STAND_IN.get(dtype, dtype), shape=variable.type.shape)()

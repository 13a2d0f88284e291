"""Base class of the operations of a cuDNN graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from dnnops.errors import DnnNotSupportedError, DnnTypeError, DnnValueError
from dnnops.graph.names import CudnnEnum, as_member, data_type
from dnnops.graph.tensors import Tensor, order_of, strides_of

if TYPE_CHECKING:
    from dnnops.graph.descriptors import Descriptors
    from dnnops.graph.plan import Plan

__all__ = ["Node", "broadcast"]


def broadcast(where: str, *dims: Sequence[int]) -> list[int]:
    """Return the sizes of the result of an elementwise operation.

    Raises
    ------
    DnnValueError
        If the ranks differ, or sizes other than 1 do.
    """
    if len({len(dim) for dim in dims}) > 1:
        raise DnnValueError(f"{where}: the operands have different ranks: {list(map(list, dims))}")
    sizes = []
    for axis, along in enumerate(zip(*dims, strict=True)):
        others = set(along) - {1}
        if len(others) > 1:
            raise DnnValueError(
                f"{where}: the operands do not broadcast along axis {axis}: {list(map(list, dims))}"
            )
        sizes.append(others.pop() if others else 1)
    return sizes


class Node:
    """An operation of a graph.

    Subclasses declare `tag` and `results`, infer the shapes of their results, make cuDNN's
    descriptors, and return what they compute as expressions of PyTensor.

    Attributes
    ----------
    name : str
        Name, which is unique in the graph.
    inputs : dict of str to Tensor
        Operands by the name that they have in the node's JSON text.
    outputs : dict of str to Tensor
        Results.
    parameters : dict of str to object
        What else defines the operation.
    compute_data_type : data_type
        Type in which the operation computes.
    """

    tag: ClassVar[str]
    #: Enums of parameters.
    members: ClassVar[Mapping[str, Any]] = {}
    #: Functions that check the other parameters. Their arguments are a value and what to call it,
    #: and they return what replaces the value.
    checks: ClassVar[Mapping[str, Callable[[Any, str], Any]]] = {}
    #: Names of operands and parameters that may be None.
    optional: ClassVar[frozenset[str]] = frozenset()
    #: Names of the results; a subclass may compute them from its parameters.
    results: Sequence[str] = ()

    def __init__(
        self,
        graph: Any,
        name: str,
        inputs: Mapping[str, Tensor | None],
        compute_data_type: Any,
        **parameters: Any,
    ) -> None:
        self.name, self.compute_data_type, self.parameters = name, compute_data_type, parameters
        self.parameters = self._checked(parameters)
        self.inputs: dict[str, Tensor] = {}
        for port, tensor in inputs.items():
            if tensor is None:
                if port not in self.optional:
                    raise DnnTypeError(f"{self.where}: {port} is missing")
                continue
            if not isinstance(tensor, Tensor):
                raise DnnTypeError(
                    f"{self.where}: {port} must be a tensor of a graph, got {tensor!r}"
                )
            if tensor.graph is not graph:
                raise DnnValueError(
                    f"{self.where}: {port} ({tensor.name}) belongs to another graph"
                )
            self.inputs[port] = tensor
        self.check()
        self.outputs: dict[str, Tensor] = {}

    def _checked(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return the parameters, which graphs that were stored may have lost or changed."""
        expected = {*self.members, *self.checks}
        if unknown := [name for name in given if name not in expected]:
            raise DnnTypeError(f"{self.where}: there is no parameter {unknown[0]!r}")
        if missing := expected - self.optional - given.keys():
            raise DnnTypeError(f"{self.where}: {min(missing)} is missing")
        found: dict[str, Any] = {}
        for name, value in given.items():
            if value is None and name in self.optional:
                found[name] = None
            elif name in self.members:
                found[name] = as_member(self.where, name, value, self.members[name])
            else:
                found[name] = self.checks[name](value, f"{self.where}: {name}")
        return found

    #: Type in which the operation computes if neither it nor the graph has one.
    last_compute_type: ClassVar[Any] = data_type.NOT_SET
    #: Whether the operation computes, so that it needs a type to compute in.
    computes: ClassVar[bool] = True
    #: Whether some plans leave parts of the results unwritten, which are zero.
    leaves_unwritten: bool = False

    @property
    def intermediate_type(self) -> Any:
        """Type of virtual results for which none is given; not set for that of the graph."""
        return data_type.NOT_SET

    @property
    def default_compute_type(self) -> Any:
        """Type in which the operation computes if it has none, or None for that of the graph."""
        return None

    @property
    def where(self) -> str:
        """What error messages call the node."""
        return f"node {self.name!r} ({self.tag})"

    def check(self) -> None:
        """Check parameters that do not depend on shapes."""

    def bind(self, make_number: Callable[[str, float], Tensor]) -> None:
        """Make the tensors of numbers that the operation needs; each has a name and a value."""

    def infer(self) -> None:
        """Set the sizes and strides of results for which they are not given.

        Raises
        ------
        DnnValueError
            If the shapes of the operands do not fit.
        """
        raise NotImplementedError

    def lower(self, descriptors: Descriptors) -> None:
        """Make cuDNN's descriptors of the operation."""
        raise NotImplementedError

    def fault(self, plan: Plan) -> str:
        """Return why the results of a plan are known to be wrong; empty if they are not."""
        return ""

    def expressions(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the results as expressions of PyTensor, by name.

        Parameters
        ----------
        values : mapping of str to TensorVariable
            Operands, by name. Floating-point ones have the dtype of the computation.

        Raises
        ------
        DnnNotSupportedError
            If the operation has no expression.
        """
        raise DnnNotSupportedError(f"{self.where} has no expression in PyTensor")

    def describe(self) -> dict[str, Any]:
        """Return the node as in the JSON text of a graph."""
        known = {name: _plain(value) for name, value in self.parameters.items()}
        compute = self.compute_data_type
        return {
            "compute_data_type": None if compute is data_type.NOT_SET else compute.name,
            **known,
            "inputs": {port: tensor.name for port, tensor in self.inputs.items()},
            "name": self.name,
            "outputs": {port: tensor.name for port, tensor in self.outputs.items()},
            "tag": self.tag,
        }

    # -- help for subclasses ---------------------------------------------------------------

    def dims(self, *ports: str) -> list[list[int]]:
        """Return the sizes of operands, which must be known and have the same rank."""
        found = []
        for port in ports:
            tensor = self.inputs[port]
            if not tensor.dim:
                raise DnnValueError(f"{self.where}: dim of {tensor.name!r} ({port}) is not set")
            found.append(tensor.dim)
        if len({len(dim) for dim in found}) > 1:
            ranks = dict(zip(ports, found, strict=True))
            raise DnnValueError(f"{self.where}: the operands have different ranks: {ranks}")
        return found

    def set_result(
        self,
        port: str,
        dim: Sequence[int],
        like: Tensor | None = None,
        order: Sequence[int] | None = None,
    ) -> None:
        """Set the sizes and strides of a result where they are not given.

        The order of its axes in memory is `order`, that of the tensor `like`, or their own.

        Raises
        ------
        DnnValueError
            If other sizes were given.
        """
        tensor = self.outputs[port]
        if not tensor.dim:
            tensor.dim = list(dim)
        elif tensor.dim != list(dim):
            raise DnnValueError(
                f"{self.where}: {tensor.name!r} ({port}) has dim {tensor.dim}, but the operands"
                f" give {list(dim)}"
            )
        self.set_stride(port, like, order)

    def set_stride(
        self, port: str, like: Tensor | None = None, order: Sequence[int] | None = None
    ) -> None:
        """Set the strides of a result where they are not given; see `set_result`."""
        tensor = self.outputs[port]
        if tensor.stride:
            return
        if like is not None and like.dim == tensor.dim:
            tensor.stride = list(like.stride) if like.is_packed else []
        if not tensor.stride:
            if like is not None and len(like.stride) == len(tensor.dim):
                order = order_of(like.stride)
            tensor.stride = strides_of(tensor.dim, order)

    def require_dim(self, port: str, example: str) -> list[int]:
        """Return the sizes of a result that the operands do not determine.

        Raises
        ------
        DnnValueError
            If they are not set.
        """
        tensor = self.outputs[port]
        if not tensor.dim:
            raise DnnValueError(
                f"{self.where}: the operands do not determine the dim of {tensor.name!r};"
                f" call set_dim({example})"
            )
        return tensor.dim


def _plain(value: Any) -> Any:
    if isinstance(value, CudnnEnum):
        return value.name
    return value

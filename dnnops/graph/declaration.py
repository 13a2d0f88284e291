"""Declaration of a graph: its tensors and operations, and inference of their shapes."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

from dnnops.errors import DnnError, DnnNotSupportedError, DnnTypeError, DnnValueError
from dnnops.graph.methods.attention import AttentionMethods
from dnnops.graph.methods.convolution import ConvolutionMethods
from dnnops.graph.methods.normalization import NormalizationMethods
from dnnops.graph.methods.pointwise import PointwiseMethods
from dnnops.graph.methods.pooling import PoolingMethods
from dnnops.graph.methods.shapes import ShapeMethods
from dnnops.graph.names import as_data_type, data_type
from dnnops.graph.scalars import as_host_number
from dnnops.graph.tensors import Tensor, as_name, strides_of
from dnnops.graph.text import as_text
from dnnops.libcudnn.pointers import is_on_device

__all__ = ["Declaration"]

_NOT_SET: Any = data_type.NOT_SET


class Declaration(
    AttentionMethods,
    ConvolutionMethods,
    NormalizationMethods,
    PointwiseMethods,
    PoolingMethods,
    ShapeMethods,
):
    """Tensors and operations of a graph.

    Parameters
    ----------
    name : str
        Name, for messages and its JSON text.
    io_data_type, intermediate_data_type, compute_data_type : data_type
        Types of tensors that have arrays, of virtual tensors, and of computations for which no
        type is given. Dtypes of NumPy and PyTorch are also accepted.
    """

    def __init__(
        self,
        name: str = "graph",
        io_data_type: Any = _NOT_SET,
        intermediate_data_type: Any = _NOT_SET,
        compute_data_type: Any = _NOT_SET,
    ) -> None:
        self.name = name
        self.io_data_type = as_data_type(io_data_type)
        self.intermediate_data_type = as_data_type(intermediate_data_type)
        self.compute_data_type = as_data_type(compute_data_type)
        self.nodes: list[Any] = []
        self.tensors: dict[str, Tensor] = {}
        self._is_valid = False

    # -- declaration -----------------------------------------------------------------------

    def check_open(self, what: str) -> None:
        """Raise DnnValueError if the graph can no longer change."""
        if self._is_valid:
            raise DnnValueError(f"graph {self.name!r} is validated; it is too late to {what}")

    def tensor(
        self,
        dim: Any,
        stride: Any = (),
        data_type: Any = _NOT_SET,
        is_virtual: bool = False,
        is_pass_by_value: bool = False,
        ragged_offset: Tensor | None = None,
        reordering_type: Any = None,
        name: str = "",
        uid: int = -1,
    ) -> Tensor:
        """Add a tensor that `execute` reads or writes.

        Parameters
        ----------
        dim, stride : sequence of int
            Sizes, and strides in elements; by default, those of an array in the order of C.
        data_type : data_type
            Type of the elements; by default, that of the graph's inputs and outputs.
        is_virtual : bool
            Whether it exists inside of the graph only.
        is_pass_by_value : bool
            Whether `execute` takes a number from the host.
        ragged_offset : Tensor, optional
            Offsets of sequences that are stored one after the other.
        reordering_type : tensor_reordering, optional
            Order of the elements in memory beside the strides.
        name : str
            Name. If another tensor has it, a number is appended.
        uid : int
            Number that identifies the tensor; by default, the graph chooses one.

        Returns
        -------
        Tensor

        Raises
        ------
        DnnTypeError, DnnValueError
            If `dim` and `stride` are not a shape.
        """
        self.check_open("add a tensor")
        more = {} if reordering_type is None else {"reordering_type": reordering_type}
        made = Tensor(
            self,
            name or self._free_name("tensor", self.tensors),
            dim,
            stride,
            data_type,
            is_virtual,
            is_pass_by_value,
            ragged_offset,
            uid=uid,
            **more,
        )
        if not made.stride:
            made.stride = strides_of(made.dim)
        if len(made.stride) != len(made.dim):
            raise DnnValueError(
                f"{made.name}: dim {made.dim} and stride {made.stride} have different lengths"
            )
        return self._register(made)

    def tensor_like(self, input: Any, name: str = "") -> Tensor:
        """Add a tensor with the shape, strides and data type of a tensor or an array.

        Parameters
        ----------
        input : Tensor or array
            A tensor of a graph, or an array of any library, such as CuPy or PyTorch. An array on
            the host with one element is passed by value.
        name : str
            Name. If another tensor has it, a number is appended.

        Returns
        -------
        Tensor

        Raises
        ------
        DnnTypeError
            If it is neither.
        """
        if isinstance(input, Tensor) and input.ragged_offset is not None:
            raise DnnNotSupportedError("tensor_like: the tensor has a ragged_offset")
        if isinstance(input, Tensor):
            return self.tensor(
                input.dim,
                input.stride,
                input.data_type,
                input.is_virtual,
                input.is_pass_by_value,
                reordering_type=input.reordering_type,
                name=name,
            )
        try:
            shape, type_ = input.shape, as_data_type(input.dtype)
        except AttributeError as error:
            raise DnnTypeError(
                f"tensor_like: {type(input).__name__} is not a tensor of a graph, or an array"
            ) from error
        by_value = math.prod(shape) == 1 and not is_on_device(input)
        stride = getattr(input, "stride", None)
        if callable(stride):  # PyTorch's count elements
            strides = stride()
        else:
            strides = [n // input.dtype.itemsize for n in getattr(input, "strides", None) or ()]
        return self.tensor(shape, strides, type_, is_pass_by_value=by_value, name=name)

    def tensor_scalar(
        self, value: float, data_type: Any = data_type.FLOAT, name: str = ""
    ) -> Tensor:
        """Add a number that belongs to the graph, so that `execute` does not need it.

        Raises
        ------
        DnnTypeError, DnnValueError
            If it is not a number, or does not fit into the data type.
        """
        one = [1] * 4
        made = self.tensor(one, one, data_type, is_pass_by_value=True, name=name)
        try:
            # The number that the data type has.
            made.value = as_host_number(made, value).item()
        except DnnError:
            del self.tensors[made.name]
            raise
        return made

    def _free_name(self, name: str, taken: Collection[str]) -> str:
        number, found = 1, name
        while found in taken:
            found, number = f"{name}_{number}", number + 1
        return found

    def _register(self, tensor: Tensor) -> Tensor:
        tensor.name = self._free_name(tensor.name, self.tensors)
        self.tensors[tensor.name] = tensor
        return tensor

    def rename(self, tensor: Tensor, name: str) -> None:
        """Change the name of a tensor of this graph."""
        if as_name(name) == tensor.name:
            return
        name = self._free_name(name, self.tensors)
        self.tensors = {
            (name if key == tensor.name else key): value for key, value in self.tensors.items()
        }
        tensor.name = name

    def add_operation(
        self,
        kind: Any,
        inputs: dict[str, Any],
        name: str,
        compute_data_type: Any,
        **parameters: Any,
    ) -> list[Tensor]:
        self.check_open("add an operation")
        names = {node.name for node in self.nodes}
        name = self._free_name(as_name(name) or str(len(self.nodes)), names)
        node = kind(self, name, inputs, as_data_type(compute_data_type), **parameters)
        for port in node.results:
            made = Tensor(self, f"{name}::{port}", is_virtual=True)
            node.outputs[port] = self._register(made)
        self.nodes.append(node)
        return list(node.outputs.values())

    # -- queries ---------------------------------------------------------------------------

    def find_tensor(self, key: str | int) -> Tensor:
        """Return a tensor by its name or number.

        Raises
        ------
        DnnValueError
            If there is none.
        """
        for tensor in self.tensors.values():
            if key == (tensor.uid if isinstance(key, int) else tensor.name):
                return tensor
        raise DnnValueError(f"graph {self.name!r} has no tensor {key!r}")

    query_tensor_attributes_of_uid = find_tensor

    def get_inputs(self) -> list[Tensor]:
        """Return the tensors that operations read and none computes, in their order."""
        computed = {id(x) for node in self.nodes for x in node.outputs.values()}
        read = {id(x) for node in self.nodes for x in node.inputs.values()}
        read |= {id(t.ragged_offset) for t in self.tensors.values() if t.ragged_offset}
        return [t for t in self.tensors.values() if id(t) in read and id(t) not in computed]

    def get_outputs(self) -> list[Tensor]:
        """Return the tensors that arrays receive, in their order."""
        computed = [x for node in self.nodes for x in node.outputs.values()]
        return [t for t in computed if not t.is_virtual]

    def describe(self) -> dict[str, Any]:
        """Return the graph as a dict that can be written as JSON."""
        return {
            "context": {
                "compute_data_type": _word(self.compute_data_type),
                "intermediate_data_type": _word(self.intermediate_data_type),
                "io_data_type": _word(self.io_data_type),
                "name": self.name,
                "sm_count": -1,
            },
            "json_version": "1.0",
            "nodes": [node.describe() for node in self.nodes],
            "tensors": {name: tensor.describe() for name, tensor in self.tensors.items()},
        }

    def __str__(self) -> str:
        return as_text(self.describe())

    def __repr__(self) -> str:
        operations = ", ".join(node.tag for node in self.nodes) or "empty"
        return f"<{type(self).__name__} {self.name!r}: {operations}>"

    # -- validation ------------------------------------------------------------------------

    def validate(self) -> None:
        """Check the graph, and infer data types, shapes and strides that are not given.

        Raises
        ------
        DnnValueError, DnnTypeError
            If it has no output, or an operation does not fit its operands.
        """
        if self._is_valid:
            return
        if not self.nodes:
            raise DnnValueError(f"graph {self.name!r} has no operations")
        if not self.get_outputs():
            raise DnnValueError(
                f"graph {self.name!r} has no outputs; call set_output(True) of a result"
            )
        before = self._inferred()
        try:
            self._infer()
        except DnnError:
            for changed, attributes in before.items():
                for name, value in attributes.items():
                    setattr(changed, name, value)
            raise
        self._is_valid = True

    def _inferred(self) -> dict[Any, dict[str, Any]]:
        """Return what `validate` may change, by tensor and node."""
        names = ("dim", "stride", "data_type", "uid")
        found: dict[Any, dict[str, Any]] = {
            tensor: {name: getattr(tensor, name) for name in names}
            for tensor in self.tensors.values()
        }
        for node in self.nodes:
            kept = {"compute_data_type": node.compute_data_type}
            found[node] = {**kept, "parameters": dict(node.parameters)}
        return found

    def _infer(self) -> None:
        for tensor in self.get_inputs():
            if tensor.is_virtual:
                raise DnnValueError(f"no operation computes the virtual tensor {tensor.name!r}")
        self._check_ranks()
        self._check_order()
        for node in self.nodes:
            self._infer_types(node)
            node.infer()
        self._check_ranks(is_inferred=True)
        self._number_tensors()
        for node in self.nodes:
            node.bind(self._make_number)
        self._number_tensors()

    def _check_ranks(self, is_inferred: bool = False) -> None:
        for tensor in self.tensors.values():
            is_set = is_inferred or (tensor.dim and tensor.stride)
            if is_set and len(tensor.dim) != len(tensor.stride):
                raise DnnValueError(
                    f"tensor {tensor.name!r} has dim {tensor.dim} and stride {tensor.stride},"
                    " which have different lengths"
                )
            if any(n >= 2**63 for n in (*tensor.dim, *tensor.stride)):
                raise DnnValueError(
                    f"tensor {tensor.name!r} has dim {tensor.dim} and stride {tensor.stride},"
                    " which do not fit into 64 bits"
                )
            if tensor.is_pass_by_value and math.prod(tensor.dim) != 1:
                raise DnnValueError(
                    f"tensor {tensor.name!r} is passed by value and has dim {tensor.dim}; expected"
                    " one element"
                )

    def _check_order(self) -> None:
        """Check that no tensor is read before it is computed, as a stored graph could ask for."""
        waiting = [id(x) for node in self.nodes for x in node.outputs.values()]
        for node in self.nodes:
            early = [x.name for x in node.inputs.values() if id(x) in waiting]
            if early:
                raise DnnValueError(f"{node.where} reads {early[0]!r} before it is computed")
            waiting = waiting[len(node.outputs) :]

    def _make_number(self, name: str, value: float) -> Tensor:
        made = Tensor(self, name, [1] * 4, [1] * 4, data_type.FLOAT, is_pass_by_value=True)
        made.value = value
        return self._register(made)

    def _infer_types(self, node: Any) -> None:
        if node.compute_data_type is data_type.NOT_SET:
            node.compute_data_type = node.default_compute_type or self.compute_data_type
        if node.compute_data_type is data_type.NOT_SET:
            node.compute_data_type = node.last_compute_type
        if node.computes and node.compute_data_type is data_type.NOT_SET:
            raise DnnValueError(f"{node.where}: set compute_data_type, here or of the graph")
        for result in node.outputs.values():
            if result.is_virtual and result.data_type is data_type.NOT_SET:
                result.data_type = node.intermediate_type
        for tensor in (*node.inputs.values(), *node.outputs.values()):
            if tensor.data_type is data_type.NOT_SET:
                default = self.intermediate_data_type if tensor.is_virtual else self.io_data_type
                tensor.data_type = default
            if tensor.data_type is data_type.NOT_SET:
                which = "intermediate_data_type" if tensor.is_virtual else "io_data_type"
                raise DnnValueError(
                    f"tensor {tensor.name!r} has no data type; set it, or {which} of the graph"
                )

    def _number_tensors(self) -> None:
        taken: dict[int, Tensor] = {}
        for tensor in self.tensors.values():
            if tensor.uid >= 0:
                if tensor.uid in taken:
                    raise DnnValueError(
                        f"tensors {taken[tensor.uid].name!r} and {tensor.name!r} have the same"
                        f" uid {tensor.uid}"
                    )
                taken[tensor.uid] = tensor
        uid = 1
        for tensor in self.tensors.values():
            if tensor.uid < 0:
                while uid in taken:
                    uid += 1
                tensor.uid = uid
                taken[uid] = tensor


def _word(value: Any) -> str | None:
    return None if value is data_type.NOT_SET else value.name

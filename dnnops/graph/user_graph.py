"""The graph that users declare, plan, execute, store, and make an Op of."""

from __future__ import annotations

import json
from typing import Any

from dnnops.errors import DnnError, DnnTypeError, DnnValueError
from dnnops.graph.execution import ExecutableGraph
from dnnops.graph.op import DeclaredGraph
from dnnops.graph.serialization import add_from_data, as_data

__all__ = ["pygraph"]


class pygraph(ExecutableGraph):
    """A graph of operations that cuDNN compiles together.

    Parameters
    ----------
    name : str
        Name, for messages and its JSON text.
    io_data_type, intermediate_data_type, compute_data_type : data_type
        Types of tensors that have arrays, of virtual tensors, and of computations for which no
        type is given. Dtypes of NumPy and PyTorch are also accepted.
    handle : int, optional
        cuDNN's handle, of `create_handle`. By default, one for the current device is made when it
        is needed.
    sm_count, kernel_cache : None
        Parameters of cuDNN's frontend that are not supported.
    sm_version : int, optional
        Ignored: cuDNN knows the device.
    device_property : device_properties, optional
        Description of a device. A graph with a description is planned without a GPU, and can be
        serialized, but not executed.
    """

    def serialize(self) -> bytes:
        """Return the graph and, if it is built, its chosen plan, as JSON.

        A plan can only be used by the same version of cuDNN on the same kind of device.

        Returns
        -------
        bytes
        """
        return json.dumps({**as_data(self), "plan": self.serialize_plan()}).encode()

    def deserialize(self, *arguments: Any) -> None:
        """Read what `serialize` returned, into an empty graph.

        Parameters
        ----------
        *arguments : handle, bytes or bytes
            cuDNN's handle, which may be left out, and the data.

        Raises
        ------
        DnnTypeError, DnnValueError
            If the graph is not empty, or the data are damaged; as the graph's methods raise.
        CudnnError
            If cuDNN refuses the plan.
        """
        if len(arguments) not in (1, 2):
            raise DnnTypeError("deserialize takes a handle, which may be left out, and data")
        *handles, data = arguments
        if self.nodes or self.tensors:
            raise DnnValueError(f"graph {self.name!r} is not empty")
        if isinstance(data, str | int):
            raise DnnTypeError(f"the data must be bytes, got {type(data).__name__}")
        try:
            read = json.loads(bytes(data))
        except (TypeError, ValueError, RecursionError) as error:
            raise DnnValueError(f"the data are not a serialized graph: {error}") from error
        # Only a graph that was read as a whole replaces this one.
        fresh = type(self)(handle=self.handle, device_property=self.device)
        if handles and handles[0] is not None:
            fresh = type(self)(handle=handles[0])
        add_from_data(fresh, read)
        try:
            fresh.validate()
        except DnnError:
            raise
        except (ArithmeticError, LookupError, TypeError, AttributeError, ValueError) as error:
            raise DnnValueError(f"the data of the graph are damaged: {error!r}") from error
        if read.get("plan"):
            fresh.load_plan(read["plan"])
        for tensor in fresh.tensors.values():
            tensor.graph = self
        self.__dict__.update(vars(fresh))

    def as_op(self) -> Any:
        """Return an Op that computes the graph in graphs of PyTensor.

        The Op's operands are `get_inputs`, without numbers that belong to the graph, and its
        results `get_outputs`. On a GPU, cuDNN computes them with the first plan that it supports;
        on a CPU, the operations are computed one by one. Gradients are those of the operations.

        Returns
        -------
        DeclaredGraph

        Raises
        ------
        DnnValueError
            If the graph is not valid.
        DnnNotSupportedError
            If an operation has no equivalent in PyTensor, or a tensor is neither contiguous nor
            channels-last, or has a data type that arrays on the host can't have.
        """
        return DeclaredGraph.from_graph(self)

    def __getstate__(self) -> Any:
        raise TypeError("a graph cannot be pickled; use serialize")

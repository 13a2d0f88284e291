"""Graphs as data that can be written as JSON, and back."""

from __future__ import annotations

from enum import Enum
from typing import Any

from dnnops.errors import DnnError, DnnValueError
from dnnops.graph import names
from dnnops.graph.names import data_type
from dnnops.graph.nodes.attention import Sdpa, SdpaBackward
from dnnops.graph.nodes.convolution import ConvDgrad, ConvFprop, ConvWgrad
from dnnops.graph.nodes.joining import Concatenate, Reshape
from dnnops.graph.nodes.matmul import Matmul
from dnnops.graph.nodes.normalization import BatchNormInference, NormBackward, NormForward
from dnnops.graph.nodes.pointwise import Pointwise
from dnnops.graph.nodes.reduction import Reduction
from dnnops.graph.nodes.resampling import Resample, ResampleBackward
from dnnops.graph.scalars import as_host_number
from dnnops.graph.tensors import Tensor

__all__ = ["VERSION", "add_from_data", "as_data"]

#: Version of the format; others are refused.
VERSION = 1

_KINDS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        BatchNormInference,
        Concatenate,
        ConvDgrad,
        ConvFprop,
        ConvWgrad,
        Matmul,
        NormBackward,
        NormForward,
        Pointwise,
        Reduction,
        Resample,
        ResampleBackward,
        Reshape,
        Sdpa,
        SdpaBackward,
    )
}


#: The enums that a parameter may be a member of.
_ENUMS = {enum.__name__: enum for kind in _KINDS.values() for enum in kind.members.values()}


def _pack(value: Any) -> Any:
    return [type(value).__name__, value.name] if isinstance(value, Enum) else value


def _unpack(value: Any) -> Any:
    """Return the member of an enum that two words name; the operation checks anything else."""
    if isinstance(value, list) and len(value) == 2 and all(isinstance(x, str) for x in value):
        kind, name = value
        return getattr(_ENUMS.get(kind), "__members__", {}).get(name, value)
    return value


def as_data(graph: Any) -> dict[str, Any]:
    """Return a graph's declaration.

    Parameters
    ----------
    graph : pygraph
        Graph, validated or not.

    Returns
    -------
    dict
        What `add_from_data` reads.
    """
    own = {id(x) for node in graph.nodes for x in getattr(node, "constants", {}).values()}
    tensors = [
        {
            "name": t.name,
            "dim": t.dim,
            "stride": t.stride,
            "data_type": t.data_type.name,
            "is_virtual": t.is_virtual,
            "is_pass_by_value": t.is_pass_by_value,
            "ragged_offset": t.ragged_offset and t.ragged_offset.name,
            "reordering_type": t.reordering_type.name,
            "uid": t.uid,
            "value": t.value,
        }
        for t in graph.tensors.values()
        if id(t) not in own
    ]
    nodes = [
        {
            "kind": type(node).__name__,
            "name": node.name,
            "compute_data_type": node.compute_data_type.name,
            "inputs": {port: t.name for port, t in node.inputs.items()},
            "outputs": {port: t.name for port, t in node.outputs.items()},
            "parameters": {key: _pack(value) for key, value in node.parameters.items()},
        }
        for node in graph.nodes
    ]
    types = {
        key: getattr(graph, key).name
        for key in ("io_data_type", "intermediate_data_type", "compute_data_type")
    }
    return {"version": VERSION, "name": graph.name, **types, "tensors": tensors, "nodes": nodes}


def add_from_data(graph: Any, data: Any) -> None:
    """Declare what `as_data` returned, in an empty graph.

    Raises
    ------
    DnnValueError
        If it is not such data, or of another version.
    DnnTypeError, DnnValueError
        If the graph's methods would refuse a tensor or an operation.
    """
    if not isinstance(data, dict) or data.get("version") != VERSION:
        raise DnnValueError(f"expected a graph of dnnops, version {VERSION}")
    try:
        _add(graph, data)
    except DnnError:
        raise
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise DnnValueError(f"the data of the graph are damaged: {error!r}") from error


def _add(graph: Any, data: dict[str, Any]) -> None:
    graph.name = data["name"]
    for key in ("io_data_type", "intermediate_data_type", "compute_data_type"):
        setattr(graph, key, data_type[data[key]])
    offsets: dict[str, str | None] = {}
    for given in data["tensors"]:
        given = dict(given)
        name = given.pop("name")
        offsets[name] = given.pop("ragged_offset")
        given["data_type"] = data_type[given["data_type"]]
        given["reordering_type"] = names.tensor_reordering[given["reordering_type"]]
        value = given.pop("value")
        made = graph.tensors[name] = Tensor(graph, name, **given)
        made.value = None if value is None else as_host_number(made, value).item()
    for name, offset in offsets.items():
        if offset is not None:
            graph.tensors[name].set_ragged_offset(graph.tensors[offset])
    for given in data["nodes"]:
        inputs = {port: graph.tensors[name] for port, name in given["inputs"].items()}
        node = _KINDS[given["kind"]](
            graph,
            given["name"],
            inputs,
            data_type[given["compute_data_type"]],
            **{key: _unpack(value) for key, value in given["parameters"].items()},
        )
        node.outputs = {port: graph.tensors[name] for port, name in given["outputs"].items()}
        if list(node.outputs) != list(node.results):
            raise ValueError(f"{node.where} has the results {list(node.outputs)}")
        graph.nodes.append(node)

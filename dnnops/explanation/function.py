"""The function `explain`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pytensor.compile import Function
from pytensor.graph.basic import Variable
from pytensor.link.basic import JITLinker

from dnnops.arguments import is_int, shown
from dnnops.capture.vm import why_not_captured
from dnnops.errors import DnnNotSupportedError, DnnTypeError, DnnValueError
from dnnops.explanation.graph import describe_graph
from dnnops.explanation.result import Explanation

__all__ = ["explain"]

#: Measured calls if the arguments are given.
_CALLS = 5


def explain(
    f: Any,
    *arguments: Any,
    calls: int | None = None,
    named: Mapping[str, Any] | None = None,
    shapes: Sequence[Sequence[int]] | None = None,
) -> Explanation:
    """Explain what a compiled function runs, node by node.

    Without arguments, the graph is described. With arguments, the function also runs, and times,
    shapes and memory are measured. Shared variables, random generators and arguments keep their
    values, even if the function raises an exception.

    Parameters
    ----------
    f : pytensor.compile.Function
        Function compiled by ``pytensor.function``.
    *arguments
        Arguments of the function.
    calls : int, optional
        How often to measure the function, after one call that is not measured. Default: 5 if there
        are arguments, else 0, which only describes the graph. Pass a number to measure a function
        that takes no arguments.
    named : mapping, optional
        Arguments of the function by name.
    shapes : sequence of sequence of int, optional
        Shape of each argument, to count the memory of results without running the function.
        Default: the static shapes. Shared variables have the shapes of their values.

    Returns
    -------
    Explanation
        The nodes in the order of execution, which prints as a table.

    Raises
    ------
    DnnTypeError
        If `f` is not a compiled function.
    DnnValueError
        If `calls` is not a number from 0 on, or 0 although there are arguments, or if `shapes` are
        given in addition to arguments or do not match those of the function.
    DnnNotSupportedError
        If the function is to be measured, but its linker compiles all nodes into one piece, as
        Numba's, JAX's and PyTorch's do, or does not run them with a virtual machine of PyTensor.

    Notes
    -----
    The nodes within ``scan`` and ``OpFromGraph`` are not listed; they count for the node that
    contains them.

    On the host, the time of a node is the time that its thunk takes. On a GPU, it is the time
    between two CUDA events around it, so it includes the launch if the GPU waits for it.
    """
    if not isinstance(f, Function):
        raise DnnTypeError(
            "explain takes a function compiled by pytensor.function, but got"
            f" {shown(f)} of type {type(f).__name__}"
        )
    named = dict(named or {})
    if calls is None:
        calls = _CALLS if arguments or named else 0
    elif not is_int(calls) or calls < 0:
        raise DnnValueError(f"explain: calls must be a number from 0 on, got {shown(calls)}")
    elif calls == 0 and (arguments or named):
        raise DnnValueError("explain: calls must be at least 1 if there are arguments")
    if shapes is not None and calls:
        raise DnnValueError("explain: shapes are only for a function that is not measured")
    described = _described(f, _input_shapes(f, shapes))
    if calls == 0:
        return described
    if not _has_thunks(f):
        raise DnnNotSupportedError(
            f"explain cannot measure the nodes of this function, because {described.linker} does"
            " not run them one by one; compile with mode='DNN' or another mode with the CVM linker,"
            " or call explain without arguments"
        )
    from dnnops.explanation.measure import measured

    return measured(f, arguments, named, int(calls), described)


def _has_thunks(f: Function) -> bool:
    """Return whether a virtual machine of PyTensor runs the function."""
    vm: Any = f.vm
    return hasattr(vm, "compute_map") and hasattr(vm, "storage_map")


def _input_shapes(
    f: Function, shapes: Sequence[Sequence[int]] | None
) -> dict[Variable, Sequence[int | None]]:
    """Return the shapes of the inputs of a function's graph, as far as they are known."""
    inputs = zip(f.maker.inputs, f.maker.fgraph.inputs, f.input_storage, strict=True)
    found: dict[Variable, Sequence[int | None]] = {}
    arguments = []
    for declared, x, container in inputs:
        if not hasattr(x.type, "shape"):
            continue
        if getattr(declared, "shared", False) or declared.implicit:
            found[x] = getattr(container.storage[0], "shape", x.type.shape)
        else:
            arguments.append(x)
    if shapes is None:
        return found
    if [len(shape) for shape in shapes] != [len(x.type.shape) for x in arguments]:
        raise DnnValueError(
            f"explain: shapes must have one shape for each of the {len(arguments)} arguments that"
            f" are arrays, of ranks {[len(x.type.shape) for x in arguments]}; got {list(shapes)}"
        )
    for x, shape in zip(arguments, shapes, strict=True):
        pairs = zip(shape, x.type.shape, strict=True)
        if any(known not in (None, size) for size, known in pairs):
            raise DnnValueError(f"explain: {x} has the static shape {x.type.shape}, got {shape}")
        found[x] = tuple(shape)
    return found


def _described(f: Function, shapes: Mapping[Variable, Sequence[int | None]]) -> Explanation:
    vm: Any = f.vm
    linker = f.maker.linker
    name = type(linker).__name__
    is_jit = isinstance(linker, JITLinker)
    allow_gc = bool(getattr(vm, "allow_gc", True))
    order = list(vm.nodes) if _has_thunks(f) else None
    compiled = None
    if order is not None:
        pairs = zip(order, vm.thunks, strict=True)
        compiled = {node for node, thunk in pairs if hasattr(thunk, "cthunk")}
    jit = name.removesuffix("Linker") if is_jit else ""
    nodes = describe_graph(
        f.maker.fgraph, order, compiled=compiled, jit=jit, allow_gc=allow_gc, shapes=shapes
    )
    note = f"{jit} compiles all nodes into one piece, so they have no times" if is_jit else ""
    if reason := why_not_captured(vm, f.maker.fgraph):
        note = f"Not captured as a CUDA graph: {reason}"
    return Explanation(f.name or "", name, nodes, allow_gc=allow_gc, note=note)

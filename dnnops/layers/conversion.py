"""Select the library that runs layers or the nodes of a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Literal, TypeVar

from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.traversal import toposort
from pytensor.tensor.special import LogSoftmax, Softmax

from dnnops.arguments import one_of, shown
from dnnops.cpu.base import onednn_available
from dnnops.errors import DnnNotSupportedError, DnnTypeError, DnnUnavailableError
from dnnops.gpu.activation import GpuDnnActivation
from dnnops.gpu.library import cudnn_usable
from dnnops.gpuarray.device import default_device
from dnnops.gpuarray.op import is_on_device
from dnnops.gpuarray.transfer import HostFromGpu
from dnnops.layers.layer import Layer
from dnnops.layers.to_host import ToHost
from dnnops.nnet import Activation, WholeSoftmax
from dnnops.rewriting.cpu.ops import local_to_onednn
from dnnops.rewriting.move.context import LiftContext
from dnnops.rewriting.move.lifters import lifters_of
from dnnops.rewriting.recognize.softmax import softmax_axes
from dnnops.rewriting.registry import abstract_op, is_abstract

__all__ = ["Library", "convert"]

Library = Literal["abstract", "cudnn", "onednn"]
T = TypeVar("T", Layer, FunctionGraph, Variable, list[Any], tuple[Any, ...])


def convert(net: T, library: Library, exclude: Callable[[Any], Any] | None = None) -> T:
    """Select the library that runs a network, as ``cudnn.convert`` does.

    Without it, the mode of a compiled function decides where a layer runs, which is what most
    programs want. A converted layer runs in its library in every mode. Parameters are not copied.

    Parameters
    ----------
    net : Layer, FunctionGraph, Variable, or list or tuple of Variable
        What to convert. Layers change in place: their later calls build nodes of the library. A
        function's graph changes in place, too. For variables, new ones are returned.
    library : {'cudnn', 'onednn', 'abstract'}
        'cudnn' moves nodes to the GPU, where cuDNN, or kernels of dnnops that take its place, run
        them; 'onednn' lets oneDNN run them on the CPU; 'abstract' leaves the choice to the mode
        again, and moves nodes that are on a GPU back to the host.
    exclude : callable, optional
        Function that is called with each layer, or with each node of a graph, before it is
        converted. If it returns a true value, the layer or node is left as it is, and gets
        transfers if its neighbors move.

    Returns
    -------
    Layer, FunctionGraph, Variable, list or tuple
        `net`, or the new variables.

    Raises
    ------
    DnnTypeError
        If `net` has another type, or `exclude` is not callable.
    DnnValueError
        If `library` is unknown.
    DnnUnavailableError
        If the library cannot be used: when a graph is converted, or a converted layer called.
    DnnNotSupportedError
        If a node on a GPU has no counterpart on the host; see the notes.

    Notes
    -----
    Layers that the libraries have no function for, such as `View`, stay as they are, and so do
    nodes that a library does not support, such as the sum of a convolution and its bias. In the
    modes ``DNN`` and ``CUDNN``, such nodes follow their operands to the GPU.

    The gradient of a node in oneDNN consists of abstract nodes. To select a library for gradients,
    convert the variables of the gradients, or the graph of a function.

    'abstract' also accepts graphs that a mode has rewritten for a GPU. Fused nodes become the
    expressions that they were made of, and nodes that overwrite an operand become those that do
    not. Inputs and shared variables on a GPU stay there and are transferred. So are the outputs of
    a function's graph, which keep their types, while variables on a GPU become variables on the
    host.

    The host has no bfloat16: where an array was bfloat16, its counterpart is float32. It is not
    rounded, so that results are more accurate than on the GPU.

    Two Ops of cuDNN cannot always be moved to the host. Attention with dropout has no counterpart
    there, because nothing else draws cuDNN's random numbers. The gradient of a recurrent network
    reads what its forward pass has written in cuDNN's format, so both must be converted, or both
    excluded.

    Examples
    --------
    >>> net = Sequential(SpatialConvolution(3, 96, 11, 11, 3, 3), ReLU())
    >>> print(convert(net, "cudnn", lambda layer: "ReLU" in type(layer).__name__))
    nn.Sequential {
      [input -> (0) -> (1) -> output]
      (0): cudnn.SpatialConvolution(3 -> 96, 11x11, 3,3)
      (1): nn.ReLU
    }
    """
    where = "convert"
    one_of(where, "library", library, ("abstract", "cudnn", "onednn"))
    if exclude is not None and not callable(exclude):
        raise DnnTypeError(f"{where}: exclude must be callable, got {shown(exclude)}")
    leave = exclude or (lambda part: False)
    if isinstance(net, Layer):
        for _, layer in net.modules():
            if layer.convertible and not leave(layer):
                layer.set_library(library, partial(_converted, library))
        return net
    if isinstance(net, FunctionGraph):
        new = _converted(library, net.outputs, net.inputs, leave, keep_types=True)
        pairs = [(a, b) for a, b in zip(net.outputs, new, strict=True) if a is not b]
        net.replace_all_validate(pairs, reason="convert")
        return net
    if isinstance(net, Variable):
        return _converted(library, [net], (), leave)[0]
    if isinstance(net, (list, tuple)) and all(isinstance(x, Variable) for x in net):
        return type(net)(_converted(library, net, (), leave))
    raise DnnTypeError(f"{where}: net must be a layer, a graph or variables, got {shown(net)}")


def _converted(
    library: Library,
    outputs: Sequence[Any],
    inputs: Iterable[Any],
    leave: Callable[[Apply], Any] = lambda node: False,
    keep_types: bool = False,
) -> list[Any]:
    """Return outputs whose nodes after `inputs` a library runs."""
    if library == "abstract":
        return _abstract(outputs, inputs, leave, keep_types)
    convert_node = _Cudnn() if library == "cudnn" else _to_onednn
    new: dict[Variable, Any] = {}
    for node in toposort(outputs, blockers=list(inputs)):
        operands = [new.get(x, x) for x in node.inputs]
        if any(a is not b for a, b in zip(operands, node.inputs, strict=True)):
            moved = node.clone_with_new_inputs(operands, strict=False)
        else:
            moved = node
        results = None if leave(node) else convert_node(_whole_softmax(moved))
        for old, z in zip(node.outputs, moved.outputs if results is None else results, strict=True):
            if z is not old:
                z.name = z.name or old.name
                new[old] = z
    return [new.get(z, z) for z in outputs]


def _whole_softmax(node: Apply) -> Apply:
    """Return the node of `WholeSoftmax` for PyTensor's own softmax, and other nodes as they are."""
    op: Any = node.op
    if type(op) not in (Softmax, LogSoftmax):
        return node
    axes = softmax_axes(op.axis, node.inputs[0].type.ndim)
    if axes is None:
        return node
    return WholeSoftmax(axes, isinstance(op, LogSoftmax)).make_node(*node.inputs)


def _to_onednn(node: Apply) -> Sequence[Any] | None:
    if not is_abstract(node.op, "cpu"):
        return None
    available, reason = onednn_available()
    if not available:
        raise DnnUnavailableError(f"convert: oneDNN cannot be used: {reason}")
    outputs: Any = local_to_onednn.transform(None, node)
    return outputs or None


class _Cudnn:
    """Replaces abstract Ops by Ops on the GPU, which can be differentiated."""

    def __init__(self) -> None:
        self._context: LiftContext | None = None

    def context(self) -> LiftContext:
        if self._context is None:
            device = default_device()
            usable, reason = cudnn_usable(device)
            if not usable:
                raise DnnUnavailableError(f"convert: cuDNN cannot be used: {reason}")
            self._context = LiftContext(device)
        return self._context

    def __call__(self, node: Apply) -> Sequence[Any] | None:
        # Modes move activations into elementwise kernels, which only rewrites make.
        is_activation = type(node.op) is Activation
        if not is_activation and not is_abstract(node.op, "gpu"):
            return None
        context, origins = self.context(), [_origin(x) for x in node.inputs]
        if is_activation:
            op = GpuDnnActivation(node.op.mode, node.op.coef)
            return [context.to_host(op(context.to_device(origins[0])))]
        for lifter in lifters_of(node, frozenset()):
            indices = lifter.operand_indices(node)
            operands = [
                context.to_device(x) if i in indices else context.to_host(x)
                for i, x in enumerate(origins)
            ]
            try:
                outputs = lifter.lift(node, operands, context)
            except DnnNotSupportedError:
                continue
            if outputs is not None:
                return [context.to_host(z) for z in outputs]
        return None


def _origin(x: Any) -> Any:
    """Return the variable on the GPU that `x` is a copy of, or `x`."""
    if x.owner is None or not isinstance(x.owner.op, HostFromGpu):
        return x
    (origin,) = x.owner.inputs
    return origin if origin.type.dtype == x.type.dtype else x


def _abstract(
    outputs: Sequence[Any],
    inputs: Iterable[Any],
    leave: Callable[[Apply], Any],
    keep_types: bool,
) -> list[Any]:
    """Return outputs whose nodes after `inputs` are abstract.

    With `keep_types`, outputs that were on a GPU are transferred back to it.
    """
    nodes = list(toposort(outputs, blockers=list(inputs)))
    former = set(nodes)
    graph = ToHost(any(is_on_device(x) for node in nodes for x in (*node.inputs, *node.outputs)))
    for node in nodes:
        is_left = leave(node)
        results = None if is_left else graph.moved(node)
        if results is None:
            stays = graph.left(node)
            op = None if is_left else abstract_op(stays.op)
            results = stays.outputs if op is None else op.make_node(*stays.inputs).outputs
        for old, z in zip(node.outputs, results, strict=True):
            if z is not old:
                if z.owner is not None and z.owner not in former:
                    z.name = z.name or old.name
                graph.new[old] = z
    return [graph.in_place_of(z) if keep_types else graph.current(z) for z in outputs]

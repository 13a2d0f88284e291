"""Recognize a written-out batch normalization and its gradient.

Both must be replaced together: the gradient reuses intermediate results of the normalization, so
replacing only one of them would keep those results for the other. A gradient is not recognized by
its form. Instead, the gradient of the recognized expression is built again from fresh variables and
searched for in the graph, where the same operations have produced it. This works only before any
other rewrite, including merging.

For a GPU, only normalizations that will run there are replaced, and only if they use the statistics
of the batch. With given statistics the expression is elementwise and is fused with its neighbors.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytensor.gradient
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import graph_replace
from pytensor.graph.rewriting.basic import GraphRewriter, copy_stack_trace
from pytensor.graph.traversal import ancestors, toposort
from pytensor.scalar.basic import Pow, Sqrt
from pytensor.tensor.basic import cast, constant, zeros_like
from pytensor.tensor.math import Sum, add, maximum, variadic_mul

from dnnops.cpu.base import onednn_available
from dnnops.dtypes import HOST_FLOAT_DTYPES
from dnnops.errors import DnnError
from dnnops.gpu.library import cudnn_usable
from dnnops.nnet.expressions import is_connected
from dnnops.nnet.norm.batchnorm import BatchNormInference, BatchNormTrain
from dnnops.rewriting.move.forecast import Forecast
from dnnops.rewriting.move.lifting import graph_device
from dnnops.rewriting.recognize.batchnorm_form import Normalization, read_normalization
from dnnops.rewriting.recognize.value_numbers import ValueNumbers
from dnnops.rewriting.recognize.views import kind_of

__all__ = ["RecognizeBatchNorm", "RecognizeGpuBatchNorm"]


class RecognizeBatchNorm(GraphRewriter):
    """Replace written-out batch normalizations with the abstract Ops, to run on oneDNN."""

    dtypes: tuple[str, ...] = ("float32",)

    def apply(self, fgraph: FunctionGraph) -> None:
        """Rewrite `fgraph`."""
        # Every normalization takes the root of the variance plus a constant.
        if not any(kind_of(node.outputs[0]) in (Sqrt, Pow) for node in fgraph.apply_nodes):
            return
        if not self._is_available(fgraph):
            return
        order = fgraph.toposort()
        takes = self._selection(fgraph, order)
        numbers = _Numbers(fgraph)
        summed = {node.inputs[0] for node in fgraph.apply_nodes if isinstance(node.op, Sum)}
        # Start from the outputs, so that the longest expression is found first.
        for node in reversed(order):
            if node not in fgraph.apply_nodes:
                continue
            form = read_normalization(node.outputs[0], summed, self.dtypes)
            if form is None or not takes(form):
                continue
            try:
                replacements = _replacements(fgraph, form, numbers)
            except DnnError:  # static sizes do not match; the graph itself raises when run
                continue
            if replacements:
                fgraph.replace_all_validate(replacements, reason="recognize_batchnorm")

    def _is_available(self, fgraph: FunctionGraph) -> bool:
        return onednn_available()[0]

    def _selection(
        self, fgraph: FunctionGraph, order: list[Apply]
    ) -> Callable[[Normalization], bool]:
        """Return a function that decides whether to replace a normalization."""
        return lambda form: True


class RecognizeGpuBatchNorm(RecognizeBatchNorm):
    """Replace the written-out batch normalizations that will run on a GPU.

    Parameters
    ----------
    excluded_tags : collection of str
        Tags whose lifters are disabled.
    everything : bool
        Whether every node with a lifter moves to the GPU.
    """

    dtypes = HOST_FLOAT_DTYPES

    def __init__(self, excluded_tags: Collection[str] = (), everything: bool = False):
        super().__init__()
        self.excluded_tags = frozenset(excluded_tags)
        self.everything = everything

    def _is_available(self, fgraph: FunctionGraph) -> bool:
        return cudnn_usable(graph_device(fgraph))[0]

    def _selection(
        self, fgraph: FunctionGraph, order: list[Apply]
    ) -> Callable[[Normalization], bool]:
        if self.everything:
            return lambda form: form.trains
        on_device = Forecast(fgraph, order, self.excluded_tags).on_device
        # Leave normalizations on the host to elementwise loops. Without an operand on the device,
        # the Op would stay on the host too.
        return lambda form: form.trains and not on_device.isdisjoint(form.leaves())


class _Numbers:
    """Value numbers of a graph that is being rewritten."""

    def __init__(self, fgraph: FunctionGraph):
        self._fgraph = fgraph
        self._numbers: ValueNumbers | None = None

    def current(self) -> ValueNumbers:
        """Return numbers of the graph as it is now."""
        self._numbers = ValueNumbers(self._fgraph, self._numbers)
        return self._numbers


@dataclass
class _Found:
    """A variable of the graph to replace."""

    variable: Any
    #: Leaf with respect to which the variable is a gradient.
    leaf: Any = None
    #: Gradient with respect to the normalization's output that the variable is computed from.
    gradient: Any = None
    #: Other terms of the sum that the variable computes.
    rest: Sequence[Any] = ()


class _Template:
    """A copy of a normalization, with fresh variables for its leaves, and its gradients."""

    def __init__(self, form: Normalization):
        self.form = form
        self.leaves = form.leaves()
        self.own = {leaf: leaf.type() for leaf in self.leaves}
        self.gradient = form.out.type()
        (self.out,) = graph_replace([form.out], self.own, strict=False)

    def gradients(self, out: Any) -> dict[Variable, Any]:
        """Return the gradients of `out`, keyed by the graph's leaves, for all connected leaves."""
        gradients: Any = pytensor.gradient.grad(
            None,
            list(self.own.values()),
            known_grads={out: self.gradient},
            disconnected_inputs="ignore",
            return_disconnected="disconnected",
        )
        pairs = zip(self.leaves, gradients, strict=True)
        return {leaf: gradient for leaf, gradient in pairs if is_connected(gradient)}


class _Results:
    """The Op results that replace a normalization and its gradients."""

    def __init__(self, template: _Template, with_var: bool):
        self.template = template
        form = template.form
        given = {leaf: leaf for leaf in template.leaves}
        self.outputs, self.averages = _op_outputs(form, given, with_var)
        self._own_outputs, _ = _op_outputs(form, template.own, with_var)
        self._gradients: dict[Variable, dict[Variable, Any]] = {}
        #: Replacements for the output and its statistics.
        self.new = {form.out: self.outputs[0], **(self._statistics() if form.trains else {})}

    def _statistics(self) -> dict[Variable, Any]:
        """Return the replacements for mean and variance."""
        form = self.template.form
        statistics = {form.mean: self.outputs[1]}
        if self.averages:
            # With an averaging factor of 1, the running average is the unbiased variance.
            dtype = self.averages[1].type.dtype
            count = cast(variadic_mul(*(form.x.shape[i] for i in form.axes)), dtype)
            one = constant(1, dtype=dtype)
            statistics[form.var] = self.averages[1] * (maximum(count - one, one) / count)
        return {
            view.variable: cast(view.undo(x), view.variable.type.dtype)
            for view, x in statistics.items()
        }

    def gradient(self, found: _Found) -> Any:
        """Return the replacement for a gradient."""
        template = self.template
        if found.gradient not in self._gradients:
            gradients = template.gradients(self._own_outputs[0])
            given = {own: leaf for leaf, own in template.own.items()}
            given |= dict(zip(self._own_outputs, self.outputs, strict=True))
            given[template.gradient] = self.new.get(found.gradient, found.gradient)
            new = graph_replace(list(gradients.values()), given, strict=False)
            self._gradients[found.gradient] = dict(zip(gradients, new, strict=True))
        gradient = self._gradients[found.gradient][found.leaf]
        total = add(gradient, *found.rest) if found.rest else gradient
        # For float16 data, the written-out form has float32 terms.
        return cast(total, found.variable.type.dtype)


def _op_outputs(
    form: Normalization, values: dict[Any, Any], with_var: bool
) -> tuple[list[Any], list[Any]]:
    """Apply the Op to `values`; return the output, mean, invstd and any running averages."""
    scale, bias = form.parameters(values)
    x, epsilon = values[form.x], constant(form.epsilon, dtype="float64")
    if not form.trains:
        statistics = [form.parameter(v.build(values), 0, values) for v in (form.mean, form.var)]
        inference = BatchNormInference(form.axes)
        return inference.make_node(x, scale, bias, *statistics, epsilon).outputs, []
    averages: list[Any] = []
    if with_var:
        nothing = zeros_like(scale)
        averages = [constant(1.0, dtype="float64"), nothing, nothing]
    node = BatchNormTrain(form.axes, with_var).make_node(x, scale, bias, epsilon, *averages)
    return node.outputs[:3], node.outputs[3:]


def _replacements(
    fgraph: FunctionGraph, form: Normalization, value_numbers: _Numbers
) -> list[tuple[Variable, Variable]]:
    """Return pairs of old and new variables.

    The list is empty if intermediate results of the normalization are needed elsewhere.
    """
    leaves = form.leaves()
    parts = {
        x
        for x in ancestors([form.out], blockers=leaves)
        if x is not form.out and x not in leaves and form.is_large(x)
    }
    template = _Template(form)
    found = [_Found(form.out)]
    if form.trains:
        found += [_Found(form.mean.variable), _Found(form.var.variable)]
    needed = _needed(fgraph, found, leaves)
    if form.trains and not parts.isdisjoint(needed):
        gradients = template.gradients(template.out)
        numbers = value_numbers.current()
        # A sum alone does not show that a gradient belongs to this normalization.
        telling = _telling_leaves(template, gradients)
        for gradient in _gradients_of_output(numbers, template, list(gradients.values())):
            by_leaves = list(_find(numbers, template, gradients, gradient))
            if not telling.isdisjoint(f.leaf for f in by_leaves):
                found += by_leaves
        needed = _needed(fgraph, found, leaves)
    if not parts.isdisjoint(needed):
        return []
    # A leaf computed from a replaced variable would make the graph cyclic.
    if not {f.variable for f in found}.isdisjoint(ancestors(leaves)):
        return []
    results = _Results(template, form.trains and form.var.variable in needed)
    new = results.new | {f.variable: results.gradient(f) for f in found if f.leaf is not None}
    replacements = []
    for old, variable in new.items():
        if old in needed:
            variable = old.type.filter_variable(variable)
            copy_stack_trace(old, variable)
            replacements.append((old, variable))
    return replacements


def _needed(fgraph: FunctionGraph, found: list[_Found], leaves: list[Any]) -> set[Variable]:
    """Return the variables that the graph's outputs need after the replacement."""
    sources = {f.variable: [*leaves, *f.rest] for f in found}
    for f in found:
        if f.gradient is not None:
            sources[f.variable].append(f.gradient)
    needed: set[Variable] = set()
    waiting = list(fgraph.outputs)
    while waiting:
        x = waiting.pop()
        if x not in needed:
            needed.add(x)
            if x in sources:
                waiting += sources[x]
            elif x.owner is not None:
                waiting += x.owner.inputs
    return needed


def _telling_leaves(template: _Template, gradients: dict[Variable, Any]) -> set[Variable]:
    """Return the leaves whose gradient is more than a sum of the output's gradient."""
    form, own = template.form, list(template.own.values())
    parts = {x for x in ancestors([template.out], blockers=own) if form.is_large(x)} - set(own)
    return {
        leaf
        for leaf, gradient in gradients.items()
        if not parts.isdisjoint(ancestors([gradient], blockers=own))
    }


def _gradients_of_output(
    numbers: ValueNumbers, template: _Template, gradients: list[Any]
) -> Iterator[Variable]:
    """Yield variables that are used like the gradient of the normalization's output."""
    given = {own: leaf for leaf, own in template.own.items()}
    dependent = {template.gradient}
    users: list[Apply] = []
    for node in toposort(gradients, blockers=list(given)):
        if dependent.isdisjoint(node.inputs):
            continue
        dependent.update(node.outputs)
        if all(x is template.gradient or x not in dependent for x in node.inputs):
            users.append(node)
    # A product with another operand is more specific than a sum.
    products = [user for user in users if len(set(user.inputs)) > 1]
    seen: set[Variable] = set()
    for user in products or users:
        others = [i for i, x in enumerate(user.inputs) if x is not template.gradient]
        place = user.inputs.index(template.gradient)
        wanted = numbers.of([user.inputs[i] for i in others], given)
        for node in numbers.nodes:
            if node.op != user.op or len(node.inputs) != len(user.inputs):
                continue
            x = node.inputs[place]
            if (
                x not in seen
                and x.type.dtype == template.gradient.type.dtype
                and all(numbers[node.inputs[i]] == wanted[user.inputs[i]] for i in others)
            ):
                seen.add(x)
                yield x


def _find(
    numbers: ValueNumbers, template: _Template, gradients: dict[Variable, Any], gradient: Any
) -> Iterator[_Found]:
    """Find the gradients with respect to the leaves, given the gradient of the output."""
    given = {own: leaf for leaf, own in template.own.items()} | {template.gradient: gradient}
    of_template = numbers.of(gradients.values(), given)
    for leaf, written in gradients.items():
        for variable, rest in numbers.sums_with(numbers.terms(of_template[written])):
            others = [numbers.variables[number][0] for number in rest.elements()]
            yield _Found(variable, leaf, gradient, others)

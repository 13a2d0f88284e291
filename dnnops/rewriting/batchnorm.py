"""Recognize a batch normalization that a user wrote out, and its gradient.

Both have to go together: a gradient is made of the parts of what it is the gradient of, so that
recognizing one of them alone would compute these parts for the other one's sake. A gradient is not
looked at for its form. That of the recognized expression is taken once more, of variables of its
own, and is looked for in the graph: whatever the expression was, the same operations have made the
same gradient. For this nothing may have been rewritten before, not even merged.

On the way to a GPU this is done for what will be there, and for the batch's own statistics only:
with given ones the expression is elementwise, and is fused with what is around it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytensor.gradient
from pytensor.compile.mode import optdb
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import graph_replace
from pytensor.graph.rewriting.basic import GraphRewriter, copy_stack_trace
from pytensor.graph.rewriting.db import RewriteDatabase
from pytensor.graph.traversal import ancestors, toposort
from pytensor.scalar.basic import Pow, Sqrt
from pytensor.tensor.basic import cast, constant, zeros_like
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.math import Sum, add, maximum, variadic_mul

from dnnops.cudnn.base import cudnn_usable
from dnnops.errors import DnnError
from dnnops.nnet.batchnorm import BatchNormInference, BatchNormTrain
from dnnops.nnet.expressions import is_connected
from dnnops.onednn.base import onednn_available
from dnnops.rewriting.batchnorm_form import Normalization, read_normalization
from dnnops.rewriting.forecast import Forecast
from dnnops.rewriting.lifting import _graph_device, gpu_tags
from dnnops.rewriting.value_numbers import ValueNumbers

__all__ = ["RecognizeBatchNorm", "RecognizeGpuBatchNorm"]


class RecognizeBatchNorm(GraphRewriter):
    """Replace batch normalizations that are written out by the abstract Ops, for oneDNN."""

    dtypes: tuple[str, ...] = ("float32",)

    def apply(self, fgraph: FunctionGraph) -> None:
        """Rewrite `fgraph`."""
        # Each has a root, of the variance and a constant.
        if not any(_may_be_root(node.op) for node in fgraph.apply_nodes):
            return
        if not self._is_available(fgraph):
            return
        order = fgraph.toposort()
        takes = self._selection(fgraph, order)
        summed = {node.inputs[0] for node in fgraph.apply_nodes if isinstance(node.op, Sum)}
        # From the outputs on, so that the longest expression comes first.
        for node in reversed(order):
            if node not in fgraph.apply_nodes:
                continue
            form = read_normalization(node.outputs[0], summed, self.dtypes)
            if form is None or not takes(form):
                continue
            try:
                replacements = _replacements(fgraph, form)
            except DnnError:  # sizes that are known not to fit: the graph will tell its user
                continue
            if replacements:
                fgraph.replace_all_validate(replacements, reason="recognize_batchnorm")

    def _is_available(self, fgraph: FunctionGraph) -> bool:
        return onednn_available()[0]

    def _selection(
        self, fgraph: FunctionGraph, order: list[Apply]
    ) -> Callable[[Normalization], bool]:
        """Give what says whether the Op for a normalization is wanted."""
        return lambda form: True


class RecognizeGpuBatchNorm(RecognizeBatchNorm):
    """Replace those that will be on a GPU.

    Parameters
    ----------
    excluded_tags : collection of str
        Lifters with one of these tags move nothing.
    everything : bool
        Whether everything moves that has a lifter.
    """

    dtypes = ("float16", "float32", "float64")

    def __init__(self, excluded_tags: Collection[str] = (), everything: bool = False):
        super().__init__()
        self.excluded_tags = frozenset(excluded_tags)
        self.everything = everything

    def _is_available(self, fgraph: FunctionGraph) -> bool:
        return cudnn_usable(_graph_device(fgraph))[0]

    def _selection(
        self, fgraph: FunctionGraph, order: list[Apply]
    ) -> Callable[[Normalization], bool]:
        if self.everything:
            return lambda form: form.trains
        on_device = Forecast(fgraph, order, self.excluded_tags).on_device
        # What stays on the host is left to the elementwise loops: without an operand on the device
        # the Op would stay there, too.
        return lambda form: form.trains and not on_device.isdisjoint(form.leaves())


def _may_be_root(op: Any) -> bool:
    return isinstance(op, Elemwise) and isinstance(op.scalar_op, Sqrt | Pow)


@dataclass
class _Found:
    """A variable of the graph that is replaced.

    Attributes
    ----------
    variable : Variable
        Which.
    leaf : Variable or None
        What it is the gradient by.
    gradient : Variable or None
        The gradient by the normalization's output of which it is made.
    rest : list of Variable
        What else it is the sum of.
    """

    variable: Any
    leaf: Any = None
    gradient: Any = None
    rest: Sequence[Any] = ()


class _Template:
    """A normalization of variables of its own, and its gradients: as they are written."""

    def __init__(self, form: Normalization):
        self.form = form
        self.leaves = form.leaves()
        self.own = {leaf: leaf.type() for leaf in self.leaves}
        self.gradient = form.out.type()
        (self.out,) = graph_replace([form.out], self.own, strict=False)

    def gradients(self, out: Any) -> dict[Variable, Any]:
        """The gradients by the graph's leaves, for `out`, where there are any."""
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
    """What the Ops compute in the place of a normalization and its gradients."""

    def __init__(self, template: _Template, with_var: bool):
        self.template = template
        form = template.form
        given = {leaf: leaf for leaf in template.leaves}
        self.outputs, self.averages = _op_outputs(form, given, with_var)
        self._own_outputs, _ = _op_outputs(form, template.own, with_var)
        self._gradients: dict[Variable, dict[Variable, Any]] = {}
        #: What stands for the output and its statistics.
        self.new = {form.out: self.outputs[0], **(self._statistics() if form.trains else {})}

    def _statistics(self) -> dict[Variable, Any]:
        """What stands for mean and variance."""
        form = self.template.form
        statistics = {form.mean: self.outputs[1]}
        if self.averages:
            # The new average leaves nothing of the old one: it is the unbiased variance.
            dtype = self.averages[1].type.dtype
            count = cast(variadic_mul(*(form.x.shape[i] for i in form.axes)), dtype)
            one = constant(1, dtype=dtype)
            statistics[form.var] = self.averages[1] * (maximum(count - one, one) / count)
        return {
            view.variable: cast(view.undo(x), view.variable.type.dtype)
            for view, x in statistics.items()
        }

    def gradient(self, found: _Found) -> Any:
        """What stands for a gradient."""
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
        # Of float16 data, what is written out has terms in float32.
        return cast(total, found.variable.type.dtype)


def _op_outputs(
    form: Normalization, values: dict[Any, Any], with_var: bool
) -> tuple[list[Any], list[Any]]:
    """The Op's results for leaves: output, mean and invstd, and running averages."""
    scale, bias = form.parameters(values)
    x, epsilon = values[form.x], constant(form.epsilon, dtype="float64")
    if not form.trains:
        statistics = [form.statistic(view, values) for view in (form.mean, form.var)]
        inference = BatchNormInference(form.axes)
        return inference.make_node(x, scale, bias, *statistics, epsilon).outputs, []
    averages: list[Any] = []
    if with_var:
        nothing = zeros_like(scale)
        averages = [constant(1.0, dtype="float64"), nothing, nothing]
    node = BatchNormTrain(form.axes, with_var).make_node(x, scale, bias, epsilon, *averages)
    return node.outputs[:3], node.outputs[3:]


def _replacements(fgraph: FunctionGraph, form: Normalization) -> list[tuple[Variable, Variable]]:
    """What to put for which variables; nothing if parts of the normalization are needed anyway."""
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
        numbers = ValueNumbers(fgraph)
        # Not the sum of what is not this normalization's gradient.
        telling = _telling_leaves(template, gradients)
        for gradient in _gradients_of_output(numbers, template, list(gradients.values())):
            by_leaves = list(_find(numbers, template, gradients, gradient))
            if not telling.isdisjoint(f.leaf for f in by_leaves):
                found += by_leaves
        needed = _needed(fgraph, found, leaves)
    if not parts.isdisjoint(needed):
        return []
    # A parameter that comes from what is replaced would come from itself.
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
    """Which variables a graph's outputs need once others have been replaced."""
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
    """The leaves by which the gradient has more in it than a sum of the output's one."""
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
    """What may be the gradient of the normalization's output: what is used like one."""
    given = {own: leaf for leaf, own in template.own.items()}
    dependent = {template.gradient}
    users: list[Apply] = []
    for node in toposort(gradients, blockers=list(given)):
        if dependent.isdisjoint(node.inputs):
            continue
        dependent.update(node.outputs)
        if all(x is template.gradient or x not in dependent for x in node.inputs):
            users.append(node)
    # A product with another part says more than a sum does.
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
    """Find the gradients by the leaves in the graph, for one of the output."""
    given = {own: leaf for leaf, own in template.own.items()} | {template.gradient: gradient}
    of_template = numbers.of(gradients.values(), given)
    for leaf, written in gradients.items():
        for variable, rest in numbers.sums_with(numbers.terms(of_template[written])):
            others = [numbers.variables[number][0] for number in rest.elements()]
            yield _Found(variable, leaf, gradient, others)


class _Nothing(GraphRewriter):
    def apply(self, fgraph: FunctionGraph) -> None:
        pass


class RecognizeBatchNormDB(RewriteDatabase):
    """The entry ``"recognize_batchnorm"`` of PyTensor's database: nothing on the way to a GPU."""

    def query(self, *tags: Any, **kwtags: Any) -> GraphRewriter:
        """Make the rewriter for a query."""
        included = getattr(tags[0], "include", ()) if tags else ()
        return _Nothing() if "gpu" in included else RecognizeBatchNorm()


class RecognizeGpuBatchNormDB(RewriteDatabase):
    """The entry ``"recognize_gpu_batchnorm"``, which passes on what is excluded."""

    def query(self, *tags: Any, **kwtags: Any) -> GraphRewriter:
        """Make the rewriter for a query."""
        return RecognizeGpuBatchNorm(*gpu_tags(tags))


# After the expansion of graphs within Ops (-0.01), before the first merge (0).
optdb.register("recognize_batchnorm", RecognizeBatchNormDB(), "fast_run", "onednn", position=-0.005)
optdb.register(
    "recognize_gpu_batchnorm", RecognizeGpuBatchNormDB(), "gpu", "cudnn", position=-0.005
)

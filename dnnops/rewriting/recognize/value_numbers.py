"""Number variables so that two have the same number if and only if they compute the same value.

The numbers allow searching a graph as if it had been merged. PyTensor takes gradients of the
unmerged graph, where an expression may occur twice, so their terms can only be recognized before
merging.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from pytensor.graph.basic import Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.traversal import toposort
from pytensor.scalar.basic import Add

from dnnops.rewriting.recognize.views import inputs_of

__all__ = ["ValueNumbers"]


class ValueNumbers:
    """Value numbers of a graph's variables, and of other graphs on request.

    Sums are numbered by all of their terms, in any order and nesting.

    Parameters
    ----------
    fgraph : FunctionGraph
        Graph to number.
    former : ValueNumbers, optional
        Numbers of the graph before a part was replaced. Equal values get the same numbers again,
        which is faster than numbering the graph anew.

    Attributes
    ----------
    variables : dict
        List of the graph's variables for each number, in topological order.
    nodes : list of Apply
        Nodes of the graph in topological order.
    """

    def __init__(self, fgraph: FunctionGraph, former: ValueNumbers | None = None):
        self._numbers: dict[Any, int] = former._numbers if former else {}
        self._terms: dict[int, tuple[int, ...]] = former._terms if former else {}
        #: Numbers of Ops and constants by identity, since hashing them takes long.
        self._identified: dict[int, tuple[Any, int]] = former._identified if former else {}
        self._known: dict[Variable, int] = {}
        self.variables: dict[int, list[Variable]] = {}
        for x in fgraph.inputs:
            self._add(x, self._known)
        self.nodes = fgraph.toposort()
        for node in self.nodes:
            for x in (*node.inputs, *node.outputs):
                if x not in self._known:
                    self._add(x, self._known)

    def _add(self, x: Variable, numbers: dict[Variable, int]) -> None:
        number = self._number(x, numbers)
        numbers[x] = number
        self.variables.setdefault(number, []).append(x)

    def _number(self, x: Variable, numbers: dict[Variable, int]) -> int:
        if isinstance(x, Constant):
            return self._of_object(x, lambda: (x.type, x.signature()))
        if x.owner is None:
            return self._of_key(x)
        inputs = [numbers[v] for v in x.owner.inputs]
        op = x.owner.op
        operation = self._of_object(op, lambda: op)
        if inputs_of(x, Add):
            terms = [t for n in inputs for t in self._terms.get(n, (n,))]
            inputs = sorted(terms)
            number = self._of_key((operation, *inputs))
            self._terms[number] = tuple(inputs)
            return number
        return self._of_key((operation, x.owner.outputs.index(x), *inputs))

    def _of_key(self, key: Any) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def _of_object(self, thing: Any, key: Callable[[], Any]) -> int:
        found = self._identified.get(id(thing))
        if found is None:
            # The object is kept, so that no other one gets its identity.
            found = self._identified[id(thing)] = thing, self._of_key(key())
        return found[1]

    def of(self, outputs: Iterable[Variable], given: dict[Any, Any]) -> dict[Any, int]:
        """Number another graph.

        Parameters
        ----------
        outputs : iterable of Variable
            Outputs of the other graph.
        given : dict
            Variables of the numbered graph, or their numbers, for the roots of the other graph and
            for variables at which to stop.

        Returns
        -------
        dict
            Number of each variable.
        """
        outputs = list(outputs)
        numbers = {x: v if isinstance(v, int) else self[v] for x, v in given.items()}
        nodes = toposort(outputs, blockers=list(given))
        # An output without an owner, such as a constant, need not belong to a node.
        for x in (*(x for node in nodes for x in (*node.inputs, *node.outputs)), *outputs):
            if x not in numbers:
                numbers[x] = self._number(x, numbers)
        return numbers

    def __getitem__(self, x: Variable) -> int:
        return self._known[x]

    def terms(self, number: int) -> Counter[int]:
        """Return the terms of a sum, or the number itself."""
        return Counter(self._terms.get(number, (number,)))

    def sums_with(self, terms: Counter[int]) -> list[tuple[Variable, Counter[int]]]:
        """Return the smallest sums of the graph that have all of `terms`.

        A single term matches only itself.

        Returns
        -------
        list
            Variables, each with its remaining terms.
        """
        if terms.total() == 1:
            (number,) = terms
            return [(x, Counter()) for x in self.variables.get(number, [])]
        fitting = {
            number: Counter(own)
            for number, own in self._terms.items()
            if number in self.variables and terms <= Counter(own)
        }
        if not fitting:
            return []
        smallest = min(own.total() for own in fitting.values())
        return [
            (x, own - terms)
            for number, own in fitting.items()
            if own.total() == smallest
            for x in self.variables[number]
        ]

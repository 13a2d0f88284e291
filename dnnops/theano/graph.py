"""Functions and classes of ``theano.gof`` that PyTensor doesn't have, or has changed."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any

from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph import traversal
from pytensor.graph.basic import Constant
from pytensor.graph.features import Feature
from pytensor.graph.rewriting import basic as rewriting
from pytensor.utils import hash_from_code

from dnnops.errors import DnnValueError
from dnnops.theano.ops import OpName

__all__ = [
    "OpRemove",
    "PreserveNames",
    "ancestors",
    "check_stack_trace",
    "deprecated",
    "get_debug_values",
    "get_test_value",
    "give_variables_names",
    "hash_from_file",
    "hashtype",
    "hist",
    "inputs",
    "is_in_ancestors",
    "list_of_nodes",
    "memoize",
    "object2",
    "ops",
    "orphans",
    "remove",
    "stack_search",
    "unique",
    "variables",
    "variables_and_orphans",
]

#: Python's base class, as Theano's was for all that needed no metaclass.
object2 = object


# Searches in graphs, which return lists. PyTensor's are generators.


def ancestors(variable_list: Iterable[Any], blockers: Iterable[Any] | None = None) -> list[Any]:
    """Return the variables that those of a list depend on, and these, depth-first.

    Parameters
    ----------
    variable_list : iterable of Variable
    blockers : iterable of Variable, optional
        Variables behind which the search does not go.

    Returns
    -------
    list of Variable
    """
    ends = set(blockers or ())

    def expand(variable: Any) -> Any:
        known = variable.owner is None or variable in ends
        return None if known else reversed(variable.owner.inputs)

    return stack_search(variable_list, expand, "dfs")


def inputs(variable_list: Iterable[Any], blockers: Iterable[Any] | None = None) -> list[Any]:
    """Return the variables without an owner that those of a list depend on.

    Parameters
    ----------
    variable_list : iterable of Variable
    blockers : iterable of Variable, optional
        Variables behind which the search does not go.

    Returns
    -------
    list of Variable
    """
    return [v for v in ancestors(variable_list, blockers) if v.owner is None]


def variables(i: Sequence[Any], o: Sequence[Any]) -> list[Any]:
    """Return the variables between inputs and outputs.

    Parameters
    ----------
    i, o : sequence of Variable
        Inputs and outputs.

    Returns
    -------
    list of Variable
        Inputs and outputs included.
    """
    return list(traversal.vars_between(i, o))


def orphans(i: Sequence[Any], o: Sequence[Any]) -> list[Any]:
    """Return the variables without an owner that outputs depend on besides inputs.

    Parameters
    ----------
    i, o : sequence of Variable
        Inputs and outputs.

    Returns
    -------
    list of Variable
    """
    return list(traversal.orphans_between(i, o))


def variables_and_orphans(i: Sequence[Any], o: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Return the results of :func:`variables` and :func:`orphans`.

    Parameters
    ----------
    i, o : sequence of Variable
        Inputs and outputs.

    Returns
    -------
    pair of list of Variable
    """
    return variables(i, o), orphans(i, o)


def ops(i: Sequence[Any], o: Sequence[Any]) -> set[Any]:
    """Return the Apply nodes between inputs and outputs, as a set.

    Parameters
    ----------
    i, o : sequence of Variable
        Inputs and outputs.

    Returns
    -------
    set of Apply
    """
    return {v.owner for v in variables(i, o) if v.owner is not None and v not in i}


def list_of_nodes(inputs: Sequence[Any], outputs: Sequence[Any]) -> list[Any]:
    """Return the Apply nodes between inputs and outputs, as a list.

    Parameters
    ----------
    inputs, outputs : sequence of Variable

    Returns
    -------
    list of Apply
        Breadth-first from the outputs.
    """
    ends = set(inputs)

    def expand(node: Any) -> list[Any]:
        owners = [v.owner for v in node.inputs if v.owner is not None]
        return [owner for owner in owners if not ends.intersection(owner.outputs)]

    return list(stack_search([v.owner for v in outputs], expand))


def is_in_ancestors(l_node: Any, f_node: Any) -> bool:
    """Return whether the Apply node `f_node` is `l_node`, or `l_node` depends on it.

    Parameters
    ----------
    l_node, f_node : Apply

    Returns
    -------
    bool
    """
    return f_node in traversal.apply_ancestors(l_node.outputs)


def stack_search(start: Any, expand: Any, mode: str = "bfs", build_inv: bool = False) -> Any:
    """Search a graph.

    Parameters
    ----------
    start : iterable of Variable or Apply
        Where the search begins.
    expand : callable
        Function that returns the neighbors of a variable or node, or None.
    mode : {'bfs', 'dfs'}
        Whether to search breadth-first or depth-first.
    build_inv : bool
        Whether to also return the inverse of `expand`.

    Returns
    -------
    list, or pair of list and dict
        What was found, in order, and for `build_inv` a dict from each neighbor to what it is a
        neighbor of.

    Raises
    ------
    DnnValueError
        If `mode` is invalid.
    """
    if mode not in ("bfs", "dfs"):
        raise DnnValueError(f"stack_search: mode must be 'bfs' or 'dfs', got {mode!r}")
    found = list(traversal.walk(start, expand, mode == "bfs", return_children=True))
    nodes = [node for node, _ in found]
    if not build_inv:
        return nodes
    inverse: dict[Any, list[Any]] = {}
    for node, neighbors in found:
        for neighbor in neighbors or ():
            inverse.setdefault(neighbor, []).append(node)
    return nodes, inverse


# Rewrites and features


class OpRemove(rewriting.NodeRewriter):  # type: ignore[misc]
    """Rewrite that replaces the outputs of an Op by its inputs.

    Parameters
    ----------
    op : Op
    """

    def __init__(self, op: Any):
        super().__init__()
        self.op = op

    def op_key(self) -> Any:
        """Return the Op."""
        return self.op

    def tracks(self) -> list[Any]:
        """Return a list of the Op."""
        return [self.op]

    def transform(self, fgraph: Any, node: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the inputs of a node of the Op.

        Parameters
        ----------
        fgraph : FunctionGraph
        node : Apply
        *args, **kwargs
            Ignored.

        Returns
        -------
        list of Variable or False
            False for nodes of other Ops.
        """
        return node.inputs if node.op == self.op else False

    def __str__(self) -> str:
        return f"{self.op}(x) -> x"


class PreserveNames(Feature):  # type: ignore[misc]
    """Feature that gives a variable without a name that of the variable which it replaces."""

    def on_change_input(
        self, fgraph: Any, node: Any, i: int, r: Any, new_r: Any, reason: Any = None
    ) -> None:
        """Name the new input of a node.

        Parameters
        ----------
        fgraph : FunctionGraph
        node : Apply or str
            Node whose input changes.
        i : int
            Index of the input.
        r, new_r : Variable
            The former input and the new one.
        reason : object, optional
            Rewrite that changes it.
        """
        if r.name is not None and new_r.name is None:
            new_r.name = r.name


# Test values, which are never computed here


def get_test_value(v: Any) -> Any:
    """Return the value of a constant or shared variable, or what a program has set as test value.

    Parameters
    ----------
    v : Variable or array_like

    Returns
    -------
    object
        For a variable with a test value, that value converted to its type.

    Raises
    ------
    AttributeError
        If the variable has no test value.
    """
    import pytensor.tensor as pt

    v = v if hasattr(v, "tag") else pt.as_tensor_variable(v)
    if isinstance(v, Constant):
        return v.data
    if isinstance(v, SharedVariable):
        return v.get_value(borrow=True, return_internal_type=True)
    if hasattr(v.tag, "test_value"):
        return v.type.filter(v.tag.test_value)
    raise AttributeError(f"{v} has no test value: evaluate it with eval({{input: value}})")


def get_debug_values(*args: Any) -> list[Any]:
    """Return an empty list, as in Theano if the flag ``compute_test_value`` is off.

    Parameters
    ----------
    *args
        Variables, which are ignored.

    Returns
    -------
    list
    """
    return []


# Utilities


def hashtype(self: Any) -> int:
    """Return a hash of the class of an object.

    Parameters
    ----------
    self : object

    Returns
    -------
    int
        Equal for objects of one class.
    """
    cls = type(self)
    return hash(cls.__name__) ^ hash(cls.__module__)


@wraps(rewriting.check_stack_trace)
def check_stack_trace(
    f_or_fgraph: Any, ops_to_check: Any = "last", bug_print: str = "raise"
) -> bool:
    """Return whether nodes of a compiled graph know where they were made; a class is one of Ops."""
    # PyTensor would call what stands for a class as a function of nodes.
    classes = (ops_to_check,) if isinstance(ops_to_check, OpName) else ops_to_check
    return rewriting.check_stack_trace(f_or_fgraph, classes, bug_print)


def memoize(f: Callable[..., Any]) -> Callable[..., Any]:
    """Cache the results of a function by its arguments, which must be hashable.

    Parameters
    ----------
    f : callable
        Function of arguments that can be compared and hashed.

    Returns
    -------
    callable
    """
    cache: dict[Any, Any] = {}

    @wraps(f)
    def cached(*args: Any, **kwargs: Any) -> Any:
        key = (args, tuple(sorted(kwargs.items())))
        if key not in cache:
            cache[key] = f(*args, **kwargs)
        return cache[key]

    return cached


def deprecated(filename: str, msg: str = "") -> Callable[..., Any]:
    """Return a decorator of functions that warns at the first call.

    Parameters
    ----------
    filename : str
        Module that the warning names.
    msg : str
        Further text of the warning.

    Returns
    -------
    callable
        Decorator whose functions emit a `DeprecationWarning` when they are first called.
    """

    def decorate(f: Callable[..., Any]) -> Callable[..., Any]:
        warned = False

        @wraps(f)
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal warned
            if not warned:
                warned = True
                warnings.warn(
                    f"{filename}.{f.__name__} is deprecated. {msg}", DeprecationWarning, 2
                )
            return f(*args, **kwargs)

        return call

    return decorate


def hist(coll: Iterable[Any]) -> dict[Any, int]:
    """Return how often each element occurs.

    Parameters
    ----------
    coll : iterable of hashable

    Returns
    -------
    dict
        From each element to the number of its occurrences.
    """
    return Counter(coll)


def hash_from_file(file_path: str) -> str:
    """Return the hash of a file's content.

    Parameters
    ----------
    file_path : str

    Returns
    -------
    str

    Raises
    ------
    OSError
        If the file cannot be read.
    """
    with open(file_path, "rb") as file:
        return str(hash_from_code(file.read()))


def unique(x: Sequence[Any]) -> bool:
    """Return whether no element occurs twice.

    Parameters
    ----------
    x : sequence of hashable

    Returns
    -------
    bool
    """
    return len(set(x)) == len(x)


def remove(predicate: Callable[[Any], bool], coll: Iterable[Any]) -> list[Any]:
    """Return the elements for which `predicate` is false.

    Parameters
    ----------
    predicate : callable
        Function of an element.
    coll : iterable

    Returns
    -------
    list
    """
    return [x for x in coll if not predicate(x)]


def give_variables_names(variables: Sequence[Any]) -> Sequence[Any]:
    """Give a different name to each variable that has none or shares it, and return them all.

    Parameters
    ----------
    variables : sequence of Variable
        They are changed.

    Returns
    -------
    sequence of Variable

    Raises
    ------
    DnnValueError
        If the new names aren't unique either.
    """
    count = Counter(v.name for v in variables)
    for i, variable in enumerate([v for v in variables if not v.name or count[v.name] > 1]):
        variable.name = f"{variable.name or ''}_{i}"
    if not unique([str(v) for v in variables]):
        raise DnnValueError(f"give_variables_names: the names of {variables} are not unique")
    return variables

"""Loops over the entries of extra axes, for Ops that cannot take all entries in one call.

The loop is a ``scan``, so rewrites replace the Ops in its body with those of a library.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import pytensor
import pytensor.tensor as pt

from dnnops.nnet.extra_axes import sizes, with_extra_axes

__all__ = ["each_entry", "loop", "own_axes"]


def loop(function: Callable[..., Any], sequences: Sequence[Any], others: Sequence[Any]) -> Any:
    """Stack the results of a function for each element of sequences, which may be empty.

    Parameters
    ----------
    function : callable
        Function of an element of each sequence and of the other operands, which returns a list.
    sequences, others : sequence of TensorVariable
        Operands. All sequences have the same length.

    Returns
    -------
    list of TensorVariable
        The results, with the elements as the first axis.
    """
    count = sizes(sequences[0])[0]
    given = list(sequences)
    if not isinstance(count, int) or count == 0:
        # PyTensor 3.0.7 loses the shapes of a scan of no steps, so take one that is dropped.
        missing = int(count == 0) if isinstance(count, int) else pt.cast(pt.eq(count, 0), "int64")
        given = [_lengthened(x, missing) for x in given]
    results = pytensor.scan(
        lambda *arguments: list(function(*arguments)),
        sequences=given,
        non_sequences=list(others),
        strict=True,
        return_updates=False,
        return_list=True,
    )
    if given[0] is sequences[0]:
        return results
    return [x[:count] for x in results]


def _lengthened(x: Any, missing: Any) -> Any:
    # Integers are mostly lengths, which are 1 or more.
    fill = pt.zeros if x.type.dtype.startswith("float") else pt.ones
    return pt.concatenate([x, fill((missing, *sizes(x)[1:]), dtype=x.type.dtype)])


def own_axes(x: Any, core: int, inputs: Sequence[Any], cores: Sequence[int]) -> list[int]:
    """Return the extra axes, counted from the first, along which `x` is not repeated.

    Parameters
    ----------
    x : TensorVariable
        One of the operands.
    core : int
        Number of axes of `x` without the extra ones.
    inputs, cores : sequence
        All operands, and their numbers of axes without the extra ones.
    """
    lead = max(v.type.ndim - c for v, c in zip(inputs, cores, strict=True))
    extra, _ = with_extra_axes(inputs, *cores)
    own = pt.shape_padleft(x, lead + core - x.type.ndim).type.shape
    return [i for i in range(lead) if own[i] != 1 or extra[i] == 1]


def each_entry(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    cores: Sequence[int],
    axes: Sequence[int] | None = None,
) -> list[Any]:
    """Apply a function to each entry of extra axes.

    Parameters
    ----------
    function : callable
        Function of the operands of one entry, which returns a list of results or a node.
    inputs, cores : sequence
        Operands, and their numbers of axes without the extra ones.
    axes : sequence of int, optional
        Extra axes, counted from the first, to loop over; all by default. The operands of the
        function keep the other ones.

    Returns
    -------
    list of TensorVariable
        The results, with all extra axes.
    """
    extra, spread = with_extra_axes(inputs, *cores)
    lead = len(extra)
    axes = list(range(lead)) if axes is None else list(axes)
    kept = [i for i in range(lead) if i not in axes]
    total = prod(extra[i] for i in axes)
    given = [
        pt.shape_padleft(x, lead + c - x.type.ndim) for x, c in zip(inputs, cores, strict=True)
    ]
    # Operands that do not vary along these axes are not repeated.
    varies = [any(x.type.shape[i] != 1 for i in axes) for x in given]
    if not any(varies):
        varies = [x.type.ndim > core for x, core in zip(inputs, cores, strict=True)]
    sequences, others = [], []
    for x, wide, moves in zip(given, spread, varies, strict=True):
        rest = sizes(wide)[lead:]
        if moves:
            moved = wide.transpose(*axes, *kept, *range(lead, wide.type.ndim))
            sequences.append(moved.reshape((total, *(extra[i] for i in kept), *rest)))
        else:
            is_shared = all(x.type.shape[i] == 1 for i in kept)
            others.append(x.squeeze(axis=tuple(range(lead) if is_shared else axes)))

    def step(*arguments: Any) -> list[Any]:
        elements, rest = iter(arguments[: len(sequences)]), iter(arguments[len(sequences) :])
        found = function(*(next(elements) if moves else next(rest) for moves in varies))
        return list(getattr(found, "outputs", found))

    apart = []
    for x in loop(step, sequences, others):
        rest = sizes(x)[1 + len(kept) :]
        x = x.reshape((*(extra[i] for i in (*axes, *kept)), *rest))
        order = [(*axes, *kept).index(i) for i in range(lead)]
        apart.append(x.transpose(*order, *range(lead, x.type.ndim)))
    return apart

"""Gradients of a softmax that divide by its difference from 1.

The gradient of ``log(1 - softmax(x))`` is a difference of two numbers that are as large as the
inverse of ``1 - softmax(x)``, which is infinite where a probability rounds to 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.math import switch
from pytensor.tensor.special import LogSoftmax

from dnnops.rewriting.recognize.cancelling import Cancelling
from dnnops.rewriting.recognize.softmax import softmax_gradient_of

__all__ = ["gradient_beside_one"]


def gradient_beside_one(x: Any, within: Cancelling) -> Any:
    """Return the gradient of a softmax, with respect to which a divisor is one less the softmax.

    The gradient of a softmax `p` is ``p * (g - sum(g * p))``. Only one probability can be greater
    than all others. Its gradient `g` is multiplied by ``1 - p``, of which ``g - g * p`` is made,
    before it is multiplied by the others.

    Parameters
    ----------
    x : Variable
        Difference of two variables.
    within : Cancelling
        The products of the graph.

    Returns
    -------
    Variable or None
        None if `x` is another difference, or does not divide by one less the softmax.
    """
    minuend, sm, axis = softmax_gradient_of(x) or (None, None, None)
    if minuend is None or not within.is_fragile(minuend):
        return None
    logs = within.values.apply(LogSoftmax(axis=sm.owner.op.axis), sm.owner.inputs[0])
    known = within.values.complements.get(logs)
    if known is None or sm.type.dtype != within.dtype:
        return None
    of_most = within.times(minuend, known.log)
    if of_most is None:
        return None
    (of_others, _) = within.product(minuend) or (minuend, False)
    zero = np.asarray(0, within.dtype)
    rest = switch(known.is_most, zero, of_others)
    most = switch(known.is_most, of_most, zero).sum(axis=axis, keepdims=True)
    log = switch(known.is_most, known.log, zero).sum(axis=axis, keepdims=True)
    ratios = switch(known.is_most, zero, pt.exp(logs - log))
    own = switch(known.is_most, of_most, rest)
    return own - sm * rest.sum(axis=axis, keepdims=True) - ratios * most

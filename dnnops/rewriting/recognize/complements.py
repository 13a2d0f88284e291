"""Differences of a softmax from 1.

Where a probability rounds to 1, the difference is the sum of the other probabilities.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.math import switch
from pytensor.tensor.special import LogSoftmax

from dnnops.rewriting.recognize.exponents import Exponents, finite

__all__ = ["Complement", "complement_of_softmax"]


class Complement(NamedTuple):
    """One less a softmax.

    Attributes
    ----------
    log, log_softmax : Variable
        The logarithms of the difference and of the softmax.
    is_most : Variable
        Whether the probability is greater than that of all others.
    """

    log: Any
    log_softmax: Any
    is_most: Any


def complement_of_softmax(exponents: Exponents, sm: Any, dtype: str) -> Complement:
    """Return the logarithm of one less a softmax.

    Parameters
    ----------
    exponents : Exponents
    sm : Variable
    dtype : str
        Dtype of the logarithm.

    Returns
    -------
    Complement
    """
    op = sm.owner.op
    logs = exponents.apply(LogSoftmax(axis=op.axis), sm.owner.inputs[0].astype(dtype))
    if logs not in exponents.complements:
        is_most = logs > np.log(0.5).astype(dtype)
        others = switch(is_most, np.asarray(-np.inf, dtype), logs)
        largest = finite(others.max(axis=op.axis, keepdims=True))
        total = pt.exp(others - largest).sum(axis=op.axis, keepdims=True)
        rest = pt.log1p(-switch(is_most, np.asarray(0, dtype), sm.astype(dtype)))
        found = switch(is_most, pt.log(total) + largest, rest)
        exponents.complements[logs] = Complement(found, logs, is_most)
    return exponents.complements[logs]

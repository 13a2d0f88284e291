"""Cross-entropy: what the labels of a batch cost under the softmax of its scores.

The cost of a row is minus the logarithm of the softmax at its label. As one Op it is one pass over
the scores, of which neither the softmax nor its logarithm is kept; the gradient is another one. The
graph that spells it out, ``-log_softmax(x)[arange(n), labels]``, is recognized.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import disconnected_type
from pytensor.graph.basic import Apply
from pytensor.tensor.special import log_softmax
from pytensor.tensor.variable import TensorVariable

from dnnops.arguments import switch
from dnnops.compat import shape_inference
from dnnops.errors import DnnIndexError, DnnTypeError, DnnValueError
from dnnops.nnet._validate import accumulator_dtype, as_tensor, float_tensor, require_same_dtype
from dnnops.nnet.expressions import ExpressionOp, is_connected

__all__ = ["CrossEntropy", "CrossEntropyGrad", "cross_entropy"]

#: The integers that labels may be.
LABEL_DTYPES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32")


def label_vector(where: str, labels: Any) -> TensorVariable:
    """Return labels as an int32 or int64 vector.

    Raises
    ------
    DnnTypeError
        If they are none.
    """
    expected = f"{where}: labels must be an integer vector"
    x = as_tensor(expected, labels)
    if x.type.ndim != 1 or x.type.dtype not in LABEL_DTYPES:
        raise DnnTypeError(
            f"{expected} of one of the dtypes {', '.join(LABEL_DTYPES)}, got {x.type}"
        )
    if x.type.dtype in ("int32", "int64"):
        return x
    return pt.cast(x, "int64" if x.type.dtype == "uint32" else "int32")


class CrossEntropyBase(ExpressionOp):
    """What the cost and its gradient share.

    Parameters
    ----------
    every_row : bool
        True: each row of the scores has a cost, and there are as many labels. False: each label has
        a cost, and there may be further rows, as indexing by ``arange(labels.shape[0])`` gives it.
    one_for_all : bool
        With `every_row`: a single label stands for all rows, as it does in indexing by
        ``arange(x.shape[0])``.
    """

    __props__: tuple[str, ...] = ("every_row", "one_for_all")

    def __init__(self, every_row: bool = True, one_for_all: bool = False):
        name = type(self).__name__
        self.every_row = switch(name, "every_row", every_row)
        self.one_for_all = switch(name, "one_for_all", one_for_all)

    @property
    def rows(self) -> int:
        """Which rows have a cost, as ``CrossEntropyRows`` of the C code numbers it."""
        return self.every_row + (self.every_row and self.one_for_all)

    def count(self, rows: Any, labels: Any) -> Any:
        """The number of costs; None if it is not known.

        Raises
        ------
        DnnIndexError
            If the labels' number does not fit the rows', and both are known.
        """
        if isinstance(rows, int) and isinstance(labels, int):
            fits = labels == rows if self.every_row else labels <= rows
            if self.every_row and self.one_for_all:
                fits |= labels == 1
            if not fits:
                raise DnnIndexError(f"{type(self).__name__}: {labels} labels for {rows} rows")
        return rows if self.every_row else labels

    def expressions(self, *inputs: Any) -> list[Any]:
        """The results in PyTensor's Ops.

        Parameters
        ----------
        *inputs : TensorVariable
            As the Op takes them.
        """
        return self._expressions(*inputs)

    def targets(self, x: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """The label of each row that has a cost, counted from the front.

        Raises
        ------
        DnnIndexError
            If one is out of bounds.
        """
        count = self.count(x.shape[0], labels.shape[0])
        classes = x.shape[1]
        wrong = np.flatnonzero((labels < -classes) | (labels >= classes))
        if wrong.size:
            raise DnnIndexError(
                f"{type(self).__name__}: label {labels[wrong[0]]} of row {wrong[0]} is out of"
                f" bounds for {classes} classes"
            )
        found: np.ndarray = np.broadcast_to(labels, (count,)) % max(classes, 1)
        return found


class CrossEntropy(CrossEntropyBase):
    """The cost of each row: ``CrossEntropy()(x, labels)`` gives ``costs`` and ``statistics``.

    `x` is a matrix (rows, classes) of scores, and `labels` a vector of int32 or int64, which count
    from the end where they are negative. `statistics`, for `CrossEntropyGrad`, has two columns:
    each row's maximum, and the logarithm of the sum of its exponentials once that is subtracted.
    They are float32 for float16. Parameters as for `CrossEntropyBase`.
    """

    def make_node(self, x: Any, labels: Any) -> Apply:  # type: ignore[override]
        name = type(self).__name__
        x, labels = float_tensor(name, "x", x, 2), label_vector(name, labels)
        count = self.count(x.type.shape[0], labels.type.shape[0])
        dtype = x.type.dtype
        costs = pt.tensor(dtype=dtype, shape=(count,))
        statistics = pt.tensor(dtype=accumulator_dtype(dtype).name, shape=(count, 2))
        return Apply(self, [x, labels], [costs, statistics])

    @shape_inference
    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        count = shapes[0][0] if self.every_row else shapes[1][0]
        return [(count,), (count, 2)]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        # Statistics belong to the Op: gradients go through x alone.
        return [[True, False], [False, False]]

    def _expressions(self, x: Any, labels: Any) -> list[Any]:
        wide = pt.cast(x, accumulator_dtype(x.type.dtype))
        logs = log_softmax(wide, axis=1)
        rows = pt.arange(x.shape[0] if self.every_row else labels.shape[0])
        top = wide.max(axis=1)
        log_sum = pt.log(pt.exp(wide - top[:, None]).sum(axis=1))
        statistics = pt.stack([top, log_sum], axis=1)[: rows.shape[0]]
        return [pt.cast(-logs[rows, labels], x.type.dtype), statistics]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        (x, labels), (g, _) = inputs, cotangents
        if not is_connected(g):
            return [disconnected_type() for _ in inputs]
        return [
            CrossEntropyGrad(self.every_row, self.one_for_all)(g, x, labels, outputs[1]),
            disconnected_type(),
        ]

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        x, labels = inputs
        targets = self.targets(x, labels)
        used = x[: len(targets)].astype(accumulator_dtype(x.dtype), copy=False)
        top = used.max(axis=1, initial=-np.inf)
        with np.errstate(invalid="ignore"):
            shifted = used - top[:, None]
            # Beside the largest term, which is 1, the others would lose their digits.
            rest = np.where(shifted == 0, 0, np.exp(shifted)).sum(axis=1)
            log_sum = np.log1p(rest + ((shifted == 0).sum(axis=1) - 1).astype(rest.dtype))
        costs = log_sum - shifted[np.arange(len(targets)), targets]
        output_storage[0][0] = costs.astype(x.dtype)
        output_storage[1][0] = np.stack([top, log_sum], axis=1)


class CrossEntropyGrad(CrossEntropyBase):
    """The gradient by the scores: ``CrossEntropyGrad()(g, x, labels, statistics)``.

    `g` is the gradient by the costs, a vector, of one element if that is all costs'. The result is
    ``g * softmax(x)``, from which `g` is subtracted at the labels; it is 0 in rows without a label.
    Parameters as for `CrossEntropyBase`.
    """

    def make_node(self, g: Any, x: Any, labels: Any, statistics: Any) -> Apply:  # type: ignore[override]
        name = type(self).__name__
        g, x = float_tensor(name, "g", g, 1), float_tensor(name, "x", x, 2)
        labels = label_vector(name, labels)
        dtype = require_same_dtype(name, g=g, x=x)
        statistics = float_tensor(name, "statistics", statistics, 2)
        if statistics.type.dtype != accumulator_dtype(dtype):
            raise DnnTypeError(
                f"{name}: statistics must be {accumulator_dtype(dtype)}, got {statistics.type}"
            )
        count = self.count(x.type.shape[0], labels.type.shape[0])
        given = g.type.shape[0]
        if count is not None and given not in (None, 1, count):
            raise DnnValueError(f"{name}: g must have {count} elements, or one, got {given}")
        return Apply(self, [g, x, labels, statistics], [pt.tensor(dtype=dtype, shape=x.type.shape)])

    @shape_inference
    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        return [shapes[1]]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        return [[True], [True], [False], [False]]

    def _expressions(self, g: Any, x: Any, labels: Any, statistics: Any) -> list[Any]:
        # As a function of the scores, of which the statistics are made.
        dtype = x.type.dtype
        wide = pt.cast(x, accumulator_dtype(dtype))
        rows = pt.arange(x.shape[0] if self.every_row else labels.shape[0])
        g = pt.broadcast_to(pt.cast(g, wide.type.dtype), (rows.shape[0],))
        softmax = pt.exp(log_softmax(wide, axis=1))
        padded = pt.set_subtensor(pt.zeros_like(wide[:, 0])[rows], g)
        gradient = pt.inc_subtensor((padded[:, None] * softmax)[rows, labels], -g)
        return [pt.cast(gradient, dtype)]

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        g, x, labels, statistics = inputs
        targets = self.targets(x, labels)
        count = len(targets)
        if len(g) not in (1, count) or statistics.shape != (count, 2):
            raise DnnValueError(
                f"{type(self).__name__}: {len(g)} gradients and statistics of shape"
                f" {statistics.shape} for {count} costs"
            )
        dtype = accumulator_dtype(x.dtype)
        result = np.zeros(x.shape, dtype)
        used = x[:count].astype(dtype, copy=False)
        with np.errstate(invalid="ignore"):
            softmax = np.exp(used - statistics[:, :1] - statistics[:, 1:])
        softmax[np.arange(count), targets] -= 1
        result[:count] = g.astype(dtype)[:, None] * softmax
        output_storage[0][0] = result.astype(x.dtype)


def cross_entropy(x: Any, labels: Any) -> TensorVariable:
    """Compute what the label of each row costs under the softmax of its scores.

    Parameters
    ----------
    x : tensor_like, shape (rows, classes)
        float16, float32 or float64, before the softmax, which is part of the cost.
    labels : integer vector, shape (rows,)
        A class for each row. As indices do, negative ones count from the end.

    Returns
    -------
    TensorVariable, shape (rows,)
        ``-log_softmax(x, axis=1)[arange(rows), labels]``, in the dtype of `x`.

    Raises
    ------
    DnnTypeError
        If a dtype or a rank is another one.
    DnnIndexError
        At the call, if a label is out of bounds, or if there are more or fewer labels than rows. It
        is an `IndexError`.

    Notes
    -----
    The graph that spells this out becomes the same Ops in modes that include dnnops's rewrites.
    """
    costs: Any = CrossEntropy().make_node(x, labels).outputs[0]
    return costs

"""Cross-entropy between integer labels and the softmax of scores.

The cost of a row is minus the logarithm of the softmax at its label. A single Op computes it in one
pass over the scores, storing neither the softmax nor its logarithm. The gradient is another Op that
takes one pass. Rewrites recognize the graph ``-log_softmax(x)[arange(n), labels]``.
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
from dnnops.nnet.expressions import ExpandableOp, ExpressionOp, is_connected
from dnnops.nnet.validate import accumulator_dtype, as_tensor, float_tensor, require_same_dtype

__all__ = ["CrossEntropy", "CrossEntropyGrad", "cross_entropy"]

#: The dtypes that labels may have.
LABEL_DTYPES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32")


def label_vector(where: str, labels: Any) -> TensorVariable:
    """Return labels as an int32 or int64 vector.

    Raises
    ------
    DnnTypeError
        If `labels` is not a vector with one of the `LABEL_DTYPES`.
    """
    expected = f"{where}: labels must be an integer vector"
    x = as_tensor(expected, labels)
    if x.type.ndim != 1 or x.type.dtype not in LABEL_DTYPES:
        raise DnnTypeError(
            f"{expected} with one of the dtypes {', '.join(LABEL_DTYPES)}, got {x.type}"
        )
    if x.type.dtype in ("int32", "int64"):
        return x
    return pt.cast(x, "int64" if x.type.dtype == "uint32" else "int32")


class CrossEntropyBase(ExpandableOp, ExpressionOp):
    """Base class of `CrossEntropy` and `CrossEntropyGrad`.

    Parameters
    ----------
    every_row : bool
        If True, each row of the scores has a cost and a label. If False, each label has a cost, and
        there may be more rows than labels, as with the index ``arange(labels.shape[0])``.
    one_for_all : bool
        Whether a single label may apply to all rows, and a single row to all labels, as with the
        index ``arange(x.shape[0])``. Only used with `every_row`.
    """

    __props__: tuple[str, ...] = ("every_row", "one_for_all")

    def __init__(self, every_row: bool = True, one_for_all: bool = False):
        name = type(self).__name__
        self.every_row = switch(name, "every_row", every_row)
        self.one_for_all = switch(name, "one_for_all", one_for_all)

    @property
    def rows(self) -> int:
        """The value of the C enum ``CrossEntropyRows`` that tells which rows have a cost."""
        return self.every_row + (self.every_row and self.one_for_all)

    def count(self, rows: Any, labels: Any) -> Any:
        """Return the number of costs, or None if it is not known.

        Raises
        ------
        DnnIndexError
            If the numbers of labels and rows are known and don't match.
        """
        broadcasts = self.every_row and self.one_for_all
        if isinstance(rows, int) and isinstance(labels, int):
            fits = labels == rows if self.every_row else labels <= rows
            if broadcasts:
                fits |= 1 in (labels, rows)
            if not fits:
                raise DnnIndexError(f"{type(self).__name__}: {labels} labels for {rows} rows")
        if broadcasts and rows in (None, 1):
            return None if rows is None and labels == 1 else labels
        return rows if self.every_row else labels

    def symbolic_count(self, x: Any, labels: Any, rows: Any, label_count: Any) -> Any:
        """Return the number of costs, given the numbers of rows and labels as variables."""
        if not self.every_row:
            return label_count
        if not self.one_for_all or x.type.shape[0] not in (None, 1) or labels.type.shape[0] == 1:
            return rows
        return pt.switch(pt.eq(rows, 1), label_count, rows)

    def _rows(self, x: Any, labels: Any) -> Any:
        """Return the index of the row of each cost."""
        count = self.symbolic_count(x, labels, x.shape[0], labels.shape[0])
        return pt.minimum(pt.arange(count), x.shape[0] - 1)

    def targets(self, x: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return the non-negative label of each row that has a cost.

        Raises
        ------
        DnnIndexError
            If a label is out of bounds.
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
    """Compute the cost of each row.

    ``CrossEntropy()(x, labels)`` returns ``costs`` and ``statistics``. `x` is a matrix of scores,
    (rows, classes). `labels` is an int32 or int64 vector, where negative labels count from the end.
    ``statistics``, which `CrossEntropyGrad` needs, has two columns: the maximum of each row, and
    ``log(sum(exp(x - maximum)))``. It is float32 if `x` is float16. See `CrossEntropyBase` for the
    parameters.
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
        x, labels = node.inputs
        count = self.symbolic_count(x, labels, shapes[0][0], shapes[1][0])
        return [(count,), (count, 2)]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        # The statistics are only meant for the gradient Op, so they have no gradient themselves.
        return [[True, False], [False, False]]

    def _expressions(self, x: Any, labels: Any) -> list[Any]:
        wide = pt.cast(x, accumulator_dtype(x.type.dtype))
        logs = log_softmax(wide, axis=1)
        rows = self._rows(x, labels)
        top = wide.max(axis=1)
        log_sum = pt.log(pt.exp(wide - top[:, None]).sum(axis=1))
        statistics = pt.stack([top, log_sum], axis=1)[rows]
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
        used = _rows_of(x, len(targets)).astype(accumulator_dtype(x.dtype), copy=False)
        top = used.max(axis=1, initial=-np.inf)
        with np.errstate(invalid="ignore"):
            shifted = used - top[:, None]
            # Added to the largest term, which is 1, the small ones would lose precision.
            rest = np.where(shifted == 0, 0, np.exp(shifted)).sum(axis=1)
            log_sum = np.log1p(rest + ((shifted == 0).sum(axis=1) - 1).astype(rest.dtype))
        costs = log_sum - shifted[np.arange(len(targets)), targets]
        output_storage[0][0] = costs.astype(x.dtype)
        output_storage[1][0] = np.stack([top, log_sum], axis=1)


class CrossEntropyGrad(CrossEntropyBase):
    """Compute the gradient with respect to the scores.

    In ``CrossEntropyGrad()(g, x, labels, statistics)``, `g` is the gradient with respect to the
    costs: a vector, with a single element if it is the same for all costs. The result is
    ``g * softmax(x)`` with `g` subtracted at the labels; rows without a label are 0. See
    `CrossEntropyBase` for the parameters.
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
            raise DnnValueError(f"{name}: g must have {count} elements or one, got {given}")
        return Apply(self, [g, x, labels, statistics], [pt.tensor(dtype=dtype, shape=x.type.shape)])

    @shape_inference
    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        return [shapes[1]]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        return [[True], [True], [False], [False]]

    def _expressions(self, g: Any, x: Any, labels: Any, statistics: Any) -> list[Any]:
        # Computed from the scores instead of the statistics, so that gradients reach the scores.
        dtype = x.type.dtype
        wide = pt.cast(x, accumulator_dtype(dtype))
        rows = self._rows(x, labels)
        g = pt.broadcast_to(pt.cast(g, wide.type.dtype), (rows.shape[0],))
        softmax = pt.exp(log_softmax(wide, axis=1))
        padded = pt.inc_subtensor(pt.zeros_like(wide[:, 0])[rows], g)
        gradient = pt.inc_subtensor((padded[:, None] * softmax)[rows, labels], -g)
        return [pt.cast(gradient, dtype)]

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        g, x, labels, statistics = inputs
        targets = self.targets(x, labels)
        count = len(targets)
        if len(g) not in (1, count) or statistics.shape != (count, 2):
            raise DnnValueError(
                f"{type(self).__name__}: got {len(g)} gradients and statistics of shape"
                f" {statistics.shape} for {count} costs"
            )
        dtype = accumulator_dtype(x.dtype)
        result = np.zeros(x.shape, dtype)
        used = _rows_of(x, count).astype(dtype, copy=False)
        with np.errstate(invalid="ignore"):
            softmax = np.exp(used - statistics[:, :1] - statistics[:, 1:])
        softmax[np.arange(count), targets] -= 1
        by_row = g.astype(dtype)[:, None] * softmax
        result[:count] = by_row.sum(axis=0) if len(x) == 1 else by_row
        output_storage[0][0] = result.astype(x.dtype)


def _rows_of(x: np.ndarray, count: int) -> np.ndarray:
    """Return the row of each cost; a single row has all of them."""
    found: np.ndarray = np.broadcast_to(x, (count, x.shape[1])) if len(x) == 1 else x[:count]
    return found


def cross_entropy(x: Any, labels: Any) -> TensorVariable:
    """Compute the cross-entropy between the softmax of scores and integer labels.

    Parameters
    ----------
    x : tensor_like, shape (rows, classes)
        Scores before the softmax, in float16, float32 or float64.
    labels : integer vector, shape (rows,)
        Class of each row. Negative labels count from the end, like indices.

    Returns
    -------
    TensorVariable, shape (rows,)
        ``-log_softmax(x, axis=1)[arange(rows), labels]``, with the dtype of `x`.

    Raises
    ------
    DnnTypeError
        If a dtype or rank is invalid.
    DnnIndexError
        If a label is out of bounds, or if the number of labels differs from the number of rows.
        Values, and sizes that are not known statically, are checked when the function runs.
        DnnIndexError is a subclass of `IndexError`.

    Notes
    -----
    Modes that include the rewrites of dnnops replace the expression above with the same Ops.
    """
    costs: Any = CrossEntropy().make_node(x, labels).outputs[0]
    return costs

"""Connectionist temporal classification (CTC): a loss for labels that are not aligned with steps.

A path assigns one class to each step. It spells a label if removing repeated symbols and then
blanks (class 0) gives that label. The probability of a label is the sum of the probabilities of all
paths that spell it, and the cost is minus its logarithm.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import disconnected_type, grad_not_implemented
from pytensor.graph.basic import Apply
from pytensor.tensor.variable import TensorVariable

from dnnops.arguments import switch
from dnnops.compat import shape_inference
from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.nnet.expressions import is_connected
from dnnops.nnet.optional_result import OptionalResultOp
from dnnops.nnet.validate import (
    accumulator_dtype,
    as_tensor,
    float_tensor,
    named_operands,
    show_shape,
)

__all__ = ["CTC", "ctc", "integer_tensor"]

#: The dtypes that labels and lengths may have. uint32 is converted to int64, and all others but
#: int64 to int32.
_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32")


def integer_tensor(where: str, name: str, value: Any, ndim: int) -> TensorVariable:
    """Return `value` as an int32 or int64 tensor of `ndim` dimensions."""
    expected = f"{where}: {name} must be an integer {'matrix' if ndim == 2 else 'vector'}"
    x = as_tensor(expected, value)
    # PyTensor gives empty lists the dtype floatX.
    is_empty = 0 in x.type.shape and x.type.dtype.startswith("float")
    if x.type.ndim != ndim or not (x.type.dtype in _INTEGERS or is_empty):
        raise DnnTypeError(
            f"{expected} with one of the dtypes {', '.join(_INTEGERS)}, got {x.type}"
        )
    if x.type.dtype in ("int32", "int64"):
        return x
    return pt.cast(x, "int64" if x.type.dtype == "uint32" else "int32")


def _log_forward(log_probabilities: np.ndarray, extended: np.ndarray) -> np.ndarray:
    """Return the log-probability of being at each place of `extended` after each step.

    A path begins at one of the first two places. At each step it stays, moves on by one place, or
    skips a blank between different symbols.
    """
    emitted = log_probabilities[:, extended]
    places = np.full_like(emitted, -np.inf)
    skips = np.zeros(len(extended), bool)
    skips[2:] = (extended[2:] != 0) & (extended[2:] != extended[:-2])
    places[0, :2] = emitted[0, :2]
    for t in range(1, len(emitted)):
        stayed = places[t - 1]
        moved = np.concatenate([[-np.inf], stayed])[:-1]
        skipped = np.where(skips, np.concatenate([[-np.inf, -np.inf], stayed])[:-2], -np.inf)
        places[t] = np.logaddexp(np.logaddexp(stayed, moved), skipped) + emitted[t]
    return places


def _cost_and_gradient(activations: np.ndarray, label: np.ndarray) -> tuple[Any, np.ndarray]:
    """Return the cost of one sequence (step, class) of float64 activations, and its gradient."""
    if len(activations) == 0:
        return 0.0, activations
    top = activations.max(axis=1, keepdims=True)
    total = np.exp(activations - top).sum(axis=1, keepdims=True)
    log_probabilities = activations - top - np.log(total)
    extended = np.zeros(2 * len(label) + 1, "int64")
    extended[1::2] = label
    emitted = log_probabilities[:, extended]
    forward = _log_forward(log_probabilities, extended)
    backward = _log_forward(log_probabilities[::-1], extended[::-1])[::-1, ::-1]
    cost = -np.logaddexp.reduce(forward[-1, -2:])
    if not np.isfinite(cost) or np.isnan(log_probabilities).any():
        cost = np.nan if np.isnan(log_probabilities).any() else np.inf
        return cost, np.full_like(activations, np.nan)
    # Both passes include the probability of the step itself, so divide by it once.
    possible = emitted > -np.inf
    own = np.where(possible, emitted, 0)
    posterior = np.where(possible, np.exp(forward + backward - own + cost), 0)
    gradient = np.exp(log_probabilities)
    np.subtract.at(gradient.T, extended, posterior.T)
    return cost, gradient


class CTC(OptionalResultOp):
    """Compute the CTC loss and its gradient.

    ``CTC()(activations, labels, input_lengths)`` returns the costs and the gradient of their sum
    with respect to `activations`. One Op computes both, because they share most of the work. The
    gradient is only computed if something uses it.

    Parameters
    ----------
    with_gradients : bool
        Whether the Op has the second output.
    with_label_lengths : bool
        Whether the Op has a fourth operand, the number of entries of each row of `labels` that form
        the label. Without it, the non-negative entries form the label.

    See Also
    --------
    ctc : Describes the operands.
    """

    __props__ = ("with_gradients", "with_label_lengths")

    optional_result = "with_gradients"

    def __init__(self, with_gradients: bool = True, with_label_lengths: bool = False):
        self.with_gradients = switch(type(self).__name__, "with_gradients", with_gradients)
        self.with_label_lengths = switch(
            type(self).__name__, "with_label_lengths", with_label_lengths
        )

    def make_node(self, *inputs: Any) -> Apply:
        name = type(self).__name__
        names = ["activations", "labels", "input_lengths"]
        if self.with_label_lengths:
            names.append("label_lengths")
        given = named_operands(name, names, inputs)
        activations = float_tensor(name, "activations", given.pop("activations"), 3)
        operands = [activations, integer_tensor(name, "labels", given.pop("labels"), 2)]
        operands += [integer_tensor(name, n, x, 1) for n, x in given.items()]
        batch = self.check_shapes([x.type.shape for x in operands])
        steps, _, classes = activations.type.shape
        dtype = activations.type.dtype
        # Costs of float16 activations are float32: float16 has three digits and ends at 65504.
        outputs = [pt.tensor(dtype=accumulator_dtype(dtype).name, shape=(batch,))]
        if self.with_gradients:
            outputs.append(pt.tensor(dtype=dtype, shape=(steps, batch, classes)))
        return Apply(self, operands, outputs)

    @shape_inference
    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        return [(shapes[0][1],), shapes[0]][: len(node.outputs)]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        return [[i == 0] * len(node.outputs) for i in range(len(node.inputs))]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        rest: list[Any] = [disconnected_type() for _ in inputs[1:]]
        if any(is_connected(g) for g in cotangents[1:]):
            return [self._no_second_derivative(inputs), *rest]
        if not is_connected(cotangents[0]):
            return [disconnected_type(), *rest]
        gradients = self._gradients(inputs, outputs)
        weighted = cotangents[0].dimshuffle("x", 0, "x") * gradients
        return [pt.cast(weighted, inputs[0].type.dtype), *rest]

    def pushforward(self, inputs: Any, outputs: Any, tangents: Any) -> list[Any]:
        if not is_connected(tangents[0]):
            return [disconnected_type() for _ in outputs]
        dtype = outputs[0].type.dtype
        moved = pt.cast(self._gradients(inputs, outputs), dtype) * pt.cast(tangents[0], dtype)
        return [moved.sum(axis=(0, 2)), *(self._no_second_derivative(inputs) for _ in outputs[1:])]

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        activations = np.asarray(inputs[0])
        self.check_shapes([np.shape(x) for x in inputs])
        labels = self.checked_labels(activations.shape, *inputs[1:])
        steps, batch, classes = activations.shape
        costs = np.zeros(batch)
        gradients = np.zeros((steps, batch, classes))
        # Infinite or NaN activations give infinite or NaN costs, without a warning.
        with np.errstate(invalid="ignore", over="ignore"):
            for n, (label, length) in enumerate(zip(labels, inputs[2], strict=True)):
                sequence = activations[:length, n].astype("float64")
                costs[n], gradients[:length, n] = _cost_and_gradient(sequence, label)
            results = (costs, gradients)[: len(node.outputs)]
            for storage, variable, result in zip(
                output_storage, node.outputs, results, strict=True
            ):
                storage[0] = result.astype(variable.type.dtype, copy=False)

    def _gradients(self, inputs: Any, outputs: Any) -> Any:
        if self.with_gradients:
            return outputs[1]
        return self.with_optional_result(True).make_node(*inputs).outputs[1]

    def _no_second_derivative(self, inputs: Any) -> Any:
        return grad_not_implemented(self, 0, inputs[0], "CTC has no second derivatives.")

    def check_shapes(self, shapes: Sequence[Any]) -> int | None:
        """Check the shapes of the operands and return the batch size.

        Parameters
        ----------
        shapes : sequence of tuple of int or None
            Shape of each operand.

        Returns
        -------
        int or None
            Batch size, or None if it is unknown.

        Raises
        ------
        DnnValueError
            If the shapes don't match, or if there are no classes.
        """
        name = type(self).__name__
        activations, labels, *lengths = shapes
        sizes = {activations[1], labels[0], *(shape[0] for shape in lengths)} - {None}
        if len(sizes) > 1:
            found = ["activations", "labels", "input_lengths", "label_lengths"]
            listed = (f"{n} {show_shape(s)}" for n, s in zip(found, shapes, strict=False))
            raise DnnValueError(
                f"{name}: labels and lengths must have an entry for each of the sequences of "
                f"activations (step, batch, class), got {', '.join(listed)}"
            )
        if activations[2] == 0:
            raise DnnValueError(f"{name}: activations have no classes, not even the blank")
        return sizes.pop() if sizes else None

    def checked_labels(
        self,
        shape: Sequence[int],
        labels: np.ndarray,
        input_lengths: np.ndarray,
        label_lengths: np.ndarray | None = None,
    ) -> list[np.ndarray]:
        """Return the label of each sequence, without padding.

        Parameters
        ----------
        shape : sequence of int
            Shape of the activations.
        labels, input_lengths, label_lengths : ndarray
            Values of the other operands.

        Returns
        -------
        list of ndarray
            Symbols of each label.

        Raises
        ------
        DnnValueError
            If a length is out of bounds, a label contains a symbol outside the alphabet, or a
            sequence is too short for its label.
        """
        name = type(self).__name__
        steps, _, classes = shape
        columns = labels.shape[1]
        found = []
        for n, row in enumerate(labels):
            if not 0 <= input_lengths[n] <= steps:
                raise DnnValueError(
                    f"{name}: input_lengths[{n}] is {input_lengths[n]}, expected 0 to {steps}, "
                    "the steps that activations have"
                )
            length = columns if label_lengths is None else label_lengths[n]
            if not 0 <= length <= columns:
                raise DnnValueError(
                    f"{name}: label_lengths[{n}] is {length}, expected 0 to {columns}, the columns "
                    "that labels have"
                )
            is_given = row >= 0 if label_lengths is None else np.arange(columns) < length
            outside = np.flatnonzero(is_given & ((row < 1) | (row >= classes)))
            if len(outside):
                raise DnnValueError(
                    f"{name}: labels[{n}, {outside[0]}] is {row[outside[0]]}, outside the alphabet:"
                    f" activations have {classes} classes, of which 0 is the blank"
                )
            label = row[is_given]
            repeats = int(np.sum(label[1:] == label[:-1]))
            least = len(label) + repeats
            if input_lengths[n] < least:
                raise DnnValueError(
                    f"{name}: batch entry {n}: a label of {len(label)} symbols, {repeats} of them "
                    f"repeated, takes {least} steps or more, and input_lengths[{n}] is "
                    f"{input_lengths[n]}"
                )
            found.append(label)
        return found


def ctc(
    activations: Any, labels: Any, input_lengths: Any, label_lengths: Any = None
) -> TensorVariable:
    """Compute the CTC loss of each sequence of a batch.

    Parameters
    ----------
    activations : tensor_like, shape (steps, batch, classes)
        Scores before the softmax, which is part of the loss, in float16, float32 or float64. Class
        0 is the blank; the other classes form the alphabet.
    labels : integer matrix, shape (batch, columns)
        Label of each sequence, with symbols from 1 to ``classes - 1``. Without `label_lengths`,
        negative entries are padding and may be anywhere in the row.
    input_lengths : integer vector, shape (batch,)
        Number of valid steps in each sequence. Later steps are ignored; their gradient is 0.
    label_lengths : integer vector, shape (batch,), optional
        Number of entries of each row that form the label. These entries must not be negative; later
        entries are ignored.

    Returns
    -------
    TensorVariable, shape (batch,)
        Negative logarithm of the probability of each label. It has the dtype of `activations`, or
        float32 for float16 activations.

    Raises
    ------
    DnnTypeError
        If a dtype or rank is invalid.
    DnnValueError
        If the batch sizes of the operands differ. When the function runs, if a length is out of
        range, a label contains a symbol outside the alphabet, or a sequence is too short for its
        label. A label needs one step per symbol, and one more for the blank between two equal
        symbols.
    DnnIndexError
        On a GPU, for such values, at the next transfer to the host. The cost of the sequence is NaN
        there, and its gradient is 0.

    Notes
    -----
    The signature and the semantics are those of Theano's ``ctc``. PyTorch's ``ctc_loss`` with
    ``log_probs=log_softmax(activations, dim=-1)``, ``reduction="none"`` and ``blank=0`` returns the
    same costs. Unlike in PyTorch, the gradient is with respect to `activations`, labels that are
    too long for their sequences raise an error instead of having infinite cost, and the blank is
    always class 0.

    The cost is infinite if activations of minus infinity leave no path for the label. It is NaN if
    the activations of a valid step contain NaN or plus infinity, or are all minus infinity. In both
    cases, the gradient of the sequence is NaN.

    There is no second derivative. PyTensor's default linker, Numba, does not support float16.

    References
    ----------
    Graves et al., Connectionist Temporal Classification: Labelling Unsegmented Sequence Data with
    Recurrent Neural Networks (2006).
    """
    where = "ctc"
    operands = [
        float_tensor(where, "activations", activations, 3),
        integer_tensor(where, "labels", labels, 2),
        integer_tensor(where, "input_lengths", input_lengths, 1),
    ]
    if label_lengths is not None:
        operands.append(integer_tensor(where, "label_lengths", label_lengths, 1))
    op = CTC(with_label_lengths=label_lengths is not None)
    costs: Any = op.make_node(*operands).outputs[0]
    return costs

"""Connectionist temporal classification: the loss of labels that no step of an input is given.

The probability of a label is the sum of those of all paths that spell it: one class a step, where
class 0, the blank, spells nothing, and a symbol that follows itself is spelled once.  What costs
here is minus the logarithm of that probability.
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
from dnnops.nnet._validate import (
    accumulator_dtype,
    as_tensor,
    float_tensor,
    named_operands,
    show_shape,
)
from dnnops.nnet.expressions import is_connected
from dnnops.nnet.optional_result import OptionalResultOp

__all__ = ["CTC", "ctc"]

#: The integers that labels and lengths may be; those that int32 cannot hold become int64.
_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32")


def _integer_tensor(where: str, name: str, value: Any, ndim: int) -> TensorVariable:
    """Return `value` as an int32 or int64 tensor of `ndim` dimensions."""
    expected = f"{where}: {name} must be an integer {'matrix' if ndim == 2 else 'vector'}"
    x = as_tensor(expected, value)
    is_empty = 0 in x.type.shape and x.type.dtype.startswith("float")  # empty lists have floatX
    if x.type.ndim != ndim or not (x.type.dtype in _INTEGERS or is_empty):
        raise DnnTypeError(f"{expected} of one of the dtypes {', '.join(_INTEGERS)}, got {x.type}")
    if x.type.dtype in ("int32", "int64"):
        return x
    return pt.cast(x, "int64" if x.type.dtype == "uint32" else "int32")


def _arrivals(log_probabilities: np.ndarray, extended: np.ndarray) -> np.ndarray:
    """Log-probabilities of being at each place of `extended` after each step, having begun.

    A path begins at one of the first two places.  It stays, goes on by one place, or skips a blank
    between different symbols.
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
    """The cost of one sequence (step, class) in float64, and its gradient."""
    if len(activations) == 0:
        return 0.0, activations
    top = activations.max(axis=1, keepdims=True)
    total = np.exp(activations - top).sum(axis=1, keepdims=True)
    log_probabilities = activations - top - np.log(total)
    extended = np.zeros(2 * len(label) + 1, "int64")
    extended[1::2] = label
    emitted = log_probabilities[:, extended]
    forward = _arrivals(log_probabilities, extended)
    backward = _arrivals(log_probabilities[::-1], extended[::-1])[::-1, ::-1]
    cost = -np.logaddexp.reduce(forward[-1, -2:])
    if not np.isfinite(cost) or np.isnan(log_probabilities).any():
        cost = np.nan if np.isnan(log_probabilities).any() else np.inf
        return cost, np.full_like(activations, np.nan)
    # Both passes have the step's own probability in them.
    possible = emitted > -np.inf
    own = np.where(possible, emitted, 0)
    posterior = np.where(possible, np.exp(forward + backward - own + cost), 0)
    gradient = np.exp(log_probabilities)
    np.subtract.at(gradient.T, extended, posterior.T)
    return cost, gradient


class CTC(OptionalResultOp):
    """The CTC loss: ``CTC()(activations, labels, input_lengths)`` gives costs and gradients.

    The second output is the gradient of the sum of all costs by `activations`: the two passes over
    the sequences that it takes share most of their work.  It is computed if something needs it.

    Parameters
    ----------
    with_gradients : bool
        Whether there is a second output.
    with_label_lengths : bool
        Whether there is a fourth operand, which says how many entries of each row of `labels` are
        its label.  Otherwise those are that aren't negative.

    See Also
    --------
    ctc : what the operands are.
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
        operands = [activations, _integer_tensor(name, "labels", given.pop("labels"), 2)]
        operands += [_integer_tensor(name, n, x, 1) for n, x in given.items()]
        batch = self.check_shapes([x.type.shape for x in operands])
        steps, _, classes = activations.type.shape
        dtype = activations.type.dtype
        # float16 keeps three digits of a cost, and no cost above 65504.
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
        # What is infinite or NaN costs infinity or NaN, without a warning.
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
        """Check the operands' shapes; return what is known of the batch's size.

        Parameters
        ----------
        shapes : sequence of tuple of int or None

        Returns
        -------
        int or None

        Raises
        ------
        DnnValueError
            If they don't fit together.
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
            That of the activations.
        labels, input_lengths, label_lengths : ndarray
            The other operands.

        Raises
        ------
        DnnValueError
            If a length is out of bounds, a label outside of the alphabet, or one longer than its
            sequence.
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
        float16, float32 or float64, before the softmax, which is part of the loss. Class 0 is the
        blank, the others are the alphabet.
    labels : integer matrix, shape (batch, columns)
        A label in each row, of symbols from 1 to ``classes - 1``. Negative entries are padding,
        wherever they stand.
    input_lengths : integer vector, shape (batch,)
        How many steps of each sequence count. What comes after has no influence, and gradient 0.
    label_lengths : integer vector, shape (batch,), optional
        How many entries of each row are its label. Those after may be anything, and none of those
        before may be negative.

    Returns
    -------
    TensorVariable, shape (batch,)
        Minus the logarithm of each label's probability, in the dtype of `activations`, float32 for
        float16.

    Raises
    ------
    DnnTypeError
        If a dtype or a rank is another one.
    DnnValueError
        If the operands' batches differ; at the call, if a length is out of range, a label has a
        symbol outside the alphabet, or a sequence is too short for its label: it takes a step for
        each symbol and one more, for a blank, between two equal ones.

    Notes
    -----
    Signature and meaning are those of Theano's ``ctc``. What differs from PyTorch's ``ctc_loss``,
    whose costs are the same for ``log_probs=log_softmax(activations, dim=-1)``,
    ``reduction="none"`` and ``blank=0``: the gradient is by `activations`, labels too long for
    their sequences are errors instead of infinite, and there is no choice of another blank.

    The cost is infinite where activations of minus infinity leave the label no path, and NaN where
    there is a NaN or plus infinity, or nothing but minus infinity, among a step's activations. The
    gradient of such an entry is NaN.

    There is no second derivative. Numba, PyTensor's default linker, knows no float16.

    After Graves et al., Connectionist Temporal Classification: Labelling Unsegmented Sequence Data
    with Recurrent Neural Networks (2006).
    """
    where = "ctc"
    operands = [
        float_tensor(where, "activations", activations, 3),
        _integer_tensor(where, "labels", labels, 2),
        _integer_tensor(where, "input_lengths", input_lengths, 1),
    ]
    if label_lengths is not None:
        operands.append(_integer_tensor(where, "label_lengths", label_lengths, 1))
    op = CTC(with_label_lengths=label_lengths is not None)
    costs: Any = op.make_node(*operands).outputs[0]
    return costs

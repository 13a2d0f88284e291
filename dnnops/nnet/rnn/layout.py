"""Sizes of recurrent networks and the layout of their parameters.

The parameters form one vector in cuDNN's order. A *pseudo-layer* is one direction of one layer:
layer 0 forward, layer 0 backward, layer 1 forward, and so on. The vector starts with the matrices
of each pseudo-layer: the input matrices of all gates, the recurrent matrices of all gates, and the
projection. They are followed by the biases of each pseudo-layer: the input biases of all gates and
the recurrent biases of all gates. A matrix has shape (outputs, inputs) in row-major order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from dnnops.arguments import shown
from dnnops.errors import DnnNotSupportedError, DnnTypeError, DnnValueError
from dnnops.nnet.validate import MAX_PARAMETER, is_int

__all__ = ["GATES", "RNN_MODES", "PseudoLayer", "RNNLayout", "keep_mask"]

#: Gates of each mode, in the order of their parameters.
GATES = {
    "rnn_relu": ("h",),
    "rnn_tanh": ("h",),
    "lstm": ("i", "f", "c", "o"),
    "gru": ("r", "i", "h"),
}
RNN_MODES = tuple(GATES)


@dataclass(frozen=True)
class PseudoLayer:
    """Offsets and shapes of the parameters of one direction of one layer.

    Attributes
    ----------
    gates, hidden, inputs, outputs : int
        Number of gates, number of units, input size and output size. `inputs` is 0 if the input
        skips its matrices.
    input_matrices, recurrent_matrices, projection : int
        Offsets of the input matrices, of shape (hidden, inputs), of the recurrent matrices, of
        shape (hidden, outputs), and of the projection, of shape (outputs, hidden).
    input_biases, recurrent_biases : int
        Offsets of the biases.
    has_projection : bool
        Whether the pseudo-layer has a projection.
    """

    gates: int
    hidden: int
    inputs: int
    outputs: int
    input_matrices: int
    recurrent_matrices: int
    projection: int
    input_biases: int
    recurrent_biases: int
    has_projection: bool

    def slices(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yield the offset and shape of each gate's matrix and bias, then of the projection."""
        for matrices, biases, columns in (
            (self.input_matrices, self.input_biases, self.inputs),
            (self.recurrent_matrices, self.recurrent_biases, self.outputs),
        ):
            for gate in range(self.gates):
                yield matrices + gate * self.hidden * columns, (self.hidden, columns)
                yield biases + gate * self.hidden, (self.hidden,)
        if self.has_projection:
            yield self.projection, (self.outputs, self.hidden)

    def arrays(self, w: Any) -> tuple[Any, Any, Any, Any, Any]:
        """Return views of a parameter vector, with all gates concatenated.

        Returns
        -------
        input_matrices : (gates * hidden, inputs)
        recurrent_matrices : (gates * hidden, outputs)
        input_biases, recurrent_biases : (gates * hidden,)
        projection : (outputs, hidden) or None
        """
        rows = self.gates * self.hidden

        # Sizes may be symbolic.
        def view(begin: int, *shape: int) -> Any:
            return w[begin : begin + prod(shape)].reshape(shape)

        return (
            view(self.input_matrices, rows, self.inputs),
            view(self.recurrent_matrices, rows, self.outputs),
            view(self.input_biases, rows),
            view(self.recurrent_biases, rows),
            view(self.projection, self.outputs, self.hidden) if self.has_projection else None,
        )


@dataclass(frozen=True)
class RNNLayout:
    """Configuration and parameter layout of a recurrent network.

    Parameters
    ----------
    rnn_mode : {'rnn_relu', 'rnn_tanh', 'lstm', 'gru'}
        Type of the cells.
    hidden_size, num_layers : int
        Number of units of a layer in one direction, and number of layers.
    bidirectional : bool
        Whether each layer processes the sequences in both directions.
    skip_input : bool
        Whether the input is added to the gates of the first layer without a matrix.
    proj_size : int
        Size to which the output of an LSTM is projected, or 0 for no projection.

    Raises
    ------
    DnnTypeError
        If a size is not an integer or the mode is not a string.
    DnnValueError
        If the mode is unknown or a size is out of range.
    DnnNotSupportedError
        If a projection is combined with cells other than LSTM or with a skipped input.
    """

    rnn_mode: str
    hidden_size: int
    num_layers: int
    bidirectional: bool = False
    skip_input: bool = False
    proj_size: int = 0

    def __post_init__(self) -> None:
        if self.rnn_mode not in RNN_MODES:
            error = DnnValueError if isinstance(self.rnn_mode, str) else DnnTypeError
            raise error(
                f"RNN: rnn_mode must be one of {', '.join(RNN_MODES)}, got {shown(self.rnn_mode)}"
            )
        for name, minimum in (("hidden_size", 1), ("num_layers", 1), ("proj_size", 0)):
            value = getattr(self, name)
            if not is_int(value):
                raise DnnTypeError(f"RNN: {name} must be an int, got {shown(value)}")
            if not minimum <= value <= MAX_PARAMETER:
                raise DnnValueError(
                    f"RNN: {name} must be between {minimum} and {MAX_PARAMETER}, got {value}"
                )
            object.__setattr__(self, name, int(value))
        if not self.proj_size:
            return
        if self.rnn_mode != "lstm":
            raise DnnNotSupportedError(
                f"RNN: proj_size {self.proj_size} needs rnn_mode lstm, got {self.rnn_mode}"
            )
        if self.proj_size >= self.hidden_size:
            raise DnnValueError(
                f"RNN: proj_size must be smaller than hidden_size {self.hidden_size}, got "
                f"{self.proj_size}"
            )
        if self.skip_input:
            raise DnnNotSupportedError("RNN: proj_size needs input_mode linear, got skip")

    @property
    def gates(self) -> int:
        """Number of gates of a cell."""
        return len(GATES[self.rnn_mode])

    @property
    def directions(self) -> int:
        """Number of directions, 1 or 2."""
        return 2 if self.bidirectional else 1

    @property
    def has_cell(self) -> bool:
        """Whether the network has a cell state in addition to its output."""
        return self.rnn_mode == "lstm"

    @property
    def state_count(self) -> int:
        """Number of pseudo-layers, which is the first dimension of the states."""
        return self.num_layers * self.directions

    @property
    def output_size(self) -> int:
        """Size of the output in one direction, which is the last dimension of `hx`."""
        return self.proj_size or self.hidden_size

    @property
    def saved_size(self) -> int:
        """Number of values that a pseudo-layer saves for the gradient at each step of a sequence.

        An LSTM saves its four gates and the cell, and a GRU its three gates and the recurrent part
        of the third. The other modes need only the output.
        """
        return {"lstm": 5, "gru": 4}.get(self.rnn_mode, 0) * self.hidden_size

    @property
    def reserve_size(self) -> int:
        """Number of values in the reserve per step: all saved values, and inner layers' outputs."""
        between = (self.num_layers - 1) * self.directions * self.output_size
        return self.state_count * self.saved_size + between

    def input_columns(self, layer: int, input_size: int) -> int:
        """Return the number of columns of a layer's input matrices."""
        if layer:
            return self.directions * self.output_size
        return 0 if self.skip_input else input_size

    def pseudo_layers(self, input_size: int) -> list[PseudoLayer]:
        """Return the parameter offsets and shapes of each pseudo-layer for an input size."""
        rows = self.gates * self.hidden_size
        projection = self.proj_size * self.hidden_size
        columns = [
            self.input_columns(number // self.directions, input_size)
            for number in range(self.state_count)
        ]
        sizes = [rows * (c + self.output_size) + projection for c in columns]
        matrices, biases = 0, sum(sizes)
        found = []
        for inputs, size in zip(columns, sizes, strict=True):
            recurrent = matrices + rows * inputs
            found.append(
                PseudoLayer(
                    gates=self.gates,
                    hidden=self.hidden_size,
                    inputs=inputs,
                    outputs=self.output_size,
                    input_matrices=matrices,
                    recurrent_matrices=recurrent,
                    projection=recurrent + rows * self.output_size,
                    input_biases=biases,
                    recurrent_biases=biases + rows,
                    has_projection=bool(self.proj_size),
                )
            )
            matrices += size
            biases += 2 * rows
        return found

    def param_size(self, input_size: Any) -> Any:
        """Return the number of parameters for an input size, which may be symbolic."""
        rows = self.gates * self.hidden_size
        first = 0 if self.skip_input else self.directions * rows * input_size
        above = (self.num_layers - 1) * self.directions * rows * self.directions * self.output_size
        each = rows * (self.output_size + 2) + self.proj_size * self.hidden_size
        return first + above + self.state_count * each

    def check_input_size(self, where: str, input_size: int | None) -> None:
        """Raise DnnValueError if inputs of this size cannot skip the first layer's matrices."""
        if self.skip_input and input_size not in (None, self.hidden_size):
            raise DnnValueError(
                f"{where}: with input_mode skip, the input's size must be hidden_size "
                f"{self.hidden_size}, got {input_size}"
            )


_INCREMENT = 0x9E3779B97F4A7C15
_WORD = 2**64 - 1


def _mixed(words: np.ndarray) -> np.ndarray:
    """Apply the output function of the SplitMix64 generator (Steele, Lea and Flood 2014)."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def keep_mask(seed: int, layer: int, shape: tuple[int, ...], dropout: float) -> np.ndarray:
    """Return a mask of the elements of a layer's output that dropout keeps.

    Each element has its own random number, so that the mask does not depend on the order of
    evaluation.

    Parameters
    ----------
    seed, layer : int
        Seed and layer index that determine the random numbers.
    shape : tuple of int
        Shape of the output.
    dropout : float
        Probability of dropping an element, rounded to 24 bits.

    Returns
    -------
    ndarray of bool
    """
    start = np.array([(int(seed) + (layer + 1) * _INCREMENT) & _WORD], dtype=np.uint64)
    steps = np.arange(1, int(np.prod(shape)) + 1, dtype=np.uint64) * np.uint64(_INCREMENT)
    words = _mixed(_mixed(start) + steps)
    return (words >> np.uint64(40) >= np.uint64(round(dropout * 2**24))).reshape(shape)

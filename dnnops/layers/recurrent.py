"""Recurrent networks, with the arguments of cudnn.torch's modules."""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import Any, ClassVar

import numpy as np
import pytensor
import pytensor.tensor as pt

from dnnops import nnet
from dnnops.arguments import shown, switch
from dnnops.errors import DnnValueError
from dnnops.layers.images import size
from dnnops.layers.initializers import Initializer, uniform
from dnnops.layers.layer import Layer
from dnnops.nnet.rnn.op import check_algo
from dnnops.nnet.validate import as_tensor

__all__ = ["BGRU", "BLSTM", "GRU", "LSTM", "RNN", "RNNReLU", "RNNTanh"]

#: The names of a direction's arrays in a state, those of PyTorch.
_NAMES = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")


class RNN(Layer):
    """A recurrent network of several layers, as ``cudnn.RNN``.

    Parameters
    ----------
    input_size, hidden_size : int
        Numbers of features of the input, and of units of a layer in one direction.
    num_layers : int
        Number of layers.
    batch_first : bool
        Whether the batch is the first axis of the sequences, instead of the second.
    dropout : float
        Probability that dropout sets an input of the second or a later layer to zero in training.
    mode : {'rnn_relu', 'rnn_tanh', 'lstm', 'gru'}
        Type of the cells, only for `RNN` itself; see `dnnops.nnet.RNNBlock`.
    bidirectional : bool
        Whether each layer processes the sequences in both directions.
    proj_size : int
        Size to which an LSTM projects the outputs of its cells; 0 for no projection.
    initializer : callable, optional
        Initial value of all parameters, which are one vector. By default, they are uniform between
        ``-1 / sqrt(hidden_size)`` and ``1 / sqrt(hidden_size)``, as in PyTorch.
    dtype, rng
        See `Layer`.

    Raises
    ------
    DnnTypeError, DnnValueError, DnnNotSupportedError
        If an argument is invalid, as for `dnnops.nnet.RNNBlock`.

    Notes
    -----
    A state has the arrays of each layer and direction by PyTorch's names, such as
    ``weight_ih_l0_reverse``.

    Attributes
    ----------
    weight : SharedVariable
        All parameters as one vector in cuDNN's order, the only entry of ``named_parameters()``.
    """

    weight: Any
    default_mode: ClassVar[str] = "rnn_relu"
    convertible = True
    takes_own_dtype = True

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        batch_first: bool = False,
        dropout: float = 0.0,
        *,
        mode: str | None = None,
        bidirectional: bool = False,
        proj_size: int = 0,
        initializer: Initializer | None = None,
        dtype: str | None = None,
        rng: Any = None,
    ):
        super().__init__(dtype, rng)
        where = self._name()
        if mode not in (None, self.default_mode) and type(self) is not RNN:
            raise DnnValueError(f"{where}: the mode is {self.default_mode}, got {shown(mode)}")
        self.input_size = size(where, "input_size", input_size)
        self.bidirectional = switch(where, "bidirectional", bidirectional)
        self._block = nnet.RNNBlock(
            self.dtype,
            hidden_size,
            num_layers,
            self.default_mode if mode is None else mode,
            direction_mode="bidirectional" if self.bidirectional else "unidirectional",
            proj_size=proj_size,
            dropout=dropout,
            dropout_seed=self.draw_seed() >> 1,
            batch_first=batch_first,
        )
        self._states: list[Any] = []
        count = self._block.get_param_size(self.input_size)
        bound = 1 / sqrt(max(self._block.hidden_size, 1))
        self.parameter("weight", (count,), initializer or uniform(bound))

    @property
    def is_random(self) -> bool:
        return self._block.dropout > 0 and self._block.layout.num_layers > 1

    def set_persist(self, persist: str | bool = True) -> RNN:
        """Select the algorithm of cuDNN; return the layer.

        Parameters
        ----------
        persist : bool or str
            True for 'persist_static', False for 'standard', or a word of `dnnops.nnet.RNNBlock`.

        Raises
        ------
        DnnTypeError, DnnValueError
            If it is something else.
        """
        if isinstance(persist, bool):
            persist = "persist_static" if persist else "standard"
        self._block.algo = check_algo(self._name(), persist)
        return self

    def remember_states(self, batch: int | None) -> RNN:
        """Start each call from the last states of the call before; return the layer.

        That is ``rememberStates`` of cudnn.torch. The states are zero at first. They are shared
        variables, which `Layer.updates` replaces, in training and inference: give its result to the
        compiled function.

        Parameters
        ----------
        batch : int or None
            Number of sequences in each call; None starts each call from zero again.

        Raises
        ------
        DnnTypeError, DnnValueError
            If it is not a positive integer.
        """
        self._updates = {}
        self._states = []
        if batch is not None:
            count = size(f"{self._name()}.remember_states", "batch", batch)
            self._states = [
                pytensor.shared(
                    np.zeros((layers, count, units), self.dtype), shape=(layers, count, units)
                )
                for layers, units in self._state_sizes()
            ]
        return self

    def reset_states(self) -> RNN:
        """Set the states that :meth:`remember_states` keeps to zero; return the layer."""
        for state in self._states:
            state.set_value(np.zeros_like(state.get_value()))
        return self

    def _state_sizes(self) -> list[tuple[int, int]]:
        """Return the sizes of a state's first and last axes, for that of the outputs and cells."""
        layout = self._block.layout
        count = layout.num_layers * (2 if layout.bidirectional else 1)
        units = [layout.proj_size or layout.hidden_size]
        if layout.has_cell:
            units.append(layout.hidden_size)
        return [(count, n) for n in units]

    def forward(
        self, x: Any, hx: Any = None, cx: Any = None, *, lengths: Any = None, states: bool = False
    ) -> Any:
        """Run over sequences.

        Parameters
        ----------
        x : tensor_like, (steps, batch, input_size)
            Sequences; with `batch_first`, the first two axes are swapped.
        hx, cx : tensor_like, optional
            States before the first step, and those of the cells of an LSTM, of shape
            (layers, batch, hidden_size); a bidirectional network has two per layer. By default 0,
            or those that :meth:`remember_states` keeps.
        lengths : int vector, optional
            Numbers of steps of the sequences, which by default have all.
        states : bool
            Whether to return the states after the last step, too.

        Returns
        -------
        y : TensorVariable
            Outputs of the last layer at all steps.
        hy, cy : TensorVariable
            If `states`, the states after the last step; `cy` only for an LSTM.

        Raises
        ------
        DnnTypeError, DnnValueError
            As for `dnnops.nnet.RNNBlock.apply`.
        """
        x = as_tensor(f"{self._name()}: the input must be a tensor", x)
        remembers = bool(self._states) and hx is None and cx is None
        given = [hx, cx]
        for i, (count, units) in enumerate(self._state_sizes()):
            if remembers:
                given[i] = self.current(self._states[i])
            elif given[i] is None:
                batch = x.shape[0 if self._block.batch_first else 1]
                given[i] = pt.zeros((count, batch, units), dtype=self.dtype)
        out, *last = self._block.apply(
            self.weight, x, *given, lengths=lengths, inference=not self.training
        )
        if remembers:
            self.set_updates(dict(zip(self._states, last, strict=True)))
        return (out, *last) if switch(self._name(), "states", states) else out

    # States have the arrays that the vector consists of.

    def _arrays(self, w: np.ndarray) -> dict[str, np.ndarray]:
        """Return the parts of a parameter vector, as views."""
        found: dict[str, np.ndarray] = {}
        directions = 2 if self.bidirectional else 1
        for number, part in enumerate(self._block.layout.pseudo_layers(self.input_size)):
            layer, backward = divmod(number, directions)
            suffix = f"_l{layer}" + ("_reverse" if backward else "")
            matrices, recurrent, bias, recurrent_bias, projection = part.arrays(w)
            arrays = (matrices, recurrent, bias, recurrent_bias, projection)
            found |= {
                name + suffix: array
                for name, array in zip(_NAMES, arrays, strict=True)
                if array is not None
            }
        return found

    def own_state(self) -> dict[str, np.ndarray]:
        return {name: a.copy() for name, a in self._arrays(self.weight.get_value()).items()}

    def own_shapes(self) -> dict[str, tuple[int, ...]]:
        empty = np.empty(self.weight.type.shape, dtype="bool")
        return {name: array.shape for name, array in self._arrays(empty).items()}

    def state_dtype(self, name: str) -> str:
        return self.weight.type.dtype

    def set_own_state(self, state: Mapping[str, np.ndarray]) -> None:
        w = np.array(self.weight.get_value())
        for name, view in self._arrays(w).items():
            if name in state:
                view[...] = state[name]
        self.weight.set_value(w)

    def describe(self) -> str:
        sizes = f"{self.input_size} -> {self._block.hidden_size}, {self._block.num_layers}"
        words = [sizes]
        if self.bidirectional and not isinstance(self, _Bidirectional):
            words.append("bidirectional")
        if self._block.batch_first:
            words.append("batch first")
        return f"({', '.join(words)})"


class RNNReLU(RNN):
    """A recurrent network with relu, as ``cudnn.RNNReLU``; see `RNN`."""


class RNNTanh(RNN):
    """A recurrent network with tanh, as ``cudnn.RNNTanh``; see `RNN`."""

    default_mode = "rnn_tanh"


class LSTM(RNN):
    """Long short-term memory, as ``cudnn.LSTM``; see `RNN`."""

    default_mode = "lstm"


class GRU(RNN):
    """Gated recurrent units, as ``cudnn.GRU``; see `RNN`."""

    default_mode = "gru"


class _Bidirectional(RNN):
    """A network whose layers process the sequences in both directions."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        batch_first: bool = False,
        dropout: float = 0.0,
        **options: Any,
    ):
        if not options.setdefault("bidirectional", True):
            raise DnnValueError(f"{self._name()}: bidirectional must be True")
        super().__init__(input_size, hidden_size, num_layers, batch_first, dropout, **options)


class BLSTM(_Bidirectional, LSTM):
    """Long short-term memory in both directions, as ``cudnn.BLSTM``; see `RNN`."""


class BGRU(_Bidirectional, GRU):
    """Gated recurrent units in both directions, as ``cudnn.BGRU``; see `RNN`."""

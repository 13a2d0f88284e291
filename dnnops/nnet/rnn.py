"""Recurrent networks of several layers: LSTM, GRU, and with tanh or relu alone."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor.variable import TensorVariable

from dnnops.arguments import probability, shown
from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.nnet._validate import FLOAT_DTYPES, check_int64, float_tensor, is_int, switch
from dnnops.nnet.rnn_layout import PseudoLayer, RNNLayout
from dnnops.nnet.rnn_ops import RANKS, RNNForward, check_algo, int64_variable

__all__ = ["RNNBlock"]

_WHERE = "RNNBlock"

# Without numbers, so that one C module does for all.
_CHECK_LENGTH = CheckAndRaise(
    DnnValueError,
    f"{_WHERE}: split_params: w has another number of elements than get_param_size gives",
)


def _choose(name: str, value: Any, first: str, second: str) -> bool:
    """Return whether an argument is the second of two words."""
    if not isinstance(value, str):
        raise DnnTypeError(f"{_WHERE}: {name} must be '{first}' or '{second}', got {shown(value)}")
    if value not in (first, second):
        raise DnnValueError(f"{_WHERE}: {name} must be '{first}' or '{second}', got {shown(value)}")
    return value == second


class RNNBlock:
    """A recurrent network whose parameters are one vector.

    With `W` and `R` for the matrices of the input and of the recurrence, `b` and `d` for their
    biases, a step gives

    * ``rnn_relu``, ``rnn_tanh``: ``h = act(W x + b + R h + d)``
    * ``lstm``: the gates ``i``, ``f`` and ``o`` are ``sigmoid(W x + b + R h + d)`` and
      ``g = tanh(W x + b + R h + d)``, each with parameters of its own; then
      ``c = f * c + i * g`` and ``h = o * tanh(c)``
    * ``gru``: the gates ``r`` and ``i`` are ``sigmoid(W x + b + R h + d)`` and
      ``n = tanh(W x + b + r * (R h + d))``; then ``h = (1 - i) * n + i * h``

    Parameters
    ----------
    dtype : {'float16', 'float32', 'float64'}
        Of the parameters, the data and the states.
    hidden_size : int
        The units of a layer, in each direction.
    num_layers : int
        The layers; each has the output of the one before as its input.
    rnn_mode : {'rnn_relu', 'rnn_tanh', 'lstm', 'gru'}
        The kind of cells.
    input_mode : {'linear', 'skip'}
        'skip': the input is added to each gate of the first layer without a matrix, so that its
        size is `hidden_size`.
    direction_mode : {'unidirectional', 'bidirectional'}
        'bidirectional': each layer goes over the sequences in both directions, and its output is
        both ones side by side.
    context_name : optional
        Taken for Theano's sake; not used.
    proj_size : int, optional
        For an LSTM: the size to which the output of each cell is projected by a further matrix.
    dropout : float, optional
        The probability with which an output of a layer that is another layer's input is set to
        zero; the others are divided by ``1 - dropout``.
    dropout_seed : int, optional
        What is dropped follows from it. See :meth:`apply`.
    batch_first : bool, optional
        Whether input and output are (batch, steps, size), instead of (steps, batch, size). States
        are the same.
    algo : {'auto', 'standard', 'persist_static', 'persist_dynamic', 'persist_static_small_h'}
        What cuDNN computes the network with; the CPU has one way. 'standard' is a series of matrix
        products and takes every network. The others keep the recurrent matrices on the chip from
        step to step: they take no lengths that differ, no projection, no float64, and each only
        some sizes; what cuDNN does not take, is an error at the call. 'auto' is never one: it times
        them at a shape's first call and takes the fastest, unless it needs much more memory for
        little. For gradients in float32 it is 'standard', as the others are less exact.

    Raises
    ------
    DnnTypeError
        If an argument is of another type.
    DnnValueError
        If a word is unknown or a number out of range.
    DnnNotSupportedError
        If `proj_size` is given for other cells than an LSTM's, or with the input mode 'skip'.

    Notes
    -----
    The vector of parameters has cuDNN's order, which is also that of PyTorch's cells: see
    :meth:`split_params`. The same vector serves on the CPU and on a GPU.
    """

    #: The dtypes that a block may have, and the Op that it makes.
    dtypes: ClassVar[tuple[str, ...]] = FLOAT_DTYPES
    _forward: ClassVar[type[RNNForward]] = RNNForward

    def __init__(
        self,
        dtype: Any,
        hidden_size: int,
        num_layers: int,
        rnn_mode: str,
        input_mode: str = "linear",
        direction_mode: str = "unidirectional",
        context_name: Any = None,
        *,
        proj_size: int = 0,
        dropout: float = 0.0,
        dropout_seed: int = 4242,
        batch_first: bool = False,
        algo: str = "auto",
    ):
        try:
            if dtype is None:  # NumPy takes it for float64
                raise TypeError("None is no dtype")
            self.dtype = self._dtype_name(dtype)
        except TypeError as error:
            raise DnnTypeError(f"{_WHERE}: dtype must be a dtype, got {shown(dtype)}") from error
        if self.dtype not in self.dtypes:
            raise DnnTypeError(
                f"{_WHERE}: dtype must be one of {', '.join(self.dtypes)}, got {self.dtype}"
            )
        if not is_int(dropout_seed):
            raise DnnTypeError(f"{_WHERE}: dropout_seed must be an int, got {shown(dropout_seed)}")
        check_int64(_WHERE, "dropout_seed", dropout_seed)
        self.layout = RNNLayout(
            rnn_mode,
            hidden_size,
            num_layers,
            _choose("direction_mode", direction_mode, "unidirectional", "bidirectional"),
            _choose("input_mode", input_mode, "linear", "skip"),
            proj_size,
        )
        self.rnn_mode = rnn_mode
        self.hidden_size = self.layout.hidden_size
        self.num_layers = self.layout.num_layers
        self.input_mode = input_mode
        self.direction_mode = direction_mode
        self.context_name = context_name
        self.proj_size = self.layout.proj_size
        self.dropout = probability(_WHERE, "dropout", dropout)
        self.dropout_seed = int(dropout_seed)
        self.batch_first = switch(_WHERE, "batch_first", batch_first)
        self.algo = check_algo(_WHERE, algo)
        #: The shared variables that :meth:`apply` made to count the calls of a function.
        self.dropout_states: list[SharedVariable] = []

    def _dtype_name(self, dtype: Any) -> str:
        """The name of a dtype; TypeError if it is none."""
        return np.dtype(dtype).name

    def _input_size(self, input_size: Any) -> int:
        size = input_size
        if isinstance(size, (tuple, list, np.ndarray)):
            if len(size) not in (2, 3):
                raise DnnValueError(
                    f"{_WHERE}: input_size must be an int or (batch, input), got"
                    f" {shown(input_size)}"
                )
            size = size[-1]
        if not is_int(size):
            raise DnnTypeError(
                f"{_WHERE}: input_size must be an int or (batch, input), got {shown(input_size)}"
            )
        if size < 0:
            raise DnnValueError(
                f"{_WHERE}: input_size must not be negative, got {shown(input_size)}"
            )
        self.layout.check_input_size(_WHERE, int(size))
        return int(size)

    def get_param_size(self, input_size: Any) -> int:
        """Return the number of parameters.

        Parameters
        ----------
        input_size : int or (int, int)
            The last dimension of the input, or as in Theano batch and input; a shape of three
            dimensions does as well. The batch has no influence.

        Returns
        -------
        int

        Raises
        ------
        DnnTypeError, DnnValueError
            If it is something else, or with the input mode 'skip' not `hidden_size`.
        """
        return self.layout.param_size(self._input_size(input_size))

    def split_params(self, w: Any, layer: int, input_size: Any) -> list[Any]:
        """Return the parameters of a layer: of each gate, a matrix and a bias.

        Parameters
        ----------
        w : shared variable, vector variable or array of one dimension
            The parameters, of :meth:`get_param_size` elements.
        layer : int
            Which layer. A bidirectional network has two *pseudo-layers* for each: 0 is the first
            layer forward, 1 the first layer backward, and so on.
        input_size : int or (int, int)
            As for :meth:`get_param_size`.

        Returns
        -------
        list
            First for what comes from the input, then for the recurrence, of each gate the matrix,
            (input, hidden) as one multiplies rows by it, and the bias, (hidden,). The gates of an
            LSTM are i, f, c, o, those of a GRU r, i, h. After that the matrix of the projection,
            if there is one, (hidden, output). Where the input skips its matrices, they are
            (0, hidden).

            Of a shared variable and of an array these are views: what is written there is
            written in `w`; those of a device take NumPy's arrays, too. Of a variable they are
            variables.

        Raises
        ------
        DnnTypeError, DnnValueError
            If `w` is something else or of another length, or there is no such layer. If only a
            call tells the length of a variable, the call raises.
        """
        input_size = self._input_size(input_size)
        parts = self._pseudo_layers(layer, input_size)
        if isinstance(w, SharedVariable):
            w = w.get_value(borrow=True, return_internal_type=True)
        elif isinstance(w, Variable) and not isinstance(w, TensorVariable):
            raise DnnTypeError(f"{_WHERE}: w must be a vector, got {w.type}")
        ndim = w.type.ndim if isinstance(w, Variable) else getattr(w, "ndim", None)
        if ndim != 1:
            raise DnnTypeError(f"{_WHERE}: w must be a vector, got {shown(w)}")
        length = w.type.shape[0] if isinstance(w, Variable) else len(w)
        if length not in (None, self.layout.param_size(input_size)):
            raise DnnValueError(
                f"{_WHERE}: w has {length} elements, expected "
                f"{self.layout.param_size(input_size)} for an input of size {input_size}"
            )
        if isinstance(w, Variable) and length is None:
            w = _CHECK_LENGTH(w, pt.eq(pt.shape(w)[0], self.layout.param_size(input_size)))
        (part,) = parts
        w = self._writable(w)
        return [
            w[begin : begin + int(np.prod(shape))].reshape(shape).T
            for begin, shape in part.slices()
        ]

    def _writable(self, w: Any) -> Any:
        """The parameters with parts that a user can write into."""
        if not hasattr(w, "__cuda_array_interface__"):
            return w
        from dnnops.gpuarray.writable import writable

        return writable(w)

    def join_params(self, layers: Sequence[Sequence[Any]], input_size: Any) -> Any:
        """Return the vector of parameters that :meth:`split_params` splits.

        Parameters
        ----------
        layers : sequence of sequence
            For each pseudo-layer what :meth:`split_params` gives: arrays or variables.
        input_size : int or (int, int)
            As for :meth:`get_param_size`.

        Returns
        -------
        ndarray or TensorVariable
            An array if all parts are arrays.

        Raises
        ------
        DnnTypeError, DnnValueError
            If there are not as many, or one has another shape.
        """
        size = self._input_size(input_size)
        parts = self._pseudo_layers(None, size)
        if not isinstance(layers, Sequence):
            raise DnnTypeError(f"{_WHERE}: layers must be a sequence, got {shown(layers)}")
        if len(layers) != len(parts):
            raise DnnValueError(
                f"{_WHERE}: expected the parameters of {len(parts)} pseudo-layers, "
                f"got those of {len(layers)}"
            )
        symbolic = any(isinstance(array, Variable) for layer in layers for array in layer)
        pieces = []
        for number, (part, layer) in enumerate(zip(parts, layers, strict=True)):
            slices = list(part.slices())
            if len(layer) != len(slices):
                raise DnnValueError(
                    f"{_WHERE}: pseudo-layer {number} has {len(slices)} parameters, "
                    f"got {len(layer)}"
                )
            for index, ((begin, shape), array) in enumerate(zip(slices, layer, strict=True)):
                where = f"parameter {index} of pseudo-layer {number}"
                if symbolic:
                    array = float_tensor(_WHERE, where, array, len(shape))
                found = array.type.shape if symbolic else np.shape(array)
                wanted = shape[::-1]
                if any(None not in (a, b) and a != b for a, b in zip(found, wanted, strict=False)):
                    raise DnnValueError(f"{_WHERE}: {where} must be {wanted}, got {found}")
                if len(found) != len(wanted):
                    raise DnnValueError(f"{_WHERE}: {where} must be {wanted}, got {found}")
                flat = (
                    pt.specify_shape(array, wanted).T.flatten()
                    if symbolic
                    else np.asarray(array).T.ravel()
                )
                pieces.append((begin, flat))
        pieces.sort(key=lambda piece: piece[0])
        if symbolic:
            return pt.cast(pt.join(0, *(flat for _, flat in pieces)), self.dtype)
        return np.concatenate([flat for _, flat in pieces]).astype(self.dtype)

    def _pseudo_layers(self, layer: int | None, input_size: int) -> list[PseudoLayer]:
        """All pseudo-layers, or one."""
        parts = self.layout.pseudo_layers(input_size)
        if layer is None:
            return parts
        if not is_int(layer):
            raise DnnTypeError(f"{_WHERE}: layer must be an int, got {shown(layer)}")
        if not 0 <= layer < len(parts):
            raise DnnValueError(
                f"{_WHERE}: layer must be between 0 and {len(parts) - 1}, got {layer}"
            )
        return [parts[layer]]

    def apply(
        self,
        w: Any,
        x: Any,
        hx: Any,
        cx: Any = None,
        *,
        lengths: Any = None,
        inference: bool = False,
        seed: Any = None,
    ) -> list[TensorVariable]:
        """Run the network over sequences.

        Parameters
        ----------
        w : (parameters,) tensor_like
            See :meth:`get_param_size`.
        x : (steps, batch, input) tensor_like
            The sequences; (batch, steps, input) with `batch_first`.
        hx : (layers, batch, hidden) tensor_like
            The states before the first step, twice as many if bidirectional, in the order of
            :meth:`split_params`. The last dimension is `proj_size` if there is a projection.
        cx : (layers, batch, hidden) tensor_like, optional
            The cells' states, for an LSTM.
        lengths : (batch,) int tensor_like, optional
            How many steps each sequence has: at least 1, in any order. The output is zero after
            them, the states are those after a sequence's last step, and backward a sequence
            begins there. What `x` has after that is without influence.
        inference : bool, optional
            Drop nothing, and keep nothing for a gradient: asked for one, the network would run a
            second time. Without a gradient nothing is kept in any case once a graph has been
            rewritten.
        seed : int or integer scalar variable, optional
            What is dropped follows from it. If not given, a shared variable of its own, which
            begins with `dropout_seed` and which each call of a function increases by one: the same
            sequence of calls drops the same.

        Returns
        -------
        y : TensorVariable, (steps, batch, hidden) or (steps, batch, 2 * hidden)
            The output of the last layer; as `x` with `batch_first`.
        hy : TensorVariable
            The states after the last step, as `hx`.
        cy : TensorVariable
            For an LSTM, the cells' states after the last step, as `cx`.

        Raises
        ------
        DnnTypeError
            If a rank or a dtype is another one, or `cx` is missing, or there should be none.
        DnnValueError
            If shapes don't belong together: now where they are known, else at the call, as for
            lengths that are not between 1 and the number of steps.

        Notes
        -----
        There are gradients with respect to `w`, `x`, `hx` and `cx`, but no derivatives of these.
        """
        where = f"{_WHERE}.apply"
        if self.layout.has_cell and cx is None:
            raise DnnTypeError(f"{where}: rnn_mode lstm needs cx")
        if not self.layout.has_cell and cx is not None:
            raise DnnTypeError(f"{where}: rnn_mode {self.rnn_mode} has no cx")
        named = {"w": w, "x": x, "hx": hx, **({} if cx is None else {"cx": cx})}
        inputs = self._operands(where, named)
        for name, variable in zip(named, inputs, strict=True):
            if variable.type.dtype != self.dtype:
                raise DnnTypeError(
                    f"{where}: {name} has dtype {variable.type.dtype}, and the block "
                    f"{self.dtype} (cast it first)"
                )
        if self.batch_first:
            inputs[1] = self._swapped(inputs[1])
        inference = switch(where, "inference", inference)
        op = self._forward(
            self.rnn_mode,
            self.hidden_size,
            self.num_layers,
            self.layout.bidirectional,
            self.layout.skip_input,
            self.proj_size,
            0.0 if inference else self.dropout,
            lengths is not None,
            self.algo,
            keeps_reserve=not inference,
        )
        if lengths is not None:
            inputs.append(int64_variable(where, "lengths", lengths, 1))
        if op.dropout:
            inputs.append(
                self._new_state() if seed is None else int64_variable(where, "seed", seed, 0)
            )
        outputs: list[Any] = op.make_node(*inputs).outputs
        y, *states = outputs if inference else outputs[:-1]
        if self.batch_first:
            y = self._swapped(y)
        return [y, *states]

    def _operands(self, where: str, named: dict[str, Any]) -> list[Any]:
        """Make variables of what :meth:`apply` got, of the right ranks."""
        return [float_tensor(where, n, value, RANKS.get(n, 3)) for n, value in named.items()]

    def _swapped(self, x: Any) -> Any:
        """Exchange batch and steps."""
        return x.dimshuffle(1, 0, 2)

    def _new_state(self) -> SharedVariable:
        """A shared variable that counts calls, far from those that were made before."""
        first = self.dropout_seed + (len(self.dropout_states) << 40)
        state = pytensor.shared(np.array(first, dtype="int64"), name="dropout_state")
        with warnings.catch_warnings():
            # PyTensor warns of its use, but its own RandomStream has nothing else either.
            warnings.simplefilter("ignore", DeprecationWarning)
            state.default_update = state + np.int64(1)
        self.dropout_states.append(state)
        return state

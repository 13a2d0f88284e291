"""Multi-layer recurrent networks with LSTM, GRU, tanh or ReLU cells."""

from __future__ import annotations

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
from dnnops.dtypes import HOST_FLOAT_DTYPES
from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.nnet.rnn.layout import PseudoLayer, RNNLayout
from dnnops.nnet.rnn.op import RANKS, RNNForward, check_algo, int64_variable
from dnnops.nnet.streams import advance
from dnnops.nnet.validate import check_int64, float_tensor, is_int, switch

__all__ = ["RNNBlock"]

_WHERE = "RNNBlock"

# The message has no numbers, so that all graphs share one C module.
_CHECK_LENGTH = CheckAndRaise(
    DnnValueError,
    f"{_WHERE}: split_params: w must have as many elements as get_param_size returns",
)


def _choose(name: str, value: Any, first: str, second: str) -> bool:
    """Check that an argument is one of two words; return whether it is the second."""
    if not isinstance(value, str):
        raise DnnTypeError(f"{_WHERE}: {name} must be '{first}' or '{second}', got {shown(value)}")
    if value not in (first, second):
        raise DnnValueError(f"{_WHERE}: {name} must be '{first}' or '{second}', got {shown(value)}")
    return value == second


class RNNBlock:
    """A recurrent network with all its parameters in one vector.

    Let `W` and `R` be the input and recurrent matrices, and `b` and `d` their biases. Each step
    computes:

    * ``rnn_relu``, ``rnn_tanh``: ``h = act(W x + b + R h + d)``
    * ``lstm``: the gates ``i``, ``f`` and ``o`` are ``sigmoid(W x + b + R h + d)`` and
      ``g = tanh(W x + b + R h + d)``, each with its own parameters; then ``c = f * c + i * g`` and
      ``h = o * tanh(c)``
    * ``gru``: the gates ``r`` and ``i`` are ``sigmoid(W x + b + R h + d)`` and
      ``n = tanh(W x + b + r * (R h + d))``; then ``h = (1 - i) * n + i * h``

    Parameters
    ----------
    dtype : {'float16', 'float32', 'float64'}
        Dtype of the parameters, the data and the states.
    hidden_size : int
        Number of units of a layer in each direction.
    num_layers : int
        Number of layers. The output of each layer is the input of the next.
    rnn_mode : {'rnn_relu', 'rnn_tanh', 'lstm', 'gru'}
        Type of the cells.
    input_mode : {'linear', 'skip'}
        Treatment of the input. With 'skip', the input is added to each gate of the first layer
        without a matrix, so that its size must be `hidden_size`.
    direction_mode : {'unidirectional', 'bidirectional'}
        Direction of the layers. With 'bidirectional', each layer processes the sequences in both
        directions, and its output is the concatenation of both results.
    context_name : optional
        Accepted for compatibility with Theano and ignored.
    proj_size : int, optional
        Size to which a further matrix projects the output of each cell; only for an LSTM.
    dropout : float, optional
        Probability that dropout sets an input of the second or a later layer to zero. The other
        inputs are divided by ``1 - dropout``.
    dropout_seed : int, optional
        Seed that determines which elements are dropped. See :meth:`apply`.
    batch_first : bool, optional
        Whether input and output have the shape (batch, steps, size) instead of
        (steps, batch, size). The shape of the states is not affected.
    algo : {'auto', 'standard', 'persist_static', 'persist_dynamic', 'persist_static_small_h'}
        cuDNN algorithm; the CPU has only one. 'standard' is a series of matrix products and
        supports every network. The others keep the recurrent matrices on the chip between steps.
        They don't support sequences of different lengths, projections or float64, and each supports
        only some sizes; unsupported cases raise an error when the compiled function is called.
        'auto' times the algorithms at the first call with each shape and selects the fastest,
        unless it needs much more memory for a small gain. For float32 gradients, 'auto' uses
        'standard', because the other algorithms are less accurate.

    Raises
    ------
    DnnTypeError
        If an argument has the wrong type.
    DnnValueError
        If a string argument is unknown or a number is out of range.
    DnnNotSupportedError
        If `proj_size` is given for cells other than LSTM, or with the input mode 'skip'.

    Notes
    -----
    The parameter vector follows cuDNN's order, and the gates have the order of PyTorch's cells: see
    :meth:`split_params`. The same vector can be used on the CPU and on a GPU.
    """

    #: The dtypes that a block supports, and the forward Op that it uses.
    dtypes: ClassVar[tuple[str, ...]] = HOST_FLOAT_DTYPES
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
            if dtype is None:  # NumPy interprets None as float64.
                raise TypeError("None is not a dtype")
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
        #: Shared variables made by :meth:`apply` to count the calls of a compiled function.
        self.dropout_states: list[SharedVariable] = []

    def _dtype_name(self, dtype: Any) -> str:
        """Return the name of a dtype; raise TypeError if `dtype` is not one."""
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
            Size of the last dimension of the input or, as in Theano, a (batch, input) shape. A
            three-dimensional shape is also accepted. The batch size has no effect.

        Returns
        -------
        int

        Raises
        ------
        DnnTypeError, DnnValueError
            If `input_size` has the wrong type or is negative, or if it differs from `hidden_size`
            with the input mode 'skip'.
        """
        return self.layout.param_size(self._input_size(input_size))

    def split_params(self, w: Any, layer: int, input_size: Any) -> list[Any]:
        """Return the parameters of a layer: a matrix and a bias for each gate.

        Parameters
        ----------
        w : shared variable, vector variable or array of one dimension
            Parameter vector with :meth:`get_param_size` elements.
        layer : int
            Index of the layer. A bidirectional network has two *pseudo-layers* per layer: 0 is the
            first layer forward, 1 the first layer backward, and so on.
        input_size : int or (int, int)
            See :meth:`get_param_size`.

        Returns
        -------
        list
            Matrices and biases of the input, then those of the recurrence. Each gate has a matrix
            of shape (input, hidden), which row vectors are multiplied by, and a bias of shape
            (hidden,). The gates of an LSTM are i, f, c, o, and those of a GRU are r, i, h. If the
            network has a projection, its matrix of shape (hidden, output) follows. With the input
            mode 'skip', the input matrices have shape (0, hidden).

            For a shared variable or an array, the parts are views: writing to them changes `w`.
            Views of device arrays also accept NumPy arrays. For a symbolic variable, the parts are
            variables.

        Raises
        ------
        DnnTypeError, DnnValueError
            If `w` has the wrong type or length, or if `layer` does not exist. If the length of a
            variable is not known statically, it is checked when the compiled function is called.
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
        """Return `w` or a view of it whose slices the user can write to."""
        if not hasattr(w, "__cuda_array_interface__"):
            return w
        from dnnops.gpuarray.writable import writable

        return writable(w)

    def join_params(self, layers: Sequence[Sequence[Any]], input_size: Any) -> Any:
        """Return the parameter vector that :meth:`split_params` splits.

        Parameters
        ----------
        layers : sequence of sequence
            Parameters of each pseudo-layer, as returned by :meth:`split_params`: arrays or
            variables.
        input_size : int or (int, int)
            See :meth:`get_param_size`.

        Returns
        -------
        ndarray or TensorVariable
            Parameter vector, an array if all parts are arrays.

        Raises
        ------
        DnnTypeError, DnnValueError
            If the number of parts or the shape of a part is wrong.
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
                    raise DnnValueError(f"{_WHERE}: {where} must have shape {wanted}, got {found}")
                if len(found) != len(wanted):
                    raise DnnValueError(f"{_WHERE}: {where} must have shape {wanted}, got {found}")
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
        """Return all pseudo-layers, or only the one with index `layer`."""
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
            Parameter vector; see :meth:`get_param_size`.
        x : (steps, batch, input) tensor_like
            Sequences, with shape (batch, steps, input) if `batch_first` is true.
        hx : (layers, batch, hidden) tensor_like
            States before the first step, in the order of :meth:`split_params`. A bidirectional
            network has two per layer. With a projection, the last dimension is `proj_size`.
        cx : (layers, batch, hidden) tensor_like, optional
            Cell states, required for an LSTM.
        lengths : (batch,) int tensor_like, optional
            Number of steps of each sequence, at least 1, in any order. The output after the last
            step of a sequence is zero, the final states are those after its last step, and the
            backward direction starts there. Later values of `x` have no effect.
        inference : bool, optional
            Whether to apply no dropout and to keep no data for a gradient. If a gradient is
            requested anyway, the network runs a second time. If the graph has no gradient, rewrites
            drop this data in any case.
        seed : int or integer scalar variable, optional
            Seed that determines which elements are dropped. By default, a new shared variable is
            used, which starts at `dropout_seed` and which each call of the compiled function
            increments. The same sequence of calls then drops the same elements.

        Returns
        -------
        y : TensorVariable, (steps, batch, hidden) or (steps, batch, 2 * hidden)
            Output of the last layer; with `batch_first`, the batch is the first axis, as in `x`.
        hy : TensorVariable
            States after the last step, with the shape of `hx`.
        cy : TensorVariable
            Cell states of an LSTM after the last step, with the shape of `cx`.

        Raises
        ------
        DnnTypeError
            If a rank or dtype is invalid, or if `cx` is missing for an LSTM or given for other
            cells.
        DnnValueError
            If shapes don't match, or if lengths are not between 1 and the number of steps. Shapes
            and values that are not known statically are checked when the compiled function is
            called.

        Notes
        -----
        The network can be differentiated with respect to `w`, `x`, `hx` and `cx`. Second and
        forward-mode derivatives are not supported with dropout between layers.
        """
        where = f"{_WHERE}.apply"
        if self.layout.has_cell and cx is None:
            raise DnnTypeError(f"{where}: rnn_mode lstm needs cx")
        if not self.layout.has_cell and cx is not None:
            raise DnnTypeError(f"{where}: rnn_mode {self.rnn_mode} takes no cx")
        named = {"w": w, "x": x, "hx": hx, **({} if cx is None else {"cx": cx})}
        inputs = self._operands(where, named)
        for name, variable in zip(named, inputs, strict=True):
            if variable.type.dtype != self.dtype:
                raise DnnTypeError(
                    f"{where}: {name} has dtype {variable.type.dtype}, but the block has dtype "
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
        """Convert the arguments of :meth:`apply` to variables, checking their ranks."""
        return [float_tensor(where, n, value, RANKS.get(n, 3)) for n, value in named.items()]

    def _swapped(self, x: Any) -> Any:
        """Swap the batch and step axes."""
        return x.dimshuffle(1, 0, 2)

    def _new_state(self) -> SharedVariable:
        """Make a shared variable that counts calls, starting far from those made earlier."""
        first = self.dropout_seed + (len(self.dropout_states) << 40)
        state = pytensor.shared(np.array(first, dtype="int64"), name="dropout_state")
        advance(state, state + np.int64(1))
        self.dropout_states.append(state)
        return state

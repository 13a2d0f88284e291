"""Forward and gradient Ops of recurrent networks, which `dnnops.nnet.RNNBlock` applies."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import DisconnectedType, disconnected_type
from pytensor.graph.basic import Apply, Constant

from dnnops.arguments import probability, shown
from dnnops.compat import shape_inference
from dnnops.errors import DnnNotSupportedError, DnnTypeError, DnnValueError
from dnnops.nnet.expressions import ExpressionOp
from dnnops.nnet.optional_result import OptionalResultOp
from dnnops.nnet.rnn.expressions import rnn_gradient_expressions
from dnnops.nnet.rnn.layout import RNN_MODES, RNNLayout
from dnnops.nnet.rnn.reference import RNNProblem, rnn_backward, rnn_forward
from dnnops.nnet.validate import (
    accumulator_dtype,
    as_tensor,
    check_int64,
    float_tensor,
    is_int,
    named_operands,
    require_same_dtype,
    show_shape,
    switch,
)

__all__ = ["RNN_ALGORITHMS", "RNNBackward", "RNNForward"]

#: cuDNN's algorithms, in the order of ``cudnnRNNAlgo_t``, and 'auto', which selects among them.
RNN_ALGORITHMS = (
    "standard",
    "persist_static",
    "persist_dynamic",
    "persist_static_small_h",
    "auto",
)

#: Integer operands, which stay on the host.
INT_OPERANDS = ("lengths", "seed")
#: Ranks of the operands that don't have three dimensions.
RANKS = {"w": 1, "reserve": 1}


def check_algo(where: str, algo: Any) -> str:
    """Return the name of an algorithm; raise if it is unknown."""
    if not isinstance(algo, str) or algo not in RNN_ALGORITHMS:
        error = DnnValueError if isinstance(algo, str) else DnnTypeError
        raise error(f"{where}: algo must be one of {', '.join(RNN_ALGORITHMS)}, got {shown(algo)}")
    return algo


def int64_variable(where: str, name: str, value: Any, ndim: int) -> Any:
    """Convert an integer scalar or vector to an int64 variable."""
    if is_int(value):
        check_int64(where, name, value)
    x = as_tensor(f"{where}: {name} must be integers", value)
    if x.type.ndim != ndim or x.type.dtype not in pt.type.integer_dtypes:
        kind = "an integer scalar" if ndim == 0 else "a vector of integers"
        raise DnnTypeError(f"{where}: {name} must be {kind}, got {x.type}")
    if x.type.dtype == "int64":
        return x
    if isinstance(x, Constant):
        return pt.constant(x.data.astype("int64"))
    return pt.cast(x, "int64")


class RNNBase(ExpressionOp):
    """Base class of the forward and gradient Ops of recurrent networks.

    Second derivatives and forward-mode derivatives are built from the network written as loops over
    the steps.

    The operands are `w` (parameters,), `x` (steps, batch, input), `hx` (pseudo-layers, batch,
    output size), for an LSTM `cx` (pseudo-layers, batch, hidden size), then `lengths` (batch,) if
    `has_lengths` is true, and the scalar `seed` if there is dropout.

    Parameters
    ----------
    rnn_mode, hidden_size, num_layers, bidirectional, skip_input, proj_size
        See `RNNLayout`.
    dropout : float
        Probability of dropping an output between two layers.
    has_lengths : bool
        Whether the sequences have different lengths, given as an operand.
    algo : str
        cuDNN algorithm: see `dnnops.nnet.RNNBlock`. It has no effect on the CPU.

    Raises
    ------
    DnnTypeError, DnnValueError, DnnNotSupportedError
        If `RNNLayout` rejects the network, if `dropout` is not in [0, 1), or if `algo` is unknown.
    """

    __props__: tuple[str, ...] = (
        "rnn_mode",
        "hidden_size",
        "num_layers",
        "bidirectional",
        "skip_input",
        "proj_size",
        "dropout",
        "has_lengths",
        "algo",
    )

    has_pushforwards = False

    def __init__(
        self,
        rnn_mode: str,
        hidden_size: int,
        num_layers: int,
        bidirectional: bool = False,
        skip_input: bool = False,
        proj_size: int = 0,
        dropout: float = 0.0,
        has_lengths: bool = False,
        algo: str = "auto",
    ):
        name = type(self).__name__
        self.bidirectional = switch(name, "bidirectional", bidirectional)
        self.skip_input = switch(name, "skip_input", skip_input)
        self.layout = RNNLayout(
            rnn_mode, hidden_size, num_layers, self.bidirectional, self.skip_input, proj_size
        )
        self.rnn_mode = rnn_mode
        self.hidden_size = self.layout.hidden_size
        self.num_layers = self.layout.num_layers
        self.proj_size = self.layout.proj_size
        # Dropout applies between layers, so a single layer has none.
        dropout = probability(name, "dropout", dropout)
        self.dropout = dropout if self.num_layers > 1 else 0.0
        self.has_lengths = switch(name, "has_lengths", has_lengths)
        self.algo = check_algo(name, algo)
        self.operands = (
            "w",
            "x",
            "hx",
            *(("cx",) if self.layout.has_cell else ()),
            *(("lengths",) if self.has_lengths else ()),
            *(("seed",) if self.dropout else ()),
        )

    #: Names of the parameters that both Ops have.
    network_props: tuple[str, ...] = __props__

    @property
    def network(self) -> dict[str, Any]:
        """Parameters of the network, shared by both Ops."""
        return {name: getattr(self, name) for name in self.network_props}

    def network_words(self) -> list[int]:
        """Encode the network as the integer arguments expected by the runtime libraries."""
        (dropout,) = struct.unpack("q", struct.pack("d", self.dropout))
        return [
            RNN_MODES.index(self.rnn_mode),
            self.hidden_size,
            self.num_layers,
            int(self.bidirectional),
            int(self.skip_input),
            self.proj_size,
            dropout,
            int(self.has_lengths),
        ]

    def _read(self, names: tuple[str, ...], values: Any) -> dict[str, Any]:
        """Convert the operands to variables by name and check what is known statically."""
        where = type(self).__name__
        named = named_operands(where, names, values)
        given = self._float_operands({n: x for n, x in named.items() if n not in INT_OPERANDS})
        dtype = require_same_dtype(where, **{n: x for n, x in given.items() if n != "reserve"})
        if "reserve" in given and given["reserve"].type.dtype != reserve_dtype(dtype):
            raise DnnTypeError(
                f"{where}: reserve has dtype {given['reserve'].type.dtype}, expected "
                f"{reserve_dtype(dtype)}"
            )
        for name in named.keys() & set(INT_OPERANDS):
            given[name] = int64_variable(where, name, named[name], int(name == "lengths"))
        given = {name: given[name] for name in names}
        self.check_shapes({n: x.type.shape for n, x in given.items()})
        if isinstance(given.get("lengths"), Constant):
            self.check_lengths(given["lengths"].data, given["x"].type.shape[0])
        return given

    def _float_operands(self, named: dict[str, Any]) -> dict[str, Any]:
        """Convert the floating-point operands to variables."""
        where = type(self).__name__
        return {n: float_tensor(where, n, value, RANKS.get(n, 3)) for n, value in named.items()}

    def _result(self, given: dict[str, Any], dtype: str, shape: Any) -> Any:
        """Make a new variable for a result."""
        return pt.tensor(dtype=dtype, shape=shape)

    def _reserve_length(self, steps: Any, batch: Any) -> Any:
        """Return the number of elements of the reserve, or None if unknown."""
        return None if None in (steps, batch) else steps * batch * self.layout.reserve_size

    def check_shapes(self, shapes: dict[str, Any]) -> None:
        """Raise DnnValueError if the shapes of the operands are inconsistent.

        Parameters
        ----------
        shapes : dict of str to tuple of int or None
            Shapes of the operands, by name.
        """
        where, layout = type(self).__name__, self.layout
        steps, batch, input_size = shapes["x"]
        layout.check_input_size(where, input_size)
        hidden = (layout.state_count, batch, layout.output_size)
        expected = {
            "w": (None if input_size is None else layout.param_size(input_size),),
            "hx": hidden,
            "cx": (layout.state_count, batch, layout.hidden_size),
            "lengths": (batch,),
            "y": (steps, batch, layout.directions * layout.output_size),
            "reserve": (self._reserve_length(steps, batch),),
        }
        if layout.skip_input:
            expected["w"] = (layout.param_size(layout.hidden_size),)
        expected |= {f"g{name}": expected[of] for name, of in _STATES_AND_OUTPUT}
        for name, shape in shapes.items():
            if any(
                None not in (found, wanted) and found != wanted
                for found, wanted in zip(shape, expected.get(name, shape), strict=True)
            ):
                raise DnnValueError(
                    f"{where}: {name} has shape {show_shape(shape)}, expected "
                    f"{show_shape(expected[name])} for x of shape {show_shape(shapes['x'])}, "
                    f"{self}"
                )

    def check_lengths(self, lengths: np.ndarray, steps: int | None) -> None:
        """Raise DnnValueError if a length is less than 1 or exceeds the number of steps."""
        most = np.inf if steps is None else steps
        if not all(1 <= length <= most for length in lengths.tolist()):
            number = "" if steps is None else f" {steps}"
            raise DnnValueError(
                f"{type(self).__name__}: lengths must be between 1 and the number of steps"
                f"{number}, got {lengths.tolist()}"
            )

    def _problem(self, names: tuple[str, ...], inputs: Any) -> tuple[RNNProblem, dict[str, Any]]:
        """Return the network with its checked operand values, and the operands by name."""
        values = dict(zip(names, inputs, strict=True))
        self.check_shapes({name: value.shape for name, value in values.items()})
        dtype = accumulator_dtype(values["x"].dtype)
        for name, value in values.items():
            if name not in INT_OPERANDS:
                values[name] = value.astype(dtype, copy=False)
        steps, batch = values["x"].shape[:2]
        lengths = values.get("lengths", np.full(batch, steps))
        if self.has_lengths:
            self.check_lengths(lengths, steps)
        problem = RNNProblem(
            layout=self.layout,
            w=values["w"],
            x=values["x"],
            hx=values["hx"],
            cx=values.get("cx"),
            lengths=lengths,
            dropout=self.dropout,
            seed=int(values.get("seed", 0)),
        )
        return problem, values

    def _store(self, node: Apply, output_storage: Any, results: list[Any]) -> None:
        for output, storage, result in zip(node.outputs, output_storage, results, strict=True):
            storage[0] = np.asarray(result, dtype=output.type.dtype)


_STATES_AND_OUTPUT = (("y", "y"), ("hy", "hx"), ("cy", "cx"))


def reserve_dtype(dtype: str) -> str:
    """Return the dtype of the reserve of a network with data of type `dtype`."""
    return "float64" if dtype == "float64" else "float32"


class RNNForward(RNNBase, OptionalResultOp):
    """A recurrent network: ``RNNForward(...)(w, x, hx, [cx], [lengths], [seed])``.

    The results are `y` (steps, batch, directions * output size), `hy` with the shape of `hx`, for
    an LSTM `cy` with the shape of `cx`, and, if requested, the *reserve*. This vector holds the
    data that the gradient needs, in a format that depends on the implementation.

    Parameters
    ----------
    *network, **more_network
        See `RNNBase`.
    keeps_reserve : bool
        Whether to return a reserve. Without it, the gradient runs the network a second time.
    """

    __props__ = (*RNNBase.__props__, "keeps_reserve")

    optional_result = "keeps_reserve"

    def __init__(self, *network: Any, keeps_reserve: bool = True, **more_network: Any):
        super().__init__(*network, **more_network)
        self.keeps_reserve = switch(type(self).__name__, "keeps_reserve", keeps_reserve)

    def make_node(self, *inputs: Any) -> Apply:
        given = self._read(self.operands, inputs)
        layout = self.layout
        steps, batch, _ = given["x"].type.shape
        batch = given["hx"].type.shape[1] if batch is None else batch
        shapes = [
            (steps, batch, layout.directions * layout.output_size),
            (layout.state_count, batch, layout.output_size),
        ]
        if layout.has_cell:
            shapes.append((layout.state_count, batch, layout.hidden_size))
        dtype = given["x"].type.dtype
        outputs = [self._result(given, dtype, shape) for shape in shapes]
        if self.keeps_reserve:
            shape = (self._reserve_length(steps, batch),)
            outputs.append(self._result(given, reserve_dtype(dtype), shape))
        return Apply(self, list(given.values()), outputs)

    @shape_inference
    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        layout = self.layout
        steps, batch, _ = shapes[1]
        found = [(steps, batch, layout.directions * layout.output_size), shapes[2]]
        if layout.has_cell:
            found.append(shapes[3])
        if self.keeps_reserve:
            found.append(self._reserve_shape(node, steps, batch))
        return found

    def _reserve_shape(self, node: Apply, steps: Any, batch: Any) -> tuple[Any]:
        """Return the symbolic shape of the reserve."""
        return (steps * batch * self.layout.reserve_size,)

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        count = len(node.outputs)
        row = [not (self.keeps_reserve and k == count - 1) for k in range(count)]
        return [
            [connected and name not in INT_OPERANDS for connected in row] for name in self.operands
        ]

    def gradient(self) -> RNNBackward:
        """Return the Op that computes the gradient."""
        return RNNBackward(**self.network)

    def _cotangent(self, result: Any, cotangent: Any) -> Any:
        """Convert the gradient with respect to a result to the form the gradient Op expects."""
        if isinstance(cotangent.type, DisconnectedType):
            return pt.zeros_like(result)
        return pt.cast(cotangent, result.type.dtype)

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        if not self.keeps_reserve:
            # PyTensor can't merge this node with the original, which lacks the reserve.
            outputs = self.with_optional_result(True).make_node(*inputs).outputs
        states = 3 if self.layout.has_cell else 2
        given = [
            self._cotangent(result, cotangent)
            for result, cotangent in zip(outputs[:states], cotangents[:states], strict=True)
        ]
        backward = self.gradient().make_node(*inputs, outputs[0], outputs[states], *given)
        names = ("w", "hx", "cx", "x") if self.layout.has_cell else ("w", "hx", "x")
        gradients = dict(zip(names, backward.outputs, strict=True))
        return [gradients.get(name, disconnected_type()) for name in self.operands]

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        problem, _ = self._problem(self.operands, inputs)
        y, hy, cy, reserve = rnn_forward(problem)
        results = [y, hy, *([] if cy is None else [cy])]
        self._store(node, output_storage, [*results, reserve] if self.keeps_reserve else results)


class RNNBackward(RNNBase, OptionalResultOp):
    """Gradient of `RNNForward`.

    ``RNNBackward(...)(w, x, hx, [cx], [lengths], [seed], y, reserve, gy, ghy, [gcy])`` returns the
    gradients with respect to `w`, `hx`, for an LSTM `cx`, and, if requested, `x`. `gy`, `ghy` and
    `gcy` are the gradients with respect to the results of `RNNForward`.

    Parameters
    ----------
    *network, **more_network
        See `RNNBase`.
    by_x : bool
        Whether to return the gradient with respect to `x`.
    """

    __props__ = (*RNNBase.__props__, "by_x")

    optional_result = "by_x"

    def __init__(self, *network: Any, by_x: bool = True, **more_network: Any):
        super().__init__(*network, **more_network)
        self.by_x = switch(type(self).__name__, "by_x", by_x)
        states = ("gy", "ghy", "gcy") if self.layout.has_cell else ("gy", "ghy")
        self.all_operands = (*self.operands, "y", "reserve", *states)
        self.results = ("w", *(("hx", "cx") if self.layout.has_cell else ("hx",)))
        if self.by_x:
            self.results = (*self.results, "x")

    def make_node(self, *inputs: Any) -> Apply:
        given = self._read(self.all_operands, inputs)
        outputs = [
            self._result(given, given[name].type.dtype, given[name].type.shape)
            for name in self.results
        ]
        return Apply(self, list(given.values()), outputs)

    @shape_inference
    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        return [shapes[self.all_operands.index(name)] for name in self.results]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        # y and reserve are determined by the other operands, so they are disconnected.
        constant = (*INT_OPERANDS, "y", "reserve")
        return [[name not in constant] * len(node.outputs) for name in self.all_operands]

    def _expressions(self, *operands: Any) -> list[Any]:
        if self.dropout:
            raise DnnNotSupportedError(
                f"{type(self).__name__}: second derivatives and forward-mode derivatives are not "
                "supported for a recurrent network with dropout between its layers. Use one "
                "RNNBlock per layer with dnnops.nnet.dropout between them, or disable dropout"
            )
        given = dict(zip(self.all_operands, operands, strict=True))
        network = {name: given[name] for name in self.operands}
        cotangents = [given[name] for name in ("gy", "ghy", "gcy") if name in given]
        return rnn_gradient_expressions(self.layout, network, cotangents, self.results)

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        problem, values = self._problem(self.all_operands, inputs)
        dw, dx, dhx, dcx = rnn_backward(
            problem,
            values["y"],
            values["reserve"],
            values["gy"],
            values["ghy"],
            values.get("gcy"),
        )
        found = {"w": dw, "hx": dhx, "cx": dcx, "x": dx}
        self._store(node, output_storage, [found[name] for name in self.results])

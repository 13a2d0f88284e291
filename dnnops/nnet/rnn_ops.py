"""The Ops of recurrent networks: forward, and the gradient. `dnnops.nnet.RNNBlock` makes them."""

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
from dnnops.nnet._validate import (
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
from dnnops.nnet.expressions import ExpressionOp
from dnnops.nnet.optional_result import OptionalResultOp
from dnnops.nnet.rnn_expressions import rnn_gradient_expressions
from dnnops.nnet.rnn_layout import RNN_MODES, RNNLayout
from dnnops.nnet.rnn_reference import RNNProblem, rnn_backward, rnn_forward

__all__ = ["RNN_ALGORITHMS", "RNNBackward", "RNNForward"]

#: cuDNN's algorithms, in the order of ``cudnnRNNAlgo_t``, and the choice among them.
RNN_ALGORITHMS = (
    "standard",
    "persist_static",
    "persist_dynamic",
    "persist_static_small_h",
    "auto",
)

#: Operands that are integers, and stay on the host.
INT_OPERANDS = ("lengths", "seed")
#: The rank of those operands that are not of three dimensions.
RANKS = {"w": 1, "reserve": 1}


def check_algo(where: str, algo: Any) -> str:
    """Return an algorithm's name; raise if there is no such one."""
    if not isinstance(algo, str) or algo not in RNN_ALGORITHMS:
        error = DnnValueError if isinstance(algo, str) else DnnTypeError
        raise error(f"{where}: algo must be one of {', '.join(RNN_ALGORITHMS)}, got {shown(algo)}")
    return algo


def int64_variable(where: str, name: str, value: Any, ndim: int) -> Any:
    """Return integers, a scalar or a vector, as an int64 variable."""
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
    """What the two Ops share: the network, its operands and their checks.

    Derivatives of the gradient, and those in forward mode, are those of the network written as
    loops over the steps.

    The operands are `w` (parameters,), `x` (steps, batch, input), `hx` (pseudo-layers, batch,
    output size), for an LSTM `cx` (pseudo-layers, batch, hidden size), if there are lengths
    `lengths` (batch,), if there is dropout `seed`.

    Parameters
    ----------
    rnn_mode, hidden_size, num_layers, bidirectional, skip_input, proj_size
        As for `RNNLayout`.
    dropout : float
        The probability with which an output between two layers is dropped.
    has_lengths : bool
        Whether the sequences have lengths of their own.
    algo : str
        What cuDNN computes the network with: see `dnnops.nnet.RNNBlock`. On the CPU it has no
        influence.

    Raises
    ------
    DnnTypeError, DnnValueError, DnnNotSupportedError
        As `RNNLayout` does, or if `dropout` is not in [0, 1), or there is no such `algo`.
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
        # There is nothing between the layers of a single one.
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

    #: The names of the parameters that both Ops have.
    network_props: tuple[str, ...] = __props__

    @property
    def network(self) -> dict[str, Any]:
        """The parameters of the network: those that both Ops have."""
        return {name: getattr(self, name) for name in self.network_props}

    def network_words(self) -> list[int]:
        """The network as the words that the runtime libraries' functions begin with."""
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
        """Return the operands by name, checked as far as they are known."""
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
        """Make variables of the operands that are no integers."""
        where = type(self).__name__
        return {n: float_tensor(where, n, value, RANKS.get(n, 3)) for n, value in named.items()}

    def _result(self, given: dict[str, Any], dtype: str, shape: Any) -> Any:
        """A new variable for a result of these operands."""
        return pt.tensor(dtype=dtype, shape=shape)

    def _reserve_length(self, steps: Any, batch: Any) -> Any:
        """The reserve's elements, None where not known."""
        return None if None in (steps, batch) else steps * batch * self.layout.reserve_size

    def check_shapes(self, shapes: dict[str, Any]) -> None:
        """Raise DnnValueError if shapes do not belong together.

        Parameters
        ----------
        shapes : dict of str to tuple of int or None
            Those of the operands, by name.
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
        """Raise DnnValueError if a sequence has less than one step, or more than there are."""
        most = np.inf if steps is None else steps
        if not all(1 <= length <= most for length in lengths.tolist()):
            number = "" if steps is None else f" {steps}"
            raise DnnValueError(
                f"{type(self).__name__}: lengths must be between 1 and the number of steps"
                f"{number}, got {lengths.tolist()}"
            )

    def _problem(self, names: tuple[str, ...], inputs: Any) -> tuple[RNNProblem, dict[str, Any]]:
        """The network with its operands' values, checked, and the operands by name."""
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
    """The dtype of the reserve of a network of a dtype."""
    return "float64" if dtype == "float64" else "float32"


class RNNForward(RNNBase, OptionalResultOp):
    """A recurrent network: ``RNNForward(...)(w, x, hx, [cx], [lengths], [seed])``.

    The results are `y` (steps, batch, directions * output size), `hy` of the shape of `hx`, for an
    LSTM `cy` of the shape of `cx`, and, if asked for, the *reserve*: a vector with what the
    gradient needs, whose contents are the affair of what computes it.

    Parameters
    ----------
    *network, **more_network
        As for `RNNBase`.
    keeps_reserve : bool
        Whether there is a reserve. Without it the gradient computes the network a second time.
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
        """The reserve's symbolic shape."""
        return (steps * batch * self.layout.reserve_size,)

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        count = len(node.outputs)
        row = [not (self.keeps_reserve and k == count - 1) for k in range(count)]
        return [
            [connected and name not in INT_OPERANDS for connected in row] for name in self.operands
        ]

    def gradient(self) -> RNNBackward:
        """The Op that computes the gradient."""
        return RNNBackward(**self.network)

    def _cotangent(self, result: Any, cotangent: Any) -> Any:
        """The gradient by a result, as the gradient's Op takes it."""
        if isinstance(cotangent.type, DisconnectedType):
            return pt.zeros_like(result)
        return pt.cast(cotangent, result.type.dtype)

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        if not self.keeps_reserve:
            # The merge of equal nodes does not see that this computes the same and more.
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
    """The gradient of `RNNForward`.

    ``RNNBackward(...)(w, x, hx, [cx], [lengths], [seed], y, reserve, gy, ghy, [gcy])`` gives the
    gradients by `w`, by `hx`, for an LSTM by `cx`, and, if asked for, by `x`; `gy` and so on are
    those by the results of `RNNForward`.

    Parameters
    ----------
    *network, **more_network
        As for `RNNBase`.
    by_x : bool
        Whether the gradient by `x` is wanted.
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
        # y and reserve are no variables of their own, but what they have to be for the others.
        constant = (*INT_OPERANDS, "y", "reserve")
        return [[name not in constant] * len(node.outputs) for name in self.all_operands]

    def _expressions(self, *operands: Any) -> list[Any]:
        if self.dropout:
            raise DnnNotSupportedError(
                f"{type(self).__name__}: there are no second derivatives, and none in forward "
                "mode, of a recurrent network with dropout between its layers. Make an RNNBlock of "
                "one layer for each, with dnnops.nnet.dropout between them, or leave dropout away"
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

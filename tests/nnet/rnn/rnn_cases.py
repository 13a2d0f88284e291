"""Cases of recurrent networks, and PyTorch's networks with the same parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from dnnops.nnet import RNNBackward, RNNForward
from dnnops.nnet.rnn.layout import RNN_MODES
from tests.oracle import normal


@dataclass(frozen=True)
class RNNCase:
    """A network with consistent sequences."""

    rnn_mode: str
    hidden_size: int
    num_layers: int
    bidirectional: bool
    skip_input: bool
    proj_size: int
    dropout: float
    has_lengths: bool
    steps: int
    batch: int
    input_size: int
    seed: int
    algo: str = "auto"

    @property
    def network(self) -> dict[str, Any]:
        """Return keyword arguments of the Ops."""
        names = RNNForward.__props__[:-1]
        return {name: getattr(self, name) for name in names}

    @property
    def forward(self) -> RNNForward:
        return RNNForward(**self.network)

    @property
    def backward(self) -> RNNBackward:
        return RNNBackward(**self.network)

    def operands(self, dtype: str = "float64") -> list[np.ndarray]:
        """Return the Op's operands: w, x, hx and, if used, cx, lengths and seed."""
        rng = np.random.default_rng(self.seed)
        layout = self.forward.layout
        states = (layout.state_count, self.batch)
        arrays = [
            0.5 * normal(rng, (layout.param_size(self.input_size),), dtype),
            normal(rng, (self.steps, self.batch, self.input_size), dtype),
            normal(rng, (*states, layout.output_size), dtype),
        ]
        if layout.has_cell:
            arrays.append(normal(rng, (*states, self.hidden_size), dtype))
        if self.has_lengths:
            arrays.append(rng.integers(1, self.steps + 1, size=self.batch))
        if self.forward.dropout:
            arrays.append(rng.integers(-(2**63), 2**63, dtype="int64"))
        return [np.asarray(a, a.dtype if a.dtype.kind == "i" else dtype) for a in arrays]

    def float_count(self) -> int:
        """Return the number of operands with gradients."""
        return 4 if self.forward.layout.has_cell else 3


@st.composite
def rnn_cases(
    draw: st.DrawFn,
    modes: Any = RNN_MODES,
    max_hidden: int = 5,
    max_layers: int = 3,
    max_steps: int = 5,
    max_batch: int = 4,
    torch: bool = False,
) -> RNNCase:
    """Return a strategy for `RNNCase`; with `torch`, only for networks that PyTorch supports."""
    mode = draw(st.sampled_from(list(modes)))
    hidden = draw(st.integers(1, max_hidden))
    skip = not torch and draw(st.booleans())
    projects = mode == "lstm" and hidden > 1 and not skip and draw(st.booleans())
    return RNNCase(
        rnn_mode=mode,
        hidden_size=hidden,
        num_layers=draw(st.integers(1, max_layers)),
        bidirectional=draw(st.booleans()),
        skip_input=skip,
        proj_size=draw(st.integers(1, hidden - 1)) if projects else 0,
        dropout=0.0 if torch else draw(st.sampled_from([0.0, 0.0, 0.4])),
        has_lengths=draw(st.booleans()),
        steps=draw(st.integers(1, max_steps)),
        batch=draw(st.integers(1, max_batch)),
        input_size=hidden if skip else draw(st.integers(1, max_hidden)),
        seed=draw(st.integers(0, 2**32 - 1)),
    )


def run_op(op: Any, *arrays: Any) -> list[np.ndarray]:
    """Run an Op's `perform`, and check the results' static shapes and dtypes."""
    node = op.make_node(*arrays)
    storage: list[list] = [[None] for _ in node.outputs]
    op.perform(node, [np.asarray(a) for a in arrays], storage)
    for variable, (value,) in zip(node.outputs, storage, strict=True):
        assert isinstance(value, np.ndarray)
        assert value.dtype.name == variable.type.dtype
        assert value.shape == variable.type.shape
    return [value for (value,) in storage]


def torch_network(case: RNNCase, w: np.ndarray) -> tuple[Any, list[Any]]:
    """Return PyTorch's network with these parameters, and its parameters in dnnops' order."""
    import torch

    dtype = getattr(torch, w.dtype.name)
    arguments: dict[str, Any] = {"proj_size": case.proj_size} if case.proj_size else {}
    kind = {"lstm": "LSTM", "gru": "GRU"}.get(case.rnn_mode, "RNN")
    if kind == "RNN":
        arguments["nonlinearity"] = case.rnn_mode.removeprefix("rnn_")
    network = getattr(torch.nn, kind)(
        case.input_size,
        case.hidden_size,
        case.num_layers,
        bidirectional=case.bidirectional,
        dtype=dtype,
        **arguments,
    )
    suffixes = [
        f"l{layer}{direction}"
        for layer in range(case.num_layers)
        for direction in (("", "_reverse") if case.bidirectional else ("",))
    ]
    matrices = ("weight_ih", "weight_hh", *(("weight_hr",) if case.proj_size else ()))
    names = [f"{m}_{s}" for s in suffixes for m in matrices]
    names += [f"{b}_{s}" for s in suffixes for b in ("bias_ih", "bias_hh")]
    parameters = [getattr(network, name) for name in names]
    begin = 0
    with torch.no_grad():
        for parameter in parameters:
            piece = w[begin : begin + parameter.numel()]
            parameter.copy_(torch.from_numpy(piece.copy()).view(parameter.shape))
            begin += parameter.numel()
    assert begin == w.size
    return network, parameters


def torch_results(case: RNNCase, operands: list[Any], cotangents: list[Any]) -> list[np.ndarray]:
    """Return PyTorch's outputs, then the gradients with respect to w, hx, cx and x."""
    import torch

    w, *floats = operands[: case.float_count()]
    network, parameters = torch_network(case, w)
    x, *states = (torch.from_numpy(a.copy()).requires_grad_() for a in floats)
    given = tuple(states) if len(states) == 2 else states[0]
    if case.has_lengths:
        lengths = torch.from_numpy(operands[case.float_count()])
        packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
        y, last = network(packed, given)
        y, _ = torch.nn.utils.rnn.pad_packed_sequence(y, total_length=case.steps)
    else:
        y, last = network(x, given)
    results = [y, *(last if isinstance(last, tuple) else (last,))]
    wanted = [*parameters, *states, x]
    gradients = torch.autograd.grad(
        results, wanted, [torch.from_numpy(g) for g in cotangents], allow_unused=True
    )
    flat = [g.numpy().ravel() for g in gradients[: len(parameters)]]
    others = [g.numpy() for g in gradients[len(parameters) :]]
    return [*(r.detach().numpy() for r in results), np.concatenate(flat), *others]

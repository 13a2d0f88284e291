"""Recurrent networks as expressions, which PyTensor can differentiate to any order.

The expressions loop over the steps of each pseudo-layer with ``scan``. This is slower than a
library call, but every Op in the loop has derivatives.
"""

from __future__ import annotations

from typing import Any

import pytensor
import pytensor.tensor as pt

from dnnops.nnet.rnn.layout import PseudoLayer, RNNLayout
from dnnops.nnet.validate import accumulator_dtype

__all__ = ["rnn_expressions", "rnn_gradient_expressions"]


def _gates(values: Any, count: int, size: int) -> list[Any]:
    return [values[..., gate * size : (gate + 1) * size] for gate in range(count)]


def _cell(layout: RNNLayout, pre: Any, rec: Any, h: Any, c: Any) -> tuple[Any, Any]:
    """Compute one step: the new output and, for an LSTM, the new cell state."""
    size = layout.hidden_size
    if layout.rnn_mode == "lstm":
        i, f, g, o = _gates(pre + rec, 4, size)
        c = pt.sigmoid(f) * c + pt.sigmoid(i) * pt.tanh(g)
        return pt.sigmoid(o) * pt.tanh(c), c
    if layout.rnn_mode == "gru":
        (pre_r, pre_z, pre_n), (rec_r, rec_z, rec_n) = (_gates(x, 3, size) for x in (pre, rec))
        z = pt.sigmoid(pre_z + rec_z)
        n = pt.tanh(pre_n + pt.sigmoid(pre_r + rec_r) * rec_n)
        return (1 - z) * n + z * h, None
    total = pre + rec
    return pt.tanh(total) if layout.rnn_mode == "rnn_tanh" else pt.switch(
        total <= 0, 0, total
    ), None


def _pseudo_layer(
    layout: RNNLayout,
    part: PseudoLayer,
    w: Any,
    below: Any,
    states: list[Any],
    active: Any,
    skips: bool,
    backward: bool,
) -> tuple[Any, list[Any]]:
    """Return the outputs of all steps, zero past a sequence's end, and the final states."""
    matrices, recurrent, input_bias, recurrent_bias, projection = part.arrays(w)
    if skips:
        pre = pt.concatenate([below] * layout.gates, axis=-1) + input_bias
    else:
        pre = pt.dot(below, matrices.T) + input_bias
    sequences = [pre] if active is None else [pre, active]
    weights = [recurrent, recurrent_bias] + ([] if projection is None else [projection])

    def step(*arguments: Any) -> list[Any]:
        pre_t, *rest = arguments
        active_t = None if active is None else rest.pop(0)
        old, (matrix, bias, *projections) = rest[: len(states)], rest[len(states) :]
        h, c = (*old, None)[:2]
        new_h, new_c = _cell(layout, pre_t, pt.dot(h, matrix.T) + bias, h, c)
        if projections:
            new_h = pt.dot(new_h, projections[0].T)
        new = [new_h] if new_c is None else [new_h, new_c]
        if active_t is None:
            return new
        return [pt.switch(active_t, after, before) for after, before in zip(new, old, strict=True)]

    found = pytensor.scan(
        step,
        sequences=sequences,
        outputs_info=states,
        non_sequences=weights,
        go_backwards=backward,
        strict=True,
        return_updates=False,
    )
    walked = found if isinstance(found, list | tuple) else [found]
    outputs = walked[0][::-1] if backward else walked[0]
    if active is not None:
        outputs = pt.switch(active, outputs, 0)
    return outputs, [after[-1] for after in walked]


def rnn_expressions(
    layout: RNNLayout, w: Any, x: Any, hx: Any, cx: Any = None, lengths: Any = None
) -> list[Any]:
    """Build the expressions of a network without dropout.

    Parameters
    ----------
    layout : RNNLayout
    w, x, hx, cx, lengths : TensorVariable
        Operands of `RNNForward`.

    Returns
    -------
    list of TensorVariable
        `y`, `hy` and, for an LSTM, `cy`, with the dtype of the accumulator.
    """
    dtype = accumulator_dtype(x.type.dtype).name
    w, x, *initial = (pt.cast(v, dtype) for v in (w, x, hx, cx) if v is not None)
    input_size = x.shape[2] if x.type.shape[2] is None else x.type.shape[2]
    active = None
    if lengths is not None:
        active = (pt.arange(x.shape[0])[:, None] < lengths)[..., None]
        # Values past the end of a sequence are arbitrary and may be NaN.
        x = pt.switch(active, x, 0)
    last: list[list[Any]] = []
    below = x
    parts = layout.pseudo_layers(input_size)
    for layer in range(layout.num_layers):
        outputs = []
        for direction in range(layout.directions):
            number = layer * layout.directions + direction
            states = [state[number] for state in initial]
            skips = layout.skip_input and layer == 0
            output, after = _pseudo_layer(
                layout, parts[number], w, below, states, active, skips, direction == 1
            )
            outputs.append(output)
            last.append(after)
        below = pt.concatenate(outputs, axis=-1)
    return [below, *(pt.stack(states) for states in zip(*last, strict=True))]


def rnn_gradient_expressions(
    layout: RNNLayout, operands: dict[str, Any], cotangents: list[Any], wrt: tuple[str, ...]
) -> list[Any]:
    """Build the gradients of a network without dropout.

    Parameters
    ----------
    layout : RNNLayout
    operands : dict
        `w`, `x`, `hx` and, if used, `cx` and `lengths`.
    cotangents : list of TensorVariable
        Gradients with respect to all results.
    wrt : tuple of str
        Names of the operands to differentiate with respect to.

    Returns
    -------
    list of TensorVariable
        Gradients, each with the dtype of its operand.
    """
    # Copy the results: a state is part of the output, and a gradient given for the output would
    # replace the gradient that flows through the state.
    results = [result.copy() for result in rnn_expressions(layout, **operands)]
    known = {r: pt.cast(g, r.type.dtype) for r, g in zip(results, cotangents, strict=True)}
    by = [operands[name] for name in wrt]
    found: Any = pytensor.grad(None, by, known_grads=known)
    return [pt.cast(g, v.type.dtype) for g, v in zip(found, by, strict=True)]

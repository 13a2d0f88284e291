"""Reference implementation of recurrent networks in NumPy, used to test the libraries.

Arrays of a pseudo-layer have shape (steps, batch, size). The *reserve* holds the data of the
forward pass that the gradient needs: the values saved by the cells of each pseudo-layer, then the
outputs of all layers but the last. Steps past the end of a sequence are zero in the reserve, as in
the output.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dnnops.nnet.rnn.layout import RNNLayout, keep_mask

__all__ = ["RNNProblem", "rnn_backward", "rnn_forward"]


@dataclass(frozen=True)
class RNNProblem:
    """A recurrent network with its operands.

    Attributes
    ----------
    layout : RNNLayout
    w : (parameters,) ndarray
    x : (steps, batch, input) ndarray
    hx, cx : (pseudo-layers, batch, size) ndarray
        States before the first step; `cx` is None except for an LSTM.
    lengths : (batch,) ndarray
        Number of steps of each sequence.
    dropout, seed : float, int
        Dropout probability between layers, and its seed.
    """

    layout: RNNLayout
    w: np.ndarray
    x: np.ndarray
    hx: np.ndarray
    cx: np.ndarray | None
    lengths: np.ndarray
    dropout: float = 0.0
    seed: int = 0

    @property
    def active(self) -> np.ndarray:
        """Mask of shape (steps, batch, 1) of the steps before the end of each sequence."""
        return (np.arange(len(self.x))[:, None] < self.lengths)[..., None]

    def walk(self, number: int) -> range:
        """Return the steps in the order in which a pseudo-layer processes them."""
        steps = range(len(self.x))
        return steps[::-1] if self.is_backward(number) else steps

    def is_backward(self, number: int) -> bool:
        """Return whether a pseudo-layer starts at the end of the sequences."""
        return self.layout.bidirectional and number % 2 == 1

    def before(self, number: int, states: np.ndarray, initial: np.ndarray) -> np.ndarray:
        """Return the states before each step, given those after each step."""
        if not self.is_backward(number):
            return np.concatenate([initial[None], states])[: len(states)]
        later = np.concatenate([states, initial[None]])[1:]
        begins = np.arange(len(states))[:, None] == self.lengths - 1
        return np.where(begins[..., None], initial, later)

    def dropped(self, layer: int, values: np.ndarray) -> np.ndarray:
        """Apply dropout to the output of a layer."""
        if not self.dropout:
            return values
        kept = keep_mask(self.seed, layer, values.shape, self.dropout)
        return np.where(kept, values / (1 - self.dropout), 0)

    def columns(self, number: int) -> slice:
        """Return the slice of the layer's output that belongs to a pseudo-layer."""
        direction, size = number % self.layout.directions, self.layout.output_size
        return slice(direction * size, (direction + 1) * size)

    def reserve_parts(self, reserve: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the saved cell values and the outputs as views of the reserve."""
        layout, (steps, batch) = self.layout, self.x.shape[:2]
        cells = layout.state_count * layout.saved_size * steps * batch
        width = layout.directions * layout.output_size
        return (
            reserve[:cells].reshape(layout.state_count, steps, batch, layout.saved_size),
            reserve[cells:].reshape(layout.num_layers - 1, steps, batch, width),
        )


def sigmoid(x: np.ndarray) -> np.ndarray:
    """Compute the logistic function with tanh, which doesn't overflow."""
    return 0.5 * (1 + np.tanh(0.5 * x))


def _gates(values: np.ndarray, count: int) -> Iterator[np.ndarray]:
    return iter(np.split(values, count, axis=-1))


def _cell(mode: str, pre: np.ndarray, rec: np.ndarray, h: np.ndarray, c: Any) -> tuple:
    """Compute one step: the new output, the new cell state, and values for the gradient."""
    if mode == "lstm":
        i, f, g, o = _gates(pre + rec, 4)
        i, f, g, o = sigmoid(i), sigmoid(f), np.tanh(g), sigmoid(o)
        c = f * c + i * g
        return o * np.tanh(c), c, np.concatenate([i, f, g, o, c], axis=-1)
    if mode == "gru":
        (pre_r, pre_z, pre_n), (rec_r, rec_z, rec_n) = _gates(pre, 3), _gates(rec, 3)
        r, z = sigmoid(pre_r + rec_r), sigmoid(pre_z + rec_z)
        n = np.tanh(pre_n + r * rec_n)
        return (1 - z) * n + z * h, c, np.concatenate([r, z, n, rec_n], axis=-1)
    h = np.tanh(pre + rec) if mode == "rnn_tanh" else np.maximum(pre + rec, 0)
    return h, c, h[..., :0]


def rnn_forward(problem: RNNProblem) -> tuple[np.ndarray, np.ndarray, Any, np.ndarray]:
    """Run a network forward.

    Returns
    -------
    y : (steps, batch, directions * output size)
    hy, cy : final states, with the shapes of the initial states
    reserve : (steps * batch * reserve size,)
    """
    p, layout = problem, problem.layout
    steps, batch, input_size = p.x.shape
    hy, cy = p.hx.copy(), None if p.cx is None else p.cx.copy()
    reserve = np.zeros(steps * batch * layout.reserve_size, dtype=p.x.dtype)
    saved, between = p.reserve_parts(reserve)
    below = y = p.x
    for number, part in enumerate(layout.pseudo_layers(input_size)):
        layer, direction = divmod(number, layout.directions)
        if direction == 0:
            below = p.x if layer == 0 else p.dropped(layer - 1, y)
            y = np.zeros((steps, batch, layout.directions * layout.output_size), p.x.dtype)
        matrices, recurrent, input_bias, recurrent_bias, projection = part.arrays(p.w)
        if layout.skip_input and layer == 0:
            pre = np.tile(below, layout.gates) + input_bias
        else:
            pre = below @ matrices.T + input_bias
        h, c = hy[number], None if cy is None else cy[number]
        for t in p.walk(number):
            rec = h @ recurrent.T + recurrent_bias
            new_h, new_c, kept = _cell(layout.rnn_mode, pre[t], rec, h, c)
            if projection is not None:
                new_h = new_h @ projection.T
            active = p.active[t]
            h = np.where(active, new_h, h)
            c = None if c is None else np.where(active, new_c, c)
            y[t, :, p.columns(number)] = np.where(active, new_h, 0)
            saved[number, t] = np.where(active, kept, 0)
        hy[number] = h
        if cy is not None:
            cy[number] = c
        if layer < layout.num_layers - 1:
            between[layer] = y
    return y, hy, cy, reserve


def _cell_gradient(mode: str, saved: np.ndarray, dh: np.ndarray, dc: Any, before: Any) -> tuple:
    """Compute the gradients of one step.

    The gradients are with respect to the input part and the recurrent part of the gates, to the
    previous output where it enters directly, and to the previous cell state.
    """
    h_before, c_before, h = before
    if mode == "lstm":
        i, f, g, o, c = _gates(saved, 5)
        dc = dc + dh * o * (1 - np.tanh(c) ** 2)
        dpre = [
            dc * g * i * (1 - i),
            dc * c_before * f * (1 - f),
            dc * i * (1 - g**2),
            dh * np.tanh(c) * o * (1 - o),
        ]
        joined = np.concatenate(dpre, axis=-1)
        return joined, joined, 0, dc * f
    if mode == "gru":
        r, z, n, rec_n = _gates(saved, 4)
        dn = dh * (1 - z) * (1 - n**2)
        dr, dz = dn * rec_n * r * (1 - r), dh * (h_before - n) * z * (1 - z)
        dpre, drec = [dr, dz, dn], [dr, dz, dn * r]
        return np.concatenate(dpre, axis=-1), np.concatenate(drec, axis=-1), dh * z, dc
    joined = dh * (1 - h**2) if mode == "rnn_tanh" else np.where(h <= 0, 0, dh)
    return joined, joined, 0, dc


def _sum_outer(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return np.tensordot(first, second, axes=([0, 1], [0, 1]))


def rnn_backward(
    problem: RNNProblem, y: np.ndarray, reserve: np.ndarray, gy: np.ndarray, ghy: Any, gcy: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray, Any]:
    """Compute the gradients of a network.

    Parameters
    ----------
    problem : RNNProblem
    y, reserve : ndarray
        Results of `rnn_forward`.
    gy, ghy, gcy : ndarray
        Gradients with respect to the results; `gcy` is None if the network has no cell state.

    Returns
    -------
    dw, dx, dhx, dcx : ndarray
        Gradients with respect to the operands; `dcx` is None if `gcy` is None.
    """
    p, layout = problem, problem.layout
    saved, between = p.reserve_parts(reserve)
    outputs = [*between, y]
    # Values past the end of a sequence are arbitrary and may be NaN.
    x = np.where(p.active, p.x, 0)
    dw, dhx = np.zeros_like(p.w), ghy.copy()
    dcx = None if gcy is None else gcy.copy()
    parts = layout.pseudo_layers(p.x.shape[2])
    above = gy
    for layer in reversed(range(layout.num_layers)):
        below = x if layer == 0 else p.dropped(layer - 1, outputs[layer - 1])
        dbelow = np.zeros_like(below)
        for direction in range(layout.directions):
            number = layer * layout.directions + direction
            part = parts[number]
            matrices, recurrent, _, _, projection = part.arrays(p.w)
            slots = part.arrays(dw)
            h = outputs[layer][..., p.columns(number)]
            h_before = p.before(number, h, p.hx[number])
            c_before = None
            if p.cx is not None:
                c = saved[number][..., -layout.hidden_size :]
                c_before = p.before(number, c, p.cx[number])
            dh, dc = dhx[number], None if dcx is None else dcx[number]
            dpre = np.zeros((*p.x.shape[:2], layout.gates * layout.hidden_size), p.x.dtype)
            drec, dout = np.zeros_like(dpre), np.zeros_like(h)
            for t in reversed(p.walk(number)):
                active = p.active[t]
                dout[t] = np.where(active, dh + above[t, :, p.columns(number)], 0)
                by_cell = dout[t] if projection is None else dout[t] @ projection
                before = (h_before[t], None if c_before is None else c_before[t], h[t])
                *found, direct, new_dc = _cell_gradient(
                    layout.rnn_mode, saved[number, t], by_cell, dc, before
                )
                dpre[t], drec[t] = (np.where(active, d, 0) for d in found)
                dh = np.where(active, direct + drec[t] @ recurrent, dh)
                dc = None if dc is None else np.where(active, new_dc, dc)
            dhx[number] = dh
            if dcx is not None:
                dcx[number] = dc
            if layout.skip_input and layer == 0:
                dbelow += sum(_gates(dpre, layout.gates))
            else:
                dbelow += dpre @ matrices
                slots[0][:] = _sum_outer(dpre, below)
            slots[1][:] = _sum_outer(drec, h_before)
            slots[2][:], slots[3][:] = dpre.sum(axis=(0, 1)), drec.sum(axis=(0, 1))
            if projection is not None:
                o = saved[number][..., 3 * part.hidden : 4 * part.hidden]
                slots[4][:] = _sum_outer(dout, o * np.tanh(c))
        above = p.dropped(layer - 1, dbelow) if layer else dbelow
    return dw, above, dhx, dcx

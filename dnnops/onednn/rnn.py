"""Recurrent networks and their gradient on the CPU, in float32 and float64.

Matrix products are oneDNN's, in float64 SciPy's BLAS's; cells run in loops of our own.
"""

from __future__ import annotations

import struct

from dnnops.nnet.rnn_layout import RNN_MODES
from dnnops.nnet.rnn_ops import RNNBackward, RNNBase, RNNForward
from dnnops.onednn.base import OneDnnOp

__all__ = ["OneDnnRNNBackward", "OneDnnRNNForward"]


def _words(op: RNNBase, flag: bool) -> list[int]:
    (dropout,) = struct.unpack("q", struct.pack("d", op.dropout))
    return [
        RNN_MODES.index(op.rnn_mode),
        op.hidden_size,
        op.num_layers,
        int(op.bidirectional),
        int(op.skip_input),
        op.proj_size,
        dropout,
        int(op.has_lengths),
        int(flag),
    ]


class OneDnnRNNForward(OneDnnOp, RNNForward):
    """`RNNForward`: one matrix product for all steps' input, then one a step for the recurrence."""

    function = "dnnops_onednn_rnn_forward"

    def parameters(self) -> list[int]:
        return _words(self, self.keeps_reserve)


class OneDnnRNNBackward(OneDnnOp, RNNBackward):
    """`RNNBackward`: one matrix product a step, then one for each gradient of a matrix."""

    function = "dnnops_onednn_rnn_backward"

    def parameters(self) -> list[int]:
        return _words(self, self.by_x)

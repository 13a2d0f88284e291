"""The CTC loss."""

from __future__ import annotations

from typing import Any

from dnnops.cudnn.ctc import GpuDnnCTC

__all__ = ["dnn_ctc"]


def dnn_ctc(
    activations: Any,
    labels: Any,
    input_lengths: Any,
    label_lengths: Any = None,
    deterministic: bool | None = None,
) -> Any:
    """Compute the CTC loss of each sequence of a batch, on cuDNN.

    Parameters
    ----------
    activations : (steps, batch, classes)
        float32, before the softmax, which is part of the loss. Class 0 is the blank.
    labels : integer matrix, (batch, columns)
        A label of at most 255 symbols in each row. Negative entries are padding.
    input_lengths : integer vector, (batch,)
        How many steps of each sequence count.
    label_lengths : integer vector, (batch,), optional
        How many entries of each row are its label.
    deterministic : bool, optional
        Whether the gradient is to be the same bits in every run. Default: the flag
        ``dnn.deterministic``.

    Returns
    -------
    GpuArrayVariable, (batch,)
        Minus the logarithm of each label's probability.

    Raises
    ------
    DnnTypeError, DnnValueError
        As `dnnops.nnet.ctc`, which takes other dtypes and longer labels.
    """
    op = GpuDnnCTC(True, label_lengths is not None, deterministic)
    lengths = [input_lengths] if label_lengths is None else [input_lengths, label_lengths]
    return op.make_node(activations, labels, *lengths).outputs[0]

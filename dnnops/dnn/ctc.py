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
    deterministic: bool = True,
) -> Any:
    """Compute the CTC loss of each sequence of a batch, on cuDNN.

    `dnnops.nnet.ctc` takes all of what cuDNN does not, and runs on the GPU in kernels of our own.

    Parameters
    ----------
    activations : (steps, batch, classes)
        float32, before the softmax, which is part of the loss. Class 0 is the blank.
    labels : integer matrix, (batch, columns)
        A label of 1 to 255 symbols in each row. Negative entries are padding.
    input_lengths : integer vector, (batch,)
        How many steps of each sequence count.
    label_lengths : integer vector, (batch,), optional
        How many entries of each row are its label.
    deterministic : bool, default True
        Whether the gradient is to be the same bits in every run. See the notes before you say
        False.

    Returns
    -------
    GpuArrayVariable, (batch,)
        Minus the logarithm of each label's probability.

    Raises
    ------
    DnnTypeError, DnnValueError
        As `dnnops.nnet.ctc`; also if `activations` are not float32.
    DnnNotSupportedError
        When the function runs: if a label has more than 255 symbols, or none at all. cuDNN 9.19
        gives the latter a cost of 0, whatever the activations.

    Notes
    -----
    cuDNN adds logarithms in float32: gradients are less exact the higher the cost is. Relative
    errors on cuDNN 9.19 were 1e-5 for a cost of 70, and 8e-5 for one of 470. Those of
    `dnnops.nnet.ctc` are below 1e-5 on a GPU, too, whatever the cost. And a probability below 1e-38
    in a single step, of activations that differ by 87 or more, may make a cost infinite.

    Where a label's probability is 1 but for roundings of float32, cuDNN 9.19 gives gradients of 1
    that should be 0. They are put right here. The cost of such a label is what roundings leave of
    it: with probabilities of ``1 - 9e-7`` in each of 200 steps, one of 1.84e-4 was 7e-6 off.

    Where activations of minus infinity rule a label out, the cost is infinite, but gradients may
    be finite numbers that mean nothing. `dnnops.nnet.ctc` gives NaN.

    With ``deterministic=False`` cuDNN 9.19 was no faster on an H200, and where activations were
    large (a standard deviation of 30) a gradient was wrong by 1, with the right cost. PyTorch does
    not call that algorithm, for the same reason.
    """
    op = GpuDnnCTC(True, label_lengths is not None, deterministic)
    lengths = [input_lengths] if label_lengths is None else [input_lengths, label_lengths]
    return op.make_node(activations, labels, *lengths).outputs[0]

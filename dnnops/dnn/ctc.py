"""The CTC loss on cuDNN."""

from __future__ import annotations

from typing import Any

from dnnops.gpu.ctc import GpuCTC, GpuCTCBase, GpuDnnCTC
from dnnops.gpuarray.op import is_on_device
from dnnops.gpuarray.transfer import HostFromGpu

__all__ = ["dnn_ctc"]


def dnn_ctc(
    activations: Any,
    labels: Any,
    input_lengths: Any,
    label_lengths: Any = None,
    deterministic: bool = True,
) -> Any:
    """Compute the CTC loss of each sequence of a batch on cuDNN.

    `dnnops.nnet.ctc` also supports the cases that cuDNN doesn't, with dnnops kernels on the GPU.

    Parameters
    ----------
    activations : (steps, batch, classes)
        Activations in float32, before the softmax, which is part of the loss. Class 0 is the blank.
    labels : integer matrix, (batch, columns)
        Labels of 1 to 255 symbols, one in each row. Negative entries are padding. cuDNN takes
        labels and lengths on the host. If any of them is a device variable, the loss is computed
        by the kernels of `dnnops.nnet.ctc` instead, so that nothing is copied back in each call.
    input_lengths : integer vector, (batch,)
        Number of valid steps in each sequence.
    label_lengths : integer vector, (batch,), optional
        Number of valid entries in each row of `labels`.
    deterministic : bool, default True
        Whether the gradient must be identical in every run. See the notes before you set this to
        False.

    Returns
    -------
    GpuArrayVariable, (batch,)
        Negative logarithm of the probability of each label.

    Raises
    ------
    DnnTypeError, DnnValueError
        In the same cases as `dnnops.nnet.ctc`, or if `activations` are not float32.
    DnnNotSupportedError
        When the function runs, if a label is empty or has more than 255 symbols. cuDNN 9.19 gives
        empty labels a cost of 0, regardless of the activations.

    Notes
    -----
    cuDNN adds logarithms in float32, so gradients lose accuracy as the cost grows. With cuDNN 9.19,
    the relative error was 1e-5 for a cost of 70, and 8e-5 for a cost of 470. With `dnnops.nnet.ctc`
    on a GPU, it is below 1e-5 for any cost. A cost can become infinite if a single step has a
    probability below 1e-38, which happens if activations differ by 87 or more.

    If the probability of a label is 1 up to float32 rounding, cuDNN 9.19 returns gradients of 1
    that should be 0; this function corrects them. Rounding dominates the cost of such a label: with
    probabilities of ``1 - 9e-7`` in each of 200 steps, a cost of 1.84e-4 was off by 7e-6.

    If activations of minus infinity make a label impossible, the cost is infinite, but gradients
    may be finite numbers without meaning. `dnnops.nnet.ctc` returns NaN.

    With ``deterministic=False``, cuDNN 9.19 was no faster on an H200. For large activations (a
    standard deviation of 30), a gradient was wrong by 1, while the cost was right. PyTorch avoids
    that algorithm for the same reason.
    """
    op: GpuCTCBase = GpuDnnCTC(True, label_lengths is not None, deterministic)
    lengths = [input_lengths] if label_lengths is None else [input_lengths, label_lengths]
    node = op.make_node(activations, labels, *lengths)
    if any(map(_is_stored_on_device, (labels, *lengths))):
        op = GpuCTC(True, label_lengths is not None, labels_on_device=True)
        node = op.make_node(node.inputs[0], labels, *lengths)
    return node.outputs[0]


def _is_stored_on_device(x: Any) -> bool:
    owner = getattr(x, "owner", None)
    return is_on_device(x) or (owner is not None and isinstance(owner.op, HostFromGpu))

"""Weights of PyTorch's modules."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from dnnops.arguments import shown
from dnnops.errors import DnnError, DnnTypeError, DnnWarning
from dnnops.layers.layer import Layer
from dnnops.layers.streams import split_name

__all__ = ["from_torch", "to_torch"]

#: What PyTorch's batch normalization stores in addition: the number of batches, which only a
#: momentum of None uses.
_COUNTS = "num_batches_tracked"

_UTILS = "torch.nn.utils."
_OF = r"(?:.+\.)?"
#: Names of tensors of PyTorch's reparametrizations and wrappers, and how to get the plain ones.
_WRAPPERS = {
    _OF + r"parametrizations\.(?P<name>\w+)\..+": "a parametrization computes {name}: call"
    f" {_UTILS}parametrize.remove_parametrizations(module, '{{name}}')",
    _OF + r"(?P<name>\w+)_g": "if weight normalization computes {name}, call"
    f" {_UTILS}remove_weight_norm(module, '{{name}}')",
    _OF + r"(?P<name>\w+)_u": "if spectral normalization computes {name}, call"
    f" {_UTILS}remove_spectral_norm(module, '{{name}}')",
    _OF + r"(?P<name>\w+)_mask": "if pruning computes {name}, call"
    f" {_UTILS}prune.remove(module, '{{name}}')",
    _OF
    + r"_packed_params\..+": "a quantized module has no plain weights: pass the module from which"
    " it was made",
    r"module\..+": "if the module is wrapped, by DataParallel or AveragedModel for example, pass"
    " its attribute `module`",
    r"_orig_mod\..+": "if the module was compiled, pass its attribute `_orig_mod`",
}


def from_torch(net: Layer, source: Any, strict: bool = True) -> Layer:
    """Set the parameters and buffers of a network to those of a PyTorch module.

    The layers of both must have the same names. Names and shapes of the parameters of convolutions,
    dense layers, embeddings, normalizations, recurrent networks, attention and encoder layers are
    the same in PyTorch.

    Parameters
    ----------
    net : Layer
        Network to change.
    source : torch.nn.Module or mapping of str to torch.Tensor
        Module, or its ``state_dict()``.
    strict : bool
        Whether missing and unknown names are errors.

    Returns
    -------
    Layer
        `net`.

    Raises
    ------
    DnnTypeError
        If `net` is not a layer, or `source` is neither a module nor its state, but for example a
        checkpoint with the state of an optimizer, too. Also if a tensor has no values, as those of
        lazy modules and of the device ``meta``, or if it is sparse, quantized, nested or complex.
    DnnValueError
        If names or shapes differ; the message lists all of them, and nothing has been changed. It
        says how to remove a reparametrization, such as weight or spectral normalization.

    Examples
    --------
    >>> lstm = from_torch(LSTM(8, 16), torch.nn.LSTM(8, 16))
    """
    if not isinstance(net, Layer):
        raise DnnTypeError(f"from_torch: net must be a layer, got {shown(net)}")
    is_module = hasattr(source, "state_dict") and not isinstance(source, type)
    state = source.state_dict() if is_module else source
    if not isinstance(state, Mapping):
        raise DnnTypeError(f"from_torch: source must be a module or its state, got {shown(source)}")
    # Checkpoints of a training run have the state of the module beside that of the optimizer.
    inner = [name for name, value in state.items() if isinstance(value, Mapping)]
    if inner and not any("_extra_state" in str(name) for name in inner):
        raise DnnTypeError(
            f"from_torch: source is not the state of a module, but has others within it, under"
            f" {', '.join(map(repr, inner))}: pass the one of the module"
        )
    wanted = {name: value for name, value in state.items() if name.split(".")[-1] != _COUNTS}
    try:
        with warnings.catch_warnings():
            # PyTorch stores no random states.
            warnings.filterwarnings("ignore", r".*random streams", DnnWarning)
            net.load_state_dict(wanted, strict)
    except DnnError as error:
        advice = sorted({_advice(name) for name in wanted} - {""})
        if not advice:
            raise
        raise type(error)("\n  ".join([f"{error}", *advice])) from error
    return net


def _advice(name: str) -> str:
    """Return what to do about a tensor that a wrapper of a module has; empty if it has none."""
    for pattern, advice in _WRAPPERS.items():
        found = re.fullmatch(pattern, name)
        if found:
            return "from_torch: " + advice.format(**found.groupdict())
    return ""


def to_torch(net: Layer) -> dict[str, np.ndarray]:
    """Return the parameters and buffers of a network for PyTorch.

    Parameters
    ----------
    net : Layer

    Returns
    -------
    dict of str to ndarray
        The state, from which PyTorch takes
        ``module.load_state_dict({name: torch.from_numpy(x) for name, x in state.items()})``.
        The numbers of batches of batch normalizations are 0.

    Raises
    ------
    DnnTypeError
        If `net` is not a layer.
    """
    if not isinstance(net, Layer):
        raise DnnTypeError(f"to_torch: net must be a layer, got {shown(net)}")
    state = {name: x for name, x in net.state_dict().items() if split_name(name)[1] is None}
    # PyTorch stores a layer that occurs several times under each of its names.
    for alias, prefix in net.aliases().items():
        state |= {
            alias + name.removeprefix(prefix): value
            for name, value in list(state.items())
            if name.startswith(prefix)
        }
    counts = {
        name.removesuffix("running_mean") + _COUNTS: np.zeros((), dtype="int64")
        for name in state
        if name.split(".")[-1] == "running_mean"
    }
    return {**state, **counts}

"""Passes that were launched as recorded CUDA graphs: recurrent networks' and attention's."""

from __future__ import annotations

from dnnops.cudnn.base import CUDNN

__all__ = ["replay_failure", "replays"]


def replays() -> int:
    """How many passes of this thread were launched as recorded CUDA graphs.

    Returns
    -------
    int
        Calls of forward Ops and of gradients.
    """
    return CUDNN.library.dnnops_cudnn_replays()


def replay_failure() -> str:
    """Why a pass of this thread could not be recorded as a CUDA graph, and was launched as it is.

    Returns
    -------
    str
        cuDNN's or CUDA's words; empty if there was no failure.
    """
    return CUDNN.library.dnnops_cudnn_replay_failure().decode()

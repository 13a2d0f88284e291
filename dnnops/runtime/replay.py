"""Count the calls of recurrent networks and attention that were replayed as CUDA graphs."""

from __future__ import annotations

from dnnops.runtime.build import CUDNN

__all__ = ["replay_failure", "replays"]


def replays() -> int:
    """Return how many calls of this thread were replayed as CUDA graphs.

    Returns
    -------
    int
        Number of calls, of forward Ops and of gradients.
    """
    return CUDNN.library.dnnops_cudnn_replays()


def replay_failure() -> str:
    """Return why a call of this thread could not be recorded as a CUDA graph.

    Such a call is launched without a graph.

    Returns
    -------
    str
        Message of cuDNN or CUDA; empty if there was no failure.
    """
    return CUDNN.library.dnnops_cudnn_replay_failure().decode()

"""Let functions of PyTensor's PyTorch linker be pickled, before and after calls."""

from __future__ import annotations

from typing import Any

from pytensor.link.pytorch.linker import PytorchLinker

__all__ = ["separate_functions"]

#: Where a linker collects the Python functions that it has converted nodes to.
_COLLECTED = "gen_functors"


def separate_functions() -> None:
    """Give each copy of a PyTorch linker its own list of converted nodes.

    PyTensor copies the linker of a mode for each function, but all copies share one list, which
    keeps the nodes of all functions of the process. Functions are pickled with their mode, hence
    with local functions of that list, which Python cannot pickle. An unpickled function converts
    its nodes again.
    """
    if "__getstate__" not in vars(PytorchLinker):
        PytorchLinker.__getstate__ = _state  # type: ignore[assignment]


def _state(linker: PytorchLinker) -> dict[str, Any]:
    """Return what is copied and pickled."""
    return {**vars(linker), _COLLECTED: []} if _COLLECTED in vars(linker) else vars(linker)

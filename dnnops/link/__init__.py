"""Support for the Ops of dnnops in PyTensor's Numba, JAX and PyTorch linkers.

PyTensor converts a graph for these libraries node by node, with functions that are registered for
Op classes. The conversions of dnnops are in `dnnops.link.numba_dispatch` for CPU Ops, and in
`dnnops.link.jax` and `dnnops.link.pytorch`, with one file for each family of abstract Ops. They are
imported right after PyTensor's own conversions, so no library is loaded, or required, before then.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from dnnops.link.torch_linker import separate_functions

__all__ = ["register_conversions"]

#: PyTensor's modules of conversions, and the dnnops modules to import after them.
CONVERSIONS = {
    "pytensor.link.jax.dispatch": "dnnops.link.jax",
    "pytensor.link.numba.dispatch": "dnnops.link.numba_dispatch",
    "pytensor.link.pytorch.dispatch": "dnnops.link.pytorch",
}


class _ImportWithPyTensor:
    """Import hook that imports the conversions of dnnops after those of PyTensor."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find one of PyTensor's modules of conversions, with the other finders."""
        if fullname not in CONVERSIONS:
            return None
        for finder in sys.meta_path:
            if not isinstance(finder, _ImportWithPyTensor):
                spec = finder.find_spec(fullname, path, target)
                if spec is not None:
                    _follow(spec, CONVERSIONS[fullname])
                    return spec
        return None


def _follow(spec: ModuleSpec, name: str) -> None:
    """Import the module `name` after executing the module of a spec."""
    loader: Any = spec.loader
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        execute(module)
        import_module(name)

    loader.exec_module = exec_module


def register_conversions() -> None:
    """Register the conversions of dnnops, now or when PyTensor imports its own.

    PyTensor imports its conversions when a linker is used, and has no entry points for others.
    Registering them in a rewrite of the linker is not enough, since PyMC also converts graphs
    directly, with modes that its users choose, and since no rewrite runs on unpickled functions.
    """
    separate_functions()
    for theirs, ours in CONVERSIONS.items():
        if theirs in sys.modules:
            import_module(ours)
    if not any(isinstance(finder, _ImportWithPyTensor) for finder in sys.meta_path):
        sys.meta_path.insert(0, _ImportWithPyTensor())

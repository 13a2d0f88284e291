"""The abstract Ops of `dnnops.nnet` under PyTensor's JAX and PyTorch linkers.

PyTensor converts a graph for these libraries node by node, by functions that are registered for
classes of Ops.  Those of dnnops are in `dnnops.link.jax` and `dnnops.link.pytorch`, a file a
family, and are imported when PyTensor's own are: neither library is needed, or loaded, before.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["register_conversions"]

#: PyTensor's modules of conversions, and those of dnnops that go with them.
CONVERSIONS = {
    "pytensor.link.jax.dispatch": "dnnops.link.jax",
    "pytensor.link.pytorch.dispatch": "dnnops.link.pytorch",
}


class _ImportWithPyTensor:
    """Let the import of PyTensor's conversions be followed by that of dnnops' own."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find one of PyTensor's modules, as the finders after this one do."""
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
    """Import a module when that of a spec has been executed."""
    loader: Any = spec.loader
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        execute(module)
        import_module(name)

    loader.exec_module = exec_module


def register_conversions() -> None:
    """Register dnnops' conversions with PyTensor's, now or when PyTensor imports these.

    There is no other time: PyTensor imports its conversions when a linker is used, and has no entry
    point for others.  A rewrite of the linker's would not do: functions that convert a graph are
    also called by PyMC, whose modes users choose.
    """
    for theirs, ours in CONVERSIONS.items():
        if theirs in sys.modules:
            import_module(ours)
    if not any(isinstance(finder, _ImportWithPyTensor) for finder in sys.meta_path):
        sys.meta_path.insert(0, _ImportWithPyTensor())

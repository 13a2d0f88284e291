"""Graphs of cuDNN that are declared by hand, with the names of cuDNN's frontend for Python.

::

    from dnnops import graph as cudnn

    handle = cudnn.create_handle()
    graph = cudnn.pygraph(handle=handle, io_data_type=cudnn.data_type.HALF,
                          compute_data_type=cudnn.data_type.FLOAT)

The page `graph` of the documentation describes it. Rewrites import this package for its Op, so the
other modules are only imported when one of their names is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dnnops.__about__ import __version__
from dnnops.errors import DnnNotSupportedError as cudnnGraphNotSupportedError

if TYPE_CHECKING:
    from dnnops.graph.devices import (
        backend_version,
        backend_version_string,
        create_device_properties,
        create_handle,
        destroy_handle,
        device_properties,
        get_last_error_string,
        get_stream,
        set_stream,
    )
    from dnnops.graph.names import (
        attention_implementation,
        behavior_note,
        build_plan_policy,
        convolution_mode,
        data_type,
        diagonal_alignment,
        heur_mode,
        knob_type,
        norm_forward_phase,
        numerical_note,
        padding_mode,
        reduction_mode,
        resample_mode,
        tensor_reordering,
    )
    from dnnops.graph.plan import knob
    from dnnops.graph.tensors import tensor
    from dnnops.graph.user_graph import pygraph

__all__ = [
    "__version__",
    "attention_implementation",
    "backend_version",
    "backend_version_string",
    "behavior_note",
    "build_plan_policy",
    "convolution_mode",
    "create_device_properties",
    "create_handle",
    "cudnnGraphNotSupportedError",
    "data_type",
    "destroy_handle",
    "device_properties",
    "diagonal_alignment",
    "get_last_error_string",
    "get_stream",
    "heur_mode",
    "knob",
    "knob_type",
    "norm_forward_phase",
    "numerical_note",
    "padding_mode",
    "pygraph",
    "reduction_mode",
    "resample_mode",
    "set_stream",
    "tensor",
    "tensor_reordering",
]

#: Modules in which names are looked up.
_MODULES = ("names", "tensors", "devices", "plan", "user_graph")


def __getattr__(name: str) -> Any:
    if name in __all__:
        for module in _MODULES:
            found = getattr(import_module(f"{__name__}.{module}"), name, None)
            if found is not None:
                globals()[name] = found
                return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__

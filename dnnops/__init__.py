"""Neural-network Ops for PyTensor, run by cuDNN on GPUs and by oneDNN on CPUs.

Importing this package registers its flags, rewrites and modes with PyTensor. It does not compile,
load or probe anything.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from dnnops.__about__ import __version__
from dnnops.cli import is_command, is_command_line
from dnnops.config import quiet_unknown_flag_warnings, register_flags
from dnnops.errors import DnnValueError
from dnnops.hints import no_attribute
from dnnops.mode_flag import accept_modes, mode_kept_back

try:
    if is_command("theano"):
        # PyTensor reads its flags while it is imported.
        from dnnops.theano.flags import adopt_environment

        adopt_environment()
    with quiet_unknown_flag_warnings(), mode_kept_back():
        import pytensor  # noqa: F401
    register_flags()
    accept_modes()
except DnnValueError as error:
    # The main() of a command would run too late to catch this error.
    if not is_command_line():
        raise
    print(f"dnnops: {error}", file=sys.stderr)
    sys.exit(2)

# Importing this module registers the rewrites.
import dnnops.rewriting.pipeline  # noqa: F401
from dnnops import config, dnn, errors, gpuarray, modes, nnet, plans, theano
from dnnops.dnn import (
    dnn_available,
    dnn_conv,
    dnn_conv3d,
    dnn_gradinput,
    dnn_gradinput3d,
    dnn_gradweight,
    dnn_gradweight3d,
    dnn_pool,
    dnn_present,
    version,
)
from dnnops.link import register_conversions
from dnnops.modes import keep_from_other_linkers, register_modes, use_device
from dnnops.plans import conv_plans, flag_choices
from dnnops.plans.used import chosen_plans

if TYPE_CHECKING:
    from dnnops import layers, mixed_precision, optim
    from dnnops.explanation import explain

keep_from_other_linkers()
register_conversions()
register_modes()
use_device()

__all__ = [
    "__version__",
    "chosen_plans",
    "config",
    "conv_plans",
    "dnn",
    "dnn_available",
    "dnn_conv",
    "dnn_conv3d",
    "dnn_gradinput",
    "dnn_gradinput3d",
    "dnn_gradweight",
    "dnn_gradweight3d",
    "dnn_pool",
    "dnn_present",
    "errors",
    "explain",
    "flag_choices",
    "gpuarray",
    "layers",
    "mixed_precision",
    "modes",
    "nnet",
    "optim",
    "plans",
    "theano",
    "version",
]


_unknown = no_attribute(__name__)


def __dir__() -> list[str]:
    """Return the public names, without the modules that define them."""
    return list(__all__)


def __getattr__(name: str) -> Any:
    """Import modules that few programs use when they are first used."""
    if name in ("layers", "mixed_precision", "optim"):
        return import_module(f"dnnops.{name}")
    if name not in ("explain", "explanation"):
        _unknown(name)
    package = import_module("dnnops.explanation")
    return package if name == "explanation" else package.explain

"""Optimizers: functions that return the updates of a training step."""

from dnnops.hints import explain_arguments, no_attribute
from dnnops.optim.optimizers import adam, adamw, rmsprop, sgd
from dnnops.optim.schedules import cosine, exponential, linear, piecewise
from dnnops.optim.updates import Updates, clip_by_norm

__all__ = [
    "Updates",
    "adam",
    "adamw",
    "clip_by_norm",
    "cosine",
    "exponential",
    "linear",
    "piecewise",
    "rmsprop",
    "sgd",
]


def __dir__() -> list[str]:
    """Return the public names, without the submodules that define them."""
    return list(__all__)


__getattr__ = no_attribute(__name__)
explain_arguments(__name__)

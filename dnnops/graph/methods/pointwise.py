"""Methods that add elementwise operations, made from a table."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from dnnops.graph.methods.base import Methods
from dnnops.graph.names import data_type
from dnnops.graph.nodes.pointwise import POINTWISE, Pointwise
from dnnops.graph.tensors import Tensor

__all__ = ["PointwiseMethods"]

_NOT_SET: Any = data_type.NOT_SET


class PointwiseMethods(Methods):
    """Elementwise operations: a method for each entry of `POINTWISE`."""


#: Parameters of methods beside their operands: name, default, and name in the node.
_PARAMETERS: dict[str, list[tuple[str, Any, str]]] = {
    "relu": [
        ("negative_slope", None, "relu_lower_clip_slope"),
        ("lower_clip", None, "relu_lower_clip"),
        ("upper_clip", None, "relu_upper_clip"),
    ],
    "leaky_relu": [("negative_slope", inspect.Parameter.empty, "relu_lower_clip_slope")],
    "elu": [("elu_alpha", None, "elu_alpha")],
    "softplus": [("softplus_beta", None, "softplus_beta")],
    "swish": [("swish_beta", None, "swish_beta")],
    "gen_index": [("axis", inspect.Parameter.empty, "axis")],
}


#: Methods whose parameters come after the type to compute in.
_AFTER_TYPE = ("elu", "softplus", "swish")


def _method(name: str) -> Callable[..., Tensor]:
    """Return the method that adds an elementwise operation."""
    method = POINTWISE[name]
    given = _PARAMETERS.get(name.removesuffix("_backward"), [])
    either = inspect.Parameter.POSITIONAL_OR_KEYWORD
    own = [inspect.Parameter(word, either, default=value) for word, value, _ in given]
    computes = inspect.Parameter("compute_data_type", either, default=_NOT_SET)
    # The order of cuDNN's frontend.
    last = name.removesuffix("_backward") in _AFTER_TYPE
    signature = inspect.Signature(
        [
            inspect.Parameter("self", either),
            *(inspect.Parameter(operand, either) for operand in method.operands),
            *([computes, *own] if last else [*own, computes]),
            inspect.Parameter("name", either, default=""),
        ]
    )

    def add(*args: Any, **kwargs: Any) -> Tensor:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        values = bound.arguments
        operands = {f"IN_{i}": values[operand] for i, operand in enumerate(method.operands)}
        parameters = {word: values[key] for key, _, word in given if values[key] is not None}
        (result,) = values["self"].add_operation(
            Pointwise,
            operands,
            values["name"],
            values["compute_data_type"],
            method=name,
            **parameters,
        )
        return result

    add.__name__, add.__qualname__ = name, f"PointwiseMethods.{name}"
    add.__doc__ = f"{method.summary}\n\n``CUDNN_POINTWISE_{method.mode}``; operands are broadcast."
    add.__signature__ = signature  # type: ignore[attr-defined]
    return add


for _name in POINTWISE:
    setattr(PointwiseMethods, _name, _method(_name))

"""Register conversions for PyTorch, and check the operands of converted nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from pytensor.graph.basic import Apply
from pytensor.link.pytorch.dispatch.basic import pytorch_funcify

from dnnops import errors
from dnnops.link.bounds import Bounds
from dnnops.link.conversions import Conversions, check_node, convert_expansions
from dnnops.link.pytorch import library
from dnnops.link.sizes import StaticSizes

__all__ = ["converts"]


@pytorch_funcify.register(StaticSizes)
def pytorch_funcify_static_sizes(op: StaticSizes, **kwargs: Any) -> Callable[..., Any]:
    """Convert sizes to ints, which PyTorch compiles as constants or as expressions of shapes."""

    def static_sizes(*arrays: Any) -> Any:
        return op.evaluate(*[tuple(x.shape) for x in arrays])

    return static_sizes


@torch.library.custom_op("dnnops::bounded", mutates_args=())
def _bounded(x: torch.Tensor, fits: torch.Tensor, error: str, problem: str) -> torch.Tensor:
    """Raise unless all entries fit; as a custom op, it doesn't break PyTorch's compiled graph."""
    wrong = x[~fits]
    if wrong.numel():
        raise getattr(errors, error)(f"{problem}, got {wrong[0].item()}")
    return x.clone()


@_bounded.register_fake
def _(x: torch.Tensor, fits: torch.Tensor, error: str, problem: str) -> torch.Tensor:
    return torch.empty_like(x)


@torch.compiler.disable
def _check_sizes(op: Any, node: Apply, shapes: Sequence[Any], vectors: Sequence[Any]) -> None:
    check_node(op, node, shapes, vectors)


class _PyTorchConversions(Conversions):
    """Conversions for PyTorch, which compiles a graph for all shapes and can raise on the CPU."""

    def check(self, op: Any, node: Apply, data: Sequence[Any], vectors: Sequence[Any]) -> None:
        """Do nothing: conversions check shapes themselves.

        The Op's own check compares values, and PyTorch would specialize the compiled graph for
        them.
        """

    def sizes(self, op: Any, variable: Any, value: Any) -> Sequence[int]:
        # Sizes that depend on values are a tensor. Reading it breaks PyTorch's compiled graph.
        return tuple(value.tolist() if isinstance(value, torch.Tensor) else value)

    def bounded(self, variable: Any, x: Any, bounds: Bounds) -> tuple[Any, Any]:
        x = torch.as_tensor(x)
        fits = bounds.fits(x)
        if x.device.type == "cpu":
            return _bounded(x, fits, bounds.error.__name__, bounds.problem), None
        return x, fits


converts = _PyTorchConversions(pytorch_funcify, library)
convert_expansions(pytorch_funcify, library)

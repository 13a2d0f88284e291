"""Memory formats of the results of attention."""

from __future__ import annotations

from typing import Any, ClassVar

__all__ = ["MatchedHeads"]


class MatchedHeads:
    """Mix-in for attention and its gradient, which store heads as those of their operands are.

    The result is stored as the query is, and each gradient as its operand. Heads that come from the
    columns of a matrix go back there without a copy.
    """

    is_gradient: ClassVar[bool]

    def _is_matched(self, index: int) -> bool:
        return index < (3 if self.is_gradient else 1)

    def output_format(self, index: int, inputs: list[Any]) -> str:
        """Return the memory format of an output, for ``perform``."""
        if not self._is_matched(index):
            return "contiguous"
        _, heads, steps, _ = inputs[index].shape
        _, by_head, by_step, _ = inputs[index].strides
        return "bshd" if heads > 1 and steps > 1 and by_head < by_step else "contiguous"

    def c_output_format(self, index: int) -> str:
        """Return a C expression for the memory format."""
        is_matched = self._is_matched(index)
        return f"dnnops_format_of_heads(&in[{index}])" if is_matched else "DNNOPS_CONTIGUOUS"

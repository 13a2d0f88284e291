"""Ops whose last result is there if a parameter says so, so that a graph can do without it."""

from __future__ import annotations

from typing import ClassVar, Self

from pytensor.graph.op import Op

__all__ = ["OptionalResultOp"]


class OptionalResultOp(Op):
    """An Op that computes its last result only if one of its parameters, a bool, is true.

    Where nothing uses it, the rewrite `dnnops.rewriting.unused.local_unused_result` leaves it out.
    All of ``__props__`` have to be parameters of ``__init__``.
    """

    __props__: tuple[str, ...]

    #: The name of that parameter.
    optional_result: ClassVar[str]

    @property
    def has_optional_result(self) -> bool:
        """Whether the last result is there."""
        return getattr(self, self.optional_result)

    def with_optional_result(self, wanted: bool) -> Self:
        """Make the same Op with or without its last result.

        Parameters
        ----------
        wanted : bool
            Whether it is to be there.

        Returns
        -------
        Op
        """
        given = {name: getattr(self, name) for name in self.__props__}
        return type(self)(**{**given, self.optional_result: wanted})

"""Base class for Ops with an optional last result."""

from __future__ import annotations

from typing import ClassVar, Self

from pytensor.graph.op import Op

__all__ = ["OptionalResultOp"]


class OptionalResultOp(Op):
    """An Op that computes its last result only if a bool parameter is true.

    If nothing uses that result, the rewrite `dnnops.rewriting.unused.local_unused_result` removes
    it. All ``__props__`` must be parameters of ``__init__``.
    """

    __props__: tuple[str, ...]

    #: Name of the parameter that enables the last result.
    optional_result: ClassVar[str]

    @property
    def has_optional_result(self) -> bool:
        """Whether the Op computes its last result."""
        return getattr(self, self.optional_result)

    def with_optional_result(self, wanted: bool) -> Self:
        """Return the same Op with or without its last result.

        Parameters
        ----------
        wanted : bool
            Whether the new Op computes its last result.

        Returns
        -------
        Op
        """
        given = {name: getattr(self, name) for name in self.__props__}
        return type(self)(**{**given, self.optional_result: wanted})

"""The explanation of a function, which prints as a table and draws itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dnnops.explanation.picture import draw
from dnnops.explanation.record import Record
from dnnops.explanation.table import explanation_parts
from dnnops.tables import Shown, Table

if TYPE_CHECKING:
    from os import PathLike

__all__ = ["Explanation"]


@dataclass(frozen=True, repr=False)
class Explanation(Shown, Record):
    """The nodes of a compiled function, in the order of execution; shows itself as a table.

    Attributes
    ----------
    name : str
        Name of the function, or empty.
    linker : str
        Class of the linker that compiled it.
    nodes : tuple of Node
        Nodes in the order of execution.
    calls : int
        Number of measured calls; 0 if the function was only described.
    allow_gc : bool
        Whether results are freed after their last use.
    input_bytes : int or None
        Memory of the arguments, the shared variables and the constants, or None if unknown.
    note : str
        Why something is not known, or empty.
    """

    def plot(self, path: str | PathLike[str]) -> None:
        """Draw the time per node, and memory over the order of execution.

        Parameters
        ----------
        path : str or path-like
            File to write, whose suffix names a format of matplotlib.

        Raises
        ------
        DnnUnavailableError
            If matplotlib is missing.
        DnnValueError
            If there is nothing to draw, or matplotlib does not know the format.
        OSError
            If the file cannot be written.
        """
        draw(self, path)

    def display_parts(self) -> Iterator[str | Table]:
        """Yield heading, table and notes."""
        yield from explanation_parts(self)

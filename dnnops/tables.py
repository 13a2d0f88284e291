"""Tables that fit terminals, files and notebooks."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dnnops.display import line_width, plain_console, rendered

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions

__all__ = ["Column", "Shown", "Table", "wrapped"]

_GAP = 2
#: Widths below this are unreadable, even if the lines of a table fit.
_LEAST = 4


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes
    ----------
    title : str
        Heading.
    cells : sequence of str
        One text per row, which may have several lines.
    right : bool
        Whether cells are aligned to the right.
    whole : bool
        Whether lines stay whole. Otherwise they are wrapped at blanks.
    fold : int
        Words longer than this may be broken; 0 if no word may.
    at_least : int
        Width below which longer lines are unpleasant to read.
    styles : sequence of str
        Styles of the cells for rich, or empty.
    """

    title: str
    cells: Sequence[str]
    right: bool = False
    whole: bool = False
    fold: int = 0
    at_least: int = 0
    styles: Sequence[str] = ()

    def _lines(self) -> Iterator[str]:
        yield self.title
        for cell in self.cells:
            yield from cell.splitlines()

    def wanted(self) -> int:
        """Return the width at which no line is wrapped."""
        return max(map(len, self._lines()))

    def least(self) -> int:
        """Return the smallest width at which no line or word is broken that must be whole."""
        if self.whole:
            return self.wanted()
        longest = max(map(_longest_word, self._lines()))
        word = min(longest, self.fold) if self.fold else longest
        return max(word, min(self.wanted(), self.at_least))


def _longest_word(line: str) -> int:
    words = line.split()
    return len(line) - len(line.lstrip()) + max(map(len, words)) if words else 0


@dataclass(frozen=True)
class Table:
    """Columns, and what to leave out where they do not fit.

    Attributes
    ----------
    columns : sequence of Column
        Columns with the same number of cells.
    first_dropped : sequence of str
        Titles of columns to leave out on a narrow terminal, in this order. The table says which.
    header : bool
        Whether to show the titles.
    row_styles : dict
        Styles of rows for rich, by index.
    """

    columns: Sequence[Column]
    first_dropped: Sequence[str] = ()
    header: bool = True
    row_styles: dict[int, str] = field(default_factory=dict)

    def fitted(self, width: int) -> tuple[list[tuple[Column, int]], list[str]]:
        """Return the columns that fit with their widths, and the titles of the others.

        Parameters
        ----------
        width : int
            Characters of a line.

        Returns
        -------
        shown : list of (Column, int)
            The columns that fit, with their widths in characters.
        dropped : list of str
            Titles of those that do not.
        """
        shown, dropped = list(self.columns), []
        for title in self.first_dropped:
            if sum(column.least() for column in shown) + _GAP * (len(shown) - 1) <= width:
                break
            dropped += [column.title for column in shown if column.title == title]
            shown = [column for column in shown if column.title != title]
        widths = [column.least() for column in shown]
        spare = width - sum(widths) - _GAP * (len(shown) - 1)
        if spare < 0:
            # Nothing is left to drop: the widest column breaks its words.
            widest = widths.index(max(widths))
            widths[widest] = max(_LEAST, widths[widest] + spare)
            spare = 0
        lacking = {i: column.wanted() - widths[i] for i, column in enumerate(shown)}
        for i in sorted(lacking, key=lambda i: lacking[i]):
            added = min(spare, max(0, lacking[i]))
            widths[i] += added
            spare -= added
        return list(zip(shown, widths, strict=True)), dropped

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Any]:
        """Yield what rich prints on a console of some width."""
        from rich.table import Table as RichTable
        from rich.text import Text

        shown, dropped = self.fitted(options.max_width)
        table = RichTable(box=None, pad_edge=False, show_header=self.header, header_style="bold")
        for column, width in shown:
            table.add_column(
                column.title,
                justify="right" if column.right else "left",
                no_wrap=column.whole,
                overflow="fold",
                width=width,
            )
        for i in range(len(self.columns[0].cells)):
            cells = [
                Text(column.cells[i], column.styles[i] if column.styles else "")
                for column, _ in shown
            ]
            table.add_row(*cells, style=self.row_styles.get(i))
        yield table
        if dropped:
            yield Text(f"a wider terminal also shows: {', '.join(dropped)}", "dim")

    def text(self, width: int) -> str:
        """Return the table as plain text of this width.

        Parameters
        ----------
        width : int
            Characters of a line.

        Returns
        -------
        str
        """
        return rendered(plain_console(width, colors=False), self)

    def html(self) -> str:
        """Return the table for a notebook, with all columns."""
        rows = [[column.cells[i] for column in self.columns] for i in range(self._count())]
        head = [self._html_row("th", [column.title for column in self.columns])]
        body = "".join(self._html_row("td", row) for row in rows)
        return f"<table>{''.join(head if self.header else [])}{body}</table>"

    def _count(self) -> int:
        return len(self.columns[0].cells) if self.columns else 0

    def _html_row(self, tag: str, texts: Sequence[str]) -> str:
        import html  # only notebooks need it

        cells = (
            f'<{tag} style="text-align: {"right" if column.right else "left"};'
            f' white-space: pre-wrap">{html.escape(text)}</{tag}>'
            for column, text in zip(self.columns, texts, strict=True)
        )
        return f"<tr>{''.join(cells)}</tr>"


class Shown:
    """Base of objects that show themselves as text, also in the interpreter and in notebooks."""

    #: Width of lines where neither a terminal nor ``COLUMNS`` gives one.
    file_width = 80

    def display_parts(self) -> Iterator[str | Table]:
        """Yield paragraphs and tables from top to bottom; a subclass defines this."""
        raise NotImplementedError

    def _spaced_parts(self) -> Iterator[str | Table]:
        """Yield the parts, with empty paragraphs around tables."""
        before: str | Table | None = None
        for part in self.display_parts():
            if before is not None and Table in (type(before), type(part)):
                yield ""
            yield part
            before = part

    def as_text(self, width: int) -> str:
        """Return all parts as text, with empty lines around tables.

        Parameters
        ----------
        width : int
            Characters in a line.
        """
        return "\n".join(
            part.text(width) if isinstance(part, Table) else "\n".join(wrapped(part, width))
            for part in self._spaced_parts()
        )

    def __str__(self) -> str:
        return self.as_text(line_width(self.file_width))

    def __repr__(self) -> str:
        return str(self)

    def __rich__(self) -> Any:
        """Return the parts for ``rich.print``."""
        from rich.console import Group
        from rich.text import Text

        return Group(
            *(Text(part) if isinstance(part, str) else part for part in self._spaced_parts())
        )

    def _repr_html_(self) -> str:
        """Return the parts for a notebook."""
        import html

        return "".join(
            part.html() if isinstance(part, Table) else f"<p>{html.escape(part)}</p>"
            for part in self.display_parts()
        )


def wrapped(text: str, width: int, indent: str = "") -> list[str]:
    """Return a paragraph as lines that break only at blanks; all but the first are indented.

    Parameters
    ----------
    text : str
    width : int
        Characters of a line. A longer word has a line of its own.
    indent : str
        What the lines after the first begin with.

    Returns
    -------
    list of str
    """
    return textwrap.wrap(
        text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )

"""Tables of a plan as text and HTML."""

from __future__ import annotations

from html import escape

__all__ = ["html_table", "text_table"]

_CELL = "padding:1px 8px;font-family:monospace;white-space:pre;border:0"


def text_table(rows: list[list[str]], indent: str = "", left: int = 1) -> str:
    """Return rows as aligned columns, with a rule below the first.

    Parameters
    ----------
    rows : list of list of str
        The rows, the first of which is the header.
    indent : str
        What each line begins with.
    left : int
        The number of columns, from the first, that are aligned to the left.

    Examples
    --------
    >>> print(text_table([["name", "n"], ["a", "12"]]))
    name   n
    --------
    a     12
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        sized = list(zip(row, widths, strict=True))
        cells = [cell.ljust(width) for cell, width in sized[:left]]
        cells += [cell.rjust(width) for cell, width in sized[left:]]
        lines.append(indent + "  ".join(cells).rstrip())
    rule = indent + "-" * (sum(widths) + 2 * (len(widths) - 1))
    return "\n".join([lines[0], rule, *lines[1:]])


def html_table(rows: list[list[str]]) -> str:
    """Return rows as an HTML table, whose first row is the header."""
    parts = []
    for tag, row in zip(("th", *("td" for _ in rows[1:])), rows, strict=True):
        cells = (
            f'<{tag} style="text-align:{"right" if column else "left"};{_CELL}">'
            f"{escape(cell)}</{tag}>"
            for column, cell in enumerate(row)
        )
        parts.append(f"<tr>{''.join(cells)}</tr>")
    return f'<table style="border-collapse:collapse">{"".join(parts)}</table>'

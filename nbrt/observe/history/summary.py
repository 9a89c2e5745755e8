"""`MemorySummary`: the numbers of a device's memory as a table, for people."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, NamedTuple

from nbrt.observe.call_sites import NO_STACK, CallSiteTable
from nbrt.runtime.memory.device_allocator import allocator_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nbrt._internal.device import Device
    from nbrt.runtime.memory.allocation import Allocation
    from nbrt.typing import DeviceLike

__all__ = ["MemorySummary", "PoolNumbers", "SiteTotal", "memory_summary"]

_ROWS = (
    ("allocated_bytes", "held by arrays", True),
    ("requested_bytes", "  asked for", True),
    ("active_bytes", "  with what streams still use", True),
    ("reserved_bytes", "held from the system", True),
    ("inactive_split_bytes", "  free between blocks", True),
    ("allocated", "arrays", False),
    ("segment", "segments", False),
)
_COLUMNS = (("current", "now"), ("peak", "peak"), ("allocated", "taken"), ("freed", "given back"))
_SIZES = (("small_pool", "  up to 1 MiB"), ("large_pool", "  larger"))
_MAX_SITES = 10
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_STYLE = "text-align:right;font-family:monospace;white-space:pre"


class PoolNumbers(NamedTuple):
    """What a pool holds.

    Attributes
    ----------
    name, kind : str
        What it is called, and its kind.
    allocated, reserved : int
        Bytes that arrays hold, and that it holds from the system.
    limit : int or None
        The most bytes that it may hold.
    """

    name: str
    kind: str
    allocated: int
    reserved: int
    limit: int | None


class SiteTotal(NamedTuple):
    """The arrays that are alive and were made by one line of a program.

    Attributes
    ----------
    site : str
        The line: file, number and function.
    arrays : int
        How many arrays' memories.
    nbytes : int
        Their bytes, as the pool rounds them.
    """

    site: str
    arrays: int
    nbytes: int


@dataclass(frozen=True, repr=False)
class MemorySummary:
    """What a device's memory is used for; prints as a table, and shows as one in a notebook.

    Attributes
    ----------
    device : Device
        The device.
    stats : mapping of str to int
        As of `memory_stats`.
    limit : int or None
        The most bytes that the device's pools may hold.
    pools : tuple of PoolNumbers
        The default pool first.
    holders : tuple of SiteTotal
        Who holds most, the largest first. Lines are known of what was allocated while
        `record_memory_history` was on, and of arrays above 1 MiB.
    """

    device: Device
    stats: Mapping[str, int]
    limit: int | None
    pools: tuple[PoolNumbers, ...]
    holders: tuple[SiteTotal, ...]

    def __str__(self) -> str:
        parts = [self._title(), _text(self._table())]
        if len(self.pools) > 1 or any(pool.limit is not None for pool in self.pools):
            parts.append(_text(self._pool_table()))
        if self.holders:
            parts.append(_text(self._holder_table()))
        return "\n\n".join(parts)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        tables = [self._table(), self._pool_table()]
        if self.holders:
            tables.append(self._holder_table())
        return f"<p>{escape(self._title())}</p>" + "".join(map(_html, tables))

    def _title(self) -> str:
        limit = "" if self.limit is None else f", limit {_size(self.limit)}"
        failures, retries = self.stats["num_ooms"], self.stats["num_alloc_retries"]
        return f"Memory of {self.device}{limit}; out of memory {failures}, retried {retries} times"

    def _table(self) -> list[list[str]]:
        table = [["", *(title for _, title in _COLUMNS)]]
        for stat, title, is_bytes in _ROWS:
            rows = [("all", title)]
            if stat in {"allocated_bytes", "reserved_bytes"}:
                rows += _SIZES
            for pool, name in rows:
                values = [self.stats[f"{stat}.{pool}.{column}"] for column, _ in _COLUMNS]
                table.append([name, *(_size(v) if is_bytes else f"{v:,}" for v in values)])
        return table

    def _pool_table(self) -> list[list[str]]:
        table = [["pool", "kind", "by arrays", "from the system", "limit"]]
        for pool in self.pools:
            limit = "none" if pool.limit is None else _size(pool.limit)
            table.append([pool.name, pool.kind, _size(pool.allocated), _size(pool.reserved), limit])
        return table

    def _holder_table(self) -> list[list[str]]:
        table = [["allocated by", "bytes", "arrays"]]
        table += [[each.site, _size(each.nbytes), f"{each.arrays:,}"] for each in self.holders]
        return table


def memory_summary(device: DeviceLike = None) -> MemorySummary:
    """Return what a device's memory is used for, as an object that prints as a table.

    Parameters
    ----------
    device : Device, str, int or None
        The current device by default.

    Examples
    --------
    >>> import nbrt
    >>> summary = nbrt.memory.memory_summary("cpu:0")
    >>> print(summary)  # doctest: +ELLIPSIS
    Memory of cpu:0...
                                         now ...
    held by arrays ...
    """
    books = allocator_for(device)
    with books.lock:
        books.settle()
        books.note_split()
        alive = books.live_allocations()
        pools = tuple(
            PoolNumbers(
                core.name or ("default" if core is books.default_pool else str(core.id)),
                core.kind,
                (core.statistics or books.statistics).all.bytes,
                core.backend.reserved(),
                core.limit,
            )
            for core in books.pools
        )
        stats = books.statistics.as_dict()
        return MemorySummary(books.device, stats, books.limit, pools, _holders(alive))


def _holders(alive: Iterable[Allocation]) -> tuple[SiteTotal, ...]:
    sites = CallSiteTable()
    counts: dict[int, tuple[int, int]] = {}
    numbers: dict[int, int] = {}  # a stack is looked up once, however many arrays it made
    for allocation in alive:
        site = allocation.site
        number = numbers.get(id(site))
        if number is None:
            frames = [] if site is None else site.frames()
            number = numbers[id(site)] = sites.number(frames)
        count, nbytes = counts.get(number, (0, 0))
        counts[number] = (count + 1, nbytes + allocation.nbytes)
    labels = sites.labels()
    found = sorted(counts.items(), key=lambda item: -item[1][1])
    if all(labels[number] == NO_STACK for number in counts):
        return ()
    return tuple(SiteTotal(labels[number], *each) for number, each in found[:_MAX_SITES])


def _text(table: list[list[str]]) -> str:
    widths = [max(len(row[place]) for row in table) for place in range(len(table[0]))]
    lines = []
    for row in table:
        first = row[0].ljust(widths[0])
        rest = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
        lines.append("  ".join((first, *rest)).rstrip())
    rule = "-" * (sum(widths) + 2 * (len(widths) - 1))
    return "\n".join([lines[0], rule, *lines[1:]])


def _html(table: list[list[str]]) -> str:
    head, *body = (
        "".join(
            f'<{tag} style="{_STYLE if place else "text-align:left;white-space:pre"}">'
            f"{escape(cell)}</{tag}>"
            for place, cell in enumerate(row)
        )
        for tag, row in zip(("th", *("td" for _ in table[1:])), table, strict=True)
    )
    rows = "".join(f"<tr>{row}</tr>" for row in body)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _size(nbytes: int) -> str:
    size = float(nbytes)
    for unit in _UNITS:
        if abs(size) < 1024 or unit == _UNITS[-1]:
            break
        size /= 1024
    return f"{nbytes} B" if unit == "B" else f"{size:.2f} {unit}"

"""`MemorySummary`: memory statistics of a device as a table."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, NamedTuple

from nbrt.observe.call_sites import NO_STACK, CallSiteTable
from nbrt.runtime.memory.registry import allocator_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nbrt._internal.device import Device
    from nbrt.runtime.memory.allocation import Allocation
    from nbrt.typing import DeviceLike

__all__ = ["MemorySummary", "PoolNumbers", "SiteTotal", "memory_summary"]

_ROWS = (
    ("allocated_bytes", "allocated memory", True),
    ("requested_bytes", "  requested", True),
    ("active_bytes", "active memory", True),
    ("reserved_bytes", "reserved memory", True),
    ("inactive_split_bytes", "  free between blocks", True),
    ("allocated", "allocations", False),
    ("segment", "segments", False),
)
_COLUMNS = (("current", "now"), ("peak", "peak"), ("allocated", "allocated"), ("freed", "freed"))
_SIZES = (("small_pool", "  up to 1 MiB"), ("large_pool", "  larger"))
_MAX_SITES = 10
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_STYLE = "text-align:right;font-family:monospace;white-space:pre"


class PoolNumbers(NamedTuple):
    """The numbers of one pool.

    Attributes
    ----------
    name, kind : str
        Name and kind of the pool.
    allocated, reserved : int
        Bytes that arrays hold, and bytes that the pool holds from the system.
    limit : int or None
        Most bytes that the pool may hold from the system.
    """

    name: str
    kind: str
    allocated: int
    reserved: int
    limit: int | None


class SiteTotal(NamedTuple):
    """The live allocations of one line of a program.

    Attributes
    ----------
    site : str
        File, line number and function.
    arrays : int
        Number of allocations.
    nbytes : int
        Their bytes, rounded up by the pool.
    """

    site: str
    arrays: int
    nbytes: int


@dataclass(frozen=True, repr=False)
class MemorySummary:
    """A summary of a device's memory; prints as a table, and as an HTML table in a notebook.

    Attributes
    ----------
    device : Device
        The device.
    stats : mapping of str to int
        The result of `memory_stats`.
    limit : int or None
        Most bytes that the device's pools may hold.
    pools : tuple of PoolNumbers
        The default pool first.
    holders : tuple of SiteTotal
        Lines whose arrays hold most memory, the largest first. Lines are recorded by
        `record_memory_history`, and always for arrays above 1 MiB.
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
        table = [["pool", "kind", "allocated", "reserved", "limit"]]
        for pool in self.pools:
            limit = "none" if pool.limit is None else _size(pool.limit)
            table.append([pool.name, pool.kind, _size(pool.allocated), _size(pool.reserved), limit])
        return table

    def _holder_table(self) -> list[list[str]]:
        table = [["allocated by", "bytes", "arrays"]]
        table += [[total.site, _size(total.nbytes), f"{total.arrays:,}"] for total in self.holders]
        return table


def memory_summary(device: DeviceLike = None) -> MemorySummary:
    """Return a summary of a device's memory that prints as a table.

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
    allocated memory ...
    """
    allocator = allocator_for(device)
    with allocator.lock:
        allocator.process_log()
        allocator.update_split()
        alive = allocator.live_allocations()
        pools = tuple(
            PoolNumbers(
                pool.state.name
                or ("default" if pool is allocator.default_pool else str(pool.state.id)),
                pool.state.kind,
                (pool.state.statistics or allocator.statistics).all.bytes,
                pool.backend.reserved(),
                pool.limit,
            )
            for pool in allocator.pools
        )
        stats = allocator.statistics.as_dict()
        return MemorySummary(allocator.device, stats, allocator.limit, pools, _holders(alive))


def _holders(alive: Iterable[Allocation]) -> tuple[SiteTotal, ...]:
    sites = CallSiteTable()
    counts: dict[int, tuple[int, int]] = {}
    numbers: dict[int, int] = {}  # looks up each distinct stack once
    for allocation in alive:
        site = allocation.site
        number = numbers.get(id(site))
        if number is None:
            frames = [] if site is None else site.frames()
            number = numbers[id(site)] = sites.number(frames)
        count, nbytes = counts.get(number, (0, 0))
        counts[number] = (count + 1, nbytes + allocation.nbytes)
    labels = sites.labels()
    if all(labels[number] == NO_STACK for number in counts):
        return ()
    largest = sorted(counts.items(), key=lambda item: -item[1][1])[:_MAX_SITES]
    return tuple(SiteTotal(labels[number], *total) for number, total in largest)


def _text(table: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
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
            f'<{tag} style="{_STYLE if column else "text-align:left;white-space:pre"}">'
            f"{escape(cell)}</{tag}>"
            for column, cell in enumerate(row)
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

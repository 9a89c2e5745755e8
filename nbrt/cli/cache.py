"""``nbrt cache``: list, measure, clear, bundle and load compiled code."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections import defaultdict
from typing import TYPE_CHECKING

from nbrt.observe.plots.style import size_text
from nbrt.planning.tables import text_table

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

    from nbrt.backends.code_store.entry import Entry
    from nbrt.cache import LoadedEntry, StoredEntry

__all__ = ["add_cache", "run_cache"]

_MIN_SIGNATURE = 12
_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def add_cache(parser: argparse.ArgumentParser) -> None:
    """Add the actions of ``nbrt cache`` to its parser."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    shown = actions.add_parser("list", help="list the compiled kernels")
    actions.add_parser("size", help="show the bytes for each kind of device, and the limit")
    cleared = actions.add_parser("clear", help="delete compiled kernels")
    bundle = actions.add_parser("bundle", help="write compiled kernels to a file")
    bundle.add_argument("file", help="the bundle to write, such as kernels.nbrt")
    for each in (shown, cleared, bundle):
        each.add_argument(
            "--kernel",
            nargs="+",
            action="extend",
            default=[],
            metavar="NAME",
            help="kernels, such as step or 'fill_*'; default: all",
        )
        each.add_argument(
            "--target",
            nargs="+",
            action="extend",
            default=[],
            metavar="TARGET",
            help="processors, such as znver4 or sm_90a; default: all",
        )
    load = actions.add_parser("load", help="copy the code of a bundle to the folder")
    load.add_argument("file", help="the bundle")
    load.add_argument(
        "--target",
        nargs="+",
        action="extend",
        default=[],
        metavar="TARGET",
        help="processors of other machines whose code is kept as well; '*': all",
    )


def run_cache(options: argparse.Namespace) -> int:
    """Run ``nbrt cache``; return the exit status."""
    # A late import: the other commands do not need the code store.
    from nbrt import cache

    if options.action == "list":
        found = cache.entries(options.kernel, options.target)
        _print_entries(found)
        print(f"{_counted(found)} in {cache.directory()}")
    elif options.action == "size":
        _print_sizes(cache.entries(), cache.size())
    elif options.action == "clear":
        _print_kinds(cleared := cache.clear(options.kernel, options.target))
        print(f"deleted {_counted(cleared)} from {cache.directory()}")
    elif options.action == "bundle":
        written = cache.bundle(options.file, options.kernel, options.target)
        _print_entries(written)
        size = size_text(os.path.getsize(options.file))
        print(f"wrote {_counted(written)} to {options.file} ({size})")
    else:
        found_in_file = cache.load(options.file, options.target)
        _print_loaded(found_in_file)
        stored = sum(each.status == "loaded" for each in found_in_file)
        print(f"loaded {stored} of {len(found_in_file)} kernels into {cache.directory()}")
    return 0


def _print_entries(entries: Iterable[StoredEntry]) -> None:
    now = time.time()
    rows = [["kernel", "signature", "kind", "target", "size", "age", "used"]]
    rows += [
        [
            *_described(each.entry),
            size_text(each.size),
            _age(now - each.entry.created),
            _age(now - each.used),
        ]
        for each in entries
    ]
    print(_fitted(rows))


def _print_loaded(entries: Iterable[LoadedEntry]) -> None:
    rows = [["kernel", "signature", "kind", "target", "size", "status"]]
    rows += [[*_described(each.entry), size_text(each.size), each.status] for each in entries]
    print(_fitted(rows))


def _print_kinds(entries: Iterable[StoredEntry]) -> None:
    totals: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for each in entries:
        total = totals[each.entry.kind, _printable(each.entry.target)]
        total[0] += 1
        total[1] += each.size
    rows = [["kind", "target", "kernels", "size"]]
    rows += [
        [*names, str(count), size_text(size)] for names, (count, size) in sorted(totals.items())
    ]
    print(text_table(rows, left=2))


def _print_sizes(entries: tuple[StoredEntry, ...], total: int) -> None:
    from nbrt import cache
    from nbrt.config import settings

    _print_kinds(entries)
    other = total - sum(each.size for each in entries)
    limit = settings().cache_limit
    print(
        f"{size_text(total)} in {cache.directory()}"
        + (f", {size_text(other)} of it in damaged, temporary or old files" if other > 0 else "")
        + (f"; the limit is {size_text(limit)}" if limit else "; there is no limit")
    )


def _described(entry: Entry) -> list[str]:
    fields = (entry.name, entry.signature, entry.kind, entry.target)
    return [_printable(text) for text in fields]


def _fitted(rows: list[list[str]]) -> str:
    """Return a table; on a terminal signatures are shortened to its width."""
    if sys.stdout.isatty():
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        excess = sum(widths) + 2 * (len(widths) - 1) - shutil.get_terminal_size().columns
        width = max(widths[1] - excess, _MIN_SIGNATURE)
        if excess > 0:
            rows = [[row[0], _shortened(row[1], width), *row[2:]] for row in rows]
    return text_table(rows, left=4)


def _shortened(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 3]}..."


def _printable(text: str) -> str:
    """Return text of a file without characters that control a terminal."""
    return "".join(character if character.isprintable() else "?" for character in text)


def _counted(entries: tuple[StoredEntry, ...]) -> str:
    names = f"{len(entries)} kernel{'' if len(entries) == 1 else 's'}"
    return f"{names}, {size_text(sum(each.size for each in entries))}"


def _age(seconds: float) -> str:
    for length, unit in _UNITS:
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return "0 s"

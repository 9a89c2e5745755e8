"""Write the table of the kernel API's names in ``docs/dialect.md``.

Usage: ``python tools/dialect_table.py`` prints the table; with ``--write`` it goes into the page.
The names come from the installed numba-cuda, their support from the CPU compiler. The reasons are
in this file.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from nbrt.backends.captures import is_device_function
from nbrt.backends.cpu.simt.builtins import REPLACEMENTS, marker_kind
from nbrt.backends.dialect import dialect_name

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["kernel_names", "main", "status", "table"]

PAGE = Path(__file__).parent.parent / "docs" / "dialect.md"
BEGIN, END = "<!-- table: begin -->\n", "<!-- table: end -->\n"

_SPACES = ("local", "shared", "const", "atomic", "cg")
_HOLDERS = ("numba.cuda.stubs", "numba.cuda.intrinsics", "numba.cuda.cache_hints")
_MODULES = ("fp16", "bf16", "fp8", "libdevice", "random")
_KNOWN = frozenset(
    {"threadIdx", "blockIdx", "blockDim", "gridDim", "laneid", "warpsize", "grid", "gridsize"}
)

_DIFFERS = {
    "nanosleep": "returns at once",
    **dict.fromkeys(
        ("ldca", "ldcg", "ldcs", "ldlu", "ldcv", "stcg", "stcs", "stwb", "stwt"),
        "a plain load or store: the CPU's caches take no such hint",
    ),
    **dict.fromkeys(
        [
            f"{module}.h{name}"
            for module in ("bf16", "fp16")
            for name in (
                *("sin", "cos", "exp", "exp2", "exp10", "log", "log2", "log10"),
                *("rcp", "rsqrt", "tanh", "tanh_approx"),
            )
        ],
        "rounded from double: the nearest value, where the device may be one or two off",
    ),
}
_EMULATED = {
    "barrier": "the block's threads are one core's work, cut at the barriers",
    "grid": "all blocks run up to it before any goes on",
    "shared": "memory of the core that runs the block",
    "warp": "32 threads of a block with consecutive numbers",
}


def kernel_names() -> list[str]:
    """List every public name of the installed numba-cuda's kernel API, aliases left out.

    Returns
    -------
    list of str
        Dotted names below ``numba.cuda``, sorted.
    """
    cuda = import_module("numba.cuda")
    names = set()
    for name in dir(cuda):
        value = getattr(cuda, name)
        if getattr(value, "__module__", None) in _HOLDERS and name not in _SPACES:
            names.add(dialect_name(value) or name)
    names.add("literal_unroll")
    for space in _SPACES:
        namespace = getattr(cuda, space)
        names |= {f"{space}.{name}" for name in _declared(namespace)}
    for module in _MODULES:
        names |= {f"{module}.{name}" for name in _functions(f"numba.cuda.{module}")}
    return sorted(names)


def _declared(namespace: object) -> list[str]:
    if getattr(namespace, "__name__", "") == "numba.cuda.cg":
        return ["this_grid"]
    return [name for name in vars(namespace) if not name.startswith("_")]


def _functions(module_name: str) -> list[str]:
    """Return the names of a module that kernels can use."""
    module = import_module(module_name)
    exported = getattr(module, "__all__", None)
    if module_name.endswith("libdevice"):
        exported = [name for name in vars(module) if not name.startswith("_")]
    names = exported or [name for name in vars(module) if not name.startswith("_")]
    found = []
    for name in names:
        value = getattr(module, name)
        own = getattr(value, "__module__", "") or ""
        is_function = callable(value) and not isinstance(value, type) and exported is not None
        if is_device_function(value) or (is_function and own.startswith("numba.cuda")):
            found.append(name)
    return found


def status(name: str) -> tuple[str, str]:
    """Return how the CPU compiler supports a name.

    Parameters
    ----------
    name : str
        Dotted name below ``numba.cuda``.

    Returns
    -------
    tuple of str
        ``"native"``, ``"emulated"``, ``"differs"`` or ``"not there"``, and a remark.
    """
    if name in _DIFFERS:
        return "differs", _DIFFERS[name]
    if name.startswith("libdevice.fast_"):
        return "differs", "the exact function"
    value = _value(name)
    if is_device_function(value):
        return "native", ""
    known = dialect_name(value) or name
    kind = marker_kind(known)
    if kind is not None:
        return "emulated", _EMULATED[kind]
    if known in REPLACEMENTS or name in _KNOWN or name in REPLACEMENTS:
        return "native", ""
    return "not there", "unknown to this version of nbrt"


def _value(name: str) -> object:
    space, _, member = name.rpartition(".")
    cuda = import_module("numba.cuda")
    if not space:
        return getattr(cuda, member, None)
    owner = getattr(cuda, space) if space in _SPACES else import_module(f"numba.cuda.{space}")
    return getattr(owner, member, None)


def table(names: Sequence[str]) -> str:
    """Return the table, one row for each group of names with equal support.

    Parameters
    ----------
    names : sequence of str
        The result of `kernel_names`.

    Returns
    -------
    str
        Markdown.
    """
    groups: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for name in names:
        groups[name.rpartition(".")[0], *status(name)].append(name.rpartition(".")[2])
    lines = ["| where | on the CPU | names |", "|---|---|---|"]
    for (space, fate, remark), members in sorted(groups.items()):
        where = f"`cuda.{space}`" if space else "`cuda`"
        shown = f"{fate}: {remark}" if remark else fate
        lines.append(f"| {where} | {shown} | {', '.join(f'`{name}`' for name in members)} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tool; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="put the table into docs/dialect.md")
    chosen = parser.parse_args(arguments)
    made = table(kernel_names())
    if not chosen.write:
        print(made, end="")
        return 0
    text = PAGE.read_text()
    head, _, rest = text.partition(BEGIN)
    PAGE.write_text(head + BEGIN + "\n" + made + "\n" + END + rest.partition(END)[2])
    return 0


if __name__ == "__main__":
    sys.exit(main())

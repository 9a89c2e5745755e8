"""Loads of vectors from the stack, as narrow as their uses need.

In the last steps of a sum by halves in shared memory, only the first lanes of the result are used,
but LLVM loads whole vectors. Such a load spans two that were stored before, so the processor waits
until both are in its cache, and LLVM cannot keep the memory in registers.

Legality: a narrower load reads less memory. The lanes that it leaves out are not used: operations
pass lane i of their operands to lane i of their result only, and shuffles and extractions with
constant places name the lanes that they read. All other uses need every lane, integer divisions
too, which may trap.
"""

from __future__ import annotations

import re

__all__ = ["with_narrow_loads"]

_NAME = r'%(?:"[^"]*"|[-\w$.]+)'
_NAMES = re.compile(_NAME)
_DEFINITION = re.compile(rf"^  ({_NAME}) = (?:tail )?([a-z]+)\b")
_LOAD = re.compile(rf"^  ({_NAME}) = load <(\d+) x (\w+)>, ptr ({_NAME})(, align \d+.*)?$")
_BASE = re.compile(rf"^  {_NAME} = getelementptr [^,]+, ptr ({_NAME})")
_SHUFFLE = re.compile(
    rf"^  {_NAME} = shufflevector <(\d+) x \w+> ([^,]+), <\d+ x \w+> ([^,]+), "
    r"<\d+ x i32> (<[^>]*>)$"
)
_FIRST_LANES = re.compile(
    r"shufflevector <\d+ x \w+> %[^,]+, <\d+ x \w+> %[^,]+, <\d+ x i32> <i32 0,"
)
"""A shuffle that may take the first lanes of one vector and the others of another one."""

_EXTRACT = re.compile(rf"^  {_NAME} = extractelement <\d+ x \w+> ({_NAME}), i\d+ (\d+)$")
_LANE = re.compile(r"i32 (\w+)")
_LANEWISE = frozenset(
    (
        *("fadd", "fsub", "fmul", "fdiv", "fneg", "fcmp", "fpext", "fptrunc", "sitofp", "uitofp"),
        *("add", "sub", "mul", "and", "or", "xor", "shl", "lshr", "ashr", "icmp"),
        *("sext", "zext", "trunc", "select", "freeze"),
    )
)
"""Lane i of the result depends on lane i of the operands only, and no lane traps."""


def with_narrow_loads(text: str) -> str | None:
    """Return a module with narrow loads; None if there are none.

    Parameters
    ----------
    text : str
        The module, optimised.
    """
    if _FIRST_LANES.search(text) is None:
        return None
    lines = text.split("\n")
    has_changed, has_shuffle, begin = False, False, 0
    for place, line in enumerate(lines):
        if line.startswith("define "):
            begin, has_shuffle = place, False
        elif line == "}" and has_shuffle:
            has_changed |= _narrow(lines, begin + 1, place)
        elif not has_shuffle:
            has_shuffle = _FIRST_LANES.search(line) is not None
    return "\n".join(lines) if has_changed else None


def _narrow(lines: list[str], begin: int, end: int) -> bool:
    """Narrow the loads of a function; return whether there are any."""
    places: dict[str, int] = {}
    codes: dict[int, tuple[str, str]] = {}
    on_stack: set[str] = set()
    loads = []
    for place in range(begin, end):
        line = lines[place]
        found = _DEFINITION.match(line)
        if found is None:
            continue
        name, code = found.groups()
        places[name] = place
        codes[place] = name, code
        if code == "alloca":
            on_stack.add(name)
        elif code == "getelementptr":
            base = _BASE.match(line)
            if base is not None and base[1] in on_stack:
                on_stack.add(name)
        elif code == "load":
            load = _LOAD.match(line)
            if load is not None and load[4] in on_stack:
                loads.append((place, load))
    if not loads:
        return False
    needed = _needed_lanes(lines[:end], begin, places, codes)
    has_changed = False
    for place, load in loads:
        name, lanes, kind, pointer, rest = load.groups()
        last = (needed.get(name, 0) & (1 << int(lanes)) - 1).bit_length() - 1
        count = 1 << max(0, last).bit_length()
        if 2 * count <= int(lanes):
            lines[place] = _load(name, int(lanes), count, kind, pointer, rest or "")
            has_changed = True
    return has_changed


def _needed_lanes(
    lines: list[str], begin: int, places: dict[str, int], codes: dict[int, tuple[str, str]]
) -> dict[str, int]:
    """Return, for each vector of a function, a mask of the lanes that its uses need.

    The lines are read from the end. A value that is defined behind a use, in a loop or by the order
    of the blocks, needs all lanes.
    """
    needed = {
        name: -1
        for place in range(begin, len(lines))
        if " x " in lines[place]
        for name in _NAMES.findall(lines[place])
        if places.get(name, -1) > place
    }
    for place in range(len(lines) - 1, begin - 1, -1):
        line = lines[place]
        if " x " not in line:  # each use of a vector is preceded by its type
            continue
        result, code = codes.get(place, ("", ""))
        for name, lanes in _uses(line, result, code, needed.get(result, 0)):
            needed[name] = needed.get(name, 0) | lanes
    return needed


def _uses(line: str, result: str, code: str, lanes: int) -> list[tuple[str, int]]:
    """Return the operands of an instruction, with the lanes needed for `lanes` of its result."""
    operands = _NAMES.findall(line)
    if result:
        del operands[0]
    if code in _LANEWISE:
        return [(name, lanes) for name in operands]
    if code == "extractelement":
        extract = _EXTRACT.match(line)
        if extract is not None:
            return [(extract[1], 1 << int(extract[2]))]
    elif code == "shufflevector":
        shuffle = _SHUFFLE.match(line)
        if shuffle is not None:
            return _lanes_of_shuffle(shuffle, lanes)
    return [(name, -1) for name in operands]


def _lanes_of_shuffle(shuffle: re.Match[str], lanes: int) -> list[tuple[str, int]]:
    """Return the operands of a shuffle, each with the lanes needed for `lanes` of its result."""
    width, first, second, order = shuffle.groups()
    read = [0, 0]
    for lane, source in enumerate(_LANE.findall(order)):
        if source.isdigit() and lanes >> lane & 1:
            is_second, place = divmod(int(source), int(width))
            read[is_second] |= 1 << place
    both = zip((first, second), read, strict=True)
    return [(name, each) for name, each in both if name.startswith("%")]


def _load(name: str, lanes: int, count: int, kind: str, pointer: str, rest: str) -> str:
    """Return a load of the first lanes, and their place in a vector of as many as before."""
    order = ", ".join(f"i32 {lane}" if lane < count else "i32 poison" for lane in range(lanes))
    stem = name[1:].strip('"')
    part = f'%"nbrt.narrow.{stem}"'
    return (
        f"  {part} = load <{count} x {kind}>, ptr {pointer}{rest}\n"
        f"  {name} = shufflevector <{count} x {kind}> {part}, <{count} x {kind}> poison, "
        f"<{lanes} x i32> <{order}>"
    )

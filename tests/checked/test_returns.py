"""Return statements are told from the end of the source, with the source and without."""

from __future__ import annotations

import dis
import inspect
from typing import TYPE_CHECKING, Any

import pytest

from nbrt.backends.cpu.simt.checked.returns import Ending, endings

if TYPE_CHECKING:
    from types import CodeType


def none(t: int, x: list[int]) -> None:
    if t < 3:
        x[t] = 1


def none_with_else(t: int, x: list[int]) -> None:
    if t < 3:
        x[t] = 1
    elif t < 5:
        x.clear()
    else:
        x.append(t)


def none_behind_a_loop(t: int, x: list[int]) -> None:
    for k in range(t):
        if k == 3:
            break
        x[k] = 1
    while t:
        t -= 1


def first(t: int, x: list[int]) -> None:
    if t > 3:
        return  # RETURN
    x[t] = 1


def on_one_line(t: int, x: list[int]) -> None:
    if t > 3: return  # RETURN  # noqa: E701  # fmt: skip
    x[t] = 1


def last(t: int, x: list[int]) -> None:
    if t > 3:
        x[t] = 1
    return  # RETURN


def returns_of_both(t: int, x: list[int]) -> None:
    if t > 3:
        x[t] = 1
        return  # RETURN
    else:
        return None  # RETURN


def in_loops(t: int, x: list[int]) -> None:
    if t == 1:
        return  # RETURN
    for k in range(t):
        if k == 5:
            return  # RETURN_IN_LOOP
        while x:
            if x.pop():
                x[k] = 1
                return  # RETURN_IN_LOOP
    x[t] = 1


def endless(t: int, x: list[int]) -> None:
    while True:
        x.append(t)
        if len(x) > t:
            return  # RETURN_IN_LOOP


def in_a_function_inside(t: int, x: list[int]) -> None:
    def twice(k: int) -> int:
        return 2 * k

    x[t] = twice(t)


FUNCTIONS = [
    none,
    none_with_else,
    none_behind_a_loop,
    first,
    on_one_line,
    last,
    returns_of_both,
    in_loops,
    endless,
    in_a_function_inside,
]


def marked(function: Any) -> dict[int, str]:
    lines, start = inspect.getsourcelines(function)
    found = {}
    for at, line in enumerate(lines):
        if "# RETURN" in line:
            found[start + at] = line.split("# ")[1].strip()
    return found


def found(code: CodeType) -> dict[int, str]:
    places = [
        each.positions for each in dis.get_instructions(code) if each.opname.startswith("RETURN_")
    ]
    return {
        place.lineno: ending.name
        for place, ending in zip(places, endings(code), strict=True)
        if ending is not Ending.END
    }


@pytest.mark.parametrize("function", FUNCTIONS)
def test_statements_are_found(function: Any) -> None:
    assert found(function.__code__) == marked(function)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_statements_are_found_without_source_but_not_their_loops(function: Any) -> None:
    code = function.__code__.replace(co_filename="<no file>")
    assert found(code) == dict.fromkeys(marked(function), "RETURN")


def test_a_source_that_has_changed_is_not_believed() -> None:
    code = first.__code__.replace(co_firstlineno=returns_of_both.__code__.co_firstlineno)
    assert set(found(code).values()) == {"RETURN"}

"""Instructions of a warp: shuffles, votes, matches and reductions.

The forms without .sync take part with the threads of the warp that are active.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulated_cuda.ptx.instructions.registry import translates
from simulated_cuda.ptx.syntax import Pair
from simulated_cuda.ptx.thread_layout import LANE
from simulated_cuda.ptx.types import BITS

if TYPE_CHECKING:
    from simulated_cuda.ptx.function import FunctionBuilder
    from simulated_cuda.ptx.instructions.registry import Form
    from simulated_cuda.ptx.syntax import Operand

__all__: list[str] = []

_SHUFFLES = {"up": 0, "down": 1, "bfly": 2, "idx": 3}
_VOTES = ("all", "any", "uni", "ballot")
_THREAD = ("ptr", "%thread")


def _active(f: FunctionBuilder) -> str:
    f.waits = True  # for the lanes that take the same branch
    # The line keeps calls apart that LLVM would merge, as those at the starts of two branches.
    line = f.instruction.line if f.instruction is not None else 0
    return f.call("sim_active_mask", "i32", _THREAD, ("i32", str(line)))


def _mask(f: FunctionBuilder, operands: list[Operand], index: int, form: Form) -> str:
    return f.read_bits(operands[index], 32) if "sync" in form.flags else _active(f)


def _destinations(operand: Operand) -> tuple[Operand, Operand | None]:
    return (operand.first, operand.second) if isinstance(operand, Pair) else (operand, None)


@translates("shfl", modifiers=("sync", *_SHUFFLES), types=("b32",))
def _shuffle(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    f.waits = True
    flag = f.entry("alloca i32")
    result = f.call(
        "sim_shuffle",
        "i32",
        _THREAD,
        ("i32", str(_SHUFFLES[form.choose(_SHUFFLES)])),
        ("i32", f.read_bits(operands[1], 32)),
        ("i32", f.read_bits(operands[2], 32)),
        ("i32", f.read_bits(operands[3], 32)),
        ("i32", _mask(f, operands, 4, form)),
        ("ptr", flag),
    )
    destination, predicate = _destinations(operands[0])
    f.write(destination, result, "b32")
    if predicate is not None:
        value = f.value(f"load i32, ptr {flag}")
        f.write(predicate, f.value(f"icmp ne i32 {value}, 0"), "pred")


def _ballot(f: FunctionBuilder, predicate: str, mask: str) -> str:
    wide = f.value(f"zext i1 {predicate} to i32")
    return f.call("sim_ballot", "i32", _THREAD, ("i32", wide), ("i32", mask))


@translates("vote", modifiers=("sync", *_VOTES), types=("pred", "b32"))
def _vote(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    """Vote; `all` asks whether no thread objects, so that threads that ended do not count."""
    f.waits = True
    predicate, mask = f.read(operands[1], "pred"), _mask(f, operands, 2, form)
    mode = form.choose(_VOTES)
    if mode == "ballot":
        f.write(operands[0], _ballot(f, predicate, mask), "b32")
        return
    if mode == "any":
        result = f.value(f"icmp ne i32 {_ballot(f, predicate, mask)}, 0")
    else:
        inverse = f.value(f"xor i1 {predicate}, true")
        result = f.value(f"icmp eq i32 {_ballot(f, inverse, mask)}, 0")
        if mode == "uni":
            none = f.value(f"icmp eq i32 {_ballot(f, predicate, mask)}, 0")
            result = f.value(f"or i1 {result}, {none}")
    f.write(operands[0], result, "pred")


@translates("match", modifiers=("sync", "any", "all"), types=("b32", "b64"))
def _match(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    f.waits = True
    flag = f.entry("alloca i32")
    value = f.resize(f.read(operands[1], form.type), BITS[form.type], 64, signed=False)
    result = f.call(
        "sim_match",
        "i32",
        _THREAD,
        ("i64", value),
        ("i32", f.read_bits(operands[2], 32)),
        ("i32", str(int("all" in form.flags))),
        ("ptr", flag),
    )
    destination, predicate = _destinations(operands[0])
    f.write(destination, result, "b32")
    if predicate is not None:
        is_all = f.value(f"load i32, ptr {flag}")
        f.write(predicate, f.value(f"icmp ne i32 {is_all}, 0"), "pred")


@translates("activemask", types=("b32",))
def _active_mask(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    f.write(operands[0], _active(f), "b32")


_REDUX = {"min.s32": 1, "max.s32": 2, "min.u32": 3, "max.u32": 4, "and": 5, "or": 6, "xor": 7}


@translates(
    "redux",
    modifiers=("sync", "add", "min", "max", "and", "or", "xor"),
    types=("s32", "u32", "b32"),
)
def _reduce(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    f.waits = True
    name = form.choose(("add", "min", "max", "and", "or", "xor"))
    number = 0 if name == "add" else _REDUX.get(name) or _REDUX[f"{name}.{form.type}"]
    result = f.call(
        "sim_redux",
        "i32",
        _THREAD,
        ("i32", str(number)),
        ("i32", f.read_bits(operands[1], 32)),
        ("i32", f.read_bits(operands[2], 32)),
    )
    f.write(operands[0], result, "b32")


@translates("elect", modifiers=("sync",))
def _elect(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    """Elect the lowest lane."""
    f.waits = True
    present = _ballot(f, "true", f.read_bits(operands[1], 32))
    name = "llvm.cttz.i32"
    f.module.declare(name, f"declare i32 @{name}(i32, i1)")
    leader = f.value(f"call i32 @{name}(i32 {present}, i1 false)")
    destination, predicate = _destinations(operands[0])
    f.write(destination, leader, "b32")
    if predicate is not None:
        lane = f.thread_field(LANE, "i32")
        f.write(predicate, f.value(f"icmp eq i32 {leader}, {lane}"), "pred")

"""Find loops that may wait for other threads.

A loop may wait if a branch in it depends on a value that other threads can change while it runs:
the result of a volatile, relaxed or acquire load or of an atomic operation in the loop, or of any
load if the loop has a fence. A compare-and-swap that retries with its own result never waits: one
of the competing threads always succeeds. A loop without an exit counts too, since only a cancelled
launch ends it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulated_cuda.ptx.syntax import (
    Address,
    BranchTargets,
    Instruction,
    Label,
    Name,
    Negation,
    Pair,
    Parentheses,
    Vector,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simulated_cuda.ptx.syntax import Function, Operand

__all__ = ["waiting_loops"]

_JUMPS = frozenset({"bra", "brx", "ret", "exit", "trap"})
_ORDERED = frozenset({"volatile", "relaxed", "acquire", "acq_rel", "sc"})


class _Block:
    __slots__ = ("instructions", "predecessors", "successors")

    def __init__(self) -> None:
        self.instructions: list[Instruction] = []
        self.successors: set[int] = set()
        self.predecessors: set[int] = set()


def waiting_loops(function: Function) -> set[int]:
    """Return the ids of the branch instructions that close loops that may wait."""
    if not _has_backward_branch(function):
        return set()
    blocks = _blocks(function)
    found: set[int] = set()
    for source, block in enumerate(blocks):
        for target in block.successors:
            if target <= source:
                body = _natural_loop(blocks, target, source)
                if body is not None and _may_wait(blocks, body):
                    found.add(id(block.instructions[-1]))
    return found


def _has_backward_branch(function: Function) -> bool:
    seen: set[str] = set()
    for item in function.body or ():
        if isinstance(item, Label):
            seen.add(item.name)
        elif item.opcode == "brx" or (
            item.opcode == "bra" and seen.intersection(_names(item.operands))
        ):
            return True
    return False


def _blocks(function: Function) -> list[_Block]:
    blocks = [_Block()]
    starts: dict[int, int] = {}
    ended = False
    for item in function.body or ():
        if isinstance(item, Label):
            if blocks[-1].instructions:
                blocks.append(_Block())
            starts[item.index] = len(blocks) - 1
            ended = False
            continue
        if ended:
            blocks.append(_Block())
            ended = False
        blocks[-1].instructions.append(item)
        ended = item.opcode in _JUMPS
    _link(blocks, starts)
    return blocks


def _link(blocks: list[_Block], starts: dict[int, int]) -> None:
    for index, block in enumerate(blocks):
        last = block.instructions[-1] if block.instructions else None
        targets: set[int] = set()
        if last is not None and last.opcode in ("bra", "brx"):
            targets = {starts[k] for k in _targets(last) if k in starts}
        jumps = last is not None and last.opcode in _JUMPS and last.guard is None
        if not jumps and index + 1 < len(blocks):
            targets.add(index + 1)
        block.successors = targets
        for target in targets:
            blocks[target].predecessors.add(index)


def _targets(branch: Instruction) -> Iterator[int]:
    name = branch.operands[-1]
    if not isinstance(name, Name):
        return
    found = _lookup(branch, name.text)
    if isinstance(found, Label):
        yield found.index
    elif isinstance(found, BranchTargets):
        for text in found.labels:
            label = _lookup(branch, text)
            if isinstance(label, Label):
                yield label.index


def _lookup(instruction: Instruction, name: str) -> object | None:
    scope = instruction.scope
    while scope is not None:
        if name in scope.symbols:
            return scope.symbols[name]
        scope = scope.parent  # type: ignore[assignment]
    return None


def _natural_loop(blocks: list[_Block], head: int, latch: int) -> set[int] | None:
    """Return the blocks from which `latch` is reached without passing `head`.

    None if control cannot get from `head` to `latch`: the branch only goes back in the text.
    """
    body = {head, latch}
    pending = [latch] if latch != head else []
    while pending:
        for index in blocks[pending.pop()].predecessors:
            if index not in body:
                body.add(index)
                pending.append(index)
    reached = {head}
    pending = [head]
    while pending:
        for index in blocks[pending.pop()].successors & body:
            if index not in reached:
                reached.add(index)
                pending.append(index)
    return body & reached if latch in reached else None


def _may_wait(blocks: list[_Block], body: set[int]) -> bool:
    instructions = [item for index in sorted(body) for item in blocks[index].instructions]
    exits = any(blocks[index].successors - body for index in body)
    leaves = any(item.opcode in ("ret", "exit", "trap") for item in instructions)
    if not exits and not leaves:
        return True
    if any(item.opcode == "nanosleep" for item in instructions):
        return True
    fenced = any(item.opcode in ("membar", "fence") for item in instructions)
    seeds: set[str] = set()
    for item in instructions:
        if _reads_other_threads(item, fenced) and not _is_retry(item, instructions):
            seeds |= set(_names(item.operands[:1]))
    if not seeds:
        return False
    tainted = _derived(instructions, seeds)
    return any(
        item.opcode in ("bra", "brx", "ret", "exit") and tainted & _conditions(item)
        for item in instructions
    )


def _conditions(branch: Instruction) -> set[str]:
    """Return the registers that decide whether or where a branch goes."""
    names = _guard_names(branch)
    if branch.opcode == "brx":
        names |= set(_names(branch.operands[:1]))
    return names


def _reads_other_threads(item: Instruction, fenced: bool) -> bool:
    if item.opcode == "atom":
        return True
    if item.opcode in ("ld", "ldu"):
        private = "param" in item.modifiers or "local" in item.modifiers or "nc" in item.modifiers
        return not private and (fenced or bool(_ORDERED.intersection(item.modifiers)))
    return False


def _is_retry(item: Instruction, instructions: list[Instruction]) -> bool:
    if item.opcode != "atom" or "cas" not in item.modifiers:
        return False
    derived = _derived(instructions, set(_names(item.operands[:1])))
    return bool(derived.intersection(_names(item.operands[2:3])))


def _derived(instructions: list[Instruction], seeds: set[str]) -> set[str]:
    """Return the registers that are computed from some registers, these included."""
    found = set(seeds)
    changed = True
    while changed:
        changed = False
        for item in instructions:
            if item.opcode in ("st", "red", "bra", "brx") or not item.operands:
                continue
            if found.intersection(_names(item.operands[1:])) or found & _guard_names(item):
                results = set(_names(item.operands[:1])) - found
                if results:
                    found |= results
                    changed = True
    return found


def _guard_names(item: Instruction) -> set[str]:
    return {item.guard.text} if item.guard is not None else set()


def _names(operands: list[Operand] | tuple[Operand, ...]) -> Iterator[str]:
    for operand in operands:
        if isinstance(operand, Name):
            yield operand.text
        elif isinstance(operand, Negation):
            yield operand.name.text
        elif isinstance(operand, Address) and operand.base is not None:
            yield operand.base.text
        elif isinstance(operand, Vector | Parentheses):
            yield from _names(operand.elements)
        elif isinstance(operand, Pair):
            yield from _names((operand.first, operand.second))

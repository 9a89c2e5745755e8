"""One thread as an LLVM coroutine, which suspends where the thread function waits.

The coroutine frame holds the values that are live across a suspension. Values that all threads of a
block share (the kernel's arguments, the block's index) are not part of it: they are reloaded from
the block's record after every suspension.
"""

from __future__ import annotations

import llvmlite.binding as llvm

from nbrt.backends.cpu.simt.coroutines.suspend_points import (
    KINDS,
    WARP_OPERATIONS,
    calls_marker,
    operation,
)
from nbrt.backends.cpu.simt.llvm.model import (
    LOCAL,
    THREAD_PARAMETERS,
    Function,
    Instruction,
    Operand,
)
from nbrt.backends.cpu.simt.placeholders import BARRIER, CHANGED, SHARED_BYTES, SHARED_DYNAMIC
from nbrt.errors import UnsupportedConstructError

__all__ = ["SHARED_PARAMETERS", "shared_parameters", "thread_coroutine", "uniform_parameters"]

SHARED_PARAMETERS = (
    Operand("ptr", "%simt.shared"),
    Operand("i64", "%simt.shared.bytes"),
    Operand("ptr", "%simt.stop"),
)
"""Parameters of the block function that threads read, too."""

# Before LLVM 22 the result says whether the coroutine unwinds.
_END_TYPE = "void" if llvm.llvm_version_info[0] >= 22 else "i1"

_HEAD = f"""\
%simt.promise = type {{ ptr, i32 }}

declare token @llvm.coro.id(i32, ptr, ptr, ptr)
declare i64 @llvm.coro.size.i64()
declare ptr @llvm.coro.begin(token, ptr)
declare i8 @llvm.coro.suspend(token, i1)
declare {_END_TYPE} @llvm.coro.end(ptr, i1, token)

; Create a suspended thread in the memory for its frame; with null, only return the frame's size.
define internal i64 @simt.thread(ptr %simt.block, i32 %simt.rank, ptr %simt.frame)
    presplitcoroutine nounwind {{
simt.entry:
  %simt.promise = alloca %simt.promise
  %simt.block.slot = alloca ptr
  %simt.rank.slot = alloca i32
"""

_BEGIN = """\
  %simt.id = call token @llvm.coro.id(i32 64, ptr %simt.promise, ptr null, ptr null)
  %simt.size = call i64 @llvm.coro.size.i64()
  %simt.measured = icmp eq ptr %simt.frame, null
  br i1 %simt.measured, label %simt.end, label %simt.begin
simt.begin:
  %simt.handle = call ptr @llvm.coro.begin(token %simt.id, ptr %simt.frame)
  store ptr %simt.block, ptr %simt.promise
  %simt.promise.rank = getelementptr inbounds %simt.promise, ptr %simt.promise, i32 0, i32 1
  store i32 %simt.rank, ptr %simt.promise.rank
  %simt.frames = getelementptr inbounds %simt.block, ptr %simt.block, i32 0, i32 4
  %simt.handle.at = getelementptr inbounds ptr, ptr %simt.frames, i32 %simt.rank
  store ptr %simt.handle, ptr %simt.handle.at"""

_TAIL = f"""\
simt.final:
  %simt.last = call i8 @llvm.coro.suspend(token none, i1 true)
  switch i8 %simt.last, label %simt.suspended [ i8 0, label %simt.never i8 1, label %simt.never ]
simt.never:
  unreachable
simt.suspended:
  call {_END_TYPE} @llvm.coro.end(ptr %simt.handle, i1 false, token none)
  br label %simt.end
simt.end:
  ret i64 %simt.size
}}
"""


def uniform_parameters(function: Function) -> list[Operand]:
    """Return the parameters of a thread function that all threads of a block share."""
    parameters = function.parameters
    return parameters[:THREAD_PARAMETERS] + parameters[THREAD_PARAMETERS + 3 :]


def shared_parameters(function: Function) -> list[Operand]:
    """Return the values that a thread reads from its block's record."""
    return [*uniform_parameters(function), *SHARED_PARAMETERS]


def thread_coroutine(
    function: Function, block: tuple[int, int, int], shared: dict[str, int]
) -> str:
    """Return a thread function as a coroutine.

    Parameters
    ----------
    function : Function
        The thread function, with markers.
    block : tuple of int
        Threads of a block along x, y and z.
    shared : dict of str to int
        Marker -> offset of the static shared array in the block's record.

    Returns
    -------
    str
        LLVM assembly of ``@simt.thread`` and its declarations.
    """
    return _Coroutine(function, block, shared).text()


class _Coroutine:
    """Writes the coroutine line by line."""

    def __init__(
        self, function: Function, block: tuple[int, int, int], shared: dict[str, int]
    ) -> None:
        self._function = function
        self._block = block
        self._shared = shared
        self._place = function.parameters[THREAD_PARAMETERS : THREAD_PARAMETERS + 3]
        self._fields = shared_parameters(function)
        types = {item.text: item.type for item in [*self._place, *self._fields]}
        used = {o.text for _, item in function.instructions() for o in item.operands}
        used.update(item.text for item in SHARED_PARAMETERS)
        self._used = {name: kind for name, kind in types.items() if name in used}
        self._lines: list[str] = []
        self._count = 0
        self._sites = 0

    def text(self) -> str:
        """Return the text of the coroutine."""
        labels = self._labels_after_waiting()
        before_end = self._take_arguments_of_phis()
        self._emit(_BEGIN)
        self._suspend("simt.start")
        self._emit(f"  br label {self._function.entry}")
        for block in self._function.blocks.values():
            self._emit(f"{block.label[1:]}:")
            for item in block.instructions:
                if item.opcode == "phi":
                    text = LOCAL.sub(lambda found: labels.get(found[0], found[0]), item.text)
                    self._emit(f"  {item.name} = {text}")
                    continue
                if item.is_terminator:
                    self._lines += before_end.get(block.label, [])
                self._instruction(item)
        slots = "".join(f"  {_slot(n)} = alloca {kind}\n" for n, kind in self._used.items())
        return _HEAD + slots + "\n".join(self._allocas() + self._lines) + "\n" + _TAIL

    def _emit(self, line: str) -> None:
        self._lines.append(line)

    def _fresh(self) -> str:
        self._count += 1
        return f"%simt.v{self._count}"

    def _load(self, kind: str, address: str, more: str = "") -> str:
        name = self._fresh()
        self._emit(f"  {name} = load {kind}, ptr {address}{more}")
        return name

    def _allocas(self) -> list[str]:
        """Return all stack slots; they must be in the first block."""
        slots = []
        for block in self._function.blocks.values():
            for item in block.instructions:
                if item.opcode != "alloca":
                    continue
                if any(operand.is_local for operand in item.operands):
                    raise UnsupportedConstructError(
                        f"line {item.line}: expected local memory of constant size, got "
                        f"{item.text!r}: give cuda.local.array a constant shape"
                    )
                slots.append(f"  {item.name} = {item.text}")
        return slots

    def _labels_after_waiting(self) -> dict[str, str]:
        """Return split blocks with the label of their last part, for phis."""
        labels, site = {}, 0
        for block in self._function.blocks.values():
            for item in block.instructions:
                if calls_marker(item) and operation(item) in KINDS:
                    site += 1
                    labels[block.label] = f"%simt.after{site}"
        return labels

    def _take_arguments_of_phis(self) -> dict[str, list[str]]:
        """Replace arguments in phis by loads; return the loads by the block they belong to."""
        names: dict[tuple[str, str], str] = {}
        loads: dict[str, list[str]] = {}
        for _, item in self._function.instructions():
            if item.opcode != "phi":
                continue
            parts = []
            for operand, label in zip(item.operands, item.labels, strict=True):
                value = operand.text
                if value in self._used:
                    # One load for each block, as a phi takes one value from a block.
                    if (label, value) not in names:
                        name = names[label, value] = self._fresh()
                        load = f"  {name} = load {operand.type}, ptr {_slot(value)}"
                        loads.setdefault(label, []).append(load)
                    value = names[label, value]
                parts.append(f"[ {value}, {label} ]")
            item.text = f"phi {item.flags} {item.type} {', '.join(parts)}"
        return loads

    def _suspend(self, label: str) -> None:
        """Suspend, then reload the shared values from the block's record."""
        signal = self._fresh()
        self._emit(f"  {signal} = call i8 @llvm.coro.suspend(token none, i1 false)")
        targets = f"i8 0, label %{label} i8 1, label %simt.never"
        self._emit(f"  switch i8 {signal}, label %simt.suspended [ {targets} ]")
        self._emit(f"{label}:")
        threads = self._block[0] * self._block[1] * self._block[2]
        # The range shows LLVM that an index computed from the rank is not negative.
        bounds = f", !range !{{i32 0, i32 {threads}}}"
        block = self._load("ptr", "%simt.promise")
        rank = self._load("i32", "%simt.promise.rank", bounds)
        self._emit(f"  store ptr {block}, ptr %simt.block.slot")
        self._emit(f"  store i32 {rank}, ptr %simt.rank.slot")
        self._emit(f"  call void @simt.resumed(ptr {block}, i32 {rank})")
        for index, item in enumerate(self._fields):
            if item.text in self._used:
                at, path = self._fresh(), f"i32 0, i32 3, i32 {index}"
                self._emit(f"  {at} = getelementptr inbounds %simt.block, ptr {block}, {path}")
                value = self._load(item.type, at)
                self._emit(f"  store {item.type} {value}, ptr {_slot(item.text)}")
        self._place_thread(rank)

    def _place_thread(self, rank: str) -> None:
        """Compute the thread's index from its rank."""
        width, height, _ = self._block
        row = self._fresh()
        self._emit(f"  {row} = udiv i32 {rank}, {width}")
        ways = (
            f"urem i32 {rank}, {width}",
            f"urem i32 {row}, {height}",
            f"udiv i32 {row}, {height}",
        )
        for item, way in zip(self._place, ways, strict=True):
            if item.text in self._used:
                name = self._fresh()
                self._emit(f"  {name} = {way}")
                self._emit(f"  store i32 {name}, ptr {_slot(item.text)}")

    def _instruction(self, item: Instruction) -> None:
        if item.opcode == "alloca":
            return
        names = dict.fromkeys(o.text for o in item.operands if o.text in self._used)
        loaded = {name: self._load(self._used[name], _slot(name)) for name in names}
        if calls_marker(item):
            operands = [loaded.get(o.text, o.text) for o in item.operands]
            self._marker(item, operands)
        elif item.opcode == "ret":
            block = self._load("ptr", "%simt.block.slot")
            rank = self._load("i32", "%simt.rank.slot")
            status = loaded.get(item.operands[0].text, item.operands[0].text)
            self._emit(f"  call void @simt.exit(ptr {block}, i32 {rank}, i32 {status})")
            self._emit("  br label %simt.final")
        else:
            equals = f"{item.name} = " if item.name else ""
            self._emit(f"  {equals}{item.written(loaded)}")

    def _marker(self, item: Instruction, operands: list[str]) -> None:
        if item.detail in self._shared:
            block = self._load("ptr", "%simt.block.slot")
            offset = self._shared[item.detail]
            self._emit(f"  {item.name} = getelementptr inbounds i8, ptr {block}, i64 {offset}")
        elif item.detail in (SHARED_DYNAMIC, SHARED_BYTES):
            field = SHARED_PARAMETERS[item.detail == SHARED_BYTES]
            self._emit(f"  {item.name} = load {field.type}, ptr {_slot(field.text)}")
        elif item.detail == CHANGED:
            block = self._load("ptr", "%simt.block.slot")
            self._emit(f"  call void @simt.changed(ptr {block}, i1 {operands[0]})")
        elif operation(item) in KINDS:
            self._wait(item, operands)
        else:
            raise UnsupportedConstructError(
                f"line {item.line}: expected a marker that coroutines know, got {item.detail!r}; "
                "add it to KINDS in simt/coroutines/suspend_points.py"
            )

    def _wait(self, item: Instruction, operands: list[str]) -> None:
        name = operation(item)
        self._sites += 1
        state = self._sites << 8 | KINDS[name]
        block = self._load("ptr", "%simt.block.slot")
        thread = f"ptr {block}, i32 {self._load('i32', '%simt.rank.slot')}"
        if name in WARP_OPERATIONS:
            asked = ", ".join(self._request(item, operands))
            self._emit(f"  call void @simt.ask({thread}, i32 {state}, {asked})")
        else:
            if operands:
                self._emit(f"  call void @simt.vote(ptr {block}, i32 {operands[0]})")
            self._emit(f"  call void @simt.wait({thread}, i32 {state})")
        self._suspend(f"simt.after{self._sites}")
        if not item.name:
            return
        block = self._load("ptr", "%simt.block.slot")
        if name not in WARP_OPERATIONS:
            kind = name.removeprefix(BARRIER)
            self._emit(f"  {item.name} = call i32 @simt.voted{kind}(ptr {block})")
            return
        rank = self._load("i32", "%simt.rank.slot")
        wide = item.type == "i64"
        answer = item.name if wide else self._fresh()
        self._emit(f"  {answer} = call i64 @simt.answered(ptr {block}, i32 {rank})")
        if not wide:
            self._emit(f"  {item.name} = trunc i64 {answer} to {item.type}")

    def _request(self, item: Instruction, operands: list[str]) -> list[str]:
        """Return mask, value and source lane of a warp operation."""
        mask = operands[0] if operands else "0"
        value, source = "0", operands[2] if len(operands) > 2 else "0"
        if len(operands) > 1:
            value = operands[1]
            if item.operands[1].type != "i64":
                narrow, value = value, self._fresh()
                self._emit(f"  {value} = zext {item.operands[1].type} {narrow} to i64")
        return [f"i32 {mask}", f"i64 {value}", f"i32 {source}"]


def _slot(name: str) -> str:
    """Return the quoted name of an argument's stack slot."""
    return f'%"simt.slot.{name[1:].strip(chr(34))}"'

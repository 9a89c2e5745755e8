"""Blocks inside of limits: ``min(i, n - 1)`` and ``max(i, 0)`` that change no index of a block.

A kernel that limits its indices to an array reads some elements twice at the edges. Neighbouring
threads then read elements that are not neighbours, so a vector load becomes a gather. In most
blocks no limit applies. `find_limits` finds limits of indices that are linear in ``threadIdx``, and
writes a thread without them, and a test that decides from the arguments and ``blockIdx`` whether
they change anything in a block.

The decision is exact. An index is ``v0 + k`` modulo 2^n in each thread, where ``v0`` is its value
in thread (0, 0, 0) and ``k`` lies between two constants. If the additions of these to ``v0`` do not
overflow, the index lies between the sums, and their comparison with the limit decides for every
thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from nbrt.backends.cpu.simt.lanes.analysis.special_threads import SpecialThread
from nbrt.backends.cpu.simt.lanes.vectors.lane_sets import constant
from nbrt.backends.cpu.simt.llvm.graph import dominates, dominator_tree
from nbrt.backends.cpu.simt.llvm.model import THREAD_PARAMETERS
from nbrt.backends.cpu.simt.llvm.parse import function_lines, parse_function
from nbrt.backends.cpu.simt.llvm.types import is_integer

if TYPE_CHECKING:
    from nbrt.backends.cpu.simt.llvm.model import Function, Instruction, Operand, ThreadIR

__all__ = ["find_limits"]

_NOTE = "limits of indices (min, max): {}; blocks where they change no index run without them"

_MAX_CLONED = 64
"""Maximum number of instructions of a decision."""

_HOLDS = {"smin": ("s", "sle"), "smax": ("s", "sge"), "umin": ("u", "ule"), "umax": ("u", "uge")}
"""By intrinsic: signedness, and the comparison of the index with the limit."""

_CLONED = frozenset(
    (
        *("add", "sub", "mul", "shl", "lshr", "ashr", "and", "or", "xor", "icmp", "select"),
        *("zext", "sext", "trunc", "freeze"),
    )
)


class _Limit(NamedTuple):
    """A limit of an index."""

    item: Instruction
    value: Operand
    """The index."""
    bound: Operand


class _Form(NamedTuple):
    """A value that is linear in the thread indices."""

    steps: tuple[int, int, int]
    """Its differences along x, y and z."""

    offset: int | None
    """The rest, if it is a constant."""

    exact: bool
    """Whether the value is the exact sum, as a signed number, wherever it is not poison."""

    @property
    def is_uniform(self) -> bool:
        return not any(self.steps)


_NONE = (0, 0, 0)


def find_limits(code: ThreadIR) -> tuple[SpecialThread | None, int]:
    """Find the limits of indices that change between the threads of a row.

    Parameters
    ----------
    code : ThreadIR
        One thread.

    Returns
    -------
    limits : SpecialThread or None
        None if there are none.
    unknown : int
        Number of limits whose effect on a block is not known before it runs.
    """
    if code.block[0] == 1 or not any(f"@llvm.{name}." in code.module for name in _HOLDS):
        return None, 0
    search = _Search(code)
    found = search.found()
    limits = search.written(found) if found else None
    return limits, len(search.unknown) + (0 if limits else len(found))


class _Search:
    """Finds limits in one thread."""

    def __init__(self, code: ThreadIR) -> None:
        self._code = code
        self._function: Function = parse_function(code.module, code.name)
        self._definitions = {i.name: i for _, i in self._function.instructions() if i.name}
        parameters = self._function.parameters[THREAD_PARAMETERS:][:3]
        self._indices = [parameter.text for parameter in parameters]
        self._forms: dict[str, _Form] = {}
        for position, parameter in enumerate(self._function.parameters):
            axis = position - THREAD_PARAMETERS
            steps = [int(axis == other) for other in range(3)]
            is_index = axis in (0, 1, 2) and code.block[axis] > 1
            form = _Form((steps[0], steps[1], steps[2]), 0, True) if is_index else None
            self._forms[parameter.text] = form or _Form(_NONE, None, True)
        self._users: dict[str, list[tuple[str, Instruction]]] = {}
        for block, item in self._function.instructions():
            for operand in item.operands:
                if operand.is_local:
                    self._users.setdefault(operand.text, []).append((block.label, item))
        self._clones: dict[str, str] = {}
        self._lines: list[str] = []
        self._of_few: set[str] = set()
        self.unknown: list[str] = []

    def found(self) -> dict[str, _Limit]:
        """Return limits by the names of their results, and note those that are not known."""
        limits: dict[str, _Limit] = {}
        unknown = []
        for _, item in self._function.instructions():
            if not item.name or not is_integer(item.type):
                continue
            form = self._form(item)
            name = _intrinsic(item)
            if form is None and name in _HOLDS:
                form = self._limited(item, limits)
                if form is None and self._varies_in_rows(item):
                    unknown.append(item.name)
            if form is not None:
                self._forms[item.name] = form
        self._find_blocks_of_few()
        self.unknown = [name for name in unknown if self._reaches_memory(name)]
        return {name: found for name, found in limits.items() if self._reaches_memory(name)}

    def _limited(self, item: Instruction, limits: dict[str, _Limit]) -> _Form | None:
        """Note a limit of an index that is linear, and return the form of the index."""
        for index, bound in (item.operands, item.operands[::-1]):
            inner, outer = self._of(index), self._of(bound)
            if inner and outer and inner.steps[0] and outer.is_uniform:
                limits[item.name] = _Limit(item, index, bound)
                return inner
        return None

    # -- linear values ---------------------------------------------------------------------------

    def _of(self, operand: Operand) -> _Form | None:
        number = constant(operand.text)
        if number is not None:
            return _Form(_NONE, number, True)
        return self._forms.get(operand.text)

    def _varies_in_rows(self, item: Instruction) -> bool:
        """Return whether a value depends on ``threadIdx.x``, directly or through memory."""
        pending, seen = [item], {item.name}
        while pending:
            for operand in pending.pop().operands:
                if operand.text == self._indices[0]:
                    return True
                source = self._definitions.get(operand.text)
                if source is not None and source.name not in seen:
                    seen.add(source.name)
                    pending.append(source)
        return False

    def _form(self, item: Instruction) -> _Form | None:
        opcode = item.opcode
        if opcode not in _CLONED and _intrinsic(item) not in _HOLDS:
            return None
        if opcode in ("shl", "lshr", "ashr") and constant(item.operands[1].text) not in range(32):
            return None
        forms = [self._of(operand) for operand in item.operands]
        known = [form for form in forms if form is not None]
        if len(known) < len(forms):
            return None
        left, right = known[0], known[-1]
        exact = left.exact and right.exact and "nsw" in item.flags
        if opcode == "add" or (opcode == "or" and "disjoint" in item.flags):
            return _sum(left, right, 1, exact or (opcode == "or" and left.exact and right.exact))
        if opcode == "sub":
            return _sum(left, right, -1, exact)
        if opcode == "mul" and right.offset is not None and right.is_uniform:
            return _scaled(left, right.offset, exact)
        if opcode == "shl" and right.offset is not None:
            return _scaled(left, 1 << right.offset, exact)
        if all(form.is_uniform for form in known):
            return _Form(_NONE, None, True)
        is_positive = "nneg" in item.flags or item.operands[0].text in self._indices
        if (opcode == "sext" or (opcode == "zext" and is_positive)) and left.exact:
            return left
        return None

    # -- uses --------------------------------------------------------------------------------------

    def _reaches_memory(self, name: str) -> bool:
        """Return whether code of more than a few threads of a row uses a value in an address."""
        pending, seen = [name], {name}
        while pending:
            for label, user in self._users.get(pending.pop(), ()):
                if label in self._of_few or user.name in seen:
                    continue
                if user.opcode in ("load", "store"):
                    return True
                is_followed = user.opcode not in ("call", "icmp") or _intrinsic(user) in _HOLDS
                if user.name and is_followed:
                    seen.add(user.name)
                    pending.append(user.name)
        return False

    def _find_blocks_of_few(self) -> None:
        """Find the blocks that only the threads with one value of ``threadIdx.x`` enter."""
        function = self._function
        idom = dominator_tree(function.entry, lambda label: function.blocks[label].successors)
        sources: dict[str, list[str]] = {}
        for label in idom:
            for target in function.blocks[label].successors:
                sources.setdefault(target, []).append(label)
        edges = []
        for label in idom:
            branch = function.blocks[label].terminator
            if branch.opcode != "br" or len(set(branch.labels)) < 2:
                continue
            for target, taken in zip(branch.labels, (True, False), strict=True):
                lanes = self._threads(branch.operands[0], taken)
                if lanes is not None and sources[target] == [label]:
                    edges.append((target, lanes))
        for label in idom:
            inside = set(range(self._code.block[0]))
            for target, lanes in edges:
                if dominates(idom, target, label):
                    inside &= lanes
            if len(inside) <= 1:
                self._of_few.add(label)

    def _threads(self, test: Operand, taken: bool) -> set[int] | None:
        """Return the values of ``threadIdx.x`` for which a test may have a result."""
        item = self._definitions.get(test.text)
        if item is None:
            return None
        if item.opcode == "and" and taken:
            both = [self._threads(operand, taken) for operand in item.operands]
            known = [threads for threads in both if threads is not None]
            return set.intersection(*known) if known else None
        if item.opcode != "icmp":
            return None
        left, right = (self._of(operand) for operand in item.operands)
        if left is None or right is None or not right.is_uniform or right.offset is None:
            return None
        if left.steps != (1, 0, 0) or left.offset is None or not left.exact:
            return None
        first, limit = left.offset, right.offset
        return {
            x
            for x in range(self._code.block[0])
            if _compares(item.detail, first + x, limit) == taken
        }

    # -- the decision ------------------------------------------------------------------------------

    def written(self, limits: dict[str, _Limit]) -> SpecialThread | None:
        """Write the test, and the thread without limits; return None if the test is too long."""
        replaced, tests = {}, []
        for name, limit in limits.items():
            test = self._test(limit)
            if test is None:
                return None  # the index of another limit may be this one
            tests.append(test)
            replaced[name] = f"  {name} = add {limit.item.type} {limit.value.text}, 0"
        holds = tests[0]
        for test in tests[1:]:
            holds = self._op(f"and i1 {holds}, {test}")
        lines = self._code.module.splitlines()
        for at in function_lines(lines, self._code.name):
            lines[at] = replaced.get(lines[at].strip().partition(" = ")[0], lines[at])
        return SpecialThread("\n".join(lines), self._lines, holds, _NOTE.format(len(tests)))

    def _op(self, text: str) -> str:
        name = f"%limit.{len(self._lines)}"
        self._lines.append(f"{name} = {text}")
        return name

    def _test(self, limit: _Limit) -> str | None:
        """Write whether a limit changes no index of the block."""
        item, index, end_of_indices = limit
        sign, predicate = _HOLDS[_intrinsic(item)]
        form, kind = self._of(index), item.type
        assert form is not None
        spans = [step * (size - 1) for step, size in zip(form.steps, self._code.block, strict=True)]
        low, high = sum(min(0, s) for s in spans), sum(max(0, s) for s in spans)
        if max(-low, high) >= 1 << (int(kind[1:]) - 2):
            return None
        first, bound = self._clone(index), self._clone(end_of_indices)
        if first is None or bound is None:
            return None
        ends, flags = [], []
        for operation, distance in (("sub", -low), ("add", high)):
            text = f"call {{ {kind}, i1 }} @llvm.{sign}{operation}.with.overflow.{kind}"
            pair = self._op(f"{text}({kind} {first}, {kind} {distance})")
            ends.append(self._op(f"extractvalue {{ {kind}, i1 }} {pair}, 0"))
            flags.append(self._op(f"extractvalue {{ {kind}, i1 }} {pair}, 1"))
        end = ends[1] if predicate[1:] == "le" else ends[0]
        inside = self._op(f"icmp {predicate} {kind} {end}, {bound}")
        wraps = self._op(f"or i1 {flags[0]}, {flags[1]}")
        return self._op(f"select i1 {wraps}, i1 false, i1 {inside}")

    def _clone(self, operand: Operand) -> str | None:
        """Write the value of an operand in thread (0, 0, 0); return None if it is too long."""
        text = operand.text
        if not operand.is_local:
            return text
        if text in self._indices:
            return "0"
        item = self._definitions.get(text)
        if item is None:
            return text  # a parameter
        if text in self._clones:
            return self._clones[text]
        copies = [self._clone(inner) for inner in item.operands]
        texts = [copy for copy in copies if copy is not None]
        if len(texts) < len(copies) or len(self._clones) >= _MAX_CLONED:
            return None
        # The thread might not execute the operation.
        self._clones[text] = self._op(item.without_flags(texts))
        return self._clones[text]


def _intrinsic(item: Instruction) -> str:
    """Return the name of a called intrinsic without its types."""
    if item.opcode != "call" or not item.detail.startswith("llvm."):
        return ""
    return item.detail.split(".")[1]


def _sum(left: _Form, right: _Form, sign: int, exact: bool) -> _Form:
    x, y, z = (a + sign * b for a, b in zip(left.steps, right.steps, strict=True))
    offset = None
    if left.offset is not None and right.offset is not None:
        offset = left.offset + sign * right.offset
    return _Form((x, y, z), offset, exact or (x, y, z) == _NONE)


def _scaled(form: _Form, factor: int, exact: bool) -> _Form:
    x, y, z = (step * factor for step in form.steps)
    offset = None if form.offset is None else form.offset * factor
    return _Form((x, y, z), offset, exact or form.is_uniform)


def _compares(predicate: str, left: int, right: int) -> bool:
    """Compare two numbers; unsigned comparisons of negative ones are taken as true."""
    relation = predicate if predicate in ("eq", "ne") else predicate[1:]
    return {
        "eq": left == right,
        "ne": left != right,
        "lt": left < right,
        "le": left <= right,
        "gt": left > right,
        "ge": left >= right,
    }[relation]

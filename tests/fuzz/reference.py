"""The reference semantics of a program: its tree, run thread by thread, without Numba.

Threads are Python generators that stop where they need others: at a barrier until all threads of
the block that are left have come, at a warp operation until those of the warp have. Integers are
Python's, wrapped to the widths that Numba computes in; floats are NumPy scalars of their type.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from fuzz import program as p

if TYPE_CHECKING:
    from collections.abc import Callable

_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "<<": operator.lshift,
    ">>": operator.rshift,
    "min": min,
    "max": max,
    "add": operator.add,
    "xor": operator.xor,
    "or_": operator.or_,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}

Steps = "Generator[tuple[str, str, Any, Any], Any, str]"


def run(program: p.Program, arrays: dict[str, np.ndarray]) -> None:
    """Run every block of a launch; the arrays that the program writes change."""
    with np.errstate(all="ignore"):
        for block in range(program.grid):
            _run_block(program, block, arrays)


def wrapped(value: int, kind: str) -> int:
    """Wrap an integer to the width of a type."""
    bits = int(kind.removeprefix("u").removeprefix("int"))
    value &= (1 << bits) - 1
    return value if kind.startswith("u") or value < 1 << (bits - 1) else value - (1 << bits)


def cast(value: Any, source: str, target: str) -> Any:
    """Convert as C does; conversions from float to integer do not occur."""
    if not target.startswith("float"):
        return wrapped(int(value), target)
    return np.dtype(source).type(value).astype(target)


def promoted(left: str, right: str) -> str:
    """Return the type that Numba computes in."""
    if left.startswith("float") or right.startswith("float"):
        return "float32" if left == right == "float32" else "float64"
    return "uint64" if left.startswith("u") and right.startswith("u") else "int64"


class _Thread:
    def __init__(
        self,
        program: p.Program,
        block: int,
        thread: int,
        arrays: dict[str, np.ndarray],
        shared: dict[str, list[Any]],
    ) -> None:
        self._program = program
        self._arrays = arrays
        self._shared = shared
        self._index = block * program.block + thread
        self._names: dict[str, Any] = {"t": thread, "b": block, "g": self._index, "n": program.n}

    def steps(self) -> Steps:
        for variable in self._program.variables:
            self._assign(variable.target, self._value(variable.value))
        if (yield from self._run(self._program.body)) != "return":
            for variable in self._program.variables:
                name = variable.target.name
                self._arrays[f"z_{name}"][self._index] = self._names[name]
        return ""

    def _assign(self, target: p.Name, value: Any) -> None:
        self._names[target.name] = value

    # -- statements --------------------------------------------------------------------------

    def _run(self, statements: tuple[p.Statement, ...]) -> Steps:
        """Run statements; return the statement that ended them early, or None."""
        for statement in statements:
            how = yield from getattr(self, f"_run_{type(statement).__name__}")(statement)
            if how:
                return how
        return ""

    def _run_Assign(self, statement: p.Assign) -> Steps:
        self._assign(statement.target, self._value(statement.value))
        return ""
        yield

    def _run_Store(self, statement: p.Store) -> Steps:
        self._arrays[f"y_{statement.value.type}"][self._index] = self._value(statement.value)
        return ""
        yield

    def _run_Atomic(self, statement: p.Atomic) -> Steps:
        array = self._arrays[f"a_{statement.operator}"]
        where, value = self._value(statement.where) & (p.BINS - 1), self._value(statement.value)
        result = _OPERATORS[statement.operator](int(array[where]), value)
        array[where] = wrapped(result, p.ATOMICS[statement.operator])
        return ""
        yield

    def _run_If(self, statement: p.If) -> Steps:
        taken = statement.then if self._value(statement.test) else statement.otherwise
        return (yield from self._run(taken))

    def _run_For(self, statement: p.For) -> Steps:
        for turn in range(self._value(statement.turns) & 3):
            self._assign(statement.counter, turn)
            how = yield from self._run(statement.body)
            if how in ("break", "return"):
                return how.replace("break", "")
        return ""

    def _run_While(self, statement: p.While) -> Steps:
        for turn in range(1, 5):
            self._assign(statement.counter, turn)
            how = yield from self._run(statement.body)
            if how == "return":
                return how
            if how == "break" or self._value(statement.test):
                break
        return ""

    def _run_Leave(self, statement: p.Leave) -> Steps:
        return statement.how if self._value(statement.test) else ""
        yield

    def _run_Exchange(self, statement: p.Exchange) -> Steps:
        shared = self._shared[statement.target.type]
        thread = self._names["t"]
        if not statement.called:
            shared[thread] = self._value(statement.value)
        yield from self._run(statement.between)
        if statement.called:
            shared[thread] = self._value(statement.value)
        yield "block", "syncthreads", None, None
        self._assign(statement.target, shared[(thread + statement.shift) % statement.block])
        yield "block", "syncthreads", None, None
        return ""

    def _run_SharedSum(self, statement: p.SharedSum) -> Steps:
        bins, thread = self._shared["bins"], self._names["t"]
        if thread < p.BINS:
            bins[thread] = 0
        yield "block", "syncthreads", None, None
        where = self._value(statement.where) & (p.BINS - 1)
        bins[where] = wrapped(bins[where] + self._value(statement.value), "int64")
        yield "block", "syncthreads", None, None
        self._assign(statement.target, bins[thread & (p.BINS - 1)])
        yield "block", "syncthreads", None, None
        return ""

    def _run_Collective(self, statement: p.Collective) -> Steps:
        scope = "block" if statement.function.startswith("syncthreads") else "warp"
        lane = None if statement.lane is None else self._value(statement.lane) & 31
        value = yield scope, statement.function, self._value(statement.value), lane
        source = statement.target.type if lane is not None else "int32"
        self._assign(statement.target, cast(value, source, statement.target.type))
        return ""

    # -- expressions -------------------------------------------------------------------------

    def _value(self, expression: p.Expression) -> Any:
        return getattr(self, f"_value_{type(expression).__name__}")(expression)

    def _value_Const(self, node: p.Const) -> Any:
        return np.dtype(node.type).type(node.value) if node.type in p.FLOATS else node.value

    def _value_Name(self, node: p.Name) -> Any:
        return self._names[node.name]

    def _value_Cast(self, node: p.Cast) -> Any:
        return cast(self._value(node.value), node.value.type, node.type)

    def _value_Truncated(self, node: p.Truncated) -> Any:
        value = self._value(node.value)
        return wrapped(int(value), node.type) if abs(value) < 1e6 else 0

    def _value_Unary(self, node: p.Unary) -> Any:
        value = self._value(node.value)
        if node.type in p.FLOATS:
            return {"-": np.negative, "abs": np.abs, "sqrt": np.sqrt}[node.operator](value)
        result = {"-": operator.neg, "abs": abs, "~": operator.invert}[node.operator](value)
        return wrapped(result, node.type)

    def _value_Binary(self, node: p.Binary) -> Any:
        left, right = self._value(node.left), self._value(node.right)
        apply = _OPERATORS[node.operator]
        if node.operator in ("//", "%"):
            right = (right & 15) + 1
        elif node.operator in ("<<", ">>"):
            right &= 31
        kind = promoted(node.left.type, node.right.type)
        if node.operator == "/" and not kind.startswith("float"):
            kind = "float64"
        if not kind.startswith("float"):
            if node.operator in ("//", "%", "<<", ">>"):
                kind = promoted(node.left.type, node.left.type)
            return cast(wrapped(apply(left, right), kind), kind, node.type)
        left, right = cast(left, node.left.type, kind), cast(right, node.right.type, kind)
        return cast(apply(left, right), kind, node.type)

    def _value_Compare(self, node: p.Compare) -> bool:
        return bool(_OPERATORS[node.operator](self._value(node.left), self._value(node.right)))

    def _value_Logic(self, node: p.Logic) -> bool:
        left, right = self._value(node.left), self._value(node.right)
        return {"and": left and right, "or": left or right, "not": not left}[node.operator]

    def _value_Select(self, node: p.Select) -> Any:
        return self._value(node.then if self._value(node.test) else node.otherwise)

    def _value_Load(self, node: p.Load) -> Any:
        index = self._value(node.index) & (p.INPUT_SIZE - 1)
        value = self._arrays[f"x_{node.type}"][index]
        return value if node.type in p.FLOATS else int(value)

    def _value_Call(self, node: p.Call) -> Any:
        names = [parameter.name for parameter in node.function.parameters]
        outer, values = self._names, [self._value(argument) for argument in node.arguments]
        self._names = dict(zip(names, values, strict=True))
        for _ in self._run(node.function.body):
            raise AssertionError("a device function of a program does not wait")
        result = self._value(node.function.result)
        self._names = outer
        return result


def _run_block(program: p.Program, block: int, arrays: dict[str, np.ndarray]) -> None:
    shared: dict[str, list[Any]] = {kind: [0] * program.block for kind in p.INTEGERS}
    shared |= {kind: [np.dtype(kind).type(0)] * program.block for kind in p.FLOATS}
    shared["bins"] = [0] * p.BINS
    threads = [
        _Thread(program, block, thread, arrays, shared).steps() for thread in range(program.block)
    ]
    waiting: dict[int, Any] = {}
    answers: dict[int, Any] = dict.fromkeys(range(program.block))
    while True:
        for thread, answer in sorted(answers.items()):
            try:
                waiting[thread] = threads[thread].send(answer)
            except StopIteration:
                waiting.pop(thread, None)
        if not waiting:
            return
        answers = _answers(waiting)


def _answers(waiting: dict[int, Any]) -> dict[int, Any]:
    """Return the answers for the threads that can continue."""
    answers: dict[int, Any] = {}
    for warp in {thread // 32 for thread in waiting}:
        lanes = {thread: e for thread, e in waiting.items() if thread // 32 == warp}
        if all(event[0] == "warp" for event in lanes.values()):
            answers |= _warp_answers(lanes)
    if answers:
        return answers
    events = list(waiting.values())
    assert len({event[:2] for event in events}) == 1, "threads wait for different things"
    values = [bool(event[2]) for event in events]
    answer = {
        "syncthreads": None,
        "syncthreads_count": sum(values),
        "syncthreads_and": int(all(values)),
        "syncthreads_or": int(any(values)),
    }[events[0][1]]
    return dict.fromkeys(waiting, answer)


def _warp_answers(lanes: dict[int, Any]) -> dict[int, Any]:
    functions = {event[1] for event in lanes.values()}
    assert len(functions) == 1, "lanes wait for different things"
    function = functions.pop()
    values = {thread % 32: event[2] for thread, event in lanes.items()}
    if not function.startswith("shfl"):
        tests = [bool(value) for value in values.values()]
        answer = {
            "ballot_sync": wrapped(sum(bool(v) << lane for lane, v in values.items()), "int32"),
            "any_sync": int(any(tests)),
            "all_sync": int(all(tests)),
            "eq_sync": int(len(set(tests)) == 1),
        }[function]
        return dict.fromkeys(lanes, answer)
    answers = {}
    for thread, (_, _, own, lane) in lanes.items():
        here = thread % 32
        source = {
            "shfl_sync": lane,
            "shfl_xor_sync": here ^ lane,
            "shfl_up_sync": here - lane,
            "shfl_down_sync": here + lane,
        }[function]
        answers[thread] = values[source] if 0 <= source < 32 else own
    return answers

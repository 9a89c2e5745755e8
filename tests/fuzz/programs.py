"""Strategies for random programs; a failure shrinks to the first option of each choice."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from fuzz import program as p

if TYPE_CHECKING:
    from collections.abc import Callable

_CONSTANTS = {
    "int32": st.sampled_from([0, 1, 2, 3, -1, 7, 31, -128, 2**31 - 1, -(2**31)]),
    # Far from the ends: what overflows in int64 is undefined in Numba's code, for CUDA as well.
    "int64": st.sampled_from([0, 1, 2, -1, 31, 2**31, -(2**31) - 1, 2**40, -(2**40)]),
    "uint32": st.sampled_from([0, 1, 2, 5, 31, 2**31, 2**32 - 1]),
    "float32": st.sampled_from([0.0, 1.0, -0.0, 0.5, -1.5, 3.0, 1e10, 1e30, 0.1]),
    "float64": st.sampled_from([0.0, 1.0, -0.0, 0.5, -1.5, 3.0, 1e10, 1e300, 0.1]),
}
_INTEGER_OPERATORS = ("+", "-", "*", "&", "|", "^", "min", "max", "//", "%", "<<", ">>")
_SIGNED = ("int32", "int64")
_DEPTH = 2


@dataclass(frozen=True)
class _Place:
    """The place in a program for which a statement is drawn."""

    names: tuple[p.Name, ...]  # readable
    targets: tuple[p.Name, ...]  # assignable
    uniform: tuple[p.Name, ...]  # of one value in the whole block
    together: bool  # all threads that have not returned come here, as often as each other
    room: int  # levels of nesting left
    in_loop: bool = False
    is_function: bool = False


class _Maker:
    def __init__(self, draw: Callable[[Any], Any]) -> None:
        self._draw = draw
        self._counters = 0
        self._functions: tuple[p.Function, ...] = ()
        self._has_warps = False
        self._block = 0

    def program(self) -> p.Program:
        # Threads that have returned cannot take part in warp operations: a program has one of both.
        self._has_warps = self._pick(False, True)
        self._block = self._pick(*((32, 64) if self._has_warps else (32, 4, 64, 20, 37)))
        self._functions = tuple(self._function(i) for i in range(self._pick(0, 0, 1)))
        kinds = [self._pick(*p.TYPES) for _ in range(self._pick(2, 3))]
        variables = tuple(p.Name(kind, f"v{i}") for i, kind in enumerate(kinds))
        indices = (p.Name("int32", "t"), p.Name("int64", "g"))
        uniform = (p.Name("int32", "n"), p.Name("int32", "b"))
        place = _Place((*variables, *indices, *uniform), variables, uniform, True, 3)
        before = replace(place, names=(*indices, *uniform))
        return p.Program(
            self._pick(1, 2, 3),
            self._block,
            self._pick(3, 0, 1, 2, 29),
            self._pick(0, 1, 2, 3),
            self._functions,
            tuple(p.Assign(v, self.expression(v.type, before, 1)) for v in variables),
            self.statements(place, 3),
        )

    def _function(self, index: int) -> p.Function:
        kinds = [self._pick(*p.TYPES) for _ in range(self._pick(1, 2))]
        names = tuple(p.Name(kind, f"p{i}") for i, kind in enumerate(kinds))
        place = _Place(names, names, (), False, 1, is_function=True)
        result = self._pick(*p.TYPES)
        body = self.statements(place, 2)
        return p.Function(f"f{index}", names, body, self.expression(result, place))

    # -- statements --------------------------------------------------------------------------

    def statements(self, place: _Place, most: int) -> tuple[p.Statement, ...]:
        return tuple(self._statement(place) for _ in range(self._draw(st.integers(0, most))))

    def _statement(self, place: _Place) -> p.Statement:
        makers: list[Callable[[_Place], p.Statement]] = [self._assign]
        if not place.is_function:
            makers += [self._store, self._atomic]
        if place.room:
            makers += [self._if, self._if, self._for, self._while]
        if place.in_loop or not (place.is_function or self._has_warps):
            makers += [self._leave]
        if place.together:
            makers += [self._exchange] * 4 + [self._shared_sum, self._block_wide]
            if self._has_warps:
                makers += [self._shuffle, self._shuffle, self._vote]
        return self._pick(*makers)(place)

    def _assign(self, place: _Place) -> p.Statement:
        target = self._pick(*place.targets)
        return p.Assign(target, self.expression(target.type, place))

    def _store(self, place: _Place) -> p.Statement:
        return p.Store(self.expression(self._pick(*p.TYPES), place))

    def _atomic(self, place: _Place) -> p.Statement:
        operator = self._pick(*p.ATOMICS)
        where = self.expression(self._pick(*_SIGNED), place, 1)
        return p.Atomic(operator, where, self.expression(p.ATOMICS[operator], place, 1))

    def _parted(self, place: _Place) -> tuple[_Place, _Place]:
        """Return the place of a condition, and the place of its branch."""
        if place.together and self._pick(True, False):
            return replace(place, names=place.uniform), replace(place, room=place.room - 1)
        return place, replace(place, room=place.room - 1, together=False)

    def _if(self, place: _Place) -> p.Statement:
        outer, inner = self._parted(place)
        test = self.test(outer)
        return p.If(test, self.statements(inner, 2), self.statements(inner, 1))

    def _for(self, place: _Place) -> p.Statement:
        outer, inner = self._parted(place)
        turns = self.expression(self._pick(*_SIGNED), outer, 1)
        counter, inner = self._counted(inner)
        return p.For(counter, turns, self.statements(inner, 2))

    def _while(self, place: _Place) -> p.Statement:
        outer, inner = self._parted(place)
        counter, inner = self._counted(inner)
        names = (*outer.names, counter)
        # `continue` would skip the test at the end.
        body = tuple(s for s in self.statements(inner, 2) if not _continues(s))
        return p.While(counter, body, self.test(replace(outer, names=names)))

    def _counted(self, inner: _Place) -> tuple[p.Name, _Place]:
        counter = p.Name("int64", f"k{self._counters}")
        self._counters += 1
        uniform = (*inner.uniform, counter) if inner.together else inner.uniform
        names = (*inner.names, counter)
        return counter, replace(inner, names=names, uniform=uniform, in_loop=True)

    def _leave(self, place: _Place) -> p.Statement:
        hows = ["break", "continue"] if place.in_loop else []
        if place.in_loop and place.together:
            return p.Leave(self._pick(*hows), self.test(replace(place, names=place.uniform)))
        if not (place.is_function or self._has_warps):
            hows.append("return")
        return p.Leave(self._pick(*hows), self.test(place))

    def _exchange(self, place: _Place) -> p.Statement:
        target = self._pick(*place.targets)
        value = self.expression(target.type, place)
        shift = self._draw(st.integers(0, self._block - 1))
        inside = replace(place, together=False, in_loop=False, room=min(place.room, 1))
        between = tuple(s for s in self.statements(inside, 2) if not _leaves(s))
        called = self._pick(False, False, True)
        return p.Exchange(target, value, shift, self._block, between, called)

    def _shared_sum(self, place: _Place) -> p.Statement:
        targets = [name for name in place.targets if name.type == "int64"]
        if not targets:
            return self._exchange(place)
        where = self.expression(self._pick(*_SIGNED), place, 1)
        return p.SharedSum(self._pick(*targets), where, self.expression("int64", place, 1))

    def _block_wide(self, place: _Place) -> p.Statement:
        function = self._pick("syncthreads_count", "syncthreads_and", "syncthreads_or")
        return p.Collective(self._pick(*place.targets), function, self.test(place))

    def _shuffle(self, place: _Place) -> p.Statement:
        targets = [name for name in place.targets if name.type != "uint32"]
        if not targets:
            return self._vote(place)
        target = self._pick(*targets)
        mode = self._pick("shfl_sync", "shfl_xor_sync", "shfl_up_sync", "shfl_down_sync")
        # By how many lanes to move is one number for the warp, unless it names the source lane.
        outer = place if mode == "shfl_sync" else replace(place, names=place.uniform)
        lane = self.expression("int32", outer, 1)
        return p.Collective(target, mode, self.expression(target.type, place, 2), lane)

    def _vote(self, place: _Place) -> p.Statement:
        function = self._pick("ballot_sync", "any_sync", "all_sync", "eq_sync")
        return p.Collective(self._pick(*place.targets), function, self.test(place))

    # -- expressions -------------------------------------------------------------------------

    def test(self, place: _Place, depth: int = _DEPTH) -> p.Expression:
        choice = self._pick("compare", "compare", "not", "logic") if depth > 1 else "compare"
        if choice == "not":
            test = self.test(place, depth - 1)
            return p.Logic("not", test, test)
        if choice == "logic":
            left, right = self.test(place, depth - 1), self.test(place, depth - 1)
            return p.Logic(self._pick("and", "or"), left, right)
        kind = self._pick(*p.TYPES)
        left, right = self.expression(kind, place, 1), self.expression(kind, place, 1)
        return p.Compare(self._pick("<", "==", "!=", "<=", ">", ">="), left, right)

    def expression(self, kind: str, place: _Place, depth: int = _DEPTH) -> p.Expression:
        if depth == 0 or self._pick(True, False, False):
            return self._leaf(kind, place)
        makers = [self._binary, self._binary, self._unary, self._cast, self._load, self._select]
        if self._functions and not place.is_function:
            makers.append(self._call)
        return self._pick(*makers)(kind, place, depth - 1)

    def _leaf(self, kind: str, place: _Place) -> p.Expression:
        fitting = [name for name in place.names if name.type == kind]
        castable = [name for name in place.names if name.type in p.INTEGERS]
        if not (fitting or castable) or self._pick(False, False, True):
            return p.Const(kind, self._draw(_CONSTANTS[kind]))
        return self._pick(*fitting) if fitting else p.Cast(kind, self._pick(*castable))

    def _binary(self, kind: str, place: _Place, depth: int) -> p.Expression:
        if kind in p.FLOATS:
            operator = self._pick("+", "-", "*", "/")
            kinds = (kind, *p.TYPES)
        else:
            grows = ("*", "<<")
            names = [n for n in _INTEGER_OPERATORS if kind != "int64" or n not in grows]
            operator = self._pick(*names)
            kinds = ("int32", "uint32") if operator in grows else (kind, *p.INTEGERS)
        left = self._pick(*kinds)
        right = self._pick(*kinds)
        if operator in ("min", "max"):
            left = right = kind
        elif operator in ("//", "%", "<<", ">>"):
            right = self._pick(*_SIGNED)
        values = self.expression(left, place, depth), self.expression(right, place, depth)
        return p.Binary(kind, operator, *values)

    def _unary(self, kind: str, place: _Place, depth: int) -> p.Expression:
        operators = ("-", "abs", "sqrt") if kind in p.FLOATS else ("-", "~", "abs")
        return p.Unary(kind, self._pick(*operators), self.expression(kind, place, depth))

    def _cast(self, kind: str, place: _Place, depth: int) -> p.Expression:
        source = self._pick(*p.TYPES)
        value = self.expression(source, place, depth)
        cuts = kind in p.INTEGERS and source in p.FLOATS
        return (p.Truncated if cuts else p.Cast)(kind, value)

    def _load(self, kind: str, place: _Place, depth: int) -> p.Expression:
        if place.is_function or place.names == place.uniform:
            return self._leaf(kind, place)
        index = self.expression(self._pick(*_SIGNED), place, min(depth, 1))
        return p.Load(kind, index, self._pick(False, False, True))

    def _select(self, kind: str, place: _Place, depth: int) -> p.Expression:
        then, otherwise = (self.expression(kind, place, depth) for _ in range(2))
        return p.Select(kind, self.test(place, 1), then, otherwise)

    def _call(self, kind: str, place: _Place, depth: int) -> p.Expression:
        function = self._pick(*self._functions)
        arguments = tuple(self.expression(q.type, place, depth) for q in function.parameters)
        call = p.Call(function.result.type, function, arguments)
        cuts = kind in p.INTEGERS and call.type in p.FLOATS
        return call if call.type == kind else (p.Truncated if cuts else p.Cast)(kind, call)

    def _pick(self, *values: Any) -> Any:
        return values[0] if len(values) == 1 else self._draw(st.sampled_from(values))


def _leaves(statement: p.Statement) -> bool:
    """Return whether a statement may end a loop, an iteration or the thread."""
    return any(isinstance(s, p.Leave) for s in p.walk((statement,)))


def _continues(statement: p.Statement) -> bool:
    return any(isinstance(s, p.Leave) and s.how == "continue" for s in p.walk((statement,)))


@st.composite
def programs(draw: Callable[[Any], Any]) -> p.Program:
    """Draw a program."""
    return _Maker(draw).program()

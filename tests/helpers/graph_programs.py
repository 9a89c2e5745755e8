"""Random programs of device work, which run eagerly, in a capture, or one by one on one stream."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import strategies as st
from numba import cuda

import nbrt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["ARRAYS", "FLOATS", "GENERATORS", "N", "Op", "Program", "World", "mix", "programs"]

N = 6
ARRAYS = 5
"""int64 arrays of a world; the first half of them belong to the first branch of a fork."""
FLOATS = 2
"""float64 arrays of a world, for draws."""
GENERATORS = 2


@nbrt.kernel
def mix(x: Any, y: Any, factor: Any) -> None:
    """Set x to 3 x + factor y, modulo 2**64."""
    i = cuda.grid(1)
    if i < x.size:
        x[i] = 3 * x[i] + factor * y[i] + i


@nbrt.kernel
def choose(flag: Any, x: Any, count: Any) -> None:
    """Set the flag to a number below `count` that depends on x."""
    flag[0] = (x[0] & 1023) % count


@nbrt.kernel
def count_down(flag: Any) -> None:
    """Decrement the flag."""
    flag[0] -= 1


@dataclass(frozen=True)
class Op:
    """One step of a program: its name, numbers, and inner steps."""

    name: str
    numbers: tuple[int, ...] = ()
    inner: tuple[tuple[Op, ...], ...] = ()


@dataclass
class World:
    """The arrays, generators and the log that programs change."""

    device: nbrt.Device
    seed: int
    arrays: list[Any] = field(init=False)
    floats: list[Any] = field(init=False)
    flags: list[Any] = field(init=False)
    generators: list[Any] = field(init=False)
    log: list[int] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        values = np.random.default_rng(self.seed).integers(-1000, 1000, (ARRAYS, N))
        self.arrays = [nbrt.to(each.astype(np.int64), self.device) for each in values]
        self.floats = [nbrt.zeros(N, "float64", device=self.device) for _ in range(FLOATS)]
        self.flags = [nbrt.zeros(1, "int64", device=self.device) for _ in range(3)]
        draws = nbrt.get_interface_for_device(self.device).name != "sample"
        count = GENERATORS if draws else 0
        self.generators = [
            nbrt.Generator(self.seed + each, device=self.device) for each in range(count)
        ]

    def state(self) -> list[Any]:
        """Return all values, after all work is done."""
        nbrt.synchronize(self.device)
        arrays = [*self.arrays, *self.floats, *self.flags]
        values = [nbrt.to_host(each).tobytes() for each in arrays]
        return [*values, [each.get_state().tobytes() for each in self.generators], list(self.log)]


class Program:
    """A program, and the ways to run it.

    Parameters
    ----------
    ops : sequence of Op
        The steps.
    """

    def __init__(self, ops: Sequence[Op]) -> None:
        self.ops = tuple(ops)

    def __repr__(self) -> str:
        return f"Program({self.ops!r})"

    def run(
        self,
        world: World,
        *,
        serial: bool = False,
        children: Sequence[Any] = (),
        before_op: Callable[[], object] = lambda: None,
        factor: int = 2,
    ) -> None:
        """Run the steps on the current stream, with other streams for branches if not `serial`."""
        _Interpreter(world, serial, children, before_op, factor).run(self.ops)


class _Interpreter:
    def __init__(
        self,
        world: World,
        serial: bool,
        children: Sequence[Any],
        before_op: Callable[[], object],
        factor: int,
    ) -> None:
        self.world, self.serial, self.children = world, serial, children
        self.before_op, self.factor = before_op, factor
        self.depth = 0

    def run(self, ops: Sequence[Op]) -> None:
        for op in ops:
            self.before_op()
            getattr(self, f"_{op.name}")(op)

    def _mix(self, op: Op) -> None:
        target, source, number = op.numbers
        arrays = self.world.arrays
        factor = number if self.depth else self.factor
        mix.forall(N)(arrays[target], arrays[source], factor)

    def _copy(self, op: Op) -> None:
        target, source = op.numbers
        nbrt.copy(self.world.arrays[target], self.world.arrays[source])

    def _reverse(self, op: Op) -> None:
        target, source = op.numbers
        half = N // 2
        nbrt.copy(self.world.arrays[target][:half], self.world.arrays[source][half:])

    def _draw(self, op: Op) -> None:
        generator, target = op.numbers
        if self.world.generators:
            self.world.generators[generator].fill_integers(self.world.arrays[target], -50, 50)

    def _normal(self, op: Op) -> None:
        generator, target = op.numbers
        if self.world.generators:
            self.world.generators[generator].normal(out=self.world.floats[target])

    def _temporary(self, op: Op) -> None:
        target, source, value, count = op.numbers
        for _ in range(count):
            temporary = nbrt.full(N, value, "int64", device=self.world.device)
            further = nbrt.empty(N, "int64", device=self.world.device)
            nbrt.copy(further, temporary)
            mix.forall(N)(further, self.world.arrays[source], 1)
            del temporary
            mix.forall(N)(self.world.arrays[target], further, 1)

    def _call(self, op: Op) -> None:
        nbrt.current_stream(self.world.device).call(self.world.log.append, op.numbers[0])

    def _fork(self, op: Op) -> None:
        if self.serial:
            for branch in op.inner:
                self.run(branch)
            return
        main = nbrt.current_stream(self.world.device)
        fork = main.record_event()
        self.run(op.inner[0])
        sides: list[Any] = []
        for branch in op.inner[1:]:
            side = _other_stream(self.world.device, [main, *sides])
            side.wait_event(fork)
            with nbrt.stream(side):
                self.run(branch)
            sides.append(side)
        for side in sides:
            main.wait_stream(side)

    def _cond(self, op: Op) -> None:
        source, flag = op.numbers
        choose[1, 1](self.world.flags[flag], self.world.arrays[source], 2)
        with self._deeper():
            nbrt.graphs.cond(self.world.flags[flag], *map(self._body, op.inner))

    def _switch(self, op: Op) -> None:
        source, flag = op.numbers
        choose[1, 1](self.world.flags[flag], self.world.arrays[source], len(op.inner) + 1)
        with self._deeper():
            nbrt.graphs.switch(self.world.flags[flag], [self._body(each) for each in op.inner])

    def _loop(self, op: Op) -> None:
        source, flag = op.numbers
        choose[1, 1](self.world.flags[flag], self.world.arrays[source], 4)

        def body() -> None:
            count_down[1, 1](self.world.flags[flag])
            self.run(op.inner[0])

        with self._deeper():
            nbrt.graphs.while_(self.world.flags[flag], body, limit=4)

    def _child(self, op: Op) -> None:
        if self.children:
            self.children[op.numbers[0] % len(self.children)](self.world)

    def _body(self, ops: tuple[Op, ...]) -> Callable[[], None]:
        return lambda: self.run(ops)

    @contextlib.contextmanager
    def _deeper(self) -> Iterator[None]:
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1


def _other_stream(device: nbrt.Device, used: Sequence[Any]) -> Any:
    """Return a stream that is none of those in use."""
    stream = nbrt.Stream(device)
    while stream in used:
        stream = nbrt.Stream(device)
    return stream


@st.composite
def programs(draw: st.DrawFn, *, control: bool = True, children: bool = False) -> Program:
    """Draw a program without races: branches of a fork write to different arrays."""
    return Program(_ops(draw, list(range(ARRAYS)), list(range(FLOATS)), 0, control, children))


def _ops(
    draw: st.DrawFn,
    own: list[int],
    floats: list[int],
    depth: int,
    control: bool,
    children: bool,
    in_body: bool = False,
) -> tuple[Op, ...]:
    ops = []
    names = ["mix", "mix", "copy", "reverse", "draw", "draw", "temporary"]
    # CUDA has no host calls in bodies, and those of two branches run in any order.
    names += ["call"] if not in_body and len(own) == ARRAYS else []
    names += ["normal"] if floats else []
    names += ["fork"] if len(own) >= 2 and depth < 3 else []
    # Each depth has its own flag, so that an inner loop leaves the outer flag as it is.
    names += ["cond", "switch", "loop"] if control and depth < 2 and len(own) == ARRAYS else []
    names += ["child"] if children and depth == 0 else []
    for _ in range(draw(st.integers(1, 5 if depth == 0 else 3))):
        name = draw(st.sampled_from(names))
        array, factor = st.sampled_from(own), st.integers(1, 4)
        inner: tuple[tuple[Op, ...], ...] = ()
        if name == "fork":
            cut = len(own) // 2
            parts = (own[:cut], floats[:1]), (own[cut:], floats[1:])
            inner = tuple(
                _ops(draw, *part, depth + 1, False, False, in_body=in_body) for part in parts
            )
            numbers: tuple[int, ...] = ()
        elif name in ("cond", "switch", "loop"):
            count = {"cond": 2, "switch": 3, "loop": 1}[name]
            inner = tuple(
                _ops(draw, own, floats, depth + 1, control, False, True) for _ in range(count)
            )
            numbers = draw(array), depth
        else:
            parts_of = {
                "mix": (array, array, factor),
                "copy": (array, array),
                "reverse": (array, array),
                "draw": (st.integers(0, GENERATORS - 1), array),
                "normal": (st.integers(0, GENERATORS - 1), st.sampled_from(floats or [0])),
                "temporary": (array, array, factor, factor),
                "call": (factor,),
                "child": (factor,),
            }
            numbers = tuple(draw(each) for each in parts_of[name])
        ops.append(Op(name, numbers, inner))
    return tuple(ops)

"""`RandomFiller`: random fills by the fill kernels of a kernel library."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from nbrt.backends.draw import REPEAT
from nbrt.backends.programs import TypedPlan
from nbrt.errors import ArgumentError, ArgumentOverflowError, ArgumentTypeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nbrt.backends.draw import Draw
    from nbrt.backends.interface import Plan, Program
    from nbrt.backends.queue import Queue

__all__ = ["DrawRequest", "FillLaunch", "RandomFiller", "requested_fills"]

_MAX_PLANS = 256
_ZERO = np.uint64(0)


def _keep_repeat(memo: dict[Any, Any], plan: Plan, fill: FillLaunch, args: tuple[Any, ...]) -> None:
    """Keep the launch as a function, if it fills all of the draw's array.

    `args` are the arguments of an earlier launch.
    """
    if fill.target is not None or fill.part is not None:
        return
    launch, uint64 = plan.launch, np.uint64
    rest = (uint64(fill.skip_blocks), *fill.arguments)

    def repeat(queue: Queue, flat: Any, seed: int, offset: int) -> None:
        launch(queue, flat, (uint64(seed), uint64(offset)), *rest)

    typed = plan.typed_launch(args) if isinstance(plan, TypedPlan) else None
    if typed is None:
        memo[REPEAT] = repeat
        return

    def repeat_typed(queue: Queue, flat: Any, seed: int, offset: int) -> None:
        # NumPy takes as long for a conversion as a small draw for its numbers.
        if not typed(queue, flat, (seed, offset)):
            repeat(queue, flat, seed, offset)

    memo[REPEAT] = repeat_typed


class FillLaunch(Protocol):
    """One launch of a fill kernel, such as `nbrt_kernels.random.requests.Fill`."""

    @property
    def kernel(self) -> Callable[..., None]:
        """Take (part of the array, state, blocks to skip, then `arguments`).

        `state` is (seed, offset) as uint64, or an array of both in device memory.
        """
        ...

    @property
    def threads(self) -> int:
        """Return the minimal number of threads."""
        ...

    @property
    def skip_blocks(self) -> int:
        """Return the Philox blocks to skip after the draw's offset."""
        ...

    @property
    def block(self) -> int:
        """Return the threads of a block, which do not change the bits."""
        ...

    @property
    def target(self) -> Any:
        """Return the array to fill, such as a mask; None: the draw's array."""
        ...

    @property
    def arguments(self) -> tuple[Any, ...]:
        """Return the remaining arguments of the kernel."""
        ...

    @property
    def part(self) -> slice | None:
        """Return the part of the array to fill; None: all."""
        ...


class DrawRequest(Protocol):
    """A function from a draw to its launches: `nbrt_kernels.random.requests.fills_of`."""

    def __call__(self, draw: Draw, /) -> Iterable[FillLaunch]:
        """Return the launches, for any seed and offset; raise ValueError or TypeError."""
        ...


def requested_fills(request: DrawRequest, draw: Draw) -> Iterable[FillLaunch]:
    """Return the launches of a draw.

    Raises
    ------
    ArgumentError
        If a parameter is out of range.
    ArgumentTypeError
        If there is no such draw for the dtype.
    """
    try:
        return request(draw)
    except OverflowError as error:
        raise ArgumentOverflowError(str(error)) from error
    except ValueError as error:
        raise ArgumentError(str(error)) from error
    except TypeError as error:
        raise ArgumentTypeError(str(error)) from error


class RandomFiller:
    """Fills arrays of one device type by the kernels of a library, which it compiles once.

    The library comes in as `request`, because only concrete backends may import it.

    Parameters
    ----------
    make_program : callable
        Compiles a kernel to a program.
    request : DrawRequest
        Returns the launches of a draw.
    repeats : bool
        Whether draws of one launch leave a function under `REPEAT`; the device's launches must need
        no preparation by the backend.
    """

    def __init__(
        self,
        make_program: Callable[[Callable[..., object]], Program],
        request: DrawRequest,
        *,
        repeats: bool = False,
    ) -> None:
        self._make_program = make_program
        self._request = request
        self._repeats = repeats
        self._programs: dict[Callable[..., object], Program] = {}
        self._plans: dict[tuple[Any, ...], Plan] = {}

    def draw(self, queue: Queue, out: Any, draw: Draw) -> None:
        """Enqueue a fill of `out`; see `DeviceInterface.draw`.

        Raises
        ------
        ArgumentError
            If a parameter is out of range, or `out` has gaps.
        ArgumentTypeError
            If there is no such draw for the dtype of `out`.
        """
        if not out.flags.c_contiguous:
            raise ArgumentError("expected a C-contiguous array to fill, got one with gaps; copy it")
        if out.size == 0:
            requested_fills(self._request, draw)  # checks the parameters
            return
        memo = draw.memo
        planned = memo.get(self) if memo is not None else None
        if planned is None:
            planned = self._plan(queue.index, draw)
            if memo is not None:
                memo[self] = planned
        flat = out if out.ndim == 1 else out.reshape(-1)
        if draw.device_state is None:
            state: Any = (np.uint64(draw.seed), np.uint64(draw.offset))
            skipped = 0
        else:
            state, skipped = draw.device_state, draw.offset // 4
        for plan, fill in planned:
            target = flat if fill.target is None else fill.target
            if fill.part is not None:
                target = target[fill.part]
            skip_blocks = fill.skip_blocks + skipped
            blocks = np.uint64(skip_blocks) if skip_blocks else _ZERO
            plan.launch(queue, target, state, blocks, *fill.arguments)
        if self._repeats and memo is not None and REPEAT not in memo and len(planned) == 1:
            plan, fill = planned[0]
            _keep_repeat(memo, plan, fill, (flat, state, blocks, *fill.arguments))

    def _plan(self, index: int, draw: Draw) -> list[tuple[Plan, FillLaunch]]:
        planned = []
        for fill in requested_fills(self._request, draw):
            blocks = -(-fill.threads // fill.block)
            key = (fill.kernel, index, blocks, fill.block)
            plan = self._plans.get(key)
            if plan is None:
                program = self._programs.get(fill.kernel)
                if program is None:
                    program = self._make_program(fill.kernel)
                    program = self._programs.setdefault(fill.kernel, program)
                if len(self._plans) >= _MAX_PLANS:
                    self._plans.clear()
                plan = program.plan(index, (blocks, 1, 1), (fill.block, 1, 1), 0)
                self._plans[key] = plan
            planned.append((plan, fill))
        return planned

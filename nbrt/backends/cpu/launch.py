"""Kernels on CPU devices: the SIMT compiler's plans, put on queues."""

from __future__ import annotations

import operator
from functools import cached_property
from threading import get_ident
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt.backends.cpu.crash import LAST_LAUNCH, watch_for_crashes
from nbrt.backends.cpu.interrupts import main_runner, runners
from nbrt.backends.cpu.memory import owner_of
from nbrt.backends.cpu.simt import SimtKernel
from nbrt.backends.inline import SynchronousQueue
from nbrt.config import settings
from nbrt.errors import ArgumentTypeError, DeviceMismatchError
from nbrt.typing import SupportsCudaArrayInterface

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.backends.cpu.simt import LaunchPlan
    from nbrt.backends.cpu.simt.checked.kernel import CheckedKernel, CheckedPlan
    from nbrt.backends.interface import Check
    from nbrt.backends.queue import Queue
    from nbrt.typing import Dim3

__all__ = ["CpuPlan", "CpuProgram"]


class CpuProgram:
    """A kernel for CPU devices.

    Parameters
    ----------
    function : callable
        The kernel, or a ``cuda.jit`` dispatcher of it.
    has_many_devices : bool
        Whether arrays may belong to another CPU device, which is then looked for at every launch.

    Attributes
    ----------
    captures : Captures
        The values of globals and the like that the kernel is compiled with.
    """

    def __init__(self, function: Callable[..., object], has_many_devices: bool) -> None:
        self._function = function
        self._kernel = SimtKernel(function)
        self._has_many_devices = has_many_devices
        self.captures = self._kernel.captures

    def plan(self, index: int, grid: Dim3, block: Dim3, shared: int) -> CpuPlan:
        """Fix a configuration."""
        owner = index if self._has_many_devices else None
        source = (self._function, grid, block, shared)
        return CpuPlan(self._kernel.plan(grid, block, shared), owner, source)

    def checked_plan(
        self, index: int, grid: Dim3, block: Dim3, shared: int, check: Check
    ) -> CpuPlan:
        """Fix a configuration whose launches raise `KernelCheckError` if they find a fault."""
        plan = self._checked.plan(grid, block, shared, check)
        owner = index if self._has_many_devices else None
        return CpuPlan(plan, owner, (self._function, grid, block, shared))

    @cached_property
    def _checked(self) -> CheckedKernel:
        # Most programs never check: what it takes is imported by those that do.
        from nbrt.backends.cpu.simt.checked.kernel import CheckedKernel

        return CheckedKernel(self.captures)


class CpuPlan:
    """A kernel with its configuration.

    `index` is the device to hold arguments against, if any; `source` what to interpret: function,
    grid, block and dynamic shared memory.
    """

    __slots__ = ("_adopts", "_crash_text", "_direct", "_index", "_plan", "_record", "_source")

    def __init__(
        self,
        plan: LaunchPlan | CheckedPlan,
        index: int | None,
        source: tuple[Callable[..., object], Dim3, Dim3, int],
    ) -> None:
        self._source = source
        self._plan = plan
        self._direct = plan.direct
        self._record = plan.record
        self._crash_text = plan.crash_text
        watch_for_crashes()
        self._index = index
        self._adopts = False

    @property
    def function(self) -> Callable[..., object]:
        """The kernel, or a ``cuda.jit`` dispatcher of it."""
        return self._source[0]

    def launch(self, queue: Queue, *args: Any) -> None:
        """Run the blocks: at once on the default stream, else in the stream's thread."""
        if settings().interpret:
            self._interpret(queue, args)
            return
        if self._adopts:
            args = _adopted(args)
        if self._index is not None:
            _check_owners(args, self._index)
        try:
            if type(queue) is SynchronousQueue:
                with queue.lock:
                    direct = self._direct
                    if direct is None or runners.get(get_ident()) is not main_runner:
                        self._plan(*args)
                        return
                    LAST_LAUNCH[0] = self._crash_text
                    # As `run_stoppable` does it, less a call.
                    before, main_runner.record = main_runner.record, self._record
                    if not main_runner.is_watched:
                        main_runner.watch()
                    try:
                        direct(*args)
                    finally:
                        main_runner.record = before
            else:
                # Wrong types show here, in the caller, not in the thread that runs the work.
                self._plan.prepare(args)
                queue.put(self._plan, *args)
        except TypeError as error:
            # Arrays of other libraries are looked for once the compiler has refused an argument:
            # a launch without any pays nothing for them. Any other TypeError may be the kernel's
            # own, and a kernel that has started must not be launched again.
            is_refused = isinstance(error, ArgumentTypeError) and not self._adopts
            adopted = _adopted(args) if is_refused else args
            if all(map(operator.is_, adopted, args)):
                self._plan.kernel.check_count(args)
                self._plan.note(error)
                raise
            self._adopts = True
            self.launch(queue, *adopted)
        except Exception as error:
            self._plan.note(error)
            raise

    def _interpret(self, queue: Queue, args: tuple[Any, ...]) -> None:
        """Run the blocks in plain Python, here, where a debugger's terminal is."""
        from nbrt.backends.cpu.interpret import interpret

        args = _adopted(args)
        if self._index is not None:
            _check_owners(args, self._index)
        queue.synchronize()
        chosen = settings()
        interpret(*self._source, args, (chosen.interpret_block, chosen.interpret_thread))


def _check_owners(args: tuple[Any, ...], index: int) -> None:
    for position, argument in enumerate(args):
        holder = getattr(owner_of(argument), "index", index)
        if holder != index:
            raise DeviceMismatchError(
                f"expected argument {position} on cpu:{index}, where the kernel runs, got an array "
                f"of cpu:{holder}; copy it with nbrt.to(array, 'cpu:{index}')"
            )


def _adopted(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Replace host arrays of other libraries by NumPy arrays over the same memory."""
    adopted = []
    for position, argument in enumerate(args):
        if isinstance(argument, np.ndarray):
            is_plain = type(argument) is np.ndarray
            adopted.append(argument if is_plain else argument.view(np.ndarray))
        elif isinstance(argument, SupportsCudaArrayInterface):
            raise DeviceMismatchError(
                f"expected argument {position} in host memory, got a CUDA array of type "
                f"{type(argument).__name__}; copy it with nbrt.to(array, 'cpu')"
            )
        elif hasattr(argument, "__dlpack__") and not isinstance(argument, np.generic):
            adopted.append(np.from_dlpack(argument))
        else:
            adopted.append(argument)
    return tuple(adopted)

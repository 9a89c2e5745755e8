"""Kernels on the simulation: Python runs them, one thread after the other, in stream order."""

from __future__ import annotations

import inspect
import threading
from typing import TYPE_CHECKING, Any

import cupy
import numpy as np

from helpers.sample_backend import SampleProgram
from nbrt.backends.captures import Captures
from unit.cuda.fake_cuda import host_view

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.backends.cuda.queues import CudaQueue
    from unit.cuda.fake_cuda import Simulation


_one_at_a_time = threading.Lock()
"""While a kernel runs, the names of the dialect stand for its threads, in the whole process."""


class InterpretedKernel:
    """A `LoadedKernel`."""

    max_threads_per_block = 1024
    static_shared = 0

    def __init__(self, simulation: Simulation, program: SampleProgram) -> None:
        self._simulation = simulation
        self._program = program

    def allow_shared(self, nbytes: int) -> None:
        """Nothing to prepare."""

    def launch(
        self, queue: CudaQueue, grid: Any, block: Any, shared: int, args: tuple[Any, ...]
    ) -> None:
        values = [host_view(each) if isinstance(each, cupy.ndarray) else each for each in args]
        plan = self._program.plan(queue.index, grid, block, shared)

        def work() -> None:
            with _one_at_a_time:
                plan.run(*values)

        self._simulation.enqueue(queue.handle, work)


class InterpretedSource:
    """A `KernelSource`."""

    def __init__(self, simulation: Simulation, function: Callable[..., object]) -> None:
        self._simulation = simulation
        self._program = SampleProgram(function)
        self.name = function.__name__
        self.parameter_names = tuple(inspect.signature(self._program.function).parameters)
        self.defaults = self._program.function.__defaults__ or ()
        self.captures = Captures(getattr(function, "py_func", function))

    def compile(self, args: tuple[Any, ...]) -> InterpretedKernel:
        return InterpretedKernel(self._simulation, self._program)

    def compile_ptx(self, args: tuple[Any, ...], capability: tuple[int, int]) -> str:
        raise NotImplementedError


class Interpreter:
    """A `KernelCompiler`."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation

    def adopt(self, function: Callable[..., object]) -> InterpretedSource:
        return InterpretedSource(self._simulation, function)

    def key_of(self, argument: object) -> type | None:
        return type(argument) if isinstance(argument, (int, float, np.generic)) else None

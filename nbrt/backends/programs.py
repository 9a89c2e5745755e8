"""`Program` and `Plan`: a kernel of a backend, and a kernel with its grid and block fixed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.backends.captures import Captures
    from nbrt.backends.queue import Queue
    from nbrt.typing import Dim3

__all__ = [
    "CapturingProgram",
    "Check",
    "CheckableProgram",
    "CheckingPlan",
    "PackedPlan",
    "Plan",
    "PlanWithSource",
    "PreparablePlan",
    "Program",
    "TypedPlan",
]


@dataclass(frozen=True, slots=True)
class Check:
    """Options of a checked launch.

    Attributes
    ----------
    seed : int or None
        Shuffles the order of blocks and of threads; None: ascending order.
    strict : bool
        A thread that returns before a barrier that other threads reach is a fault as well.
    target : str or None
        A GPU, such as ``"H100"`` or ``"sm_90"``, whose limits apply to launches.
    """

    seed: int | None = None
    strict: bool = False
    target: str | None = None


class Plan(Protocol):
    """A program with its grid and block fixed."""

    def launch(self, queue: Queue, *args: Any) -> None:
        """Check the arguments, compile for their types if necessary, and enqueue the launch."""
        ...


@runtime_checkable
class PackedPlan(Plan, Protocol):
    """A plan that takes the arguments as the tuple that its caller has: this saves copies."""

    def launch_packed(self, queue: Queue, args: tuple[Any, ...]) -> None:
        """Do as ``launch(queue, *args)``."""
        ...


@runtime_checkable
class CheckingPlan(Plan, Protocol):
    """A plan that a capture records without a launch: a replay calls the plan itself."""

    def checked_args(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Check the arguments as `launch` does; return those to call the plan with."""
        ...

    def __call__(self, *args: Any) -> None:
        """Run the launch now."""
        ...


class PlanWithSource(Plan, Protocol):
    """A plan with access to its kernel, for hooks that analyse launches."""

    @property
    def function(self) -> Callable[..., object]:
        """The kernel, as passed to its program."""
        ...

    @property
    def grid(self) -> Dim3:
        """The blocks of the grid along x, y and z."""
        ...

    @property
    def block(self) -> Dim3:
        """The threads of a block along x, y and z."""
        ...

    @property
    def shared(self) -> int:
        """The bytes of dynamic shared memory for each block."""
        ...


class Program(Protocol):
    """A kernel of one backend, compiled on the first use of each type."""

    def plan(self, index: int, grid: Dim3, block: Dim3, shared: int) -> Plan:
        """Fix a configuration, within the device's properties, on device `index`."""
        ...


@runtime_checkable
class PreparablePlan(Plan, Protocol):
    """A plan that compiles without a launch."""

    def prepare(self, args: tuple[Any, ...]) -> None:
        """Load the code for the types of arguments, or compile it.

        `args` are host values of the types, as in `DeviceInterface.inspect`.
        """
        ...

    def is_prepared(self, queue: Queue, args: tuple[Any, ...]) -> bool:
        """Return whether a launch with `args` compiles and loads nothing; raise as it does."""
        ...


@runtime_checkable
class TypedPlan(Plan, Protocol):
    """A plan that can launch without looking up the types of the arguments."""

    def typed_launch(self, args: tuple[Any, ...]) -> Callable[..., bool] | None:
        """Return a function of (queue, first, second) that launches, or returns False.

        The launch has these arguments in place of the first two of `args`, of the same types or
        with Python's numbers in the place of NumPy's; it does not check them. None if each launch
        needs checks.
        """
        ...


@runtime_checkable
class CapturingProgram(Program, Protocol):
    """A program compiled with the values that the kernel captures.

    The runtime replaces it when one of the values changes.
    """

    @property
    def captures(self) -> Captures:
        """The captured values."""
        ...


@runtime_checkable
class CheckableProgram(Program, Protocol):
    """A program that can check every access and barrier."""

    def checked_plan(self, index: int, grid: Dim3, block: Dim3, shared: int, check: Check) -> Plan:
        """Fix a configuration whose launches raise `KernelCheckError` if they find a fault."""
        ...

"""Launches that a device reports itself: a hook would double the time of a fake one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.backends.fake.program import CompiledKernel
    from nbrt.typing import Dim3

__all__ = ["ReportedLaunch", "ReportsLaunches"]


class ReportedLaunch(Protocol):
    """A kernel with its configuration, on a device that reports launches itself."""

    @property
    def index(self) -> int:
        """Index of the device."""
        ...

    @property
    def name(self) -> str:
        """Name of the kernel."""
        ...

    @property
    def function(self) -> Callable[..., object]:
        """Return the kernel."""
        ...

    @property
    def local_memory(self) -> int | None:
        """Bytes of local memory of a thread; None: unknown."""
        ...

    @property
    def block(self) -> Dim3:
        """The threads of a block along x, y and z."""
        ...

    @property
    def shared(self) -> int:
        """The bytes of dynamic shared memory for each block."""
        ...

    @property
    def compiled_kernels(self) -> tuple[CompiledKernel, ...]:
        """The code for the types of the launches so far, if launches compile."""
        ...

    sees_numbers: bool
    """The forms of launches differ by the numbers among the arguments, too."""


@runtime_checkable
class ReportsLaunches(Protocol):
    """A `DeviceInterface` whose devices call a function after each launch."""

    def report_launches(
        self, function: Callable[[Any, tuple[Any, ...], object], object] | None, /
    ) -> None:
        """Call ``function(plan, args, form)`` after each launch from now on; None: no longer.

        The form stands for the types and shapes of the arguments. Launches of a plan in turn with
        equal ones have the identical object.
        """
        ...

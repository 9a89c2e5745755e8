"""`LaunchedKernels`: the kernels that a block launches on fake devices, for the compiler."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nbrt._internal.callsite import CallSite
from nbrt.backends.fake.interface import FakeInterface

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from nbrt.backends.compile_jobs import CompileJob
    from nbrt.backends.fake.versions import Version
    from nbrt.backends.interface import DeviceInterface

__all__ = ["LaunchedKernel", "LaunchedKernels"]


@dataclass(frozen=True, slots=True)
class LaunchedKernel:
    """A kernel to compile.

    Attributes
    ----------
    interface : DeviceInterface
        The real kind of device.
    version : Version
        The kernel, its block and the types of its arguments.
    jobs : tuple of CompileJob
        Its code for each target; empty if the code cannot be stored.
    signature : str
        The types of its arguments.
    site : CallSite
        Where it was launched first.
    """

    interface: DeviceInterface
    version: Version
    jobs: tuple[CompileJob, ...]
    signature: str
    site: CallSite


class LaunchedKernels:
    """The kernels that a block launches, each with its jobs for the compiler.

    Parameters
    ----------
    targets : tuple of str
        The GPUs to compile for; empty: those of this machine.

    Attributes
    ----------
    targets : tuple of str
        As given.
    kernels : list of LaunchedKernel
        In the order of their first launches. No two have the same code.
    """

    def __init__(self, targets: tuple[str, ...]) -> None:
        self.targets = targets
        self.kernels: list[LaunchedKernel] = []
        self._seen: set[Hashable] = set()
        self._codes: set[Hashable] = set()
        self._programs: dict[object, Any] = {}
        self._lock = threading.Lock()

    def watch(self, real: DeviceInterface, fake: Any) -> Callable[[], None]:
        """Collect the kernels of fake devices; return a function that ends this.

        Parameters
        ----------
        real : DeviceInterface
            The kind of device that compiles them.
        fake : FakeInterface
            The devices in its place.
        """
        assert isinstance(fake, FakeInterface)

        def collect(version: Version) -> None:
            # Code for a CPU depends on the block, code for a GPU on the model of the device.
            place: Hashable = version.block if real.name == "cpu" else version.index
            seen = real.name, version.program, place, version.key
            if seen not in self._seen:
                self._add(real, version, seen)

        fake.report_versions(collect)
        return lambda: fake.report_versions(None)

    def _add(self, real: DeviceInterface, version: Version, seen: Hashable) -> None:
        """Compute the jobs of a kernel, now: its captured values may change."""
        with self._lock:
            if seen in self._seen:
                return
            self._seen.add(seen)
            targets = self.targets if real.name == "cuda" else ()
            program = self._program(real, version)
            launch = version.grid, version.block, version.shared
            jobs = tuple(
                real.compile_jobs(
                    program, version.index, *launch, version.args, targets, stored=True
                )
            )
            code: Hashable = frozenset(job.key for job in jobs) or seen
            if code in self._codes:
                return
            self._codes.add(code)
            target = self.targets[0] if targets else None
            inspected = real.inspect(version.function, version.args, *launch, target)
            site = CallSite.here().number_cells()
            self.kernels.append(LaunchedKernel(real, version, jobs, inspected.signature, site))

    def _program(self, real: DeviceInterface, version: Version) -> Any:
        if real.name == "cuda":  # jobs for CUDA need no device, which programs do
            return version.function
        program = self._programs.get(version.program)
        if program is None:
            program = self._programs[version.program] = real.program(version.function)
        return program

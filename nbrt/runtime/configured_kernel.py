"""`ConfiguredKernel`: a kernel with its launch configuration; a call launches it."""

from __future__ import annotations

import inspect
import operator
from typing import TYPE_CHECKING, Any

from nbrt import config
from nbrt.backends.interface import CheckableProgram
from nbrt.backends.programs import PackedPlan
from nbrt.errors import ArgumentTypeError, NotSupportedError
from nbrt.runtime.programs import BoundProgram, forget_at_end
from nbrt.runtime.stream import Stream, current_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nbrt._internal.device import Device
    from nbrt.backends.interface import DeviceInterface, Plan, Program
    from nbrt.compilation.future import CompileFuture
    from nbrt.runtime.inspection import Inspection
    from nbrt.typing import DeviceLike, Dim3

    _Launch = Callable[..., None]

__all__ = ["ConfiguredKernel"]


class ConfiguredKernel:
    """A kernel with grid, block, stream and shared memory; call it to launch.

    Attributes
    ----------
    kernel : Kernel
        The kernel.
    grid, block : tuple of (int, int, int)
        Blocks in the grid, threads in a block, as (x, y, z).
    stream : Stream or None
        The stream; None: the current stream at each call.
    shared : int
        Dynamic shared memory in bytes.
    """

    __slots__ = (
        "__weakref__", "_is_empty", "_label", "_last", "_plans", "block", "grid",
        "kernel", "shared", "stream",
    )  # fmt: skip

    def __init__(
        self, source: Any, grid: Dim3, block: Dim3, stream: Stream | None, shared: int
    ) -> None:
        self.kernel = source
        self._label = source.__qualname__
        self._is_empty = 0 in grid
        self._plans: dict[tuple[DeviceInterface, int], tuple[BoundProgram, Plan]] = {}
        # The latest stream, the functions of `_launch_on` and the program. Replaced at once:
        # threads that launch on different streams may share this.
        self._last: tuple[Stream | None, Any, Any, BoundProgram | None] = (None,) * 4
        self.grid = grid
        self.block = block
        self.stream = stream
        self.shared = shared

    def __call__(self, *args: Any) -> None:
        """Launch.

        Raises
        ------
        LaunchError
            If the device cannot run the configuration.
        ArgumentTypeError
            If an argument is of a type that kernels cannot take, or one is missing.
        CompileError
            If the kernel does not compile for these types; names the kernel's own line.
        DeviceMismatchError
            If an array lives on another device.
        """
        __tracebackhide__ = True
        # The first launch of the kernel: `bound` replaces this method in the kernel's class.
        self.kernel.bound((self.stream or current_stream()).interface)
        self(*args)

    def inspect(self, *args: Any, gpu: str | None = None) -> Inspection:
        """Return how the kernel compiles in this configuration; see `Kernel.inspect`."""
        from nbrt.runtime.inspection import Inspection

        function = self.kernel.function
        needed = [
            name
            for name, parameter in inspect.signature(
                self.kernel, follow_wrapped=True
            ).parameters.items()
            if parameter.default is parameter.empty
            and parameter.kind is not parameter.VAR_POSITIONAL
        ]
        if needed and not args:
            raise ArgumentTypeError(
                f"expected arguments for ({', '.join(needed)}) of {self._label}, or names of their "
                f"types such as 'float32[::1]', got none; the code depends on them"
            )
        return Inspection(function, args, self.grid, self.block, self.shared, gpu)

    def compile(
        self, *specs: Any, device: DeviceLike = None, targets: Sequence[str] = ()
    ) -> CompileFuture[ConfiguredKernel]:
        """Compile for launches to come in this configuration; see `nbrt.compile`."""
        from nbrt.runtime.compiling import compile_ahead

        return compile_ahead(self, specs, device, targets)

    def __reduce__(self) -> tuple[Any, ...]:
        return operator.getitem, (self.kernel, (self.grid, self.block, self.stream, self.shared))

    def __repr__(self) -> str:
        return f"<{self._label}[{self.grid}, {self.block}, {self.stream}, {self.shared}]>"

    def _launch_on(self, stream: Stream, args: tuple[Any, ...]) -> tuple[_Launch, _Launch | None]:
        """Return the `launch` of the plan for a stream's device, of a program that is current.

        The second function is its `launch_packed`. None: all launches go through `Stream.enqueue`.
        """
        interface, index = stream.interface, stream.queue.index
        bound = self.kernel.bound(interface)
        known = self._plans.get((interface, index))
        if known is None or known[0] is not bound:
            plan = self.plan_on(stream.device, interface, bound.program)
            known = self._plans[interface, index] = bound, plan
            forget_at_end(self)
        plan = known[1]
        if config.is_async and not self._is_empty and stream.capture is None:
            # Imported by programs that compile ahead only: worker processes need many modules.
            from nbrt.runtime.compiling import defer_until_compiled

            defer_until_compiled(self, stream, bound.program, plan, args)
        launch, packed = plan.launch, None
        if isinstance(plan, PackedPlan) and stream.record_use is None:
            packed = plan.launch_packed
        self._last = (stream, launch, packed, bound)
        return launch, packed

    def forget(self, interface: DeviceInterface) -> None:
        """Drop the plans of a backend."""
        for key in [each for each in list(self._plans) if each[0] is interface]:
            self._plans.pop(key, None)
        stream = self._last[0]
        if stream is not None and stream.interface is interface:
            self._last = (None,) * 4

    def plan_on(self, device: Device, interface: DeviceInterface, program: Program) -> Plan:
        """Return a new plan for a device.

        Raises
        ------
        LaunchError
            If the device cannot run the configuration.
        NotSupportedError
            If it has no checked mode, which the kernel asks for.
        """
        index, check = device.index, self.kernel.check
        # An empty grid launches nothing, but an invalid block is an error still.
        x, y, z = (max(1, size) for size in self.grid)
        properties = interface.get_device_properties(index)
        properties.check_launch(str(device), (x, y, z), self.block, self.shared)
        if check is None:
            return program.plan(index, (x, y, z), self.block, self.shared)
        if isinstance(program, CheckableProgram):
            return program.checked_plan(index, (x, y, z), self.block, self.shared, check)
        raise NotSupportedError(
            f"expected a cpu device for the checked mode of {self._label}, got {device}; "
            f"launch under nbrt.device('cpu'), or on a GPU run the program under "
            f"compute-sanitizer (--tool memcheck, racecheck, initcheck or synccheck)"
        )

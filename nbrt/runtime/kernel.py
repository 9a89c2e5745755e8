"""`Kernel`: one source in the Numba CUDA dialect, launched on any kind of device."""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING, Any, overload

from nbrt.errors import ArgumentTypeError, LaunchError
from nbrt.runtime.stream import Stream, current_stream

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.backends.interface import DeviceInterface, Plan, Program
    from nbrt.typing import Dim3

__all__ = ["ConfiguredKernel", "Kernel", "kernel"]

_MAX_CONFIGURATIONS = 256
_FORALL_BLOCK = 256


class Kernel:
    """A kernel in the Numba CUDA dialect, compiled for each kind of device on first launch.

    Made by the decorator `kernel`. ``k[grid, block](...)`` launches on the current stream,
    ``k[grid, block, stream, shared](...)`` on another one with dynamic shared memory, and
    ``k.forall(n)(...)`` with at least `n` threads in a row.

    Parameters
    ----------
    function : callable
        The kernel's source: a Python function that returns nothing, or a ``cuda.jit`` dispatcher.

    Attributes
    ----------
    function : callable
        What the kernel was made from.
    """

    def __init__(self, function: Callable[..., object]) -> None:
        source = getattr(function, "py_func", function)
        if not callable(function) or not hasattr(source, "__code__"):
            raise ArgumentTypeError(
                f"expected a Python function or a cuda.jit dispatcher, got {function!r} of type "
                f"{type(function).__name__}"
            )
        self.function = function
        self._programs: dict[DeviceInterface, Program] = {}
        self._configured: dict[Any, ConfiguredKernel] = {}
        functools.update_wrapper(self, source)

    def __getitem__(self, configuration: tuple[Any, ...]) -> ConfiguredKernel:
        try:
            return self._configured[configuration]
        except (KeyError, TypeError):
            return self._configure(configuration)

    def __call__(self, *args: object) -> None:  # noqa: ARG002  # refused whatever they are
        """Refuse: a launch needs a grid and a block."""
        raise LaunchError(
            f"expected a launch configuration, got a plain call; write "
            f"{self.__name__}[grid, block](...) or {self.__name__}.forall(n)(...)"
        )

    def __reduce__(self) -> str:
        # As for functions: pickled by name, and a copy is the kernel itself.
        return self.__qualname__

    def __repr__(self) -> str:
        return f"<nbrt.Kernel {self.__qualname__}>"

    if TYPE_CHECKING:
        __name__: str
        __qualname__: str

    def forall(
        self, n: int, *, block: int = _FORALL_BLOCK, stream: Stream | None = None, shared: int = 0
    ) -> ConfiguredKernel:
        """Return the kernel configured with at least `n` threads in one dimension.

        The kernel guards against the extra threads, as in ``if i < n``. With `n` 0 nothing runs.

        Examples
        --------
        >>> import nbrt
        >>> from numba import cuda
        >>> @nbrt.kernel
        ... def double(x):
        ...     i = cuda.grid(1)
        ...     if i < x.size:
        ...         x[i] *= 2.0
        >>> with nbrt.device("cpu:0"):
        ...     x = nbrt.full(5, 1.5, "float32")
        ...     double.forall(x.size)(x)
        >>> x
        array([3., 3., 3., 3., 3.], dtype=float32)
        """
        count = _checked_int("n", n, 0)
        size = _checked_int("block", block, 1)
        return self[-(-count // size), size, stream, shared]

    def program(self, interface: DeviceInterface) -> Program:
        """Return the kernel as a backend holds it."""
        program = self._programs.get(interface)
        if program is None:
            program = self._programs.setdefault(interface, interface.program(self.function))
        return program

    def _configure(self, configuration: Any) -> ConfiguredKernel:
        if not isinstance(configuration, tuple) or not 2 <= len(configuration) <= 4:
            raise LaunchError(
                f"expected [grid, block], [grid, block, stream] or [grid, block, stream, shared], "
                f"got [{configuration!r}]"
            )
        filled: tuple[Any, ...] = (*configuration, *(None, 0)[len(configuration) - 2 :])
        grid, block, stream, shared = filled
        if stream is not None and not isinstance(stream, Stream):
            # 0 is what numba-cuda calls the default stream.
            stream = None if _is_zero(stream) else Stream.from_external(stream)
        configured = ConfiguredKernel(
            self,
            _dim3("grid", grid, smallest=0),
            _dim3("block", block, smallest=1),
            stream,
            _checked_int("shared", shared, 0),
        )
        try:
            if len(self._configured) >= _MAX_CONFIGURATIONS:
                self._configured.clear()
            self._configured[configuration] = configured
        except TypeError:
            pass  # lists as grid: works, only not remembered
        return configured


class ConfiguredKernel:
    """A kernel with grid, block, stream and shared memory; call it to launch.

    Attributes
    ----------
    grid, block : tuple of (int, int, int)
        Blocks in the grid, threads in a block, as (x, y, z).
    stream : Stream or None
        Where it runs; None: the current stream at each call.
    shared : int
        Dynamic shared memory in bytes.
    """

    __slots__ = (
        "_is_empty",
        "_kernel",
        "_label",
        "_last",
        "_plans",
        "block",
        "grid",
        "shared",
        "stream",
    )

    def __init__(
        self, source: Kernel, grid: Dim3, block: Dim3, stream: Stream | None, shared: int
    ) -> None:
        self._kernel = source
        self._label = source.__qualname__
        self._is_empty = 0 in grid
        self._plans: dict[tuple[DeviceInterface, int], Plan] = {}
        # One pair, replaced at once: threads that launch on different streams may share this.
        self._last: tuple[Stream | None, Any] = (None, None)
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
        stream = self.stream
        if stream is None:
            stream = current_stream()
        last, plan = self._last
        if last is not stream:
            plan = self._plan(stream)
            self._last = (stream, plan)
        if not self._is_empty:
            stream.enqueue("launch", plan.launch, args, self._label)

    def __reduce__(self) -> tuple[Any, ...]:
        return operator.getitem, (self._kernel, (self.grid, self.block, self.stream, self.shared))

    def __repr__(self) -> str:
        return f"<{self._label}[{self.grid}, {self.block}, {self.stream}, {self.shared}]>"

    def _plan(self, stream: Stream) -> Plan:
        interface, index = stream.interface, stream.queue.index
        known = self._plans.get((interface, index))
        if known is not None:
            return known
        # An empty grid launches nothing, but a block that the device cannot run is still wrong.
        x, y, z = (max(1, size) for size in self.grid)
        properties = interface.get_device_properties(index)
        properties.check_launch(str(stream.device), (x, y, z), self.block, self.shared)
        plan = self._kernel.program(interface).plan(index, (x, y, z), self.block, self.shared)
        self._plans[interface, index] = plan
        return plan


@overload
def kernel(function: Callable[..., object]) -> Kernel: ...
@overload
def kernel() -> Callable[[Callable[..., object]], Kernel]: ...
def kernel(
    function: Callable[..., object] | None = None,
) -> Kernel | Callable[[Callable[..., object]], Kernel]:
    """Turn a function in the Numba CUDA dialect into a kernel for every kind of device.

    Parameters
    ----------
    function : callable
        A Python function in the dialect (``cuda.grid``, ``cuda.threadIdx``, ...), or a dispatcher
        made by ``numba.cuda.jit``. Also usable as ``@nbrt.kernel()``.

    Returns
    -------
    kernel : Kernel
        Launch it with ``kernel[grid, block](...)`` or ``kernel.forall(n)(...)``.

    Raises
    ------
    ArgumentTypeError
        If `function` is neither.
    """
    if function is None:
        return kernel
    return function if isinstance(function, Kernel) else Kernel(function)


def _dim3(name: str, value: Any, smallest: int) -> Dim3:
    sizes = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    if not 1 <= len(sizes) <= 3:
        raise LaunchError(f"expected a {name} of 1 to 3 sizes, got {value!r}")
    x, y, z = (*(_checked_int(name, size, smallest) for size in sizes), 1, 1)[:3]
    return x, y, z


def _checked_int(name: str, value: Any, smallest: int) -> int:
    if isinstance(value, bool):
        raise LaunchError(f"expected {name} to be an int, got {value!r}")
    try:
        number = operator.index(value)
    except TypeError:
        raise LaunchError(
            f"expected {name} to be an int, got {value!r} of type {type(value).__name__}; for a "
            f"ceiling division write (n + block - 1) // block"
        ) from None
    if number < smallest:
        raise LaunchError(f"expected {name} to be at least {smallest}, got {number}")
    return number


def _is_zero(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value == 0

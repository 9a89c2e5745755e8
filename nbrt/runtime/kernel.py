"""`Kernel`: one source in the Numba CUDA dialect, launched on any kind of device."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, overload

from nbrt._internal.checks import as_int
from nbrt._internal.gpus import capability_of
from nbrt.backends.fast_math import fast_math_flags
from nbrt.backends.interface import Check
from nbrt.config import settings
from nbrt.errors import ArgumentError, ArgumentTypeError, LaunchError
from nbrt.runtime.configured_kernel import ConfiguredKernel
from nbrt.runtime.kernel_cost import cost_function, costs_of, declare_cost
from nbrt.runtime.launch_sizes import checked_size, dim3, has_type_of, is_zero
from nbrt.runtime.programs import BoundProgram, Programs, compile_call, forget_at_end, lock
from nbrt.runtime.stream import Stream

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nbrt.backends.fast_math import FastMath
    from nbrt.backends.interface import DeviceInterface, Program
    from nbrt.compilation.future import CompileFuture
    from nbrt.runtime.inspection import Inspection
    from nbrt.runtime.kernel_cost import CostFunction, KernelCost
    from nbrt.typing import DeviceLike

__all__ = ["ConfiguredKernel", "Kernel", "kernel"]

_MAX_CONFIGURATIONS = 256
_FORALL_BLOCK = 256


class Kernel:
    """A kernel in the Numba CUDA dialect, compiled for each kind of device on first launch.

    The decorator `kernel` creates it. ``k[grid, block](...)`` launches on the current stream,
    ``k[grid, block, stream, shared](...)`` on another one with dynamic shared memory, and
    ``k.forall(n)(...)`` with at least `n` threads in a row.

    Parameters
    ----------
    function : callable
        The kernel's source: a Python function that returns nothing, or a ``cuda.jit`` dispatcher.
    check : Check or None
        How launches are checked for faults; None: not at all.
    cost : callable or None
        See `kernel`.

    Attributes
    ----------
    function : callable
        As given.
    check : Check or None
        How launches are checked for faults.
    py_func : function
        The Python function. With `targetoptions`, those of the dispatcher if there was one, it lets
        other kernels call this one like a function of ``cuda.jit``.
    targetoptions : dict
        See above.
    """

    __slots__ = ("__dict__", "__weakref__", "_latest")  # read by every launch

    def __init__(
        self,
        function: Callable[..., object],
        check: Check | None = None,
        cost: CostFunction | None = None,
    ) -> None:
        source = getattr(function, "py_func", function)
        if not callable(function) or not hasattr(source, "__code__"):
            raise ArgumentTypeError(
                f"expected a Python function or a cuda.jit dispatcher, got {function!r} of type "
                f"{type(function).__name__}"
            )
        self.function = function
        self.check = check
        if cost is not None:
            declare_cost(function, cost)
        self.py_func = source
        self.targetoptions = getattr(function, "targetoptions", {})
        self._programs = Programs(function)
        self._installed: dict[DeviceInterface, BoundProgram] = {}
        # With the configurations as given, whose elements have been checked.
        self._configured: dict[Any, tuple[Any, ConfiguredKernel]] = {}
        self._latest: tuple[Any, Any, ConfiguredKernel | None] = (None, None, None)
        # A class for each kernel: `bound` gives it the kernel's own `__call__`.
        members = {"__slots__": (), "__module__": __name__}
        self._class: type[ConfiguredKernel] = type("ConfiguredKernel", (ConfiguredKernel,), members)
        functools.update_wrapper(self, source)

    def __getitem__(self, configuration: tuple[Any, ...]) -> ConfiguredKernel:
        latest_grid, latest_block, configured = self._latest
        match configuration:  # faster than len() and indices: a launch takes about a microsecond
            case (grid, block):
                if (
                    grid is latest_grid
                    and block is latest_block
                    and type(configuration) is tuple
                    and configured is not None
                ):
                    return configured
        try:
            known, configured = self._configured[configuration]
        except (KeyError, TypeError):
            return self._configure(configuration)
        # As keys, 1.0 and True equal 1, but a launch refuses them.
        grid, block = configuration[0], configuration[1]
        count = len(configuration)
        if (
            (type(grid) is int or grid is known[0] or has_type_of(grid, known[0]))
            and (type(block) is int or block is known[1] or has_type_of(block, known[1]))
            and (count == 2 or configuration[2] is known[2])
            and (count < 4 or type(configuration[3]) in (int, type(known[3])))
        ):
            if count == 2:
                self._latest = grid, block, configured
            return configured
        return self._configure(configuration)

    def __call__(self, *args: object) -> None:  # noqa: ARG002  # refused in any case
        """Raise `LaunchError`: a launch needs a grid and a block."""
        raise LaunchError(
            f"expected a launch configuration, got a plain call; write "
            f"{self.__name__}[grid, block](...) or {self.__name__}.forall(n)(...)"
        )

    def __reduce__(self) -> str | tuple[Any, ...]:
        # Imported by programs that pickle kernels only: it needs Numba.
        from nbrt.runtime.kernel_pickles import reduced

        return reduced(self)

    def __copy__(self) -> Kernel:
        return self  # as functions

    def __deepcopy__(self, memo: dict[int, object]) -> Kernel:
        return self

    def __repr__(self) -> str:
        return f"<nbrt.Kernel {self.__qualname__}>"

    if TYPE_CHECKING:
        __name__: str
        __qualname__: str

    def forall(
        self, n: int, *, block: int = _FORALL_BLOCK, stream: Stream | None = None, shared: int = 0
    ) -> ConfiguredKernel:
        """Return the kernel configured with at least `n` threads in one dimension.

        The kernel must ignore the extra threads, as in ``if i < n``. With `n` 0 nothing runs.

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
        count = checked_size("n", n, 0)
        size = checked_size("block", block, 1)
        return self[-(-count // size), size, stream, shared]

    def checked(
        self, *, seed: int | None = None, strict: bool = False, target: str | None = None
    ) -> Kernel:
        """Return the same kernel in checked mode, for single launches.

        Parameters
        ----------
        seed, strict, target
            As in `kernel`.

        Returns
        -------
        checked : Kernel
            Its launches run on a CPU device, slower, and raise `KernelCheckError` with a report
            for each fault.

        Raises
        ------
        ArgumentError
            If `target` is unknown or `seed` is negative or no integer.
        ArgumentTypeError
            If `strict` is no bool.

        Examples
        --------
        >>> import nbrt
        >>> from numba import cuda
        >>> @nbrt.kernel
        ... def shift(x):
        ...     i = cuda.grid(1)
        ...     x[i] = x[i + 1]
        >>> with nbrt.device("cpu:0"):
        ...     try:
        ...         shift.checked()[1, 4](nbrt.full(4, 1.0))
        ...     except nbrt.errors.KernelCheckError as error:
        ...         sorted({report.kind for report in error.reports})
        ['out_of_bounds', 'race']
        """
        if target is not None:
            capability_of(target)
        return self._with(_check(seed, strict, target))

    def _with(self, check: Check | None) -> Kernel:
        """Return the kernel with other checks; both share the compiled programs."""
        other = Kernel(self.function, check)
        other._programs = self._programs
        return other

    def cost(self, *args: Any) -> KernelCost | None:
        """Return the estimated work of a launch with arguments; None: the kernel gives none."""
        return costs_of(self.function, args)

    def inspect(
        self,
        *args: Any,
        grid: Any = 1,
        block: Any = _FORALL_BLOCK,
        shared: int = 0,
        gpu: str | None = None,
    ) -> Inspection:
        """Return how the kernel compiles for the types of `args`; nothing is launched.

        Parameters
        ----------
        *args
            Arguments as for a launch, or names of their types: ``"float32"``, ``"int64[::1]"``.
        grid, block, shared
            The launch, as in ``kernel[grid, block, stream, shared]``; CPU code depends on the
            block, occupancy on the block and on `shared`.
        gpu : str, optional
            A GPU such as ``"H100"`` or ``"sm_90"``, which need not be present.

        Returns
        -------
        inspection : Inspection
            With the attributes `signature`, `lowering`, `loops`, `llvm`, `asm`, `ptx`,
            `resources` and `occupancy`, each computed on first access.

        Raises
        ------
        ArgumentError
            If `gpu`, or the name of a type, is unknown.
        ArgumentTypeError
            If no arguments are given and the kernel has parameters.
        """
        return self[grid, block, None, shared].inspect(*args, gpu=gpu)

    def compile(
        self,
        *specs: Any,
        grid: Any = 1,
        block: Any = _FORALL_BLOCK,
        shared: int = 0,
        device: DeviceLike = None,
        targets: Sequence[str] = (),
    ) -> CompileFuture[ConfiguredKernel]:
        """Compile the kernel for launches to come, in other processes; see `nbrt.compile`.

        Examples
        --------
        >>> import nbrt
        >>> from numba import cuda
        >>> @nbrt.kernel
        ... def double(x):
        ...     i = cuda.grid(1)
        ...     if i < x.size:
        ...         x[i] *= 2
        >>> future = double.compile("void(float32[::1])", block=4, device="cpu")
        >>> with nbrt.device("cpu:0"):
        ...     x = nbrt.full(4, 1.5, "float32")
        ...     future.result()(x)
        >>> x
        array([3., 3., 3., 3.], dtype=float32)
        """
        return self[grid, block, None, shared].compile(*specs, device=device, targets=targets)

    def program(self, interface: DeviceInterface) -> Program:
        """Return the program of a kind of device, for the current captured values."""
        return self.bound(interface).program

    def bound(self, interface: DeviceInterface) -> BoundProgram:
        """Return the same with its captures; compile their check into the kernel's launches."""
        bound = self._programs.get(interface)
        if self._installed.get(interface) is not bound:
            with lock:  # mypy does not know that __call__ can be assigned
                setattr(self._class, "__call__", compile_call(bound))  # noqa: B010
                self._installed[interface] = bound
                forget_at_end(self)
        return bound

    def forget(self, interface: DeviceInterface) -> None:
        """Drop the program of a backend; the next launch compiles its check again."""
        self._programs.forget(interface)
        if interface in self._installed:
            self._installed.clear()
            del self._class.__call__

    def _configure(self, configuration: Any) -> ConfiguredKernel:
        if not isinstance(configuration, tuple) or not 2 <= len(configuration) <= 4:
            raise LaunchError(
                f"expected [grid, block], [grid, block, stream] or [grid, block, stream, shared], "
                f"got [{configuration!r}]"
            )
        filled: tuple[Any, ...] = (*configuration, *(None, 0)[len(configuration) - 2 :])
        grid, block, stream, shared = filled
        if stream is not None and not isinstance(stream, Stream):
            # numba-cuda calls the default stream 0.
            stream = None if is_zero(stream) else Stream.from_external(stream)
        configured = self._class(
            self,
            dim3("grid", grid, smallest=0),
            dim3("block", block, smallest=1),
            stream,
            checked_size("shared", shared, 0),
        )
        try:
            # Configurations that are equal but of other types share their plans.
            configured = self._configured.pop(configuration, (None, configured))[1]
            if len(self._configured) >= _MAX_CONFIGURATIONS:
                self._configured.clear()
            self._configured[configuration] = configuration, configured
        except TypeError:
            pass  # not hashable, such as a list as grid: not cached
        return configured


@overload
def kernel(
    function: Callable[..., object],
    *,
    check: bool | None = None,
    seed: int | None = None,
    strict: bool = False,
    target: str | None = None,
    cost: CostFunction | None = None,
    fastmath: FastMath | None = None,
) -> Kernel: ...
@overload
def kernel(
    *,
    check: bool | None = None,
    seed: int | None = None,
    strict: bool = False,
    target: str | None = None,
    cost: CostFunction | None = None,
    fastmath: FastMath | None = None,
) -> Callable[[Callable[..., object]], Kernel]: ...
def kernel(
    function: Callable[..., object] | None = None,
    *,
    check: bool | None = None,
    seed: int | None = None,
    strict: bool = False,
    target: str | None = None,
    cost: CostFunction | None = None,
    fastmath: FastMath | None = None,
) -> Kernel | Callable[[Callable[..., object]], Kernel]:
    """Turn a function in the Numba CUDA dialect into a kernel for every kind of device.

    Parameters
    ----------
    function : callable
        A Python function in the dialect (``cuda.grid``, ``cuda.threadIdx``, ...), or a dispatcher
        made by ``numba.cuda.jit``. Also usable as ``@nbrt.kernel()``.
    check : bool, optional
        Checked mode: launches on a CPU device look for faults such as indices out of bounds and
        data races, and raise `KernelCheckError`. None: as set by ``NBRT_CHECK``.
    seed : int, optional
        In checked mode, shuffles the order of blocks and of threads, so that results that depend
        on it change with the seed. None: ``NBRT_CHECK_SEED``; ascending if not set.
    strict : bool, default False
        In checked mode, a thread that returns before a barrier that others reach is a fault.
    target : str, optional
        In checked mode, a GPU such as ``"H100"`` or ``"sm_90"`` whose limits apply to launches.
    cost : callable, optional
        Takes the kernel's arguments and returns a `KernelCost`, for plans and traces. It is kept
        for `function`, whose latest one counts.
    fastmath : bool, set of str or mapping of str to bool, optional
        Whether sums and products may be reordered, multiply-adds fused, and divisions and functions
        approximated, as with ``cuda.jit(fastmath=...)``; NaN and infinities keep their meaning.
        Bits then differ between devices, block shapes and versions of nbrt. A set or a mapping
        names LLVM's flags; a GPU then takes all that CUDA has. None: as the dispatcher says, and
        for a function no.

    Returns
    -------
    kernel : Kernel
        Launch it with ``kernel[grid, block](...)`` or ``kernel.forall(n)(...)``.

    Raises
    ------
    ArgumentError
        If `target` or a flag of `fastmath` is unknown, or `seed` is negative or no integer.
    ArgumentTypeError
        If `function` is neither, `strict` is no bool, or `cost` is no function.
    """
    if target is not None:
        capability_of(target)  # an unknown name is an error with or without checks
    if function is None:
        options: dict[str, Any] = {"check": check, "seed": seed, "strict": strict}
        options |= {"target": target, "cost": cost, "fastmath": fastmath}
        return functools.partial(kernel, **options)
    wanted = settings().check if check is None else check
    checking = _check(seed, strict, target) if wanted else None
    if fastmath is not None:
        function = _with_fast_math(function, fastmath)
    if isinstance(function, Kernel):
        if cost is not None:
            declare_cost(function.function, cost)
        return function if checking == function.check else function._with(checking)
    return Kernel(function, checking, cost)


def _with_fast_math(function: Callable[..., object], option: FastMath) -> Callable[..., object]:
    """Return a kernel with the option ``fastmath``, which has its own compiled code."""
    wanted = fast_math_flags(option)
    present = getattr(function, "targetoptions", {}).get("fastmath")
    is_source = hasattr(getattr(function, "py_func", function), "__code__")
    if wanted == fast_math_flags(present) or not is_source:
        return function
    # Imported by programs that use the option only: it needs Numba.
    from nbrt.backends.dispatchers import with_option

    function = function.function if isinstance(function, Kernel) else function
    found: Callable[..., object] = with_option(function, "fastmath", option)
    if (known := cost_function(function)) is not None:
        declare_cost(found, known)
    return found


def _check(seed: int | None, strict: bool, target: str | None) -> Check:
    chosen = settings().check_seed if seed is None else as_int(seed)
    if seed is not None and (chosen is None or chosen < 0):
        raise ArgumentError(f"expected seed to be None or an int of at least 0, got {seed!r}")
    if not isinstance(strict, bool):
        raise ArgumentTypeError(f"expected strict to be True or False, got {strict!r}")
    return Check(chosen, strict, target)

"""`KernelCompiler`: the interface between launches and a compiler for CUDA.

numba-cuda is in maintenance mode; its successor numba-cuda-mlir compiles the same dialect and needs
a second adapter with these Protocols. The tests have one that interprets kernels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from nbrt.errors import ArgumentTypeError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from nbrt.backends.captures import Captures
    from nbrt.backends.cuda.queues import CudaQueue
    from nbrt.typing import Dim3

__all__ = ["KernelCompiler", "KernelSource", "LoadedKernel", "with_defaults"]


class LoadedKernel(Protocol):
    """A kernel compiled for one list of argument types and loaded on one device.

    Attributes
    ----------
    max_threads_per_block : int
        The limit by its registers.
    static_shared : int
        Bytes of shared memory per block that it declares.
    """

    @property
    def max_threads_per_block(self) -> int: ...  # noqa: D102  # described in the class
    @property
    def static_shared(self) -> int: ...  # noqa: D102

    def allow_shared(self, nbytes: int) -> None:
        """Prepare for launches with this much dynamic shared memory."""
        ...

    def launch(
        self, queue: CudaQueue, grid: Dim3, block: Dim3, shared: int, args: tuple[Any, ...]
    ) -> None:
        """Enqueue a launch; the arguments are of the types it was compiled for."""
        ...


class KernelSource(Protocol):
    """A kernel whose argument types are not known yet.

    Attributes
    ----------
    name : str
        The name in messages.
    parameter_names : tuple of str
        Names of its parameters.
    defaults : tuple
        Default values of the last parameters.
    captures : Captures
        The captured values that it is compiled with.
    """

    @property
    def name(self) -> str: ...  # noqa: D102  # described in the class
    @property
    def parameter_names(self) -> tuple[str, ...]: ...  # noqa: D102
    @property
    def defaults(self) -> tuple[Any, ...]: ...  # noqa: D102
    @property
    def captures(self) -> Captures: ...  # noqa: D102

    def compile(self, args: tuple[Any, ...]) -> LoadedKernel:
        """Compile for the types of `args`, and load on the current device.

        Threads that compile for the same types at the same time wait for one compilation.

        Raises
        ------
        ArgumentTypeError
            If kernels cannot take an argument of such a type.
        CompileError
            If the source does not compile for these types; names its line.
        """
        ...

    def compile_ptx(self, args: tuple[Any, ...], capability: tuple[int, int]) -> str:
        """Return the PTX for the types of `args`; needs the compiler, but no device."""
        ...


class KernelCompiler(Protocol):
    """A compiler of the Numba CUDA dialect for CUDA devices."""

    def adopt(self, function: Callable[..., object]) -> KernelSource:
        """Return the source of a plain function or of a dispatcher of the compiler."""
        ...

    def key_of(self, argument: object) -> Hashable | None:
        """Return a key of the type of a scalar; None for other arguments."""
        ...


def with_defaults(source: KernelSource, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments of a launch with the missing default values.

    numba-cuda has no default values.

    Raises
    ------
    ArgumentTypeError
        If the number of arguments does not fit.
    """
    names = source.parameter_names
    missing = len(names) - len(args)
    if missing and not 0 < missing <= len(source.defaults):
        raise ArgumentTypeError(
            f"expected {len(names)} arguments of {source.name} ({', '.join(names)}), got "
            f"{len(args)}"
        )
    return (*args, *source.defaults[-missing:]) if missing else args

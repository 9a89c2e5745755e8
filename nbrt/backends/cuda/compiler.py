"""`KernelCompiler`: what compiles kernels for CUDA, as the launch path sees it.

numba-cuda is in maintenance mode; its successor numba-cuda-mlir takes the same dialect. A second
adapter that fulfils these Protocols is all that a move needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from nbrt.backends.captures import Captures
    from nbrt.backends.cuda.queues import CudaQueue
    from nbrt.typing import Dim3

__all__ = ["KernelCompiler", "KernelSource", "LoadedKernel"]


class LoadedKernel(Protocol):
    """A kernel compiled for one list of argument types and loaded on one device.

    Attributes
    ----------
    max_threads_per_block : int
        What its registers allow.
    static_shared : int
        Bytes of shared memory per block that it declares itself.
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
    """A kernel as the compiler holds it, before its argument types are known.

    Attributes
    ----------
    name : str
        For messages.
    parameter_names : tuple of str
        Names of its parameters.
    defaults : tuple
        Values of the last parameters where a launch leaves them out.
    captures : Captures
        The values of globals and the like that it is compiled with.
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

        Several threads may ask for the same types at a time; they wait for one compilation.

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
    """Something that compiles the Numba CUDA dialect for CUDA devices."""

    def adopt(self, function: Callable[..., object]) -> KernelSource:
        """Take a plain function, or a dispatcher of the compiler's own."""
        ...

    def key_of(self, argument: object) -> Hashable | None:
        """Return what tells the types of scalars apart; None for what is no plain scalar."""
        ...

"""PTX of a kernel for any compute capability, without a GPU or a driver."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from nbrt._internal.gpus import capability_of
from nbrt.backends.cuda.compiler import with_defaults
from nbrt.backends.cuda.ptxas import resources_of
from nbrt.backends.occupancy import occupancy_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.backends.captures import Captures
    from nbrt.backends.cuda.numba_compiler import NumbaSource
    from nbrt.backends.inspection import Occupancy, Resources
    from nbrt.typing import Dim3

__all__ = ["CudaCode", "compile_ptx"]

_DEFAULT_GPU = "sm_80"


def compile_ptx(
    function: Callable[..., object], args: tuple[Any, ...], capability: tuple[int, int]
) -> str:
    """Compile a kernel for the types of `args`, in which NumPy arrays stand for device arrays.

    Raises
    ------
    ArgumentTypeError
        If kernels cannot take an argument of such a type, or the number of arguments is wrong.
    CompileError
        If the source does not compile for these types; names its line.
    BackendUnavailableError
        If CUDA's compiler libraries are missing.
    """
    source = _source_of(function)
    return source.compile_ptx(with_defaults(source, args), capability)


def _source_of(function: Callable[..., object]) -> NumbaSource:
    from nbrt.backends.cuda.numba_compiler import host_compiler

    return host_compiler().adopt(function)


class CudaCode:
    """A kernel for a named GPU, present or not, as a `DeviceCode`.

    Parameters
    ----------
    function : callable
        The kernel.
    args : tuple
        Arguments, or values of the same types.
    block : tuple of int
        Threads of a block.
    shared : int
        Bytes of dynamic shared memory.
    gpu : str or None
        A GPU's name or a compute capability for `capability_of`; None: ``sm_80``.
    """

    def __init__(
        self,
        function: Callable[..., object],
        args: tuple[Any, ...],
        block: Dim3,
        shared: int,
        gpu: str | None,
    ) -> None:
        self._capability = capability_of(_DEFAULT_GPU if gpu is None else gpu)
        self._function = function
        self._args = args
        self._threads = block[0] * block[1] * block[2]
        self._shared = shared

    @property
    def captures(self) -> Captures:
        """The captured values that the kernel is compiled with."""
        return self._source.captures

    @cached_property
    def signature(self) -> str:
        """The kernel's name, its parameters and their types."""
        return self._source.signature(with_defaults(self._source, self._args))

    @cached_property
    def ptx(self) -> str:
        """NVIDIA's portable assembly."""
        args = with_defaults(self._source, self._args)
        return self._source.compile_ptx(args, self._capability)

    @cached_property
    def _source(self) -> NumbaSource:
        return _source_of(self._function)

    @cached_property
    def resources(self) -> Resources:
        """The resources of the kernel, as ptxas reports them."""
        max_registers = self._source.options.get("max_registers")
        return resources_of(self.ptx, self._capability, max_registers)

    @cached_property
    def occupancy(self) -> Occupancy:
        """The occupancy of a multiprocessor."""
        return occupancy_of(self._capability, self.resources, self._threads, self._shared)

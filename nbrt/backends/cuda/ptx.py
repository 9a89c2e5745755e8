"""PTX of a kernel for any compute capability, without a GPU or a driver."""

from __future__ import annotations

from functools import cached_property
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from nbrt._internal.gpus import capability_of
from nbrt.backends.cuda.occupancy import occupancy_of
from nbrt.backends.cuda.ptxas import resources_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.backends.cuda.driver import Driver
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
    from nbrt.backends.cuda.numba_compiler import NumbaCudaCompiler

    # Before it loads a kernel, the compiler needs only the array class of a driver.
    host = cast("Driver", SimpleNamespace(cupy=np))
    source = NumbaCudaCompiler(host).adopt(function)
    missing = len(source.parameter_names) - len(args)
    if 0 < missing <= len(source.defaults):
        args = (*args, *source.defaults[-missing:])
    return source.compile_ptx(args, capability)


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

    @cached_property
    def ptx(self) -> str:
        """NVIDIA's portable assembly."""
        return compile_ptx(self._function, self._args, self._capability)

    @cached_property
    def resources(self) -> Resources:
        """The resources of the kernel, as ptxas reports them."""
        return resources_of(self.ptx, self._capability)

    @cached_property
    def occupancy(self) -> Occupancy:
        """The occupancy of a multiprocessor."""
        return occupancy_of(self._capability, self.resources, self._threads, self._shared)

"""The versions of a dispatcher: a kernel or a device function for some types of arguments.

Launches run on CPU devices through the kernel of the dispatcher. A version stands for what
numba-cuda compiles for a GPU: its own compiler makes that code when a program asks for it.
"""

from __future__ import annotations

import functools
import inspect
import math
import pickle
import re
import shutil
from typing import TYPE_CHECKING, Any

from numba.cuda import typing
from numba.cuda.core.compiler_lock import global_compiler_lock
from numba.cuda.dispatcher import CUDACache, CUDACacheImpl, _Kernel
from numba.cuda.types import void

from nbrt.backends.cuda.ptxas import resources_of
from nbrt.backends.device_arrays import is_device_array
from nbrt.backends.occupancy import max_threads_by_registers, occupancy_of
from nbrt.compat.numba_cuda.driver.contexts import COMPUTE_CAPABILITY
from nbrt.errors import BackendUnavailableError

if TYPE_CHECKING:
    from nbrt.backends.inspection import Resources
    from nbrt.compat.numba_cuda.dispatcher import Dispatcher

__all__ = ["DeviceVersion", "KernelVersion", "VersionCache"]


_CONSTANTS = re.compile(
    r"^\s*(?:\.visible\s+)?\.const\s+(?:\.align\s+\d+\s+)?\.[bsuf](\d+)\s+[\w$]+(?:\[(\d+)\])?",
    re.M,
)
"""Declarations of constant memory in PTX: the bits of an element, and the number of elements."""


class KernelVersion:
    """A kernel for some types of arguments.

    Attributes that it does not have itself are those of numba-cuda's ``_Kernel`` for the nominal
    compute capability.

    Parameters
    ----------
    dispatcher : Dispatcher
        The kernel.
    types : tuple of numba types
        The types of its arguments.
    launch_config_sensitive : bool, default False
        Whether the program marked its compilation as dependent on the launch configuration.

    Attributes
    ----------
    signature : numba signature
        The types.
    launch_config_sensitive : bool
        As given.
    """

    objectmode = False
    entry_point = None

    def __init__(
        self,
        dispatcher: Dispatcher,
        types: tuple[Any, ...],
        *,
        launch_config_sensitive: bool = False,
    ) -> None:
        self._dispatcher = dispatcher
        self.signature = typing.signature(void, *types)
        self.launch_config_sensitive = launch_config_sensitive

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._dispatcher.__name__}{self.argument_types}>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.gpu_code, name)

    @property
    def argument_types(self) -> tuple[Any, ...]:
        """The types of the arguments."""
        return tuple(self.signature.args)

    @property
    def py_func(self) -> Any:
        """The Python function."""
        return self._dispatcher.py_func

    @functools.cached_property
    def gpu_code(self) -> Any:
        """The ``_Kernel`` of numba-cuda, compiled to NVVM IR for the nominal capability."""
        options = dict(self._dispatcher.targetoptions)
        # numba-cuda appends its own files to the list.
        options["link"] = list(options.get("link") or ())
        with global_compiler_lock:
            return _Kernel(self._dispatcher.py_func, self.argument_types, **options)

    # -- for caches of the program, which inherit numba-cuda's -------------------------------------

    @property
    def codegen(self) -> Any:
        """The generator of code for a GPU."""
        return self._dispatcher.targetctx.codegen()

    def _reduce_states(self) -> dict[str, Any]:
        """Return the arguments of ``_Kernel._rebuild``, without code for a GPU."""
        options = self._dispatcher.targetoptions
        return {
            "cooperative": False,
            "name": self.py_func.__qualname__,
            "signature": self.signature,
            "codelibrary": None,
            "debug": bool(options.get("debug")),
            "lineinfo": bool(options.get("lineinfo")),
            "call_helper": None,
            "extensions": list(self._dispatcher.extensions),
            "launch_config_sensitive": self.launch_config_sensitive,
        }

    def bind(self) -> None:
        """Do nothing: the code for a CPU device is loaded at the first launch."""

    def launch(
        self,
        args: tuple[Any, ...],
        griddim: Any,
        blockdim: Any,
        stream: Any = 0,
        sharedmem: int = 0,
    ) -> None:
        """Launch, as ``dispatcher[griddim, blockdim, stream, sharedmem](*args)``."""
        self._dispatcher.configure(griddim, blockdim, stream, sharedmem).launch(args)

    # -- resources on the nominal GPU --------------------------------------------------------------

    @functools.cached_property
    def _resources(self) -> Resources:
        ptx = self.gpu_code.inspect_asm(COMPUTE_CAPABILITY)
        return resources_of(
            ptx, COMPUTE_CAPABILITY, self._dispatcher.targetoptions.get("max_registers")
        )

    @property
    def regs_per_thread(self) -> int:
        """Registers of a thread."""
        return self._resources.registers

    @property
    def const_mem_size(self) -> int:
        """Bytes of constant memory that the kernel declares."""
        ptx = self.gpu_code.inspect_asm(COMPUTE_CAPABILITY)
        declared = _CONSTANTS.findall(ptx)
        return sum(int(bits) // 8 * int(count or 1) for bits, count in declared)

    @property
    def shared_mem_per_block(self) -> int:
        """Bytes of shared memory that the kernel declares."""
        return self._resources.static_shared

    @property
    def local_mem_per_thread(self) -> int:
        """Bytes of local memory of a thread."""
        return self._resources.stack

    @property
    def max_threads_per_block(self) -> int:
        """The most threads of a block, by the registers and the launch bounds."""
        most = max_threads_by_registers(self.regs_per_thread)
        bound = self._dispatcher.max_block
        return most if bound is None else min(most, bound)

    def max_cooperative_grid_blocks(self, blockdim: Any, dynsmemsize: int = 0) -> int:
        """Return the most blocks of a launch whose blocks wait for each other."""
        from numba.cuda.api import get_current_device

        threads = math.prod(blockdim) if isinstance(blockdim, tuple) else blockdim
        found = occupancy_of(COMPUTE_CAPABILITY, self._resources, threads, dynsmemsize)
        return int(found.blocks * get_current_device().MULTIPROCESSOR_COUNT)

    def inspect_sass(self) -> str:
        """Return the machine code of the nominal GPU as text."""
        return str(_machine_code(self, "get_sass"))

    def inspect_sass_cfg(self) -> str:
        """Return the control-flow graph of the machine code in the dot language."""
        return str(_machine_code(self, "get_sass_cfg"))


def _machine_code(version: KernelVersion, method: str) -> Any:
    from numba.cuda.cudadrv.driver import _have_nvjitlink

    if shutil.which("nvdisasm") is None:
        raise BackendUnavailableError(
            "nvdisasm was not found on the PATH: expected NVIDIA's disassembler; install it with: "
            "pip install nvidia-cuda-nvdisasm"
        )
    if not _have_nvjitlink():
        raise BackendUnavailableError(
            "expected NVIDIA's linker nvJitLink, which makes machine code without a GPU, but it is "
            "not installed; install it with: pip install nvidia-nvjitlink"
        )
    return getattr(version.gpu_code._codelibrary, method)()


class DeviceVersion:
    """A device function for some types of arguments.

    Attributes that it does not have itself are those of numba-cuda's compile result.

    Parameters
    ----------
    dispatcher : Dispatcher
        The function.
    signature : numba signature
        The types of its arguments and its result.

    Attributes
    ----------
    signature : numba signature
        As given.
    """

    objectmode = False

    def __init__(self, dispatcher: Dispatcher, signature: Any) -> None:
        self._dispatcher = dispatcher
        self.signature = signature

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._dispatcher.__name__}{self.signature}>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.gpu_code, name)

    @property
    def gpu_code(self) -> Any:
        """The compile result of numba-cuda."""
        return self._dispatcher.gpu_code_of(tuple(self.signature.args), self.signature.return_type)


class _VersionCacheImpl(CUDACacheImpl):  # type: ignore[misc]  # numba-cuda is not annotated
    """Stores the types of a version; the code is in the disk cache of nbrt."""

    def reduce(self, data: KernelVersion) -> Any:
        """Return what is stored for a version; raise PicklingError as numba-cuda does."""
        captured = inspect.getclosurevars(data.py_func)
        for name, value in {**captured.globals, **captured.nonlocals}.items():
            if is_device_array(value):
                raise pickle.PicklingError(
                    f"cache=True is for kernels without global device arrays, got {name}; pass the "
                    f"array as an argument"
                )
        return data.argument_types

    def rebuild(self, target_context: Any, payload: Any) -> Any:  # noqa: ARG002  # Numba's protocol
        """Return what was stored."""
        return payload


class VersionCache(CUDACache):  # type: ignore[misc]  # numba-cuda is not annotated
    """numba-cuda's index of compiled versions on disk, for ``cache=True``; it loads their types."""

    _impl_class = _VersionCacheImpl

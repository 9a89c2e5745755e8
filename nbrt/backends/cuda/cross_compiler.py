"""numba-cuda for a compute capability, without a device."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from nbrt.backends.cuda.kernel_images import KernelImage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbrt.backends.cuda.kernel_images import Target

__all__ = ["compiling_for", "cross_compile", "image_of", "link_ptx"]


def cross_compile(
    dispatcher: Any, types: tuple[Any, ...], target: Target, *, is_linked: bool
) -> KernelImage:
    """Compile a kernel for a target, within `compiling_for` this target.

    Parameters
    ----------
    dispatcher : CUDADispatcher
        The kernel.
    types : tuple of numba types
        The types of its arguments.
    target : Target
        The compute capability.
    is_linked : bool
        Whether to link machine code as well, if nvJitLink is installed.
    """
    from numba.cuda.cudadrv.driver import _have_nvjitlink
    from numba.cuda.dispatcher import _Kernel

    # Code for debugging is several modules of PTX, and its launches need numba-cuda.
    options = {**dispatcher.targetoptions, "debug": False}
    # numba-cuda appends its own files to the list.
    options["link"] = list(options.get("link") or ())
    kernel = _Kernel(dispatcher.py_func, types, **options)
    library = kernel.library
    library.get_asm_str(cc=target)
    if is_linked and _have_nvjitlink():
        library.get_cubin(cc=target)
    return image_of(kernel, target, options.get("max_registers"))


def image_of(kernel: Any, target: Target, max_registers: int | None) -> KernelImage:
    """Return the code of a compiled kernel; without machine code if that is not all it needs.

    Parameters
    ----------
    kernel : _Kernel
        numba-cuda's kernel.
    target : Target
        The compute capability that it is compiled for.
    max_registers : int or None
        Its compiler option.
    """
    library = kernel.library
    ptx, cubin = library._ptx_cache.get(target), library._cubin_cache.get(target)
    is_loadable = _is_loadable(kernel)
    return KernelImage(
        entry_name=kernel.entry_name,
        target=target,
        ptx=None if ptx is None else "\n".join(ptx),
        cubin=bytes(cubin.code) if is_loadable and cubin is not None else None,
        is_cooperative=bool(kernel.cooperative),
        is_whole=is_loadable and not (library._linking_files or library.needs_cudadevrt),
        carveout=kernel.shared_memory_carveout,
        max_registers=max_registers,
    )


def _is_loadable(kernel: Any) -> bool:
    """Return whether a kernel needs no more of numba-cuda than its code."""
    from numba.cuda.memory_management.nrt import NRT_LIBRARY

    library = kernel.library
    captured = getattr(library, "referenced_objects", {}).values()
    return not (
        kernel.launch_config_sensitive
        or library._setup_functions
        or library._teardown_functions
        or NRT_LIBRARY in library._linking_files
        or any(hasattr(each, "__cuda_array_interface__") for each in captured)
    )


def link_ptx(image: KernelImage) -> bytes:
    """Return the machine code of an image that is PTX only."""
    from numba.cuda.cudadrv.driver import _Linker

    assert image.ptx is not None
    linker = _Linker(max_registers=image.max_registers, cc=image.target, lto=False)
    linker.add_ptx(image.ptx.encode())
    return bytes(linker.complete().code)


@contextmanager
def compiling_for(target: Target) -> Iterator[None]:
    """Set the target of the code that this thread compiles in the block, without a device.

    The caller holds numba-cuda's compiler lock.

    numba-cuda asks the current device for the target of kernels and device functions
    (``_Kernel``, ``CUDADispatcher.compile_device`` and ``CUDACodeLibrary``, 0.30.4).
    """
    from numba.cuda import dispatcher
    from numba.cuda.codegen import CUDACodeLibrary

    thread = threading.get_ident()
    device_of, ensure = dispatcher.get_current_device, CUDACodeLibrary._ensure_cc

    def get_current_device() -> Any:
        if threading.get_ident() != thread:
            return device_of()
        return SimpleNamespace(compute_capability=target[:2])

    def ensure_cc(library: Any, cc: Any) -> Any:
        return target if cc is None and threading.get_ident() == thread else ensure(library, cc)

    dispatcher.get_current_device, CUDACodeLibrary._ensure_cc = get_current_device, ensure_cc
    try:
        yield
    finally:
        dispatcher.get_current_device, CUDACodeLibrary._ensure_cc = device_of, ensure

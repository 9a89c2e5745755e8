"""Kernels from the code store, loaded by the driver without numba-cuda's compiler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from nbrt.backends.cuda.driver import Driver
    from nbrt.backends.cuda.kernel_images import KernelImage

__all__ = ["LoadedFunction", "StoredKernel", "load_function"]


@dataclass(frozen=True, slots=True)
class StoredKernel:
    """The attributes of numba-cuda's ``_Kernel`` that a launch reads, without its compiler.

    Attributes
    ----------
    entry_name : str
        Its symbol.
    argument_types : tuple of numba types
        The types of its arguments.
    cooperative : bool
        Whether a launch must be cooperative.
    """

    entry_name: str
    argument_types: tuple[Any, ...]
    cooperative: bool
    debug = launch_config_sensitive = False
    extensions = ()


class FunctionAttributes(NamedTuple):
    """Limits of a loaded kernel: threads of a block, and bytes of static shared memory."""

    maxthreads: int
    shared: int


@dataclass(frozen=True, slots=True)
class LoadedFunction:
    """A kernel that the driver has loaded.

    Attributes
    ----------
    handle : CUkernel
        The kernel.
    attrs : FunctionAttributes
        Its limits.
    """

    handle: Any
    attrs: FunctionAttributes


def load_function(driver: Driver, image: KernelImage) -> LoadedFunction:
    """Load the machine code of an image; the library stays loaded until the process ends.

    A graph may refer to a kernel that nothing else refers to.
    """
    doing = f"loading {image.entry_name}"
    library = driver.call(doing, "cuLibraryLoadData", image.cubin, [], [], 0, [], [], 0)
    kernel = driver.call(doing, "cuLibraryGetKernel", library, image.entry_name.encode())
    function = driver.function_of(kernel)
    names = driver.bindings.CUfunction_attribute
    limits = (
        names.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
        names.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
    )
    attrs = [int(driver.call(doing, "cuFuncGetAttribute", name, function)) for name in limits]
    if image.carveout is not None:
        name = names.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
        driver.call(doing, "cuFuncSetAttribute", function, name, image.carveout)
    return LoadedFunction(kernel, FunctionAttributes(*attrs))

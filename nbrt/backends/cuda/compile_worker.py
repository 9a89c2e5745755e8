"""Compilation of kernels for CUDA in another process: the jobs, and their worker.

Neither needs a device. The worker compiles for a compute capability, without CUDA's driver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbrt._internal.gpus import capability_of
from nbrt.backends.by_value import dumps, loaded
from nbrt.backends.compile_jobs import CompileJob, NotStoredError, Worker, check_key
from nbrt.backends.cuda.compiler import with_defaults
from nbrt.backends.cuda.kernel_images import apply_settings, load_image, settings, target_of
from nbrt.backends.cuda.numba_compiler import NumbaSource, host_compiler

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nbrt.backends.cuda.compiler import KernelSource
    from nbrt.backends.cuda.kernel_images import Target

__all__ = ["CudaWorker", "compile_jobs", "load_dialect", "target_of", "targets_of"]


def targets_of(names: Sequence[str]) -> list[Target]:
    """Return the targets for launches on GPUs, by their names or compute capabilities.

    Raises
    ------
    ArgumentError
        If a GPU is unknown.
    """
    return list(dict.fromkeys(target_of(capability_of(name)) for name in names))


def compile_jobs(
    kernel: KernelSource | Callable[..., object],
    args: tuple[Any, ...],
    targets: Sequence[Target],
    *,
    stored: bool = False,
) -> list[CompileJob]:
    """Return the jobs for the code of a kernel for the types of arguments: one for each target.

    Parameters
    ----------
    kernel : KernelSource or callable
        The kernel, or its function.
    args : tuple
        Arguments, in which NumPy arrays stand for device arrays.
    targets : sequence of Target
        The compute capabilities.
    stored : bool
        Return jobs for code that is in the store, too.

    Returns
    -------
    list of CompileJob
        Without jobs for code that cannot be stored.

    Raises
    ------
    ArgumentTypeError
        If the number or a type of the arguments does not fit.
    """
    if callable(kernel):
        source = host_compiler().adopt(kernel)
    elif isinstance(kernel, NumbaSource):
        source = kernel.on_host()
    else:  # of another compiler, which has no code in the store
        return []
    types = source.types_of(with_defaults(source, args))
    jobs = []
    for target in targets:
        key = source.key(types, target)
        is_stored = key is not None and load_image(key) is not None
        if key is None or (is_stored and not stored):
            continue
        label = "{}({}) sm_{}{}{}".format(source.name, ", ".join(map(str, types)), *target)
        options = dict(source.options)
        payload = b""
        if not is_stored:
            payload = dumps(source.captures, key, options, types, target, settings())
        jobs.append(CompileJob("cuda", key, label, payload, is_stored))
    return jobs


def load_dialect() -> None:
    """Load what kernels can call, as numba-cuda does in its first compilation of a process."""
    from numba.cuda.descriptor import cuda_target

    cuda_target.typing_context.refresh()
    cuda_target.target_context.refresh()


class CudaWorker(Worker):
    """numba-cuda in a compile process."""

    preload = ("numba.cuda", "nbrt.backends.cuda.compile_worker:load_dialect")

    def compile(self, payload: bytes) -> str:
        """Compile for launches on devices of the job's target, and put the code into the store."""
        key: str
        with loaded(payload) as (function, key, options, types, target, values):
            apply_settings(values)
            source = host_compiler().adopt_function(function, options)
            check_key(source.key(types, target), key)
            check_key(source.compile_code(types, target), key)
        if load_image(key) is None:
            message = "the code is not in the code store"
            raise NotStoredError(message)
        return key

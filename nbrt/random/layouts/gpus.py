"""The grid size of the GPU that the torch layout follows."""

from __future__ import annotations

from nbrt._internal.gpus import GPUS, capability_of, gpu_named
from nbrt.errors import ArgumentError, ArgumentTypeError

__all__ = ["gpu_size"]

_OTHERWISE = "any other is gpu=(multiprocessors, threads per multiprocessor)"


def gpu_size(gpu: str | tuple[int, int]) -> tuple[int, int]:
    """Return the number of multiprocessors of a GPU, and the threads of each.

    Parameters
    ----------
    gpu : str or (int, int)
        A name of `nbrt._internal.gpus`, in any case and punctuation; or the two numbers.

    Raises
    ------
    ArgumentError
        If the name is unknown, or the number of multiprocessors of that GPU.
    ArgumentTypeError
        If it is neither a name nor two numbers.

    Examples
    --------
    >>> gpu_size("NVIDIA H100 80GB HBM3"), gpu_size("h100-pcie"), gpu_size((40, 1024))
    ((132, 2048), (114, 2048), (40, 1024))
    """
    if isinstance(gpu, str):
        return _size_of(gpu)
    if not (
        isinstance(gpu, tuple)
        and len(gpu) == 2
        and all(isinstance(number, int) and not isinstance(number, bool) for number in gpu)
    ):
        raise ArgumentTypeError(
            f"expected a GPU's name or (multiprocessors, threads per multiprocessor), got {gpu!r}"
        )
    count, threads = gpu
    if count < 1 or threads < 256:
        raise ArgumentError(
            f"expected at least 1 multiprocessor of at least 256 threads, got {gpu!r}"
        )
    return count, threads


def _size_of(name: str) -> tuple[int, int]:
    try:
        found = gpu_named(name)
    except ArgumentError as error:
        raise _as_size_error(name, error) from None
    if found.multiprocessors is None:
        raise ArgumentError(
            f"expected a GPU whose number of multiprocessors is known, got {name!r}; {_OTHERWISE}"
        )
    return found.multiprocessors, found.limits.threads


def _as_size_error(name: str, error: ArgumentError) -> ArgumentError:
    """Return the error for an unknown name: a compute capability has GPUs of many sizes."""
    try:
        capability = capability_of(name)
    except ArgumentError:
        return ArgumentError(f"{error}; {_OTHERWISE}")
    of_it = ", ".join(gpu.name for gpu in GPUS.values() if gpu.capability == capability)
    return ArgumentError(
        f"expected a GPU, got the compute capability {name!r}, of which there are {of_it}; "
        f"{_OTHERWISE}"
    )

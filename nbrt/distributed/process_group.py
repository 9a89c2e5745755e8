"""The world of the running rank: the communicator of all ranks of the program."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, Literal

from nbrt._internal import rank_context
from nbrt._internal.checks import checked_int
from nbrt._internal.device import Device
from nbrt.backends.registry import get_interface_for_device
from nbrt.distributed.communicators.base import DEFAULT_TIMEOUT
from nbrt.distributed.communicators.fake import FakeCommunicator
from nbrt.distributed.communicators.threads import thread_world
from nbrt.errors import ArgumentError, ArgumentTypeError, DistributedError
from nbrt.runtime.device import current_device, device_count, resolve_device

if TYPE_CHECKING:
    from nbrt.distributed.communicators.base import Communicator
    from nbrt.typing import DeviceLike

__all__ = [
    "destroy_process_group",
    "get_rank",
    "get_world_size",
    "init_process_group",
    "is_initialized",
    "join_launched",
    "world",
]

_BY_MPIEXEC = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK")
"""Environment variables of processes that mpiexec starts; one is enough."""

_BY_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Environment variables that torchrun and similar launchers set, all of them."""

_process: Communicator | None = None
_alone: Communicator | None = None
_lock = threading.Lock()


def world() -> Communicator:
    """Return the communicator of all ranks for the running rank.

    In a thread of `run` it is that of the threads; else the world of `init_process_group`; else a
    world of one rank, on the current device.

    Examples
    --------
    >>> world().size
    1
    """
    global _alone
    own: Communicator | None = rank_context.world.get()
    if own is not None:
        return own
    if _process is not None:
        return _process
    if _alone is None:
        with _lock:
            _alone = _alone or thread_world([None])[1][0]
    return _alone


def get_rank() -> int:
    """Return the running rank's number in the world."""
    return world().rank


def get_world_size() -> int:
    """Return the number of ranks in the world."""
    return world().size


def is_initialized() -> bool:
    """Return whether the running rank has a world of `run` or `init_process_group`."""
    return rank_context.world.get() is not None or _process is not None


def init_process_group(
    backend: Literal["mpi", "nccl", "fake"] | None = None,
    *,
    device: DeviceLike = None,
    timeout: float = DEFAULT_TIMEOUT,
    **options: Any,
) -> Communicator:
    """Set up the world of this process; call it once, on every rank.

    Parameters
    ----------
    backend : {"mpi", "nccl", "fake"}, optional
        The transport: MPI through mpi4py, NCCL through CuPy, or none on the devices of `nbrt.fake`,
        where ``"nccl"`` means ``"fake"``: this process is rank ``rank=`` of ``world_size=``, by
        default of one rank a device, and every other rank is taken to do the same as it. By
        default MPI if mpiexec started the process, NCCL if torchrun did or ``address=`` is given,
        else a world of one rank.
    device : Device, str, int or None
        The device of the rank's arrays. By default a device of the current type: the number of the
        rank on its machine, modulo the number of devices; in a world of one rank, the current
        device at each operation.
    timeout : float
        Seconds that a rank waits for the other ranks.
    **options
        Options of the backend: ``comm=`` of `MpiCommunicator`; ``rank=``, ``world_size=``,
        ``address=`` or ``bootstrap=`` of `NcclCommunicator`.

    Raises
    ------
    DistributedError
        If the process has a world already.
    """
    global _process
    with _lock:
        if is_initialized():
            raise DistributedError(
                "expected a process without a world, got one that has it; call "
                "destroy_process_group first"
            )
        _process = _connect(backend, device, timeout, options)
        return _process


def join_launched(kind: str) -> None:
    """Set up the world of a process that a launcher started, unless it has one.

    Parameters
    ----------
    kind : str
        Type of the devices. Processes that torchrun starts for devices with host memory, which have
        no transport, stay in worlds of one rank.
    """
    backend = None if is_initialized() else _launched_for({})
    if backend is None:
        return
    on_host = get_interface_for_device(kind).capabilities.host_addressable
    if backend == "mpi" or not on_host:
        init_process_group(backend)


def destroy_process_group() -> None:
    """Close the world of `init_process_group`; the process is a world of one rank again.

    Raises
    ------
    DistributedError
        On a rank of `run`, whose world ends with it.
    """
    global _process
    if rank_context.world.get() is not None:
        raise DistributedError(
            "expected a process that init_process_group was called in, got a rank of "
            "nbrt.distributed.run, whose world ends with its function"
        )
    with _lock:
        leaving, _process = _process, None
    close = getattr(leaving, "close", None)
    if close is not None:
        close()


def _connect(
    backend: str | None, device: DeviceLike, timeout: float, options: dict[str, Any]
) -> Communicator:
    fake = _fake_world(backend, device, timeout, options)
    if fake is not None:
        return fake
    if backend is None:
        backend = _launched_for(options)
    if backend is None:
        _check_no_options(options)
        own = None if device is None else resolve_device(device)
        return thread_world([own], timeout)[1][0]
    if backend == "mpi":
        from nbrt.distributed.communicators.mpi import MpiCommunicator

        return MpiCommunicator(device=device, timeout=timeout, **options)
    if backend == "nccl":
        from nbrt.distributed.communicators.nccl import NcclCommunicator

        return NcclCommunicator(device=device, timeout=timeout, **options)
    raise ArgumentError(
        f"expected backend 'mpi' or 'nccl', got {backend!r}; for ranks as threads use "
        f"nbrt.distributed.run"
    )


def _fake_world(
    backend: str | None, device: DeviceLike, timeout: float, options: dict[str, Any]
) -> Communicator | None:
    """Return the world of a rank on a fake device; None if its device is real, or it is alone."""
    kind = current_device().kind if device is None else resolve_device(device).kind
    if get_interface_for_device(kind).capabilities.computes:
        if backend == "fake":
            raise ArgumentError(
                f"expected a fake device for backend 'fake', got {kind}; enter nbrt.fake first"
            )
        return None
    is_launched = backend is None and _launched_for(options) is not None
    if not (backend in ("fake", "nccl") or is_launched):
        return None
    count = device_count(kind)
    size = _option(options, "world_size", "WORLD_SIZE", count)
    rank = _option(options, "rank", "RANK", 0)
    if not 0 <= rank < size:
        raise ArgumentError(f"expected a rank below the world size {size}, got {rank}")
    own = Device(kind, rank % count) if device is None else resolve_device(device)
    return FakeCommunicator(own, rank, tuple(range(size)), timeout)


def _option(options: dict[str, Any], name: str, variable: str, default: int) -> int:
    value = options.get(name)
    if value is None:
        return int(os.environ.get(variable, default))
    return checked_int(name, value)


def _launched_for(options: dict[str, Any]) -> Literal["mpi", "nccl"] | None:
    """Return the backend of the launcher that started this process."""
    if any(name in os.environ for name in _BY_MPIEXEC):
        return "mpi"
    if "address" in options or all(name in os.environ for name in _BY_TORCHRUN):
        return "nccl"
    return None


def _check_no_options(options: dict[str, Any]) -> None:
    if options:
        raise ArgumentTypeError(
            f"expected no options for a world of one rank, got {sorted(options)}"
        )

"""Settings: read once from ``NBRT_*`` environment variables, overridable for a block of code.

The table of variables is in ``docs/environment_variables.md``; a test holds the two together.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, overload

from nbrt.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["Settings", "interprets", "override", "settings"]

_MAX_CPU_DEVICES = 64
_CACHE_LIMIT = 512 * 2**20
_DEADLOCK_TIMEOUT = 10
_EXIT_TIMEOUT = 5.0
_STALE_CAPTURES = ("recompile", "warn")


@dataclass(frozen=True, slots=True)
class Settings:
    """Every setting of nbrt, with its default.

    Attributes
    ----------
    device : str or None
        The default device (``NBRT_DEVICE``); None: cuda if one works, else cpu.
    cpu_devices : int
        Number of virtual CPU devices (``NBRT_CPU_DEVICES``), 1 to 64. Read when the cpu backend
        initialises; each has its own streams, memory pool and generator.
    cpu_threads : int
        OS threads that share the blocks of one launch on a CPU device (``NBRT_CPU_THREADS``);
        0: as many as the process may use.
    cpu_memory_limit : int
        Bytes each CPU device may hold (``NBRT_CPU_MEMORY_LIMIT``); 0: no limit of ours.
    cache_dir : str or None
        Folder of compiled kernels (``NBRT_CACHE_DIR``); None: the user's cache folder.
    cache_limit : int
        Bytes that compiled kernels may take there (``NBRT_CACHE_LIMIT``); those not used for
        longest are deleted. 0: no limit.
    exit_timeout : float
        Seconds that a launch on a CPU stream may still run when the interpreter ends
        (``NBRT_EXIT_TIMEOUT``); after them it is stopped, with a warning.
    interpret : bool
        Whether kernels on CPU devices run in plain Python, for debuggers (``NBRT_INTERPRET``).
    interpret_block, interpret_thread : tuple of (int, int, int)
        The thread in which ``breakpoint()`` then stops (``NBRT_INTERPRET_BLOCK``,
        ``NBRT_INTERPRET_THREAD``), as (x, y, z).
    check : bool
        Kernels are made in checked mode (``NBRT_CHECK``, 0 or 1).
    check_seed : int or None
        Shuffles blocks and threads of checked launches (``NBRT_CHECK_SEED``); None: in order.
    deadlock_timeout : int
        Seconds for which the threads of a kernel on a CPU device may all wait without any memory
        changing (``NBRT_DEADLOCK_TIMEOUT``) before the launch fails: another stream or the host may
        still write what they wait for.
    distributed_check : bool
        Ranks of MPI and NCCL compare what they came to before each operation, and ranks of any
        kind the states of their generators before each draw and, after one, whether all could
        (``NBRT_DISTRIBUTED_CHECK``, 0 or 1); alike on all ranks.
    mpi_cuda_aware : bool or None
        Whether MPI reads GPU memory (``NBRT_MPI_CUDA_AWARE``, 0 or 1); None: what MPI says.
    stale_captures : str
        What a launch does after a global, closure variable or device function of the kernel has
        changed (``NBRT_STALE_CAPTURES``): ``"recompile"``, or ``"warn"``, once, and go on with the
        values of the first launch, as Numba does silently.
    """

    device: str | None = None
    cpu_devices: int = 1
    cpu_threads: int = 0
    cpu_memory_limit: int = 0
    cache_dir: str | None = None
    cache_limit: int = _CACHE_LIMIT
    exit_timeout: float = _EXIT_TIMEOUT
    check: bool = False
    check_seed: int | None = None
    deadlock_timeout: int = _DEADLOCK_TIMEOUT
    distributed_check: bool = False
    mpi_cuda_aware: bool | None = None
    stale_captures: str = "recompile"
    interpret: bool = False
    interpret_block: tuple[int, int, int] = (0, 0, 0)
    interpret_thread: tuple[int, int, int] = (0, 0, 0)

    def __post_init__(self) -> None:
        for name, value in (("NBRT_DEVICE", self.device), ("NBRT_CACHE_DIR", self.cache_dir)):
            if value is not None and not isinstance(value, str):
                raise ArgumentError(f"expected {name} to be a str or None, got {value!r}")
        if not isinstance(self.check, bool):
            raise ArgumentError(f"expected NBRT_CHECK to be 0 or 1, got {self.check!r}")
        if not isinstance(self.distributed_check, bool):
            raise ArgumentError(
                f"expected NBRT_DISTRIBUTED_CHECK to be 0 or 1, got {self.distributed_check!r}"
            )
        if not isinstance(self.mpi_cuda_aware, bool | None):
            raise ArgumentError(
                f"expected NBRT_MPI_CUDA_AWARE to be 0 or 1, got {self.mpi_cuda_aware!r}"
            )
        if self.stale_captures not in _STALE_CAPTURES:
            raise ArgumentError(
                f"expected NBRT_STALE_CAPTURES to be recompile or warn, got {self.stale_captures!r}"
            )
        if self.check_seed is not None:
            _check_range("NBRT_CHECK_SEED", self.check_seed, 0, 2**63 - 1)
        _check_range("NBRT_DEADLOCK_TIMEOUT", self.deadlock_timeout, 0, 10**6)
        _check_range("NBRT_CPU_DEVICES", self.cpu_devices, 1, _MAX_CPU_DEVICES)
        _check_range("NBRT_CPU_THREADS", self.cpu_threads, 0, 1024)
        _check_range("NBRT_CPU_MEMORY_LIMIT", self.cpu_memory_limit, 0, 2**62)
        _check_range("NBRT_CACHE_LIMIT", self.cache_limit, 0, 2**62)
        timeout = self.exit_timeout
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout >= 0:
            raise ArgumentError(f"expected NBRT_EXIT_TIMEOUT to be seconds, got {timeout!r}")
        if not isinstance(self.interpret, bool):
            raise ArgumentError(f"expected NBRT_INTERPRET to be 0 or 1, got {self.interpret!r}")
        _check_index("NBRT_INTERPRET_BLOCK", self.interpret_block)
        _check_index("NBRT_INTERPRET_THREAD", self.interpret_thread)


in_force: Settings | None = None
"""What `settings` returns; None before its first call. Hot paths compare it, to save the call."""

interprets: bool = False
"""The setting `interpret`, for launches, which read it without a call."""


def settings() -> Settings:
    """Return the settings in force.

    Raises
    ------
    ArgumentError
        If an ``NBRT_*`` variable has a value that its setting does not accept.
    """
    # Every launch asks: one test, no further call.
    return in_force if in_force is not None else _read()


@contextmanager
def override(**changes: object) -> Iterator[Settings]:
    """Put other settings in force for a block, for the whole process.

    Parameters
    ----------
    **changes
        Fields of `Settings` and their values.

    Yields
    ------
    Settings
        The settings in force inside the block.

    Examples
    --------
    >>> with override(cpu_threads=1):
    ...     settings().cpu_threads
    1
    """
    unknown = sorted(set(changes) - {field.name for field in fields(Settings)})
    if unknown:
        raise ArgumentError(
            f"expected settings among {sorted(field.name for field in fields(Settings))}, "
            f"got {unknown}"
        )
    before = settings()
    try:
        yield _put_in_force(replace(before, **changes))  # type: ignore[arg-type]  # checked there
    finally:
        _put_in_force(before)


def _read() -> Settings:
    """Read the environment, once for the process."""
    return _put_in_force(_parse(os.environ))


def _put_in_force(chosen: Settings) -> Settings:
    global in_force, interprets
    in_force, interprets = chosen, chosen.interpret
    return chosen


def _parse(environment: Mapping[str, str]) -> Settings:
    return Settings(
        device=environment.get("NBRT_DEVICE") or None,
        cpu_devices=_integer(environment, "NBRT_CPU_DEVICES", 1),
        cpu_threads=_integer(environment, "NBRT_CPU_THREADS", 0),
        cpu_memory_limit=_integer(environment, "NBRT_CPU_MEMORY_LIMIT", 0),
        cache_dir=environment.get("NBRT_CACHE_DIR") or None,
        cache_limit=_integer(environment, "NBRT_CACHE_LIMIT", _CACHE_LIMIT),
        exit_timeout=_seconds(environment, "NBRT_EXIT_TIMEOUT", _EXIT_TIMEOUT),
        check=_flag(environment, "NBRT_CHECK"),
        check_seed=_integer(environment, "NBRT_CHECK_SEED", None),
        deadlock_timeout=_integer(environment, "NBRT_DEADLOCK_TIMEOUT", _DEADLOCK_TIMEOUT),
        distributed_check=_flag(environment, "NBRT_DISTRIBUTED_CHECK"),
        mpi_cuda_aware=(
            _flag(environment, "NBRT_MPI_CUDA_AWARE")
            if environment.get("NBRT_MPI_CUDA_AWARE", "").strip()
            else None
        ),
        stale_captures=environment.get("NBRT_STALE_CAPTURES", "").strip() or "recompile",
        interpret=_flag(environment, "NBRT_INTERPRET"),
        interpret_block=_index(environment, "NBRT_INTERPRET_BLOCK"),
        interpret_thread=_index(environment, "NBRT_INTERPRET_THREAD"),
    )


def _flag(environment: Mapping[str, str], name: str) -> bool:
    text = environment.get(name, "").strip()
    if text not in ("", "0", "1"):
        raise ArgumentError(f"expected {name} to be 0 or 1, got {text!r}")
    return text == "1"


def _seconds(environment: Mapping[str, str], name: str, default: float) -> float:
    text = environment.get(name, "").strip()
    try:
        return float(text) if text else default
    except ValueError:
        raise ArgumentError(f"expected {name} to be seconds, got {text!r}") from None


@overload
def _integer(environment: Mapping[str, str], name: str, default: int) -> int: ...
@overload
def _integer(environment: Mapping[str, str], name: str, default: None) -> int | None: ...
def _integer(environment: Mapping[str, str], name: str, default: int | None) -> int | None:
    text = environment.get(name, "").strip()
    if not text:
        return default
    try:
        return int(text)
    except ValueError:
        raise ArgumentError(f"expected {name} to be an integer, got {text!r}") from None


def _index(environment: Mapping[str, str], name: str) -> tuple[int, int, int]:
    text = environment.get(name, "").strip().strip("()")
    parts = [part.strip() for part in text.split(",")] if text else []
    if len(parts) > 3 or not all(part.isdecimal() for part in parts):
        raise ArgumentError(f"expected {name} to be x, or x,y or x,y,z, got {text!r}")
    x, y, z = (*map(int, parts), 0, 0, 0)[:3]
    return x, y, z


def _check_index(name: str, value: object) -> None:
    is_index = isinstance(value, tuple) and len(value) == 3
    if not is_index or any(type(each) is not int or each < 0 for each in value):  # type: ignore[attr-defined]  # a tuple then
        raise ArgumentError(f"expected {name} to be three ints (x, y, z) from 0 on, got {value!r}")


def _check_range(name: str, value: object, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ArgumentError(f"expected {name} to be an integer in [{low}, {high}], got {value!r}")

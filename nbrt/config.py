"""Settings: read once from ``NBRT_*`` environment variables, overridable for a block of code.

The table of variables is in ``docs/environment_variables.md``; a test compares the two.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from nbrt.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["Settings", "interprets", "is_async", "override", "put_in_force", "settings"]

_MAX_CPU_DEVICES = 64


@dataclass(frozen=True, slots=True)
class Settings:
    """Every setting of nbrt, with its default.

    Attributes
    ----------
    device : str or None
        The default device (``NBRT_DEVICE``); None: cuda if one works, else cpu.
    cpu : str or None
        LLVM's name of the CPU that kernels compile for (``NBRT_CPU``), such as ``"x86-64-v3"``;
        None: this machine's. Read when the cpu backend initialises.
    cpu_devices : int
        Number of virtual CPU devices (``NBRT_CPU_DEVICES``), 1 to 64. Read when the cpu backend
        initialises; each has its own streams, memory pool and generator.
    cpu_threads : int
        OS threads that share the blocks of one launch on a CPU device (``NBRT_CPU_THREADS``);
        0: as many as the process may use.
    cpu_memory_limit : int
        Bytes that each CPU device may hold (``NBRT_CPU_MEMORY_LIMIT``); 0: no limit.
    cache_dir : str or None
        Folder of compiled kernels (``NBRT_CACHE_DIR``); None: the user's cache folder.
    cache_limit : int
        Bytes of that folder (``NBRT_CACHE_LIMIT``); the least recently used kernels are deleted.
        0: no limit.
    exit_timeout : float
        Seconds that a launch on a CPU stream may still run when the interpreter ends
        (``NBRT_EXIT_TIMEOUT``); then it is stopped with a warning.
    interpret : bool
        Whether kernels on CPU devices run in plain Python, for debuggers (``NBRT_INTERPRET``).
    interpret_block, interpret_thread : tuple of (int, int, int)
        The thread in which ``breakpoint()`` stops in this mode (``NBRT_INTERPRET_BLOCK``,
        ``NBRT_INTERPRET_THREAD``), as (x, y, z).
    async_ : bool
        Whether a launch whose kernel is not compiled yet is queued, and compiled in another process
        while the caller goes on (``NBRT_ASYNC``, 0 or 1); not with `interpret`.
    check : bool
        Whether kernels run in checked mode (``NBRT_CHECK``, 0 or 1).
    check_seed : int or None
        Shuffles blocks and threads of checked launches (``NBRT_CHECK_SEED``); None: in order.
    compile_workers : int or None
        Processes that compile kernels (``NBRT_COMPILE_WORKERS``); 0: kernels compile in the process
        that asks, for debuggers. None: as many as the process may use CPUs, at most 32.
    deadlock_timeout : int
        Seconds for which all threads of a kernel on a CPU device may wait for another stream or the
        host to change memory, before the launch fails (``NBRT_DEADLOCK_TIMEOUT``).
    distributed_check : bool
        Whether ranks of MPI and NCCL compare their operations before each one, and ranks of any
        kind the states of their generators before each draw and its success afterwards
        (``NBRT_DISTRIBUTED_CHECK``, 0 or 1); the same on all ranks.
    numba_cuda : bool
        Whether programs for ``numba.cuda`` run on nbrt from the start of the interpreter
        (``NBRT_NUMBA_CUDA``, 0 or 1); see `nbrt.compat.numba_cuda`.
    mpi_cuda_aware : bool or None
        Whether MPI reads GPU memory (``NBRT_MPI_CUDA_AWARE``, 0 or 1); None: as MPI reports.
    stale_captures : str
        The effect of a changed global, closure variable or device function of a kernel on its next
        launch (``NBRT_STALE_CAPTURES``): ``"recompile"``, or ``"warn"`` once and use the values of
        the first launch, as Numba does without a warning.
    """

    device: str | None = None
    cpu: str | None = None
    cpu_devices: int = 1
    cpu_threads: int = 0
    cpu_memory_limit: int = 0
    cache_dir: str | None = None
    cache_limit: int = 512 * 2**20
    exit_timeout: float = 5.0
    async_: bool = False
    check: bool = False
    check_seed: int | None = None
    compile_workers: int | None = None
    deadlock_timeout: int = 10
    distributed_check: bool = False
    numba_cuda: bool = False
    mpi_cuda_aware: bool | None = None
    stale_captures: str = "recompile"
    interpret: bool = False
    interpret_block: tuple[int, int, int] = (0, 0, 0)
    interpret_thread: tuple[int, int, int] = (0, 0, 0)

    def __post_init__(self) -> None:
        for field in fields(self):
            value, rule = getattr(self, field.name), _RULES[field.name]
            if not rule.accepts(value) and (value is not None or field.default is not None):
                raise ArgumentError(
                    f"expected {_variable(field.name)} to be {rule.expected}, got {value!r}"
                )


@dataclass(frozen=True, slots=True)
class _Rule:
    """The values of a setting: their text, their parser and their check."""

    expected: str
    parse: Callable[[str], object]
    accepts: Callable[[Any], bool]


def _integer(low: int, high: int) -> _Rule:
    def accepts(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high

    return _Rule(f"an integer in [{low}, {high}]", int, accepts)


def _parse_index(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.strip("()").split(",")]
    if len(parts) > 3 or not all(part.isdecimal() for part in parts):
        raise ValueError
    return (*map(int, parts), 0, 0, 0)[:3]


def _is_index(value: Any) -> bool:
    is_triple = isinstance(value, tuple) and len(value) == 3
    return is_triple and all(type(size) is int and size >= 0 for size in value)


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


_TEXT = _Rule("a str or None", str, lambda value: isinstance(value, str))
_FLAG = _Rule("0 or 1", lambda text: {"0": False, "1": True}[text], lambda v: isinstance(v, bool))
_INDEX = _Rule("x, or x,y or x,y,z, each 0 or more", _parse_index, _is_index)
_RULES = {
    "device": _TEXT,
    "cpu": _TEXT,
    "cpu_devices": _integer(1, _MAX_CPU_DEVICES),
    "cpu_threads": _integer(0, 1024),
    "cpu_memory_limit": _integer(0, 2**62),
    "cache_dir": _TEXT,
    "cache_limit": _integer(0, 2**62),
    "exit_timeout": _Rule("seconds, 0 or more", float, _is_time),
    "async_": _FLAG,
    "check": _FLAG,
    "check_seed": _integer(0, 2**63 - 1),
    "compile_workers": _integer(0, 1024),
    "deadlock_timeout": _integer(0, 10**6),
    "distributed_check": _FLAG,
    "numba_cuda": _FLAG,
    "mpi_cuda_aware": _FLAG,
    "stale_captures": _Rule("recompile or warn", str, ("recompile", "warn").__contains__),
    "interpret": _FLAG,
    "interpret_block": _INDEX,
    "interpret_thread": _INDEX,
}


def _variable(name: str) -> str:
    return f"NBRT_{name.upper().rstrip('_')}"


in_force: Settings | None = None
"""The result of `settings`; None before its first call. Hot paths read it to save the call."""

is_async: bool = False
"""The setting `async_`, without `interpret`, for launches."""

interprets: bool = False
"""The setting `interpret`, for launches, which read it without a call."""


def settings() -> Settings:
    """Return the settings in force.

    Raises
    ------
    ArgumentError
        If an ``NBRT_*`` variable has a value that its setting does not accept.
    """
    # Each launch calls this: one test, no further call.
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
    before = settings()
    try:
        yield put_in_force(**changes)
    finally:
        _put_in_force(before)


def put_in_force(**changes: object) -> Settings:
    """Put other settings in force for the rest of the process; see `override`."""
    unknown = sorted(set(changes) - {field.name for field in fields(Settings)})
    if unknown:
        raise ArgumentError(
            f"expected settings among {sorted(field.name for field in fields(Settings))}, "
            f"got {unknown}"
        )
    return _put_in_force(replace(settings(), **changes))  # type: ignore[arg-type]  # checked there


def _read() -> Settings:
    """Read the environment, once for the process."""
    return _put_in_force(_parse(os.environ))


def _put_in_force(chosen: Settings) -> Settings:
    global in_force, interprets, is_async
    in_force, interprets = chosen, chosen.interpret
    is_async = chosen.async_ and not chosen.interpret
    return chosen


def _parse(environment: Mapping[str, str]) -> Settings:
    values: dict[str, Any] = {}
    for name, rule in _RULES.items():
        text = environment.get(_variable(name), "")
        if rule is not _TEXT:
            text = text.strip()
        if text:
            try:
                values[name] = rule.parse(text)
            except (ValueError, KeyError):
                raise ArgumentError(
                    f"expected {_variable(name)} to be {rule.expected}, got {text!r}"
                ) from None
    return Settings(**values)

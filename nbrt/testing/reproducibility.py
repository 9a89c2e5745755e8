"""`check_reproducible`: repeats code elsewhere and compares the bits of its draws."""

from __future__ import annotations

import copy
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from nbrt.backends.cpu.block_scheduler import get_num_threads, set_num_threads
from nbrt.errors import ArgumentError, BackendUnavailableError, NbrtError
from nbrt.random import audit
from nbrt.random.defaults import DEFAULT_SEED, fork_rng, manual_seed_all
from nbrt.runtime.device import current_device, device_count, is_available, resolve_device
from nbrt.runtime.guard import DeviceGuard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from nbrt._internal.device import Device
    from nbrt.random.generator import Generator
    from nbrt.typing import DeviceLike

__all__ = ["NotReproducibleError", "Reproducibility", "check_reproducible"]


class NotReproducibleError(NbrtError, AssertionError):
    """Code drew different bits on another device, thread count or sharding, or drew nothing."""


class Reproducibility(NamedTuple):
    """The result of a successful check; ``str`` returns a summary.

    Attributes
    ----------
    draws : int
        Draws of each run.
    runs : tuple of str
        Devices and thread counts of the runs.
    replayed : int
        Draws repeated in shards. Draws with array parameters or a user-defined layout are not.
    missing : tuple of str
        Requested devices that are unavailable, with the reasons.
    """

    draws: int
    runs: tuple[str, ...]
    replayed: int
    missing: tuple[str, ...]

    def __str__(self) -> str:
        if not self.runs:
            return "run nowhere"
        return (
            f"{self.draws} draws gave equal bits on {', '.join(self.runs)}; {self.replayed} of "
            f"them in shards as well"
        )


class _Run(NamedTuple):
    device: Device
    threads: int

    def __str__(self) -> str:
        return f"{self.device} with {self.threads} thread{'s' if self.threads > 1 else ''}"


def check_reproducible(
    function: Callable[[], object],
    *,
    devices: Iterable[DeviceLike] | None = None,
    threads: Sequence[int] = (1, 2),
    shards: Iterable[int] = (1, 3),
    generators: Iterable[Generator] = (),
) -> Reproducibility:
    """Call a function several times and check that it draws the same bits each time.

    Every call starts with the same default generators, on another current device or with another
    number of CPU threads. Afterwards each draw of the first call is repeated in shards.

    Parameters
    ----------
    function : callable
        The function; called at least twice.
    devices : iterable of Device, str or int, optional
        The current devices; by default all CPU and CUDA devices, the current one first.
    threads : sequence of int
        Numbers of threads of a launch on a CPU device.
    shards : iterable of int
        Numbers of shards of the repeated draws.
    generators : iterable of Generator
        Generators that are reset to their state before each call.

    Returns
    -------
    result : Reproducibility
        The result; without runs if no device is available.

    Raises
    ------
    NotReproducibleError
        If bits differ, or nothing was drawn. The message is the report of `audit.compare`.
    ArgumentError
        If `devices` or `threads` is empty.
    """
    available, missing = _devices(devices)
    if not threads or not (available or missing):
        raise ArgumentError(
            f"expected devices and numbers of threads, got {devices!r} and {threads!r}"
        )
    if not available:
        return Reproducibility(0, (), 0, tuple(missing))
    runs = _runs(available, threads)
    recordings = _recordings(function, runs, list(generators))
    for run, recording in zip(runs[1:], recordings[1:], strict=True):
        names = (str(runs[0]), str(run))
        difference = audit.compare(recordings[0], recording, names=names)
        if difference is not None:
            raise NotReproducibleError(str(difference))
    draws = recordings[0].draws
    if not draws:
        raise NotReproducibleError("expected random draws to compare, got none")
    replayed = _check_shards(draws, tuple(shards))
    return Reproducibility(len(draws), tuple(map(str, runs)), replayed, tuple(missing))


def _devices(wanted: Iterable[DeviceLike] | None) -> tuple[list[Device], list[str]]:
    """Return the available devices, and the reasons for others."""
    if wanted is None:
        every = [
            resolve_device(f"{kind}:{index}")
            for kind in ("cpu", "cuda")
            if is_available(kind)
            for index in range(device_count(kind))
        ]
        return sorted(every, key=lambda device: device != current_device()), []
    available, missing = [], []
    for each in wanted:
        try:
            available.append(resolve_device(each))
        except BackendUnavailableError as error:
            missing.append(f"{each}: {error}")
    return available, missing


def _runs(devices: list[Device], threads: Sequence[int]) -> list[_Run]:
    """Return each device once, the first with each number of threads; at least two runs."""
    runs = [_Run(device, threads[0]) for device in devices]
    if devices[0].kind == "cpu":
        runs += [_Run(devices[0], count) for count in threads[1:]]
    return runs if len(runs) > 1 else runs * 2


def _recordings(
    function: Callable[[], object], runs: list[_Run], generators: list[Generator]
) -> list[audit.Recording]:
    """Call the function once for each run, from the same generator states."""
    states = [(each, each.state, each._position.sequence) for each in generators]
    recordings = []
    with tempfile.TemporaryDirectory() as folder:
        for number, run in enumerate(runs):
            for generator, state, sequence in states:
                generator.state = state
                generator._position.sequence = copy.deepcopy(sequence)
            recordings.append(_recorded(function, run, Path(folder) / f"{number}.jsonl"))
    return recordings


def _recorded(function: Callable[[], object], run: _Run, path: Path) -> audit.Recording:
    try:
        with _cpu_threads(run.threads), fork_rng(), DeviceGuard(run.device):
            manual_seed_all(DEFAULT_SEED)
            with audit.record(path, digests=True):
                function()
    except Exception as error:
        error.add_note(f"raised when run on {run}")
        raise
    return audit.load(path)


@contextmanager
def _cpu_threads(count: int) -> Iterator[None]:
    before = get_num_threads()
    set_num_threads(count)
    try:
        yield
    finally:
        set_num_threads(before)


def _check_shards(draws: Iterable[audit.DrawRecord], shards: tuple[int, ...]) -> int:
    """Repeat the replayable draws in shards; return their number."""
    checked = 0
    for draw in draws:
        if not draw.replayable or draw.digest is None:
            continue
        for pieces in shards:
            if audit.digest(audit.replay(draw, pieces=pieces)) != draw.digest:
                stack = "".join(f"\n    {line}" for line in draw.stack)
                raise NotReproducibleError(f"other bits in {pieces} shards: {draw}{stack}")
        checked += 1
    return checked

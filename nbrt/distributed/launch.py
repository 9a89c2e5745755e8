"""`run`: calls a function on several ranks that are threads of this process."""

from __future__ import annotations

import contextvars
import inspect
import threading
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from nbrt._internal import clock
from nbrt._internal import rank_context as context
from nbrt._internal.checks import as_int
from nbrt._internal.device import Device
from nbrt.distributed.communicators.base import DEFAULT_TIMEOUT
from nbrt.distributed.communicators.signatures import describe_error
from nbrt.distributed.communicators.threads import thread_world
from nbrt.errors import ArgumentError, ArgumentTypeError, DistributedError, RankFailedError
from nbrt.random.defaults import default_generator, isolated_default_generators
from nbrt.runtime.device import current_device, device_count
from nbrt.runtime.guard import DeviceGuard

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.distributed.communicators.thread_rendezvous import ThreadWorld
    from nbrt.distributed.communicators.threads import ThreadCommunicator

__all__ = ["run"]

_MAX_RANKS = 4096


def run(
    function: Callable[..., Any],
    *args: Any,
    ranks: int,
    device_type: str | None = None,
    timeout: float = DEFAULT_TIMEOUT,
) -> list[Any]:
    """Call a function on several ranks, each a thread of this process, and return their results.

    A rank has the state of a process: a number in the world, a current device, meshes, trackers and
    default generators. The default generator of each rank's device starts in the state of the
    caller's, so all ranks agree. ``nbrt.manual_seed`` before `run` seeds all ranks; inside
    a rank it seeds that rank only. Draws of ranks do not move the caller's state. A thread that a
    rank starts belongs to the process, unless it runs in a copy of the rank's context, by
    ``contextvars.copy_context().run`` or ``asyncio.to_thread``.

    Parameters
    ----------
    function : callable
        Called as ``function(*args)`` on each rank; `get_rank` returns the rank inside.
    *args
        Its arguments, shared by the ranks.
    ranks : int
        Number of ranks.
    device_type : str, optional
        Type of the devices, by default that of the current device. Rank k gets device k modulo
        their number.
    timeout : float
        Seconds that a rank waits for the other ranks in a collective operation.

    Returns
    -------
    results : list
        The result of each rank.

    Raises
    ------
    Exception
        The exception of the first rank that fails, with notes of the rank and of other exceptions.
        The other ranks raise `RankFailedError` in their next collective operation.
    DistributedError
        If ranks still run `timeout` seconds after a rank failed.

    Examples
    --------
    >>> import nbrt.distributed as dist
    >>> dist.run(lambda: dist.get_rank() ** 2, ranks=4)
    [0, 1, 4, 9]
    """
    _check_function(function)
    devices = _devices(ranks, device_type)
    world, members = thread_world(devices, timeout)
    ended: SimpleQueue[_Rank] = SimpleQueue()
    # Ranks on different devices agree: all start in the state of the caller.
    here = current_device()
    start = default_generator(here if here.kind == devices[0].kind else devices[0])._position.mark()
    runs = [_Rank(world, member, ended, function, args, start) for member in members]
    _start_and_join(world, runs, ended, members[0].timeout)
    _raise_failures(world, runs)
    return [each.result for each in runs]


def _check_function(function: object) -> None:
    if not callable(function) or inspect.iscoroutinefunction(function):
        raise ArgumentTypeError(
            f"expected a function to run, which may call asyncio.run itself, got {function!r}"
        )


def _devices(ranks: Any, device_type: str | None) -> list[Device]:
    number = as_int(ranks)
    if number is None:
        raise ArgumentTypeError(f"expected ranks as an int, got {ranks!r}")
    if not 1 <= number <= _MAX_RANKS:
        raise ArgumentError(f"expected from 1 to {_MAX_RANKS} ranks, got {number}")
    kind = current_device().kind if device_type is None else device_type
    if not isinstance(kind, str):
        raise ArgumentTypeError(f"expected device_type as a str, got {kind!r}")
    count = device_count(kind)
    if not count:
        raise ArgumentError(f"expected a kind that has devices, got {kind!r}")
    return [Device(kind, rank % count) for rank in range(number)]


class _Rank:
    """The thread of a rank, and its outcome."""

    def __init__(
        self,
        world: ThreadWorld,
        member: ThreadCommunicator,
        ended: SimpleQueue[_Rank],
        function: Callable[..., Any],
        args: tuple[Any, ...],
        start: Any,
    ) -> None:
        self.member = member
        self.result: Any = None
        self.error: BaseException | None = None
        self._world = world
        self._ended = ended
        self._work = (function, args)
        self._start = start
        # Ranks inherit the guards and settings of the caller.
        around = contextvars.copy_context()
        self.thread = threading.Thread(
            target=around.run, args=(self._run,), name=f"nbrt rank {member.rank}", daemon=True
        )

    def _run(self) -> None:
        function, args = self._work
        context.world.set(self.member)
        context.mesh_stack.set(())
        context.meshes.set({})
        context.tracker.set(None)
        self._world.begin(self.member.rank)
        try:
            with DeviceGuard(self.member.device), isolated_default_generators():
                default_generator()._position.rewind(self._start)
                self.result = function(*args)
        except BaseException as error:  # noqa: BLE001  # the caller raises it
            self.error = error
            self._world.fail(self.member.rank, error)
        else:
            self._world.end(self.member.rank)
        finally:
            self._ended.put(self)


def _start_and_join(
    world: ThreadWorld, runs: list[_Rank], ended: SimpleQueue[_Rank], grace: float
) -> None:
    busy = {each.member.rank for each in runs}
    deadline = None
    try:
        for each in runs:
            each.thread.start()
        while busy:
            left = None if deadline is None else deadline - clock.monotonic()
            each = clock.get(ended, left)
            each.thread.join()
            busy.discard(each.member.rank)
            if deadline is None and world.failure is not None:
                deadline = clock.monotonic() + grace
    except Empty:
        assert world.failure is not None
        rank, failure = world.failure
        raise DistributedError(
            f"rank {rank} ended with {describe_error(failure)}, and ranks {sorted(busy)} are still "
            f"busy {grace:g} s later; they continue in the background"
        ) from failure
    except BaseException as error:
        world.fail(-1, error)
        raise


def _raise_failures(world: ThreadWorld, runs: list[_Rank]) -> None:
    """Raise the first failure; ignore errors that only report another rank's failure."""
    if world.failure is None:
        return
    first, error = world.failure
    error.add_note(f"raised by rank {first} of {len(runs)}")
    others: dict[str, list[int]] = {}
    for rank, each in enumerate(runs):
        if rank != first and each.error and not isinstance(each.error, RankFailedError):
            others.setdefault(describe_error(each.error), []).append(rank)
    for what, ranks in others.items():
        raised = "the same" if what == describe_error(error) else what
        error.add_note(f"rank{'s' * (len(ranks) > 1)} {str(ranks)[1:-1]} raised {raised}")
    raise error

"""`RNGStateTracker`: named streams, and regions in which ranks draw together."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakKeyDictionary

from nbrt import config
from nbrt._internal import rank_context
from nbrt.distributed.consistency import check_equal_states
from nbrt.distributed.process_group import world
from nbrt.distributed.random.named_position import NamedPosition
from nbrt.distributed.spec import checked_spec
from nbrt.errors import ArgumentError, ArgumentTypeError, DeviceMismatchError, PlacementError
from nbrt.index_sets import Region
from nbrt.random.defaults import checked_generator, default_generator
from nbrt.random.generator import Generator
from nbrt.random.state import PhiloxState, checked_seed
from nbrt.runtime.stream import current_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from nbrt.distributed.communicators.base import Communicator
    from nbrt.distributed.spec import DTensorSpec
    from nbrt.runtime.capturing import Capture
    from nbrt.typing import DeviceLike

__all__ = [
    "MODEL_PARALLEL",
    "RNGStateTracker",
    "SingleDeviceRNGTracker",
    "current_tracker",
    "rewind_on_failure",
    "set_tracker",
    "use_tracker",
]

MODEL_PARALLEL = "model-parallel-rng"
"""Name of the stream in which the ranks of a tensor parallel group differ, as Megatron has it."""


@dataclass(slots=True, eq=False)
class _Fork:
    """A block in which a generator follows a stream, and the state that it returns to."""

    name: str
    generator: Generator
    outer: Any


_Entered: TypeAlias = "tuple[Callable[[Any], None], Any, _Entered | None]"
"""A function that rewinds to a mark, the mark at entry, and the same of the outer entry."""


class _Region:
    """The block of `distribute_region`."""

    # Not a generator function: every draw of a distributed tensor enters one.
    __slots__ = ("_entered", "_generator", "_spec", "_tracker")

    def __init__(
        self, tracker: RNGStateTracker, spec: DTensorSpec, generator: Generator | None
    ) -> None:
        self._tracker, self._spec, self._generator = tracker, spec, generator
        self._entered: _Entered | None = None

    def __enter__(self) -> Generator:
        tracker, spec, generator = self._tracker, self._spec, self._generator
        if generator is None:
            generator = default_generator(spec.mesh.device)
        elif type(generator) is not Generator:
            checked_generator(generator)
        spec.mesh.communicator.check_rank(generator, self._generator is None)
        _check_drawable(spec, generator)
        # A capture has no states that could differ: its draws take words of later replays.
        if config.settings().distributed_check and not _is_captured(generator):
            check_equal_states(generator, spec.mesh)
        rewind, mark = _mark(generator)
        part = tracker._part(generator, spec) if tracker.distribute_region_enabled else generator
        self._entered = rewind, mark, self._entered
        return part

    def __exit__(self, kind: type[BaseException] | None, *raised: object) -> None:
        assert self._entered is not None
        rewind, mark, self._entered = self._entered
        if kind is not None:
            rewind(mark)


def _mark(generator: Generator) -> tuple[Callable[[Any], None], Any]:
    """Return a function that rewinds a generator, and the mark for it.

    During a capture it rewinds the words that the graph takes from the generator.
    """
    position = generator._position
    capture = current_stream(generator.device).capture
    if capture is None:
        return position.rewind, position.mark()
    return functools.partial(capture.rewind, position), capture.mark(position)


def _is_captured(generator: Generator) -> bool:
    return current_stream(generator.device).capture is not None


@contextmanager
def rewind_on_failure(generator: Generator) -> Iterator[Generator]:
    """Rewind a generator if the block raises."""
    rewind, mark = _mark(generator)
    try:
        yield generator
    except BaseException:
        rewind(mark)
        raise


class RNGStateTracker:
    """Named streams, and regions in which a rank draws its part of a distributed tensor.

    A tracker belongs to one rank. In the regions of this base class every rank draws independently,
    as outside of regions.

    Attributes
    ----------
    distribute_region_enabled : bool
        False: every rank draws independently in regions of any class.
    """

    def __init__(self) -> None:
        self.distribute_region_enabled = True
        self._states: dict[str, PhiloxState] = {}
        self._seeds: set[int] = set()
        self._set_up()

    def _set_up(self) -> None:
        """Set the attributes that are not pickled: open blocks and caches."""
        self._forks: list[_Fork] = []
        self._positions: dict[str, NamedPosition] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {
            "distribute_region_enabled": self.distribute_region_enabled,
            "_states": self.get_states(),
            "_seeds": set(self._seeds),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._set_up()

    # -- regions -----------------------------------------------------------------------------------

    def distribute_region(
        self, spec: DTensorSpec, generator: Generator | None = None
    ) -> AbstractContextManager[Generator]:
        """Return a block that yields a generator whose draws are this rank's part of a tensor.

        Draw with ``size=spec.local_shape``, or fill an array of that shape. Regions nest: each
        region continues after the draws before it. If the block raises, the state returns to that
        at entry.

        Parameters
        ----------
        spec : DTensorSpec
            The tensor; its dtype does not matter.
        generator : Generator, optional
            In equal states on all ranks of the mesh, and used by this rank only; by default the
            default generator of this rank's device.

        Raises
        ------
        PlacementError
            If the tensor is `Partial`.
        RankMismatchError
            With ``NBRT_DISTRIBUTED_CHECK=1``, on all ranks of the mesh, if the states of their
            generators differ.

        Examples
        --------
        >>> import nbrt.distributed as dist
        >>> mesh = dist.init_device_mesh("cpu", (1,))
        >>> spec = dist.DTensorSpec(mesh, [dist.Shard(0)], (8,), "float32")
        >>> with dist.current_tracker().distribute_region(spec, nbrt.Generator(7)) as part:
        ...     x = part.random(spec.local_shape, "float32")
        >>> bool((x == nbrt.Generator(7).random(8, "float32")).all())
        True
        """
        return _Region(self, checked_spec(spec), generator)

    def _part(
        self,
        generator: Generator,
        spec: DTensorSpec,  # noqa: ARG002  # for the classes below
    ) -> Generator:
        """Return the generator of this rank's part."""
        return generator

    # -- named streams -----------------------------------------------------------------------------

    def add(self, name: str, seed: int) -> None:
        """Add a stream.

        Raises
        ------
        ArgumentError
            If a stream has the name or the seed: streams of one seed draw the same values.
        """
        number = checked_seed(seed)
        _check_name(name)
        if name in self._states:
            raise ArgumentError(f"expected a new name, got {name!r}, which is taken; reset() first")
        if number in self._seeds:
            raise ArgumentError(f"expected a new seed, got {seed}, which another stream has")
        self._seeds.add(number)
        self._states[name] = PhiloxState(number)

    @contextmanager
    def fork(self, name: str = MODEL_PARALLEL, device: DeviceLike = None) -> Iterator[Generator]:
        """Let the default generator of a device draw from a named stream inside a block.

        After the block the generator has its former state, and the stream keeps its position.
        Blocks nest; a stream that is entered again continues. If the block raises, the stream
        returns to its position at entry.

        Parameters
        ----------
        name : str
            A stream of `add`; Megatron's names may be given without "-rng".
        device : Device, str, int or None
            The current device by default.
        """
        _check_name(name)
        known = name if name in self._states else f"{name}-rng"
        if known not in self._states:
            raise ArgumentError(
                f"expected a stream of {sorted(self._states)}, got {name!r}; add it first"
            )
        generator = default_generator(device)
        capture = current_stream(generator.device).capture
        if capture is not None:
            with self._captured_fork(capture, generator, known):
                yield generator
            return
        self._wait_for_replays()
        fork = _Fork(known, generator, generator._position.mark())
        self._save_innermost()
        entered = self._states[known]
        generator.state = entered
        self._forks.append(fork)
        try:
            yield generator
        except BaseException:
            self._leave(fork, entered)
            raise
        self._leave(fork)

    @contextmanager
    def _captured_fork(self, capture: Capture, generator: Generator, name: str) -> Iterator[None]:
        """Let a graph draw from a stream, which moves at each replay and not at the capture."""
        position = self._positions.setdefault(name, NamedPosition(self, name))
        mark = capture.mark(position)
        outer = capture.redirect(generator._position, position)
        try:
            yield
        except BaseException:
            capture.rewind(position, mark)
            raise
        finally:
            capture.redirect(generator._position, outer)

    def _leave(self, fork: _Fork, left: PhiloxState | None = None) -> None:
        """End a block, and store the position of its stream, by default that of the generator.

        The block need not be the innermost: suspended functions may end theirs in any order.
        """
        at = self._forks.index(fork)
        within = self._forks[at + 1 :]
        del self._forks[at]
        inner = next((each for each in within if each.generator is fork.generator), None)
        if inner is None:
            self._states[fork.name] = fork.generator.state if left is None else left
            fork.generator._position.rewind(fork.outer)
        else:
            inner.outer = fork.outer  # which stored the position of this stream at entry
            self._states[fork.name] = self._states[fork.name] if left is None else left
        if self._forks and not within:
            around = self._forks[-1]
            around.generator.state = self._states[around.name]

    def get_states(self) -> dict[str, PhiloxState]:
        """Return the position of each stream, for a checkpoint."""
        self._wait_for_replays()
        self._save_innermost()
        return dict(self._states)

    def set_states(self, states: Mapping[str, PhiloxState]) -> None:
        """Replace all streams by those of `get_states`.

        Raises
        ------
        ArgumentError
            If a stream is forked.
        """
        self._check_unforked()
        if not isinstance(states, Mapping):
            raise ArgumentTypeError(f"expected what get_states() returned, got {states!r}")
        for name, state in states.items():
            if not isinstance(name, str) or not isinstance(state, PhiloxState):
                raise ArgumentTypeError(f"expected PhiloxStates by name, got {name!r}: {state!r}")
            state.checked()
        self._states = dict(states)
        self._seeds = {state.seed for state in states.values()}

    def reset(self) -> None:
        """Remove all streams; raises inside a fork."""
        self._check_unforked()
        self._states, self._seeds = {}, set()

    def is_initialized(self) -> bool:
        """Return whether there are streams."""
        return bool(self._states)

    def is_forked(self, name: str) -> bool:
        """Return whether a block of `fork` draws from a stream."""
        return any(fork.name == name for fork in self._forks)

    def state_of(self, name: str) -> PhiloxState:
        """Return the position of one stream."""
        self._save_innermost()
        state = self._states.get(name)
        if state is None:
            raise ArgumentError(
                f"expected the stream {name!r}, which a graph draws from, got "
                f"{sorted(self._states)}; add it again before the replay"
            )
        return state

    def move(self, name: str, state: PhiloxState) -> None:
        """Set the position of one stream, also where it is forked."""
        self._states[name] = state
        if self._forks and self._forks[-1].name == name:
            self._forks[-1].generator.state = state

    def _wait_for_replays(self) -> None:
        """Wait for replays of graphs that draw from the streams in loops."""
        for position in self._positions.values():
            position.wait()

    def _save_innermost(self) -> None:
        if self._forks:
            innermost = self._forks[-1]
            self._states[innermost.name] = innermost.generator.state

    def _check_unforked(self) -> None:
        self._wait_for_replays()
        if self._forks:
            raise ArgumentError(
                f"expected no stream to be forked, got {[each.name for each in self._forks]}; "
                f"leave their blocks first"
            )


def _check_name(name: object) -> None:
    if not isinstance(name, str):
        raise ArgumentTypeError(f"expected the name of a stream, got {name!r}")


def _check_drawable(spec: DTensorSpec, generator: Generator) -> None:
    if not isinstance(generator, Generator) or generator._filler.subset is not None:
        raise ArgumentTypeError(
            f"expected a generator of whole arrays, got {generator!r}, which draws parts already"
        )
    device = spec.mesh.device
    if generator._filler.device != device:
        raise DeviceMismatchError(
            f"expected a generator of this rank's device {device}, got one of {generator.device}; "
            f"make it with nbrt.Generator(seed, device=mesh.device)"
        )
    if spec.is_partial:
        raise PlacementError(
            f"expected Shard or Replicate, got {list(spec.placements)}: the terms of a random "
            f"tensor have no single-device values; draw it sharded or replicated, and redistribute"
        )


_MAX_SHARDS = 256
_EMPTY = Region(0, (0,), (0,))


class SingleDeviceRNGTracker(RNGStateTracker):
    """Draws the values of a single device, the same bits on any mesh; the default tracker.

    A rank evaluates the layout of the generator at the indices that it holds, and moves the state
    as the draw of the whole does. There is no communication between ranks, and replicas draw equal
    values. Ranks off the mesh and ranks with empty parts move the state too, so generators that
    start in equal states stay equal.
    """

    def _part(self, generator: Generator, spec: DTensorSpec) -> Generator:
        shards = generator._shards
        runs = spec.local_runs
        # The key refers to no mesh, which would live as long as the generator. Thousands of runs
        # take long to hash, so the key has the id of each axis; the value keeps them alive.
        key = (spec.shape, None) if runs is None else (spec.shape, *map(id, runs))
        entry = shards.get(key)
        if entry is None:
            if len(shards) >= _MAX_SHARDS:
                shards.clear()
            shard = generator.shard(spec.shape, _EMPTY if runs is None else runs)
            entry = shards[key] = runs, shard
        return entry[1]


_defaults: WeakKeyDictionary[Communicator, RNGStateTracker] = WeakKeyDictionary()
"""The default tracker of each rank, by its communicator of the world."""


def current_tracker() -> RNGStateTracker:
    """Return the running rank's tracker: a `SingleDeviceRNGTracker` unless another one was set."""
    chosen: RNGStateTracker | None = rank_context.tracker.get()
    if chosen is not None:
        return chosen
    rank = world()
    default = _defaults.get(rank)
    return _defaults.setdefault(rank, SingleDeviceRNGTracker()) if default is None else default


def set_tracker(tracker: RNGStateTracker | None) -> None:
    """Set the tracker of the running rank, in the running context; None: its default one."""
    rank_context.tracker.set(_checked(tracker))


@contextmanager
def use_tracker(tracker: RNGStateTracker | None) -> Iterator[RNGStateTracker]:
    """Set the tracker of the running rank for a block; blocks nest.

    Examples
    --------
    >>> import nbrt.distributed as dist
    >>> before = dist.current_tracker()
    >>> with dist.use_tracker(dist.SingleDeviceRNGTracker()) as own:
    ...     dist.current_tracker() is own
    True
    >>> dist.current_tracker() is before
    True
    """
    token = rank_context.tracker.set(_checked(tracker))
    try:
        yield current_tracker()
    finally:
        rank_context.tracker.reset(token)


def _checked(tracker: object) -> RNGStateTracker | None:
    if tracker is None or isinstance(tracker, RNGStateTracker):
        return tracker
    raise ArgumentTypeError(f"expected an RNGStateTracker or None, got {tracker!r}")

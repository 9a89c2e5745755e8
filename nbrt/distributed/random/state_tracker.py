"""`RNGStateTracker`: named streams, and regions in which ranks draw together."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from nbrt.errors import ArgumentError, ArgumentTypeError, DeviceMismatchError, PlacementError
from nbrt.random.defaults import checked_generator, default_generator
from nbrt.random.state import PhiloxState, checked_seed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from nbrt.distributed.spec import DTensorSpec
    from nbrt.random.generator import Generator
    from nbrt.typing import DeviceLike

__all__ = ["MODEL_PARALLEL", "RNGStateTracker"]

MODEL_PARALLEL = "model-parallel-rng"
"""Name of the stream in which the ranks of a tensor parallel group differ, as Megatron has it."""


class _Fork(NamedTuple):
    name: str
    generator: Generator


class RNGStateTracker:
    """Named streams, and regions in which a rank draws its part of a distributed tensor.

    A tracker belongs to one rank. This base class does not share draws out: in its regions every
    rank draws for itself, as it does anywhere.

    Attributes
    ----------
    distribute_region_enabled : bool
        False: in regions every rank draws for itself, whatever the class.
    """

    def __init__(self) -> None:
        self.distribute_region_enabled = True
        self._states: dict[str, PhiloxState] = {}
        self._seeds: set[int] = set()
        self._forks: list[_Fork] = []

    # -- regions -----------------------------------------------------------------------------------

    @contextmanager
    def distribute_region(
        self, spec: DTensorSpec, generator: Generator | None = None
    ) -> Iterator[Generator]:
        """Give a generator whose draws are this rank's part of a distributed tensor.

        Draw with ``size=spec.local_shape``, or fill an array of that shape. Regions nest: each
        goes on where the draws before it ended. If a block raises, the generator is put back to
        where it was when the region was entered.

        Parameters
        ----------
        spec : DTensorSpec
            The tensor; its dtype does not matter.
        generator : Generator, optional
            Equal on all ranks of the mesh; by default the default one of this rank's device.

        Raises
        ------
        PlacementError
            If the tensor is `Partial`.

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
        chosen = _chosen(spec, generator)
        before = chosen.state
        try:
            yield self._part(chosen, spec) if self.distribute_region_enabled else chosen
        except BaseException:
            chosen.state = before
            raise

    def _part(
        self,
        generator: Generator,
        spec: DTensorSpec,  # noqa: ARG002  # for the classes below
    ) -> Generator:
        """Return what draws this rank's part."""
        return generator

    # -- named streams -----------------------------------------------------------------------------

    def add(self, name: str, seed: int) -> None:
        """Start a stream.

        Raises
        ------
        ArgumentError
            If the name or the seed is taken: two streams of one seed would draw the same values.
        """
        number = checked_seed(seed)
        if name in self._states:
            raise ArgumentError(f"expected a new name, got {name!r}, which is taken; reset() first")
        if number in self._seeds:
            raise ArgumentError(f"expected a new seed, got {seed}, which another stream has")
        self._seeds.add(number)
        self._states[name] = PhiloxState(number)

    @contextmanager
    def fork(self, name: str = MODEL_PARALLEL, device: DeviceLike = None) -> Iterator[Generator]:
        """Draw from a named stream inside a block, by the default generator of a device.

        The default generator continues as before afterwards, and the stream where it was left.
        Blocks nest; a stream that is entered again goes on. If a block raises, the stream is put
        back to where it was when the block was entered.

        Parameters
        ----------
        name : str
            A stream of `add`; Megatron's names may be given without "-rng".
        device : Device, str, int or None
            The current device by default.
        """
        known = name if name in self._states else f"{name}-rng"
        if known not in self._states:
            raise ArgumentError(
                f"expected a stream of {sorted(self._states)}, got {name!r}; add it first"
            )
        generator = default_generator(device)
        held = generator.snapshot()
        self._save_innermost()
        entered = self._states[known]
        generator.state = entered
        self._forks.append(_Fork(known, generator))
        left = entered
        try:
            yield generator
            left = generator.state
        finally:
            self._forks.pop()
            if known in self._states:
                self._states[known] = left
            generator.restore(held)
            if self._forks and self._forks[-1].name in self._states:
                around = self._forks[-1]
                around.generator.state = self._states[around.name]

    def get_states(self) -> dict[str, PhiloxState]:
        """Return where each stream is, to be kept in a checkpoint."""
        self._save_innermost()
        return dict(self._states)

    def set_states(self, states: Mapping[str, PhiloxState]) -> None:
        """Continue streams from what `get_states` returned, in place of all that there are.

        Raises
        ------
        ArgumentError
            If a stream is forked: the default generator is then in the middle of it.
        """
        self._check_unforked()
        for name, state in states.items():
            if not isinstance(name, str) or not isinstance(state, PhiloxState):
                raise ArgumentTypeError(f"expected PhiloxStates by name, got {name!r}: {state!r}")
            state.checked()
        self._states = dict(states)
        self._seeds = {state.seed for state in states.values()}

    def reset(self) -> None:
        """Forget all streams; not inside a fork."""
        self._check_unforked()
        self._states, self._seeds = {}, set()

    def is_initialized(self) -> bool:
        """Return whether there are streams."""
        return bool(self._states)

    def _save_innermost(self) -> None:
        if self._forks:
            name, generator = self._forks[-1]
            self._states[name] = generator.state

    def _check_unforked(self) -> None:
        if self._forks:
            raise ArgumentError(
                f"expected no stream to be forked, got {[each.name for each in self._forks]}; "
                f"leave their blocks first"
            )


def _chosen(spec: DTensorSpec, generator: Generator | None) -> Generator:
    device = spec.mesh.device
    chosen = default_generator(device) if generator is None else checked_generator(generator)
    if chosen._part is not None or hasattr(chosen, "device_mesh"):
        raise ArgumentTypeError(
            f"expected a generator of whole arrays, got {chosen!r}, which draws parts already"
        )
    if chosen.device != device:
        raise DeviceMismatchError(
            f"expected a generator of this rank's device {device}, got one of {chosen.device}; "
            f"make it with nbrt.Generator(seed, device=mesh.device)"
        )
    if spec.is_partial:
        raise PlacementError(
            f"expected Shard or Replicate, got {list(spec.placements)}: the terms of a random "
            f"tensor have no single-device values; draw it sharded or replicated, and redistribute"
        )
    return chosen

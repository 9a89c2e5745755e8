"""The default generators of the devices: seeding, states and forks."""

from __future__ import annotations

import os
import secrets
import sys
import threading
from collections.abc import Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nbrt._internal import rank_context
from nbrt.backends import registry
from nbrt.errors import ArgumentTypeError
from nbrt.random.distributions import Distributions
from nbrt.random.generator import Generator
from nbrt.random.state import PhiloxState, checked_seed
from nbrt.random.stream_position import StreamPosition, refuse_change
from nbrt.runtime.device import current_device, resolve_device

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nbrt._internal.device import Device
    from nbrt.typing import DeviceLike, HostArray

__all__ = [
    "DEFAULT_SEED",
    "checked_generator",
    "default_generator",
    "fork_rng",
    "get_offset",
    "get_rng_state",
    "get_state",
    "initial_seed",
    "isolated_default_generators",
    "manual_seed",
    "manual_seed_all",
    "seed",
    "seed_all",
    "set_offset",
    "set_rng_state",
    "set_state",
]

DEFAULT_SEED = 67280421310721
"""Seed of default generators before any `manual_seed`; the same constant as in torch."""


@dataclass(slots=True)
class _Store:
    """Default generators of the devices, and the seed of generators made later.

    On fake devices those made later start as copies of `origins`, the generators of real devices.
    """

    seed_of_new: int = DEFAULT_SEED
    generators: dict[Device, Generator] = field(default_factory=dict)
    origins: dict[Device, Generator] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)


_process = _Store()


def _after_fork_in_child() -> None:
    """Renew the lock, which a thread may hold that the child does not have."""
    _process.lock = threading.RLock()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_after_fork_in_child)


def default_generator(device: DeviceLike = None) -> Generator:
    """Return the default generator of a device; always the same object."""
    chosen = current_device() if device is None else resolve_device(device)
    store = _store()
    generator: Generator | None = store.generators.get(chosen)
    return generator or _make_default(store, chosen)


def _make_default(store: _Store, device: Device) -> Generator:
    with store.lock:
        generator = store.generators.get(device)
        if generator is None:
            origin = store.origins.get(device)
            made = Generator(store.seed_of_new, device) if origin is None else origin
            # Unlike others, it exists in principle before a capture in progress.
            generator = made._at(StreamPosition(made._position.peek()))
            store.generators[device] = generator
        return generator


@contextmanager
def isolated_default_generators() -> Iterator[None]:
    """Use separate default generators in a block of the running context.

    They start as copies of the current ones. In the block, `manual_seed`, `fork_rng` and draws use
    the copies, also in tasks and copies of the context, and leave the other generators unchanged.
    Ranks that are threads of one process have separate default generators this way. Blocks nest.

    Examples
    --------
    >>> import nbrt
    >>> before = nbrt.random.get_offset()
    >>> with nbrt.random.isolated_default_generators():
    ...     _ = nbrt.random.rand(8)
    ...     nbrt.random.get_offset() - before
    8
    >>> nbrt.random.get_offset() - before
    0
    """
    store = _store()
    with store.lock:
        copies = {device: generator.clone() for device, generator in store.generators.items()}
        isolated = _Store(store.seed_of_new, copies, dict(store.origins))
    token = rank_context.default_generators.set(isolated)
    try:
        yield
    finally:
        rank_context.default_generators.reset(token)


def _store() -> _Store:
    store: _Store = rank_context.default_generators.get() or _process
    return store


def _set_generators_aside(kind: str) -> Callable[[], None]:
    """Let the generators of a kind of device begin anew, as copies of those so far."""
    store = _store()
    with store.lock:
        aside = _take(store.generators, kind)
        origins, seed_of_new = dict(store.origins), store.seed_of_new
        store.origins.update(aside)

    def restore() -> None:
        with store.lock:
            _take(store.generators, kind)
            store.generators.update(aside)
            store.origins, store.seed_of_new = origins, seed_of_new

    return restore


def _take(generators: dict[Device, Generator], kind: str) -> dict[Device, Generator]:
    return {key: generators.pop(key) for key in list(generators) if key.kind == kind}


registry.on_substituted(_set_generators_aside)


def checked_generator(generator: Any) -> Generator:
    """Return a generator of nbrt; raise for other types."""
    # `isinstance` takes 0.4 microseconds longer, because the class is abstract.
    if Distributions not in type(generator).__mro__:
        raise ArgumentTypeError(
            f"expected generator as an nbrt.Generator, got {type(generator).__name__}"
        )
    checked: Generator = generator
    return checked


def manual_seed(seed: int, device: DeviceLike = None) -> Generator:
    """Seed the default generators of all devices, or of one.

    Parameters
    ----------
    seed : int
        In [-2**63, 2**64).
    device : Device, str, int or None
        None: all devices, also those not used yet, as ``torch.manual_seed`` does.

    Returns
    -------
    generator : Generator
        The default generator of `device`, or of the current device.

    Examples
    --------
    >>> import nbrt
    >>> nbrt.manual_seed(3).initial_seed()
    3
    """
    checked = checked_seed(seed)
    if device is None:
        manual_seed_all(checked)
        return default_generator()
    return default_generator(device).manual_seed(checked)


def manual_seed_all(seed: int) -> None:
    """Seed the default generators of all devices, also of those not used yet."""
    checked = checked_seed(seed)
    refuse_change("a change of the state of the default generators")
    store = _store()
    with store.lock:
        store.seed_of_new = checked
        store.origins.clear()
        for generator in store.generators.values():
            generator.manual_seed(checked)


def seed(device: DeviceLike = None) -> int:
    """Seed a device's default generator from the operating system, and return the seed."""
    return default_generator(device).seed()


def seed_all() -> int:
    """Seed all default generators with one seed from the operating system, and return it."""
    chosen = secrets.randbits(64)
    manual_seed_all(chosen)
    return chosen


def initial_seed(device: DeviceLike = None) -> int:
    """Return the seed of a device's default generator."""
    return default_generator(device).initial_seed()


def get_rng_state(device: DeviceLike = None) -> HostArray:
    """Return the state of a device's default generator as 16 bytes, in the format of torch."""
    return default_generator(device).get_state()


def set_rng_state(state: Any, device: DeviceLike = None) -> None:
    """Continue a device's default generator from a state; see `Generator.set_state`."""
    default_generator(device).set_state(state)


get_state, set_state = get_rng_state, set_rng_state


def get_offset(device: DeviceLike = None) -> int:
    """Return the offset of a device's default generator, in 32-bit words."""
    return default_generator(device).get_offset()


def set_offset(offset: int, device: DeviceLike = None) -> None:
    """Set the offset of a device's default generator, a multiple of 4."""
    default_generator(device).set_offset(offset)


@contextmanager
def fork_rng(devices: Iterable[DeviceLike] | None = None, enabled: bool = True) -> Iterator[None]:
    """Restore the states of default generators at the end of a block, also after an exception.

    The block does not change the draws in it. Blocks nest.

    Parameters
    ----------
    devices : iterable of Device, str or int, optional
        The devices of the generators; by default all, with those first used inside, and the seed of
        those not used yet.
    enabled : bool
        False: do nothing.

    Examples
    --------
    >>> import nbrt
    >>> before = nbrt.random.get_offset()
    >>> with nbrt.random.fork_rng():
    ...     _ = nbrt.random.rand(8)
    >>> nbrt.random.get_offset() == before
    True
    """
    if not enabled:
        yield
        return
    if isinstance(devices, str) or not (devices is None or isinstance(devices, Iterable)):
        raise ArgumentTypeError(f"expected devices as an iterable, got {devices!r}; pass a list")
    store = _store()
    with store.lock:
        generators = (
            list(store.generators.values())
            if devices is None
            else [default_generator(device) for device in devices]
        )
        marks = [(generator, generator._position.mark()) for generator in generators]
        seed_of_new = store.seed_of_new
    try:
        yield
    finally:
        with store.lock:
            for generator, mark in marks:
                generator._position.rewind(mark)
            if devices is None:
                store.seed_of_new = seed_of_new
                known = {id(generator) for generator in generators}
                for generator in store.generators.values():
                    if id(generator) not in known:
                        origin = store.origins.get(generator.device)
                        generator.state = (
                            PhiloxState(seed_of_new) if origin is None else origin.state
                        )

"""Sequences of allocations and frees: written by hand, and recorded from the notebooks."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

__all__ = ["RECORDED", "SYNTHETIC", "Event", "all_traces", "load", "most_asked_for", "save"]

RECORDED = Path(__file__).resolve().parent / "data" / "notebook_traces.npz"


class Event(NamedTuple):
    """An allocation, or the end of one.

    Attributes
    ----------
    block : int
        Its name.
    nbytes : int
        Bytes asked for; 0: the block is freed.
    stream : int
        Which stream it is allocated on; of no meaning in a free.
    """

    block: int
    nbytes: int
    stream: int = 0


def growing_sequences(steps: int = 24) -> Iterator[Event]:
    """Attention layers, forwards and backwards, over sequences that get longer at every step."""
    names = itertools.count()
    for step in range(steps):
        length, batch, heads, width = 128 + 80 * step, 4, 8, 512
        token, square = 4 * batch * length * width, 4 * batch * heads * length**2
        kept = []
        for nbytes in (token, 3 * token, square, token, 4 * token) * 4:
            kept.append(next(names))
            yield Event(kept[-1], nbytes)
            scratch = next(names)
            yield Event(scratch, nbytes // 2)
            yield Event(scratch, 0)
        for name in reversed(kept):
            gradient = next(names)
            yield Event(gradient, token)
            yield Event(name, 0)
            yield Event(gradient, 0)


def transformer_steps(steps: int = 5) -> Iterator[Event]:
    """Training steps of one size; the optimizer's state appears with the first."""
    names = itertools.count()
    width, layers, words, batch, length = 768, 6, 30_000, 8, 256
    token, square = 4 * batch * length * width, 4 * batch * 12 * length**2
    weights = [4 * width**2 * n for n in (3, 1, 4, 4)] * layers + [4 * words * width]
    for nbytes in weights:
        yield Event(next(names), nbytes)
    for step in range(steps):
        kept = []
        for nbytes in (token, 3 * token, square, square, token, 4 * token, 4 * token) * layers:
            kept.append(next(names))
            yield Event(kept[-1], nbytes)
        logits, losses = next(names), next(names)
        yield Event(logits, 4 * batch * length * words)
        yield Event(losses, 4 * batch * length * words)
        yield Event(logits, 0)
        yield Event(losses, 0)
        gradients = []
        for place, name in enumerate(reversed(kept)):
            passed = next(names)
            yield Event(passed, token * (1 + place % 4))
            yield Event(name, 0)
            yield Event(passed, 0)
            if place < len(weights):
                gradients.append(next(names))
                yield Event(gradients[-1], weights[-1 - place])
        for nbytes in weights * 2 if step == 0 else ():
            yield Event(next(names), nbytes)
        for nbytes in weights:
            scratch = next(names)
            yield Event(scratch, nbytes)
            yield Event(scratch, 0)
        for name in gradients:
            yield Event(name, 0)


def fft_sizes(count: int = 250, seed: int = 3) -> Iterator[Event]:
    """Transforms of any length: input, result and padded workspace; the last results are kept."""
    names, chance = itertools.count(), random.Random(seed)
    kept: list[int] = []
    for _ in range(count):
        length = int(2 ** chance.uniform(17, 23))
        source, result, workspace = next(names), next(names), next(names)
        yield Event(source, 16 * length)
        yield Event(result, 16 * length)
        yield Event(workspace, 16 << (2 * length - 1).bit_length())
        yield Event(workspace, 0)
        yield Event(source, 0)
        kept.append(result)
        if len(kept) > 4:
            yield Event(kept.pop(chance.randrange(len(kept))), 0)


def random_mixture(count: int = 4000, streams: int = 3, seed: int = 7) -> Iterator[Event]:
    """Sizes from 64 bytes to 64 MiB, as many of each magnitude, on some streams, freed by chance.

    How many are alive swells and shrinks, so that what is cached for one size must serve others.
    """
    chance = random.Random(seed)
    alive: list[int] = []
    for name in range(count):
        yield Event(name, int(2 ** chance.uniform(6, 26)), chance.randrange(streams))
        alive.append(name)
        most = 100 + 80 * (name // 500 % 2)
        while len(alive) > most or (len(alive) > 20 and chance.random() < 0.4):
            yield Event(alive.pop(chance.randrange(len(alive))), 0)


SYNTHETIC: dict[str, Callable[[], Iterator[Event]]] = {
    "growing sequences": growing_sequences,
    "transformer steps": transformer_steps,
    "FFT sizes": fft_sizes,
    "random mixture": random_mixture,
}


def save(path: Path, traces: Mapping[str, Iterable[Event]]) -> None:
    """Write traces as arrays of shape (events, 3), compressed, under their names."""
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {name: np.array(list(events), np.int64) for name, events in traces.items()}
    np.savez_compressed(path, allow_pickle=False, **arrays)


def load(path: Path = RECORDED) -> dict[str, list[Event]]:
    """Return the traces of a file that `save` wrote."""
    with np.load(path) as found:
        return {name: [Event(*row) for row in found[name].tolist()] for name in found.files}


def all_traces() -> dict[str, list[Event]]:
    """Return every trace by its name, the recorded ones first."""
    return {**load(), **{name: list(events()) for name, events in SYNTHETIC.items()}}


def most_asked_for(events: Iterable[Event]) -> int:
    """Return the most bytes that were asked for and not yet freed at once."""
    alive: dict[int, int] = {}
    total = most = 0
    for event in events:
        if event.nbytes:
            alive[event.block] = event.nbytes
            total += event.nbytes
            most = max(most, total)
        else:
            total -= alive.pop(event.block)
    return most

"""State of generators: torch's bytes, clones, NumPy's spawning, shards of draws."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import numpy as np
import pytest

import nbrt
from nbrt.backends.draw import Draw
from nbrt.errors import ArgumentError, ArgumentTypeError
from nbrt.random import PhiloxState, Region
from nbrt_kernels.random import uniform_reference


@pytest.fixture
def generator(device: nbrt.Device) -> nbrt.Generator:
    if device.kind == "sample":
        pytest.skip("the sample backend has no draws")
    return nbrt.Generator(7, device)


def test_the_state_is_torchs_16_bytes(generator: nbrt.Generator) -> None:
    generator.random(5, "float32")
    state = generator.get_state()
    assert state.dtype == np.uint8
    # Seed, then offset, as torch.cuda.get_rng_state lays them out.
    assert state.tolist() == [7, *bytes(7), 8, *bytes(7)]
    first = nbrt.to_host(generator.random(9))
    for form in (state, state.tobytes(), bytearray(state.tobytes()), memoryview(state)):
        generator.set_state(form)
        assert np.array_equal(nbrt.to_host(generator.random(9)), first)
    generator.set_state(state[:8])
    assert generator.state == PhiloxState(7, 0)


@pytest.mark.parametrize("wrong", [b"123", np.zeros(17, np.uint8), 7, "0123456789abcdef", None])
def test_wrong_states_change_nothing(generator: nbrt.Generator, wrong: Any) -> None:
    with pytest.raises((ArgumentError, ArgumentTypeError), match="16 bytes"):
        generator.set_state(wrong)
    assert generator.state == PhiloxState(7, 0)


def test_offsets(generator: nbrt.Generator) -> None:
    whole = nbrt.to_host(generator.random(32, "float32"))
    generator.set_offset(16)
    assert generator.get_offset() == 16
    assert np.array_equal(nbrt.to_host(generator.random(16, "float32")), whole[16:])
    for wrong in (6, -4, 2**64):
        with pytest.raises(ArgumentError, match="expected an offset"):
            generator.set_offset(wrong)
    assert generator.get_offset() == 32


def test_the_offset_wraps_around(generator: nbrt.Generator) -> None:
    """As torch's does; the draw that crosses the end goes on counting blocks."""
    generator.set_offset(2**64 - 4)
    over = nbrt.to_host(generator.random(8, "float32"))
    assert generator.get_offset() == 4
    expected = uniform_reference(8, 7, 2**64 - 4, np.float32)
    assert np.array_equal(over, expected)


def test_a_clone_goes_its_own_way(generator: nbrt.Generator) -> None:
    generator.random(3)
    twin = generator.clone()
    assert twin.state == generator.state
    assert twin.device == generator.device
    assert np.array_equal(nbrt.to_host(twin.random(5)), nbrt.to_host(generator.random(5)))
    twin.random(5)
    assert twin.state != generator.state


def test_spawning_follows_numpys_seed_sequences(generator: nbrt.Generator) -> None:
    expected = np.random.SeedSequence(7).spawn(3)
    seeds = [int(child.generate_state(1, np.uint64)[0]) for child in expected]
    children = [*generator.spawn(2), *generator.spawn(1)]
    assert [child.initial_seed() for child in children] == seeds
    assert generator.state == PhiloxState(7, 0)
    grandchild = int(expected[1].spawn(1)[0].generate_state(1, np.uint64)[0])
    assert children[1].spawn(1)[0].initial_seed() == grandchild
    assert generator.bit_generator.seed_seq.n_children_spawned == 3
    assert nbrt.Generator(expected[0], generator.device).initial_seed() == seeds[0]
    generator.manual_seed(7)
    assert generator.spawn(1)[0].initial_seed() == seeds[0]
    assert generator.spawn(0) == []
    with pytest.raises(ArgumentError, match="n_children >= 0"):
        generator.spawn(-1)
    for wrong in (1.5, True):
        with pytest.raises(ArgumentTypeError, match="n_children of type int"):
            generator.spawn(wrong)  # type: ignore[arg-type]


def test_pickles_go_on_spawning_and_drawing(generator: nbrt.Generator) -> None:
    generator.random(3)
    generator.spawn(1)
    twin = pickle.loads(pickle.dumps(generator))
    assert twin.spawn(1)[0].state == generator.spawn(1)[0].state
    assert np.array_equal(nbrt.to_host(twin.random(5)), nbrt.to_host(generator.random(5)))


REGIONS = [
    (slice(None), slice(None)),
    (slice(2, 5), slice(None)),
    (slice(None), slice(3, 10)),
    (slice(1, 7, 2), slice(1, 12, 3)),
    (slice(4, 4), slice(None)),
    (3, slice(None)),
    (slice(None), -1),
    (slice(5, 6),),
    slice(1, 3),
    (2, 3),
]


@pytest.mark.parametrize("region", REGIONS, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_shard_is_the_part_of_the_whole(
    generator: nbrt.Generator, region: Any, dtype: str
) -> None:
    whole = nbrt.to_host(generator.clone().standard_normal((7, 13), dtype))
    after = PhiloxState(7, 4 * -(-7 * 13 * np.dtype(dtype).itemsize // 16))
    shard = generator.shard((7, 13), region)
    assert np.array_equal(nbrt.to_host(shard.standard_normal(dtype=dtype)), whole[region])
    assert generator.state == shard.state == after


def test_a_strided_shard_is_a_region(generator: nbrt.Generator) -> None:
    """Rows 0-1 and 4-5 of 8, as fully sharded data over tensor parallel lays them out."""
    whole = nbrt.to_host(generator.clone().random((8, 6), "float32"))
    region = Region(0, (2, 2, 6), (4 * 6, 6, 1))
    part = nbrt.to_host(generator.shard((8, 6), region).random(dtype="float32"))
    assert np.array_equal(part.reshape(4, 6), whole[[0, 1, 4, 5]])


def test_more_elements_than_memory(generator: nbrt.Generator) -> None:
    """A virtual draw of 2**45 elements: its ends are those of a draw that starts there."""
    n = 2**45
    for start in (0, 2**33 - 3, n - 8):
        shard = generator.clone().shard(n, slice(start, start + 8))
        values = nbrt.to_host(shard.random(dtype="float32"))
        begin = start // 4 * 4
        twin = generator.clone().advance(begin)
        expected = nbrt.to_host(twin.random(16, "float32"))[start - begin :][:8]
        assert np.array_equal(values, expected)
        assert shard.state.offset == n


def test_an_empty_shard_keeps_in_step(generator: nbrt.Generator) -> None:
    shard = generator.shard((4, 4), (slice(4, 4), slice(None)))
    assert nbrt.to_host(shard.random()).shape == (0, 4)
    assert generator.state.offset == 32


@pytest.mark.parametrize(
    ("region", "message"),
    [
        ((slice(None, None, -1), slice(None)), "positive steps"),
        ((slice(None),) * 3, "at most 2 indices"),
        ((4, slice(None)), r"index in \[-4, 4\)"),
        (("a", slice(None)), "slices and ints"),
        (Region(10, (3, 3), (2, 1)), "within the 16 elements"),
        (Region(-1, (3,), (1,)), "without negative"),
    ],
)
def test_wrong_regions(generator: nbrt.Generator, region: Any, message: str) -> None:
    with pytest.raises((ArgumentError, ArgumentTypeError), match=message):
        generator.shard((4, 4), region)


def test_a_shard_has_its_shape(generator: nbrt.Generator) -> None:
    shard = generator.shard((4, 4), (slice(2), slice(None)))
    assert shard.random((2, 4)).shape == (2, 4)
    with pytest.raises(ArgumentError, match=r"shape of the shard, \(2, 4\), got \(8,\)"):
        shard.random(8)
    assert generator.state.offset == 32


def test_reservations_of_threads_do_not_overlap(generator: nbrt.Generator) -> None:
    taken: list[int] = []

    def work() -> None:
        for _ in range(50):
            generator.advance(4)
            taken.append(generator.spawn(1)[0].initial_seed())

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert generator.get_offset() == 6 * 50 * 4
    assert len(set(taken)) == 300


def test_seed_and_offset_from_device_memory(generator: nbrt.Generator) -> None:
    """A replayed graph reads the position when the draw runs, not when it is submitted."""
    stream = nbrt.current_stream(generator.device)
    place = nbrt.asarray(np.array([9, 16], np.uint64), device=generator.device)
    out = nbrt.empty(100, "float32", device=generator.device)
    draw = Draw("normal", "float32", 100, (0.0, 1.0), offset=8, device_state=place)
    for seed, offset in ((9, 16), (2**64 - 1, 2**40)):
        nbrt.copy(place, np.array([seed, offset], np.uint64))
        stream.interface.draw(stream.queue, out, draw)
        twin = nbrt.Generator(seed, generator.device).advance(offset + 8)
        expected = nbrt.to_host(twin.standard_normal(100, "float32"))
        assert np.array_equal(nbrt.to_host(out), expected)

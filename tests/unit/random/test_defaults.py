"""Default generators: seeding, states, forks."""

from __future__ import annotations

import contextvars
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest

import nbrt
from helpers.clocks import HANG_TIMEOUT
from nbrt.errors import ArgumentError, ArgumentTypeError, UnknownDeviceError
from nbrt.random import PhiloxState

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def kept() -> Iterator[None]:
    with nbrt.random.fork_rng():
        nbrt.random.manual_seed(5)
        yield


def test_seeding_one_device_leaves_the_others() -> None:
    assert nbrt.random.manual_seed(9, "cpu:1") is nbrt.default_generator("cpu:1")
    assert nbrt.random.initial_seed("cpu:1") == 9
    assert nbrt.random.initial_seed("cpu:0") == 5


def test_seeding_all_reaches_devices_first_used_later() -> None:
    nbrt.random.manual_seed_all(11)
    assert {nbrt.random.initial_seed(f"cpu:{index}") for index in range(4)} == {11}


def test_seeds_of_the_system() -> None:
    assert nbrt.random.seed("cpu:2") == nbrt.random.initial_seed("cpu:2") != 5
    assert nbrt.random.initial_seed("cpu:0") == 5
    chosen = nbrt.random.seed_all()
    assert nbrt.random.initial_seed("cpu:0") == nbrt.random.initial_seed("cpu:3") == chosen


def test_states_and_offsets() -> None:
    nbrt.random.rand(6, device="cpu:1")
    state = nbrt.random.get_rng_state("cpu:1")
    assert state.dtype == np.uint8
    assert PhiloxState.from_bytes(state.tobytes()) == PhiloxState(5, 8)
    values = nbrt.random.rand(6, device="cpu:1")
    nbrt.random.set_rng_state(state, "cpu:1")
    assert np.array_equal(nbrt.random.rand(6, device="cpu:1"), values)
    nbrt.random.set_offset(8, "cpu:1")
    assert nbrt.random.get_offset("cpu:1") == 8
    assert nbrt.random.get_offset("cpu:0") == 0
    with pytest.raises(ArgumentError, match="multiple of 4"):
        nbrt.random.set_offset(6)
    with pytest.raises(ArgumentError, match="16 bytes"):
        nbrt.random.set_rng_state(np.zeros(15, np.uint8))


def test_a_fork_restores_every_generator_however_it_ends() -> None:
    nbrt.random.rand(3)
    before = nbrt.random.get_rng_state()

    def fail() -> None:
        with nbrt.random.fork_rng():
            nbrt.random.manual_seed(77)
            nbrt.random.rand(100, device="cpu:3")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert np.array_equal(nbrt.random.get_rng_state(), before)
    assert nbrt.default_generator("cpu:3").state == PhiloxState(5)
    assert nbrt.random.initial_seed("cpu:2") == 5


def test_forks_nest() -> None:
    with nbrt.random.fork_rng():
        nbrt.random.rand(4)
        with nbrt.random.fork_rng():
            nbrt.random.rand(40)
        assert nbrt.random.get_offset() == 4
    assert nbrt.random.get_offset() == 0


def test_a_fork_of_some_devices() -> None:
    with nbrt.random.fork_rng(["cpu:1"]):
        nbrt.random.rand(4, device="cpu:0")
        nbrt.random.rand(4, device="cpu:1")
    assert nbrt.random.get_offset("cpu:0") == 4
    assert nbrt.random.get_offset("cpu:1") == 0


def test_a_fork_restores_what_was_spawned() -> None:
    generator = nbrt.default_generator()
    with nbrt.random.fork_rng():
        inside = generator.spawn(1)[0].state
    assert generator.spawn(1)[0].state == inside


def test_a_fork_that_is_off() -> None:
    with nbrt.random.fork_rng(enabled=False):
        nbrt.random.rand(4)
    assert nbrt.random.get_offset() == 4


def test_wrong_forks() -> None:
    with pytest.raises(ArgumentTypeError, match="pass a list"), nbrt.random.fork_rng("cpu:0"):
        pass
    with pytest.raises(UnknownDeviceError), nbrt.random.fork_rng(["cpu:99"]):
        pass


def test_isolated_generators_are_equal_copies() -> None:
    nbrt.random.rand(4)
    outside = nbrt.default_generator("cpu:0")
    spawned = nbrt.default_generator("cpu:0").clone().spawn(1)[0].state
    with nbrt.random.isolated_default_generators():
        own = nbrt.default_generator("cpu:0")
        assert own is not outside
        assert own.state == outside.state == PhiloxState(5, 4)
        assert own.spawn(1)[0].state == spawned
        assert nbrt.random.initial_seed("cpu:3") == 5
        nbrt.random.manual_seed_all(9)
        nbrt.random.rand(8)
        with nbrt.random.fork_rng():
            nbrt.random.rand(8)
        assert nbrt.random.get_offset() == 8
    assert nbrt.default_generator("cpu:0") is outside
    assert outside.state == PhiloxState(5, 4)
    assert outside.spawn(1)[0].state == spawned
    assert nbrt.random.initial_seed("cpu:2") == 5


def test_isolated_generators_nest_and_end_on_failure() -> None:
    def fail() -> None:
        with nbrt.random.isolated_default_generators():
            assert nbrt.random.initial_seed() == 1
            nbrt.random.manual_seed(2)
            raise ZeroDivisionError

    with nbrt.random.isolated_default_generators():
        nbrt.random.manual_seed(1)
        with pytest.raises(ZeroDivisionError):
            fail()
        assert nbrt.random.initial_seed() == 1
    assert nbrt.random.initial_seed() == 5


def test_threads_with_isolated_generators_do_not_meet() -> None:
    """Each starts from the caller's states and draws as if it were alone."""
    nbrt.random.rand(4)
    expected = nbrt.default_generator().clone().random((3, 5), "float32")
    together = threading.Barrier(4)
    drawn: dict[int, list[np.ndarray]] = {}

    def work(number: int) -> None:
        with nbrt.random.isolated_default_generators():
            drawn[number] = []
            for _ in range(3):
                together.wait(HANG_TIMEOUT)
                drawn[number].append(nbrt.random.rand(5))
            together.wait(HANG_TIMEOUT)

    contexts = [contextvars.copy_context() for _ in range(4)]
    threads = [
        threading.Thread(target=context.run, args=(work, number))
        for number, context in enumerate(contexts)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(drawn) == 4
    for number in range(4):
        state = nbrt.default_generator().clone()
        for array in drawn[number]:
            assert np.array_equal(array, state.random(5, "float32"))
    assert np.array_equal(drawn[0][0], expected[0])
    assert nbrt.random.get_offset() == 4


def test_the_first_use_in_many_threads_makes_one_generator() -> None:
    with nbrt.random.isolated_default_generators():
        together = threading.Barrier(8)
        found: list[nbrt.Generator] = []

        def work() -> None:
            together.wait(HANG_TIMEOUT)
            found.append(nbrt.default_generator("cpu:1"))

        contexts = [contextvars.copy_context() for _ in range(8)]
        threads = [threading.Thread(target=context.run, args=(work,)) for context in contexts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 8
        assert len(set(map(id, found))) == 1

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from helpers.clocks import JumpingClock
from nbrt.distributed.communicators.tcp_bootstrap import (
    RankAssignment,
    TcpBootstrap,
    find_rank_assignment,
    polls,
)
from nbrt.errors import ArgumentError, CollectiveTimeoutError, RankMismatchError

LAUNCHED = {
    "RANK": "3", "WORLD_SIZE": "8", "MASTER_ADDR": "node1", "MASTER_PORT": "29500",
    "LOCAL_RANK": "1",
}  # fmt: skip


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets the variables of a launcher, and no others."""
    for name in (*LAUNCHED, "TORCHELASTIC_USE_AGENT_STORE"):
        monkeypatch.delenv(name, raising=False)

    def launch(**changes: str | None) -> None:
        for name, value in {**LAUNCHED, **changes}.items():
            if value is not None:
                monkeypatch.setenv(name, value)

    return launch


def test_arguments_and_environment_say_who_a_rank_is(environment: Any) -> None:
    assert find_rank_assignment(None, None, None) is None
    assert find_rank_assignment(1, 2, "here:80") == RankAssignment(1, 2, "here", 80, 1)
    environment()
    assert find_rank_assignment(None, None, None) == RankAssignment(3, 8, "node1", 29500, 1)
    assert find_rank_assignment(0, None, "127.0.0.1:1") == RankAssignment(0, 8, "127.0.0.1", 1, 1)


def test_torchrun_keeps_the_port_it_names(environment: Any) -> None:
    environment(TORCHELASTIC_USE_AGENT_STORE="True")
    assert find_rank_assignment(None, None, None) == RankAssignment(3, 8, "node1", 29501, 1)
    assert find_rank_assignment(None, None, "here:80") == RankAssignment(3, 8, "here", 80, 1)


@pytest.mark.parametrize(
    ("changes", "arguments", "said"),
    [
        ({"RANK": None}, (None, 4, "a:1"), "expected rank, got none; pass rank=, or set RANK"),
        ({"WORLD_SIZE": None}, (0, None, "a:1"), "pass world_size=, or set WORLD_SIZE"),
        ({"MASTER_PORT": None}, (0, 4, None), "'host:port' of rank 0, or set MASTER_PORT"),
        ({"RANK": "one"}, (None, None, None), "rank as a whole number from 0, got 'one'"),
        ({}, (-1, 4, "a:1"), "rank as a whole number from 0, got -1"),
        ({}, (True, 4, "a:1"), "got True"),
        ({}, (4, 4, "a:1"), r"rank in \[0, 4\), as world_size says, got 4"),
        ({}, (0, 0, "a:1"), r"rank in \[0, 0\)"),
        ({"LOCAL_RANK": "x"}, (0, 1, "a:1"), "LOCAL_RANK as a whole number"),
        ({}, (0, 1, "a"), "'host:port', .*, got 'a'"),
        ({}, (0, 1, "a:0"), "got 'a:0'"),
        ({}, (0, 1, "a:65536"), "got 'a:65536'"),
        ({}, (0, 1, "::1:80"), "IPv4"),
        ({}, (0, 1, 80), "got 80"),
    ],
)
def test_what_is_wrong_is_named(environment: Any, changes: Any, arguments: Any, said: str) -> None:
    environment(**changes)
    with pytest.raises(ArgumentError, match=said):
        find_rank_assignment(*arguments)


class Shelf:
    """A store in a dictionary."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.is_open = True

    def get(self, key: str) -> bytes | None:
        return self.values.get(key)

    def set(self, key: str, value: bytes) -> None:
        assert len(key) + len(value) <= 200
        self.values[key] = value

    def close(self) -> None:
        self.is_open = False


@pytest.fixture
def jumping_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    JumpingClock().install(monkeypatch)


@pytest.mark.usefixtures("jumping_clock")
def test_rank_0_answers_when_all_have_come() -> None:
    shelf = Shelf()
    shelf.values = {"world/1": b"one 3", "world/2": b"two 3"}
    assert TcpBootstrap(shelf, "here:80", (0, 1, 2), 0, 1).share(b"id") == b"id"
    assert (shelf.get("one"), shelf.get("two")) == (b"id", b"id")

    del shelf.values["world/2"], shelf.values["one"]
    with pytest.raises(CollectiveTimeoutError, match=r"5 s, where rank 0 .*missing: \[2\]"):
        TcpBootstrap(shelf, "here:80", (0, 1, 2), 0, 5).share(b"id")
    assert shelf.get("one") is None


def test_ranks_of_worlds_of_different_sizes_are_told() -> None:
    shelf = Shelf()
    shelf.values = {"world/1": b"one 3"}
    with pytest.raises(RankMismatchError, match="got 2 on rank 0 and 3 on rank 1"):
        TcpBootstrap(shelf, "here:80", (0, 1), 0, 1).share(b"id")


@pytest.mark.usefixtures("jumping_clock")
def test_groups_have_keys_of_their_own() -> None:
    shelf = Shelf()
    world = TcpBootstrap(shelf, "here:80", tuple(range(2000)), 1999, 5)
    pair = world.group([7, 1999])
    groups = [
        world, pair, world.group([7, 1999]), world.group([8, 1999]), world.group(range(2000)),
        pair.group([0, 1]),
    ]  # fmt: skip
    for group in groups:
        with pytest.raises(CollectiveTimeoutError, match=r"where rank 1999 waits; rank 0 of the"):
            group.share(None)
    assert len(shelf.values) == len(groups)
    assert (pair.ranks, pair.rank, pair.timeout) == ((7, 1999), 1, 5)


def test_only_the_world_ends_the_store() -> None:
    shelf = Shelf()
    world = TcpBootstrap(shelf, "here:80", (0, 1), 1, 1)
    world.group([1]).close()
    assert shelf.is_open
    assert shelf.values == {}
    world.close()
    assert not shelf.is_open
    assert shelf.values == {"end/1": b""}


def test_the_time_between_two_looks_grows_to_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = JumpingClock()
    clock.install(monkeypatch)
    looks = [clock.monotonic() for _ in polls(10.0)]
    pauses = np.diff(looks)
    assert looks[0] == 0
    assert looks[-1] == pytest.approx(10.0)
    assert np.allclose(pauses[1:14] / pauses[:13], 2)
    assert pauses.max() == pytest.approx(1.0)
    assert len(list(polls(0.0))) == 1

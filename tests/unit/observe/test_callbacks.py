"""`observe`: the selection of callbacks, and their effects."""

from __future__ import annotations

import gc
import threading
from typing import Any, get_args

import pytest

import nbrt
from nbrt.errors import ArgumentError, ArgumentTypeError, NbrtCleanupWarning
from nbrt.observe.callbacks import Observation, ObservedKind, observe
from nbrt.runtime import commands

pytestmark = pytest.mark.usefixtures("no_garbage")

# The registries of torch/cuda/_gpu_trace.py in torch 2.13, without "CUDA" and in its words.
TORCH_KINDS = {
    "event_creation",
    "event_deletion",
    "event_record",
    "event_wait",
    "memory_allocation",
    "memory_deallocation",
    "stream_creation",
    "device_synchronization",
    "stream_synchronization",
    "event_synchronization",
}


def fail(seen: Observation) -> None:
    raise ValueError(seen.kind)


def test_the_kinds_are_those_of_torch() -> None:
    assert set(get_args(ObservedKind)) == TORCH_KINDS


def test_a_function_of_its_own_goes_before_the_common_one() -> None:
    common: list[Observation] = []
    records: list[Observation] = []
    stream = nbrt.Stream("cpu:0")
    with observe(common.append, on_event_record=records.append):
        stream.record_event()
    assert [seen.kind for seen in records] == ["event_record"]
    assert [seen.kind for seen in common] == ["event_creation", "event_deletion"]


def test_memory_is_not_watched_for_other_kinds() -> None:
    with observe(on_stream_creation=fail):
        assert commands.hooks
        assert not commands.memory_is_hooked
        assert nbrt.zeros(3, device="cpu:0").size == 3
    assert not commands.hooks


def test_remove_ends_it_and_may_be_called_again() -> None:
    seen: list[Observation] = []
    observer = observe(on_stream_synchronization=seen.append)
    nbrt.Stream("cpu:0").synchronize()
    observer.remove()
    observer.remove()
    nbrt.Stream("cpu:0").synchronize()
    assert len(seen) == 1
    assert not commands.hooks


def test_a_dropped_handle_ends_nothing() -> None:
    seen: list[Observation] = []
    hooks = commands.hooks
    observers = [observe(on_stream_synchronization=seen.append)]
    remove = observers.pop().remove
    gc.collect()
    nbrt.Stream("cpu:0").synchronize()
    remove()
    assert len(seen) == 1
    assert commands.hooks == hooks


def test_a_callback_that_raises_only_warns() -> None:
    stream = nbrt.Stream("cpu:0")

    def work() -> None:
        event = stream.record_event()
        event.synchronize()
        assert event.query()
        assert not nbrt.zeros(3, device="cpu:0").any()
        stream.synchronize()

    with observe(fail), pytest.warns(NbrtCleanupWarning) as warned:
        work()
    texts = [str(warning.message) for warning in warned]
    for kind in ("event_creation", "event_record", "event_synchronization", "memory_allocation"):
        assert sum(f"ValueError('{kind}')" in text for text in texts) == 1


def test_what_a_callback_does_itself_is_not_observed() -> None:
    stream = nbrt.Stream("cpu:0")
    seen: list[str] = []

    def look(observation: Observation) -> None:
        seen.append(observation.kind)
        stream.synchronize()

    with observe(look):
        stream.synchronize()
        nbrt.synchronize("cpu:0")
    assert seen == ["stream_synchronization", "device_synchronization"]


def test_other_threads_are_observed_in_themselves() -> None:
    threads: list[int] = []
    stream = nbrt.Stream("cpu:0")
    with observe(on_stream_synchronization=lambda seen: threads.append(threading.get_ident())):
        thread = threading.Thread(target=stream.synchronize)
        thread.start()
        thread.join()
    assert threads == [thread.ident]


def test_observations_keep_no_array_and_no_event() -> None:
    seen: list[Observation] = []
    before = nbrt.memory_allocated("cpu:0")
    with observe(seen.append):
        x = nbrt.empty(1000, device="cpu:0")
        del x
        nbrt.Stream("cpu:0").record_event()
        assert nbrt.memory_allocated("cpu:0") == before
    assert {"memory_deallocation", "event_deletion"} <= {each.kind for each in seen}


@pytest.mark.parametrize(
    ("given", "named", "error", "message"),
    [
        ((), {}, ArgumentError, "or one for all, got none"),
        ((3,), {}, ArgumentTypeError, "at event_record, got 3"),
        ((), {"on_event_wait": "print"}, ArgumentTypeError, "at event_wait, got 'print'"),
        ((), {"on_event_sleep": print}, ArgumentError, "got on_event_sleep"),
    ],
)
def test_bad_arguments(given: Any, named: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        observe(*given, **named)
    assert not commands.hooks

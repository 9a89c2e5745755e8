"""Annotations: per thread and task, nested, restored after errors."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from nbrt.errors import ArgumentTypeError
from nbrt.observe.history.annotations import annotate, current_annotations, listen

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


class Heard(list[tuple[str, str]]):
    def annotated(self, name: str, stage: str) -> None:
        self.append((stage, name))


def test_nests_and_restores() -> None:
    with annotate("a"):
        with annotate("b"):
            assert current_annotations() == ("a", "b")
        with pytest.raises(KeyError), annotate("c"):
            raise KeyError
        assert current_annotations() == ("a",)
    assert current_annotations() == ()


def test_one_object_nests_in_itself() -> None:
    step = annotate("step")
    with step, step:
        assert current_annotations() == ("step", "step")
    assert current_annotations() == ()


def test_decorates_functions_and_coroutine_functions() -> None:
    @annotate("load")
    def load(number: int, *, scale: int) -> tuple[int, tuple[str, ...]]:
        return number * scale, current_annotations()

    @annotate("fetch")
    async def fetch() -> tuple[str, ...]:
        await asyncio.sleep(0)
        return current_annotations()

    assert load(3, scale=2) == (6, ("load",))
    assert load.__name__ == "load"
    assert asyncio.run(fetch()) == ("fetch",)
    assert current_annotations() == ()


def test_tasks_and_threads_do_not_see_each_other() -> None:
    async def work(name: str, met: asyncio.Barrier) -> tuple[str, ...]:
        with annotate(name):
            await met.wait()
            return current_annotations()

    async def both() -> list[tuple[str, ...]]:
        met = asyncio.Barrier(2)
        return await asyncio.gather(work("one", met), work("two", met))

    seen: list[tuple[str, ...]] = []
    with annotate("outer"):
        thread = threading.Thread(target=lambda: seen.append(current_annotations()))
        thread.start()
        thread.join()
        assert asyncio.run(both()) == [("outer", "one"), ("outer", "two")]
    assert seen == [()]


def test_a_block_in_a_suspended_generator_ends_out_of_order() -> None:
    def pieces() -> Iterator[int]:
        with annotate("inside"):
            yield 1

    running = pieces()
    with annotate("outside"):
        next(running)
        assert current_annotations() == ("outside", "inside")
    assert current_annotations() == ("inside",)
    running.close()
    assert current_annotations() == ()


def test_listeners_hear_every_thread_while_they_listen() -> None:
    heard = Heard()
    with listen(heard):
        with annotate("a"), annotate("b"):
            pass
        thread = threading.Thread(target=annotate("t")(lambda: None))
        thread.start()
        thread.join()
    with annotate("later"):
        pass
    assert heard == [
        ("START", "a"),
        ("START", "b"),
        ("END", "b"),
        ("END", "a"),
        ("START", "t"),
        ("END", "t"),
    ]


def test_refuses_what_it_cannot_name() -> None:
    def numbers() -> Iterator[int]:
        yield 1

    async def stream() -> AsyncIterator[int]:
        yield 1

    for generator in (numbers, stream):
        with pytest.raises(ArgumentTypeError, match="inside it"):
            annotate("x")(generator)
    with pytest.raises(ArgumentTypeError, match="@annotate"):
        annotate(numbers)  # type: ignore[arg-type]  # the mistake that is tested

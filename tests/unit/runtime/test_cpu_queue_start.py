"""A CPU stream's thread starts once, whatever happens meanwhile."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from nbrt.backends.cpu.queues import WorkerQueue

if TYPE_CHECKING:
    import pytest


def test_a_finalizer_may_queue_work_while_the_thread_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The garbage collector may run there, and end arrays that the stream has used."""
    queue = WorkerQueue(0, 0, "a queue")
    seen: list[str] = []
    made: list[threading.Thread] = []

    class Thread(threading.Thread):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            made.append(self)
            if len(made) == 1:
                queue.put(seen.append, "of a finalizer")

    with monkeypatch.context() as patch:
        patch.setattr(threading, "Thread", Thread)
        queue.put(seen.append, "first")
    queue.synchronize()
    queue.close()
    assert seen == ["first", "of a finalizer"]
    assert sum(thread.ident is not None for thread in made) == 1

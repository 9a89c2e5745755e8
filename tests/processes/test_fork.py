"""Children of a process that uses nbrt: forked before or after initialization, or spawned."""

from __future__ import annotations

import sys

import pytest

from helpers.processes import output_of, run_python

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no fork on Windows")

FORKED = """
    import os, signal, sys, warnings
    import numpy as np
    import nbrt
    from nbrt.errors import ForkedProcessError
    from nbrt.testing import Latch

    def fork():
        "Fork beside threads; in the child, a hang is a failure."
        sys.stdout.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads and fork: the point
            pid = os.fork()
        if pid == 0:
            signal.alarm(300)
        return pid

    def in_child(function):
        "Fork, run `function` in the child, return what it gave back through the exit code."
        pid = fork()
        if pid == 0:
            try:
                os._exit(function())
            except BaseException:
                import traceback
                traceback.print_exc()
                os._exit(99)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""

USES = {
    "new stream": "nbrt.Stream('cpu:0', -1)",
    "pooled stream": "nbrt.Stream('cpu:0')",
    "default stream": "nbrt.default_stream('cpu:0').call(int)",
    "submit": "stream.call(int)",
    "synchronize": "stream.synchronize()",
    "query": "stream.query()",
    "device synchronize": "nbrt.synchronize('cpu:0')",
    "record": "nbrt.Event().record(stream)",
    "wait": "event.wait(nbrt.default_stream('cpu:0'))",
    "event synchronize": "event.synchronize()",
    "event query": "event.query()",
    "empty": "nbrt.empty(3)",
    "zeros": "nbrt.zeros(3, stream=stream)",
    "copy": "nbrt.copy(x, 1.0)",
    "to_host": "nbrt.to_host(x)",
    "draw": "generator.random(4)",
    "draw into": "generator.random(out=x, dtype='float32')",
    "new generator": "nbrt.Generator(1).random(4)",
    "memory": "nbrt.memory_allocated()",
    "empty_cache": "nbrt.empty_cache()",
}


def test_use_after_a_fork_names_spawn() -> None:
    """The child is forked while a stream is held and its event is pending: nothing may hang."""
    code = (
        FORKED
        + f"""
    stream = nbrt.Stream("cpu:0")
    x = nbrt.zeros(3)
    generator = nbrt.Generator(1)
    for _ in range(2):
        generator.random(out=x, dtype="float32")
    latch = Latch()
    latch.hold(stream)
    event = stream.record_event()
    latch.wait_reached()

    def attempt(text):
        def child():
            try:
                eval(text)
            except ForkedProcessError as error:
                return 0 if "spawn" in str(error) and "the cpu backend" in str(error) else 1
            return 2
        return child

    for name, text in {USES!r}.items():
        print(name, in_child(attempt(text)))
    latch.release()
    nbrt.synchronize()
    """
    )
    lines = output_of(code).splitlines()
    assert lines == [f"{name} 0" for name in USES]


HELD = {
    "draw": "refused(lambda: generator.random(out=x))",
    "first draw": "refused(lambda: generator.standard_normal(out=x))",
    "kernel state": "refused(lambda: generator.kernel_state(8))",
    "state": "generator.state == nbrt.PhiloxState(1, 64)",
    "new seed": "generator.manual_seed(5).state == nbrt.PhiloxState(5, 0)",
    "advance": "generator.advance(8).get_offset() == 72",
    "spawn": "generator.spawn(1)[0].state == nbrt.Generator(1).spawn(1)[0].state",
    "copy": "generator.clone().state == nbrt.PhiloxState(1, 64)",
    "default": "nbrt.random.default_generator('cpu:1').state.offset == 0",
    "default seed": "nbrt.random.manual_seed(3) is not None and nbrt.random.initial_seed() == 3",
}
"""Uses of generators in a child of a process whose threads held the locks of generators."""


@pytest.mark.parametrize("is_initialized", [True, False])
def test_locks_of_generators_that_are_held_at_a_fork_do_not_hang_the_child(
    is_initialized: bool,
) -> None:
    code = (
        FORKED
        + f"""
    import threading
    from nbrt.random import defaults

    generator, x = nbrt.Generator(1, "cpu:0"), np.zeros(32)
    if {is_initialized}:
        generator.random(out=x)
    else:
        generator._position.reserve(64)  # a method would initialise the backend
    held, end = threading.Event(), threading.Event()

    def hold():
        with generator._position.lock, defaults._process.lock:
            held.set()
            end.wait()

    def refused(draw):
        "Draw; a backend that the parent has initialised refuses, and the draw takes no words."
        try:
            draw()
        except ForkedProcessError as error:
            return {is_initialized} and "spawn" in str(error) and generator.get_offset() == 64
        return not {is_initialized} and generator.get_offset() > 64

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    for name, text in {HELD!r}.items():
        print(name, in_child(lambda: 0 if eval(text) else 1))
    end.set()
    thread.join()
    """
    )
    lines = output_of(code, environment={"NBRT_CPU_DEVICES": "2"}).splitlines()
    assert lines == [f"{name} 0" for name in HELD]


def test_a_draw_after_a_fork_does_not_wait_for_a_replay_of_the_parent() -> None:
    code = (
        FORKED
        + """
    generator, x = nbrt.Generator(1), np.zeros(8)
    generator.random(out=x)
    generator._position.defer(lambda: os._exit(3))  # as a replay whose loops draw does

    def child():
        try:
            generator.random(out=x)
        except ForkedProcessError:
            return 0
        return 1

    print(in_child(child))
    """
    )
    assert output_of(code) == "0\n"


def test_launch_after_a_fork_names_spawn() -> None:
    code = """
        import os, signal, warnings
        import nbrt
        from nbrt.errors import ForkedProcessError
        from helpers.launches import increment

        x = nbrt.zeros(3)
        increment[1, 32](x)
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
        if pid == 0:
            signal.alarm(300)
            try:
                increment[1, 32](x)
            except ForkedProcessError as error:
                os._exit(0 if "spawn" in str(error) else 1)
            os._exit(2)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), x.tolist())
    """
    assert output_of(code) == "0 [1.0, 1.0, 1.0]\n"


def test_an_event_can_be_printed_after_a_fork() -> None:
    code = (
        FORKED
        + """
    event = nbrt.Stream("cpu:0").record_event()

    def child():
        return 0 if repr(event) == "Event(device='cpu:0', of another process)" else 1

    print(in_child(child))
    """
    )
    assert output_of(code) == "0\n"


def test_presence_may_be_asked_after_a_fork() -> None:
    code = (
        FORKED
        + """
    nbrt.zeros(3)

    def child():
        assert nbrt.is_available("cpu")
        assert nbrt.device_count("cpu") == 3
        with nbrt.device("cpu:2"):
            assert nbrt.current_device().index == 2
        return 0

    print(in_child(child))
    """
    )
    assert output_of(code, environment={"NBRT_CPU_DEVICES": "3"}) == "0\n"


def test_fork_before_initialisation_works() -> None:
    code = (
        FORKED
        + """
    assert nbrt.device_count("cpu") == 1 and nbrt.is_available("cpu")

    def child():
        stream = nbrt.Stream("cpu:0")
        seen = []
        stream.call(seen.append, 1)
        stream.synchronize()
        return 0 if seen == [1] and nbrt.zeros(3).sum() == 0 else 1

    print(in_child(child), in_child(child), child())
    """
    )
    assert output_of(code) == "0 0 0\n"


def test_a_forked_child_leaves_the_parents_work_alone() -> None:
    """Inherited arrays die and the child exits in the ordinary way, threads being gone."""
    code = (
        FORKED
        + """
    x = nbrt.zeros(1 << 20)
    stream = nbrt.Stream("cpu:0")
    latch = Latch()
    latch.hold(stream)
    stream.call(int)
    pid = fork()
    if pid == 0:
        del x
        sys.exit(7)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    latch.release()
    stream.synchronize()
    print(x.sum())
    """
    )
    assert output_of(code) == "7\n0.0\n"


def test_a_forked_child_leaves_pending_and_running_brief_launches_to_its_parent() -> None:
    """The fork comes while another thread runs a launch, and has the turn of all threads."""
    code = (
        FORKED
        + """
    import threading
    from numba import cuda
    from nbrt.backends.cpu import brief_launches, launch
    from helpers.endless import TURNS, counted, flags, wait_for

    brief_launches.BRIEF_NS = brief_launches._TINY_NS = launch.MIN_SHARED_NS = 10**18

    @nbrt.kernel
    def add(x, term):
        x[cuda.grid(1)] += term

    def warmed(kernel, *args):
        stream = nbrt.Stream("cpu:0")
        on_stream = kernel[1, 4, stream]
        for _ in range(12):
            on_stream(*args)
        stream.synchronize()
        return stream, on_stream

    x, out, seen = np.zeros(4), np.ones(4), flags()
    stream, on_stream = warmed(add, x, 0.0)
    running, run = warmed(counted, out, seen, 1)
    latch = Latch(60.0)
    latch.hold(stream)
    on_stream(x, 1.0)
    seen[:] = 0
    thread = threading.Thread(target=run, args=(out, seen, TURNS))
    thread.start()
    wait_for(seen)
    assert brief_launches._turn.owner is not None
    pid = fork()
    if pid == 0:
        try:
            on_stream(x, 1.0)
        except nbrt.errors.ForkedProcessError:
            free = brief_launches._turn.owner is None and brief_launches._turn.run(lambda: 7)
            sys.exit(free)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    assert brief_launches._turn.owner is not None
    running.cancel()
    thread.join()
    latch.release()
    on_stream(x, 1.0)
    stream.synchronize()
    print(x.tolist())
    """
    )
    assert output_of(code) == "7\n[2.0, 2.0, 2.0, 2.0]\n"


@pytest.mark.parametrize("is_first_used", [False, True])
def test_multiprocessing_fork(is_first_used: bool) -> None:
    code = f"""
        import multiprocessing, warnings
        import nbrt
        from helpers.children import draw_sum

        if {is_first_used}:
            nbrt.zeros(3)
        warnings.simplefilter("ignore", DeprecationWarning)
        context = multiprocessing.get_context("fork")
        with context.Pool(1) as pool:
            print(pool.apply(draw_sum, (100,)))
    """
    expected = "ForkedProcessError: True\n" if is_first_used else "4950.0\n"
    assert output_of(code) == expected


def test_multiprocessing_spawn_works_after_initialisation() -> None:
    code = """
        import multiprocessing
        import nbrt
        from helpers.children import draw_sum

        if __name__ == "__main__":
            nbrt.zeros(3)
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.apply(draw_sum, (100,)))
    """
    assert output_of(code) == "4950.0\n"


def test_values_travel_to_spawned_processes() -> None:
    code = """
        import multiprocessing
        import nbrt
        from helpers.children import echo

        if __name__ == "__main__":
            worker = nbrt.get_interface_for_device("cpu").worker()
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                sent = (nbrt.Device("cpu", 1), nbrt.PhiloxState(7, 8), worker)
                device, state, worker = pool.apply(echo, (sent,))
            print(device, state, worker.name, worker.current_device())
            print(worker.get_device_properties() == nbrt.get_device_properties("cpu"))
    """
    assert output_of(code) == "cpu:1 PhiloxState(seed=7, offset=8) cpu 0\nTrue\n"


def test_a_child_of_a_child() -> None:
    """A child forked before initialisation initialises for itself, and then forks."""
    code = (
        FORKED
        + """
    def grandchild():
        try:
            nbrt.zeros(3)
        except ForkedProcessError:
            return 5
        return 1

    def child():
        nbrt.zeros(3)
        return in_child(grandchild)

    print(in_child(child))
    """
    )
    done = run_python(code)
    assert (done.stdout, done.returncode) == ("5\n", 0), done.stderr

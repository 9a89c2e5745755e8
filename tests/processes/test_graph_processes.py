"""Graphs on CPU devices in child processes: signals, fork, and the end of the interpreter."""

from __future__ import annotations

from textwrap import dedent

import pytest

from helpers.processes import output_of

_HEAD = """
import os, signal
import numpy as np
import nbrt
from numba import cuda
from helpers.cpu_graphs import Graph
from helpers.endless import counted, flags, is_interrupted, TURNS
from nbrt.backends.cpu.graphs.layout import Operation
from nbrt.backends.graphs import ReplayValues

def add(x, value):
    x[cuda.grid(1)] += value

seen = flags()
count = counted.function
queue = nbrt.default_stream("cpu:0").queue
"""


def _run(code: str, **environment: str) -> str:
    return output_of(_HEAD + dedent(code), environment=environment)


@pytest.mark.parametrize(("grid", "threads"), [(1, "1"), (4, "1"), (4, "2")])
def test_interrupts_end_a_replay_and_later_ones_are_right(grid: int, threads: str) -> None:
    code = f"""
        graph, out, after = Graph(), np.ones(64 * {grid}), np.zeros(1)
        graph.launch(count, {grid}, 64, out, seen, TURNS)
        graph.launch(add, 1, 1, after, 1.0)
        program = graph.program()
        for _ in range(2):
            assert is_interrupted(lambda: program.replay(queue, ReplayValues()), seen)
        assert after[0] == 0
        out[:] = 1
        program.replay(queue, ReplayValues(scalars={{(0, 0, 2): 10}}))
        print((out == 45).all(), after[0])
    """
    assert _run(code, NBRT_CPU_THREADS=threads) == "True 1.0\n"


def test_interrupts_end_a_loop_of_short_kernels() -> None:
    code = """
        graph, flag, x = Graph(), np.ones(1, bool), np.zeros(1)

        def note(seen):
            seen[0] = 1

        graph.control("while", flag, [lambda: graph.launch(note, 1, 1, seen)], limit=2**62)
        program = graph.program()
        for _ in range(2):
            assert is_interrupted(lambda: program.replay(queue, ReplayValues()), seen)
        flag[0] = False
        program.replay(queue, ReplayValues())
        print("done")
    """
    assert _run(code) == "done\n"


@pytest.mark.parametrize("threads", ["1", "2"])
def test_interrupts_end_a_loop_of_calls_into_python(threads: str) -> None:
    code = """
        graph, flag = Graph(), np.ones(1, bool)

        def note(seen):
            seen[0] = 1

        def body():
            graph.launch(note, 4, 1, seen)  # several blocks: Python starts them
            graph.call(int)

        graph.control("while", flag, [body], limit=2**62)
        program = graph.program()
        for _ in range(10):
            assert is_interrupted(lambda: program.replay(queue, ReplayValues()), seen)
        flag[0] = False
        program.replay(queue, ReplayValues())
        print("done")
    """
    assert _run(code, NBRT_CPU_THREADS=threads) == "done\n"


def test_interrupts_end_branches_on_two_cores() -> None:
    code = """
        graph, joined = Graph(), np.zeros(1)
        first = graph.launch(add, 1, 1, joined, 1.0)
        ends = [graph.launch(count, 1, 64, np.ones(64), seen, 300_000, after=[first])
                for _ in range(2)]
        graph.launch(add, 1, 1, joined, 10.0, after=ends)
        program = graph.program()
        for _ in range(3):
            program.replay(queue, ReplayValues())
        endless = ReplayValues(scalars={(end.index, 0, 2): TURNS for end in ends})
        for _ in range(2):
            assert is_interrupted(lambda: program.replay(queue, endless), seen)
        program.replay(queue, ReplayValues())
        print(joined[0])
    """
    assert _run(code, NBRT_CPU_THREADS="2") == "46.0\n"


_SHARED = """
        graph, out = Graph(), np.ones(256)
        node = graph.launch(count, 4, 64, out, seen, 300_000)
        program = graph.program()
        program.replay(queue, ReplayValues())
        assert program._execution.assembly.instructions["operation"][0] == Operation.SHARED
        program.replay(queue, ReplayValues())
        few = ReplayValues(scalars={(node.index, 0, 2): 10})
"""


def test_interrupts_end_a_launch_that_two_threads_share() -> None:
    code = f"""{_SHARED}
        endless = ReplayValues(scalars={{(node.index, 0, 2): TURNS}})
        for _ in range(2):
            assert is_interrupted(lambda: program.replay(queue, endless), seen)
        out[:] = 1
        program.replay(queue, few)
        print((out == 45).all())
    """
    assert _run(code, NBRT_CPU_THREADS="2") == "True\n"


def test_a_cancelled_stream_ends_a_launch_that_two_threads_share() -> None:
    code = f"""{_SHARED}
        stream, many = nbrt.Stream("cpu:0"), ReplayValues(scalars={{(node.index, 0, 2): TURNS}})
        seen[0] = 0
        program.replay(stream.queue, many)
        while not seen[0]:
            pass
        stream.cancel()
        stream.synchronize()
        out[:] = 1
        program.replay(stream.queue, few)
        stream.synchronize()
        print((out == 45).all())
    """
    assert _run(code, NBRT_CPU_THREADS="2") == "True\n"


def test_a_forked_child_shares_launches_with_threads_of_its_own() -> None:
    code = f"""{_SHARED}
        def right():
            out[:] = 1
            program.replay(queue, few)
            return bool((out == 45).all())

        child = os.fork()
        if child == 0:
            program.replay(queue, ReplayValues())
            os._exit(right())
        status = os.waitpid(child, 0)[1]
        program.replay(queue, ReplayValues())
        print(os.waitstatus_to_exitcode(status), right())
    """
    assert _run(code, NBRT_CPU_THREADS="2") == "1 True\n"


def test_signal_handlers_run_during_a_replay_that_goes_on() -> None:
    code = """
        graph, flag = Graph(), np.ones(1, bool)

        def note(seen):
            seen[0] = 1

        def end(*_):
            flag[0] = False

        signal.signal(signal.SIGALRM, end)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        graph.control("while", flag, [lambda: graph.launch(note, 1, 1, seen)], limit=2**62)
        graph.program().replay(queue, ReplayValues())
        print(flag[0])
    """
    assert _run(code) == "False\n"


def test_a_replay_in_flight_ends_with_the_interpreter() -> None:
    code = """
        graph, out = Graph(), np.ones(64)
        graph.launch(count, 1, 64, out, seen, 10)
        graph.call(print, "replayed")
        program = graph.program()
        for _ in range(3):
            program.replay(nbrt.Stream("cpu:0").queue, ReplayValues())
    """
    assert _run(code) == "replayed\n" * 3


def test_a_forked_child_closes_the_program_of_its_parent() -> None:
    code = """
        graph, x = Graph(), np.zeros(1)
        graph.launch(add, 1, 1, x, 1.0)
        program = graph.program()
        program.replay(queue, ReplayValues())
        child = os.fork()
        if child == 0:
            program.close()
            del program, graph
            os._exit(int(x[0]))
        status = os.waitpid(child, 0)[1]
        program.replay(queue, ReplayValues())
        print(os.waitstatus_to_exitcode(status), x[0])
    """
    assert _run(code) == "1 2.0\n"


def test_a_crash_names_the_kernels_of_the_graph() -> None:
    from helpers.processes import run_python

    code = """
        import ctypes

        def crash(x):
            x[1 << 40] = 1.0

        graph = Graph()
        graph.launch(crash, 1, 1, np.zeros(1))
        graph.program().replay(queue, ReplayValues())
    """
    found = run_python(_HEAD + dedent(code))
    assert found.returncode < 0
    assert "the replay of a graph, with the kernels crash (" in found.stderr

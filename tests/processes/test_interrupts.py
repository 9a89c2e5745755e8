"""Signals, `Stream.cancel` and the end of the program during endless kernels."""

from __future__ import annotations

from textwrap import dedent

import pytest

from helpers.processes import output_of, run_python

_HEAD = """
import os, signal, threading, time
import numpy as np
import nbrt
from helpers.endless import *

seen = flags()
nbrt.set_device("cpu:0")
"""


def _run(code: str, **environment: str) -> str:
    return output_of(_HEAD + dedent(code), environment=environment)


@pytest.mark.parametrize(
    ("kernel", "grid", "right"),
    [
        ("counted", 1, "turns * (turns - 1) / 2"),
        ("counted", 256, "turns * (turns - 1) / 2"),
        ("integers", 1, None),
        ("diverging", 4, None),
        ("meeting", 1, "1 + turns"),
        ("parted", 1, "1 + turns"),
        ("parted", 64, None),
        ("alone", 1, "turns * (turns - 1) / 2"),
        ("meeting_grid", 2, "1 + turns"),
    ],
)
def test_interrupts_end_launches_and_later_ones_are_right(
    kernel: str, grid: int, right: str | None
) -> None:
    code = f"""
        from nbrt.backends.cpu.block_scheduler import set_num_threads

        for threads in (1, 2):
            set_num_threads(threads)
            out = np.ones(64 * {grid})
            launch = {kernel}[{grid}, 64]
            assert is_interrupted(lambda: launch(out, seen, TURNS), seen)
            assert is_interrupted(lambda: launch(out, seen, TURNS), seen)
            turns = 10
            out[:] = 1
            launch(out, seen, turns)
            print((out == ({right})).all())
    """
    found = _run(code).split()
    assert len(found) == 2
    assert set(found) <= ({"True", "False"} if right is None else {"True"})


@pytest.mark.parametrize("mode", ["plain", "checked", "interpreted"])
def test_interrupts_end_endless_loops(mode: str) -> None:
    code = f"""
        from nbrt.config import override

        out = np.zeros(64)
        kernel = endless.checked() if "{mode}" == "checked" else endless
        with override(interpret="{mode}" == "interpreted"):
            for block in (1, 64):
                seen[:] = (0, 1)
                kernel[1, block](out, seen)  # compiled
                assert out[block - 1] == 7 and not out[block:].any()
                assert is_interrupted(lambda: kernel[1, block](out, seen), seen)
        print("back")
    """
    assert _run(code) == "back\n"


@pytest.mark.parametrize("kernel", ["counted", "meeting", "parted", "alone"])
def test_interrupts_end_checked_launches(kernel: str) -> None:
    code = f"""
        out = np.ones(64)
        launch = {kernel}.checked()[1, 64]
        try:
            launch(out, seen, 2)
        except nbrt.errors.KernelCheckError:
            pass  # all threads set seen[0], which is a race
        assert is_interrupted(lambda: launch(out, seen, TURNS), seen)
        print("back")
    """
    assert _run(code) == "back\n"


def test_an_interrupted_draw_leaves_the_generator_as_it_was() -> None:
    code = """
        generator = nbrt.random.Generator(seed=1)
        generator.gamma(0.5, size=10, dtype="float32")
        before = generator.get_state()
        out = np.full(60_000_000, np.nan, np.float32)

        def send():
            while np.isnan(out[0]):
                time.sleep(0.001)
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=send, daemon=True).start()
        try:
            generator.gamma(0.5, dtype="float32", out=out)
        except KeyboardInterrupt:
            whole = not np.isnan(out).any()  # the draw may have been too fast to be met
            assert whole or (generator.get_state() == before).all()
        generator.set_state(before)
        same = nbrt.random.Generator(seed=1)
        same.set_state(before)
        assert (generator.gamma(0.5, size=1000) == same.gamma(0.5, size=1000)).all()
        print("back")
    """
    assert _run(code, NBRT_CPU_THREADS="1") == "back\n"


def test_the_traceback_ends_at_the_launch() -> None:
    code = _HEAD + dedent(
        """
        send_when(seen)
        endless[1, 1](np.zeros(1), seen)
        """
    )
    done = run_python(code)
    assert done.returncode != 0
    lines = done.stderr.splitlines()
    assert lines[-1] == "KeyboardInterrupt"
    assert len(lines) <= 15
    assert "numba" not in done.stderr


def test_an_interrupt_while_compiling_is_short_and_the_compiler_goes_on() -> None:
    code = """
        import traceback
        from numba import cuda
        from numba.core import typeinfer

        new = time.time_ns()  # compiled, whatever is on disk

        @nbrt.kernel
        def twice(x):
            if new:
                x[cuda.grid(1)] *= 2

        infer, x = typeinfer.TypeInferer.propagate, np.ones(4)

        def interrupted(self, *args, **options):
            signal.raise_signal(signal.SIGINT)
            return infer(self, *args, **options)

        typeinfer.TypeInferer.propagate = interrupted
        try:
            twice[1, 4](x)
        except KeyboardInterrupt:
            print(len(traceback.format_exc().splitlines()) <= 15)
        typeinfer.TypeInferer.propagate = infer
        twice[1, 4](x)
        print(x)
    """
    assert _run(code) == "True\n[2. 2. 2. 2.]\n"


def test_handlers_of_other_signals_run_during_a_launch() -> None:
    code = """
        class Ring(TypeError):
            pass

        def ring(number, frame):
            raise Ring("at the door")

        signal.signal(signal.SIGALRM, ring)
        send_when(seen, signal.SIGALRM)
        try:
            endless[1, 1](np.zeros(1), seen)
        except Ring as error:
            print(error)

        def end(number, frame):
            inner = np.zeros(2)
            endless[2, 1](inner, np.array([0, 1]))  # a launch within a launch
            print("handled", inner)
            seen[1] = 1

        signal.signal(signal.SIGALRM, end)
        out = np.zeros(1)
        seen[:] = 0
        send_when(seen, signal.SIGALRM)
        endless[1, 1](out, seen)
        print(out)
    """
    assert _run(code) == "at the door\nhandled [7. 7.]\n[7.]\n"


def test_launches_of_other_threads_are_not_interrupted() -> None:
    code = """
        out = np.zeros(1)
        is_done = threading.Event()

        def work():
            endless[1, 1](out, seen)
            is_done.set()

        try:
            threading.Thread(target=work).start()
            send_when(seen)
            is_done.wait()
        except KeyboardInterrupt:
            print("interrupted:", is_done.is_set())
        seen[1] = 1
        is_done.wait()
        print(out)
    """
    assert _run(code) == "interrupted: False\n[7.]\n"


def test_cancel_ends_what_an_interrupted_synchronize_waited_for() -> None:
    code = """
        stream, other = nbrt.Stream(), nbrt.Stream()
        x = np.zeros(4)
        endless[1, 1, stream](np.zeros(1), seen)
        for _ in range(3):
            stream.call(lambda: x.__iadd__(1))
        event = stream.record_event()
        other.wait_event(event)
        other.call(lambda: x.__iadd__(10))
        try:
            send_when(seen)
            stream.synchronize()
        except KeyboardInterrupt:
            print(stream.cancel(), stream.cancel())
        stream.synchronize()
        other.synchronize()
        print(event.query(), x)
        stream.call(lambda: x.__iadd__(100))
        stream.synchronize()
        print(x[0])
    """
    assert _run(code) == "3 0\nTrue [10. 10. 10. 10.]\n110.0\n"


def test_cancelling_one_launch_of_a_plan_leaves_the_others() -> None:
    code = """
        streams = [nbrt.Stream(), nbrt.Stream()]
        observed, outs = [flags(), flags(), flags()], [np.zeros(4), np.zeros(4), np.zeros(4)]
        for stream, one, out in zip(streams, observed, outs):
            endless[4, 1, stream](out, one)
        thread = threading.Thread(target=lambda: endless[4, 1](outs[2], observed[2]))
        thread.start()
        for one in observed:
            wait_for(one)
        streams[0].cancel()
        streams[0].synchronize()
        for one in observed[1:]:
            one[1] = 1
        streams[1].synchronize()
        thread.join()
        print((outs[0] == 7).any(), *outs[1:])
    """
    assert _run(code) == "False [7. 7. 7. 7.] [7. 7. 7. 7.]\n"


def test_a_cancelled_stream_does_not_wait_for_others() -> None:
    code = """
        stream, other, gate = nbrt.Stream(), nbrt.Stream(), threading.Event()
        other.call(gate.wait)
        stream.wait_stream(other)
        stream.call(print, "not reached")
        print(stream.cancel())
        stream.synchronize()
        gate.set()
    """
    assert _run(code) == "1\n"


def test_endless_work_does_not_keep_the_interpreter() -> None:
    code = _HEAD + dedent(
        """
        stream = nbrt.Stream()
        stream.call(print, "work before is done")
        endless[1, 1, stream](np.zeros(1), seen)
        stream.call(print, "not reached")
        other = nbrt.Stream()
        other.wait_stream(stream)
        other.call(print, "the other stream goes on")
        """
    )
    done = run_python(code, environment={"NBRT_EXIT_TIMEOUT": "0.1"})
    assert done.returncode == 0
    assert done.stdout == "work before is done\nthe other stream goes on\n"
    assert "NbrtCleanupWarning: kernel endless was stopped on Stream(device='cpu:0'" in done.stderr
    assert "1 command(s)" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_interrupt_at_the_end_cancels_at_once() -> None:
    code = _HEAD + dedent(
        """
        stream = nbrt.Stream()
        endless[1, 1, stream](np.zeros(1), seen)
        idle = nbrt.Stream()
        idle.call(int)

        def send():
            try:
                while True:
                    idle.record_event()
                    time.sleep(0.001)
            except nbrt.errors.StreamError:  # the end has begun: streams are closed
                os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=send, daemon=True).start()
        wait_for(seen)
        print("end")
        """
    )
    done = run_python(code, environment={"NBRT_EXIT_TIMEOUT": "1000"})
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")

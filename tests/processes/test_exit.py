"""The end of the interpreter: work completes, failures are reported, no thread hangs."""

from __future__ import annotations

from helpers.processes import output_of, run_python


def test_pending_work_is_finished() -> None:
    code = """
        import atexit, threading
        import nbrt

        gate = threading.Event()
        stream = nbrt.Stream("cpu:0")
        stream.call(gate.wait)
        for number in range(5):
            stream.call(print, number)
        other = nbrt.Stream("cpu:0")
        other.wait_stream(stream)
        other.call(print, "the other stream")
        atexit.register(gate.set)  # runs before nbrt's own, which is registered already
        print("the end of the program")
    """
    expected = "the end of the program\n0\n1\n2\n3\n4\nthe other stream\n"
    assert output_of(code) == expected


def test_a_failure_that_nobody_asked_for_is_told() -> None:
    code = """
        import nbrt

        def work():
            raise ZeroDivisionError("planned")

        for _ in range(2):
            nbrt.Stream("cpu:0").call(work)
        after = nbrt.Stream("cpu:0")
        after.call(print, "other streams go on")
    """
    done = run_python(code)
    assert done.returncode == 0
    assert done.stdout == "other streams go on\n"
    assert done.stderr.count("NbrtCleanupWarning") >= 2
    assert done.stderr.count("ZeroDivisionError: planned") == 2
    assert "Exception ignored" not in done.stderr


def test_warnings_that_are_errors_stop_nothing() -> None:
    code = """
        import nbrt

        def work():
            raise ZeroDivisionError("planned")

        streams = [nbrt.Stream("cpu:0") for _ in range(3)]
        for stream in streams:
            stream.call(work)
        nbrt.Stream("cpu:0").call(print, "other streams go on")
    """
    done = run_python(code, "-W", "error")
    assert done.returncode == 0
    assert done.stdout == "other streams go on\n"
    assert done.stderr.count("NbrtCleanupWarning: work failed") == 3
    assert "Traceback" not in done.stderr


def test_no_thread_is_left_when_the_interpreter_ends() -> None:
    code = """
        import atexit, threading
        import nbrt

        def report():
            print([thread.name for thread in threading.enumerate()])

        atexit.register(report)  # runs after nbrt's own, which is registered later
        from nbrt.backends.cpu import queues

        queues._IDLE_SECONDS = 300  # no idle thread ends
        for _ in range(8):
            nbrt.Stream("cpu:0").call(int)
        assert threading.active_count() == 9
    """
    assert output_of(code) == "['MainThread']\n"


def test_arrays_events_and_streams_may_outlive_everything() -> None:
    code = """
        import builtins
        import nbrt

        stream = nbrt.Stream("cpu:0")
        builtins.kept = [
            nbrt.zeros(1 << 20), nbrt.zeros(3, stream=stream)[1:], stream, stream.record_event(),
            nbrt.Generator(3), nbrt.device("cpu:0"),
        ]
        kept.append(kept)
        print("done")
    """
    assert output_of(code, "-W", "error") == "done\n"


def test_an_exception_of_the_program_is_shown_and_work_is_finished() -> None:
    code = """
        import nbrt

        nbrt.Stream("cpu:0").call(print, "finished")
        raise SystemExit("stopped by the program")
    """
    done = run_python(code)
    assert (done.returncode, done.stdout) == (1, "finished\n")
    assert done.stderr == "stopped by the program\n"


def test_thousands_of_idle_streams_cost_no_threads() -> None:
    code = """
        import threading
        import nbrt

        streams = {
            nbrt.Stream(device, priority)
            for device in range(64)
            for priority in (0, -1)
            for _ in range(32)
        }
        print(len(streams), threading.active_count())
        for stream in streams:
            stream.synchronize()
            assert stream.query()
        print(threading.active_count())
    """
    settings = {"NBRT_CPU_DEVICES": "64", "NBRT_DEVICE": "cpu"}
    assert output_of(code, environment=settings) == "4096 1\n1\n"


def test_an_idle_thread_ends() -> None:
    code = """
        import threading
        import nbrt
        from nbrt.backends.cpu import queues

        queues._IDLE_SECONDS = 0.01
        stream = nbrt.Stream("cpu:0")
        for _ in range(3):
            stream.call(print, "work")
            stream.synchronize()
            for worker in threading.enumerate():
                if "Stream" in worker.name:
                    worker.join(300)
            print(threading.active_count(), stream.query())
            stream.synchronize()
    """
    assert output_of(code) == "work\n1 True\n" * 3


BRIEF = """
    import atexit, os, threading
    import numpy as np
    import nbrt
    from numba import cuda
    from nbrt.backends.cpu import brief_launches, launch

    brief_launches.BRIEF_NS = launch.MIN_SHARED_NS = 10**18  # all are brief

    @nbrt.kernel
    def affine(x, factor, term):
        i = cuda.grid(1)
        x[i] = x[i] * factor + term

    stream = nbrt.Stream("cpu:0")
    kernel = affine[1, 4, stream]
    x = np.zeros(4)
    for _ in range(12):
        kernel(x, 1.0, 0.0)
    stream.synchronize()
    gate = threading.Event()
    stream.call(gate.wait)
    for turn in range(3):
        kernel(x, 2.0, 1.0)
    stream.call(lambda: print(x.tolist()))
"""


def test_pending_brief_launches_are_finished() -> None:
    code = BRIEF + "    atexit.register(gate.set)\n"
    assert output_of(code) == "[7.0, 7.0, 7.0, 7.0]\n"


def test_a_process_that_ends_at_once_drops_pending_brief_launches() -> None:
    done = run_python(BRIEF + "    print('the end', flush=True)\n    os._exit(3)\n")
    assert (done.returncode, done.stdout, done.stderr) == (3, "the end\n", "")

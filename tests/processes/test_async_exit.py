"""``NBRT_ASYNC=1`` at the end of a program, in forked children and at Ctrl-C."""

from __future__ import annotations

from typing import TYPE_CHECKING

from helpers.processes import run_python

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
    import os
    import nbrt
    from numba import cuda

    @nbrt.kernel
    def add(out, step):
        i = cuda.grid(1)
        if i < out.size:
            out[i] += step

    @nbrt.kernel
    def broken(out):
        out[0] = out.nonsense

    stream = nbrt.{stream}("cpu:0")
    with nbrt.stream(stream):
        out = nbrt.zeros(4, "int64")
        stream.synchronize()
"""


def run(tmp_path: Path, code: str, stream: str = "Stream", **environment: str) -> str:
    """Run the program and further code in its block; return what it prints."""
    settings = {
        "NBRT_ASYNC": "1",
        "NBRT_DEVICE": "cpu",
        "NBRT_CACHE_DIR": str(tmp_path),
        "NBRT_COMPILE_WORKERS": "1",
    }
    done = run_python(PROGRAM.format(stream=stream) + code, environment=settings | environment)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_submitted_work_is_done_at_exit(tmp_path: Path) -> None:
    for stream in ("Stream", "default_stream"):
        text = run(
            tmp_path / stream,
            """
        add[1, 4](out, 3)
        stream.call(lambda: os.write(1, str(out.tolist()).encode()))
        os.write(1, b"end of the program ")
    """,
            stream,
        )
        assert text == "end of the program [3, 3, 3, 3]"


def test_an_error_that_no_call_raised_is_a_warning(tmp_path: Path) -> None:
    text = run(
        tmp_path,
        """
        broken[1, 1](out)
        stream.call(print, "never")
    """,
    )
    assert "NbrtCleanupWarning" in text
    assert "CompileError" in text
    assert "broken[1, 1](out)" in text or '"<string>", line' in text
    assert "1 later command(s) of the stream were dropped" in text
    assert text.count("never") == 0


def test_the_end_of_a_deferral_leaves_no_thread(tmp_path: Path) -> None:
    text = run(
        tmp_path,
        """
        add[1, 4](out, 3)
        stream.synchronize()
        import threading
        for thread in threading.enumerate():
            if thread.name.startswith("compilations of"):
                thread.join()
        from nbrt.runtime import commands
        print(stream.deferral, commands.hooks)
    """,
    )
    assert text == "None ()\n"


def test_a_forked_child_has_no_deferrals(tmp_path: Path) -> None:
    text = run(
        tmp_path,
        """
        import threading
        from nbrt.runtime import commands
        from nbrt.runtime.deferral import defer
        opened = threading.Event()
        defer(stream, opened.wait)
        stream.call(print, "in the parent")
        assert commands.hooks
        child = os.fork()
        if child == 0:
            os._exit(len(commands.hooks))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        opened.set()
        stream.synchronize()
    """,
    )
    assert text == "0\nin the parent\n"


def test_ctrl_c_ends_a_wait(tmp_path: Path) -> None:
    text = run(
        tmp_path,
        """
        import signal
        import threading
        from nbrt.runtime.deferral import defer
        signal.signal(signal.SIGINT, signal.default_int_handler)
        opened, waiting = threading.Event(), threading.Event()

        def gate():
            waiting.set()
            opened.wait()

        def interrupt():
            waiting.wait()
            os.kill(os.getpid(), signal.SIGINT)

        defer(stream, gate)
        stream.call(print, "later")
        thread = threading.Thread(target=interrupt)
        try:
            thread.start()
            stream.synchronize()
            thread.join()
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        opened.set()
        stream.synchronize()
    """,
    )
    assert text == "interrupted\nlater\n"

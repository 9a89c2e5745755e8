"""Compile processes in scripts, forks, daemons and notebooks, and the end of their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest

from helpers.clocks import HANG_TIMEOUT
from helpers.notebook import Notebook
from helpers.processes import ROOT, TESTS, environment_of_users
from helpers.scripted_backend import Gate, ProcessEnd

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="waits for processes by pidfd")

KERNEL = """
    import multiprocessing, os, sys
    import numpy as np
    import nbrt
    from numba import cuda
    from helpers.compilation import compiled
    from nbrt.compilation.pool import AsyncCompile, default_pool
    from nbrt.errors import CompileError, NotSupportedError

    FACTOR = 3.0

    @cuda.jit(device=True)
    def scaled(value):
        return value * FACTOR

    @nbrt.kernel
    def scale(x):
        i = cuda.grid(1)
        if i < x.size:
            x[i] = scaled(x[i])

    def status(future):
        future.wait()
        return [outcome.status for outcome in future.outcomes]

    def launched():
        x = np.ones(32)
        with nbrt.device("cpu:0"):
            scale[1, 32](x)
        return x[0]
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "kernels", TESTS)))
    added = {"PYTHONPATH": paths, "NBRT_CACHE_DIR": str(tmp_path / "cache"), "NBRT_DEVICE": "cpu"}
    return environment_of_users() | added


@pytest.fixture
def run(tmp_path: Path, environment: dict[str, str]) -> Callable[..., str]:
    """Run code as a script without a guard of ``__main__``; return what it prints."""

    def run(*parts: str) -> str:
        script = tmp_path / "script.py"
        script.write_text("".join(map(textwrap.dedent, parts)))
        done = subprocess.run(
            [sys.executable, str(script)],
            capture_output=True,
            text=True,
            env=environment,
            timeout=HANG_TIMEOUT,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_script_without_a_guard_runs_once(run: Callable[..., str]) -> None:
    code = """
        print("begin")
        future = compiled(default_pool(), scale, np.ones(1))
        print(status(future), launched())
        multiprocessing.get_context("fork")  # the start method has no effect
    """
    assert run(KERNEL, code).split("\n") == ["begin", "['stored'] 3.0", ""]


def test_forked_child_has_no_pool_and_the_parent_keeps_its_own(run: Callable[..., str]) -> None:
    code = """
        pool = AsyncCompile(1)
        future = compiled(pool, scale, np.ones(1))
        print(status(future))
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            other = compiled(pool, scale, np.ones(1), block=64)
            print(pool.processes(), other.done(), default_pool() is not pool)
            sys.stdout.flush()
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        print(status(compiled(pool, scale, np.ones(1), block=128)), len(pool.processes()))
    """
    lines = run(KERNEL, code).split("\n")
    assert lines == ["['stored']", "[] True True", "0", "['stored'] 2", ""]


def test_future_of_the_parent_compiles_in_a_forked_child(
    run: Callable[..., str], tmp_path: Path
) -> None:
    gate = Gate(tmp_path / "gate")
    code = f"""
        from pathlib import Path
        from helpers.scripted_backend import Gate, registered, scripted_job
        pool = AsyncCompile(1, clock=lambda: 0.0)
        with registered():
            pool.submit([scripted_job("hold", begun={str(gate.folder / "begun")!r},
                                      go={str(gate.folder / "go")!r})], int, "")
            with open({str(gate.folder / "begun")!r}) as begun:
                begun.readline()
        future = compiled(pool, scale, np.ones(1))  # queued behind the other
        child = os.fork()
        if child == 0:
            future.result()
            print(launched())
            sys.stdout.flush()
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    assert run(KERNEL, code).split() == ["3.0", "0"]


def test_workers_are_small_and_single_threaded(run: Callable[..., str]) -> None:
    code = """
        from nbrt.backends.registry import get_interface_for_device

        def memory(pid):
            with open(f"/proc/{pid}/status") as file:
                values = dict(line.split(":") for line in file.read().splitlines())
            print(int(values["Threads"]), int(values["VmHWM"].split()[0]))

        pool = AsyncCompile(1)
        print(status(compiled(pool, scale, np.ones(1))))
        memory(pool.processes()[1])
        jobs = get_interface_for_device("cuda").compile_jobs(
            scale.function, 0, (1, 1, 1), (32, 1, 1), 0, (np.ones(1),), ("sm_80", "sm_90"))
        print(status(pool.submit(jobs, int, "")))
        for pid in pool.processes():
            memory(pid)
    """
    cpu, worker, cuda, *others = run(KERNEL, code).splitlines()
    assert cpu == "['stored']"
    assert cuda == "['stored', 'stored']"
    for line in (worker, *others):
        threads, kilobytes = map(int, line.split())
        assert threads == 1
        assert kilobytes <= 250_000


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_children_of_multiprocessing_compile(method: str, run: Callable[..., str]) -> None:
    code = f"""
        def child():
            print(status(compiled(default_pool(), scale, np.ones(1))), launched())

        if __name__ == "__main__":
            process = multiprocessing.get_context({method!r}).Process(target=child)
            process.start()
            process.join()
            print(process.exitcode)
    """
    assert run(KERNEL, code).split("\n") == ["['stored'] 3.0", "0", ""]


def test_daemonic_process_is_refused_with_the_remedy(run: Callable[..., str]) -> None:
    code = """
        def child():
            try:
                default_pool()
            except NotSupportedError as error:
                print("NBRT_COMPILE_WORKERS=0" in str(error))
            with nbrt.config.override(async_=True):
                print(launched())
            with nbrt.config.override(compile_workers=0):
                print(compiled(default_pool(), scale, np.ones(1)).done(), launched())

        process = multiprocessing.get_context("fork").Process(target=child, daemon=True)
        process.start()
        process.join()
    """
    assert run(KERNEL, code).split("\n") == ["True", "3.0", "True 3.0", ""]


OVERLOAD = """
    import sys
    import numpy as np
    import nbrt
    from numba import types
    from numba.extending import overload_method
    from nbrt.backends.code_store.store import CodeStore

    def report(factor, *options):
        @overload_method(types.Array, "scaled", inline="never")
        def scaled(x, by):
            return lambda x, by: x[0] * by * factor

        @nbrt.kernel
        def scale(x):
            x[0] = x.scaled(2.0)

        future = nbrt.compile(scale, "float64[::1]", block=1, device="cpu")
        future.wait()
        print(*[outcome.status for outcome in future.outcomes])
        x = np.ones(1)
        with nbrt.device("cpu:0"):
            future.result()(x)
        print(x[0], len(list(CodeStore("cpu").entries())))
"""


def test_overloads_of_the_program_are_part_of_the_key(run: Callable[..., str]) -> None:
    # A worker has no overloads, so the kernel compiles in the process.
    assert run(OVERLOAD, "report(3.0)").splitlines() == ["lost", "6.0 1"]
    assert run(OVERLOAD, "report(3.0)").splitlines() == ["", "6.0 1"]
    assert run(OVERLOAD, "report(5.0)").splitlines() == ["lost", "10.0 2"]


def test_functions_of_exec_go_by_value(run: Callable[..., str]) -> None:
    code = '''
        source = """
        from numba import cuda
        import nbrt
        OFFSET = 2.0
        @nbrt.kernel
        def shift(x):
            x[0] += OFFSET
        @nbrt.kernel
        def wrong(x):
            x[0] = x.nowhere
        """
        import textwrap
        names = {}
        exec(compile(textwrap.dedent(source), "<generated 7>", "exec"), names)
        pool = default_pool()
        print(status(compiled(pool, names["shift"], np.ones(1))))
        try:
            print(status(failed := compiled(pool, names["wrong"], np.ones(1))))
            failed.result()
        except CompileError as error:
            print("<generated 7>:10" in str(error), "nowhere" in str(error))
    '''
    assert run(KERNEL, code).split("\n") == ["['stored']", "['failed']", "True True", ""]


def test_workers_import_no_module_of_the_program(run: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "imported.py").write_text("print('imported')\nSCALE = 5.0\nsize = 1\n")
    (tmp_path / "kernels_of_user.py").write_text(
        textwrap.dedent("""
            import enum, imported, nbrt
            from numba import cuda
            print("kernels imported")

            class Mode(enum.IntEnum):
                FAST = 4

            @cuda.jit(device=True)
            def helper(value):
                return value * imported.SCALE + (4.0 if Mode.FAST == 4 else 0.0)

            @nbrt.kernel
            def user(x):
                if cuda.grid(1) < x.size:
                    x[cuda.grid(1)] = helper(x[cuda.grid(1)])
        """)
    )
    code = """
        from kernels_of_user import user
        print(status(compiled(default_pool(), user, np.ones(1))))
        x = np.ones(1)
        with nbrt.device("cpu:0"):
            user[1, 32](x)
        print(x[0])
    """
    lines = run(KERNEL, code).split("\n")
    assert lines == ["imported", "kernels imported", "['stored']", "9.0", ""]


HELD = """
    from helpers.scripted_backend import registered, scripted_job
    with registered():
        pool = AsyncCompile(1, clock=lambda: 0.0)  # the held worker is never stuck
        job = scripted_job("hold", begun=sys.argv[1], go=sys.argv[2])
        future = pool.submit([job], int, "held")
        with open(sys.argv[1]) as begun:
            begun.readline()
        print(*pool.processes(), flush=True)
"""


def started(
    code: str, gate: Gate, tmp_path: Path, environment: dict[str, str]
) -> tuple[subprocess.Popen[str], list[ProcessEnd]]:
    """Run a script whose worker holds a job; return it and its compile processes."""
    script = tmp_path / "held.py"
    script.write_text(textwrap.dedent(KERNEL) + textwrap.dedent(HELD) + textwrap.dedent(code))
    process = subprocess.Popen(
        [sys.executable, str(script), str(gate.folder / "begun"), str(gate.folder / "go")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    ends = [ProcessEnd(int(pid)) for pid in process.stdout.readline().split()]
    assert len(ends) == 2
    return process, ends


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path / "gate")


def test_processes_end_with_a_killed_parent(
    gate: Gate, tmp_path: Path, environment: dict[str, str]
) -> None:
    process, ends = started("sys.stdin.read()", gate, tmp_path, environment)
    with process:
        process.kill()
        for end in ends:
            end.wait()


def test_child_of_a_killed_parent_does_not_hold_its_processes(
    gate: Gate, tmp_path: Path, environment: dict[str, str]
) -> None:
    code = """
        if os.fork() == 0:
            print("forked", os.getpid(), flush=True)
            import signal
            signal.pause()
    """
    process, ends = started(code, gate, tmp_path, environment)
    with process:
        assert process.stdout is not None
        child = int(process.stdout.readline().split()[1])
        process.kill()
        for end in ends:
            end.wait()
        os.kill(child, signal.SIGKILL)


def test_ctrl_c_ends_the_wait_and_all_processes(
    gate: Gate, tmp_path: Path, environment: dict[str, str]
) -> None:
    code = """
        import threading, traceback
        from concurrent.futures import Future
        from nbrt.backends import in_flight

        def sleeps():
            # A signal before the system call, and behind Python's look for signals, ends no wait.
            # Reading the file releases the GIL, so a thread that waits for it is not asleep.
            path = f"/proc/self/task/{threading.main_thread().native_id}/stat"
            if not sys.platform.startswith("linux"):
                return True
            with open(path) as file:
                return file.read().rpartition(") ")[2].startswith("S")

        def announce():
            functions = future.result, Future.result, threading.Condition.wait
            waiting, codes = [function.__code__ for function in functions], []
            while codes != waiting or not sleeps():
                frame = sys._current_frames()[threading.main_thread().ident]
                codes = [caller.f_code for caller, _ in traceback.walk_stack(frame)][2::-1]
            print("waits", flush=True)

        threading.Thread(target=announce).start()
        try:
            future.result()
        except KeyboardInterrupt:
            print(future.cancelled(), in_flight.find(job.key) is None, flush=True)
            raise
    """
    process, ends = started(code, gate, tmp_path, environment)
    assert process.stdout is not None
    assert process.stdout.readline() == "waits\n"
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    output, errors = process.communicate(timeout=HANG_TIMEOUT)
    assert output == "True True\n"
    assert errors.rstrip().endswith("KeyboardInterrupt")
    for end in ends:
        end.wait()


def test_ctrl_c_while_the_server_starts(tmp_path: Path, environment: dict[str, str]) -> None:
    code = """
        pool = AsyncCompile(1)
        future = compiled(pool, scale, np.ones(1))
        while not pool.processes():
            pass
        try:
            print(*pool.processes(), flush=True)
            while True:
                pass
        except KeyboardInterrupt:
            print(future.wait(), future.outcomes[0].status, flush=True)
    """
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(KERNEL) + textwrap.dedent(code))
    with subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        end = ProcessEnd(int(process.stdout.readline().split()[0]))
        os.killpg(process.pid, signal.SIGINT)
        assert process.communicate(timeout=HANG_TIMEOUT) == ("True stored\n", "")
        end.wait()


def test_end_of_the_program_ends_a_running_compilation(
    gate: Gate, tmp_path: Path, environment: dict[str, str]
) -> None:
    process, ends = started("", gate, tmp_path, environment)
    _, errors = process.communicate(timeout=HANG_TIMEOUT)
    assert (process.returncode, errors) == (0, "")
    for end in ends:
        end.wait()


def test_pool_works_in_the_workers_of_xdist(tmp_path: Path, environment: dict[str, str]) -> None:
    pytest.importorskip("xdist")
    test = f"""
        import pytest
        {textwrap.indent(textwrap.dedent(KERNEL), "        ").strip()}

        @pytest.mark.parametrize("block", [32, 64])
        def test_pool(block, worker_id):
            assert worker_id.startswith("gw")
            assert status(compiled(default_pool(), scale, np.ones(1), block=block)) == ["stored"]
    """
    (tmp_path / "test_in_xdist.py").write_text(textwrap.dedent(test))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", str(tmp_path)],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
        timeout=HANG_TIMEOUT,
        check=False,
    )
    assert "2 passed" in done.stdout, done.stdout + done.stderr


def test_kernels_of_notebooks_go_by_value(environment: dict[str, str]) -> None:
    notebook = Notebook(environment)
    try:
        assert notebook.run(textwrap.dedent(KERNEL)) == ""
        text = notebook.run("print(status(compiled(default_pool(), scale, np.ones(1))))")
        assert text == "['stored']\n"
        wrong = "@nbrt.kernel\ndef wrong(x):\n    x[0] = x.nowhere\n"
        wait = "future = compiled(default_pool(), wrong, np.ones(1)); print(status(future))\n"
        assert notebook.run(wrong + wait) == "['failed']\n"
        assert "nowhere" in notebook.run("future.result()")
    finally:
        notebook.close()

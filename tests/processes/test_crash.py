"""A crashing process names its last kernel, and other fault handlers still run."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

import pytest

from helpers.processes import output_of, run_python

if TYPE_CHECKING:
    from subprocess import CompletedProcess

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the handler is for Linux")

BEGIN = """
    import ctypes, faulthandler, os, resource, signal
    import numpy as np
    from numba import cuda
    import nbrt

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    @nbrt.kernel
    def shift(x, n):
        x[cuda.grid(1) + n] = 1

    @nbrt.kernel
    def harmless(x):
        if cuda.grid(1) < x.size:
            x[cuda.grid(1)] = 1

    class Action(ctypes.Structure):
        _fields_ = [("handler", ctypes.c_void_p), ("rest", ctypes.c_char * 152)]

    def handler_of(number):
        action = Action()
        assert ctypes.CDLL(None).sigaction(number, None, ctypes.byref(action)) == 0
        return action.handler

    x, far = np.zeros(8), 10**13
"""


def crash(code: str, *options: str, number: int = signal.SIGSEGV) -> CompletedProcess[str]:
    done = run_python(BEGIN + code, *options)
    assert done.returncode == -number, done.stderr
    return done


@pytest.mark.parametrize(
    "code",
    [
        "shift[1, 8](x, far)",
        "shift[64, 8](x, far)",
        "stream = nbrt.Stream(); shift[1, 8, stream](x, far); stream.synchronize()",
        "harmless[1, 8](x); shift[1, 8](x, far)",
    ],
)
def test_the_kernel_that_crashes_is_named(code: str) -> None:
    done = crash(f"    with nbrt.device('cpu:0'):\n        {code}")
    assert done.stderr.startswith("nbrt: the last kernel launched was shift (<string>:")
    assert done.stderr.count("\n") == 1
    assert "NBRT_CHECK=1" in done.stderr


def test_a_crash_that_comes_later_names_the_last_kernel() -> None:
    done = crash("    shift[1, 8](x, 0)\n    harmless[1, 8](x)\n    ctypes.string_at(0)")
    assert "the last kernel launched was harmless (" in done.stderr
    assert "at any later time" in done.stderr


def test_an_abort_as_the_allocator_makes_it_names_the_last_kernel() -> None:
    done = crash("    shift[1, 8](x, 0)\n    os.abort()", number=signal.SIGABRT)
    assert "the last kernel launched was shift (" in done.stderr


def test_a_signal_that_was_sent_ends_the_process() -> None:
    done = crash("    shift[1, 8](x, 0)\n    os.kill(os.getpid(), signal.SIGSEGV)")
    assert "the last kernel launched was shift (" in done.stderr


@pytest.mark.parametrize(
    ("options", "before", "after", "how"),
    [
        (("-X", "faulthandler"), "", "", "shift[1, 8](x, far)"),
        ((), "faulthandler.enable()", "", "os.abort()"),
        ((), "", "faulthandler.enable()", "shift[1, 8](x, far)"),
        ((), "", "faulthandler.enable()", "os.abort()"),
        ((), "faulthandler.enable()", "faulthandler.enable()", "shift[1, 8](x, far)"),
    ],
)
def test_faulthandler_says_what_it_says(
    options: tuple[str, ...], before: str, after: str, how: str
) -> None:
    number = signal.SIGABRT if "abort" in how else signal.SIGSEGV
    code = f"    {before}\n    shift[1, 8](x, 0)\n    {after}\n    {how}"
    done = crash(code, *options, number=number)
    assert done.stderr.count("the last kernel launched was shift (") == 1
    assert done.stderr.count("Fatal Python error") == 1
    assert "Current thread" in done.stderr


def test_a_launch_in_checked_mode_is_not_blamed() -> None:
    done = crash("    harmless.checked()[1, 8](x)\n    ctypes.string_at(0)")
    assert "harmless (<string>:" in done.stderr
    assert "in checked mode, which makes no write outside of an array" in done.stderr


def test_handlers_of_the_program_stay() -> None:
    code = """
    def own(number, frame):
        print("own")

    native = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda number: None)
    signal.signal(signal.SIGSEGV, own)
    libc = ctypes.CDLL(None)
    libc.signal.argtypes = ctypes.c_int, ctypes.c_void_p
    libc.signal.restype = ctypes.c_void_p
    libc.signal(signal.SIGBUS, ctypes.cast(native, ctypes.c_void_p))
    faulthandler.enable()
    signal.signal(signal.SIGSEGV, own)
    libc.signal(signal.SIGBUS, ctypes.cast(native, ctypes.c_void_p))
    before = [handler_of(each) for each in (signal.SIGSEGV, signal.SIGBUS)]
    harmless[1, 8](x)
    print(before == [handler_of(each) for each in (signal.SIGSEGV, signal.SIGBUS)])
    os.kill(os.getpid(), signal.SIGSEGV)
    print(signal.getsignal(signal.SIGSEGV) is own)
    """
    assert output_of(BEGIN + code) == "True\nown\nTrue\n"


def test_a_handler_that_the_program_sets_later_is_the_one_that_runs() -> None:
    code = """
    harmless[1, 8](x)
    signal.signal(signal.SIGSEGV, lambda number, frame: print("own"))
    os.kill(os.getpid(), signal.SIGSEGV)
    print("goes on")
    """
    assert output_of(BEGIN + code) == "own\ngoes on\n"


def test_a_forked_child_names_the_kernel_and_the_parent_goes_on() -> None:
    code = """
    harmless[1, 8](x)
    child = os.fork()
    if child == 0:
        ctypes.string_at(0)
    _, status = os.waitpid(child, 0)
    print(os.WTERMSIG(status) == signal.SIGSEGV)
    harmless[1, 8](x)
    """
    done = run_python(BEGIN + code)
    assert (done.returncode, done.stdout) == (0, "True\n")
    assert done.stderr.startswith("nbrt: the last kernel launched was harmless (")
    assert done.stderr.count("\n") == 1

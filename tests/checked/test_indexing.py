"""Every form of indexing that compiles is guarded in checked mode, or refused there."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import nbrt
from checked.indexing import BLOCK, FORMS, GRID, NOT_COMPILED, REFUSED, SHARED, kernel_of
from nbrt.backends.cpu.simt.frontend import pipeline
from nbrt.backends.cpu.simt.target import register_whole_library, simt_target
from nbrt.errors import (
    ArgumentTypeError,
    CompileError,
    KernelCheckError,
    UnsupportedConstructError,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def launch(form: str, arguments: dict[str, Callable[[], Any]], *, check: bool) -> None:
    """Launch the kernel of a form."""
    kernel, _ = kernel_of(form, arguments)
    args = [make() for make in arguments.values()]
    with nbrt.device("cpu:0"):
        nbrt.kernel(check=check)(kernel)[GRID, BLOCK, None, SHARED](*args)


@pytest.fixture(scope="module", params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    """One of the forms; the tests of a form follow each other."""
    chosen: str = request.param
    return chosen


@pytest.fixture(scope="module")
def checked_kernel(form: str) -> Any:
    """The kernel of the form in checked mode, compiled once."""
    return nbrt.kernel(check=True)(kernel_of(form, FORMS[form])[0])


def test_a_form_is_guarded(form: str, checked_kernel: Any) -> None:
    args = [make() for make in FORMS[form].values()]
    with nbrt.device("cpu:0"), pytest.raises(KernelCheckError) as caught:
        checked_kernel[GRID, BLOCK, None, SHARED](*args)
    (report,) = (each for each in caught.value.reports if each.kind == "out_of_bounds")
    assert (report.file, report.function) == (f"<indexing {form}>", "kernel")
    assert report.line == 2 + form.count(";") + 1
    assert report.source == form.split("; ")[-1]
    assert (report.thread, report.block) == ((3, 0, 0), (1, 0, 0))
    assert "thread (3, 0, 0) of block (1, 0, 0)" in str(caught.value)


def test_what_is_inside_is_no_fault(form: str, checked_kernel: Any) -> None:
    """Of three quarters of the threads, none of which is outside."""
    args = [make() for make in FORMS[form].values()]
    with nbrt.device("cpu:0"):
        checked_kernel[1, BLOCK, None, SHARED](*args)


@pytest.mark.parametrize("form", REFUSED)
def test_a_form_is_refused_in_checked_mode_alone(form: str) -> None:
    with pytest.raises(UnsupportedConstructError, match="checked mode does not follow an index"):
        launch(form, REFUSED[form], check=True)
    launch(form, REFUSED[form], check=False)


@pytest.mark.parametrize("form", NOT_COMPILED)
def test_a_form_compiles_for_no_kernel(form: str) -> None:
    with pytest.raises(CompileError):
        launch(form, NOT_COMPILED[form], check=False)


@pytest.mark.parametrize("value", [b"ab", bytearray(b"ab"), memoryview(b"ab"), "ab", [1, 2]])
def test_no_kernel_takes_what_else_can_be_indexed(value: Any) -> None:
    with pytest.raises(ArgumentTypeError):
        launch("x[0] = s[i]", {"x": lambda: np.ones(8), "s": lambda: value}, check=False)


@pytest.mark.parametrize(
    ("form", "kind"),
    [
        ("x.flat[i - 1] = 1", "out_of_bounds"),  # compiled code does not count from the end here
        ("x.flat[-1 - i] = 1", "out_of_bounds"),
        ("x.flat[i + 2**40] = 1", "out_of_bounds"),
        ("x.flat[np.uint64(i) - np.uint64(9)] = 1", "out_of_bounds"),
        ("x[i - 1] = 1", "negative_index"),
        ("x[i] = (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0)[i - 1]", "negative_index"),
    ],
)
def test_an_index_below_zero_or_far_away_is_reported(form: str, kind: str) -> None:
    memory = np.ones(32)
    kernel, _ = kernel_of(form, {"x": lambda: None})
    with nbrt.device("cpu:0"), pytest.raises(KernelCheckError) as caught:
        nbrt.kernel(check=True)(kernel)[GRID, BLOCK](memory[8:16])
    assert [report.kind for report in caught.value.reports] == [kind]
    assert caught.value.reports[0].thread == (0, 0, 0)
    np.testing.assert_array_equal(memory, 1)


def test_an_index_that_numba_checks_itself_names_the_thread() -> None:
    with pytest.raises(IndexError) as caught:
        launch("x[i] = r[i].s[i]", {"x": lambda: np.ones(8), "r": text_records}, check=True)
    assert caught.value.__notes__ == ["in block (0, 0, 0), thread (2, 0, 0)"]


def text_records() -> np.ndarray:
    return np.full(8, b"ab", "S2").view([("s", "S2")])


# What the compiler knows how to index, and where this file has it. An entry that a new release of
# Numba adds fails here, and wants a form above.
OWNERS = {
    "Buffer": "x[i + 1] = 1",
    "NumpyFlatType": "x.flat[i + 1] = 1",
    "UniTuple": "y[i] = t[i + 1]",
    "NamedUniTuple": "p.first[i + 1] = 1",
    "BaseTuple": "xs[0][i + 1] = 1",
    "Array": "r['f'][i + 1] = 1",
    "Record": "r[i + 1]['f'] = 1",
    "List": "x[0] = [1, 2][i]",
    "LiteralList": "x[0] = [1, 2][i]",
    "LiteralStrKeyDict": "x[0] = {0: 1}[i]",
    "CPointer": "numba.carray(x.ctypes, 9)[i] = 1",
    "NumberClass": "",  # float32[:] is a type
    "EnumClass": "",  # Colour['RED'] is known when it is compiled
}
OVERLOADS = {
    "numba.cpython.listobj": "x[0] = [1, 2][i]",
    "numba.typed.listobject": "x[0] = [1, 2][i]",
    "numba.typed.dictobject": "x[0] = {0: 1}[i]",
    "numba.cpython.unicode": "x[0] = len('ab'[i])",
    "numba.cpython.charseq": "x[0] = len('ab'[i])",
    "numba.cpython.tupleobj": "xs[0][i + 1] = 1",
}
OPERATIONS = (operator.getitem, operator.setitem, "static_getitem", "static_setitem")


def test_the_list_holds_all_that_the_compiler_can_index() -> None:
    assert pipeline.DeviceCompiler  # its import registers the dialect
    register_whole_library()
    typing, target = simt_target.typing_context, simt_target.target_context
    target.refresh()
    lowered = {
        signature[0].__name__
        for operation in OPERATIONS
        for signature, _ in target._defns[operation].versions
    }
    assert lowered <= OWNERS.keys()
    templates = [
        template
        for operation in OPERATIONS[:2]
        for template in typing.resolve_value_type(operation).templates
    ]
    written = [getattr(template, "_overload_func", None) for template in templates]
    assert {each.__module__ for each in written if each is not None} <= OVERLOADS.keys()
    known = FORMS.keys() | REFUSED.keys() | NOT_COMPILED.keys() | {""}
    assert {*OWNERS.values(), *OVERLOADS.values()} <= known

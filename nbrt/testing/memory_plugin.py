"""A pytest plugin: ``@pytest.mark.max_memory("24GB", gpu="L4")`` fails a test that needs more.

Installed with nbrt. The test runs on fake devices (`nbrt.fake`), so that neither a GPU nor the
memory is needed. The most bytes that its arrays hold on one device are compared with the limit.

Only the body of the test is covered: its fixtures run before and after it, on the real devices, and
their arrays do not count.
"""

from __future__ import annotations

import unittest
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

    from nbrt.planning.plan import MemoryPlan

__all__: list[str] = []

_MARKER = "max_memory"
_OPTIONS = frozenset(("device", "gpu", "devices", "reads", "compile"))
_MAX_LINES = 5


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers",
        f'{_MARKER}(limit, device="cuda", gpu=None, devices=None, reads="error", compile=False): '
        f'run the test on fake devices; it must hold at most limit, such as "24GB", "24GiB" or '
        f"bytes, in arrays of one device; see nbrt.fake",
    )


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Refuse the marker where it has no effect, such as on a ``unittest.TestCase``."""
    cls = getattr(item, "cls", None)
    is_function = isinstance(item, pytest.Function)
    if item.get_closest_marker(_MARKER) is not None and (
        not is_function or (cls is not None and issubclass(cls, unittest.TestCase))
    ):
        pytest.fail(f"expected {_MARKER} on a test function or method, got {item!r}", pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Run a test that has the marker."""
    marker = pyfuncitem.get_closest_marker(_MARKER)
    if marker is None:
        return (yield)
    if len(marker.args) != 1 or not marker.kwargs.keys() <= _OPTIONS:
        pytest.fail(
            f"expected {_MARKER} with a limit, and {', '.join(sorted(_OPTIONS))} by name, got "
            f"{marker.args} and {sorted(marker.kwargs)}",
            pytrace=False,
        )
    # A late import: a session without the marker needs neither NumPy nor a backend.
    from nbrt._internal.sizes import parse_size
    from nbrt.errors import NbrtError
    from nbrt.planning.fake_mode import fake

    options: dict[str, Any] = dict(marker.kwargs)
    try:
        limit = parse_size(marker.args[0])
        mode = fake(options.pop("device", "cuda"), **options)
    except NbrtError as error:
        raise pytest.fail.Exception(f"{_MARKER}: {error}", pytrace=False) from None
    with mode as plan:
        result = yield
    if plan.peak > limit:
        text = _failure(plan, str(marker.args[0]), limit)
        raise pytest.fail.Exception(text, pytrace=False)
    return result


def _failure(plan: MemoryPlan, wanted: str, limit: int) -> str:
    from nbrt.observe.plots.style import size_text
    from nbrt.planning.tables import text_table
    from nbrt.planning.text import holder_rows, peak_text, title

    first = plan.holders[0]
    lines = [
        f"expected at most {wanted} ({limit:,} bytes) on each device, got {plan.peak:,} bytes on "
        f"{plan.busiest.device}; {first.line} holds {size_text(first.nbytes)} of them",
        title(plan),
        *peak_text(plan),
        text_table(holder_rows(plan.holders, _MAX_LINES), "  "),
    ]
    return "\n".join(lines)

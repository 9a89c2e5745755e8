"""A pytest plugin: ``@pytest.mark.rng_reproducible`` repeats a test elsewhere and compares bits.

Installed with nbrt. A test fails if it draws other bits on another device, with another number of
threads or in shards; the message has the first different draw. A test without draws fails too.
Fixtures are set up once; generators among them are reset before each run.
"""

from __future__ import annotations

import pytest

__all__: list[str] = []

_MARKER = "rng_reproducible"


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers",
        f"{_MARKER}(devices=None, threads=(1, 2), shards=(1, 3)): the test must draw the same bits "
        f"on each of these devices (default: all), with these numbers of CPU threads, and in these "
        f"numbers of shards; see nbrt.testing.reproducibility.check_reproducible",
    )


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Refuse the marker where it has no effect, such as on a ``unittest.TestCase``."""
    if item.get_closest_marker(_MARKER) is not None and type(item) is not pytest.Function:
        pytest.fail(
            f"expected {_MARKER} on a plain test function or method, got {item!r}", pytrace=False
        )


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that has the marker."""
    marker = pyfuncitem.get_closest_marker(_MARKER)
    if marker is None:
        return None
    # A late import: a session without the marker needs neither NumPy nor a backend.
    from nbrt.random import Generator
    from nbrt.testing.reproducibility import NotReproducibleError, check_reproducible

    if marker.args or not marker.kwargs.keys() <= {"devices", "threads", "shards"}:
        pytest.fail(
            f"expected {_MARKER} with devices, threads and shards by name, got "
            f"{marker.args} and {sorted(marker.kwargs)}",
            pytrace=False,
        )
    values = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    generators = [value for value in values.values() if isinstance(value, Generator)]
    try:
        result = check_reproducible(
            lambda: pyfuncitem.obj(**values), generators=generators, **marker.kwargs
        )
    except NotReproducibleError as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None
    if result.missing:
        pytest.skip(f"{result}; not run on {'; '.join(result.missing)}")
    return True

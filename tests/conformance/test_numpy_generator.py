"""NumPy's own tests of `Generator`, run on `nbrt.Generator`.

See `tests.conformance.numpy_generator`. `conftest` marks the tests that are expected to fail.
"""

from __future__ import annotations

import pytest

from tests.conformance.numpy_generator import adapter

if not adapter.are_installed():
    pytest.skip("the installed NumPy came without its tests", allow_module_level=True)

for _module in map(adapter.load, adapter.MODULES):
    for _name, _value in vars(_module).items():
        if _name.startswith(("Test", "test_")) or _name == "endpoint":  # a fixture
            assert _name not in globals(), _name
            globals()[_name] = _value

"""NumPy's own tests of `numpy.random.Generator`, with `nbrt.Generator` in its place.

    pytest tests/conformance/test_numpy_generator.py
    python -m tests.conformance.numpy_generator

The first runs the tests, which come with the installed NumPy; none of them is kept here. Each is a
test of pytest's. `expected` lists by name those that fail, with the reason: a listed test that
passes fails the run, and so does an unlisted one that fails. The second writes the page,
docs/conformance_numpy_generator.md.
"""

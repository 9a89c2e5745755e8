"""Where a call was made."""

from __future__ import annotations

from nbrt._internal.callsite import CallSite


def inner() -> CallSite:
    return CallSite.here()


def outer(depth: int = 0) -> CallSite:
    return CallSite.here(depth) if depth else inner()


def test_innermost_last_as_python_prints() -> None:
    lines = outer().format().splitlines()
    names = [line.rsplit(" in ", 1)[1] for line in lines if " in " in line and "File" in line]
    assert names[-3:] == ["test_innermost_last_as_python_prints", "outer", "inner"]
    assert "return CallSite.here()" in lines[-1]
    assert __file__ in lines[-2]


def test_depth_leaves_frames_out() -> None:
    text = outer(depth=1).format()
    assert text.splitlines()[-2].endswith("in test_depth_leaves_frames_out")


def test_deep_stacks_are_cut() -> None:
    def deep(levels: int) -> CallSite:
        return CallSite.here() if levels == 0 else deep(levels - 1)

    text = deep(100).format()
    assert text.count("File ") <= 24
    assert "in deep" in text

"""Sizes in bytes from text."""

from __future__ import annotations

import pytest

from nbrt._internal.sizes import is_size, parse_size
from nbrt.errors import ArgumentError, ArgumentTypeError


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("24GB", 24 * 10**9),
        ("24 GiB", 24 * 2**30),
        ("24gib", 24 * 2**30),
        (" 1.5 MiB ", 3 * 2**19),
        ("0.1kB", 100),
        ("7", 7),
        ("7B", 7),
        ("2TB", 2 * 10**12),
        ("9007199254740993B", 9007199254740993),  # not a float
        (12, 12),
        (0, 0),
    ],
)
def test_sizes(text: str | int, nbytes: int) -> None:
    assert parse_size(text) == nbytes


@pytest.mark.parametrize("text", ["", "GB", "24 G", "L4", "1e9", "-1GB", "24 GB free", "80GBit"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ArgumentError, match=r"expected a size such as '24GB' \(10\^9 bytes\)"):
        parse_size(text)
    assert not is_size(text)


@pytest.mark.parametrize("value", [1.5, None, True, b"1GB"])
def test_other_types_are_refused(value: object) -> None:
    with pytest.raises(ArgumentTypeError, match="expected a size in bytes"):
        parse_size(value)  # type: ignore[arg-type]


def test_negative_sizes_are_refused() -> None:
    with pytest.raises(ArgumentError, match="at least 0"):
        parse_size(-1)

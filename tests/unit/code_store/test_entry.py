"""Entries of the code store as bytes."""

from __future__ import annotations

import json
import struct
from hashlib import sha256
from typing import Any

import pytest

from nbrt.backends.code_store.entry import Entry, EntryError, check_key, check_kind
from nbrt.backends.code_store.plain_values import NotPlainError, decode, encode

KEY = "ab" * 32
ENTRY = Entry(
    kind="cpu",
    name="käufer\x1b",
    signature="array(float64, 1d, C), int64",
    target="x86_64-znver4",
    features="+avx2",
    versions={"numba": "0.62"},
    data={"symbols": ["a", "b"], "plain": None},
    sections={"object": bytes(range(256)), "empty": b"", "module": b"BC"},
    created=7,
)


def test_an_entry_survives_its_bytes() -> None:
    content = ENTRY.to_bytes(KEY)
    assert Entry.from_bytes(content, "cpu", KEY) == ENTRY
    length = Entry.header_bytes(content)
    header = Entry.without_sections(content[:length], len(content), "cpu", KEY)
    with pytest.raises(EntryError, match="incomplete"):
        Entry.without_sections(content[:length], len(content) - 1, "cpu", KEY)
    assert (header.name, header.signature, header.sections) == (ENTRY.name, ENTRY.signature, {})


def test_every_truncation_and_every_changed_byte_is_found() -> None:
    content = ENTRY.to_bytes(KEY)
    for end in range(len(content)):
        with pytest.raises(EntryError):
            Entry.from_bytes(content[:end], "cpu", KEY)
    for index in range(len(content)):
        damaged = content[:index] + bytes([content[index] ^ 0x10]) + content[index + 1 :]
        with pytest.raises(EntryError):
            Entry.from_bytes(damaged, "cpu", KEY)
    with pytest.raises(EntryError):
        Entry.from_bytes(content + b"\0", "cpu", KEY)


def test_an_entry_of_another_key_or_kind_is_refused() -> None:
    content = ENTRY.to_bytes(KEY)
    with pytest.raises(EntryError, match="another entry"):
        Entry.from_bytes(content, "cpu", "cd" * 32)
    with pytest.raises(EntryError, match="another entry"):
        Entry.from_bytes(content, "cuda", KEY)


def _with_header(header: object) -> bytes:
    """Return bytes with a right digest and any header."""
    text = json.dumps(header).encode()
    content = ENTRY.to_bytes(KEY)
    rest = struct.pack("<Q", len(text)) + text
    return content[:10] + sha256(rest).digest() + rest


@pytest.mark.parametrize(
    "changes",
    [
        {"name": 3},
        {"versions": []},
        {"versions": {"numba": 1}},
        {"data": []},
        {"created": "now"},
        {"created": True},
        {"created": 10**400},
        {"created": -1},
        {"sections": [["object", 10]]},
        {"sections": [["object", -1]]},
        {"sections": [["object"]]},
        {"sections": None},
        {"more": 1},
    ],
)
def test_a_header_with_fields_of_other_types_is_refused(changes: dict[str, Any]) -> None:
    good = json.loads(ENTRY.to_bytes(KEY)[50 : Entry.header_bytes(ENTRY.to_bytes(KEY))])
    good["sections"] = []
    assert Entry.from_bytes(_with_header(good), "cpu", KEY).name == ENTRY.name
    with pytest.raises(EntryError):
        Entry.from_bytes(_with_header({**good, **changes}), "cpu", KEY)
    for header in ([], None, "text", {}):
        with pytest.raises(EntryError):
            Entry.from_bytes(_with_header(header), "cpu", KEY)


def test_a_key_or_kind_is_no_path() -> None:
    assert check_key(KEY) == KEY
    for kind in ("my_device2", "gerät"):
        assert check_kind(kind) == kind
    for key in ("../" + KEY[3:], KEY[1:], KEY.upper(), KEY + "\n", ""):
        with pytest.raises(EntryError):
            check_key(key)
    for kind in ("..", "a/b", "", "a\n", "2a", "a" * 65):
        with pytest.raises(EntryError):
            check_kind(kind)


def test_plain_values_keep_their_types() -> None:
    nan = float("nan")
    values = [
        None, True, False, 0, -(2**70), 0.1, -0.0, float("inf"), 1j, complex(-0.0, nan), "", "é\n",
        b"\x00\xff", (), (1, (2.0, ("x", None)), b""),
    ]  # fmt: skip
    for value in values:
        again = decode(json.loads(json.dumps(encode(value))))
        assert (repr(again), type(again)) == (repr(value), type(value))


def test_other_values_are_not_plain() -> None:
    class Number(int):
        pass

    for value in ([], {}, Number(3), object(), (1, [2]), "\ud800", len, ValueError):
        with pytest.raises(NotPlainError):
            encode(value)
    forms: list[Any] = [
        [], {}, 1.5, {"list": []}, {"float": 1}, {"float": "x"}, {"bytes": "0"}, {"tuple": "ab"},
        {"complex": [1]}, {"complex": [None, None]}, {"float": "0x0p0", "bytes": ""},
    ]  # fmt: skip
    for form in forms:
        with pytest.raises(NotPlainError):
            decode(form)

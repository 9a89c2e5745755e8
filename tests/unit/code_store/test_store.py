"""The code store: entries by key, damage, size limit."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from typing import TYPE_CHECKING

import pytest

from nbrt.backends.code_store import store as store_module
from nbrt.backends.code_store.entry import Entry, EntryError
from nbrt.backends.code_store.folder import cache_directory
from nbrt.backends.code_store.store import CodeStore, stored_bytes, stored_kinds
from nbrt.config import override
from nbrt.errors import UntrustedCacheWarning

if TYPE_CHECKING:
    from pathlib import Path


def key_of(number: int) -> str:
    return f"{number:064x}"


def entry_of(number: int = 0, *, kind: str = "cpu", size: int = 1000) -> Entry:
    return Entry(
        kind,
        f"kernel_{number}",
        "(int64)",
        "x86_64-any",
        versions={"numba": "1"},
        data={"number": number},
        sections={"object": bytes([number % 256]) * size},
        created=1,
    )


def files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())


def path_of(root: Path, number: int, kind: str = "cpu") -> Path:
    return root / kind / key_of(number)[:2] / f"{key_of(number)}.nbrtc"


def test_an_entry_is_found_by_its_key_and_kind_only(root: Path) -> None:
    store = CodeStore("cpu")
    assert not store.has(key_of(1))
    assert store.get(key_of(1)) is None
    assert store.put(key_of(1), entry_of(1))
    assert store.has(key_of(1))
    assert store.get(key_of(1)) == entry_of(1)
    assert store.get(key_of(2)) is None
    assert CodeStore("cuda").get(key_of(1)) is None
    assert stored_kinds() == ("cpu",)
    with pytest.raises(EntryError, match="kind"):
        CodeStore("cuda").put(key_of(1), entry_of(1))


def test_a_second_put_replaces_the_first(root: Path) -> None:
    store = CodeStore("cpu")
    for size in (10, 20_000, 5):
        store.put(key_of(1), entry_of(1, size=size))
        found = store.get(key_of(1))
        assert found is not None
        assert len(found.sections["object"]) == size
    assert len(files(root)) == 1


def test_damaged_files_are_no_entries_and_can_be_replaced(root: Path) -> None:
    store = CodeStore("cpu")
    store.put(key_of(1), entry_of(1))
    path = path_of(root, 1)
    good = path.read_bytes()
    other = path_of(root, 2)
    for damaged in (b"", good[:60], good[:-1], good + b"x", bytes(len(good)), good[1:]):
        path.write_bytes(damaged)
        assert store.get(key_of(1)) is None
    assert list(store.entries()) == []
    store.put(key_of(1), entry_of(1))
    assert store.get(key_of(1)) is not None
    other.write_bytes(path.read_bytes())  # the file of another key
    assert store.get(key_of(2)) is None
    assert [each.key for each in store.entries()] == [key_of(1)]


def test_an_unusable_folder_is_no_error(root: Path) -> None:
    store = CodeStore("cpu")
    root.write_text("a file in the way")
    assert not store.put(key_of(1), entry_of(1))
    assert store.get(key_of(1)) is None
    assert list(store.entries()) == []
    store.trim()
    root.unlink()
    path_of(root, 1).mkdir(parents=True)  # a folder for a file
    assert not store.put(key_of(1), entry_of(1))
    assert store.get(key_of(1)) is None
    os.mkfifo(path_of(root, 2))  # would block a reader
    assert store.get(key_of(2)) is None
    assert list(store.entries()) == []


def test_a_store_says_whether_it_takes_code(root: Path) -> None:
    store = CodeStore("cpu")
    assert store.is_writable()
    root.chmod(0o770)
    with pytest.warns(UntrustedCacheWarning):
        assert not store.is_writable()
    with override(cache_dir=str(root / "cpu" / "file" / "below")):
        (root / "cpu" / "file").write_text("in the way")
        assert not store.is_writable()


def test_without_a_home_nothing_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "cache_directory", lambda: None)
    store = CodeStore("cpu")
    assert not store.put(key_of(1), entry_of(1))
    assert store.get(key_of(1)) is None
    assert not store.remove(key_of(1))
    assert not store.is_writable()
    assert (list(store.entries()), stored_kinds()) == ([], ())
    store.trim()


def test_entries_lists_headers_without_code(root: Path) -> None:
    cpu, cuda = CodeStore("cpu"), CodeStore("cuda")
    long = Entry("cpu", "n" * 9000, "(int64)", "t", sections={"object": b"code"})
    cpu.put(key_of(1), entry_of(1))
    cpu.put(key_of(2), long)
    cuda.put(key_of(3), entry_of(3, kind="cuda"))
    found = {each.key: each for each in cpu.entries()}
    assert found.keys() == {key_of(1), key_of(2)}
    assert found[key_of(1)].entry.name == "kernel_1"
    assert found[key_of(2)].entry.name == "n" * 9000
    assert all(each.entry.sections == {} for each in found.values())
    assert found[key_of(1)].size == path_of(root, 1).stat().st_size
    assert [each.key for each in cuda.entries()] == [key_of(3)]
    assert stored_kinds() == ("cpu", "cuda")
    assert cpu.remove(key_of(1))
    assert not cpu.remove(key_of(1))
    assert [each.key for each in cpu.entries()] == [key_of(2)]


def test_the_limit_holds_over_all_kinds_and_spares_recently_used_entries(root: Path) -> None:
    kinds = ("cpu", "cuda")
    for number in range(8):
        kind = kinds[number % 2]
        CodeStore(kind).put(key_of(number), entry_of(number, kind=kind))
        os.utime(path_of(root, number, kind), (1_000_000_000 + number,) * 2)
    assert CodeStore("cpu").get(key_of(0)) is not None  # used now
    size = path_of(root, 0).stat().st_size
    with override(cache_limit=3 * size + size // 2):
        CodeStore("cpu").trim()
    left = {each.key for kind in kinds for each in CodeStore(kind).entries()}
    assert left == {key_of(0), key_of(6), key_of(7)}


def digest_of(number: int) -> str:
    """Return a key as kernels have them, in one of four folders."""
    return f"0{number % 4}{hashlib.sha256(str(number).encode()).hexdigest()[2:]}"


def test_processes_that_write_much_keep_the_limit(root: Path) -> None:
    store, limit, largest = CodeStore("cpu"), 50_000, 0
    with override(cache_limit=limit):
        for number in range(200):
            store.put(digest_of(number), entry_of(number, size=100))
            if number > 80:
                largest = max(largest, stored_bytes())
    # The keys are fixed, and so is the excess: 1/64 of the limit is that of a mean interval.
    assert limit < largest <= limit * (1 + 1 / 8)
    with override(cache_limit=0):
        for number in range(100):
            store.put(digest_of(number), entry_of(number))
    assert len(files(root)) >= 100


def test_few_writes_measure_the_folder(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, scans = CodeStore("cpu"), []
    monkeypatch.setattr(store_module, "_trim", scans.append)
    monkeypatch.setattr(store_module, "_write", lambda path, content: None)
    content = entry_of(0).to_bytes(digest_of(0))
    with override(cache_limit=2000 * len(content)):
        for number in range(2000):
            assert store.write(digest_of(number), content)
    assert 32 <= len(scans) <= 128  # 64 on average
    with override(cache_limit=0):
        assert store.write(digest_of(0), content)
    assert len(scans) <= 128


def test_a_write_into_a_large_folder_looks_at_its_own_file_only(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CodeStore("cpu")
    assert store.put(digest_of(1), entry_of(1))
    monkeypatch.setattr(os, "scandir", None)
    assert store.put(digest_of(2), entry_of(2))
    assert store.get(digest_of(1)) == entry_of(1)


def test_two_processes_that_trim_at_once_delete_no_more_than_one(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CodeStore("cpu")
    for number in range(8):
        store.put(key_of(number), entry_of(number))
        os.utime(path_of(root, number), (1_000_000_000 + number,) * 2)
    all_files = store_module._all_files

    def seen_before_the_other_trims(folder: Path) -> list[os.DirEntry[str]]:
        monkeypatch.setattr(store_module, "_all_files", all_files)
        seen = list(all_files(folder))
        for file in seen:
            file.stat(follow_symlinks=False)  # an entry keeps its status
        store.trim()
        return seen

    monkeypatch.setattr(store_module, "_all_files", seen_before_the_other_trims)
    with override(cache_limit=5 * path_of(root, 0).stat().st_size):
        store.trim()
    assert {each.key for each in store.entries()} == set(map(key_of, range(3, 8)))


@pytest.mark.parametrize("hours", [-3, 3])
def test_trimming_goes_by_the_clock_of_the_file_system(
    root: Path, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    store = CodeStore("cpu")
    store.put(key_of(1), entry_of(1))
    alive = path_of(root, 1).parent / f"{'0' * 16}abc.tmp"
    dead = alive.with_name(f"{'0' * 16}xyz.tmp")
    for path in (alive, dead):
        path.write_bytes(b"")
    file_time = alive.stat().st_mtime
    os.utime(dead, (file_time - 7200,) * 2)
    monkeypatch.setattr(time, "time", lambda: file_time + hours * 3600)
    store.trim()
    assert (alive.exists(), dead.exists()) == (True, False)


def test_trimming_deletes_own_files_only(root: Path) -> None:
    store = CodeStore("cpu")
    store.put(key_of(1), entry_of(1))
    shard = path_of(root, 1).parent
    others = [root / "notes.txt", root / "cpu" / "notes.txt", shard / "notes.txt"]
    others.append(root / "other" / "ab" / "data.bin")
    for path in others:
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_bytes(bytes(1000))
    dead, alive = shard / f"{'0' * 16}abc.tmp", shard / f"{'0' * 16}xyz.tmp"
    for path in (dead, alive):
        path.write_bytes(b"")
    os.utime(dead, (time.time() - 7200,) * 2)
    outside = root.parent / "outside"
    (outside / "00").mkdir(parents=True)
    target = outside / "00" / f"{key_of(5)}.nbrtc"
    target.write_bytes(bytes(1000))
    (root / "linked").symlink_to(outside)
    with override(cache_limit=1):
        store.trim()
    assert files(root) == sorted([*others, alive])
    assert target.exists()


def test_the_folder_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with override(cache_dir=str(tmp_path)):
        assert cache_directory() == tmp_path
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    with override(cache_dir=None):
        assert cache_directory() == tmp_path / ".cache" / "nbrt"
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
        assert cache_directory() == tmp_path / "x" / "nbrt"
        monkeypatch.setattr(sys, "platform", "darwin")
        assert cache_directory() == tmp_path / "Library" / "Caches" / "nbrt"

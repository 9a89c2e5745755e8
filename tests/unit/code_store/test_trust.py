"""Which files and folders of compiled code are used."""

from __future__ import annotations

import os
import stat
import warnings
from typing import TYPE_CHECKING

import pytest

from nbrt.backends.code_store.entry import Entry
from nbrt.backends.code_store.store import CodeStore
from nbrt.errors import UntrustedCacheWarning

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

KEYS = [f"{number:02x}" + "0" * 62 for number in range(4)]
"""Each in another folder."""

ENTRY = Entry("cpu", "kernel", "(int64)", "any", sections={"object": b"code"}, created=1)


@pytest.fixture
def filled(root: Path) -> Path:
    store = CodeStore("cpu")
    for key in KEYS:
        store.put(key, ENTRY)
    return root


def path_of(root: Path, key: str) -> Path:
    return root / "cpu" / key[:2] / f"{key}.nbrtc"


def found() -> list[str]:
    return [key for key in KEYS if CodeStore("cpu").get(key) == ENTRY]


def give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a file or folder that of another user than the process's."""
    if os.geteuid() == 0:
        os.chown(path, 12345, -1, follow_symlinks=False)
        return
    real = os.fstat, os.lstat, os.stat
    number = path.lstat().st_ino

    def other(status: os.stat_result) -> os.stat_result:
        if status.st_ino != number:
            return status
        return os.stat_result((*status[:4], status.st_uid + 1, *status[5:]))

    monkeypatch.setattr(os, "fstat", lambda *a, **k: other(real[0](*a, **k)))
    monkeypatch.setattr(os, "lstat", lambda *a, **k: other(real[1](*a, **k)))
    monkeypatch.setattr(os, "stat", lambda *a, **k: other(real[2](*a, **k)))


def test_folders_and_files_are_made_for_the_user_alone(root: Path) -> None:
    before = os.umask(0)
    try:
        CodeStore("cpu").put(KEYS[0], ENTRY)
    finally:
        os.umask(before)
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (root, *root.rglob("*"))}
    assert {mode for path, mode in modes.items() if path.is_dir()} == {0o700}
    assert {mode for path, mode in modes.items() if path.is_file()} == {0o600}


def test_a_trusted_folder_gives_no_warning(filled: Path) -> None:
    filled.chmod(0o755)  # others may read
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert found() == KEYS


@pytest.mark.parametrize("mode", [0o770, 0o777, 0o1777, 0o702])
@pytest.mark.parametrize("place", ["root", "kind", "shard"])
def test_a_folder_that_others_may_write_is_ignored(filled: Path, place: str, mode: int) -> None:
    folders = {"root": filled, "kind": filled / "cpu", "shard": filled / "cpu" / KEYS[0][:2]}
    folders[place].chmod(mode)
    with pytest.warns(UntrustedCacheWarning, match=r"other users may write it") as caught:
        assert found() == (KEYS[1:] if place == "shard" else [])
    assert len(caught) == 1
    before = path_of(filled, KEYS[0]).read_bytes()
    assert not CodeStore("cpu").put(KEYS[0], ENTRY)
    assert path_of(filled, KEYS[0]).read_bytes() == before
    folders[place].chmod(0o700)
    assert found() == KEYS


@pytest.mark.parametrize("place", ["root", "kind", "shard", "file"])
def test_what_belongs_to_another_user_is_ignored(
    filled: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = path_of(filled, KEYS[0])
    places = {"root": filled, "kind": filled / "cpu", "shard": file.parent, "file": file}
    give_away(places[place], monkeypatch)
    left = KEYS[1:] if place in ("shard", "file") else []
    with pytest.warns(UntrustedCacheWarning, match="belongs to user") as caught:
        assert found() == left
    assert len(caught) == 1
    assert sorted(each.key for each in CodeStore("cpu").entries()) == left
    assert "NBRT_CACHE_DIR" in str(caught[0].message)


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_may_write_is_ignored(filled: Path, mode: int) -> None:
    for key in KEYS[:2]:
        path_of(filled, key).chmod(mode)
    with pytest.warns(UntrustedCacheWarning) as caught:
        assert found() == KEYS[2:]
    assert len(caught) == 1  # one, for two files
    assert CodeStore("cpu").put(KEYS[0], ENTRY)  # a new file replaces it
    assert found() == [KEYS[0], *KEYS[2:]]


def _linked_file(root: Path) -> None:
    file = path_of(root, KEYS[0])
    file.rename(root.parent / "real")
    file.symlink_to(root.parent / "real")


def _linked_shard(root: Path) -> None:
    folder = path_of(root, KEYS[0]).parent
    folder.rename(root.parent / "real")
    folder.symlink_to(root.parent / "real")


def _linked_kind(root: Path) -> None:
    (root / "cpu").rename(root.parent / "real")
    (root / "cpu").symlink_to(root.parent / "real")


@pytest.mark.parametrize(
    ("link", "left"), [(_linked_file, KEYS[1:]), (_linked_shard, KEYS[1:]), (_linked_kind, [])]
)
def test_symbolic_links_are_ignored(
    filled: Path, link: Callable[[Path], None], left: list[str]
) -> None:
    link(filled)
    with pytest.warns(UntrustedCacheWarning, match="symbolic link") as caught:
        assert found() == left
    assert len(caught) == 1


def test_the_folder_itself_may_be_a_link_of_the_user(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = filled.parent / "scratch"
    filled.rename(real)
    filled.symlink_to(real)
    assert found() == KEYS
    assert CodeStore("cpu").put(KEYS[0], ENTRY)
    real.chmod(0o777)
    with pytest.warns(UntrustedCacheWarning, match="may write"):
        assert found() == []
    real.chmod(0o700)
    give_away(filled, monkeypatch)
    assert found() == []


def test_warnings_as_errors_name_the_cause(filled: Path) -> None:
    filled.chmod(0o777)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UntrustedCacheWarning):
            found()

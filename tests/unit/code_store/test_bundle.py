"""Bundles: written, checked, loaded as a whole or not at all."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import zipfile
from typing import TYPE_CHECKING, Any

import pytest

from nbrt.backends.code_store.bundle import load_bundle, write_bundle
from nbrt.backends.code_store.compiler_info import CompilerInfo
from nbrt.backends.code_store.entry import Entry
from nbrt.backends.code_store.store import CodeStore
from nbrt.config import override
from nbrt.errors import BundleError, UntrustedCacheWarning

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

KEYS = [f"{number:02x}" + "0" * 62 for number in range(6)]
VERSIONS = {"numba": "1", "python": "3"}
HERE = CompilerInfo(VERSIONS, {"x86_64-here": "+a", "sm_90a": ""})


def entry_of(number: int, **changes: Any) -> Entry:
    fields: dict[str, Any] = {
        "kind": "cpu",
        "name": f"kernel_{number}",
        "signature": "int64",
        "target": "x86_64-here",
        "features": "+a",
        "versions": VERSIONS,
        "data": {"number": number},
        "sections": {"object": bytes([number]) * 40},
        "created": 7,
    }
    return Entry(**{**fields, **changes})


ENTRIES = [
    entry_of(0),
    entry_of(1),
    entry_of(2, target="x86_64-other"),
    entry_of(3, kind="cuda", target="sm_90a", features=""),
    entry_of(4, kind="cuda", target="sm_80", features=""),
]


def fill(entries: list[Entry]) -> None:
    for number, entry in enumerate(entries):
        assert CodeStore(entry.kind).put(KEYS[number], entry)


def bundled(path: Path, entries: list[Entry]) -> Path:
    """Return a bundle of entries, written from another folder."""
    with override(cache_dir=str(path.parent / "build")):
        fill(entries)
        stored = [each for kind in ("cpu", "cuda") for each in CodeStore(kind).entries()]
        assert len(write_bundle(path, stored)) == len(entries)
    return path


def load(path: Path, keeps: Callable[[Entry], bool] = lambda _: False) -> list[tuple[str, str]]:
    loaded = load_bundle(path, lambda _: HERE, keeps)
    assert all(each.entry.sections == {} for each in loaded)
    return [(each.entry.name, each.status) for each in loaded]


def stored() -> dict[str, Entry]:
    found = {}
    for kind in ("cpu", "cuda"):
        for each in CodeStore(kind).entries():
            entry = CodeStore(kind).get(each.key)
            assert entry is not None
            found[each.key] = entry
    return found


def test_a_bundle_brings_the_code_of_this_machine(root: Path, tmp_path: Path) -> None:
    path = bundled(tmp_path / "all.nbrt", ENTRIES)
    assert load(path) == [
        ("kernel_0", "loaded"),
        ("kernel_1", "loaded"),
        ("kernel_2", "skipped"),
        ("kernel_3", "loaded"),
        ("kernel_4", "skipped"),
    ]
    assert stored() == {KEYS[number]: ENTRIES[number] for number in (0, 1, 3)}
    assert {status for _, status in load(path)} == {"present", "skipped"}


def test_code_for_other_machines_is_kept_on_request(root: Path, tmp_path: Path) -> None:
    path = bundled(tmp_path / "all.nbrt", ENTRIES)
    load(path, lambda entry: entry.target == "sm_80")
    assert stored() == {KEYS[number]: ENTRIES[number] for number in (0, 1, 3, 4)}
    load(path, lambda _: True)
    assert stored() == dict(zip(KEYS, ENTRIES, strict=False))


def test_the_manifest_says_what_a_bundle_contains(root: Path, tmp_path: Path) -> None:
    path = bundled(tmp_path / "all.nbrt", ENTRIES)
    with zipfile.ZipFile(path) as archive:
        manifest = json.loads(archive.read("manifest.json"))
        for row, entry, key in zip(manifest["entries"], ENTRIES, KEYS, strict=False):
            content = archive.read(f"{entry.kind}/{key}")
            assert row["sha256"] == hashlib.sha256(content).hexdigest()
            assert row["size"] == len(content)
            for name in ("kind", "name", "signature", "target", "features", "versions", "created"):
                assert row[name] == getattr(entry, name)
    assert len(manifest["entries"]) == len(ENTRIES)


def test_a_bundle_replaces_a_file_only_when_it_is_complete(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(ENTRIES[:1])
    path = tmp_path / "all.nbrt"
    path.write_bytes(b"before")
    entries = list(CodeStore("cpu").entries())
    real = os.replace

    def full(source: Any, destination: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="disk full"):
        write_bundle(path, entries)
    assert path.read_bytes() == b"before"
    assert [file.name for file in tmp_path.iterdir() if file.is_file()] == ["all.nbrt"]
    monkeypatch.setattr(os, "replace", real)
    write_bundle(path, entries)
    assert zipfile.is_zipfile(path)


def test_deleted_and_damaged_entries_are_left_out(root: Path, tmp_path: Path) -> None:
    fill(ENTRIES[:3])
    entries = sorted(CodeStore("cpu").entries(), key=lambda each: each.key)
    CodeStore("cpu").remove(KEYS[0])
    damaged = root / "cpu" / KEYS[1][:2] / f"{KEYS[1]}.nbrtc"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    written = write_bundle(tmp_path / "some.nbrt", entries)
    assert [each.key for each in written] == [KEYS[2]]


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        (ENTRIES[2:3] + ENTRIES[4:], r"this machine \(x86_64-here .*code for sm_80; x86_64-other"),
        ([entry_of(0, features="+a,+b")], r"x86_64-here \(features .*x86_64-here \(features"),
        ([], "code for nothing"),
        (
            [entry_of(0), entry_of(1, versions={"numba": "2", "cuda": "13"})],
            r"kernel_1: cuda 13 \(here none\), numba 2 \(here 1\), python none \(here 3\)",
        ),
    ],
    ids=["other targets", "other features", "empty", "other compilers"],
)
def test_what_does_not_fit_is_refused(
    root: Path, tmp_path: Path, entries: list[Entry], says: str
) -> None:
    path = bundled(tmp_path / "all.nbrt", entries)
    with pytest.raises(BundleError, match=says):
        load(path)
    assert stored() == {}


def test_a_kind_without_a_compiler_is_for_other_machines(root: Path, tmp_path: Path) -> None:
    path = bundled(tmp_path / "all.nbrt", ENTRIES)
    with pytest.raises(BundleError, match="no target"):
        load_bundle(path, lambda _: None, lambda _: False)
    assert stored() == {}
    loaded = load_bundle(path, lambda kind: HERE if kind == "cpu" else None, lambda _: False)
    assert sum(each.status == "loaded" for each in loaded) == 2


def test_no_damaged_byte_is_loaded(root: Path, tmp_path: Path) -> None:
    path = bundled(tmp_path / "one.nbrt", ENTRIES[:1])
    good = path.read_bytes()
    refused = 0
    for index in range(len(good)):
        path.write_bytes(good[:index] + bytes([good[index] ^ 0x41]) + good[index + 1 :])
        try:
            load(path)
        except BundleError:
            refused += 1
            assert stored() == {}
        else:  # a date or another field of the zip file that means nothing
            assert stored() == {KEYS[0]: ENTRIES[0]}
            CodeStore("cpu").remove(KEYS[0])
    assert refused > len(good) / 2
    for end in range(0, len(good), 7):
        path.write_bytes(good[:end])
        with pytest.raises(BundleError):
            load(path)
    path.unlink()
    with pytest.raises(BundleError, match="cannot read"):
        load(path)
    assert stored() == {}


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return (pytest.fail, ("a bundle was unpickled",))


def _edited(path: Path, edit: Callable[[dict[str, Any], dict[str, bytes]], None]) -> None:
    """Rewrite a bundle after a change of its manifest and files."""
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(files.pop("manifest.json"))
    edit(manifest, files)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
        if manifest:
            archive.writestr("manifest.json", json.dumps(manifest))


def _other_key(manifest: dict[str, Any], files: dict[str, bytes]) -> None:
    manifest["entries"][0]["key"] = KEYS[1]
    files[f"cpu/{KEYS[1]}"] = files.pop(f"cpu/{KEYS[0]}")


def _path_for_key(manifest: dict[str, Any], files: dict[str, bytes]) -> None:
    manifest["entries"][0]["key"] = "../../" + KEYS[0]
    files[f"cpu/../../{KEYS[0]}"] = files.pop(f"cpu/{KEYS[0]}")


def _path_for_kind(manifest: dict[str, Any], files: dict[str, bytes]) -> None:
    manifest["entries"][0]["kind"] = ".."
    files[f"../{KEYS[0]}"] = files.pop(f"cpu/{KEYS[0]}")


def _other_name(manifest: dict[str, Any], files: dict[str, bytes]) -> None:
    manifest["entries"][0]["name"] = "harmless"


def _further_file(manifest: dict[str, Any], files: dict[str, bytes]) -> None:
    files["cpu/more"] = b"more"


def _missing_file(manifest: dict[str, Any], files: dict[str, bytes]) -> None:
    files.clear()


def _twice(manifest: dict[str, Any], files: dict[str, bytes]) -> None:
    manifest["entries"] *= 2


def _larger(manifest: dict[str, Any], files: dict[str, bytes]) -> None:
    files[f"cpu/{KEYS[0]}"] += bytes(10**7)


def _negative_size(manifest: dict[str, Any], files: dict[str, bytes]) -> None:
    manifest["entries"][0]["size"] = -5


def _size_that_fits_no_memory(manifest: dict[str, Any], files: dict[str, bytes]) -> None:
    manifest["entries"][0]["size"] = 2**40


def _pickled(manifest: dict[str, Any], files: dict[str, bytes]) -> None:
    files[f"cpu/{KEYS[0]}"] = pickle.dumps(Bomb())


def _no_manifest(manifest: dict[str, Any], files: dict[str, bytes]) -> None:
    manifest.clear()


def _newer_format(manifest: dict[str, Any], files: dict[str, bytes]) -> None:
    manifest["version"] = 2


@pytest.mark.parametrize(
    "edit",
    [
        _other_key,
        _path_for_key,
        _path_for_kind,
        _other_name,
        _further_file,
        _missing_file,
        _twice,
        _larger,
        _negative_size,
        _size_that_fits_no_memory,
        _pickled,
        _no_manifest,
        _newer_format,
    ],
)
def test_a_forged_bundle_is_refused(
    root: Path, tmp_path: Path, edit: Callable[[dict[str, Any], dict[str, bytes]], None]
) -> None:
    path = bundled(tmp_path / "one.nbrt", ENTRIES[:1])
    _edited(path, edit)
    with pytest.raises(BundleError, match="nothing was loaded"):
        load(path)
    assert stored() == {}


@pytest.mark.parametrize("manifest", [b"[]", b"{}", b"null", b"\xff", b"[" * 10**5, b'{"a": 1e9}'])
def test_a_manifest_of_another_shape_is_refused(
    root: Path, tmp_path: Path, manifest: bytes
) -> None:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("manifest.json", manifest)
    (tmp_path / "x.nbrt").write_bytes(data.getvalue())
    with pytest.raises(BundleError, match="nothing was loaded"):
        load(tmp_path / "x.nbrt")


def test_a_load_that_fails_midway_leaves_the_store_as_it_was(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = bundled(tmp_path / "all.nbrt", ENTRIES)
    fill(ENTRIES[:1])
    before = {file: file.read_bytes() for file in root.rglob("*") if file.is_file()}
    real, writes = CodeStore.write, []

    def failing(self: CodeStore, key: str, content: bytes) -> bool:
        writes.append(key)
        return len(writes) < 2 and real(self, key, content)

    monkeypatch.setattr(CodeStore, "write", failing)
    with pytest.raises(BundleError, match="can be written"):
        load(path, lambda _: True)
    assert len(writes) == 2
    assert {file: file.read_bytes() for file in root.rglob("*") if file.is_file()} == before


def test_an_untrusted_folder_takes_no_bundle(root: Path, tmp_path: Path) -> None:
    path = bundled(tmp_path / "all.nbrt", ENTRIES)
    root.mkdir(mode=0o700)
    root.chmod(0o777)
    with (
        pytest.warns(UntrustedCacheWarning),
        pytest.raises(BundleError, match="NBRT_CACHE_DIR"),
    ):
        load(path)
    assert list(root.iterdir()) == []


def test_a_bundle_beyond_the_limit_is_refused(root: Path, tmp_path: Path) -> None:
    path = bundled(tmp_path / "all.nbrt", ENTRIES)
    with (
        override(cache_limit=1000),
        pytest.raises(BundleError, match=r"at most 1000 bytes \(NBRT_CACHE_LIMIT\)"),
    ):
        load(path)
    assert stored() == {}

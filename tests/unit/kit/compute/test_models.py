"""Models as files: found or refused with words, and versions that change with what they name."""

from __future__ import annotations

from pathlib import Path

import pytest

from evenmesh_kit.compute import model_files as models
from evenmesh_kit.compute.model_files import DownloadsOffError, ModelError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model's folder, as far as versions are concerned."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "t5"}')
    (folder / "tokenizer.json").write_text('{"version": "1.0"}')
    (folder / "model.safetensors").write_bytes(bytes(range(256)) * 1000)
    (folder / "notes.md").write_text("not hashed")
    return folder


def test_a_folder_is_itself(folder: Path) -> None:
    assert models.locate(str(folder), allow_download=False) == folder


def test_what_is_no_folder_and_no_repository(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="there is no folder"):
        models.locate(str(tmp_path / "none"), allow_download=False)


def test_downloads_are_off_unless_allowed() -> None:
    with pytest.raises(DownloadsOffError, match="nobody/nothing is neither a folder nor downloaded before"):
        models.locate("nobody/nothing", allow_download=False)


def test_the_version_of_a_snapshot_is_its_revision(folder: Path, tmp_path: Path) -> None:
    revision = "0123456789abcdef0123456789abcdef01234567"
    snapshot = tmp_path / "models--some--model" / "snapshots" / revision
    snapshot.parent.mkdir(parents=True)
    folder.rename(snapshot)
    assert models.version(snapshot) == revision


def test_versions_change_with_weights_configuration_and_tokenizer(folder: Path) -> None:
    versions = [models.version(folder)]
    (folder / "notes.md").write_text("changed")
    assert models.version(folder) == versions[0]
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        data = bytearray((folder / name).read_bytes())
        data[-2] ^= 1
        (folder / name).write_bytes(data)
        versions.append(models.version(folder))
    assert len(set(versions)) == 4
    assert all(len(version) == 16 for version in versions)


def test_large_weights_count_by_size_header_and_spaced_blocks(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test's file is small, so the limit and the blocks are made small too."""
    monkeypatch.setattr(models, "_HASHED_BYTES", 1000)
    monkeypatch.setattr(models, "_BLOCK", 16)
    monkeypatch.setattr(models, "_BLOCKS", 4)
    path = folder / "model.safetensors"
    data = path.read_bytes()
    before = models.version(folder)
    for changed in (b"x" + data[1:], data + b"x", data[:64_000] + b"x" + data[64_001:]):
        path.write_bytes(changed)
        assert models.version(folder) != before
    path.write_bytes(data[:30_000] + b"x" + data[30_001:])
    assert models.version(folder) == before, "between the blocks"

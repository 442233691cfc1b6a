"""Files of models come from the hub or a bucket, whole or not at all, and what is there stays."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from typer.testing import CliRunner

from evenmesh.commands import application
from evenmesh_documents import model_files
from evenmesh_documents.model_files import FetchError, NamedModel, fetch, fetch_all

fsspec = pytest.importorskip("fsspec")

FILES = {
    "config.json": b"{}",
    "model-00001-of-00002.safetensors": b"x" * 100,
    "1_Pooling/config.json": b"{}",
}
NOT_FETCHED = {
    "pytorch_model.bin": b"pickle",
    "modeling.py": b"import os",
    ".cache/x.json": b"{}",
    "README.md": b"",
}


@pytest.fixture
def bucket() -> Iterator[Any]:
    system = fsspec.filesystem("memory")
    system.store.clear()
    for name, data in (FILES | NOT_FETCHED).items():
        system.pipe(f"/bucket/flan/{name}", data)
    yield system
    system.store.clear()


def there(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".evenmesh-source"
    }


def test_an_address_gives_weights_configuration_and_tokenizer_alone(bucket: Any, tmp_path: Path) -> None:
    model = NamedModel.parse("flan=memory://bucket/flan")
    assert fetch(model, tmp_path)
    assert there(tmp_path / "flan") == FILES
    bucket.store.clear()
    assert not fetch(model, tmp_path), "what is there is asked for nowhere"
    assert [path.name for path in tmp_path.iterdir()] == ["flan"]


def test_another_model_of_the_same_name_is_refused_and_the_first_stays(bucket: Any, tmp_path: Path) -> None:
    fetch(NamedModel("flan", "memory://bucket/flan"), tmp_path)
    with pytest.raises(FetchError, match="give this one another name"):
        fetch(NamedModel("flan", "memory://bucket/other"), tmp_path)
    assert there(tmp_path / "flan") == FILES
    (tmp_path / "mine").mkdir()
    with pytest.raises(FetchError, match="was not fetched by this command"):
        fetch(NamedModel("mine", "memory://bucket/flan"), tmp_path)


def test_one_that_breaks_off_leaves_nothing_under_its_name(
    bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = type(bucket).open

    def breaks(self: Any, path: str, *words: Any, **named: Any) -> Any:
        if path.endswith(".safetensors"):
            raise OSError("reset by peer")
        return real(self, path, *words, **named)

    monkeypatch.setattr(type(bucket), "open", breaks)
    with pytest.raises(FetchError, match=r"flan: model-00001-of-00002\.safetensors cannot be fetched"):
        fetch(NamedModel("flan", "memory://bucket/flan"), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_of_two_that_fetch_at_once_the_second_leaves_what_the_first_brought(
    bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = NamedModel("flan", "memory://bucket/flan")
    real = model_files._from_address

    def overtaken(one: NamedModel, folder: Path) -> None:
        real(one, folder)
        monkeypatch.setattr(model_files, "_from_address", real)
        assert fetch(one, tmp_path)

    monkeypatch.setattr(model_files, "_from_address", overtaken)
    assert not fetch(model, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["flan"]


def test_what_a_killed_process_left_is_removed_when_it_is_old(bucket: Any, tmp_path: Path) -> None:
    for name, age_s in (("old", 2 * 86_400), ("young", 60)):
        left = tmp_path / f".fetching-flan-{name}"
        left.mkdir()
        os.utime(left, (time.time() - age_s,) * 2)
    fetch(NamedModel("flan", "memory://bucket/flan"), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"flan", ".fetching-flan-young"}


def test_the_hub_is_asked_for_the_same_files_at_the_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def snapshot(name: str, *, revision: str | None, allow_patterns: list[str], local_dir: Path) -> None:
        asked.append((name, revision, allow_patterns))
        (local_dir / ".cache").mkdir()
        (local_dir / "model.safetensors").write_bytes(b"x")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    fetch_all(["flan=google/flan-t5-base@abc", "bert=bert-base"], tmp_path, lambda *_: None)
    patterns = list(model_files.FETCHED)
    assert asked == [("google/flan-t5-base", "abc", patterns), ("bert-base", None, patterns)]
    assert there(tmp_path / "flan") == {"model.safetensors": b"x"}


def test_patterns_are_those_by_which_services_fetch() -> None:
    from evenmesh_kit.compute import model_files as of_services

    assert model_files.FETCHED == of_services.FETCHED


def test_without_weights_it_is_no_model(bucket: Any, tmp_path: Path) -> None:
    bucket.rm("/bucket/flan/model-00001-of-00002.safetensors")
    with pytest.raises(FetchError, match="no weights"):
        fetch(NamedModel("flan", "memory://bucket/flan"), tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("flan", "must be a repository of the hub"),
        ("../flan=a/b", "NAME=SOURCE"),
        ("=a/b", "NAME=SOURCE"),
        ("flan=../../etc", "must be a repository"),
        ("flan=a/b/c", "must be a repository"),
        ("flan=zip::memory://x", "must be a repository"),
        ("flan=memory://x::y", "no '::'"),
        ("flan=s3://" + "b" * 1_100, "at most 1024 characters"),
        ("n" * 65 + "=a/b", "1 to 64"),
    ],
)
def test_what_names_no_model_is_refused(text: str, words: str) -> None:
    with pytest.raises(FetchError, match=words):
        NamedModel.parse(text)


def test_names_differ_and_there_are_not_too_many(tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="same name"):
        fetch_all(["a=b/c", "a=b/d"], tmp_path, lambda *_: None)
    with pytest.raises(FetchError, match="at most 64"):
        fetch_all([f"m{n}=b/c" for n in range(65)], tmp_path, lambda *_: None)


def test_the_command_reads_its_models_from_the_environment(bucket: Any, tmp_path: Path) -> None:
    words = ["fetch-models", "--to", str(tmp_path)]
    of = {"EVENMESH_FETCH_MODELS": "flan=memory://bucket/flan other=memory://bucket/flan"}
    done = CliRunner().invoke(application(), words, env=of)
    assert (done.exit_code, done.stdout) == (0, "flan: fetched\nother: fetched\n")
    done = CliRunner().invoke(application(), words, env={"EVENMESH_FETCH_MODELS": ""})
    assert (done.exit_code, done.stdout) == (0, "")
    done = CliRunner().invoke(application(), [*words, "flan=memory://bucket/other"])
    assert done.exit_code != 0

"""The file of a model's trained texts: what is written is read, and what is no such file is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evenmesh_lab.files.failure import FileError
from evenmesh_lab.files.trained_texts import (
    MOST_PARTS,
    TRAINED_TEXTS,
    TrainedTexts,
    TrainingTexts,
    find_trained_texts,
    read_trained_texts,
    trained_texts_of,
    write_trained_texts,
)

FIRST = TrainingTexts.of("first", ["Who wrote it?"], ["It was written by Ada."])
SECOND = TrainingTexts.of("second", ["Where is it?"], ["It is in Bern."])


def test_what_is_written_is_read(tmp_path: Path) -> None:
    texts = TrainedTexts((FIRST,), ("base",)).followed_by(SECOND)
    path = write_trained_texts(texts, tmp_path)
    found = find_trained_texts(tmp_path)
    assert found is not None
    assert path == tmp_path / TRAINED_TEXTS
    assert [one.name for one in found.trainings] == ["first", "second"]
    assert found.unhashed == ("base",)
    assert all(map(found.has_question, ["who wrote it", "WHERE is it?"]))
    assert found.has_passage("it is in  bern")
    assert not found.has_question("It is in Bern.")  # a passage is no question
    assert (found.num_questions, found.num_passages) == (2, 2)
    assert 0 <= found.false_positives < 0.01
    assert b"Ada" not in path.read_bytes()


def test_a_model_without_the_file_is_named_as_unhashed(tmp_path: Path) -> None:
    assert find_trained_texts(tmp_path) is None
    found = trained_texts_of(tmp_path, "mine")
    assert (found.trainings, found.unhashed) == ((), ("mine",))
    assert trained_texts_of(None, "hub/model").unhashed == ("hub/model",)


def test_the_oldest_of_very_many_trainings_count_as_unhashed() -> None:
    texts = TrainedTexts(())
    for number in range(MOST_PARTS + 2):
        texts = texts.followed_by(TrainingTexts.of(f"training {number}", [f"q{number}"], []))
    assert len(texts.trainings) == MOST_PARTS
    assert texts.unhashed == ("training 0", "training 1")
    assert not texts.has_question("q0")


def _changed(path: Path, **header: object) -> None:
    line, _, bits = path.read_bytes().partition(b"\n")
    path.write_bytes(json.dumps(json.loads(line) | header).encode() + b"\n" + bits)


def test_a_file_that_is_damaged_is_refused(tmp_path: Path) -> None:
    path = write_trained_texts(TrainedTexts((FIRST,)), tmp_path)
    whole = path.read_bytes()
    sizes = {"count": 1, "hashes": 99, "size": 0}
    part = {"training": "x", "questions": sizes, "passages": sizes}
    path.write_bytes(whole[:-1])
    with pytest.raises(FileError, match="cut short"):
        read_trained_texts(path)
    for content in (b"", b"\xff\xfe", b"[]\n", b"{" * 100_000, b'{"format": 1}\n', b"9" * 5_000 + b"\n"):
        path.write_bytes(content)
        with pytest.raises(FileError, match="is no file of trained texts"):
            read_trained_texts(path)
    for header in ({"format": 2}, {"parts": [part]}, {"unhashed": ["x"] * 65}):
        path.write_bytes(whole)
        _changed(path, **header)
        with pytest.raises(FileError, match="is no file of trained texts"):
            read_trained_texts(path)
    with pytest.raises(FileError, match="No such file"):
        read_trained_texts(tmp_path / "nowhere")
